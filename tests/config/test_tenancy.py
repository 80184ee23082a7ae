"""Several jobs in one file: what stands beside them, what is wrong in one of them, and the JSON Schema of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.config.document import parse
from simulator.config.scenario import json_schema
from simulator.config.tenancy import KEYS, SHARED, Tenancy
from simulator.errors import UserError
from simulator.simulation.jobs import simulate

from ..commandline import trainsim

MODEL = "{layers: 8, hidden: 1024, heads: 16, vocab: 32000}"
JOBS = f"""\
cluster: {{name: dgx-h100, nodes: 2}}
jobs:
  - {{name: whole, model: {MODEL}, gpus: 8, plan: {{tp: 2, pp: 2}}, job: {{sequence_length: 1024, global_batch: 32}}}}
  - {{name: part, model: {MODEL}, gpus: [8, 9, 10, 11], job: {{sequence_length: 1024, global_batch: 16}}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    return file


def test_the_jobs_themselves_run(file: Path) -> None:
    said = trainsim("run", file)
    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize("setting", ["plan.tp=2", "plan.tpp=2", "model=nosuch", "job.global_batch=8"])
def test_a_section_of_one_job_beside_jobs_is_refused(file: Path, setting: str) -> None:
    said, key = trainsim("run", file, "--set", setting), setting.partition("=")[0].partition(".")[0]
    assert said.code == 2
    assert f"--set {setting}: {key}: it has no effect beside jobs" in said.err
    assert f"jobs.0.{key}" in said.err


def test_a_key_beside_jobs_that_nobody_knows_is_refused(file: Path) -> None:
    said = trainsim("run", file, "--set", "fidelty.collectives=closed")
    assert said.code == 2
    assert "--set fidelty.collectives=closed: fidelty: unknown key" in said.err
    assert "did you mean 'fidelity'?" in said.err


def test_all_faults_beside_jobs_are_told_at_once_with_those_of_the_jobs(file: Path) -> None:
    file.write_text(f"{JOBS.replace('tp: 2', 'tpp: 2')}plan: 7\nfoo: 1\n")
    faults = trainsim("run", file, "--set", "model=nosuch", "--json").record["faults"]
    assert [(fault["where"], fault["message"].partition(":")[0]) for fault in faults] == [
        ("--set model=nosuch", "model"),
        (f"{file}:3:{JOBS.splitlines()[2].index('tp: 2') + 1}", "plan.tpp"),
        (f"{file}:5:1", "plan"),
        (f"{file}:6:1", "foo"),
    ]


def test_jobs_beside_a_scenario_that_is_extended_keep_what_they_share(file: Path) -> None:
    above = file.parent / "above.yaml"
    above.write_text("extends: jobs.yaml\nfidelity: {collectives: closed}\n")
    assert trainsim("run", above).code == 0


@pytest.mark.parametrize(
    ("settings", "says", "hint"),
    [
        (["jobs.1.plan.tp=8"], "part: plan: tp x pp = 8 GPUs, but the job has 4", "give the job gpus: 8, or lower a degree"),
        (["jobs.1.plan.tp=16"], "part: plan: tp x pp = 16 GPUs, but the job has 4", "give the job gpus: 16, or lower"),
        (["jobs.1.plan.tp=32"], "part: plan: tp x pp = 32 GPUs, but the job has 4", "hint: lower a degree"),
        (["jobs.1.plan.dp=2"], "part: plan.dp: tp x pp x dp = 2 leaves 2 of 4 GPUs idle", "dp: 4, or leave it out"),
        (["jobs.0.plan.dp=3"], "whole: plan: tp x pp x dp = 12 GPUs, but the job has 8", "dp: 2, or leave it out"),
        (["jobs.1.plan.pp=3"], "part: plan: 4 GPUs do not divide by tp x pp = 3", "a product of 2 or 4, or gpus: 3"),
        (["jobs.1.plan.placement=[0, 1]"], "part: plan.placement: GPU 2 has no rank, and the job has 4 GPUs", "0 to 3"),
    ],
)
def test_faults_between_fields_of_a_job_say_its_name_and_its_gpus(file: Path, settings: list[str], says: str, hint: str) -> None:
    said = trainsim("run", file, *(word for setting in settings for word in ("--set", setting)))
    assert said.code == 2
    assert says in said.err
    assert hint in said.err
    assert "nodes:" not in said.err


def test_a_gpu_that_stands_twice_in_a_list_belongs_to_no_other_job(file: Path) -> None:
    (fault,) = trainsim("run", file, "--set", "jobs.1.gpus=[9, 9, 10, 11]", "--json").record["faults"]
    assert fault["message"] == "jobs: GPU 9 is listed twice for part"
    assert fault["hint"] == "list each GPU once"


def test_faults_of_several_jobs_are_told_at_once_and_those_of_the_cluster_once(file: Path) -> None:
    own = ["--set", "jobs.0.plan.tp=3", "--set", "jobs.1.job.global_batch=15"]
    faults = trainsim("run", file, *own, "--json").record["faults"]
    assert {fault["message"].partition(":")[0] for fault in faults} == {"whole", "part"}
    shared = trainsim("run", file, "--set", "cluster.gpu.tdp=60 W", "--json").record["faults"]
    assert [fault["message"].partition(":")[0] for fault in shared] == ["cluster.gpu.tdp"]


PERTURB = """\
perturb:
  - {rank: 16, speed: 0.5}
  - {link: "node0/nic0>leafX", capacity: 0.5}
  - {link: nonsense, capacity: 0.5}
  - {link: "node0/nic0>leaf0", capacity: 5}
"""


def test_faults_of_perturbations_are_told_once_with_their_places_and_those_of_the_jobs(file: Path) -> None:
    """Every field of a perturbation is checked on the whole cluster, whichever jobs use the rank or the link."""
    file.write_text(f"{JOBS.replace('tp: 2', 'tp: 3')}{PERTURB}", encoding="utf-8")
    faults = trainsim("run", file, "--json").record["faults"]
    of_perturb = [fault for fault in faults if fault["message"].startswith("perturb.")]
    assert [fault["where"].removeprefix(f"{file}:") for fault in of_perturb] == ["6:6", "7:6", "8:6", "9:32"]
    for fault, says in zip(of_perturb, ("no rank 16 among 16", "no link", "two ends", "only stepwise"), strict=True):
        assert says in fault["message"]
    assert "stepwise" not in of_perturb[-1]["hint"]
    assert any(fault["message"].startswith("whole: plan") for fault in faults)
    file.write_text(f"{JOBS}{PERTURB}", encoding="utf-8")
    assert trainsim("run", file, "--json").record["faults"] == of_perturb


def test_perturbations_of_a_cluster_that_cannot_be_wired_say_nothing_about_their_links(file: Path) -> None:
    file.write_text(f"{JOBS}{PERTURB}", encoding="utf-8")
    (file.parent / "shape.py").write_text("def fabric(cluster):\n    raise ValueError('of no use')\n", encoding="utf-8")
    faults = trainsim("run", file, "--set", f"cluster.shape={file.parent / 'shape.py'}", "--json").record["faults"]
    assert [fault["message"].partition(":")[0] for fault in faults] == ["cluster.shape", "perturb.0.rank"]


def test_perturbations_of_jobs_in_python_are_checked_too(file: Path) -> None:
    jobs = sim.load(file)
    assert isinstance(jobs, Tenancy)
    with pytest.raises(UserError, match=r"perturb\.0\.rank: there is no rank 99 among 16"):
        simulate(replace(jobs, perturb=(sim.Perturb(99, 0.5),)))


def test_the_energy_of_several_jobs_is_not_known_and_has_no_price(file: Path) -> None:
    priced = "{total_tokens: 1000000, price_per_gpu_hour: 2, pue: 1.2, price_per_kwh: 0.3, "
    file.write_text(JOBS.replace("job: {", f"job: {priced}"), encoding="utf-8")
    faults = trainsim("run", file, "--json").record["faults"]
    assert [(fault["where"].split(":")[-2], fault["message"]) for fault in faults] == [
        (line, f"{name}: job.{field}: there is no energy of several jobs")
        for line, name in (("3", "whole"), ("4", "part"))
        for field in ("price_per_kwh", "pue")
    ]
    assert {fault["hint"] for fault in faults} == {"leave it out"}
    file.write_text(JOBS.replace("job: {", "job: {total_tokens: 1000000, price_per_gpu_hour: 2, pue: 1, "), encoding="utf-8")
    assert trainsim("run", file).code == 0


def test_a_job_that_does_not_fit_in_memory_is_named_and_its_remedies_can_be_had(file: Path) -> None:
    said = trainsim("run", file, "--set", "jobs.1.model=llama3-70b")
    assert said.code == 3
    assert "part: out of memory" in said.err
    assert "more gpus for the job" in said.err
    assert "trainsim memory" not in said.err
    assert trainsim("run", file, "--set", "jobs.1.model=llama3-70b", "--allow-oom").code == 0


def test_the_schema_has_the_keys_of_jobs() -> None:
    schema = json_schema()
    job = schema["properties"]["jobs"]["items"]
    assert set(job["properties"]) == set(KEYS)
    assert {*SHARED, "jobs", "extends"} | set(KEYS) - {"name", "gpus"} == set(schema["properties"])
    for key in ("model", "plan", "job"):
        assert job["properties"][key] == {"$ref": f"#/properties/{key}"}
        assert schema["dependentSchemas"]["jobs"]["properties"][key] is False


def test_the_schema_takes_what_the_reader_of_jobs_takes() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())

    def valid(text: str) -> bool:
        data: Any = parse(text, "x").data
        return not list(validator.iter_errors(data))

    assert valid(JOBS)
    assert valid(f"{JOBS}fidelity: {{collectives: closed}}\nextends: base.yaml\n")
    for wrong in (("tp: 2", "tpp: 2"), ("gpus: 8", "gpus: 0"), ("gpus: 8, ", ""), ("gpus: 8", "gpus: all"), ("name: ", "nam: ")):
        assert not valid(JOBS.replace(*wrong, 1)), wrong
    assert not valid(f"{JOBS}plan: {{tp: 2}}\n")
    assert not valid("cluster: dgx-h100\njobs: []\n")


def test_values_without_effect_are_noted_for_the_whole_cluster_and_with_the_name_of_their_job(file: Path) -> None:
    """A job on half of the GPUs of two nodes has their NICs to itself only when it is alone."""
    halves = "gpus: [0, 1, 2, 3, 8, 9, 10, 11]", "gpus: [4, 5, 6, 7]"
    file.write_text(JOBS.replace("gpus: 8", halves[0]).replace("gpus: [8, 9, 10, 11]", halves[1]))
    assert trainsim("run", file).err == ""
    network, of_plan = "--set=cluster.inter_node=8x800 Gbit/s", "--set=jobs.1.plan.sequence_parallel=true"
    noted = trainsim("run", file, network, of_plan).err.splitlines()
    assert [line.partition(": ")[2][:40] for line in noted] == [
        "cluster.inter_node: 100 GB/s of a NIC ha",
        "part: plan.sequence_parallel: it has no ",
    ]
