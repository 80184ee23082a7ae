"""Optimal: the shortest order within a memory limit, found by constraint search (CP-SAT), with a proven lower bound.

Each rank has one stage and runs F, I and W of every microbatch. A rank holds at most `shape.memory_limit` x P activations,
counted as `shape.goal.memory_count` says. The `shape.goal.objective` is minimised for `shape.durations`. Every kind runs in the
order of the microbatches, which excludes no better order (`_job_shop` explains why), so `proven` means that no order of F, I
and W is better. List schedules are tried first. If the best of them does not reach the analytic bound, CP-SAT of OR-tools
searches for what is left of `shape.goal.time_limit_s` and proves bounds. Without OR-tools only the list schedules and the
analytic bound are available.

Slots start as early as they can, so a span counts from the arrival of a rank's first microbatch. The search has a fixed seed,
and a repeated call in the same process returns the same order. An order may differ between machines if the time limit or Ctrl-C
ended the search, or if the problem is large. References: the integer program of arXiv 2401.10241; the job-shop bounds in
`_job_shop`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import floor, gcd, lcm
from time import monotonic

from ..program.slot import Shape, Slot, looped
from . import _cp_sat, _search, zb_auto
from ._job_shop import JobShop, MemoryCap, Orders

CHUNKS = 1
COST_AWARE = True
OPTIONS = ("memory_limit",)
INSTALL = "pip install 'cluster-training-simulator[search]'"
BITS, TOTAL_BITS = 36, 57
MOST_EXACT = 1 << 48
"""Durations are exact while the longest, in their common unit, times microbatches times ranks is at most this. Otherwise the
unit is 2^-BITS of the longest duration, or larger where the durations of a problem would add up to more than 2^TOTAL_BITS
units."""


@dataclass(frozen=True)
class Certificate:
    """The value of an order, and a lower bound for any order, in the unit of the durations."""

    objective: str
    value: float
    lower_bound: float
    gap: float
    """Largest fraction of the value that a better order could save: 1 - lower_bound / value."""
    proven: bool
    status: str
    seconds: float
    source: str
    """The method that found the order."""


placement = looped


def refuse(shape: Shape) -> None:
    zb_auto.refuse(shape, "optimal")


def orders(shape: Shape) -> list[list[Slot]]:
    orders, _ = solve(replace(shape, chunks=1))
    return [[Slot(kind, rank, order.count(kind, 0, at)) for at, kind in enumerate(order)] for rank, order in enumerate(orders)]


def in_flight(rank: int, shape: Shape) -> int:
    """The memory limit. Where halves are counted, all microbatches but the one whose F has just ended may hold only a half."""
    halves = shape.goal.memory_count == "half"
    return min(shape.microbatches, zb_auto.allowed(shape, 2) - 1 if halves else zb_auto.allowed(shape))


def certificate(shape: Shape) -> Certificate:
    return solve(replace(shape, chunks=1))[1]


@lru_cache(maxsize=256)
def solve(shape: Shape) -> tuple[Orders, Certificate]:
    """The best order of every rank within the time limit, and its certificate. After Ctrl-C it is the best order so far."""
    refuse(shape)
    began = monotonic()
    shop, unit = _shop_of(shape)
    search = _search.start_search(shop, shape.goal.time_limit_s)
    search.deadline = began + shape.goal.time_limit_s  # the bound takes a part of the time
    _search.offer_known_orders(search, _zb_auto_orders(shape))
    installed = search.done or _cp_sat.installed()
    if installed:
        _search.improve(search)
    orders, whole, source = search.best
    value, bound = float(whole * unit), float(min(whole, search.bound) * unit)
    proven = whole <= search.bound
    status = "proven optimal" if proven else "interrupted" if search.interrupted else "time limit"
    if not proven and not search.interrupted and not installed:
        status = f"no solver: best heuristic; {INSTALL}"
    gap, took_s = 0.0 if proven else 1 - bound / value, monotonic() - began
    return orders, Certificate(shape.goal.objective, value, bound, gap, proven, status, took_s, source)


def _zb_auto_orders(shape: Shape) -> Iterator[tuple[str, Orders]]:
    """The orders of ZB-auto, which counts half activations: for the limit, and for a smaller one that also suits whole ones."""
    for limit in (shape.memory_limit, (shape.memory_limit + 1 / shape.ranks) / 2):
        orders = zb_auto.orders(replace(shape, memory_limit=limit))
        yield "zb_auto", tuple("".join(slot.kind for slot in order) for order in orders)


def _shop_of(shape: Shape) -> tuple[JobShop, Fraction]:
    """The shape in integer durations, and their unit. They are exact for short decimals, otherwise short by less than a unit."""
    durations = shape.durations
    kinds = (durations.forward, durations.input_gradient, durations.weight_gradient)
    given = [x for kind in kinds for x in (kind if isinstance(kind, tuple) else (kind,) * shape.ranks)]
    every = [Fraction(str(float(x))) for x in (*given, durations.comm)]  # the decimal text of the durations
    longest = max(every)
    unit = Fraction(1, lcm(*(length.denominator for length in every)))
    if longest / unit * shape.microbatches * shape.ranks > MOST_EXACT:
        unit = longest / min(1 << BITS, (1 << TOTAL_BITS) // (shape.microbatches * shape.ranks))
    whole = [floor(length / unit) for length in every]
    shared = gcd(*whole) or 1
    ranks, whole = shape.ranks, [n // shared for n in whole]
    f, i, w = (tuple(whole[n * ranks : (n + 1) * ranks]) for n in range(3))
    arrivals = tuple(-sum(f[:rank]) - rank * whole[-1] for rank in range(ranks))
    end_offset = arrivals if shape.goal.objective == "span" else (0,) * ranks
    halves = shape.goal.memory_count == "half"
    cap = MemoryCap(zb_auto.allowed(shape, 2), 2, 1, 1) if halves else MemoryCap(zb_auto.allowed(shape), 1, 0, 1)
    return JobShop(shape.microbatches, (f, i, w), whole[-1], cap, end_offset), unit * shared
