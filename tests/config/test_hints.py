"""Plausible mistakes of a tired engineer, and what they are told: what is wrong, where, and what to write instead."""

from __future__ import annotations

import json
import re
from errno import EACCES
from os import strerror
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.config.document import read
from simulator.errors import UserError

from ..commandline import SMALL, trainsim

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1408, "vocab_size": 4096, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "s.yaml").write_text(SMALL)
    (tmp_path / "hf.json").write_text(json.dumps(CONFIG))
    (tmp_path / "moe.json").write_text(json.dumps({**CONFIG, "num_local_experts": 8, "num_experts_per_tok": 2}))
    (tmp_path / "more.json").write_text(json.dumps({**CONFIG, "model_type": "qwen3", "attention_bias": True}))
    ships = {"num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 16}
    ships |= {"intermediate_size": 24576, "vocab_size": 256000, "model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}
    (tmp_path / "ships.json").write_text(json.dumps(ships))
    hybrid = {"architectures": ["JambaForCausalLM"], "model_type": "jamba"}
    (tmp_path / "hybrid.json").write_text(json.dumps({**CONFIG, **hybrid}))
    (tmp_path / "mine").write_text("layers: 8\nhidden: 1024\nheads: 16\nvocab: 32000\n")
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\tX\tNV18\n")
    (tmp_path / "tokens.yaml").write_text(SMALL.replace("tp: 2, pp: 2", "tp: 1, pp: 4, schedule: interleaved, chunks: 2"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = ["run", "s.yaml", "--set"]
MISTAKES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "a Hugging Face config as a model": ([*RUN, "model=hf.json"], ("hf.json:1: this is the configuration of a Hugging Face",
        "'LlamaForCausalLM'", "model: {layers: 4, hidden: 512, heads: 8, kv_heads: 4, ffn_hidden: 1408, vocab: 4096, gated_mlp")),
    "the same by its path": ([*RUN, "model=./hf.json"], ("Hugging Face",)),
    "one with experts": ([*RUN, "model=moe.json"], ("Hugging Face", "vocab: 4096, experts: 8, experts_per_token: 2, gated_mlp")),
    "a hybrid": ([*RUN, "model=hybrid.json"], ("'JambaForCausalLM'", "state-space or recurrent", "take a dense model")),
    "one that says more than its sizes": (
        [*RUN, "model=more.json"],
        ("begin with model: {layers: 4", "and add what a 'qwen3' has besides these sizes (in this file: attention_bias)"),
    ),
    "one whose sizes a model has that ships": (
        [*RUN, "model=ships.json"],
        ("take gemma-7b, which has these sizes; or begin with", "(in this file: hidden_activation)"),
    ),
    "a word for a field of words or booleans": (
        [*RUN, "plan.overlap.tp=pieces"], ("'pieces' is none of the choices", "known: decomposed, or true or false")),
    "a word that means a boolean": ([*RUN, "plan.overlap.tp=yes"], ("write true",)),
    "a word for a field of words or numbers": (
        [*RUN, "plan.moe.capacity=even"], ("'even' is none of the choices", "known: dropless, or a number")),
    "a key with a letter too many, which is a key elsewhere": (
        [*RUN, "perturb=[{ranks: 3, speed: 0.5}]"], ("perturb.0.ranks: unknown key", "did you mean 'rank'?")),
    "a key of another mapping that is like one of this": ([*RUN, "plan.sequence_length=512"], ("mean 'job.sequence_length'?",)),
    "another file to start from": ([*RUN, "extends=s.yaml"], ("a setting cannot name the file to start from", "write extends:")),
    "a Hugging Face config as a scenario": (["run", "hf.json"], ("Hugging Face", "layers: 4")),
    "a file of something else as a cluster": (["topology", "topo.txt"], ("topo.txt:1:1: not YAML",)),
    "the same in a scenario": ([*RUN, "cluster=topo.txt"], ("topo.txt:1:1: not YAML",)),
    "a folder as a scenario": (["run", "."], ("Is a directory",)),
    "experts": ([*RUN, "model.experts=8"], ("model.experts_per_token: 0 of 8 experts cannot be chosen", "1 to 8, such as 2")),
    "several values": ([*RUN, "plan.tp=1,2,4"], ("one value at a time: write 1, 2 or 4",)),
    "a float beyond the limit": ([*RUN, "cluster.nodes=1e9"], ("1000000000 is too large", "hint: at most 1048576")),
    "a number with commas": ([*RUN, "job.global_batch=1,024"], ("write 1024",)),
    "a long name": ([*RUN, "plan.tensor_parallel=4"], ("did you mean 'tp'?",)),
    "Megatron's name": ([*RUN, "plan.pipeline-model-parallel-size=4"], ("did you mean 'pp'?",)),
    "a name of another section": ([*RUN, "job.num_layers=4"], ("did you mean 'model.layers'?",)),
    "a sharding in another spelling": ([*RUN, "plan.sharding=zero_30"], ("'zero_30' is none", "did you mean 'zero3'?")),
    "an option as a field": ([*RUN, "steps=3"], ("it is an option of the command: --steps",)),
    "a key of several jobs": ([*RUN, "jop=3"], ("extends, ", "jobs, ")),
    "a length in k": ([*RUN, "job.sequence_length=4k"], ("write 4096",)),
    "an entry of no list": ([*RUN, "perturb.0.speed=0.5"], ("--set perturb.0.speed: no perturb.0", "such as perturb=[...]")),
    "degrees for more GPUs": ([*RUN, "plan.pp=64"], ("--set plan.pp=64: plan: tp x pp = 128",)),
    "sizes that do not divide": ([*RUN, "model.hidden=1000"], ("--set model.hidden=1000: model.heads",)),
    "an option of no recomputation": ([*RUN, "plan.recompute.every=2"],
        ("--set plan.recompute.every=2: plan.recompute.every: nothing is recomputed", "scope: full, or ops")),
    "half a mapping": ([*RUN, "plan={tp: 2"], ("--set plan={tp: 2: not YAML",)),
    "a batch that interleaved cannot divide": (["run", "tokens.yaml", "--set", "job.global_batch=36"],
        ("9 do not divide into 2", "job.global_batch: 32, which is 8 microbatches of each replica")),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_with_what_helps(case: str, folder: Path) -> None:
    args, parts = MISTAKES[case]
    said = trainsim(*args)
    assert said.code == 2
    for part in parts:
        assert part in said.err
    assert "leave it out" not in said.err
    assert "no model" not in said.err


def test_what_a_config_is_told_to_write_is_a_model(folder: Path) -> None:
    hint = trainsim(*RUN, "model=hf.json").err.partition("write the model as model: ")[2].strip()
    model = sim.load("s.yaml", [f"model={hint}"]).model
    assert (model.layers, model.hidden, model.kv_heads, model.gated_mlp) == (4, 512, 4, True)


def test_a_file_that_exists_is_taken_whatever_its_name(folder: Path) -> None:
    assert sim.load("s.yaml", ["model=mine"]).model.layers == 8
    (folder / "llama3-8b").write_text("layers: 1")
    assert sim.load("s.yaml", ["model=llama3-8b"]).model.layers == 32


def test_what_cannot_be_read_is_not_what_was_meant(folder: Path) -> None:
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "dir.yaml").mkdir()
    for name, why in (("loop.yaml", "Too many levels"), ("dir.yaml", "Is a directory")):
        said = trainsim("run", name)
        assert (said.code, why in said.err, "did you mean" in said.err) == (2, True, False)
        told = trainsim("kernel", "gemm", "--gpu", "h100", "-m", 1, "-n", 1, "-k", 1, "--profile", name).err
        assert f"cannot read '{name}': {why}" in told


def test_a_file_that_may_not_be_read_is_not_taken_for_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "secret.yaml").write_text("layers: 1")
    (folder / "secre.yaml").write_text("layers: 1")

    def refused(path: Path, flags: int) -> int:
        raise PermissionError(EACCES, strerror(EACCES), str(path))

    monkeypatch.setattr("simulator.files.os.open", refused)
    with pytest.raises(UserError, match=r"cannot read 'secret\.yaml': Permission denied") as raised:
        read(Path("secret.yaml"))
    assert raised.value.hint == "`chmod u+r` lets its owner read it, `chmod u+x` enter its folder"
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"no file .*secrets\.yaml'") as raised:
        read(folder / "secrets.yaml")
    assert "did you mean" in raised.value.hint


@pytest.mark.parametrize("field", ["model", "cluster", "framework", "cluster.gpu"])
def test_an_empty_name_is_the_value_of_its_field(field: str, folder: Path) -> None:
    told = trainsim(*RUN, f'{field}=""').err
    assert f"{field} should be a name or a path, not ''" in told
    assert "trainsim catalog " in told
    (folder / "x.yaml").write_text("extends: ''\nmodel: ''\n")
    assert "x.yaml:1:1: extends: '' is neither a file nor a name" in trainsim("run", "x.yaml").err
    (folder / "x.yaml").write_text("model: ''\ncluster: dgx-h100\n")
    assert "x.yaml:1:1: model should be a name or a path, not ''" in trainsim("run", "x.yaml").err


def test_a_name_in_a_file_is_the_name_shown(folder: Path) -> None:
    (folder / "m2.yaml").write_text("name: my-model\nlayers: 8\nhidden: 1024\nheads: 16\nvocab: 32000\n")
    (folder / "c2.yaml").write_text("name: my-cluster\ngpu: h100\ngpus_per_node: 8\nintra_node: NVSwitch 450 GB/s\n")
    assert sim.model("m2.yaml").name == "my-model"
    assert sim.cluster("c2.yaml", nodes=1).name == "my-cluster"
    assert sim.load("s.yaml", ["model=m2.yaml"]).model.name == "my-model"
    (folder / "m2.yaml").write_text("name: 5\nlayers: 8\nhidden: 1024\nheads: 16\nvocab: 32000\n")
    assert "m2.yaml:1:1: model.name should be text, not 5" in trainsim(*RUN, "model=m2.yaml").err


def test_a_whole_model_may_have_a_slash_in_its_name() -> None:
    shape = {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000}
    assert sim.model({"name": "meta-llama/mine", **shape}).name == "meta-llama/mine"


FLOWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a missing size": ({"route": [0]}, "cases[0] ('ring').flows[1]: size_B is missing", "a number that is not negative"),
    "another name": ({"size": 1, "route": [0]}, "size_B is missing", "'size' should be called size_B"),
    "no number": ({"size_B": "1", "route": [0]}, "size_B should be a number", '"size_B": 1e9'),
    "no such link": ({"size_B": 1, "route": [2]}, "route: 2 is not a link of the 1 of this case", "counted from 0 to 0"),
    "a start that is called otherwise": (
        {"start": 5, "size_B": 1, "route": [0]},
        "'start': unknown key",
        "did you mean 'start_s'?",
    ),
    "no route": ({"size_B": 1, "route": 0}, "route is 0, no list of links", "such as [0, 0]"),
}


