"""Model flop utilisation: useful flop of a step over what the GPUs could have done in its time.

`mfu` counts what the model needs, 6N + 12Lhs per token with the attention matrix in full, and nothing recomputed; `hfu`
counts what was executed, by the same convention. The convention is named with every number: it makes up to tens of percent
at long sequences.
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
    """Zero where nothing takes time."""
    executed = 0.0
    for labels, ranks in zip(observed.labels, observed.timeline.multiplicity, strict=True):
        executed += int(ranks) * int(labels.flop[observed.counts(labels.iteration)].sum())
    executed /= observed.window.steps
    available = observed.step_s * observed.timeline.ranks * observed.peak_flop_per_s
    if not available:
        return Utilisation(0.0, 0.0, 0.0)
    per_gpu = observed.model_flop / observed.step_s / observed.timeline.ranks
    return Utilisation(observed.model_flop / available, executed / available, per_gpu)
