"""The workers of a Dask cluster as an executor of `concurrent.futures`.

Client, scheduler and workers exchange pickles, which can run any code: the address is one that the user typed, and is trusted
like code. A worker that ends is made up for by the scheduler, which hands its tasks to others. If the scheduler ends, so does the
work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import SimulatorError, UserError, shown

if TYPE_CHECKING:
    from distributed import Client

SCHEME = "dask://"
CONNECT_S, WORKER_S, CLOSE_S = 10.0, 60.0, 1.0
"""Time that a scheduler has to answer, that its first worker has to come, and that a client has to say goodbye."""
RESUME = "with a store --resume goes on where it was"


@contextmanager
def connected(address: str) -> Iterator[tuple[Executor, int]]:
    """The executor of a scheduler at an address such as dask://host:8786, and the number of threads of its workers."""
    from_scheme = address.removeprefix(SCHEME)
    host, colon, port = from_scheme.rpartition(":")
    if not host or not colon or not port.isascii() or not port.isdecimal() or "/" in from_scheme:
        raise UserError(f"{shown(address)} is no address of a Dask scheduler", hint=f"write it like {SCHEME}localhost:8786")
    client = _client(from_scheme)
    try:
        yield client.get_executor(pure=False), _threads(client)
    except CancelledError:
        raise SimulatorError(f"the Dask scheduler at {from_scheme} ended", hint=f"start it anew; {RESUME}") from None
    except SimulatorError:
        raise
    except Exception as error:
        if type(error).__name__ == "KilledWorker":
            message = "a task ended several Dask workers in turn"
            raise SimulatorError(message, hint=f"memory may have run out: larger workers; {RESUME}") from None
        if client.status != "running":
            raise SimulatorError(f"the Dask scheduler at {from_scheme} cannot be reached", hint=RESUME) from None
        raise
    finally:
        with suppress(Exception):  # a scheduler that is gone cannot say goodbye
            client.close(CLOSE_S)


def _client(address: str) -> Client:
    """A connection to a scheduler. What the library has to say about lost ones is said by us."""
    if find_spec("distributed") is None:
        raise UserError("dask:// needs Dask, which is not installed", hint="pip install '.[dask]'")
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(f"tcp://{address}", timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        hint = f"dask scheduler --port {address.rpartition(':')[2]}"
        raise SimulatorError(f"no Dask scheduler answers at {address}: {' '.join(str(error).split())}", hint=hint) from None


def _threads(client: Client) -> int:
    """Threads of all workers. Raises `SimulatorError` if there is none after a while."""
    try:
        client.wait_for_workers(1, timeout=WORKER_S)
    except TimeoutError:
        address = client.scheduler.address
        hint = f"dask worker {address} --nthreads 1"
        raise SimulatorError(f"the Dask scheduler at {address} has no workers", hint=hint) from None
    return max(1, sum(map(int, client.nthreads().values())))
