"""Shards of a sweep or a search: each has a file of its own, and merged they are the whole."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import UserError
from simulator.search import best_first
from simulator.study import pool, sweep
from simulator.study.shard import Shard, shard_files, shard_of

from ..commandline import SMALL, trainsim

SPACE = "tp: [1, 2]\npp: [1, 2]\nmicrobatch: [1, 2]\nschedule: [1f1b, gpipe]\nrecompute: [none]\nsplit: [even]\n"
OVER = ("--over", "plan.tp=1,2,3", "--over", "job.microbatch_size=1,2", "--workers", 1)


@pytest.fixture
def swept(tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    return "sweep", tmp_path / "scenario.yaml", *OVER


@pytest.fixture
def searched(tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    (tmp_path / "space.yaml").write_text(SPACE)
    return "search", tmp_path / "scenario.yaml", "--space", tmp_path / "space.yaml", "--workers", 1, "--top", 2


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is simulated, in order: points of sweeps, and plans of searches, but for the confirmation of the winner."""
    seen: list[Any] = []
    own, of_plan = sweep.outcome, best_first.measured
    monkeypatch.setattr(sweep, "outcome", lambda *given: seen.append(given) or own(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(best_first, "measured", lambda *given: seen.append(given) or of_plan(*given))  # type: ignore[func-returns-value]
    return seen


def test_shards_of_a_sweep_are_merged_without_simulating_anything(
    swept: tuple[object, ...], tmp_path: Path, simulated: list[Any]
) -> None:
    out = ("--output", tmp_path / "a.sqlite", "--json")
    parts = [trainsim(*swept, *out, "--shard", f"{number}/4").record["rows"] for number in (1, 2, 3, 4)]
    assert [len(rows) for rows in parts] == [2, 2, 1, 1]
    assert sorted(path.name for path in tmp_path.glob("*.sqlite")) == [f"a.{number}-of-4.sqlite" for number in (1, 2, 3, 4)]
    assert len(simulated) == 6
    merged = trainsim(*swept, *out, "--merge").record["rows"]
    assert len(simulated) == 6
    assert merged == trainsim(*swept, "--json").record["rows"]
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as database:
        assert database.execute("SELECT count(*), count(DISTINCT hash) FROM sweep").fetchone() == (6, 6)


def test_what_a_shard_lacks_is_simulated_by_the_merge(swept: tuple[object, ...], tmp_path: Path, simulated: list[Any]) -> None:
    out = ("--output", tmp_path / "a.sqlite")
    trainsim(*swept, *out, "--shard", "1/2")
    trainsim("sweep", tmp_path / "scenario.yaml", "--over", "plan.tp=1", *out, "--shard", "2/2", "--workers", 1)
    simulated.clear()
    assert trainsim(*swept, *out, "--merge", "--json").record["points"] == 6
    assert len(simulated) == 3


def test_shards_of_a_search_find_the_best_of_all(searched: tuple[object, ...], tmp_path: Path, simulated: list[Any]) -> None:
    store = ("--store", tmp_path / "p.sqlite", "--json")
    counts = [trainsim(*searched, *store, "--shard", f"{number}/2").record["plans"] for number in (1, 2)]
    simulated.clear()
    merged = trainsim(*searched, *store, "--merge").record
    assert simulated == []
    assert sum(counts) == merged["plans"]
    assert merged["best"] == trainsim(*searched, "--json").record["best"]


def test_a_search_goes_on_where_it_was(searched: tuple[object, ...], tmp_path: Path, simulated: list[Any]) -> None:
    store = ("--store", tmp_path / "p.sqlite", "--json")
    first = trainsim(*searched, *store).record
    assert "exists" in trainsim(*searched, *store).err
    simulated.clear()
    again = trainsim(*searched, *store, "--resume").record
    assert simulated == []
    assert {**again, "wall_s": 0} == {**first, "wall_s": 0}
    more = trainsim(*searched, *store, "--resume", "--objective", "memory").record
    assert more["best"] == trainsim(*searched, "--objective", "memory", "--json").record["best"]


def test_a_plan_with_other_options_is_simulated_again(searched: tuple[object, ...], tmp_path: Path, simulated: list[Any]) -> None:
    """The space has words only: options of sharding and recomputation are those of the scenario."""
    (tmp_path / "space.yaml").write_text(SPACE.replace("[none]", "[full]") + "sharding: [fsdp]\n")
    store = ("--store", tmp_path / "p.sqlite", "--json", "--resume")
    fsdp, full = "plan.sharding={{kind: fsdp, prefetch: {}}}", "plan.recompute={{scope: full, every: {}}}"
    for options in (fsdp.format(2), fsdp.format(0), full.format(1), full.format(2)):
        simulated.clear()
        again = trainsim(*searched, *store, "--set", options).record
        assert simulated
        assert again["best"] == trainsim(*searched, "--set", options, "--json").record["best"]


def test_first_steps_of_a_search_are_no_steps_of_a_long_run(searched: tuple[object, ...], tmp_path: Path) -> None:
    """The same plan beside plans with a disturbance that ends, in one store."""
    store = ("--store", tmp_path / "p.sqlite", "--json", "--resume", "--set", "framework=megatron-core-2025")
    overlapping = (*searched, "--set", "plan.optimizer=post-validated", *store)
    long, brief, again = (
        trainsim(*overlapping, "--over", over)
        for over in ("perturb=[]", "perturb=[],[{rank: 0, speed: 1, until: 1 s}]", "perturb=[]")
    )
    assert long.record["best"] == again.record["best"] != brief.record["best"]
    (plan, same) = brief.record["best"]
    assert plan["step_time_s"] == same["step_time_s"]
    assert ("first step" in brief.err, "first step" in long.err) == (True, False)
    assert (brief.record["steps"], long.record["steps"]) == (1, None)


def test_every_point_is_in_one_shard() -> None:
    for of in (1, 3, 8):
        numbers = [number for shard in range(1, of + 1) for number in Shard(shard, of).numbers(20)]
        assert sorted(numbers) == list(range(20))


@pytest.mark.parametrize(("text", "hint"), [("0/4", "1/4"), ("5/4", "4/4"), ("1/0", "1/1"), ("x/4", "3/8"), ("3", "3/8")])
def test_what_is_no_shard_is_refused_with_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(UserError, match="shard") as wrong:
        shard_of(text)
    assert hint in wrong.value.hint


def test_missing_shards_are_named(tmp_path: Path) -> None:
    for name in ("a.1-of-3.sqlite", "a.3-of-3.sqlite", "b.1-of-3.sqlite"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"1 of 3 shards are missing, the first of them a\.2-of-3\.sqlite") as wrong:
        shard_files(tmp_path / "a.sqlite")
    assert "--shard 2/3" in wrong.value.hint
    (tmp_path / "a.1-of-2.sqlite").touch()
    with pytest.raises(UserError, match="of 2 and of 3"):
        shard_files(tmp_path / "a.sqlite")
    with pytest.raises(UserError, match="no shard"):
        shard_files(tmp_path / "c.sqlite")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shard", "1/2"), "--shard needs a table in SQLite"),
        (("--merge",), "--merge needs a table in SQLite"),
        (("--merge", "--shard", "1/2", "--output", "a.sqlite"), "one of the two"),
        (("--executor", "dask://localhost:1"), "--workers is the number of processes of this machine"),
        (("--merge", "--output", "none.sqlite"), "no shard of"),
    ],
)
def test_options_that_clash_are_refused(options: tuple[str, ...], message: str, swept: tuple[object, ...]) -> None:
    said = trainsim(*swept, *options)
    assert (said.code, message in said.err) == (2, True), said.err


