"""Kills of workers, clients and schedulers at random moments, and what must hold after each of them.

A sweep of points that take a moment runs with `--resume`. When a random number of further points has begun, one of its processes
is killed. After that what was committed is read from a copy of the file: nothing that was there is gone or has changed, no point
that was committed begins again, and what ran twice is at most what was handed out when something was killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ..commandline import SMALL
from . import counted
from .cluster import WORKERS, Cluster, Process, killed, started

HANDED_OUT = 4 * WORKERS
"""Most points that are handed out at the same time: what a kill may cause to run again."""
MOST_BEGUN, TASK_S = 12, 0.01
WAIT_S = 60.0
LENGTHS = 25


class Lost(AssertionError):
    """A result was lost, changed, or found twice."""


class Victim:
    """A sweep whose processes are killed."""

    def __init__(self, folder: Path, kills: int, seed: int) -> None:
        self.folder, self.file = folder, folder / "swept.sqlite"
        self.random = random.Random(seed)
        self.log = folder / "begun.log"
        self.log.touch()
        self.env = {counted.LOG: str(self.log), counted.TASK_S: str(TASK_S)}
        self.points = LENGTHS * (1 + kills * (MOST_BEGUN + HANDED_OUT) // LENGTHS)
        (folder / "scenario.yaml").write_text(SMALL)
        self.committed: dict[str, float] = {}
        self.kills: Counter[str] = Counter()
        self.client: Process | None = None

    def words(self, executor: str | None) -> list[str]:
        batches = ",".join(str(32 * number) for number in range(1, self.points // LENGTHS + 1))
        lengths = ",".join(str(128 * number) for number in range(1, LENGTHS + 1))
        over = ("--over", f"job.global_batch={batches}", "--over", f"job.sequence_length={lengths}")
        who = ("--executor", executor) if executor else ("--workers", str(WORKERS))
        return ["sweep", str(self.folder / "scenario.yaml"), *over, "--output", str(self.file), "--resume", *who]

    def running(self, executor: str | None) -> Process:
        """The client, started if none runs."""
        if self.client is None or self.client.poll() is not None:
            self.client = started("tests.durable.client", *self.words(executor), env=self.env, log=self.folder / "client.log")
        return self.client

    def begun(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait_for_progress(self, client: Process) -> None:
        """Waits until a random number of further points has begun, and a random moment more."""
        wanted = len(self.begun()) + self.random.randint(1, MOST_BEGUN)
        until = time.monotonic() + WAIT_S
        while len(self.begun()) < wanted and client.poll() is None:
            if time.monotonic() > until:
                raise Lost(f"nothing goes on: {self.said()}")
            time.sleep(0.002)
        time.sleep(self.random.uniform(0, 2 * TASK_S))

    def kill_client(self, executor: str | None = None) -> None:
        client = self.running(executor)
        self.wait_for_progress(client)
        children = _children(client)
        killed(client)
        self._after("client")
        _wait(lambda: not any(map(_lives, children)), "workers outlive the client that was killed")

    def kill_worker_of_pool(self) -> None:
        """The client says that a worker has ended, with exit code 1."""
        client = self.running(None)
        self.wait_for_progress(client)
        if children := _children(client):
            victim = self.random.choice(children)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            _wait(lambda: client.poll() is not None, "the client does not end")
            if client.returncode not in (0, 1):
                raise Lost(f"the client ended with {client.returncode}: {self.said()}")
        self._after("worker of a pool")

    def kill_worker_of(self, cluster: Cluster) -> None:
        """The client goes on."""
        client = self.running(cluster.address)
        self.wait_for_progress(client)
        cluster.kill_worker(self.random.randrange(WORKERS))
        before = len(self.begun())
        _wait(lambda: len(self.begun()) > before or client.poll() is not None, "the other worker does not go on")
        if client.poll() not in (None, 0):
            raise Lost(f"the client ended with {client.returncode}: {self.said()}")
        self._after("worker of a cluster")

    def kill_scheduler_of(self, cluster: Cluster) -> None:
        """The client ends with 1 and says why; with a new cluster the sweep goes on."""
        client = self.running(cluster.address)
        self.wait_for_progress(client)
        ended = client.poll() is not None
        cluster.kill_scheduler()
        _wait(lambda: client.poll() is not None, "the client does not end with its scheduler")
        if not ended and (client.returncode != 1 or "--resume continues" not in self.said()):
            raise Lost(f"without a scheduler the client ended with {client.returncode}: {self.said()}")
        cluster.start()
        self._after("scheduler")

    def finish(self, executor: str | None = None) -> None:
        """Lets the sweep end, and checks that every point has one row with its own value."""
        client = self.running(executor)
        if client.wait() != 0:
            raise Lost(f"the last client ended with {client.returncode}: {self.said()}")
        self._check()
        if len(self.committed) != self.points or any(value != _value(key) for key, value in self.committed.items()):
            raise Lost(f"{len(self.committed)} of {self.points} points have a row, or one has the value of another")

    def said(self) -> str:
        return (self.folder / "client.log").read_text()[-2000:]

    def _after(self, kind: str) -> None:
        self.kills[kind] += 1
        self._check()

    def _check(self) -> None:
        again = [key for key in self.begun()[self._seen :] if key in self.committed] if self.committed else []
        if again:
            raise Lost(f"committed and begun again: {again[:3]}")
        self._seen = len(self.begun())
        rows = self._rows()
        if changed := [key for key, value in self.committed.items() if rows.get(key) != value]:
            raise Lost(f"committed and gone or changed: {changed[:3]}")
        self.committed = rows
        if unasked := set(rows) - set(self.begun()):
            raise Lost(f"never begun, and committed: {sorted(unasked)[:3]}")
        if self.repeated > HANDED_OUT * self.kills.total():
            raise Lost(f"{self.repeated} points began again after {self.kills.total()} kills")

    _seen = 0

    @property
    def repeated(self) -> int:
        begun = self.begun()
        return len(begun) - len(set(begun))

    def _rows(self) -> dict[str, float]:
        """The step times in the file by the fields of their points, from a copy, so that nothing is mended by reading."""
        if not self.file.exists():
            return {}
        with TemporaryDirectory(dir=self.folder) as copy:
            for part in (self.file, self.file.with_name(f"{self.file.name}-wal")):
                if part.exists():
                    shutil.copy(part, copy)
            database = sqlite3.connect(Path(copy) / self.file.name)
            rows = database.execute("SELECT fields, step_time_s FROM sweep").fetchall()
            hashes, distinct = database.execute("SELECT count(hash), count(DISTINCT hash) FROM sweep").fetchone()
            sound = database.execute("PRAGMA integrity_check").fetchone()
            database.close()
        found = {"{job.global_batch} {job.sequence_length}".replace("job.", "").format(**_plain(text)): s for text, s in rows}
        if sound != ("ok",) or hashes != distinct or len(found) != len(rows):
            raise Lost(f"{len(rows)} rows, {distinct} hashes, {len(found)} points; integrity: {sound}")
        return found


def _plain(text: str) -> dict[str, int]:
    return {name.removeprefix("job."): value for name, value in json.loads(text).items()}


def _value(key: str) -> float:
    batch, length = map(int, key.split())
    return float(batch * length)


def _children(process: Process) -> list[int]:
    """The workers of a client, by /proc, which only Linux has."""
    tasks = Path(f"/proc/{process.pid}/task")
    try:
        return sorted(int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split())
    except OSError:
        return []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait(condition: Callable[[], bool], message: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise Lost(message)
        time.sleep(0.01)


def in_processes(folder: Path, kills: int, seed: int) -> Victim:
    """Kills clients and the workers of their pools in turn."""
    victim = Victim(folder, kills, seed)
    for number in range(kills):
        victim.kill_client() if number % 2 else victim.kill_worker_of_pool()
    victim.finish()
    return victim


def on_a_cluster(folder: Path, kills: int, seed: int) -> Victim:
    """Kills workers of a cluster, clients and schedulers: of six kills three, two and one."""
    victim = Victim(folder, kills, seed)
    found = Cluster(victim.env, folder)
    try:
        for number in range(kills):
            if number % 6 == 5:
                victim.kill_scheduler_of(found)
            elif number % 2:
                victim.kill_client(found.address)
            else:
                victim.kill_worker_of(found)
        victim.finish(found.address)
    finally:
        found.close()
    return victim
