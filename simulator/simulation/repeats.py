"""Periods of a simulated step: the proof that more of them would all take the same time, from the whole state of the ranks.

A step of few microbatches is simulated. At the time `from_ns` every rank is in the middle of its periods. All that is in progress
then, and all that was in progress since the first of it began, happens again one period later, with the same distances between
all starts and all ends. So the state of all ranks, of what they send, and of what shares links or slows kernels, is the same at
both times. What a rank does next is the same too, as long as it has periods left. Hence a step with more periods comes to this
state once more for each of them, and then ends as the simulated one does: each additional period adds exactly its length.
Nothing is extrapolated from a slope: if a single start differs by one nanosecond, there is no proof.

Launches that no kernel can wait for are not part of the simulated state. The proof therefore also requires that the host does not
fall behind: its launches of a period take no longer than the period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np

from ..binding.launches import Host, launch_times_ns
from ..engine.task import Array, longest_run, offsets
from ..engine.timeline import Timeline, Times
from ..lowering.passes.pipeline import RECEIVE
from ..metrics import Repeats
from ..program.labels import Labels
from ..program.program import Key, Step

MOST_TOGETHER = 4
"""Largest number of periods that may have to be compared as one group, as where rounded times alternate between two values."""
FEWEST_COPIES = 3


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    """Steps of a role that repeat in order: every period has the same number of them, one period after the other.

    The receives from each edge, which are posted beforehand, are a part by themselves.
    """

    steps: Array
    """All steps of the part in order, including those outside of periods."""
    begin: int
    """The place of the first step of the first period among them."""
    size: int
    """Number of steps in a period."""
    periods: int

    def of(self, first: int, periods: int) -> Array:
        """The steps of some periods."""
        return self.steps[self.begin + first * self.size : self.begin + (first + periods) * self.size]


@dataclass(frozen=True, eq=False, slots=True)
class _Copies:
    """The periods of a part on a class of ranks, one after the other: `start_ns` and `arrival_ns` have a row for each."""

    role: int
    part: _Part
    first: int
    """The number of the first of these periods."""
    start_ns: Array
    arrival_ns: Array
    before_ns: Array
    """Period -> time at which everything before it in the order of the rank has arrived."""
    behind_ns: Array
    """Period -> time at which the first step after it in the order of the rank starts."""

    def intervals_ns(self, together: int) -> Array:
        """Period -> the time after which all of it happens again, `together` periods later; -1 if it does not."""
        columns = [column[together:] - column[:-together] for column in (self.start_ns, self.arrival_ns)]
        found = np.concatenate(columns, axis=1)
        return np.where((found == found[:, :1]).all(axis=1), found[:, 0], -1)

    def alike(self, together: int, lasts_ns: int) -> _Alike | None:
        """The longest run of periods that each happen again `lasts_ns` later, `together` periods later, if there is any."""
        run = longest_run(self.intervals_ns(together) == lasts_ns)
        if run is None:
            return None
        first, last = run[0], run[1] - 1 + together
        return _Alike(
            self.first + first,
            int(self.before_ns[first]),
            int(self.behind_ns[last]),
            int(self.arrival_ns[first : first + together].max()),
            int(self.start_ns[last - together + 1 : last + 1].min()),
        )


class _Alike(NamedTuple):
    """Periods that are alike: where others end before them and begin behind them, and those at either end without an image."""

    first: int
    others_end_ns: int
    others_begin_ns: int
    is_no_image_until_ns: int
    has_no_image_from_ns: int


class _Proof(NamedTuple):
    """A proof that periods repeat, or the number of periods that are missing for one."""

    missing_periods: int
    """The number of further periods that would make it a proof, if they were like the present ones; 0 for a proof."""
    from_ns: int
    lasts_ns: int
    first: tuple[int, ...]
    """For each of the copies, the first period of the proof."""


class Repetition:
    """The periods of a simulated step, each with the given number of microbatches per direction. Proofs are cached."""

    def __init__(self, timeline: Timeline, labels: Sequence[Labels], microbatches: int, host: Host | None = None) -> None:
        self.labels, self.host = labels, host
        parts = [list(_parts(of.steps, microbatches)) for of in labels]
        self.times = [timeline.class_times(which) for which in range(timeline.skeleton.ranks)]
        roles = zip(timeline.skeleton.program.tolist(), self.times, strict=True)
        copies = [one for role, times in roles for one in _copies(role, times, labels, parts)]
        self.copies = [one for one in copies if one] if all(parts) and None not in copies else []
        self.known: dict[int, Repeats | None] = {}
        """Number of additional periods -> the part of the simulated step that stands for them."""
        self.missing_periods = 0
        """The smallest number of further periods that is known to be missing; 0 if none is."""

    def of(self, times: int) -> Repeats | None:
        """The part of the simulated step that stands for `times` more periods; None without proof."""
        for together in range(1, MOST_TOGETHER + 1) if self.copies else ():
            if times % together == 0:
                if together not in self.known:
                    self.known[together] = self._together(together)
                if found := self.known[together]:
                    return replace(found, times=times // together)
        return None

    def _together(self, together: int) -> Repeats | None:
        """The part that stands for `together` more periods, if only groups of this many periods are alike."""
        proven = _proof(self.times, self.copies, together)
        if proven is None:
            return None
        if proven.missing_periods:
            self.missing_periods = min(self.missing_periods or proven.missing_periods, proven.missing_periods)
            return None
        steps: list[Array] = [np.zeros(0, dtype=np.int64) for _ in self.labels]
        first = {(one.role, id(one.part)): (one, at) for one, at in zip(self.copies, proven.first, strict=True)}
        for one, at in first.values():
            steps[one.role] = np.concatenate([steps[one.role], one.part.of(at, together)])
        for of, some in zip(self.labels, steps, strict=True) if self.host else ():
            if self.host and launch_times_ns(of, self.host)[np.isin(of.step, some)].sum() > proven.lasts_ns:
                return None
        return Repeats(1, proven.from_ns, proven.lasts_ns, tuple(steps))


def _parts(steps: Sequence[Step], microbatches: int) -> Iterator[_Part]:
    """The steps of a role, around the one in the middle, that recur `microbatches` later."""
    known: dict[object, int] = {}
    what = np.array([known.setdefault(_what(step, before), len(known)) for before, step in pairwise((steps[0], *steps))])
    number = np.array([step.microbatch for step in steps])
    posted: dict[str, list[int]] = {"": []}
    for at, step in enumerate(steps):
        posted.setdefault(step.body if step.phase == RECEIVE else "", []).append(at)
    for of in map(np.array, posted.values()):
        if part := _part(of, what[of], number[of], microbatches):
            yield part


def _part(steps: Array, what: Array, number: Array, microbatches: int) -> _Part | None:
    slots = np.flatnonzero(number >= 0)
    if not len(slots):
        return None
    middle = int(slots[len(slots) // 2])
    later = np.flatnonzero((what[middle:] == what[middle]) & (number[middle:] == number[middle] + microbatches))
    size = int(later[0]) if len(later) else len(steps)
    same = (what[size:] == what[:-size]) & (number[size:] == number[:-size] + microbatches)
    breaks = np.concatenate([[-1], np.flatnonzero(~same), [len(same)]])
    at = int(np.searchsorted(breaks, middle, side="left"))
    begin, end = (int(breaks[at - 1]) + 1, int(breaks[at]) + size) if at < len(breaks) else (0, 0)
    return _Part(steps, begin, size, (end - begin) // size)


def _what(step: Step, before: Step) -> object:
    """The operations and dependencies of a step, apart from the number of its microbatch."""
    body, phase, stage, at, after, outputs, iteration, pair, waits = step
    with_before = pair >= 0 and pair == before.pair
    keys, named, waiting = _relative(after, at), _relative_named(outputs, at), _relative_named(waits, at)
    return body, phase, stage, iteration, with_before, keys, named, waiting


def _relative(keys: Sequence[Key], at: int) -> tuple[Key, ...]:
    """Keys with their microbatches counted from another one."""
    return tuple([(*key[:-1], last - at) if isinstance(last := key[-1], int) else key for key in keys])


def _relative_named(pairs: Sequence[tuple[str, Key]], at: int) -> tuple[Key, ...]:
    """As `_relative`, each key with the name before it."""
    return tuple([(name, *key[:-1], last - at) if isinstance(last := key[-1], int) else (name, *key) for name, key in pairs])


def _copies(role: int, times: Times, labels: Sequence[Labels], parts: Sequence[Sequence[_Part]]) -> Iterator[_Copies | None]:
    """The periods of each part on a class of ranks that have the same rows; None for a part with few of them."""
    of = labels[role]
    ended_ns, begun_ns = np.zeros(len(of.steps), dtype=np.int64), np.full(len(of.steps), np.iinfo(np.int64).max)
    np.maximum.at(ended_ns, of.step, times.arrival_ns)
    np.minimum.at(begun_ns, of.step, times.start_ns)
    order = np.argsort(of.step, kind="stable")
    for part in parts[role]:
        rows, counts = _rows_of_periods(of, order, part)
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(counts)) + 1, [part.periods]])
        longest = int(np.argmax(np.diff(cuts)))
        first, end = int(cuts[longest]), int(cuts[longest + 1])
        if end - first < FEWEST_COPIES:
            yield None
            continue
        chosen = rows[counts[:first].sum() :][: counts[first:end].sum()].reshape(end - first, -1)
        if (of.op[chosen] != of.op[chosen[0]]).any():
            yield None
            continue
        passed_ns = np.maximum.accumulate(np.append(0, ended_ns[part.steps]))
        ahead_ns = np.minimum.accumulate(np.append(begun_ns[part.steps], np.iinfo(np.int64).max)[::-1])[::-1]
        begins = part.begin + part.size * np.arange(first, end + 1)
        yield _Copies(
            role, part, first, times.start_ns[chosen], times.arrival_ns[chosen], passed_ns[begins[:-1]], ahead_ns[begins[1:]]
        )


def _rows_of_periods(labels: Labels, order: Array, part: _Part) -> tuple[Array, Array]:
    """The rows of all periods of a part, and how many each period has; `order` has all rows by their steps."""
    steps = part.of(0, part.periods)
    begin, end = (np.searchsorted(labels.step, steps, side, order) for side in ("left", "right"))
    counts = end - begin
    inside = np.arange(counts.sum()) - np.repeat(offsets(counts)[:-1], counts)
    return order[np.repeat(begin, counts) + inside], counts.reshape(part.periods, part.size).sum(axis=1)


def _proof(all_times: Sequence[Times], copies: Sequence[_Copies], together: int) -> _Proof | None:
    """A time at which all ranks have the same state as `together` periods later, and how long that is; or the number of missing
    periods. None if the periods of the ranks differ in length.

    From `since_ns` until the first time everything in progress belongs to periods that happen again, everything in progress at
    the later time is such a repetition, and the repetition continues for twice as long.
    """
    if min(len(one.start_ns) for one in copies) < FEWEST_COPIES + together - 1:
        return None
    least: _Proof | None = None
    for lasts_ns in dict.fromkeys(copies[0].intervals_ns(together)[::-1].tolist()):
        found = [one.alike(together, lasts_ns) for one in copies]
        alike = [one for one in found if one]
        if lasts_ns <= 0 or len(alike) < len(found):
            continue
        at_ns = min(min(one.has_no_image_from_ns for one in alike) - 1, min(one.others_begin_ns for one in alike) - 2 * lasts_ns)
        since_ns = at_ns
        for times in all_times:
            in_progress = (times.start_ns <= at_ns) & (times.arrival_ns > at_ns)
            since_ns = min(since_ns, int(times.start_ns[in_progress].min(initial=at_ns)))
        late_ns = max(max(one.others_end_ns, one.is_no_image_until_ns - lasts_ns) for one in alike) - since_ns
        proof = _Proof(together * max(0, ceil(late_ns / lasts_ns)), at_ns, lasts_ns, tuple(one.first for one in alike))
        if not proof.missing_periods:
            return proof
        least = proof if least is None else min(least, proof)
    return least
