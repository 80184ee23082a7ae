"""Scenario files that a tired person writes: each is refused with its place, the offending value and what to write instead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..commandline import SMALL, Said, trainsim
from .bad import BAD, Bad


def file_of(bad: Bad, folder: Path) -> Path:
    file = folder / "scenario.yaml"
    assert bad.old in SMALL
    file.write_text(SMALL.replace(bad.old, bad.new, 1), encoding="utf-8")
    return file


@pytest.mark.parametrize("case", BAD)
def test_a_fault_has_its_place_its_value_and_a_hint(case: str, tmp_path: Path) -> None:
    bad = BAD[case]
    file = file_of(bad, tmp_path)
    said = trainsim("run", file)
    assert said.code == bad.code, said.err
    assert not said.out
    for words in bad.says:
        assert words in said.err
    assert "hint: " in said.err
    assert max(map(len, said.err.splitlines())) < 600
    refuses_plainly(said, file if bad.code == 2 else None)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", BAD)
def test_in_json_the_same_is_said_once(case: str, tmp_path: Path) -> None:
    bad = BAD[case]
    file = file_of(bad, tmp_path)
    said = trainsim("run", file, "--json")
    assert said.code == bad.code
    if bad.code == 3:
        assert said.record["over_gib"] > 0
        return
    faults = said.record["faults"]
    assert all(fault["where"].startswith(f"{file}:") and fault["hint"] for fault in faults)
    told = "\n".join(f"{fault['where']}: {fault['message']} {fault['hint']}" for fault in faults)
    assert all(words in told for words in bad.says)
    assert said.err == trainsim("run", file).err


def refuses_plainly(said: Said, file: Path | None) -> None:
    """No traceback, and every fault of a file at its line and column."""
    assert "Traceback" not in said.err
    assert "Error" not in said.err
    if file:
        faults = [line for line in said.err.splitlines() if "hint:" not in line and not re.fullmatch(r"error: \d+ faults", line)]
        assert faults
        assert all(re.match(rf"(error: )?{re.escape(str(file))}:\d+:\d+: ", line) for line in faults)


@pytest.mark.parametrize("content", [bytes(range(256)) * 4, SMALL.encode("utf-16"), b"model: \xff\n", b"a: \x00\n"])
def test_what_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_bytes(content)
    said = trainsim("run", file)
    assert said.code == 2
    assert re.search(rf"{re.escape(str(file))}:[12]", said.err)
    assert "save it as YAML in UTF-8" in said.err
    refuses_plainly(said, None)


MANY = """\
model: {layers: 8, hidden: wide, heads: 16, vocab: 32000, hedas: 3}
cluster: {name: dgx-h10, nodes: 0}
plan: {tp: 0, shedule: 1f1b, schedule: 1f1c, sharding: zeroo, overlap: {dp: no}, rank_order: tp-xx}
job: {sequence_length: 12:30, dtype: bf61}
fidelity: {collectives: exact}
perturb:
  - {rank: -1, speed: 2}
  - {link: a>b}
farmework: x
"""


def test_all_faults_of_a_file_come_in_one_go_from_top_to_bottom(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(MANY)
    faults = trainsim("run", file, "--json").record["faults"]
    places = [tuple(map(int, fault["where"].removeprefix(f"{file}:").split(":"))) for fault in faults]
    assert places == sorted(places)
    told = [fault["message"].replace(":", " ").split()[0] for fault in faults]
    assert told == [
        "model.hidden", "model.hedas", "no", "plan.tp", "plan.shedule", "plan.schedule", "plan.sharding", "plan.overlap.dp",
        "plan.rank_order", "job.sequence_length", "job.dtype", "fidelity.collectives", "perturb.0.rank", "perturb.1", "farmework",
    ]  # fmt: skip


def test_faults_of_several_files_come_in_one_go(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text("memory: 80\n")
    (tmp_path / "cluster.yaml").write_text("gpu: gpu.yaml\ngpus_per_node: 0\nintra_node: NVSwitch 450 GB/s\n")
    (tmp_path / "base.yaml").write_text("model: llama3-8b\ncluster: cluster.yaml\nplan: {tp: 0}\n")
    file = tmp_path / "scenario.yaml"
    file.write_text("extends: base.yaml\nplan: {pp: 0}\n")
    said = trainsim("run", file)
    for place in ("gpu.yaml:1:1", "cluster.yaml:2:1", "base.yaml:3:8", "scenario.yaml:2:8"):
        assert f"{place}: " in said.err


@pytest.mark.parametrize("case", ["a key with a typo", "deep nesting", "no memory"])
def test_the_program_itself_refuses_plainly(case: str, tmp_path: Path) -> None:
    bad = BAD[case]
    file = file_of(bad, tmp_path)
    command = [sys.executable, "-m", "simulator", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)
    assert done.returncode == bad.code
    assert not done.stdout
    assert all(words in done.stderr for words in bad.says)
    assert "Traceback" not in done.stderr
