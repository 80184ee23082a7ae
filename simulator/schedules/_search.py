"""The search for the best order of a pipeline: list schedules first, then CP-SAT on parts of it, then on all of it.

The solver first tries the whole problem, which is enough for small ones. For a large one it then orders half of the
microbatches. The order of all is built by repeating a steady block: a part of that order with as many F as I as W on every
rank. A lower bound follows as well: from the first start of the second half of the microbatches on, the rest takes at least as
long as that half takes by itself, and the solver bounds how early this start can be under the memory cap. Then windows of time
move along the schedule; the order within a window is optimised while the order before and after it stays fixed. Finally the
solver takes the whole problem again, starting from the best order that is known.
"""

from __future__ import annotations

import signal
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic
from types import FrameType
from typing import NamedTuple

from . import _cp_sat as solver
from ._job_shop import (
    KINDS,
    MINUS_INFINITY,
    F,
    I,
    JobShop,
    Orders,
    Table,
    W,
    ends_of,
    heads,
    list_schedules,
    lower_bound,
    needs,
    tails,
    value_of,
)

MOST_JOBS_AT_ONCE = 400
"""Largest number of jobs of a problem that the solver takes as a whole from the start."""
WINDOW_JOBS = 300
"""Jobs in a window of time at first."""
WINDOW_S = 5.0
"""Time limit of the solver for one window."""
FIRST_SHARE, HALF_SHARE, WINDOWS_SHARE = 0.2, 0.3, 0.4
"""Fractions of the remaining time for the first try at a whole large problem, for half of its microbatches, and for windows."""


class Best(NamedTuple):
    """The best order so far."""

    orders: Orders
    value: int
    source: str


NO_ORDER = Best((), -MINUS_INFINITY, "")


@dataclass
class Search:
    """The best order and the lower bound of a problem so far. Both are valid whenever the search is interrupted."""

    shop: JobShop
    deadline: float
    heads: Table
    tails: Table
    bound: int
    best: Best = NO_ORDER
    interrupted: bool = False

    @property
    def done(self) -> bool:
        return self.best.value <= self.bound or self.interrupted or self.left <= 0

    @property
    def left(self) -> float:
        return self.deadline - monotonic()

    @property
    def jobs(self) -> int:
        return 3 * self.shop.microbatches * self.shop.ranks

    def offer(self, orders: Orders, source: str) -> bool:
        """Keeps an order if it is better than the best so far."""
        count = self.shop.microbatches
        whole = len(orders) == self.shop.ranks and all(order.count(kind) == count for order in orders for kind in KINDS)
        value = value_of(self.shop, orders) if whole and self.shop.fits(orders) else None
        if value is None or value >= self.best.value:
            return False
        self.best = Best(orders, value, source)
        return True

    def solve_part(self, part: solver.SubProblem, seconds: float, *, deterministic: bool = False) -> solver.Solution:
        found = solver.solve(self.shop, part, min(seconds, self.left), deterministic=deterministic)
        self.interrupted |= found.interrupted
        return found


def start_search(shop: JobShop, seconds: float) -> Search:
    """A search with its analytic bound and no order yet."""
    head, tail = heads(shop), tails(shop)
    return Search(shop, monotonic() + seconds, head, tail, lower_bound(shop, head, tail))


def offer_known_orders(search: Search, others: Iterable[tuple[str, Orders]]) -> None:
    """Offers the list schedules and the other orders to the search, until one meets the bound."""
    candidates = (("list schedule", orders) for orders in list_schedules(search.shop, search.tails))
    try:
        for source, orders in chain(candidates, others):
            search.offer(orders, source)
            if search.best.orders and search.done:
                return
    except KeyboardInterrupt:
        if not search.best.orders:
            raise
        search.interrupted = True


def improve(search: Search) -> None:
    """Searches until the best order is proven, the time limit is reached, or Ctrl-C is pressed."""
    with _stops_on_ctrl_c(search):
        if search.jobs > MOST_JOBS_AT_ONCE and search.shop.microbatches > 1 and not search.done:
            _solve_whole(search, search.left * FIRST_SHARE)
            _solve_half(search)
            _solve_windows(search, search.left * WINDOWS_SHARE)
        _solve_whole(search, search.left)


