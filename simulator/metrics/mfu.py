"""Model flop utilisation: useful flop of a step over what the GPUs could have done in its time.

`mfu` counts what the model needs, 6N + 12Lhs per token with the attention matrix in full (or half of that attention,
`causal`), and nothing recomputed; `hfu` counts what was executed, by the same convention. The convention is named with
every number: it makes up to tens of percent at long sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import Observation


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Fractions of the peak, and the model flop/s per GPU behind `mfu`."""

    mfu: float
    hfu: float
    model_flop_per_s_per_gpu: float
    convention: str


def utilisation(seen: Observation, *, model_flop: float, peak_flop_per_s: float) -> Utilisation:
    """`model_flop` is the whole job's per step, by the full convention; the peak is one GPU's."""
    step_s = seen.step_s
    gpus = seen.timeline.ranks
    available = step_s * gpus * peak_flop_per_s
    executed = 0
    for which in seen.classes:
        labels = seen.labels_of(which)
        executed += int(seen.weight[which]) * int(labels.flop[labels.iteration == labels.iteration.max(initial=0)].sum())
    if not available:
        return Utilisation(0.0, 0.0, 0.0, "full")
    return Utilisation(model_flop / available, executed / available, model_flop / step_s / gpus, "full")
