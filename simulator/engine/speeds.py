"""The speeds of tasks under way, where speeds change with time. Pure, without a clock.

The counterpart of `fabric.Fabric`: a link is shared by the flows that cross it, but tasks that follow one speed do not share it.
Each of them runs at all of it.
"""

from __future__ import annotations

from collections.abc import Sequence


class SpeedSolver:
    """The tasks under way on speeds that change. `solve` returns the tasks whose speed changed since last time."""

    def __init__(self, speed: Sequence[int]) -> None:
        self._speed = list(speed)
        self._tasks: dict[int, dict[int, None]] = {}
        self._rate: dict[int, int] = {}
        self._touched: dict[int, None] = {}

    def join(self, task: int, index: int) -> None:
        """A task begins to run at the speed of this index, which comes with the next `solve`."""
        self._tasks.setdefault(index, {})[task] = None
        self._touched[index] = None

    def leave(self, task: int, index: int) -> None:
        """A task has done its work."""
        del self._tasks[index][task]
        self._rate.pop(task, None)

    def resize(self, index: int, speed: int) -> None:
        """A speed takes a new value."""
        self._speed[index] = speed
        self._touched[index] = None

    def solve(self) -> list[tuple[int, int]]:
        """Brings all speeds up to date; returns (task, speed) for those that changed, by task."""
        fresh = {task: self._speed[index] for index in self._touched for task in self._tasks.get(index, ())}
        self._touched = {}
        changed = sorted((task, speed) for task, speed in fresh.items() if self._rate.get(task) != speed)
        self._rate.update(changed)
        return changed
