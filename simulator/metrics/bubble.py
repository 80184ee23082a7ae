"""The pipeline bubble of a training step: time that ranks wait for other stages, over pipeline ranks x step.

Exposed communication and the optimizer are not in it. `trainsim schedule` gives the papers' three definitions for a bare
schedule, where nothing else can make a rank wait.
"""

from __future__ import annotations

import numpy as np

from . import Observation
from .idle import BUBBLE

SCALES = "fraction"


def measure(seen: Observation) -> float:
    """Mean over all ranks; zero where nothing takes time."""
    total = float(np.dot(seen.spent.of(BUBBLE), seen.weight))
    return total / (seen.timeline.ranks * seen.step_ns) if seen.step_ns else 0.0
