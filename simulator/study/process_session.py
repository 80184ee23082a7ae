"""The session of a process that simulates many scenarios of few models, as a search does, and reuses intermediate results.

A session keeps times of kernels, algorithms, routes and operations of slots; what it keeps of each is bounded
(`simulation/session.py`). Orders of slots are by far the largest of these for plans with many microbatches, and few plans of a
search have the same, so that they are bounded by their slots here. Results are the same with a session and without one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import get_ident
from typing import Any

from ..bounded_cache import Cache
from ..program.layout import Layout
from ..simulation.session import Session

MOST_SLOTS = 1 << 18
"""Largest number of forward slots of all orders that a process keeps, about 100 MB: eight of 1,024 microbatches in 32 stages."""

MOST_THREADS = 64
"""Largest number of threads whose sessions are kept."""


class ProcessSession(Session):
    """A session that keeps orders of slots by how many slots they have."""

    def __init__(self) -> None:
        super().__init__()
        self._orders = Cache(MOST_SLOTS)

    def layout(self, key: tuple[Any, ...], make: Callable[[], Layout]) -> Layout:
        """The order of slots of a schedule for a shape."""
        shape = key[-1]
        found: Layout = self._orders.of(key, make, shape.stages * shape.microbatches)
        return found


def of_this_thread() -> ProcessSession:
    """The session of this thread, shared by all searches and validations that it takes part in.

    A session serves one thread at a time, and the workers of an executor may be threads of one process.
    """
    return _of_thread(get_ident())


@lru_cache(maxsize=MOST_THREADS)
def _of_thread(thread: int) -> ProcessSession:
    return ProcessSession()
