"""What-ifs: each is the scenario that a user would write for it; caps are named; what says nothing is refused at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import simulator as sim
from simulator.commands._what_if import print_what_if
from simulator.errors import UserError
from simulator.figures.drawing import save
from simulator.figures.tornado import tornado
from simulator.study import what_if as what_if_module

from ..commandline import SMALL
from ..commands.test_cli import trainsim

MODEL = {"name": "small", "layers": 8, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 32000}
CLUSTER = {
    "gpu": "h100", "gpus_per_node": 2, "nodes": 4, "intra_node": "NVSwitch 450 GB/s", "shape": "rail-optimized",
    "inter_node": "2x100 Gbit/s",
}  # fmt: skip
SCENARIO: dict[str, Any] = {
    "model": MODEL,
    "cluster": CLUSTER,
    "plan": {"tp": 2, "pp": 1, "overlap": {"dp": False}},
    "job": {"sequence_length": 4096, "global_batch": 64},
    "framework": "megatron-core-2025",
}


def step_s(**changes: Any) -> float:
    run = sim.scenario({**SCENARIO, **changes}).simulate()  # type: ignore[union-attr]
    return float(run.metrics.step_time_s)


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ("nic=x2", {"cluster": {**CLUSTER, "inter_node": "2x200 Gbit/s"}}),
        ("nvlink=x0.5", {"cluster": {**CLUSTER, "intra_node": "NVSwitch 225 GB/s"}}),
        ("gpu=x2", {"cluster": {**CLUSTER, "gpu": {"name": "h100", "site_scalar": 0.5}}}),
        ("plan.pp=2", {"plan": {**SCENARIO["plan"], "pp": 2}}),
        ("plan={tp: 4}", {"plan": {**SCENARIO["plan"], "tp": 4}}),
        ("perturb=[{rank: 3, speed: 0.5}]", {"perturb": [{"rank": 3, "speed": 0.5}]}),
        ("framework=megatron-lm-2023", {"framework": "megatron-lm-2023"}),
    ],
)
def test_a_what_if_is_the_scenario_that_one_would_write(change: str, written: dict[str, Any]) -> None:
    (outcome,) = sim.what_if(SCENARIO, [change]).outcomes
    assert outcome.step_time_s == step_s(**written)
    assert outcome.fraction == outcome.step_time_s / step_s() - 1 != 0


def test_a_change_is_measured_as_the_run_was() -> None:
    """The first step from a standing start is not that of a long run, and its changes are first steps too."""
    scenario = {**SCENARIO, "plan": {"tp": 2, "pp": 2, "schedule": "zb-h1", "optimizer": "post-validated"}}
    run = sim.scenario(scenario).simulate(steps=1)  # type: ignore[union-attr]
    assert run.metrics.step_time_s != sim.scenario(scenario).simulate().metrics.step_time_s  # type: ignore[union-attr]
    found = sim.what_if(scenario, ["plan.tp=2", "gpu=x1"], run=run)
    assert [one.fraction for one in found.outcomes] == [0, 0]
    assert [one.note for one in found.outcomes] == ["the step takes as long", "nothing changes"]


def test_a_disturbance_for_a_while_is_compared_with_a_step_that_is_measured_in_the_same_way() -> None:
    """A first step is not as long as one of a long run, so neither is the difference between the two an effect of the change."""
    scenario = {**SCENARIO, "plan": {"tp": 2, "pp": 2, "schedule": "zb-h1", "optimizer": "post-validated"}}
    brief, never = '{rank: 0, speed: 0.5, until: "100 ms"}', "{rank: 0, speed: 1, until: 1 s}"
    found = sim.what_if(scenario, [f"perturb=[{brief}]", f"perturb=[{never}]", "plan.tp=1"])
    slow, same, lasting = found.outcomes
    first_s = sim.scenario(scenario).simulate(steps=1).metrics.step_time_s  # type: ignore[union-attr]
    assert first_s != found.run.metrics.step_time_s
    assert slow.step_time_s is not None
    assert slow.fraction == slow.step_time_s / first_s - 1 > 0
    assert (same.step_time_s, same.fraction) == (first_s, 0)
    assert "of the first step from a standing start, " in slow.note
    assert "the step takes as long; of the first step" in same.note
    assert "first step" not in lasting.note
    undone = sim.what_if({**scenario, "perturb": [{"rank": 0, "speed": 1, "until": "1 s"}]}, ["perturb=[]"]).outcomes[0]
    assert (undone.step_time_s, undone.fraction) == (first_s, 0)


def test_pcie_caps_what_a_quicker_nic_can_give() -> None:
    """Beyond the rate of PCIe, 63 GB/s, a NIC of any rate gives the same step."""
    capped, further, both = sim.what_if(SCENARIO, ["nic=x8", "nic=x32", "gpu=x1"]).outcomes
    assert capped.note == "PCIe 63 GB/s limits the NIC of 100 GB/s"
    assert further.note == "PCIe 63 GB/s limits the NIC of 400 GB/s"
    assert capped.step_time_s == pytest.approx(further.step_time_s, rel=0.01)
    assert (both.fraction, both.note) == (0, "nothing changes")


def test_quicker_launches_shorten_a_step_that_waits_for_the_host() -> None:
    tiny = {**SCENARIO, "cluster": {**CLUSTER, "nodes": 1}, "job": {"sequence_length": 64, "global_batch": 4}}
    (outcome,) = sim.what_if(tiny, "host=x2").outcomes
    assert outcome.fraction is not None
    assert outcome.fraction < -0.2
    with pytest.raises(UserError, match="launches take no time"):
        sim.what_if({name: value for name, value in tiny.items() if name != "framework"}, ["host=x2"])


def test_a_plan_that_cannot_run_says_why_and_the_others_run() -> None:
    found = sim.what_if(SCENARIO, ["job.sequence_length=1048576", "nvlink=x2"])
    failed, ran = found.outcomes
    assert failed.step_time_s is None
    assert "out of memory" in failed.note
    assert ran.step_time_s is not None
    assert found.to_pandas().change.tolist() == ["job.sequence_length=1048576", "nvlink=x2"]
    assert dict(found.summary)["nvlink=x2"].startswith(sim.what_if(SCENARIO, ["nvlink=x2"]).summary[1][1][:5])


def test_everything_that_says_nothing_is_refused_at_once() -> None:
    with pytest.raises(UserError) as refused:
        sim.what_if(SCENARIO, ["nicc=x2", "nic=2", "plan.tpp=3", "gpu=xyz", "gpu=x1000"])
    messages = [f"{fault.where}: {fault.message}" for fault in refused.value.faults]
    assert len(messages) == 5
    assert any("--what-if plan.tpp=3" in message for message in messages)
    with pytest.raises(UserError, match="uses no NIC"):
        sim.what_if({**SCENARIO, "cluster": {**CLUSTER, "nodes": 1}}, ["nic=x2"])


@pytest.mark.parametrize("command", ["run", pytest.param("explain", marks=pytest.mark.slow)])
def test_both_commands_print_and_draw_it(command: str, tmp_path: Path) -> None:
    picture = tmp_path / "tornado.png"
    args = ("capped-llama3-8b-8xh100", "--set", "job.global_batch=8", "--what-if", "gpu=x1.1", "--what-if", "nvlink=x2")
    said = trainsim(command, *args, "--tornado", picture)
    assert (said.code, picture.stat().st_size > 10_000) == (0, True)
    assert "gpu=x1.1" in said.out
    told = trainsim(command, *args, "--json").record
    assert [one["change"] for one in told["what_if"]] == ["gpu=x1.1", "nvlink=x2"]
    wrong = trainsim(command, "capped-llama3-8b-8xh100", "--tornado", picture)
    assert wrong.code == 2
    assert "add --what-if" in wrong.err


def test_a_change_of_almost_nothing_has_no_negative_zero(capsys: pytest.CaptureFixture[str]) -> None:
    found = sim.what_if(SCENARIO, ["gpu=x1.1"])
    found = replace(found, outcomes=(replace(found.outcomes[0], fraction=-1e-9),))
    print_what_if(found)
    assert "+0.00%" in capsys.readouterr().out
    assert [text.get_text().partition(",")[0] for text in tornado(found).axes[0].texts] == ["+0.00%"]


def test_a_tornado_has_a_bar_for_each_change_the_largest_on_top(tmp_path: Path) -> None:
    found = sim.what_if(SCENARIO, ["gpu=x1.1", "gpu=x2", "job.sequence_length=1048576", "gpu=x0.5"])
    figure = tornado(found)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["job.sequence_length=1048576", "gpu=x1.1", "gpu=x2", "gpu=x0.5"]
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [100 * (one.fraction or 0) for one in (found.outcomes[2], *(found.outcomes[i] for i in (0, 1, 3)))]
    save(figure, str(tmp_path / "tornado.svg"))


def test_faults_of_all_changes_name_the_option_that_was_typed_before_anything_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def simulated(*args: Any, **options: Any) -> None:
        raise AssertionError("nothing is simulated")

    monkeypatch.setattr(what_if_module, "simulate_scenario", simulated)
    with pytest.raises(UserError) as refused:
        sim.what_if(SCENARIO, ["plan.tp=3", "plan.pp=5", "job.global_batch=7", "nic=2"], ["plan.cp=1"])
    places = [fault.where for fault in refused.value.faults]
    for change in ("plan.tp=3", "plan.pp=5", "job.global_batch=7"):
        assert any(f"--what-if {change}" in place for place in places), change
    assert not any("--set plan.tp" in place for place in places)
    assert any("--what-if nic" in fault.message for fault in refused.value.faults)


def test_on_the_command_line_a_change_that_cannot_be_made_is_refused_before_the_base_is_simulated(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(
        "model: llama3-8b\ncluster: {name: dgx-h100, nodes: 1}\nplan: {tp: 2, pp: 2}\n"
        "job: {sequence_length: 2048, global_batch: 16}\n"
    )
    for command in ("run", "explain"):
        said = trainsim(command, str(file), "--what-if", "plan.tp=3", "--what-if", "plan.pp=5")
        assert (said.code, said.out) == (2, "")
        assert "--what-if plan.tp=3" in said.err
        assert "--what-if plan.pp=5" in said.err
        assert "--set" not in said.err


def test_a_quicker_nic_that_carries_nothing_is_capped_by_nothing() -> None:
    one_node = {"model": "llama3-8b", "cluster": {"name": "dgx-h100", "nodes": 1}, "plan": {"tp": 2, "pp": 2}}
    job = {"sequence_length": 1024, "global_batch": 8}
    outcomes = sim.what_if({**one_node, "job": job}, ["nic=x2", "pcie=x2"]).outcomes
    assert [(one.fraction, one.note) for one in outcomes] == [(0, "no rank waits for it")] * 2


def test_a_node_without_nics_has_what_ifs_too(tmp_path: Path) -> None:
    cluster = {"gpu": "h100", "gpus_per_node": 8, "nodes": 1, "intra_node": "NVSwitch 450 GB/s"}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**yaml.safe_load(SMALL), "cluster": cluster, "plan": {"tp": 2}}))
    said = trainsim("run", tmp_path / "one.yaml", "--what-if", "gpu=x2", "--what-if", "nvlink=x2")
    assert said.code == 0, said.err
    said = trainsim("run", tmp_path / "one.yaml", "--what-if", "nic=x2")
    assert (said.code, "a cluster of one node uses no NIC" in said.err) == (2, True)