@pytest.mark.parametrize("case", FLOWS)
def test_a_fault_in_flows_names_file_case_flow_and_remedy(case: str, tmp_path: Path) -> None:
    flow, message, hint = FLOWS[case]
    file = tmp_path / "f.json"
    good = {"size_B": 1, "route": [0]}
    file.write_text(json.dumps({"cases": [{"name": "ring", "links": [{"capacity_Bps": 1}], "flows": [good, flow]}]}))
    said = trainsim("flows", file)
    assert said.code == 2
    assert f"{file}: cases[0] ('ring').flows[1]: " in said.err
    assert message in said.err
    assert hint in said.err


DEGREES = (
    ["plan.dp=7"],
    ["plan.dp=3"],
    ["plan.dp=7", "plan.pp=3"],
    ["plan.pp=3"],
    ["plan.dp=9", "plan.tp=4"],
    ["plan.dp=3", "plan.pp=3"],
)


@pytest.mark.parametrize("settings", DEGREES, ids=" ".join)
def test_what_degrees_are_told_is_free_of_that_fault(settings: list[str], folder: Path) -> None:
    def faults(settings: list[str]) -> list[dict[str, Any]]:
        said = trainsim("run", "s.yaml", "--json", *(part for text in settings for part in ("--set", text)))
        return [fault for fault in said.record.get("faults", ()) if "GPUs" in fault["message"]]

    (fault,) = faults(settings)
    told = fault["hint"]
    nodes, dp = re.search(r"nodes: (\d+)( without dp)?", told), re.search(r"dp: (\d+)", told)
    assert nodes or dp
    without = [text for text in settings if not text.startswith("plan.dp")]
    if nodes:
        kept = without if nodes[2] else settings
        assert not faults([*kept, f"cluster.nodes={nodes[1]}"])
    if dp:
        assert not faults([*without, f"plan.dp={dp[1]}"])


