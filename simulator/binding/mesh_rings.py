"""Rings on meshes: orders of the ranks in which rings use the direct links between the GPUs of a node.

In the order of ranks a ring on a cube mesh would pass through third GPUs and leave most links idle. Libraries search for cycles
through all GPUs that share no link, and give each cycle, in both directions, a part of the payload. Behind a switch all orders
are equivalent. Reference: Jeaugey, "NCCL 2.0", GTC 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from ..collectives import Edges, Round, joined
from ..engine.task import Array
from ..hardware.cluster import Cluster

MOST_RANKS = 16
MOST_CYCLES = 5000
"""Largest number of cycles tried; then the best set so far is taken."""
MOST_STEPS = 1_000_000
"""Largest number of GPUs appended to paths in the search for cycles; then the best set so far is taken."""
MOST_RINGS = 256
"""Largest number of cycles that are used together."""
MOST_PARALLEL = 16
"""Largest number of links of the slowest kind that the fastest link counts as. What is much slower is left out of rings."""

Cycle = tuple[int, ...]
LinkCounts = list[list[int]]
"""GPU -> GPU -> bandwidth between them, in links of the slowest kind."""


@dataclass(frozen=True, eq=False)
class ClusterRounds:
    """The rounds of algorithms on a cluster, with rings that follow its meshes."""

    cluster: Cluster
    _orders: dict[Cycle, list[Cycle]] = field(default_factory=dict)

    def rounds(self, algorithm: ModuleType, kind: str, gpus: Array) -> tuple[Round, ...]:
        """The rounds of a group of GPUs, in which GPUs of a node are adjacent."""
        plan = tuple(algorithm.rounds(kind, gpus // self.cluster.gpus_per_node))
        if not getattr(algorithm, "RINGS", False):
            return plan
        orders = self._orders_of(gpus)
        if not orders:
            return plan
        copies = [joined([(_relabelled(r.edges, order), 1 / len(orders)) for order in orders]) for r in plan]
        return tuple(Round(edges, r.fraction, r.repeats) for edges, r in zip(copies, plan, strict=True))

    def lanes(self, algorithm: ModuleType, kind: str, gpus: Array) -> tuple[tuple[Round, ...], ...]:
        """The rounds in independent parts: ring by ring, and order by order."""
        nodes = gpus // self.cluster.gpus_per_node
        plans = algorithm.lanes(kind, nodes) if hasattr(algorithm, "lanes") else (tuple(algorithm.rounds(kind, nodes)),)
        orders = self._orders_of(gpus) if getattr(algorithm, "RINGS", False) else []
        if not orders:
            return tuple(plans)
        return tuple(
            tuple(Round(_relabelled(r.edges, order), r.fraction / len(orders), r.repeats) for r in plan)
            for plan in plans
            for order in orders
        )

    def _orders_of(self, gpus: Array) -> list[Array]:
        """Orders of the group, as positions. Each order carries an equal part of the payload; empty for the order of ranks."""
        per_node = self.cluster.gpus_per_node
        nodes, counts = np.unique(gpus // per_node, return_counts=True)
        local = tuple((gpus[: counts[0]] % per_node).tolist())
        if not 2 < len(local) <= MOST_RANKS or not np.array_equal(gpus % per_node, np.tile(local, len(nodes))):
            return []
        if local not in self._orders:
            found = cycles(self._link_counts(local))
            self._orders[local] = [order for cycle in found for order in (cycle, (cycle[0], *cycle[:0:-1]))]
        first = np.arange(len(nodes))[:, None] * len(local)
        return [(first + np.array(order)).ravel() for order in self._orders[local]]

    def _link_counts(self, local: Cycle) -> LinkCounts:
        """The links from GPU to GPU in the first node: its GPUs are the first vertices."""
        assembly, gpus = self.cluster.assembly, self.cluster.gpus_per_node
        runs = assembly.runs if assembly else self.cluster.wiring.runs
        source, target, rate = (
            np.concatenate([getattr(run, name) for run in runs]) for name in ("source", "target", "capacity_bytes_per_s")
        )
        direct = (source < gpus) & (target < gpus)
        source, target, rate = source[direct], target[direct], rate[direct]
        counts = np.zeros((gpus, gpus), dtype=np.int64)
        slowest = max(rate.min(initial=np.inf), rate.max(initial=0.0) / MOST_PARALLEL)
        np.add.at(counts, (source, target), np.rint(rate / slowest).astype(int))
        links: LinkCounts = counts[np.ix_(local, local)].tolist()
        return links


def cycles(counts: LinkCounts) -> list[Cycle]:
    """Cycles through all GPUs that share no link, as many as a short search finds; each starts at the first GPU."""
    most = min(MOST_RINGS, min(map(sum, counts), default=0) // 2)
    best: list[Cycle] = []
    tried, steps = 0, iter(range(MOST_STEPS))

    def search(left: LinkCounts, found: list[Cycle]) -> bool:
        nonlocal best, tried
        if len(found) > len(best):
            best = found
        for cycle in _full_cycles(left, found[-1] if found else (), steps):
            tried += 1
            if len(best) == most or tried > MOST_CYCLES or search(_without(left, cycle), [*found, cycle]):
                return True
        return len(best) == most

    search(counts, [])
    return best


def _full_cycles(counts: LinkCounts, least: Cycle, steps: Iterator[int]) -> Iterator[Cycle]:
    """Cycles from the first GPU through all others over existing links, in lexical order from `least` on, in one direction, as
    long as there are `steps` left."""

    def onward(path: Cycle) -> Iterator[Cycle]:
        if len(path) == len(counts):
            if counts[path[-1]][0] and path[1] < path[-1] and path >= least:
                yield path
            return
        for following in range(1, len(counts)):
            if following not in path and counts[path[-1]][following] and next(steps, None) is not None:
                yield from onward((*path, following))

    return onward((0,))


def _without(counts: LinkCounts, cycle: Cycle) -> LinkCounts:
    left = [row.copy() for row in counts]
    for gpu, next_gpu in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        left[gpu][next_gpu] -= 1
        left[next_gpu][gpu] -= 1
    return left


def _relabelled(edges: Edges, order: Array) -> Edges:
    return Edges(order[edges.source], order[edges.target], edges.share)
