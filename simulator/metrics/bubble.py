"""The pipeline bubble of a training step: time that ranks wait for other stages, over pipeline ranks x step.

Exposed communication and the optimizer are not in it. `trainsim schedule` gives the papers' three definitions for a bare
schedule, where nothing else can make a rank wait.
"""

from __future__ import annotations

from . import Observation
from .idle import BUBBLE

SCALES = "fraction"


def measure(seen: Observation) -> float:
    """Mean over all ranks; zero where nothing takes time."""
    return seen.mean_s(seen.spent.of(BUBBLE)) / seen.step_s if seen.step_s else 0.0
