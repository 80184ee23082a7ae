"""The command line: help that reads, one JSON value, exit codes that mean something, and quiet when nobody listens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

import simulator as sim
from simulator.cli import EXAMPLES, MEANINGS, cli
from simulator.config import catalog
from simulator.config.cluster_file import fabric
from simulator.errors import InvariantBroken

from ..commandline import SMALL, trainsim

COMMANDS = {name: cli.get_command(None, name) for name in cli.list_commands(None)}  # type: ignore[attr-defined]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.yaml"
    file.write_text(SMALL)
    return file


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    case = {"name": "one", "links": [{"capacity_Bps": 100}], "flows": [{"size_B": 200, "route": [0]}]}
    file = tmp_path / "flows.json"
    file.write_text(json.dumps({"cases": [case]}))
    return file


@pytest.mark.parametrize("asked", [["--help"], ["-h"], []])
def test_help_lists_every_command_in_whole_sentences(asked: list[str]) -> None:
    said = trainsim(*asked)
    assert said.code == 0
    listing = said.out.partition("Commands:")[2]
    for name in COMMANDS:
        line = re.search(rf"^  {name} +(.+)$", listing, re.MULTILINE)
        assert line
        assert line[1].endswith(".")
        assert "..." not in line[1]


def test_a_script_and_an_empty_name_are_no_scenarios(tmp_path: Path) -> None:
    script = tmp_path / "depth.py"
    script.write_text("import simulator\n")
    said = trainsim("run", script)
    assert said.code == 2
    assert f"{script} is a script in Python" in said.err
    assert f"hint: python {script}" in said.err
    said = trainsim("run", "")
    assert said.code == 2
    assert "'' is neither a file nor a name" in said.err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_explains_every_option(name: str) -> None:
    said = trainsim(name, "--help")
    assert said.code == 0
    assert max(map(len, said.out.splitlines())) <= 110
    for param in COMMANDS[name].params:
        if isinstance(param, click.Option):
            assert param.help, param.name
            assert re.search(r"\.(  \[.+\])?$", param.help), f"{param.name}: {param.help}"
            assert param.opts[-1] in said.out
        else:
            assert str(param.name).upper() in said.out
    if name != "demo":
        assert str(COMMANDS[name].help).count(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_endings_of_files_that_are_written(name: str) -> None:
    for param in COMMANDS[name].params:
        if getattr(param.callback, "__qualname__", "").startswith("checked_path"):
            assert re.search(r"\.(png|json|html|yaml|csv|sqlite)", str(param.metavar)), f"{name} {param.name}: {param.metavar}"


def test_validate_says_how_long_it_takes_and_what_long_allows() -> None:
    said = " ".join(trainsim("validate", "--help").out.split())
    assert "minutes" in said[: said.index("Options:")]
    assert "Rows of training are simulated without it" in said


def test_goodput_asks_for_one_of_two_options_which_work_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    asked = trainsim("goodput", tmp_path / "small.yaml")
    options = re.findall(r"(--[\w-]+) (\S+)", asked.err)
    assert [name for name, _ in options] == ["--mtbf", "--checkpoint-interval"]
    for option in options:
        assert trainsim("goodput", tmp_path / "small.yaml", *option).code == 0


def test_one_file_of_a_trace_is_written_for_each_kind_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    record = trainsim("run", tmp_path / "small.yaml", "--hta", tmp_path / "traces", "--json").record
    assert len(list((tmp_path / "traces").iterdir())) == record["classes"] < record["gpus"]


def test_an_unknown_name_of_a_long_list_is_told_where_all_names_are() -> None:
    said = trainsim("run", "nosuch").err
    assert re.search(r"nearest: .*; `trainsim catalog scenarios` lists all \d+$", said.strip())
    assert trainsim("catalog", "scenarios").code == 0


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["run"], "such as llama3-70b-64xh100; `trainsim run --help` lists"),
        (["compare"], "two or more YAML files"),
        (["topology"], "such as dgx-h100"),
        (["advise"], "such as llama3-8b"),
        (["kernel"], "a kernel such as gemm"),
        (["collective"], "all_reduce, reduce_scatter"),
        (["validate", "table.csv"], "--kind: kind of the rows: collectives, kernels or training; `trainsim validate"),
        (["sweep", "llama3-70b-64xh100"], "--over: a field and its values"),
        (["flows"], "hint: `trainsim flows --help` lists"),
    ],
)
def test_what_is_left_out_is_explained(args: list[str], hint: str) -> None:
    said = trainsim(*args)
    assert said.code == 2
    assert hint in said.err


def test_examples_in_hints_are_in_the_catalog() -> None:
    for argument, kind in {"SCENARIO": "scenarios", "CLUSTER": "clusters", "MODEL": "models"}.items():
        assert EXAMPLES[argument].rpartition(" ")[2] in catalog.files(kind)


@pytest.mark.parametrize(("word", "command"), MEANINGS.items())
def test_words_for_commands_that_look_different_are_understood(word: str, command: str) -> None:
    said = trainsim(word)
    assert command in COMMANDS
    assert f"did you mean {command!r}?" in said.err


def test_version() -> None:
    assert trainsim("--version").out == f"trainsim, version {version('cluster-training-simulator')}\n"


TABLE = """system,gpu,gpus,nodes,inside,network,collective,dtype,bytes,time_us
mine,H100-SXM,8,1,nvlink4-nvswitch,,all_reduce,fp16,67108864,340
"""
TIMES = "{0:.2f} {1:.2f} {2:.2f} 0"
LOG = "\n".join(
    [
        "# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703",
        "# Collective test starting: all_reduce_perf",
        *(f"#  Rank {i:2} Group  0 Pid {i:6} on      host0 device {i:2} [0000:0{i}:00] NVIDIA H100" for i in range(8)),
        *(
            f"{size} {size // 4} float sum -1 " + " ".join([TIMES.format(us, size / us / 1e3, 1.75 * size / us / 1e3)] * 2)
            for size, us in ((2**octave, 15 + 2**octave / 2.5e5) for octave in range(10, 32, 3))
        ),
        "",
    ]
)


def ways(scenario: Path, flows: Path, out: Path) -> dict[str, list[object]]:
    """A call of each command that succeeds."""
    table, log = out.parent / "measured.csv", out.parent / "nccl.txt"
    table.write_text(TABLE, encoding="utf-8")
    log.write_text(LOG, encoding="utf-8")
    space = out.parent / "space.yaml"
    space.write_text("tp: [1, 2]\n", encoding="utf-8")
    return {
        "advise": ["advise", "llama3-8b", "--inference", "--cluster", "dgx-h100", "--gpus", 8],
        "calibrate": ["calibrate", "links", log],
        "catalog": ["catalog"],
        "collective": ["collective", "all_reduce", "--cluster", "dgx-h100", "-b", "1M", "-e", "4M"],
        "compare": ["compare", scenario, "fsdp-llama3-8b-64xh100"],
        "demo": ["demo", "--out", out],
        "explain": ["explain", "fsdp-llama3-8b-64xh100"],
        "flows": ["flows", flows],
        "goodput": ["goodput", scenario, "--mtbf", "50000 h"],
        "kernel": ["kernel", "gemm", "--gpu", "h100", "-m", 4096, "-n", 4096, "-k", 4096],
        "memory": ["memory", scenario],
        "network": ["network", scenario],
        "run": ["run", scenario],
        "schedule": ["schedule", "1f1b", "--ranks", 4, "--microbatches", 8],
        "search": ["search", scenario, "--space", space, "--workers", 1],
        "sweep": ["sweep", scenario, "--over", "plan.tp=1,2", "--workers", 1],
        "topology": ["topology", "dgx-h100", "--nodes", 2],
        "validate": ["validate", "--kind", "collectives", table],
    }


LONG = ("demo", "search", "explain")
"""Commands that simulate for seconds."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in COMMANDS])
def test_a_command_prints_text_or_one_json_value(name: str, scenario: Path, flows: Path, tmp_path: Path) -> None:
    args = ways(scenario, flows, tmp_path / "demo")[name]
    text, record = trainsim(*args), trainsim(*args, "--json")
    assert (text.code, record.code) == (0, 0)
    assert text.out.strip()
    assert record.record
    assert record.out.count("\n") == 1
    assert not record.err


