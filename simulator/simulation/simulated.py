"""A simulated program: what was bound, the timeline, and the measured part of it."""

from __future__ import annotations

from dataclasses import dataclass

from ..binding.bind import Bound
from ..engine.timeline import Timeline
from ..metrics import Observation, Repeats, Window, observe
from ..program.program import Program


@dataclass(frozen=True, eq=False, slots=True)
class Simulated:
    """A program on a cluster, with its timeline."""

    program: Program
    bound: Bound
    timeline: Timeline
    engine: str
    engine_reason: str
    window: Window | None = None
    """The simulated training steps that are measured; None for all of them."""
    repeats: Repeats | None = None
    """Where fewer microbatches were simulated than the step has: the part of the timeline that stands for the others."""

    def observed(self, model_flop: float, peak_flop_per_s: float) -> Observation:
        """The observation of the measured steps."""
        return observe(self.timeline, self.bound.labels, model_flop, peak_flop_per_s, self.window, self.repeats)
