"""Uneven routing: how many rows every rank of a group of experts has for every other rank.

Experts are unequally popular. Drawn shares of the tokens come from a symmetric Dirichlet distribution, whose concentration says
how even they are, and the rows of each rank from a multinomial distribution with these shares. Of given shares every rank has the
exact part of its rows, rounded so that all of them are there. One matrix holds for all layers, microbatches and groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.task import Array
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
    generator, moe, copies = np.random.default_rng(plan.moe.seed), plan.moe, tokens * model.experts_per_token
    if isinstance(moe.routing, str):
        shares = generator.dirichlet(np.full(model.experts, moe.concentration))
        by_expert = generator.multinomial(copies, shares, size=plan.ep)
    else:
        by_expert = np.tile(apportioned(moe.routing, copies), (plan.ep, 1))
    by_rank = by_expert[:, experts_of_ranks(model.experts, plan)].sum(axis=2)
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


def apportioned(shares: Sequence[float], rows: int) -> Array:
    """Rows by given shares: rounded down, and one more for the experts that lose most by that, the first of several."""
    exact = np.array(shares) / sum(shares) * rows
    whole: Array = np.floor(exact).astype(np.int64)
    most = np.argsort(whole - exact, kind="stable")[: rows - whole.sum()]
    whole[most] += 1
    return whole


def experts_of_ranks(experts: int, plan: Plan) -> Array:
    """The experts of every rank of a group, a row for each rank."""
    placement = plan.moe.placement
    if placement == "contiguous":
        return np.arange(experts).reshape(plan.ep, -1)
    return np.arange(experts).reshape(-1, plan.ep).T if placement == "cyclic" else np.array(placement)
