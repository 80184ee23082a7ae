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


def measure(seen: Observation) -> Utilisation:
    """Zero where nothing takes time."""
    available = seen.step_s * seen.timeline.ranks * seen.peak_flop_per_s
    if not available:
        return Utilisation(0.0, 0.0, 0.0)
    executed = 0.0
    for which in seen.classes:
        labels = seen.labels_of(which)
        executed += int(seen.weight[which]) * int(labels.flop[seen.counts(labels.iteration)].sum())
    executed /= seen.window.steps
    per_gpu = seen.model_flop / seen.step_s / seen.timeline.ranks
    return Utilisation(seen.model_flop / available, executed / available, per_gpu)
