"""An uneven all-to-all, given by a matrix of bytes: the rounds of each algorithm, and its time on measured links.

People measure even exchanges. An uneven one takes the known time of the even one that keeps the busiest link busy for as long
(payload times skew), times the ratio of the two by the rule of rounds (`unmeasured_algorithms`): 1 where every rank has
something for every other, less where many pairs have nothing for one another. Without a switch the busiest link is a wire on
the routes of the cluster. An algorithm that is known by its rounds alone takes what its own rounds do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..binding.collective_policy import CollectivePolicy, takes
from ..collectives import Round
from ..collectives._uneven import judged, payload
from ..costs.collectives.curves import UncontendedTime
from ..engine.task import Array
from ..hardware.cluster import Cluster
from . import unmeasured_algorithms
from .of_cluster import links_of
from .policy import call_of
from .unmeasured_algorithms import PlacedRounds

KIND = "alltoall"


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """Who has how many bytes for whom. The payload is what a rank holds on average, rounded up to whole bytes."""

    held: Array
    """Entry (i, j) is what rank i has for rank j."""
    payload_bytes: int

    @classmethod
    def of(cls, matrix: ArrayLike) -> Exchange:
        """The exchange of a square matrix."""
        held = judged(KIND, len(np.atleast_1d(np.asarray(matrix, dtype=object))), matrix)
        return cls(held, math.ceil(payload(held)))

    @property
    def ranks(self) -> int:
        return len(self.held)

    @property
    def spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The least and the most that a rank sends to others, and receives from them, in bytes."""
        moved = np.where(np.eye(self.ranks, dtype=bool), 0.0, self.held)
        sent, received = ((float(total.min()), float(total.max())) for total in (moved.sum(axis=1), moved.sum(axis=0)))
        return sent, received

    @property
    def is_even(self) -> bool:
        """Whether every rank has as much for every other."""
        pairs = self.held[~np.eye(self.ranks, dtype=bool)]
        return bool((pairs == pairs[:1]).all())


@dataclass(frozen=True, eq=False, slots=True)
class Uneven:
    """An algorithm with a matrix in hand, in the place of its module: this one exchange is all that it does.

    It has no `RINGS`: only where all ranks are alike may they change places on a mesh.
    """

    algorithm: ModuleType
    exchange: Exchange
    KINDS = (KIND,)

    def takes(self, kind: str, nodes: Array) -> bool:
        return takes(self.algorithm, kind, nodes)

    def rounds(self, kind: str, nodes: Array) -> tuple[Round, ...]:
        """The rounds of the algorithm, as fractions of the payload in whole bytes."""
        rounds: tuple[Round, ...] = self.algorithm.rounds(kind, nodes, self.exchange.held)
        part = payload(self.exchange.held) / max(1, self.exchange.payload_bytes)
        return tuple(replace(r, fraction=r.fraction * part) for r in rounds)


def uneven_policy(exchange: Exchange, policy: CollectivePolicy, cluster: Cluster, gpus: Array) -> CollectivePolicy:
    """How all-to-alls among these GPUs of a cluster are done if they are this one."""
    able = {name: module for name, module in policy.algorithms.items() if KIND in module.KINDS}
    uneven: dict[str, Any] = {name: Uneven(module, exchange) for name, module in able.items()}
    links = links_of(cluster)
    if policy.timing is None or links is None:
        return replace(policy, algorithms={**policy.algorithms, **uneven}, timing=None)
    known, inside, across = policy.timing, links.inside, links.across

    @cache
    def placings(name: str) -> tuple[PlacedRounds, PlacedRounds]:
        algorithms, wired = (able[name], uneven[name]), inside.mesh > 1
        even, own = (unmeasured_algorithms.placed_rounds(algorithm, KIND, cluster, gpus, wired=wired) for algorithm in algorithms)
        return even, own

    def timing(kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime | None:
        even, own = placings(algorithm)
        if not own.rounds or not payload_bytes:
            return None
        call = call_of(kind, algorithm, nodes, payload_bytes)
        skew = unmeasured_algorithms.wire_s(call, own, inside, across) / unmeasured_algorithms.wire_s(call, even, inside, across)
        alike = replace(call, payload_bytes=max(1, round(payload_bytes * skew)))
        even_time = known(kind, algorithm, nodes, int(alike.payload_bytes))
        if even_time is None or exchange.is_even:
            return even_time
        own_s = unmeasured_algorithms.uncontended_time(call, own, inside, across).seconds
        even_s = unmeasured_algorithms.uncontended_time(alike, even, inside, across).seconds
        return unmeasured_algorithms.scaled(even_time, even_time.seconds * own_s / even_s, call)

    return replace(policy, algorithms={**policy.algorithms, **uneven}, timing=timing)
