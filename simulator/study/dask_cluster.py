"""The workers of a Dask cluster as an executor of `concurrent.futures`.

Client, scheduler and workers exchange pickles, which can run any code: the user typed the address, and it is trusted like code.
If a worker ends, the scheduler gives its tasks to other workers. If the scheduler ends, the work ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..errors import SimulatorError, UserError, shown

if TYPE_CHECKING:
    from distributed import Client

SCHEME = "dask://"
CONNECT_S, WORKER_S, CLOSE_S = 10.0, 60.0, 1.0
"""Time limits of the scheduler's answer, of the arrival of its first worker, and of the close of the client."""
FORGET_S, MOST_ASKED = 0.001, 10_000
"""Interval at which the scheduler is asked whether it has released a result, and the largest number of questions."""
RESUME = "with a store, --resume continues"


P = ParamSpec("P")
T = TypeVar("T")


class _Workers(Executor):
    """The workers of a scheduler. A result is given only when the scheduler has forgotten it.

    Dask's own executor releases a result some time after it has arrived. If the worker ends in between, the scheduler runs the
    task again, although its result is known and may have been committed.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        answer: Future[T] = Future()
        task = self._client.submit(fn, *args, **kwargs, pure=False)
        self._client.loop.add_callback(self._settle, task, answer)
        return answer

    async def _settle(self, task: Any, answer: Future[Any]) -> None:
        try:
            result = await self._client.gather(task, asynchronous=True)
            task.release()
            for _ in range(MOST_ASKED):
                if not any((await self._client.scheduler.who_has(keys=[task.key])).values()):
                    break
                await asyncio.sleep(FORGET_S)
        except BaseException as error:
            if not answer.cancelled():
                answer.set_exception(error if isinstance(error, Exception) else CancelledError())
        else:
            if not answer.cancelled():
                answer.set_result(result)


@contextmanager
def connected(address: str) -> Iterator[tuple[Executor, int]]:
    """The executor of a scheduler at an address such as dask://host:8786, and the number of threads of its workers."""
    from_scheme = address.removeprefix(SCHEME)
    host, colon, port = from_scheme.rpartition(":")
    if not host or not colon or not port.isascii() or not port.isdecimal() or "/" in from_scheme:
        raise UserError(f"{shown(address)} is not an address of a Dask scheduler", hint=f"write it like {SCHEME}localhost:8786")
    client = _client(from_scheme)
    try:
        yield _Workers(client), _threads(client)
    except SimulatorError:
        raise
    except Exception as error:
        if type(error).__name__ == "KilledWorker":
            message = "a task ended several Dask workers in turn"
            raise SimulatorError(message, hint=f"memory may have run out: larger workers; {RESUME}") from None
        if client.status != "running" or isinstance(error, (CancelledError, OSError)):
            raise SimulatorError(f"the Dask scheduler at {from_scheme} ended", hint=f"restart it; {RESUME}") from None
        raise
    finally:
        with suppress(Exception):  # the scheduler may be gone already
            client.close(CLOSE_S)


def _client(address: str) -> Client:
    """A connection to a scheduler. The library's own messages about lost connections are replaced by ours."""
    if find_spec("distributed") is None:
        raise UserError("dask:// needs Dask, which is not installed", hint="pip install '.[dask]'")
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(f"tcp://{address}", timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        hint = f"dask scheduler --port {address.rpartition(':')[2]}"
        raise UserError(f"no Dask scheduler answers at {address}: {' '.join(str(error).split())}", hint=hint) from None


def _threads(client: Client) -> int:
    """Threads of all workers. Raises `SimulatorError` if there is none after a while."""
    try:
        client.wait_for_workers(1, timeout=WORKER_S)
    except TimeoutError:
        address = client.scheduler.address
        hint = f"dask worker {address} --nthreads 1"
        raise SimulatorError(f"the Dask scheduler at {address} has no workers", hint=hint) from None
    return max(1, sum(map(int, client.nthreads().values())))