@contextmanager
def _stops_on_ctrl_c(search: Search) -> Iterator[None]:
    """Ends the enclosed work at Ctrl-C, and records it in the search even where the exception is swallowed.

    The handler from before is called too: a sweep must know that the schedule of a point is not what it would have been.
    """

    def pressed(number: int, frame: FrameType | None) -> None:
        search.interrupted = True
        if callable(before):
            before(number, frame)
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, pressed) if in_main_thread else None
    try:
        yield
    except KeyboardInterrupt:
        search.interrupted = True
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)


def _solve_whole(search: Search, seconds: float) -> None:
    """Solves the whole problem: a small one deterministically for half of the time, then with workers that run freely."""
    shop, every = search.shop, (range(search.shop.microbatches),) * 3
    for deterministic in (True, False) if search.jobs <= MOST_JOBS_AT_ONCE else (False,):
        if not search.done:
            bounds, starts = (search.bound, search.best.value), _starts(shop, search.best.orders)
            part = solver.SubProblem((every,) * shop.ranks, search.heads, search.tails, *bounds, starts)
            found = search.solve_part(part, seconds / 2 if deterministic else seconds, deterministic=deterministic)
            search.offer(found.orders, "search")
            search.bound = max(search.bound, found.bound)


def _starts(shop: JobShop, orders: Orders) -> Table:
    ends = ends_of(shop, orders) or []
    return [[[end - shop.lengths[kind][rank] for end in ends[rank][kind]] for kind in (F, I, W)] for rank in range(shop.ranks)]


def _solve_half(search: Search) -> None:
    """Solves half of the microbatches, which gives a bound for all of them, and an order of all by repetition."""
    if search.done:
        return
    shop, seconds = search.shop, search.left * HALF_SHARE
    half = shop.microbatches // 2
    short = start_search(replace(shop, microbatches=shop.microbatches - half), seconds * 0.7)
    offer_known_orders(short, ())
    improve(short)
    search.interrupted |= short.interrupted
    for orders in _repeated(short.best.orders, half):
        search.offer(orders, "search of half the microbatches, its steady block repeated")
    if not search.done:
        search.bound = max(search.bound, short.bound + _bound_on_start(search, half, seconds * 0.3))


def _repeated(orders: Orders, more: int) -> Iterator[Orders]:
    """The orders with `more` additional microbatches that repeat a block of the given order."""
    at = [{kind: [i for i, other in enumerate(order) if other == kind] for kind in KINDS} for order in orders]
    count = orders[0].count("F")
    for period in (n for n in range(1, count) if more % n == 0):
        for kind in KINDS:
            for first in range(count - period):
                cuts = [(positions[kind][first], positions[kind][first + period]) for positions in at]
                blocks = [order[a:b] for order, (a, b) in zip(orders, cuts, strict=True)]
                if all(block.count(other) == period for block in blocks for other in KINDS):
                    times = more // period
                    yield tuple(
                        order[:b] + block * times + order[b:] for order, block, (_, b) in zip(orders, blocks, cuts, strict=True)
                    )


def _bound_on_start(search: Search, microbatch: int, seconds: float) -> int:
    """A lower bound on the start of a microbatch on the first rank, from the jobs that must or may run before it."""
    shop = search.shop
    starts, head = _starts(shop, search.best.orders), search.heads[0][F][microbatch]
    after_i, after_w = (max(column) for column in zip(*needs(shop.cap, microbatch), strict=True))
    before, room = range(after_i), range(max(needs(shop.cap, k)[-1][1] for k in range(after_i)) if after_i else 0)
    first = (range(microbatch + 1), before, range(max(after_w, len(room))))
    tail: Table = [[[MINUS_INFINITY] * shop.microbatches for _ in KINDS] for _ in shop.end_offset]
    tail[0][F][microbatch] = -shop.lengths[F][0]
    ranges = (first, *[(before, before, room)] * (shop.ranks - 1))
    part = solver.SubProblem(ranges, search.heads, tail, head, starts[0][F][microbatch], starts)
    return search.solve_part(part, seconds).bound


