"""The pipeline bubble of a training step: time that ranks wait for other stages, over pipeline ranks x step.

Exposed communication and the optimizer are not in it. `trainsim schedule` gives the papers' three definitions for a bare
schedule, where nothing else can make a rank wait.
"""

from __future__ import annotations

from . import Observation, idle
from .idle import BUBBLE, TimeByCause

SCALES = "fraction"


def measure(observed: Observation, causes: TimeByCause | None = None) -> float:
    """Mean over all ranks; zero where nothing takes time. The causes of idle time are worked out unless they are given."""
    causes = causes or idle.measure(observed)
    return observed.mean_s(causes.of(BUBBLE)) / observed.step_s if observed.step_s else 0.0
