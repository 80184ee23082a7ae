"""Options that several commands share: files to write, the width of a page, styles, and names in any case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..commandline import SMALL, trainsim
from .test_terminal import STYLE, on_terminal


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """The file of a small scenario."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize(
    ("command", "first", "second", "ending"),
    [
        ("run SCENARIO --what-if plan.tp=4", "--gantt", "--tornado", "png"),
        ("explain SCENARIO --what-if plan.tp=4", "--waterfall", "--tornado", "svg"),
    ],
)
def test_two_outputs_with_one_name_are_refused_before_any_work(
    scenario: Path, command: str, first: str, second: str, ending: str
) -> None:
    words = [str(scenario) if word == "SCENARIO" else word for word in command.split()]
    file = scenario.parent / f"same.{ending}"
    (scenario.parent / "other").mkdir()
    said = trainsim(*words, first, file, second, scenario.parent / "other" / ".." / f"same.{ending}")
    assert (said.code, said.out) == (2, "")
    assert second in said.err
    assert f"{first} writes this file" in said.err
    assert not file.exists()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_styles_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert STYLE.search(on_terminal(100, ["catalog", "shapes"], styled=True))
    monkeypatch.setenv(name, value)
    assert not STYLE.search(on_terminal(100, ["catalog", "shapes"], styled=True))


def test_what_a_program_reads_does_not_depend_on_where_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    without = trainsim("catalog", "shapes").out
    monkeypatch.setenv("COLUMNS", "50")
    assert trainsim("catalog", "shapes").out == without


@pytest.mark.parametrize(
    "command",
    [
        "catalog Models",
        "run SCENARIO --engine DES",
        "collective all_reduce --cluster dgx-h100 -b 1M -e 1M --fidelity Closed",
        "kernel gemm --gpu h100 --dtype bf16 -m 128 -n 128 -k 128 --power Burst",
        "schedule 1f1b --ranks 2 --microbatches 4 --objective SPAN --memory-count Half",
    ],
)
def test_words_of_options_take_any_case(scenario: Path, command: str) -> None:
    words = [str(scenario) if word == "SCENARIO" else word for word in command.split()]
    typed, lower = trainsim(*words), trainsim(*(word if "/" in word or word == "1M" else word.lower() for word in words))
    assert typed.code == 0, typed.err
    assert [line for line in typed.out.splitlines() if not line.startswith("took")] == [
        line for line in lower.out.splitlines() if not line.startswith("took")
    ]
    assert "no kind 'Nope'" in trainsim("catalog", "Nope").err


@pytest.mark.parametrize(
    ("name", "noted"), [("zb-v", True), ("v-half", True), ("Zb_V", True), ("zb-auto", False), ("optimal", False)]
)
def test_a_memory_limit_that_a_schedule_has_no_use_for_is_noted(name: str, noted: bool) -> None:
    said = trainsim("schedule", name, "--ranks", 2, "--microbatches", 4, "--memory-limit", 0.75)
    assert said.code == 0
    assert ("--memory-limit 0.75 has no effect; optimal or zb-auto has one" in said.err) == noted
    assert "--memory-limit" not in trainsim("schedule", name, "--ranks", 2, "--microbatches", 4).err


def test_a_window_of_the_timeline_that_ends_before_it_begins_is_refused_before_any_work(scenario: Path) -> None:
    said = trainsim("run", scenario, "--gantt", scenario.parent / "a.png", "--gantt-window", "5:2")
    assert (said.code, said.out) == (2, "")
    assert "'5:2' should be a smaller number and a larger one, such as 100:250" in said.err


def test_a_window_behind_the_end_of_the_timeline_is_refused_in_the_unit_of_the_option(scenario: Path) -> None:
    said = trainsim("run", scenario, "--gantt", scenario.parent / "a.png", "--gantt-window", "1e9:2e9")
    assert (said.code, said.out) == (2, "")
    assert re.search(r"--gantt-window 1000000000:2000000000 shows nothing: the timeline ends at [\d.,]+ ms", said.err)
    assert " s\n" not in said.err


def test_a_file_in_place_of_a_folder_is_refused_before_any_work(scenario: Path) -> None:
    said = trainsim("run", scenario, "--hta", scenario)
    assert (said.code, said.out) == (2, "")
    assert "is a file, and a folder is written" in said.err
    assert "name a folder" in said.err


def test_a_folder_with_traces_of_another_run_is_noted(scenario: Path) -> None:
    """HTA reads every trace of a folder, and a plan of fewer stages writes fewer of them."""
    folder = scenario.parent / "traces"
    for stages, noted in (4, ""), (4, ""), (2, "2 traces that this run did not write, such as rank_4.json.gz; HTA reads all"):
        said = trainsim("run", scenario, "--set", f"plan.pp={stages}", "--hta", folder)
        assert said.code == 0
        assert noted in said.err
        assert bool(said.err) == bool(noted)


@pytest.mark.parametrize(
    "args",
    [
        ("run", "SCENARIO", "--hta"),
        ("network", "SCENARIO", "--link"),
        ("sweep", "SCENARIO", "--over", "plan.pp=1,2", "--shard"),
        ("demo", "--out"),
        ("kernel", "rmsnorm", "--gpu", "h100", "-m", "8", "-n", "8", "--profile"),
        ("kernel", "rmsnorm", "--gpu", "h100", "-m", "8", "-n", "8", "--library"),
        ("validate", "--kind", "kernels", "table.csv", "--gpu"),
        ("calibrate", "fit", "table.csv", "--gpu"),
    ],
)
def test_an_empty_value_is_not_taken_for_an_option_left_out(args: tuple[str, ...], scenario: Path) -> None:
    """As `--hta "$FOLDER"` of a shell where no such variable is set."""
    said = trainsim(*(scenario if arg == "SCENARIO" else arg for arg in args), "")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: {args[-1]} '' names nothing")


def test_one_rank_is_no_ranks(tmp_path: Path) -> None:
    job = "job: {global_batch: 8, sequence_length: 256}"
    (tmp_path / "one.yaml").write_text(f"{{model: llama3.2-1b, cluster: {{name: dgx-h100, nodes: 1}}, {job}}}")
    assert ", of 1 rank: load the folder" in trainsim("run", tmp_path / "one.yaml", "--hta", tmp_path / "traces").out


def test_one_node_is_no_nodes() -> None:
    said = trainsim("collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", 1, "--gpus", 9)
    assert "9 GPUs do not spread evenly over 1 node of 8 GPUs" in said.err
