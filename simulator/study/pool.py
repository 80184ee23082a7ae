"""A pool of processes that answers questions one after the other, a few handed out ahead."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

from ..errors import SimulatorError
from ..simulation import choose_engine

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module, and its arguments."""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def answers(tasks: Iterator[tuple[Any, Call]], workers: int, ahead: int, hint: str = "") -> Iterator[tuple[Any, Any]]:
    """The results of calls by the keys that stand before them, as they come; at most `ahead` are handed out at the same time.

    `tasks` may end and go on again: it is asked anew after every result, which may have led to more.
    """
    if workers <= 1:
        return ((key, function(*arguments)) for key, (function, arguments) in tasks)
    return _pooled(tasks, workers, ahead, hint)


def _pooled(tasks: Iterator[tuple[Any, Call]], workers: int, ahead: int, hint: str) -> Iterator[tuple[Any, Any]]:
    with ProcessPoolExecutor(workers, initializer=_start) as pool:
        waiting: dict[Future[Any], Any] = {}
        try:
            while True:
                for key, (function, arguments) in islice(tasks, ahead - len(waiting)):
                    waiting[pool.submit(function, *arguments)] = key
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            raise SimulatorError("a worker ended before it was done", hint=hint) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _start() -> None:
    """Prepares a worker. Ctrl-C reaches it too, and the process that collects the results ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    choose_engine.load()
