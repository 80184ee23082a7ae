"""What differs between runs, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import simulator as sim
from simulator.units import show_s

from ..commandline import SMALL, trainsim
from ..small_scenarios import scenario

USUAL = scenario(plan=sim.Plan(tp=2, pp=2))


def test_a_run_differs_from_itself_in_nothing() -> None:
    run = USUAL.simulate()
    again = USUAL.simulate()
    found = sim.compare({"a": run, "b": again})
    assert not found.scenario
    assert not found.result
    assert found.to_pandas().empty


def test_what_was_changed_is_listed_with_what_follows_from_it() -> None:
    other = replace(USUAL, plan=sim.Plan(tp=2, pp=2, layout=(5, 3)))
    found = sim.compare({"a": USUAL.simulate(), "b": other.simulate()})
    assert found.scenario == {"plan.layout": ("even", (5, 3))}
    first, second = found.result["stage 0.compute_s"]
    assert second / first == pytest.approx(5 / 4, rel=0.1)
    assert "operator qkv.s" not in found.result, "all ranks together do the same work"
    assert found.as_dict()["result"]["step_time_s"].keys() == {"a", "b"}
    assert "step_time_s" in found.to_pandas().index


def test_steps_that_are_measured_in_different_ways_say_so() -> None:
    """With a disturbance that ends the first step is measured; other runs, of one step or of several, are of a long run."""
    plan = sim.Plan(pp=2, schedule="zb-h1", optimizer="post-validated")
    brief, usual = (scenario(plan=plan, perturb=of).simulate() for of in ((sim.Perturb(rank=0, speed=1.0, until_s=1.0),), ()))
    first = "the first step, from a standing start to the last arrival"
    assert sim.compare({"one": usual, "other": brief}).result["measured"] == ("a step of a long run", first)
    assert "measured" not in sim.compare({"one": usual, "other": scenario().simulate()}).result
    assert "measured" not in sim.compare({"one": brief, "other": scenario(plan=plan).simulate(steps=1)}).result


def test_what_stands_behind_a_name_is_compared_too() -> None:
    """Two models, links or boards that a scenario calls by one name."""
    text = "plan: {pp: 2}\njob: {sequence_length: 256, global_batch: 32}"
    model = {"layers": 8, "hidden": 512, "heads": 8, "ffn_hidden": 1408, "vocab": 4096}
    cluster = {"name": "dgx-h100", "nodes": 2}
    base = {"model": model, "cluster": cluster, **yaml.safe_load(text)}
    for change, field, values in (
        ({"model": {**model, "layers": 10}}, "model.layers", (8, 10)),
        ({"cluster": {**cluster, "inter_node": "8x100 Gbit/s"}}, "cluster.nic.bytes_per_s", (50e9, 12.5e9)),
        ({"cluster": {**cluster, "gpu": {"name": "h100", "tdp": "500 W"}}}, "cluster.gpu.tdp_w", (700, 500)),
        ({"cluster": {**cluster, "oversubscription": 2, "nodes_per_pod": 1}}, "cluster.oversubscription", (1, 2)),
    ):
        found = sim.compare({"a": sim.scenario(base).simulate(), "b": sim.scenario({**base, **change}).simulate()})
        assert found.scenario[field] == values
        assert found.as_dict()["scenario"][field] == dict(zip("ab", values, strict=True))


def test_what_only_one_run_has_is_none_in_the_other() -> None:
    other = replace(USUAL, plan=sim.Plan(tp=1, pp=2))
    found = sim.compare({"a": USUAL.simulate(), "b": other.simulate()})
    assert found.result["axis tp.s"][1] is None


def test_a_word_and_the_mapping_it_stands_for_are_equal() -> None:
    other = replace(USUAL, plan=sim.Plan(tp=2, pp=2, sharding=sim.Sharding(kind="none")))
    assert not sim.compare({"a": USUAL.simulate(), "b": other.simulate()}).scenario


def test_no_run_is_no_comparison() -> None:
    with pytest.raises(sim.UserError, match="no run"):
        sim.compare({})


def test_three_scenarios_show_what_differs_between_any_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last is equal to the first: every change is that of a run from the first."""
    monkeypatch.chdir(tmp_path)
    files = [Path(name) for name in ("a.yaml", "b.yaml", "c.yaml")]
    for file, text in zip(files, (SMALL, SMALL.replace("tp: 2", "tp: 1"), SMALL), strict=True):
        file.write_text(text)
    lines = trainsim("compare", *files).out.splitlines()
    first, other, last = (trainsim("run", file, "--json").record["step_time_s"] for file in files)
    cells = [line.split()[1:] for line in lines if line.startswith("step_time_s")]
    assert cells == [[*show_s(first).split(), *show_s(other).split(), f"{other / first - 1:+.1%}", *show_s(last).split(), "="]]
    assert {"mfu", "peak_memory_gib"} <= {line.split()[0] for line in lines if line}