@pytest.mark.parametrize(
    ("executor", "message"),
    [("slurm", "no executor 'slurm'"), ("dask://here", "not an address"), ("dask://a/b:1", "not an address")],
)
def test_executors_that_do_not_exist_are_refused(executor: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SMALL)
    said = trainsim("sweep", tmp_path / "scenario.yaml", "--over", "plan.tp=1", "--executor", executor)
    assert (said.code, message in said.err) == (2, True), said.err


def test_without_dask_its_address_is_refused(swept: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.study.dask_cluster.find_spec", lambda name: None)
    said = trainsim(*swept[:-2], "--executor", "dask://localhost:1")
    assert (said.code, "pip install '.[dask]'" in said.err) == (2, True)


def test_help_says_that_an_address_is_trusted_like_code() -> None:
    for name in ("sweep", "search"):
        assert "trusted like code" in " ".join(trainsim(name, "--help").out.split())


def test_a_worker_of_another_program_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool.same_program(pool.version(), max, 1, 2) == 2
    with pytest.raises(Exception, match="different version of the program"):
        pool.same_program("another", max, 1, 2)


def test_an_address_where_no_scheduler_answers_is_bad_input(swept: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("simulator.study.dask_cluster.CONNECT_S", 0.2)
    said = trainsim(*swept[:-2], "--executor", "dask://localhost:1")
    assert (said.code, "no Dask scheduler answers at localhost:1" in said.err) == (2, True)
