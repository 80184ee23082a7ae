"""A Dask cluster on the loopback: a scheduler and two workers, each a process that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKERS = 2
START_S = 60
Process = subprocess.Popen[bytes]


def started(*words: str, env: Mapping[str, str], log: Path | None = None) -> Process:
    """A program of this environment, in a process group of its own."""
    out = log.open("ab") if log else subprocess.DEVNULL
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=out,
        stderr=out,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **env},
        start_new_session=True,
    )


def killed(process: Process) -> None:
    """Ends a process at once, as a lack of memory would."""
    process.send_signal(signal.SIGKILL)
    process.wait()


class Cluster:
    """A scheduler and its workers. The port is the same after every new start."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self._env, self._folder = dict(env), folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.scheduler = self._scheduler()
        self.workers = [self._worker() for _ in range(WORKERS)]

    @property
    def address(self) -> str:
        return f"dask://127.0.0.1:{self.port}"

    def kill_worker(self, number: int) -> None:
        """Kills a worker; another one comes."""
        killed(self.workers[number])
        self.workers[number] = self._worker()

    def kill_scheduler(self) -> None:
        """Kills the scheduler. What comes after it is started by `start`."""
        killed(self.scheduler)

    def start(self) -> None:
        """Starts a scheduler and workers anew."""
        self.close()
        self.scheduler = self._scheduler()
        self.workers = [self._worker() for _ in range(WORKERS)]

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            killed(process)

    def _scheduler(self) -> Process:
        words = ("--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
        process = self._dask("scheduler", *words)
        until = time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", self.port)):
                    return process
            time.sleep(0.05)
        raise RuntimeError(f"no scheduler: {(self._folder / 'dask.log').read_text()[-2000:]}")

    def _worker(self) -> Process:
        words = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self._folder))
        return self._dask("worker", f"tcp://127.0.0.1:{self.port}", *words)

    def _dask(self, kind: str, *words: str) -> Process:
        return started(f"distributed.cli.dask_{kind}", *words, env=self._env, log=self._folder / "dask.log")


@contextmanager
def cluster(env: Mapping[str, str], folder: Path) -> Iterator[Cluster]:
    """A cluster, ended when the block ends."""
    found = Cluster(env, folder)
    try:
        yield found
    finally:
        found.close()
