"""Time by which communication slows the kernels beside it: their excess over their own time, in seconds per step.

Where a rank waits anyway, as in a pipeline bubble, the step may be longer by less. A perturbed speed of the rank is no
communication: the own time of a kernel is that at the speeds of its rank from the start of the kernel on.
"""

from __future__ import annotations

import numpy as np

from ..engine.stretched_timeline import StretchedTimeline
from ..engine.task import TaskGraph
from . import Array, Observation

SCALES = "time"


def measure(observed: Observation) -> float:
    """Mean over ranks; 0 where communication takes nothing from compute."""
    if isinstance(timeline := observed.timeline, StretchedTimeline) and observed.is_whole:
        return observed.mean_s(observed.summed("slowed", lambda: _of_stretches_ns(observed, timeline)))
    expansion, times = observed.timeline.expansion, observed.timeline.times
    if expansion.graph.sharing is None:
        return 0.0
    slowed, own_ns = expansion.graph.sharing.resource >= 0, _own_ns(expansion.graph, times.start_ns)
    longer_ns = np.where(slowed, times.end_ns - times.start_ns - own_ns, 0)
    per_class = [(longer_ns[expansion.tasks_of(which)] * observed.calls(which)).sum() for which in range(len(observed.labels))]
    return observed.mean_s(np.array(per_class))


def _own_ns(graph: TaskGraph, start_ns: Array) -> Array:
    """The duration of every task from its start, if no other task took a part of a resource."""
    own_ns, changing = graph.stretched_ns(), graph.changing_speed_tasks()
    for speed, profile in enumerate(graph.speed_profile.tolist()):
        tasks = np.flatnonzero(changing & (graph.speed == speed))
        own_ns[tasks] = graph.profiles[profile].lasting_ns(start_ns[tasks], graph.solo_ns[tasks])
    return own_ns


def _of_stretches_ns(observed: Observation, timeline: StretchedTimeline) -> list[Array]:
    """Nanoseconds of every class, of the timeline as it is and of the part that is repeated, if there is one."""
    if not observed.repeats:
        return [timeline.longer_ns(observed.calls)]
    calls = [observed.calls_in_parts(which) for which in range(len(observed.labels))]
    return [timeline.longer_ns(lambda which: calls[which][0]), timeline.longer_ns(lambda which: calls[which][1])]
