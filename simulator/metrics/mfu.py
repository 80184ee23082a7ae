"""Model flop utilisation (MFU): useful flop of a step over the flop that the GPUs could have executed at peak in the step time.

`mfu` counts the flop that the model needs, 6N + 12Lhs per token with the full attention matrix, without recomputation; `hfu`
counts the executed flop, by the same convention. Every number names the convention, which changes the result by up to tens of
percent at long sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..program.labels import Labels
from . import Array, Observation

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
    skeleton, multiplicity = observed.timeline.skeleton, observed.timeline.multiplicity
    alike: dict[tuple[int, int], list[int]] = {}
    for which, work in enumerate(zip(skeleton.program.tolist(), skeleton.variants.tolist(), strict=True)):
        alike.setdefault(work, []).append(which)
    of_ops: dict[tuple[int, int], tuple[Labels, list[Array]]] = {}  # the operations of all roles are mostly the same
    for (_, variant), classes in alike.items():
        labels = observed.labels[classes[0]]
        ranks = multiplicity[classes].sum()
        runs = [ranks * labels.calls_of_ops(calls) for calls in observed.calls_in_parts(classes[0])]
        _, others = of_ops.get((id(labels.ops), variant), (labels, [0] * len(runs)))
        of_ops[id(labels.ops), variant] = labels, [one + other for one, other in zip(runs, others, strict=True)]
    parts = [[labels.total_flop(variant, each) for each in runs] for (_, variant), (labels, runs) in of_ops.items()]
    return [sum(part) for part in zip(*parts, strict=True)]
