"""What the benchmarks share. Not a benchmark itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter, process_time
from typing import TypeVar

T = TypeVar("T")


def best(call: Callable[[], T], runs: int = 3) -> tuple[float, T]:
    """Seconds of the fastest of several runs, and the last result."""
    times = []
    for _ in range(runs):
        began = perf_counter()
        result = call()
        times.append(perf_counter() - began)
    return min(times), result


def best_processor_s(call: Callable[[], T], runs: int = 3) -> tuple[float, T]:
    """Processor seconds of the fastest of several runs in this process, and the last result."""
    times = []
    for _ in range(runs):
        began = process_time()
        result = call()
        times.append(process_time() - began)
    return min(times), result


def child_processor_s(command: Sequence[str]) -> float:
    """Processor seconds, user and system, of a command, which finds its modules compiled from the second run on."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
