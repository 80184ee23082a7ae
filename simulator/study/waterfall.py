"""Waterfall of a step: what each cause adds to it, from the step as simulated down to the time of the model's flop at peak.

Causes are removed one after another, in the order of `Counterfactual.causes`; each bar is the difference of two simulated steps.
Then all ranks compute for equally long and wait only for other stages: the time of the step beyond its kernels is the
bubble of the pipeline at the peak of the GPUs. So the bars and the time of the model's flop at peak add up to the step. A single
removal gives the time that the step would save if this cause alone were gone; such values overlap and need not add up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

from ..simulation.result import Result
from .without import Cause, Counterfactual

TOLERANCE = 1e-9
"""The part of a step below which durations that were rounded to whole nanoseconds count as equal."""
BUBBLE, OTHER_FLOP, PEAK = "bubble at peak", "flop that is not the model's", "model flop at peak"
"""What remains: waiting for other stages; flop of kernels that are not in the count of the model (or less); and that count."""
LEFT = "what is left"
"""What remains without a pipeline, in place of a bubble."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a cause adds to a step, in seconds."""

    cause: Cause
    seconds: float
    """When causes are removed one after another."""
    alone_s: float | None
    """When this cause alone is removed; None for what only remains."""


@dataclass(frozen=True)
class Waterfall:
    """The bars of a step, in the order in which causes are removed; the last is the time of the model's flop at peak."""

    step_s: float
    bars: tuple[Bar, ...]

    @cached_property
    def largest_first(self) -> tuple[Bar, ...]:
        """The causes by what they add, without the time at peak."""
        return tuple(sorted(self.bars[:-1], key=lambda bar: -bar.seconds))

    def fraction(self, bar: Bar) -> float:
        """The share of a bar in the step."""
        return bar.seconds / self.step_s

    def as_list(self) -> list[dict[str, object]]:
        """Every bar as plain data."""
        return [{**asdict(bar), "fraction": self.fraction(bar)} for bar in self.bars]


def waterfall(result: Result) -> Waterfall:
    """The waterfall of a run: two more simulations for each cause."""
    without, step_s = Counterfactual(result), result.metrics.step_time_s
    gone: list[Cause] = []
    bars, left_s = [], step_s
    for cause in without.causes:
        gone.append(cause)
        next_s = without.step_s(gone)
        alone_s = step_s - without.step_s([cause]) if len(gone) > 1 else left_s - next_s
        bars.append(Bar(cause, left_s - next_s, alone_s))
        left_s = next_s
    observed, kernels_s = result.observation, without.kernels_s(gone)
    peak_s = observed.model_flop / observed.peak_flop_per_s / result.gpus
    other_s = kernels_s - peak_s if abs(kernels_s - peak_s) > TOLERANCE * step_s else 0.0
    waiting = BUBBLE if result.scenario.plan.pp > 1 else LEFT
    rest = [Bar(waiting, left_s - other_s - peak_s, None), Bar(OTHER_FLOP, other_s, None), Bar(PEAK, peak_s, None)]
    return Waterfall(step_s, (*bars, *rest))
