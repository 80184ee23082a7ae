"""What the benchmarks share. Not a benchmark itself."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
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
