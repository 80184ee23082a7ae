"""Pipeline bubble of a training step: time that ranks wait for other stages, over pipeline ranks x step time.

The bubble excludes exposed communication and the optimizer. `trainsim schedule` gives the papers' three definitions for a bare
schedule, in which ranks wait only for other stages.
"""

from __future__ import annotations

from . import Observation, idle
from .idle import BUBBLE, TimeByCause

SCALES = "fraction"


def measure(observed: Observation, causes: TimeByCause | None = None) -> float:
    """Mean bubble fraction over all ranks; zero if the step takes no time. Missing causes of idle time are computed."""
    causes = causes or idle.measure(observed)
    return observed.mean_s(causes.of(BUBBLE)) / observed.step_s if observed.step_s else 0.0
