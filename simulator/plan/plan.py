"""The parallel plan: degrees along each axis, sharding, schedule, overlap."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..workload.framework import Overlaps


@dataclass(frozen=True, slots=True)
class Overlap:
    """Which communication may run beside compute. What may not is exposed; None leaves it to the framework."""

    dp: bool | None = None
    tp: bool | None = None
    pp: bool | None = None
    ep: bool = False

    def over(self, usual: Overlaps) -> Overlaps:
        """What the framework does, but for what is said here."""
        said = {"dp": self.dp, "tp": self.tp, "pp": self.pp}
        return replace(usual, **{axis: beside for axis, beside in said.items() if beside is not None})


def _usual(of: Field[object]) -> object:
    return of.default if of.default_factory is MISSING else of.default_factory()


@dataclass(frozen=True, slots=True)
class Plan:
    """Degrees and switches. `dp=None` means whatever the cluster has left; `sequence_parallel=None` means tp > 1."""

    def __repr__(self) -> str:
        """Only what is not as usual: `Plan(tp=8, pp=8)`."""
        told = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if getattr(self, one.name) != _usual(one))
        return f"Plan({', '.join(told)})"

    tp: int = 1
    pp: int = 1
    dp: int | None = None
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool | None = None
    chunks: int = 1
    schedule: str = "1f1b"
    group: int | None = None
    """Microbatches per round of an interleaved schedule; None for the schedule's own choice."""
    splits: int = 1
    """Parts of every sequence, for a schedule that pipelines them."""
    memory_limit: float = 1.0
    """Activations per rank in multiples of pp microbatches, for schedules that are built under a limit."""
    optimizer: str = "synchronised"
    """Or "post-validated": no rank waits for another's gradient norm."""
    sharding: str = "none"
    recompute: str = "none"
    rank_order: str = "tp-cp-ep-dp-pp"
    overlap: Overlap = field(default_factory=Overlap)

    @property
    def uses_sequence_parallel(self) -> bool:
        return self.tp > 1 if self.sequence_parallel is None else self.sequence_parallel
