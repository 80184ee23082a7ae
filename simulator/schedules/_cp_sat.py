"""The constraint solver CP-SAT of OR-tools on a pipeline, or a part of it: the best order that it finds, and a lower bound.

Every job is an interval of fixed length. Jobs of one rank do not overlap, each kind runs in the order of the microbatches, and
the memory cap is the disjunction that `needs` returns. Heads and tails shrink the domains. When the time is up, or Ctrl-C is
pressed, the best order found so far is returned.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.util import find_spec
from time import monotonic
from typing import Any

from ..errors import InvariantBroken
from ._job_shop import KINDS, MINUS_INFINITY, F, I, JobShop, Orders, Table, W, needs

Job = tuple[int, int, int]
"""Rank, kind, microbatch."""
WORKERS = 2
SEED = 0


@dataclass(frozen=True)
class SubProblem:
    """The jobs to schedule: a range of microbatches for each rank and kind. Heads and tails stand for all other jobs."""

    ranges: tuple[tuple[range, range, range], ...]
    heads: Table
    tails: Table
    """`NEVER` for a job whose end does not count towards the value."""
    lower: int
    upper: int
    """An upper bound of the best value."""
    starts: Table | None = None
    """A first solution, if one is known."""


@dataclass(frozen=True)
class Solution:
    """The result of the solver: the order of each rank, empty if it found none, and a lower bound of the value."""

    orders: Orders
    bound: int
    interrupted: bool


def installed() -> bool:
    """Whether OR-tools is installed. It is imported when the solver first runs."""
    return find_spec("ortools") is not None


def solve(shop: JobShop, part: SubProblem, seconds: float, *, deterministic: bool = False) -> Solution:
    """The order of least value for the part that is found within the time limit, in seconds.

    In a deterministic search the workers take turns, so that every machine with enough time finds the same order.
    """
    from ortools.sat.python import cp_model

    began = monotonic()
    model = _Model(shop, part, cp_model.CpModel())
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = SEED
    solver.parameters.interleave_search = deterministic
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_time_in_seconds = max(0.0, seconds - (monotonic() - began))
    status, interrupted = _until_ctrl_c(solver, model.model)
    if status == cp_model.INFEASIBLE:
        raise InvariantBroken("the solver finds no order where there is one")
    orders = model.orders(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else ()
    bound = max(part.lower, round(solver.best_objective_bound)) if orders else part.lower
    return Solution(orders, bound, interrupted)


def _until_ctrl_c(solver: Any, model: Any) -> tuple[Any, bool]:
    """The solver's status, and whether Ctrl-C was pressed. The solver runs in another thread, so that Ctrl-C can stop it here."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solver.solve, model)
        try:
            return running.result(), False
        except KeyboardInterrupt:
            _stop(solver, running)
            return running.result(), True
        except BaseException:  # SIGTERM: the program ends
            _stop(solver, running)
            raise


def _stop(solver: Any, running: Future[Any]) -> None:
    while not running.done():
        solver.stop_search()
        wait([running], timeout=0.1)


class _Model:
    """The constraint model of one part."""

    def __init__(self, shop: JobShop, part: SubProblem, model: Any) -> None:
        self.shop, self.part, self.model = shop, part, model
        horizon = (sum(map(sum, shop.lengths)) + 2 * shop.ranks * shop.comm) * shop.microbatches
        self.start: dict[Job, Any] = {}
        jobs = [(r, x, k) for r, kinds in enumerate(part.ranges) for x, microbatches in enumerate(kinds) for k in microbatches]
        for rank, kind, k in jobs:
            head, tail = part.heads[rank][kind][k], part.tails[rank][kind][k]
            latest = horizon if tail == MINUS_INFINITY else part.upper - tail
            self.start[rank, kind, k] = model.new_int_var(head, latest - shop.lengths[kind][rank], "")
        for rank in range(shop.ranks):
            own = [job for job in jobs if job[0] == rank]
            model.add_no_overlap([model.new_fixed_size_interval_var(self.start[job], self._length(job), "") for job in own])
        for job in jobs:
            self._add_precedences(job)
        self._add_objective()

    def _length(self, job: Job) -> int:
        return self.shop.lengths[job[1]][job[0]]

    def _after(self, job: Job, before: Job, latency: int = 0) -> Any:
        """The constraint that a job starts after another has ended; None if the other job is not in the part."""
        if before not in self.start:
            return None
        return self.model.add(self.start[job] >= self.start[before] + self._length(before) + latency)

    def _add_precedences(self, job: Job) -> None:
        rank, kind, k = job
        self._after(job, (rank, kind, k - 1))
        if kind == F:
            self._after(job, (rank - 1, F, k), self.shop.comm)
            self._add_memory_cap(job)
        elif kind == I:
            self._after(job, (rank + 1, I, k), self.shop.comm)
            self._after(job, (rank, F, k))
        else:
            self._after(job, (rank, I, k))

    def _add_memory_cap(self, job: Job) -> None:
        """The memory cap: enough I and W run before this F, by at least one of the combinations of `needs` within the part."""
        rank, _, k = job
        _, i, w = self.part.ranges[rank]
        choices = [(after_i, after_w) for after_i, after_w in needs(self.shop.cap, k) if after_i <= i.stop and after_w <= w.stop]
        holds = [self.model.new_bool_var("") for _ in choices]
        self.model.add_bool_or(holds)
        for hold, (after_i, after_w) in zip(holds, choices, strict=True):
            for constraint in (self._after(job, (rank, I, after_i - 1)), self._after(job, (rank, W, after_w - 1))):
                if constraint is not None:
                    constraint.only_enforce_if(hold)

    def _add_objective(self) -> None:
        value = self.model.new_int_var(self.part.lower, self.part.upper, "")
        for job, start in self.start.items():
            rank, kind, k = job
            if (tail := self.part.tails[rank][kind][k]) != MINUS_INFINITY:
                self.model.add(value >= start + self._length(job) + tail)
            if self.part.starts:
                self.model.add_hint(start, self.part.starts[rank][kind][k])
        if self.part.starts:
            self.model.add_hint(value, self.part.upper)
        self.model.minimize(value)

    def orders(self, solver: Any) -> Orders:
        """The order on each rank, by start; of two jobs that start together the one of length 0 comes first."""
        orders: list[list[tuple[int, int, int, int]]] = [[] for _ in self.shop.end_offset]
        for job, start in self.start.items():
            orders[job[0]].append((solver.value(start), solver.value(start) + self._length(job), job[1], job[2]))
        return tuple("".join(KINDS[kind] for *_, kind, _ in sorted(order)) for order in orders)