def test_tables_of_many_scenarios_are_no_wider_than_a_page(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    files = [folder / f"{tp}.yaml" for tp in (1, 2, 4)]
    for file in files:
        file.write_text(SMALL.replace("tp: 2", f"tp: {file.stem}, layout: [1, 7]"))
    lines = trainsim("compare", *files, *files).out.splitlines()
    assert max(map(len, lines)) <= 120
    assert all(any(f"/{file.name}" in line for line in lines) for file in files)
    times = [line.split() for line in lines if line.startswith("step_time_s")]
    assert len(times) > 1
    assert len({(value, unit) for _, value, unit, *_ in times}) == 1, "the first run, which changes are from, is in every table"


def test_values_have_units_and_perturbations_are_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = "perturb: [{rank: 3, speed: 0.6}, {rank: 1, speed: 0.5, from: 1 s, until: 3 s}]\n"
    slow_links = SMALL.replace("nodes: 2", "nodes: 2, inter_node: 8x100 Gbit/s")
    for name, text in (("a", SMALL), ("b", slow_links + changes)):
        Path(f"{name}.yaml").write_text(text)
    out = trainsim("compare", "a.yaml", "b.yaml").out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert " ".join(rows["perturb.0"]) == "- rank 3 at 0.6 of its speed"
    assert " ".join(rows["perturb.1"]) == "- rank 1 at 0.5 of its speed, from 1.000 s until 3.000 s"
    assert rows["cluster.nic.bytes_per_s"][:4] == ["50", "GB/s", "12.5", "GB/s"]
    assert rows["step_time_s"][1] in ("s", "ms")
    runs = {name: sim.load(f"{name}.yaml").simulate() for name in "ab"}
    assert dict(sim.compare(runs).summary)["perturb.0"] == "None | rank 3 at 0.6 of its speed"
    assert rows["mfu"][0].endswith("%")


def test_rates_of_clocks_and_of_arithmetic_have_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [Path(f"{gpu}.yaml") for gpu in ("h100", "a100")]
    job = "job: {global_batch: 8, sequence_length: 256}"
    for file in files:
        file.write_text(f"{{model: llama3.2-1b, cluster: {{name: dgx-{file.stem}, nodes: 1}}, {job}}}")
    out = trainsim("compare", *files).out
    assert re.search(r"^cluster.gpu.clock_hz +1.98 GHz +1.41 GHz ", out, re.M)
    assert re.search(r"^cluster.gpu.peak_flop_per_s.bf16 +989.4 TFLOP/s +312 TFLOP/s ", out, re.M)


def test_what_is_not_listed_is_counted(tmp_path: Path) -> None:
    for name, text in (("a", SMALL), ("b", SMALL.replace("global_batch: 32", "global_batch: 64"))):
        (tmp_path / f"{name}.yaml").write_text(text)
    files = tmp_path / "a.yaml", tmp_path / "b.yaml"
    said, record = trainsim("compare", *files).out, trainsim("compare", *files, "--json").record
    listed = [line for line in said.partition("Results differ")[2].splitlines()[2:] if line and not line.startswith("Not listed")]
    left_out = sum(int(number) for number in re.findall(r"(\d+) (?:result|operator)s?", said.partition("Not listed: ")[2]))
    assert left_out == len(record["result"]) - len(listed) > 0
    assert max(map(len, said.splitlines())) <= 120


def test_a_field_that_states_its_default_is_no_difference() -> None:
    base: dict[str, Any] = {
        "model": "llama3-8b",
        "cluster": {"name": "dgx-h100", "nodes": 1},
        "plan": {"tp": 2, "pp": 4},
        "job": {"sequence_length": 1024, "global_batch": 8},
    }
    stated = {**base["plan"], "dp": 1, "etp": 2, "sequence_parallel": True}
    fewer = {**base["plan"], "pp": 2, "dp": 2}
    open_, said, other = (sim.scenario({**base, "plan": plan}).simulate() for plan in (base["plan"], stated, fewer))  # type: ignore[union-attr]
    assert sim.compare({"open": open_, "said": said}).scenario == {}
    assert sim.compare({"open": open_, "other": other}).scenario == {"plan.pp": (4, 2), "plan.dp": (1, 2)}


@pytest.mark.parametrize("shape", ["two-sites-h100", "dgx-h100", "polaris", "gb200-nvl72"])
def test_clusters_of_every_kind_can_be_compared(shape: str, tmp_path: Path) -> None:
    """Sites in a wide-area network have modules in their description, which cannot be copied."""
    job = {**yaml.safe_load(SMALL)["job"], "global_batch": sim.cluster(shape).gpus}
    data = {**yaml.safe_load(SMALL), "cluster": {"name": shape}, "plan": {}, "job": job}
    for name, layers in (("one", 4), ("other", 2)):
        changed = {**data, "model": {**yaml.safe_load(SMALL)["model"], "layers": layers}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(changed))
    said = trainsim("compare", tmp_path / "one.yaml", tmp_path / "other.yaml", "--allow-oom", "--json")
    assert said.code == 0, said.err
    assert said.record["scenario"]["model.layers"]


def test_a_row_of_nothing_in_one_run_that_the_other_has_not_is_no_difference(tmp_path: Path) -> None:
    data = {**yaml.safe_load(SMALL), "cluster": {"name": "polaris", "nodes": 1}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**data, "plan": {"pp": 4}}))
    job = {**yaml.safe_load(SMALL)["job"], "gradient_clipping": False}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({**data, "plan": {"tp": 4}, "job": job}))
    said = trainsim("compare", tmp_path / "one.yaml", tmp_path / "other.yaml")
    assert said.code == 0, said.err


@pytest.mark.parametrize(("pp", "listed"), [(2, True), (4, False)])
def test_stages_are_listed_where_the_runs_have_equally_many(pp: int, *, listed: bool, tmp_path: Path) -> None:
    """The first of two stages and the first of four are different parts of the model."""
    (tmp_path / "one.yaml").write_text(SMALL)
    (tmp_path / "other.yaml").write_text(SMALL.replace("tp: 2, pp: 2", f"tp: 1, pp: {pp}"))
    said = trainsim("compare", tmp_path / "one.yaml", tmp_path / "other.yaml")
    assert ("stage 0.compute_s" in said.out) == listed
    assert ("the times of stages, of which the runs have 2 and 4" in " ".join(said.out.split())) == (not listed)
    assert "stage 0.compute_s" in trainsim("compare", tmp_path / "one.yaml", tmp_path / "other.yaml", "--json").record["result"]
