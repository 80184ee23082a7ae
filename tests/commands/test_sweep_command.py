"""`trainsim sweep`: tables that are whole or not there, SQLite that holds each outcome once, and pictures."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulator.commands import _scenario_key
from simulator.study import sweep

from ..commandline import SMALL, trainsim

OVER = ("--over", "plan.tp=1,2,3", "--workers", 1)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.yaml"
    file.write_text(SMALL)
    return file


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The scenarios that are simulated, in order."""
    seen: list[Any] = []
    own = sweep.outcome
    monkeypatch.setattr(sweep, "outcome", lambda document, effort: seen.append(document) or own(document, effort))  # type: ignore[func-returns-value]
    return seen


def test_a_table_is_what_json_says(scenario: Path, tmp_path: Path) -> None:
    rows = trainsim("sweep", scenario, *OVER, "--json").record
    assert (rows["over"], rows["points"]) == ({"plan.tp": [1, 2, 3]}, 3)
    trainsim("sweep", scenario, *OVER, "--output", tmp_path / "a.csv")
    written = pd.read_csv(tmp_path / "a.csv").astype(object).where(lambda frame: frame.notna(), None)
    assert written.to_dict(orient="records") == rows["rows"]
    pytest.importorskip("pyarrow")
    trainsim("sweep", scenario, *OVER, "--output", tmp_path / "a.parquet")
    stored = pd.read_parquet(tmp_path / "a.parquet")
    assert stored.astype(object).where(stored.notna(), None).to_dict(orient="records") == rows["rows"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.parquet", "scenario.yaml"]


def test_sqlite_holds_each_scenario_once_and_resume_simulates_the_others(
    scenario: Path, tmp_path: Path, simulated: list[Any]
) -> None:
    out = tmp_path / "a.sqlite"
    assert trainsim("sweep", scenario, *OVER, "--output", out).code == 0
    more = ("sweep", scenario, "--over", "plan.tp=2,4,1", "--over", "plan.pp=2", "--workers", 1)
    simulated.clear()
    resumed, anew = trainsim(*more, "--output", out, "--resume", "--json"), trainsim(*more, "--json")
    assert resumed.record == anew.record
    assert [document.at(("plan", "tp")) for document in simulated] == [4, 2, 4, 1]
    with sqlite3.connect(out) as database:
        stored = database.execute("SELECT json_extract(fields, '$.\"plan.tp\"'), status, step_time_s FROM sweep").fetchall()
    known = {row["plan.tp"]: row for row in anew.record["rows"]}
    assert [row[:2] for row in stored] == [(1, "simulated"), (2, "simulated"), (3, "infeasible"), (4, "simulated")]
    assert all(row[2] == known[row[0]]["step_time_s"] for row in stored if row[0] in known)


def test_another_version_or_another_file_is_another_scenario(
    scenario: Path, tmp_path: Path, simulated: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("--output", tmp_path / "a.sqlite", "--resume")
    model = tmp_path / "model.yaml"
    model.write_text("{layers: 8, hidden: 1024, heads: 16, vocab: 32000}")
    once = ("sweep", scenario, "--over", f"model={model}", *out)
    for done in (1, 0):
        assert trainsim(*once).code == 0
        assert len(simulated) == done
        simulated.clear()
    model.write_text("{layers: 8, hidden: 2048, heads: 16, vocab: 32000}")
    assert trainsim(*once).code == 0
    monkeypatch.setattr(_scenario_key, "version", lambda: "another")
    assert trainsim(*once).code == 0
    assert len(simulated) == 2


def test_first_steps_and_steps_of_a_long_run_are_kept_apart(scenario: Path, tmp_path: Path) -> None:
    """Each sweep and each shard knows all points, and simulates the same number of steps for each of them."""
    scenario.write_text(SMALL.replace("tp: 2", "tp: 2, schedule: zb-h1, optimizer: post-validated")
                        + "framework: megatron-core-2025\n")  # fmt: skip
    first, both = ("--over", "perturb=[]"), ("--over", 'perturb=[],[{rank: 0, speed: 1, until: "1 s"}]')
    out = ("--output", tmp_path / "a.sqlite", "--workers", 1, "--json")
    long, brief, again = (trainsim("sweep", scenario, *over, *out, "--resume") for over in (first, both, first))
    long_s, brief_s, again_s = ([row["step_time_s"] for row in said.record["rows"]] for said in (long, brief, again))
    assert long_s == again_s != brief_s[:1] == brief_s[1:]
    assert ("first step" in brief.err, "first step" in long.err) == (True, False)
    assert (brief.record["steps"], long.record["steps"]) == (1, None)
    shards = ("--output", tmp_path / "b.sqlite", "--workers", 1)
    for number in (1, 2):
        assert trainsim("sweep", scenario, *both, *shards, "--shard", f"{number}/2").code == 0
    assert trainsim("sweep", scenario, *both, *shards, "--merge", "--json").record == brief.record


def test_what_is_no_table_of_a_sweep_stays_as_it_is(scenario: Path, tmp_path: Path) -> None:
    text, other = tmp_path / "text.sqlite", tmp_path / "other.sqlite"
    text.write_text("not a database, but text that is long enough to be one " * 20)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE sweep (mine)")
    for file, message in ((text, "not an SQLite database"), (other, "not a table of a sweep")):
        before = file.read_bytes()
        said = trainsim("sweep", scenario, *OVER, "--output", file, "--resume")
        assert (said.code, message in said.err) == (2, True)
        assert "exists" in trainsim("sweep", scenario, *OVER, "--output", file).err
        assert file.read_bytes() == before


def test_what_a_disk_has_changed_is_no_result(scenario: Path, tmp_path: Path) -> None:
    """Any byte of a row, of the index or of the file's length: the table is refused, or it gives what it held."""
    out = tmp_path / "a.sqlite"
    before = trainsim("sweep", scenario, *OVER, "--output", out, "--json").record
    whole, draw = out.read_bytes(), random.Random(1)
    for number in range(40):
        damaged = bytearray(whole)
        if number % 4:
            damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        else:
            del damaged[draw.randrange(1, len(whole)) :]
        out.write_bytes(damaged)
        said = trainsim("sweep", scenario, *OVER, "--output", out, "--resume", "--json")
        assert said.code in (0, 2), said.err
        assert said.code == 2 or said.record == before
    out.write_bytes(whole)
    with closing(sqlite3.connect(out)) as database, database:
        database.execute("UPDATE sweep SET step_time_s = step_time_s * 1.0000001 WHERE status = 'simulated'")
    said = trainsim("sweep", scenario, *OVER, "--output", out, "--resume")
    assert (said.code, "is damaged: a row is not as it was written" in said.err) == (2, True)


def test_one_process_writes_to_a_table(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.sqlite"
    trainsim("sweep", scenario, "--over", "plan.tp=3", "--output", out)
    with sqlite3.connect(out) as database:
        database.execute("BEGIN EXCLUSIVE")
        said = trainsim("sweep", scenario, *OVER, "--output", out, "--resume")
    assert (said.code, "another program writes" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resume", "--output", "a.csv"), "SQLite"),
        (("--resume",), "SQLite"),
        (("--output", "a.txt"), ".csv, .parquet, .sqlite"),
        (("--plot", "a.gif"), ".png"),
        (("--plot", "a.png", "--over", "plan.pp=1", "--over", "plan.cp=1"), "3 fields cannot be drawn"),
        (("--workers", "0"), "nearest legal: --workers 1"),
        (("--over", "plan.pp=two"), "plan.pp should be a whole number"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_simulated(
    options: tuple[str, ...], message: str, scenario: Path, simulated: list[Any]
) -> None:
    said = trainsim("sweep", scenario, *OVER, *options)
    assert (said.code, message in said.err, simulated) == (2, True, [])


def test_pictures_of_one_field_and_of_two(scenario: Path, tmp_path: Path) -> None:
    """A line and a heat map, with points that cannot run."""
    for number, over in enumerate((["plan.tp=1,2,3"], ["plan.tp=1,3", "plan.schedule=1f1b,gpipe"])):
        picture = tmp_path / f"{number}.png"
        said = trainsim("sweep", scenario, *(word for one in over for word in ("--over", one)), "--workers", 1, "--plot", picture)
        assert (said.code, picture.stat().st_size > 5000) == (0, True)


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.sqlite"
    sizes = ",".join(str(32 * n) for n in range(1, 25))
    words = ["sweep", str(scenario), "--over", f"job.global_batch={sizes}", "--output", str(out), "--resume", "--workers", "2"]
    process = subprocess.Popen([sys.executable, "-m", "simulator", *words], stdout=subprocess.DEVNULL, start_new_session=True)
    while not out.exists() or out.stat().st_size == 0:
        time.sleep(0.05)
    time.sleep(1.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert trainsim(*words).code == 0
    with sqlite3.connect(out) as database:
        assert database.execute("SELECT count(*), count(DISTINCT fields) FROM sweep").fetchone() == (24, 24)
