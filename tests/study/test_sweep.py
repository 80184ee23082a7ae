"""Sweeps: every combination is a row, those that cannot run with their reason, and all faults of the fields are told at once."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import simulator as sim
from simulator.errors import UserError
from simulator.study.grid import grid
from simulator.study.pool import Workers, opened

from ..commandline import SMALL

WAIT_S = 10.0
SCENARIO: dict[str, Any] = yaml.safe_load(SMALL)


def test_a_row_for_every_combination_with_what_its_scenario_gives() -> None:
    over = {"plan.tp": [1, 2, 3], "job.microbatch_size": [1, 2]}
    frame = sim.sweep(SCENARIO, over)
    assert [tuple(row) for row in frame[list(over)].to_numpy()] == [(tp, size) for tp in (1, 2, 3) for size in (1, 2)]
    one = sim.scenario({**SCENARIO, "plan": {"tp": 2, "pp": 2}, "job": {**SCENARIO["job"], "microbatch_size": 2}}).simulate()
    row = frame.iloc[3]
    assert (row.status, row.step_time_s, row.mfu, row.gpus) == ("simulated", one.metrics.step_time_s, one.metrics.mfu, 16)
    assert (row.step_time_low_s, row.step_time_high_s) == one.step_time_interval_s
    assert row.peak_memory_bytes == one.peak_memory_bytes
    assert list(frame.status[4:]) == ["infeasible"] * 2
    assert "do not divide by tp x pp" in frame.reason[4]


def swallowed() -> str:
    """The work of a call that ends at Ctrl-C with the best that was found until then."""
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(WAIT_S)
    return "the best so far"


def test_ctrl_c_ends_the_work_of_this_process_also_where_a_call_swallows_it() -> None:
    before, done = signal.getsignal(signal.SIGINT), []
    tasks = iter([(1, (str, ("one",))), (2, (swallowed, ())), (3, (str, ("three",)))])
    with pytest.raises(KeyboardInterrupt), opened(Workers()) as pool:
        done.extend(pool.answers(tasks, 1))
    assert signal.getsignal(signal.SIGINT) is before
    with opened(Workers()) as pool:
        assert list(pool.answers(iter([(1, (str, ("one",)))]), 1)) == [(1, "one")]


def test_ctrl_c_waits_for_no_call_of_another_process() -> None:
    def interrupted() -> None:
        with opened(Workers(2)) as pool:
            for _ in pool.answers(iter([(1, (str, ("one",))), (2, (time.sleep, (3 * WAIT_S,)))]), 1):
                raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < WAIT_S


def test_what_does_not_fit_is_a_row_that_says_by_how_much() -> None:
    frame = sim.sweep(SCENARIO, ["model=llama3-405b"])
    with pytest.raises(sim.Infeasible) as failed:
        sim.scenario({**SCENARIO, "model": "llama3-405b"}).simulate()
    assert frame.status[0] == "out of memory"
    assert frame.over_gib[0] == failed.value.over_bytes / 2**30
    assert frame.reason[0] == str(failed.value)


OVERLAPPING: dict[str, Any] = {
    **SCENARIO, "framework": "megatron-core-2025", "plan": {"tp": 2, "pp": 2, "schedule": "zb-h1", "optimizer": "post-validated"},
}  # fmt: skip
BRIEF, NEVER = {"rank": 0, "speed": 0.1, "until": "40 ms"}, {"rank": 0, "speed": 1, "until": "1 s"}


@pytest.mark.parametrize("workers", [1, 2])
def test_t3_6_a_disturbance_for_a_while_in_some_points_makes_all_steps_first_steps(workers: int) -> None:
    """Neither the end of a disturbance nor a speed of 1 makes a first step comparable with one of a long run."""
    lone = sim.scenario(OVERLAPPING)
    long_s, first_s = (lone.simulate(steps=steps).metrics.step_time_s for steps in (None, 1))  # type: ignore[union-attr]
    assert long_s != first_s
    frame = sim.sweep(OVERLAPPING, {"perturb": [[], [NEVER], [BRIEF], [{"rank": 99, "speed": 1}]]}, workers=workers)
    assert list(frame.step_time_s[:2]) == [first_s] * 2
    assert frame.step_time_s[2] > first_s
    assert frame.status[3] == "infeasible"
    ends = sim.sweep({**OVERLAPPING, "perturb": [NEVER]}, {"perturb.0.until": ["1 s", None], "perturb.0.from": ["0 s"]})
    assert list(ends.step_time_s) == [first_s] * 2
    assert list(sim.sweep(OVERLAPPING, {"perturb": [[], [{"rank": 0, "speed": 1}]]}).step_time_s) == [long_s] * 2


def test_lists_and_mappings_are_values_too() -> None:
    found = grid(SCENARIO, ["plan.layout=[3,5],[4,4]", "plan.sharding={kind: zero1, group: 2},none", 'model.name="a,b",c'])
    assert [axis.values for axis in found.axes] == [([3, 5], [4, 4]), ({"kind": "zero1", "group": 2}, "none"), ("a,b", "c")]
    assert found.fields(next(found.points()))["plan.layout"] == "[3, 5]"


def test_all_faults_of_fields_and_values_are_told_at_once() -> None:
    over = ["plan.shedule=1f1b,zb-v", "job.microbatch=1", "plan.tp=0,2,x", "model=lama3-8b", "plan.pp", "plan.ep=1,1", "plan.cp="]
    with pytest.raises(UserError) as wrong:
        grid(SCENARIO, over)
    said = [f"{fault.where}: {fault.message}; {fault.hint}" for fault in wrong.value.faults]
    assert len(said) == 8
    for words in (
        ("--over 'plan.pp' gives no field", "--over plan.tp=1,2,4,8"),
        ("--over plan.ep: '1' occurs twice", "once"),
        ("--over plan.shedule=1f1b: plan.shedule: unknown key", "did you mean 'schedule'?"),
        ("--over job.microbatch=1: job.microbatch: unknown key", "did you mean 'microbatch_size'?"),
        ("--over plan.tp=0: plan.tp: 0 is too small", "at least 1"),
        ("--over plan.tp=x: plan.tp should be a whole number", "tensor parallelism"),
        ("--over model=lama3-8b: no model 'lama3-8b'", "did you mean 'llama3-8b'?"),
        ("--over plan.cp=null: plan.cp has no value", "give it one"),
    ):
        assert any(all(word in line for word in words) for line in said), words


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("plan.tp=1", "not fields with their values"),
        ([], "no field to sweep over"),
        (["plan.tp=1", "plan.tp=2"], "plan.tp is swept twice"),
        (["plan.sharding.group=2", "plan.sharding=zero1"], "plan.sharding holds plan.sharding.group"),
        ({"plan.tp": 4}, "gives no field with values"),
        ({"job.global_batch": list(range(1, 1001)), "job.sequence_length": range(1, 102)}, "101,000 points"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(over: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.study.grid._faults", lambda document, trust: ())
    with pytest.raises(UserError, match=message):
        grid(SCENARIO, over)


def test_values_that_only_clash_in_combination_are_rows() -> None:
    frame = sim.sweep(SCENARIO, {"plan.cp": [1, 2], "plan.cp_ulysses": [2]})
    assert list(frame.status) == ["infeasible", "infeasible"]
    assert frame.reason.str.contains("cp_ulysses").all()


def test_long_work_is_a_row_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.simulation.estimated_effort.MOST_S", 0)
    assert [sim.sweep(SCENARIO, ["plan.tp=1"], long=long).status[0] for long in (False, True)] == ["too long", "simulated"]


def test_code_that_a_scenario_names_is_refused_without_trust(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SMALL.replace("pp: 2", "pp: 2, schedule: 'mine.py:order'"))
    with pytest.raises(UserError, match="is code"):
        sim.sweep(file, ["plan.tp=1,2"])


@pytest.mark.slow
def test_processes_give_the_same_rows_in_the_same_order() -> None:
    over = {"plan.tp": [4, 1, 2, 3], "job.microbatch_size": [1, 2]}
    assert sim.sweep(SCENARIO, over, workers=2).equals(sim.sweep(SCENARIO, over))