def test_flows_take_the_keys_of_their_format_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    link, flow = {"src": "a", "dst": "b", "capacity_Bps": 1}, {"size_B": 1, "route": [0], "end_s": 1.0, "end_exact": "1"}
    case = {"name": "one", "desc": "one link", "links": [link], "flows": [flow]}
    file.write_text(json.dumps({"model": "a", "units": {}, "cases": [case]}))
    assert trainsim("flows", file).code == 0
    file.write_text(json.dumps({"cases": [{**case, "note": "", "links": [{**link, "latency": 5}]}], "unit": {}}))
    said = trainsim("flows", file)
    assert said.code == 2
    for told in (
        "cases[0] ('one').links[0]: 'latency': unknown key",
        "did you mean 'latency_s'?",
        "'note': unknown",
        "'unit': unknown",
    ):
        assert told in said.err
    file.write_text('{"cases": [{"name": "a", "links": [], "flows": [], "flows": []}]}')
    said = trainsim("flows", file)
    assert (said.code, "'flows' occurs twice in one object" in said.err) == (2, True)


def test_values_show_themselves_in_a_line() -> None:
    cluster, model, plan = sim.cluster("dgx-h100", nodes=2), sim.model("llama3-8b"), sim.Plan(tp=8)
    run = sim.simulate(model, cluster, plan, sim.Job(sequence_length=1024, global_batch=2))
    assert repr(plan) == "Plan(tp=8)"
    assert repr(sim.Plan()) == "Plan()"
    assert repr(model).startswith("Model(llama3-8b: 8.0")
    assert repr(cluster) == "Cluster(dgx-h100: 16 GPUs, 2 nodes of 8 h100, rail-optimized)"
    parts = (run.program, run.labels, run.observation, run.kernel_costs, run.collective_costs, run.simulated.window)
    for value in (model, cluster, plan, run.timeline, run.engine_timeline, run.network, run.scenario, *parts):
        assert len(repr(value)) < 400, type(value)
        assert "\n" not in repr(value)
    assert len(repr(run).splitlines()) < 25