def _solve_windows(search: Search, seconds: float) -> None:
    """Optimises the order in one window of time after the other, with wider windows once no window of a width improves it."""
    until, size = monotonic() + seconds, WINDOW_JOBS
    while size < search.jobs and not search.done and monotonic() < until:
        better = False
        for step in range(2 * search.jobs // size):
            if search.done or monotonic() >= until:
                return
            better |= _solve_window(search, step * size // 2, size)
        size = size if better else size * 3 // 2


def _solve_window(search: Search, first: int, size: int) -> bool:
    """Optimises the order of `size` consecutive jobs by start, from `first` on. Returns whether the order improved."""
    shop, (orders, value, _) = search.shop, search.best
    starts = _starts(shop, orders)
    jobs = sorted((starts[r][x][k], r, x, k) for r in range(shop.ranks) for x in (F, I, W) for k in range(shop.microbatches))
    begin, end = jobs[first][0], jobs[first + size][0] if first + size < len(jobs) else jobs[-1][0] + 1
    part = _window(shop, orders, starts, (begin, end))
    found = search.solve_part(replace(part, lower=search.bound, upper=value), WINDOW_S)
    if not found.orders:
        return False
    before = [sum(start < begin for column in own for start in column) for own in starts]
    parts = zip(orders, before, found.orders, strict=True)
    return search.offer(tuple(order[:at] + new + order[at + len(new) :] for order, at, new in parts), "search in windows of time")


def _window(shop: JobShop, orders: Orders, starts: Table, times: tuple[int, int]) -> solver.SubProblem:
    """The jobs that start between two times, with heads from the jobs before them and tails from the jobs after them."""
    begin, end = times
    f, i, w = ([range(bisect_left(own[x], begin), bisect_left(own[x], end)) for own in starts] for x in (F, I, W))
    ranges = tuple((f[rank], i[rank], w[rank]) for rank in range(shop.ranks))
    head: Table = [[[0] * shop.microbatches for _ in KINDS] for _ in orders]
    tail: Table = [[[end_offset] * shop.microbatches for _ in KINDS] for end_offset in shop.end_offset]
    rest = _times_to_end(shop, orders, starts)
    for rank, own in enumerate(ranges):
        ended = [starts[rank][x][k] + shop.lengths[x][rank] for x in (F, I, W) for k in range(own[x].start)]
        follow = [rest[rank][x][own[x].stop] for x in (F, I, W) if own[x].stop < shop.microbatches]
        for kind, k in ((x, k) for x in (F, I, W) for k in own[x]):
            source, target = (rank - 1, rank + 1) if kind == F else (rank + 1, rank - 1)
            head[rank][kind][k] = max([0, *ended])
            tail[rank][kind][k] = max([shop.end_offset[rank], *follow])
            if kind != W and 0 <= source < shop.ranks and k < ranges[source][kind].start:
                arrival = starts[source][kind][k] + shop.lengths[kind][source] + shop.comm
                head[rank][kind][k] = max(head[rank][kind][k], arrival)
            if kind != W and 0 <= target < shop.ranks and k >= ranges[target][kind].stop:
                tail[rank][kind][k] = max(tail[rank][kind][k], rest[target][kind][k] + shop.comm)
    return solver.SubProblem(ranges, head, tail, 0, 0, starts)


def _times_to_end(shop: JobShop, orders: Orders, starts: Table) -> Table:
    """The time from the start of every job to the end of all jobs (+ `end_offset`), in the given order."""
    rest: Table = [[[0] * shop.microbatches for _ in KINDS] for _ in orders]
    after = list(shop.end_offset)
    left = [[shop.microbatches] * 3 for _ in orders]
    turns = []
    for rank, order in enumerate(orders):
        start = [iter(column) for column in starts[rank]]
        turns += [(next(start[KINDS.index(letter)]), position, rank) for position, letter in enumerate(order)]
    for _, position, rank in sorted(turns, reverse=True):
        kind = KINDS.index(orders[rank][position])
        left[rank][kind] -= 1
        k = left[rank][kind]
        waits = [rest[other][then][k] + latency for other, then, latency in shop.followers(rank, kind)]
        after[rank] = max([after[rank], *waits])
        after[rank] += shop.lengths[kind][rank]
        rest[rank][kind][k] = after[rank]
    return rest
