"""Drawn routing: how many rows every rank of a group of experts has for every other rank.

Experts are unequally popular. Their shares of the tokens are drawn from a symmetric Dirichlet distribution, whose concentration
says how even they are, and the rows of each rank from a multinomial distribution with these shares. One draw, from a seed, holds
for all layers, microbatches and groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..plan.plan import Plan
from ..workload.model import Model

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Load:
    """The rows that every rank of a group has for every other rank, and one of these ranks."""

    rows: Rows
    """Entry (i, j): rows of rank i for the experts of rank j."""
    rank: int

    @property
    def received(self) -> int:
        """Rows that reach the experts of the rank."""
        return sum(row[self.rank] for row in self.rows)


def loads(model: Model, plan: Plan, tokens: int) -> dict[tuple[int, ...], Load | None]:
    """The load of each role: the ranks of a group that receive equally many rows. A single None where routing is balanced."""
    if not model.experts or plan.moe.routing == "balanced":
        return {(): None}
    rows = drawn(model, plan, tokens)
    rows = with_one_hot_rank(rows) if plan.moe.ranks == "hottest" else rows
    alike: dict[int, list[int]] = {}
    for rank in range(plan.ep):
        alike.setdefault(Load(rows, rank).received, []).append(rank)
    return {tuple(ranks): Load(rows, ranks[0]) for ranks in alike.values()}


def drawn(model: Model, plan: Plan, tokens: int) -> Rows:
    """The rows that every rank has for every other rank, for `tokens` tokens on each."""
    generator, moe = np.random.default_rng(plan.moe.seed), plan.moe
    shares = generator.dirichlet(np.full(model.experts, moe.concentration))
    by_expert = generator.multinomial(tokens * model.experts_per_token, shares, size=plan.ep)
    order = (plan.ep, -1) if moe.placement == "contiguous" else (-1, plan.ep)
    split = by_expert.reshape(plan.ep, *order)
    by_rank = split.sum(axis=2 if moe.placement == "contiguous" else 1)
    return tuple(tuple(row) for row in by_rank.tolist())


def with_one_hot_rank(rows: Rows) -> Rows:
    """Rows where the rank that receives most is as it was, and all other ranks are alike.

    The mean, rounded up, stands for the rows of the others for each other, for the hot rank, and of the hot rank for them.
    """
    held = np.array(rows)
    others = np.arange(len(held)) != held.sum(axis=0).argmax()
    hot = ~others
    for source, target in ((others, others), (others, hot), (hot, others)):
        block = np.ix_(source, target)
        held[block] = -(-held[block].sum() // held[block].size)
    return tuple(map(tuple, held.tolist()))
