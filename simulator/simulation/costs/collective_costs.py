"""Uncontended times of the collectives and transfers of a run: each distinct one with its source and how far to trust it."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from ...binding.collective_policy import BARRIER, CollectivePolicy
from ...costs.collectives.curves import UncontendedTime
from ...program.op import Collective, Transfer
from ...units import show_bytes
from ..result import Result
from .kernel_costs import OpCost, OpCosts


def collective_costs(result: Result) -> list[OpCost]:
    """Every collective of the measured step, the most expensive first. On links taken at face value nothing is known of any."""
    policy, mesh, size = result.site.policy, result.bound.mesh, result.scenario.cluster.gpus_per_node
    calls: Counter[tuple[str, str, int, int, int]] = Counter()
    for (name, kind, payload_bytes), times in _calls(result).items():
        communicator = result.program.communicators[name]
        nodes = mesh.first_group(communicator.axes, communicator.pipeline) // size
        calls[communicator.axis, kind, payload_bytes, len(nodes), len(np.unique(nodes))] += times
    costs = [(what, times, *_uncontended(policy, what)) for what, times in calls.items()]
    rows = [_cost(what, times, name, known) for what, times, name, known in costs if known is not None]
    return OpCosts(sorted(rows, key=lambda row: -row.seconds))


def _uncontended(policy: CollectivePolicy, what: tuple[str, str, int, int, int]) -> tuple[str, UncontendedTime | None]:
    """The algorithm that serves it and what that takes, its ranks spread evenly over its nodes, those of a node together."""
    _, kind, payload_bytes, ranks, nodes = what
    if ranks < 2 or kind == BARRIER:
        return "", None
    spread = np.arange(ranks) * nodes // ranks
    name = policy.chosen(kind, spread, payload_bytes)
    return name, policy.uncontended_time(kind, name, spread, payload_bytes)


def _cost(what: tuple[str, str, int, int, int], calls: int, algorithm: str, known: UncontendedTime) -> OpCost:
    axis, kind, payload_bytes, ranks, nodes = what
    return OpCost(
        f"{axis} {kind}",
        f"{show_bytes(payload_bytes)} over {ranks} ranks on {nodes} node{'s' * (nodes > 1)}, {algorithm}",
        calls,
        known.seconds,
        known.seconds * calls,
        known.source,
        known.provenance,
        known.uncertainty,
        known.extrapolated,
        axis,
    )


def _calls(result: Result) -> Counter[tuple[str, str, int]]:
    """How often the ranks of one replica's pipeline do each: communicator, kind, payload. A transfer counts at its source."""
    calls: dict[tuple[str, str, int], float] = defaultdict(float)
    for rank in range(result.program.ranks):
        for body, times in result.calls(rank).items():
            for op in result.program.bodies[body].ops:
                if isinstance(op, Collective):
                    calls[op.communicator, op.kind, op.payload_bytes] += times
                elif isinstance(op, Transfer) and op.sends:
                    calls[op.communicator, "sendrecv", op.payload_bytes] += times
    return Counter({what: round(times) for what, times in calls.items()})
