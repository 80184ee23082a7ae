"""Model flop utilisation (MFU): useful flop of a step over the flop that the GPUs could have executed at peak in the step time.

`mfu` counts the flop that the model needs, 6N + 12Lhs per token with the full attention matrix, without recomputation; `hfu`
counts the executed flop, by the same convention. Every number names the convention, which changes the result by up to tens of
percent at long sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import Observation

SCALES = "rate"
CONVENTION = "full"


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Fractions of the peak, and the model flop/s per GPU behind `mfu`."""

    mfu: float
    hfu: float
    model_flop_per_s_per_gpu: float


def measure(observed: Observation) -> Utilisation:
    """Utilisation of the measured steps; zero if the steps take no time."""
    executed = observed.summed("flop", lambda: _executed_flop(observed)) / observed.window.steps
    available = observed.step_s * observed.timeline.ranks * observed.peak_flop_per_s
    if not available:
        return Utilisation(0.0, 0.0, 0.0)
    per_gpu = observed.model_flop / observed.step_s / observed.timeline.ranks
    return Utilisation(observed.model_flop / available, executed / available, per_gpu)


def _executed_flop(observed: Observation) -> list[int]:
    """Executed flop of all ranks, of the timeline as it is and of the part that is repeated, if there is one."""
    found, skeleton = [0] * (1 + bool(observed.repeats)), observed.timeline.skeleton
    alike: dict[tuple[int, int], list[int]] = {}
    for which, work in enumerate(zip(skeleton.program.tolist(), skeleton.variants.tolist(), strict=True)):
        alike.setdefault(work, []).append(which)
    for (_, variant), classes in alike.items():
        ranks = int(observed.timeline.multiplicity[classes].sum())
        for part, calls in enumerate(observed.calls_in_parts(classes[0])):
            found[part] += ranks * observed.labels[classes[0]].total_flop(variant, calls)
    return found
