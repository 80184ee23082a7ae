"""What was committed stays, whichever process is killed; and any executor gives the same rows."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import simulator as sim
from simulator.errors import SimulatorError
from simulator.study import pool

from ..commandline import SMALL, trainsim
from . import counted, kills
from .cluster import Cluster, cluster, killed, started

pytestmark = pytest.mark.slow
SCENARIO: dict[str, Any] = yaml.safe_load(SMALL)
OVER = {"plan.tp": [1, 2, 3], "job.microbatch_size": [1, 2]}
SPACE = "tp: [1, 2]\npp: [1, 2, 3]\nmicrobatch: [1, 2]\nschedule: [1f1b, gpipe]\nrecompute: [none]\nsplit: [even]\n"
OF_PROCESSES, ON_A_CLUSTER = 26, 24
"""Kills: fifty in all."""


def test_kills_of_clients_and_of_workers_of_their_pools(tmp_path: Path) -> None:
    victim = kills.in_processes(tmp_path, OF_PROCESSES, seed=50)
    assert victim.kills == {"client": 13, "worker of a pool": 13}


def test_kills_on_a_dask_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    victim = kills.on_a_cluster(tmp_path, ON_A_CLUSTER, seed=51)
    assert victim.kills == {"worker of a cluster": 12, "client": 8, "scheduler": 4}


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    with cluster({}, tmp_path_factory.mktemp("dask")) as found:
        yield found


def test_a_cluster_gives_the_rows_of_this_process(dask: Cluster) -> None:
    assert sim.sweep(SCENARIO, OVER, executor=dask.address).equals(sim.sweep(SCENARIO, OVER))


def test_a_search_on_a_cluster_finds_the_same(dask: Cluster) -> None:
    space = yaml.safe_load(SPACE)
    there, here = (sim.search(SCENARIO, space=space, top=3, executor=executor) for executor in (dask.address, None))
    best = ["plan", "step_time_s", "memory_bytes"]
    assert there[best].head(3).equals(here[best].head(3))


def test_a_worker_with_another_program_refuses(dask: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "version", lambda: "another")
    with pytest.raises(SimulatorError, match="different version of the program"):
        sim.sweep(SCENARIO, OVER, executor=dask.address)


def test_any_executor_serves() -> None:
    with ThreadPoolExecutor(2) as threads:
        assert sim.sweep(SCENARIO, OVER, executor=threads, workers=2).equals(sim.sweep(SCENARIO, OVER))


def test_a_search_whose_client_is_killed_simulates_no_committed_plan_again(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    (tmp_path / "space.yaml").write_text(SPACE)
    log, file = tmp_path / "begun.log", tmp_path / "plans.sqlite"
    log.touch()
    of_space = (str(tmp_path / "scenario.yaml"), "--space", str(tmp_path / "space.yaml"), "--top", "1000")
    words = ("search", *of_space, "--store", str(file), "--resume", "--workers", "2")
    moments, committed, seen = random.Random(52), set[str](), 0
    for _ in range(5):
        client = started("tests.durable.client", *words, env={counted.LOG: str(log)}, log=tmp_path / "client.log")
        until, wanted = time.monotonic() + kills.WAIT_S, seen + moments.randint(2, 4)
        while len(log.read_text().splitlines()) < wanted and client.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        killed(client)
        begun = log.read_text().splitlines()
        assert not committed & set(begun[seen:])
        with closing(sqlite3.connect(file)) as database:
            rows = database.execute("SELECT plan FROM search WHERE step_time_s IS NOT NULL").fetchall()
        assert committed <= {plan for (plan,) in rows}
        committed, seen = {plan for (plan,) in rows}, len(begun)
    resumed, anew = trainsim(*words, "--json"), trainsim("search", *of_space, "--workers", 1, "--json")
    assert committed
    assert resumed.record["best"] == anew.record["best"]
    assert resumed.record["simulated"] == anew.record["simulated"]
