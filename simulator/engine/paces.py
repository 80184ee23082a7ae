"""How fast the tasks of each pace run, at speeds that change with time. Pure, without a clock.

The sister of `fabric.Fabric`: that shares links between flows, but tasks on one pace do not share it. Each runs at its full
speed.
"""

from __future__ import annotations

from collections.abc import Sequence


class Paces:
    """The paced tasks under way and their speeds. `solve` returns the speeds that changed since last time."""

    def __init__(self, speed: Sequence[int]) -> None:
        self._speed = list(speed)
        self._tasks: dict[int, dict[int, None]] = {}
        self._rate: dict[int, int] = {}
        self._touched: dict[int, None] = {}

    def join(self, task: int, pace: int) -> None:
        """A task begins to run at a pace; its speed comes with the next `solve`."""
        self._tasks.setdefault(pace, {})[task] = None
        self._touched[pace] = None

    def leave(self, task: int, pace: int) -> None:
        """A task has done its work."""
        del self._tasks[pace][task]
        self._rate.pop(task, None)

    def resize(self, pace: int, speed: int) -> None:
        """A pace changes its own speed."""
        self._speed[pace] = speed
        self._touched[pace] = None

    def solve(self) -> list[tuple[int, int]]:
        """Brings all speeds up to date; returns (task, speed) for those that changed, by task."""
        fresh = {task: self._speed[pace] for pace in self._touched for task in self._tasks.get(pace, ())}
        self._touched = {}
        changed = sorted((task, speed) for task, speed in fresh.items() if self._rate.get(task) != speed)
        self._rate.update(changed)
        return changed