WRONG: dict[str, tuple[list[object], str]] = {
    "no command": (["rnu"], "did you mean 'run'?"),
    "no option": (["run", "x", "--jsn"], "--help"),
    "no scenario": (["run"], "--help"),
    "no value": (["run", "--set"], "--help"),
    "an argument too many": (["run", "a", "b"], "--help"),
    "no such engine": (["run", "x", "--engine", "dse"], "--help"),
    "no such kind": (["catalog", "gpu"], "did you mean 'gpus'?"),
    "no such cluster": (["topology", "dgx-h10"], "did you mean 'dgx-h100'?"),
    "advice without a cluster": (["advise", "llama3-8b", "--inference"], "--cluster dgx-h100"),
    "advice on no model": (["advise", "lama3-8b", "--cluster", "dgx-h100"], "did you mean 'llama3-8b'?"),
    "advice on no scenario": (["advise", "llama3-8b"], "--cluster"),
    "advice with options of training": (["advise", "x", "--inference", "--cluster", "y", "--global-batch", 8], "leave it out"),
    "no such cases": (["flows", "nope.json"], ""),
    "a picture of no kind": (["run", "x", "--gantt", "a.foo"], ".png"),
    "no number": (["schedule", "1f1b", "--ranks", "two", "--microbatches", "4"], "--help"),
    "a duration of no number": (["schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--F", "nan"], "--help"),
    "an endless duration": (["schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--comm", "inf"], "--help"),
    "durations of no number": (["schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--F", "1,x"], "--help"),
    "no sizes": (["schedule", "1f1b"], "--ranks 4 --microbatches 8"),
    "no schedule": (["schedule", "--ranks", "2", "--microbatches", "4"], "catalog schedules"),
    "a negative duration": (["schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--B", "-1"], "--help"),
    "no duration at all": (["schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--F", "0", "--B", "0"], "length"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_exit_2_and_says_what_is_right(case: str) -> None:
    args, hint = WRONG[case]
    said, record = trainsim(*args), trainsim(*args, "--json")
    assert (said.code, record.code) == (2, 2)
    assert said.err.startswith("error: ")
    assert hint in said.err
    assert not said.out
    assert set(record.record) == {"error", "faults"}


OUTSIDE: dict[str, tuple[list[str], dict[str, int]]] = {
    "--ranks 0": (["--ranks", "0", "--microbatches", "4"], {"ranks": 1}),
    "--microbatches 0": (["--ranks", "4", "--microbatches", "0"], {"microbatches": 1}),
    "--ranks 9999": (["--ranks", "9999", "--microbatches", "4"], {"ranks": 4096}),
    "slots": (["--ranks", "4096", "--microbatches", "1000000"], {"microbatches": 976}),
    "interleaved": (["--ranks", "4", "--microbatches", "9", "--chunks", "2"], {"microbatches": 8}),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", OUTSIDE)
def test_outside_its_domain_a_schedule_names_the_nearest_legal_shape(case: str) -> None:
    options, nearest = OUTSIDE[case]
    schedule = case if case == "interleaved" else "1f1b"
    said = trainsim("schedule", schedule, *options, "--json")
    assert said.code == 2
    assert case in said.record["refused"]
    assert said.record["nearest"] == nearest
    (name, value), *_ = nearest.items()
    legal = {**dict(zip(options[::2], options[1::2], strict=True)), f"--{name}": str(value)}
    if case != "slots":
        assert trainsim("schedule", schedule, *(word for pair in legal.items() for word in pair)).code == 0


def test_what_does_not_fit_is_exit_3(scenario: Path) -> None:
    big = ["--set", "model=llama3-405b"]
    for command in ("run", "memory"):
        assert trainsim(command, scenario, *big).code == 3
        said = trainsim(command, scenario, *big, "--json")
        assert said.code == 3
        assert said.record["over_gib"] > 1000
    assert trainsim("run", scenario, *big, "--allow-oom", "--json").record["fits"] is False


def test_memory_lists_what_makes_a_plan_fit(scenario: Path) -> None:
    large = [scenario, "--set", "model.layers=4", "--set", "model.hidden=24576", "--set", "model.heads=128"]
    said = trainsim("memory", *large, "--remedies", "--json")
    assert said.code == 3
    first, *others = said.record["remedies"]
    assert all(first["step_time_s"] <= one["step_time_s"] for one in others)
    assert first["saved_bytes"] > 0
    settings = [part for name, value in first["set"].items() for part in ("--set", f"{name}={value}")]
    assert trainsim("memory", *large, *settings).code == 0
    assert "trainsim memory SCENARIO --remedies" in trainsim("run", *large).err


@pytest.mark.slow
def test_advice_on_a_plan_that_does_not_fit_begins_with_remedies(scenario: Path) -> None:
    said = trainsim("advise", scenario, "--set", "model.layers=4", "--set", "model.hidden=24576", "--set", "model.heads=128")
    assert said.code == 0
    assert said.out.startswith("change that makes the plan fit")
    assert "does not fit" in said.out.partition("as planned")[2].splitlines()[0]


def test_advice_is_a_scenario_that_runs(tmp_path: Path) -> None:
    out = tmp_path / "advised.yaml"
    asked = ["advise", "llama3.2-1b", "--cluster", "dgx-h100", "--gpus", 4, "--sequence-length", 2048, "--out", out]
    record = trainsim(*asked, "--set", "framework=megatron-core-2025", "--json").record
    assert record["yaml"] == out.read_text()
    ran = trainsim("run", out, "--json").record
    assert ran["step_time_s"] == record["recommended"]["step_time_s"]
    assert ran["scenario"] == record["scenario"]
    assert ran["scenario"]["framework"]["name"] == "megatron-core-2025"
    assert {"for", "model", "cluster", "gpus", "steps", "recommended", "scenario", "yaml", "remedies"} == set(record)
    assert all(set(step) == {"step", "text", "proposals"} for step in record["steps"])


def test_advice_on_inference_is_one_json_value() -> None:
    asked = ["advise", "llama3-70b", "--inference", "--cluster", "dgx-h100", "--gpus", 8, "--batch", 4, "--context", 1000]
    record = trainsim(*asked, "--json").record
    assert (record["for"], record["batch"], record["context"]) == ("inference", 4, 1000)
    assert record["kv_bytes"] == 4000 * record["kv_bytes_per_token"]
    assert set(record["flags"]) == {"vllm", "sglang", "tensorrt-llm"}
    assert record["flags"]["vllm"] in trainsim(*asked).out


def test_advice_names_the_nearest_number_of_gpus() -> None:
    said = trainsim("advise", "llama3-8b", "--cluster", "dgx-h100", "--gpus", 20, "--json")
    assert (said.code, said.record["nearest"]) == (2, {"gpus": 16})
    assert trainsim("advise", "llama3-70b", "--cluster", "dgx-h100", "--gpus", 8, "--context", 8).code == 2


@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupt_is_exit_130(as_json: bool, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.simulation.runnable.load", interrupt)
    said = trainsim("run", scenario, *["--json"] * as_json)
    assert said.code == 130
    assert said.err.strip() == "interrupted"
    assert not as_json or said.record["error"] == "interrupted"


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), InvariantBroken("oops")])
def test_a_bug_of_ours_is_exit_1_and_says_so(error: Exception, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("simulator.simulation.runnable.load", broken)
    said = trainsim("run", scenario, "--json")
    assert said.code == 1
    assert "oops" in said.record["error"]
    assert "please report" in said.err


def test_pictures_and_traces_are_written_where_they_are_asked_for(scenario: Path, tmp_path: Path) -> None:
    picture, trace = tmp_path / "a.svg", tmp_path / "b.json.gz"
    said = trainsim("run", scenario, "--gantt", picture, "--trace", trace)
    assert said.code == 0
    assert str(picture) in said.out
    assert str(trace) in said.out
    assert picture.stat().st_size
    assert trace.stat().st_size


def test_what_cannot_be_written_is_exit_2(scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = trainsim("run", scenario, "--gantt", tmp_path / "file" / "a.png")
    assert said.code == 2
    assert "cannot write" in said.err


@pytest.mark.parametrize("kind", [*catalog.DATA, *catalog.CODE])
def test_everything_with_a_name_says_what_it_is(kind: str) -> None:
    listed = trainsim("catalog", "--json").record[kind]
    assert listed == sorted(listed)
    rows = trainsim("catalog", kind, "--json").record
    assert [row["name"] for row in rows] == listed
    assert all(row["about"].endswith(".") for row in rows)


def test_gpus_are_listed_with_what_they_are_sold_with() -> None:
    """Each number of a file that no run reads is shown, in one unit for all."""
    rows = {row["name"]: row for row in trainsim("catalog", "gpus", "--json").record}
    lines = {line.split()[0]: line.split() for line in trainsim("catalog", "gpus").out.splitlines()[1:] if line[0] != " "}
    assert lines.keys() == rows.keys()
    assert lines["h100"][1:6] == ["79.6", "GiB", "3,350", "989", "700"]
    h100 = rows["h100"]
    assert (h100["tdp_w"], h100["peak_flop_per_s"]["fp8"], h100["memory_bytes_per_s"]) == (700, 1978.9e12, 3.35e12)
    assert h100["memory_bytes"] == pytest.approx(79.6 * 2**30)


@pytest.mark.parametrize("name", trainsim("catalog", "--json").record["fabrics"])
def test_every_fabric_that_is_listed_can_be_given(name: str) -> None:
    found = fabric(name)
    assert found
    assert found.label == name


RUN = ["run", "llama3-70b-64xh100"]


@pytest.mark.parametrize(
    ("kind", "args", "among"),
    [
        ("schedules", [*RUN, "--set", "plan.schedule=nope"], {"zb-h1", "seq-1f1b"}),
        ("shapes", [*RUN, "--set", "cluster.shape=nope"], {"rail-optimized", "fat-tree", "leaf-spine"}),
        ("fabrics", [*RUN, "--set", "cluster.fabric=nope"], {"ndr-ib", "ideal"}),
        ("collectives", ["collective", "all_reduce", "--cluster", "dgx-h100", "--algorithm", "nope"], {"nvls_tree"}),
    ],
)
def test_names_have_one_spelling(kind: str, args: list[str], among: set[str]) -> None:
    """Letter by letter what an error proposes is what the catalog lists, in the spelling that files are written in."""
    proposed = set(trainsim(*args).err.partition("known: ")[2].strip().split(", ")) - {"auto"}
    assert proposed == set(trainsim("catalog", "--json").record[kind])
    assert among <= proposed


def test_a_name_is_printed_in_its_spelling_however_it_was_typed() -> None:
    for typed in ("zb-h1", "zb_h1", "ZB_H1"):
        sizes = ("--ranks", 4, "--microbatches", 8)
        assert trainsim("schedule", typed, *sizes).out.split()[1] == "zb-h1,"
        assert trainsim("schedule", "--compare", f"gpipe,{typed}", *sizes).out.splitlines()[1].split()[0] == "zb-h1"
        assert ", zb-h1\n" in trainsim(*RUN, "--set", f"plan.schedule={typed}").out
        said = trainsim(*RUN, "--set", f"plan.schedule={typed}", "--set", "plan.splits=2")
        assert "plan.splits: zb-h1 has no use for it" in said.err
    for typed in ("nvls-tree", "nvls_tree", "NVLS_tree"):
        asked = ("collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", 2, "-b", "1M", "-e", "1M", "--algorithm")
        assert [row["algorithm"] for row in trainsim(*asked, typed, "--json").record["rows"]] == ["nvls_tree"]


def test_a_record_holds_a_schedule_as_it_was_asked_for() -> None:
    record = trainsim(*RUN, "--set", "plan.schedule=ZB_H1", "--json").record
    assert record["scenario"]["plan"]["schedule"] == "ZB_H1"


@pytest.mark.parametrize("kind", ["defaults", "models", None])
def test_the_catalog_prints_the_json_that_its_help_speaks_of(kind: str | None) -> None:
    args = ["catalog", *([kind] if kind else [])]
    assert isinstance(trainsim(*args, "--json").record, list if kind == "models" else dict)
    assert "JSON object or array" in trainsim("catalog", "--help").out


def test_a_cluster_of_no_nodes_is_refused() -> None:
    said = trainsim("topology", "dgx-h100", "--nodes", 0, "--json")
    assert (said.code, said.record["nearest"]) == (2, {"nodes": 1})


def test_topology_counts_the_links_that_it_lists() -> None:
    text = trainsim("topology", "dgx-h100", "--nodes", 3).out
    record = trainsim("topology", "dgx-h100", "--nodes", 3, "--json").record
    table = text.partition("class of links")[2].splitlines()[1:]
    assert sum(int(re.split(r"  +", row)[2].replace(",", "")) for row in table) == len(record["links"])
    assert record["gpus"] == record["vertices"]["gpu"] == 24


PROGRAM = [sys.executable, "-m", "simulator"]


@pytest.mark.parametrize("args", [["catalog"], ["topology", "dgx-h100", "--nodes", "64", "--json"]])
def test_a_reader_that_leaves_early_is_no_error(args: list[str]) -> None:
    with subprocess.Popen([*PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout
        assert program.stderr
        program.stdout.close()
        errors = program.stderr.read()
    assert not errors
    assert program.returncode == 0


def test_the_program_exits_with_the_code(scenario: Path) -> None:
    for args, code in ((["run", scenario], 0), (["run", "nope"], 2), (["run", scenario, "--set", "model=llama3-405b"], 3)):
        done = subprocess.run([*PROGRAM, *map(str, args)], capture_output=True, check=False, env={**os.environ, "TERM": "dumb"})
        assert done.returncode == code


def test_a_scenario_can_come_through_a_pipe() -> None:
    done = subprocess.run([*PROGRAM, "run", "/dev/stdin", "--json"], input=SMALL, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["gpus"] == 16


def test_the_catalog_says_how_large_models_are() -> None:
    said, record = trainsim("catalog", "models").out, trainsim("catalog", "models", "--json").record
    found = {one["name"]: one for one in record}
    assert found["mixtral-8x7b"]["parameters"] == sim.model("mixtral-8x7b").parameters
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line[:1].strip()}
    assert lines["mixtral-8x7b"][1:5] == ["46.70", "12.88", "32", "4,096"]
    assert lines["llama3-70b"][1:4] == ["70.55", "80", "8,192"]
    assert len(found) == len(catalog.files("models"))
