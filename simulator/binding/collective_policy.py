"""The policy of collectives: the available algorithms, the choice among them, and known times without contention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from ..costs.collectives.curves import UncontendedTime
from ..engine.task import Array
from ..errors import InvariantBroken, UserError, did_you_mean

Matrix = tuple[tuple[int, ...], ...]
AUTO = "auto"
BARRIER = "barrier"

Timing = Callable[[str, str, Array, int], UncontendedTime | None]
"""The uncontended time of a collective, by kind, algorithm, the nodes of its members and payload bytes; None if unknown."""
PiecesCorrection = Callable[[UncontendedTime, str, str, Array, int], UncontendedTime]
"""A known time corrected for a payload cut into pieces, by kind, algorithm, the nodes of its members and payload bytes."""
Uneven = Callable[[Matrix, Array], "CollectivePolicy"]
"""The policy with which all-to-alls among some GPUs carry a matrix of bytes."""
Choose = Callable[[str, Array, int], str | None]
"""The algorithm for a collective, by kind, the nodes of its members and payload bytes; None for the fastest."""


@dataclass(frozen=True)
class CollectivePolicy:
    """Algorithms by name, those that `auto` chooses from by kind of collective, and measured times."""

    algorithms: Mapping[str, ModuleType]
    choices: Mapping[str, Sequence[str]]
    algorithm: str = AUTO
    """The requested algorithm; `auto` takes the `automatic_choice`, else the choice that is fastest by its messages."""
    timing: Timing | None = field(default=None, compare=False)
    """The uncontended times; None if links are taken at their nominal bandwidth and latency."""
    automatic_choice: Choose = field(default=lambda kind, nodes, payload_bytes: None, compare=False)
    """The algorithm that `auto` takes without timing the choices."""
    pieces: int | None = None
    """Number of pieces into which pipelined algorithms cut a payload; None for infinitely fine pieces."""
    pieces_correction: PiecesCorrection | None = field(default=None, compare=False)
    """Correction of measured times for that number of pieces; None for infinitely fine pieces."""
    uneven: Uneven | None = field(default=None, compare=False)
    """The policy for all-to-alls with a matrix of bytes; None if there are none."""

    def with_matrix(self, matrix: Matrix, gpus: Array) -> CollectivePolicy:
        """The policy with which all-to-alls among some GPUs carry a matrix of bytes."""
        if self.uneven is None:
            raise InvariantBroken("this policy has no uneven collectives")
        return self.uneven(matrix, gpus)

    def uncontended_time(self, kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime | None:
        """The time of a collective without contention by the named algorithm; None if unknown."""
        if not self.timing:
            return None
        known = self.timing(kind, algorithm, nodes, payload_bytes)
        correction = self.pieces_correction
        return correction(known, kind, algorithm, nodes, payload_bytes) if known and correction else known

    def candidates(self, kind: str, *groups: Array) -> dict[str, ModuleType]:
        """The algorithms that may serve a kind in every group, given the nodes of its members. Raises if there is none."""
        nodes, *others = groups
        able = serving(self.algorithms, kind, nodes)
        able = {name: module for name, module in able.items() if all(takes(module, kind, other) for other in others)}
        wanted = [self.algorithm] if self.algorithm in able else self.choices.get(kind, ())
        chosen = {name: able[name] for name in wanted if name in able}
        if not chosen:
            raise UserError(f"no algorithm for {kind} over {len(nodes)} ranks", hint=did_you_mean(self.algorithm, able))
        return chosen

    def chosen(
        self,
        kind: str,
        nodes: Array,
        payload_bytes: int,
        time_ns: Callable[[str], float] = lambda name: 0.0,
        others: Sequence[Array] = (),
    ) -> str:
        """The algorithm that serves a collective: the `automatic_choice`, else the first of those that take the least time. It
        must be able to serve `others` as well, groups of other layouts over nodes.
        """
        able = self.candidates(kind, nodes, *others)
        name = next(iter(able)) if len(able) == 1 else self.automatic_choice(kind, nodes, payload_bytes)
        return name if name in able else min(able, key=time_ns)


def serving(algorithms: Mapping[str, ModuleType], kind: str, nodes: Array) -> dict[str, ModuleType]:
    """The subset of algorithms that can serve a kind for a group whose members sit in the given nodes."""
    return {name: module for name, module in algorithms.items() if kind in module.KINDS and takes(module, kind, nodes)}


def takes(module: ModuleType, kind: str, nodes: Array) -> bool:
    """Whether an algorithm that knows a kind can serve such a group."""
    return bool(module.takes(kind, nodes)) if hasattr(module, "takes") else True
