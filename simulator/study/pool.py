"""Pools of workers that run calls, a few submitted ahead: this process, other processes of this machine, or a cluster.

Every pool is an executor in the sense of `concurrent.futures`, so that a user's own executor can be used too. Calls sent to such
an executor carry the version of the program: a worker with different code refuses them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_start_method, parent_process
from types import FrameType
from typing import Any, Generic, TypeVar

from ..errors import SimulatorError, UserError, described, shown
from ..simulation import choose_engine
from .dask_cluster import SCHEME, connected
from .program_version import version

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module, and its arguments."""
T = TypeVar("T")
PROCESSES = "processes"
ENDED = 1
"""Exit code of a worker whose process pool is gone."""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers: a number of processes of this machine, including this process itself, or else an executor, given as an
    object of `concurrent.futures` or as the address of a Dask scheduler. An object gets `number` tasks at a time."""

    number: int = 1
    executor: Executor | str | None = None


class Polled(Generic[T]):
    """Iterator over what a function returns until that is None. Polled again later, it continues if the function has more."""

    def __init__(self, next_one: Callable[[], T | None]) -> None:
        self._next_one = next_one

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        found = self._next_one()
        if found is None:
            raise StopIteration
        return found


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that are ready. Without an executor this process runs the calls."""

    number: int
    executor: Executor | None = None
    checked: bool = False
    """Whether the version of the program is compared, since its workers may have another."""

    def answers(self, tasks: Iterator[tuple[Any, Call]], ahead: int) -> Iterator[tuple[Any, Any]]:
        """The results of calls with the keys of the calls, as they come; at most `ahead` per worker are submitted.

        `tasks` may be exhausted and continue later (`Polled`): it is asked again after every result, which may have added tasks.
        """
        if self.executor is None:
            return ((key, _uninterrupted(function, arguments)) for key, (function, arguments) in tasks)
        return self._pooled(self.executor, tasks, ahead * self.number)

    def _pooled(self, executor: Executor, tasks: Iterator[tuple[Any, Call]], most: int) -> Iterator[tuple[Any, Any]]:
        waiting: dict[Future[Any], Any] = {}
        try:
            while True:
                for key, (function, arguments) in islice(tasks, most - len(waiting)):
                    call = (same_program, version(), function) if self.checked else (function,)
                    waiting[executor.submit(*call, *arguments)] = key
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        finally:
            for future in waiting:
                future.cancel()


def _uninterrupted(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """The result of a call in this process. Raises `KeyboardInterrupt` if Ctrl-C was pressed meanwhile, also where the call ends
    all the same: a schedule that is searched for is then the best until that moment, and not what it would have been."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        result = function(*arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
    return result


@contextmanager
def opened(workers: Workers, hint: str = "") -> Iterator[Pool]:
    """The workers, ready until the block ends. The hint is part of the error for workers that end too early."""
    number, executor = workers.number, workers.executor
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise UserError(f"{shown(number)} workers cannot work", hint="at least 1")
    try:
        if isinstance(executor, str) and executor != PROCESSES:
            if not executor.startswith(SCHEME):
                raise UserError(f"no executor {shown(executor)}", hint=f"{PROCESSES}, or {SCHEME}HOST:PORT")
            with connected(executor) as (client, threads):
                yield Pool(threads, client, checked=True)
        elif isinstance(executor, Executor):
            yield Pool(number, executor, checked=True)
        elif executor not in (None, PROCESSES):
            raise UserError(f"executor is {described(executor)}, not one of concurrent.futures", hint=PROCESSES)
        elif number == 1:
            yield Pool(1)
        else:
            with _processes(number) as processes:
                yield Pool(number, processes)
    except (BrokenExecutor, CancelledError):
        raise SimulatorError("a worker ended before it was done", hint=hint) from None


@contextmanager
def _processes(number: int) -> Iterator[ProcessPoolExecutor]:
    if get_start_method() == "fork":
        choose_engine.load()  # once for all of them
    with ProcessPoolExecutor(number, initializer=_start) as pool:
        try:
            yield pool
        except BaseException:  # such as Ctrl-C: nobody waits for the calls in progress
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def same_program(asked: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a worker, if the worker runs the same version of the program as the caller."""
    if version() != asked:
        message = f"a worker has a different version of the program or its data ({version()}, not {asked})"
        raise SimulatorError(message, hint="install the same version of the simulator on every worker, and restart the workers")
    return function(*arguments)


def _start() -> None:
    """Prepares a worker. It ignores Ctrl-C, which reaches it too: the process that collects the results ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    choose_engine.prepare_for_many()


def _end_with_parent() -> None:
    """Ends this worker when the process that started it is gone: a killed process cannot end its workers."""
    if parent := parent_process():
        parent.join()
        os._exit(ENDED)