def test_a_frame_is_in_the_order_of_time() -> None:
    run = sim.simulate(sim.model("llama3-8b"), sim.cluster("dgx-h100"), sim.Plan(tp=4, pp=2), sim.Job(global_batch=4))
    for frame in (run.timeline.to_pandas(), run.timeline.to_pandas(ranks=[3, 0])):
        assert frame["start_ns"].is_monotonic_increasing
    assert len(run.timeline.to_pandas()) == len(run.timeline)


DIGITS = "9" * 5000
LONG_LINES = (["schedule", "1f1b", "--F", DIGITS], ["schedule", "1f1b", "--ranks", "9" * 4000], ["kernel", "gemm", "-m", DIGITS],
    [DIGITS], ["run", "s.yaml", DIGITS], ["schedule", "1f1b", f"--{DIGITS}"], ["run", "s.yaml", "--steps", DIGITS])  # fmt: skip


@pytest.mark.parametrize("line", LONG_LINES, ids=lambda line: " ".join(line)[:20])
def test_long_values_of_the_command_line_are_cut(line: list[str], folder: Path) -> None:
    said = trainsim(*line)
    assert said.code == 2
    assert len(said.err) < 500


def test_more_nodes_are_not_proposed_for_a_degree_that_does_not_divide_the_model() -> None:
    said = trainsim("run", "llama3-70b-64xh100", "--set", "plan.tp=5").err
    assert "hint: a product of 32 or 64\n" in said
    assert "tp: 4" in said
    assert "nodes: 6" in trainsim("run", "llama3-70b-64xh100", "--set", "plan.pp=3", "--set", "plan.tp=16").err
