"""Plans that share a session have the results that each has by itself, and the orders that are kept are bounded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from simulator.config import catalog
from simulator.costs.kernels.estimator import Estimator
from simulator.program.layout import lay_out
from simulator.program.slot import Shape
from simulator.search import choice_scenario, plan_checks
from simulator.search.search import base_of, choices_of
from simulator.simulation.session import Session
from simulator.study import process_session
from simulator.study.process_session import ProcessSession

from .test_search import FRAMEWORK

SPACE: dict[str, Any] = {
    "tp": [1, 2], "pp": [1, 2, 4], "microbatch": [1, 2], "recompute": ["none", "full"], "split": ["even"],
    "schedule": ["1f1b", "zb-v", "dualpipe-v"], "overlap": ["framework", "none"],
}  # fmt: skip


@pytest.mark.slow
def test_a_session_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_of(FRAMEWORK)
    plans = choices_of(base, SPACE)[::3]
    legal = [plan for plan in plans if plan_checks.weighed(base, [plan])[0].status == plan_checks.LEGAL]
    session = ProcessSession()
    monkeypatch.setattr(plan_checks, "of_this_thread", lambda: session)
    shared = [(plan_checks.examined(base, plan), plan_checks.measured(base, plan)) for plan in legal]
    monkeypatch.setattr(plan_checks, "of_this_thread", Session)
    alone = [(plan_checks.examined(base, plan), plan_checks.measured(base, plan)) for plan in legal]
    assert len(legal) >= 10
    assert shared == alone


def test_plans_of_a_process_share_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    process_session._of_thread.cache_clear()
    made: list[object] = []
    kept = ProcessSession.prices
    monkeypatch.setattr(ProcessSession, "prices", lambda self, *given: made.append(self) or kept(self, *given))
    base = base_of(FRAMEWORK)
    for plan in choices_of(base, {"tp": [1, 2], "pp": [1], "microbatch": [1], "recompute": ["none"]}):
        plan_checks.measured(base, plan)
    assert len(made) == 2
    assert made[0] is made[1] is process_session.of_this_thread()


def test_threads_share_nothing_that_plans_change() -> None:
    """An executor may have several threads, as a worker of Dask does; a cache that two of them change at once loses its keys."""
    base, both = base_of(FRAMEWORK), Barrier(2)
    (choice,) = choices_of(base, {"tp": [1], "pp": [1], "microbatch": [1], "recompute": ["none"]})

    def shared() -> tuple[object, ...]:
        both.wait()
        of_plan = choice_scenario.shared_scenario(base, choice)
        return process_session.of_this_thread(), of_plan, of_plan.times, of_plan.times.rows.slots

    with ThreadPoolExecutor(2) as threads:
        one, other = (future.result() for future in [threads.submit(shared) for _ in range(2)])
    assert all(mine is not yours for mine, yours in zip(one, other, strict=True))


def test_plans_share_the_times_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked about them, the time of a kernel is estimated once."""
    monkeypatch.setattr(plan_checks, "of_this_thread", lambda: session)
    asked: list[object] = []
    estimate = Estimator.estimate
    monkeypatch.setattr(Estimator, "estimate", lambda self, kernel: asked.append(kernel) or estimate(self, kernel))
    base, session = base_of(FRAMEWORK), ProcessSession()
    for plan in choices_of(base, {"tp": [1, 2], "pp": [1, 2], "microbatch": [1], "recompute": ["none"]}):
        assert plan_checks.weighed(base, [plan])[0].status == plan_checks.LEGAL
        plan_checks.quick_bounds_ns(base, [plan])
        plan_checks.examined(base, plan)
        plan_checks.measured(base, plan)
    assert len(asked) == len(set(asked)) > 20


def test_orders_are_kept_by_how_many_slots_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_session, "MOST_SLOTS", 100)
    session, schedule, made = ProcessSession(), catalog.module("schedules", "1f1b"), []

    def order(microbatches: int) -> None:
        shape = Shape(4, microbatches)
        session.layout((schedule, shape), lambda: made.append(microbatches) or lay_out(schedule, shape))

    for microbatches in (8, 16, 8, 16, 4, 8, 32, 32):
        order(microbatches)
    assert made == [8, 16, 4, 8, 32, 32]
