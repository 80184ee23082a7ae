"""Time by which communication slows the kernels beside it: their excess over their own time, in seconds per step.

Where a rank waits anyway, as in a pipeline bubble, the step may be longer by less. Kernels of a rank whose speed a perturbation
changes over time are left out.
"""

from __future__ import annotations

import numpy as np

from ..engine.stretched_timeline import StretchedTimeline
from . import Array, Observation

SCALES = "time"


def measure(observed: Observation) -> float:
    """Mean over ranks; 0 where communication takes nothing from compute."""
    if isinstance(timeline := observed.timeline, StretchedTimeline) and observed.is_whole:
        return observed.mean_s(observed.summed("slowed", lambda: _of_stretches_ns(observed, timeline)))
    expansion, times = observed.timeline.expansion, observed.timeline.times
    if expansion.graph.sharing is None:
        return 0.0
    slowed = (expansion.graph.sharing.resource >= 0) & ~expansion.graph.changing_speed_tasks()
    longer_ns = np.where(slowed, times.end_ns - times.start_ns - expansion.graph.stretched_ns(), 0)
    per_class = [(longer_ns[expansion.tasks_of(which)] * observed.calls(which)).sum() for which in range(len(observed.labels))]
    return observed.mean_s(np.array(per_class))


def _of_stretches_ns(observed: Observation, timeline: StretchedTimeline) -> list[Array]:
    """Nanoseconds of every class, of the timeline as it is and of the part that is repeated, if there is one."""
    if not observed.repeats:
        return [timeline.longer_ns(observed.calls)]
    calls = [observed.calls_in_parts(which) for which in range(len(observed.labels))]
    return [timeline.longer_ns(lambda which: calls[which][0]), timeline.longer_ns(lambda which: calls[which][1])]
