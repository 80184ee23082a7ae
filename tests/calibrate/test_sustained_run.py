"""Running a load for some seconds, with a clock in place of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.calibrate.bench.sustained_loads import Load
from simulator.calibrate.bench.sustained_run import HEADER, run
from simulator.calibrate.bench.timers import Job

WATCH: Any = SimpleNamespace(
    mark=perf_counter, between_s=lambda one, other: other - one, wait=lambda: None, wait_for=lambda mark: None, keep_busy=print
)
MONITOR: Any = SimpleNamespace(during=lambda from_s, until_s: SimpleNamespace(clock_mhz=None, power_w=None, throttle=""))


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 0.06])
@pytest.mark.parametrize("build", [lambda: None, lambda: Job(lambda: sum(range(999)))], ids=["idle", "a load"])
def test_a_load_is_seen_for_a_window_at_least(seconds: float, build: Callable[[], Job | None]) -> None:
    found = run(WATCH, MONITOR, Load("gemm", "nothing", build), seconds)
    assert found.windows
    assert found.windows[0].at_s >= 0
    assert len(found.summary()) == len(HEADER)
