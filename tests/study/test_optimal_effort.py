"""The time that the schedule `optimal` takes before its search is part of its time limit, and of the estimate."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.schedules import _search, optimal
from simulator.simulation.estimated_effort import TooLong


def test_an_optimal_schedule_of_many_slots_is_refused_without_long() -> None:
    with pytest.raises(TooLong, match="optimal of 64 ranks would take"):
        sim.schedule("optimal", ranks=64, microbatches=512, time_limit_s=2)


def test_the_time_limit_counts_from_before_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that takes ten seconds, by the clock of the search, leaves nothing of a limit of five."""
    clock = [0.0]
    bounded = _search.lower_bound

    def slow(*args: object) -> int:
        clock[0] += 10.0
        return bounded(*args) - 1  # type: ignore[arg-type]

    monkeypatch.setattr(_search, "lower_bound", slow)
    for module in (_search, optimal):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(optimal._cp_sat, "installed", lambda: False)
    offered: list[str] = []
    offer = _search.Search.offer
    monkeypatch.setattr(
        _search.Search, "offer", lambda self, orders, source: offered.append(source) or offer(self, orders, source)
    )
    found = sim.schedule("optimal", ranks=3, microbatches=7, time_limit_s=5)
    assert found.certificate
    assert found.certificate.status == "time limit"
    assert offered == ["list schedule"]
