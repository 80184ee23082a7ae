"""Uneven routing: the number of rows that every rank of an expert-parallel group sends to every other rank, in each layer.

Experts are unequally popular. Their shares of the tokens are drawn from a symmetric Dirichlet distribution, whose concentration
determines how even they are, and the rows of each rank from a multinomial distribution with these shares. A token goes to
different experts, so that no expert has more rows of a rank than the rank has tokens. Every layer has its own draw, which depends
only on the seed and on the number of the layer in the model. With given shares every rank has exactly its part of the rows,
rounded so that the total is kept. The matrix of a layer is used for all its microbatches and in all groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.task import Array
from ..plan.plan import Plan
from ..workload.blocks.moe import has_experts
from ..workload.model import Model


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    """The rows that every rank of a group has for every other rank in a layer."""

    rows: Array
    """Entry (i, j): rows of rank i for the experts of rank j."""
    received: tuple[int, ...]
    """Rows that reach the experts of a rank of each variant (`Loads.alike`)."""

    @property
    def most(self) -> int:
        """Rows that reach the experts of the most loaded rank."""
        return max(self.received)


@dataclass(frozen=True, eq=False, slots=True)
class Loads:
    """The loads of all layers with experts, by the number of the layer in the model."""

    of_layer: dict[int, Load]
    alike: tuple[tuple[int, ...], ...]
    """The variants of ranks: ranks of a group that receive equally many rows in every layer."""


def loads(model: Model, plan: Plan, tokens: int) -> Loads | None:
    """The loads for `tokens` tokens of a microbatch on each rank; None where routing is balanced."""
    if not model.experts or plan.moe.routing == "balanced":
        return None
    layers = layers_with_experts(model)
    matrices = [drawn(model, plan, tokens, layer) for layer in layers]
    if plan.moe.ranks == "hottest":
        hot = int(sum(rows.sum(axis=0) for rows in matrices).argmax())
        matrices = [with_one_hot_rank(rows, hot) for rows in matrices]
    received = np.array([rows.sum(axis=0) for rows in matrices])
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank in range(plan.ep):
        alike.setdefault(tuple(received[:, rank].tolist()), []).append(rank)
    first = [ranks[0] for ranks in alike.values()]
    found = {layer: Load(rows, tuple(of[first].tolist())) for layer, rows, of in zip(layers, matrices, received, strict=True)}
    return Loads(found, tuple(map(tuple, alike.values())))


def layers_with_experts(model: Model) -> list[int]:
    """The numbers of the layers with experts; modules for multi-token prediction count as layers after the last one."""
    layers = [layer for layer in range(model.layers) if has_experts(model, layer)]
    further = range(model.layers, model.layers + model.mtp_layers) if has_experts(model, model.layers - 1) else ()
    return [*layers, *further]


def drawn(model: Model, plan: Plan, tokens: int, layer: int) -> Array:
    """The rows that every rank sends to every other rank in a layer, for `tokens` tokens on each rank."""
    moe, copies = plan.moe, tokens * model.experts_per_token
    if isinstance(moe.routing, str):
        generator = np.random.default_rng([moe.seed, layer])
        shares = generator.dirichlet(np.full(model.experts, moe.concentration))
        of_ranks = generator.multinomial(copies, shares, size=plan.ep)
        by_expert = np.array([once_for_each(rows, shares, tokens) for rows in of_ranks])
    else:
        layers = layers_with_experts(model)
        given = moe.given_shares(len(layers))[layers.index(layer)]
        by_expert = np.tile(apportioned(given, copies), (plan.ep, 1))
    rows: Array = by_expert[:, experts_of_ranks(model.experts, plan)].sum(axis=2)
    return rows


def with_one_hot_rank(rows: Array, place: int) -> Array:
    """Rows in which the rank that receives most is moved to `place`, and all other ranks are made alike.

    Means, rounded up, replace the rows among the other ranks, those to the hot rank, and those from it.
    """
    held, hottest = np.empty_like(rows), int(rows.sum(axis=0).argmax())
    was, here = np.arange(len(rows)) == hottest, np.arange(len(rows)) == place
    held[place, place] = rows[hottest, hottest]
    for source, target, sends, receives in ((~was, ~was, ~here, ~here), (~was, was, ~here, here), (was, ~was, here, ~here)):
        block = rows[np.ix_(source, target)]
        held[np.ix_(sends, receives)] = -(-block.sum() // block.size)
    return held


def apportioned(shares: Sequence[float] | Array, rows: int) -> Array:
    """Rows by given shares: rounded down, plus one for the experts that lose most by the rounding, the first ones if equal."""
    exact = np.array(shares) / sum(shares) * rows
    whole: Array = np.floor(exact).astype(np.int64)
    most = np.argsort(whole - exact, kind="stable")[: rows - whole.sum()]
    whole[most] += 1
    return whole


def once_for_each(rows: Array, shares: Array, tokens: int) -> Array:
    """Rows by expert in which no expert has more than `tokens`: the rest goes to the other experts by their shares."""
    held = np.minimum(rows, tokens)
    while left := int(rows.sum() - held.sum()):
        open_shares = np.where(held < tokens, shares, 0.0)
        more = open_shares if open_shares.any() else (held < tokens).astype(float)
        held = np.minimum(held + apportioned(more, left), tokens)
    return held


def experts_of_ranks(experts: int, plan: Plan) -> Array:
    """The experts of every rank of a group, a row for each rank."""
    placement = plan.moe.placement
    if placement == "contiguous":
        return np.arange(experts).reshape(plan.ep, -1)
    return np.arange(experts).reshape(-1, plan.ep).T if placement == "cyclic" else np.array(placement)
