"""Fewer microbatches: the periods of a schedule, and layouts that have fewer of them.

In the middle of most schedules every rank repeats the same slots again and again, each time some microbatches later: a *period*,
on each rank a number of slots in their order, with which the rank completes equally many microbatches. A layout of fewer
microbatches is the layout of all of them without some periods if and only if the orders of its slots say so, rank by rank. Here
the orders are compared; nothing is assumed about a schedule. Whether each period also takes the same time is another question,
which only a simulation can answer (`repeats.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil

import numpy as np

from ..engine.task import Array, longest_run
from ..program.layout import Layout

FEWEST_PERIODS = 6
"""Number of periods per rank from which leaving some out saves time."""
SHOWN_PERIODS = 3.5
"""Number of periods needed to show that all state repeats."""
TIMES_FILLING, BESIDE_FILLING = 2.6, 5.1
"""The number of periods of the first guess: so many times the periods that the ranks need to fill the pipeline, during which they
differ, and so many more. It is enough for most plans with 1F1B of 4 to 32 stages. A wrong guess costs time, never a proof."""
TIMES_MORE = 1.4
"""Another guess, in times of the first one."""
WARM_UP = 4, 7, 14
"""Numbers of microbatches for each rank, before those that are shown, with which periods are looked for, in turn, after that."""
MOST_OF_ALL = 0.7
"""Largest fraction of all microbatches that is simulated in place of all, summed over all attempts."""
PLACES = 3
"""Number of places of a slot: by itself, or as one of a pair."""
MOST_ROUNDS = 4
"""Largest period that is looked for, in microbatches, or in rounds of as many microbatches as there are ranks."""


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """The slots of a rank: a number for what each is, and its microbatch, counted within its direction."""

    slot: Array
    microbatch: Array

    def slots_of_period(self, microbatches: int) -> int:
        """Number of slots after which the slot in the middle recurs for a microbatch `microbatches` later; 0 if it never does."""
        middle = len(self.slot) // 2
        again = (self.slot[middle:] == self.slot[middle]) & (self.microbatch[middle:] == self.microbatch[middle] + microbatches)
        return int(np.argmax(again)) if len(again) else 0

    def repeats(self, slots: int, microbatches: int) -> tuple[int, int]:
        """The longest part of the order in which every slot is followed, `slots` places later, by the same slot of the
        microbatch `microbatches` later: its first place and the place after its last."""
        same = (self.slot[slots:] == self.slot[:-slots]) & (self.microbatch[slots:] == self.microbatch[:-slots] + microbatches)
        begin, end = longest_run(same) or (0, 0)
        return begin, end + slots if end > begin else begin


@dataclass(frozen=True, eq=False, slots=True)
class Period:
    """The part that repeats itself in the layout of all microbatches."""

    layout: Layout
    orders: tuple[Order, ...]
    microbatches: int
    """Number of microbatches of each direction in a period."""
    slots: tuple[int, ...]
    """Rank -> number of slots in a period."""
    parts: tuple[tuple[int, int], ...]
    """Rank -> the first of its slots that are parts of periods, and the one behind the last."""

    @property
    def of_all(self) -> int:
        """Number of microbatches of all directions in a period."""
        return self.microbatches * len(self.layout.placements)

    @property
    def number(self) -> int:
        """The number of periods, the same on every rank."""
        return min((end - begin) // slots for (begin, end), slots in zip(self.parts, self.slots, strict=True))

    def left_out(self, fewer: Layout) -> int:
        """How many periods fewer a layout has, if it is the same in all other respects; 0 if it is not."""
        less, rest = divmod(self.layout.shape.microbatches - fewer.shape.microbatches, self.of_all)
        if rest or less < 1 or fewer.placements != self.layout.placements or self.layout.shares != fewer.shares:
            return 0
        others = orders_of(fewer)
        return less if all(map(self._is_shorter, count(), self.orders, others, [less] * len(others))) else 0

    def _is_shorter(self, rank: int, whole: Order, other: Order, less: int) -> bool:
        """Whether the order of a rank is the whole order without `less` periods."""
        gone, (begin, end) = less * self.slots[rank], self.parts[rank]
        if len(other.slot) != len(whole.slot) - gone or end - begin < gone + 2 * self.slots[rank]:
            return False
        head, tail = slice(None, begin + self.slots[rank]), slice(begin + self.slots[rank], None)
        before = (other.slot[head] == whole.slot[head]) & (other.microbatch[head] == whole.microbatch[head])
        slot, microbatch = whole.slot[gone:][tail], whole.microbatch[gone:][tail] - less * self.microbatches
        after = (other.slot[tail] == slot) & (other.microbatch[tail] == microbatch)
        return bool(before.all() and after.all())


def orders_of(layout: Layout) -> tuple[Order, ...]:
    """The slots of every rank."""
    microbatches, directions = layout.shape.microbatches, len(layout.placements)
    first = np.array([-(-direction * microbatches // directions) for direction in range(directions)])
    found = []
    for of in layout.columns:
        direction = of.microbatch * directions // microbatches
        slot = ((of.kind * layout.stages + of.stage) * directions + direction) * PLACES + of.place
        found.append(Order(slot, of.microbatch - first[direction]))
    return tuple(found)


def period_of(layout: Layout) -> Period | None:
    """The shortest period of a layout that most of its microbatches are part of; None without one."""
    shape, directions = layout.shape, len(layout.placements)
    if layout.shape.microbatches < FEWEST_PERIODS * directions * shape.splits:
        return None
    orders = orders_of(layout)
    for microbatches in _candidates(layout):
        slots = tuple(of.slots_of_period(microbatches) for of in orders)
        if 0 in slots:
            continue
        parts = tuple(of.repeats(each, microbatches) for of, each in zip(orders, slots, strict=True))
        period = Period(layout, orders, microbatches, slots, parts)
        if period.number >= FEWEST_PERIODS:
            return period
    return None


def _candidates(layout: Layout) -> Iterator[int]:
    """The numbers of microbatches of each direction that a period may have, the fewest first."""
    shape = layout.shape
    rounds = {shape.splits, shape.splits * (shape.group or shape.ranks), shape.splits * shape.ranks}
    numbers = sorted({one * times for one in rounds for times in range(1, MOST_ROUNDS + 1)})
    most = shape.microbatches // (len(layout.placements) * FEWEST_PERIODS)
    return iter([number for number in numbers if number <= most])


def fewer_microbatches(period: Period, after: int = 0, spent: int = 0, missing_periods: int = 0) -> int | None:
    """The next number of microbatches with which the periods of a step may become visible, larger than the number tried before;
    None if no further attempt would save work.

    `spent` is the number of microbatches simulated by all attempts; by `missing_periods` the last attempt was too short, 0 if
    unknown. A uniform pipeline repeats itself soon after it is full; where ranks have slack, the slack is used up
    first.
    """
    shape = period.layout.shape
    left_over = shape.microbatches % period.of_all
    filling = max(begin / slots for (begin, _), slots in zip(period.parts, period.slots, strict=True))
    first = TIMES_FILLING * filling + BESIDE_FILLING
    slack = ((times * shape.ranks * shape.splits - left_over) / period.of_all + SHOWN_PERIODS for times in WARM_UP)
    numbers = sorted(left_over + ceil(periods) * period.of_all for periods in (first, TIMES_MORE * first, *slack))
    least = max(after + 1, left_over + ceil(first) * period.of_all)
    next_guess = next((number for number in numbers if number >= least), 0)
    number = after + missing_periods * period.of_all if missing_periods else next_guess
    return number if 0 < number < shape.microbatches * MOST_OF_ALL - spent else None
