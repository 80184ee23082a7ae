"""Estimated effort of an explanation before it starts: that of its simulations together, from the tasks of the run it explains.

The rates were measured as those of a single run were (`estimated_effort.py`), on three steps of Llama-3 70B on 64 and 256 GPUs
with 370,000 to 910,000 tasks. All simulations of an explanation share one session, so that each takes less than a run by itself.
"""

from __future__ import annotations

from math import inf

from ..simulation import estimated_effort
from ..simulation.estimated_effort import TASK, Effort, Limits
from ..simulation.run import Run
from ..study.without import Counterfactual

AROUND = Effort(7.5, 400)
"""Effort per task of the run itself, its critical path and the causes of its idle time."""
WITHOUT, CHANGED = Effort(0.45), Effort(0.9)
"""Effort per task of a simulation of the same tasks without a cause, and of one of a changed plan."""


def splits_in_time(run: Run, changes: int, fewest_splits: int, *, long: bool) -> float:
    """The number of splits of the layers that there is time for: at least the fewest, and any number if long work is allowed.

    Raises `UserError` if an explanation with so many other changes and the fewest splits is above the limits.
    """
    limits, tasks = Limits(long=long), run.engine_timeline.tasks
    causes = 2 * len(Counterfactual(run).causes) - 1
    slower = TASK[limits.quickest].us / TASK["compiled"].us
    changed = tasks * slower * CHANGED
    before = tasks * AROUND + causes * tasks * slower * WITHOUT + changes * changed
    simulations = causes + changes + fewest_splits
    what = f"this explanation, of {simulations} simulations like this run,"
    limits.check(before + fewest_splits * changed, what, "fewer GPUs or microbatches")
    return inf if long else max(fewest_splits, (estimated_effort.MOST_S - before.seconds) // changed.seconds)
