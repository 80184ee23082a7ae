"""`trainsim validate --kind training`: steps of whole runs, predicted from what describes a run and from nothing else."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest

from simulator.config import load
from simulator.config.scenario import Scenario
from simulator.measurements.csv_tables import read
from simulator.measurements.training_rows import scenario_of
from simulator.simulation.simulate import simulate_scenario
from simulator.study.process_session import ProcessSession
from simulator.units import GB, GIB
from simulator.validate import training
from simulator.validate.report import compare_rows

from ..commandline import trainsim
from ..made_up_runs import row
from ..project.source import ROOT

TABLE = ROOT.parent / "shared" / "data" / "training.csv"
HIDDEN = ("id", "source_title", "source_locator", "notes", "source_key", "tier")
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "samples_per_s", "tflops_per_gpu", "tflops_kind", "mfu", "hfu", "mem_gb")
SMALL = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn_hidden": 2048, "seq_len": 256, "gpus": 8, "global_batch": 16}
ROWS = [
    {**row(**{**SMALL, **cells}), "id": f"run-{i}", "source_key": source, "step_time_s": "0.5", "mem_gb": "12"}
    for i, (source, cells) in enumerate(
        [
            ("ours", {}),
            ("ours", {"pp": 4, "facts": "launch_blocking=on"}),
            ("theirs", {"tp": "", "pp": ""}),
            ("theirs", {"global_batch": 15}),
            ("ours", {"model_name": "the first again"}),
        ]
    )
]


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_row_is_there_in_order_and_every_skip_has_a_reason(tmp_path: Path) -> None:
    said = trainsim("validate", "--kind", "training", table(tmp_path / "rows.csv", ROWS), "--json")
    assert said.code == 0
    rows = said.record["rows"]
    assert [one["id"] for one in rows] == ["run-0", "run-1", "run-2", "run-3", "run-4"]
    assert [one["source_key"] for one in rows] == ["ours", "ours", "theirs", "theirs", "ours"]
    assert [one["skipped"] for one in rows] == [
        None,
        None,
        "tp, pp: blank, the row has no layout",
        "job.global_batch: 15 does not divide by dp 2 x microbatch_size 2",
        None,
    ]
    assert {one["unit"] for one in rows} == {"s"}
    for one in rows:
        assert (one["measured"], one["measured_memory_gb"]) == (0.5, 12.0)
        if not one["skipped"]:
            assert one["error"] == pytest.approx(one["predicted"] / 0.5 - 1)
            assert one["interval"][0] < one["predicted"] < one["interval"][1]
            assert one["memory_gb"] > 0
    assert rows[1]["note"].startswith("launch_blocking: ")
    assert (said.record["sources"]["ours"]["n"], said.record["overall"]["skipped"]) == (3, 2)


def test_notes_and_skips_are_printed_with_their_lines(tmp_path: Path) -> None:
    said = trainsim("validate", "--kind", "training", table(tmp_path / "rows.csv", ROWS))
    assert said.code == 0
    assert "note on 1: launch_blocking: " in said.out
    assert "skipped 1: tp, pp: blank, the row has no layout, line 4" in said.out
    assert said.out.splitlines()[0].split()[-1] == "error"
    assert "provenance" not in said.out, "steps of whole runs have none"


def test_a_row_is_run_as_its_scenario_is() -> None:
    scenario = load.scenario(scenario_of(row(**SMALL))[0])
    assert isinstance(scenario, Scenario)
    run = simulate_scenario(scenario, allow_oom=True)
    (made,) = compare_rows(training, [ROWS[0]], "rows").rows
    assert made.predicted == run.metrics.step_time_s
    assert made.interval is not None
    assert made.interval[1] == pytest.approx(run.step_time_interval_s[1])
    assert made.memory_gb == run.peak_memory_bytes / GB


def test_what_does_not_fit_in_memory_is_predicted_too() -> None:
    (made,) = compare_rows(training, [{**ROWS[0], **row(global_batch=512, micro_batch=64, hidden=16384, pp=1)}], "rows").rows
    assert made.predicted
    assert (made.memory_gb or 0) > 80


@pytest.mark.parametrize("kind", training.MEMORY)
def test_memory_counts_what_the_published_number_counts(kind: str) -> None:
    """Tensors are part of what the allocator reserves, and that of what the GPU shows."""
    tensors, reserved, shown = (
        compare_rows(training, [{**ROWS[0], "mem_kind": one}], "rows").rows[0].memory_gb or 0.0
        for one in ("allocated_peak", "reserved", "node_max")
    )
    assert tensors < reserved < shown
    (any_kind,) = compare_rows(training, ROWS[:1], "rows").rows
    assert shown * GIB == pytest.approx((any_kind.memory_gb or 0.0) * GB)


def test_the_predictor_sees_nothing_that_was_measured_and_no_source() -> None:
    assert not {*HIDDEN, *MEASURED, "flop_convention", "params_b"} & set(training.READS)


def test_shuffling_and_blanking_what_is_hidden_changes_no_prediction() -> None:
    rng = random.Random(1)
    changed = [{**one, **dict.fromkeys(HIDDEN, ""), "step_time_s": f"{i + 1}", "notes": f"{i}"} for i, one in enumerate(ROWS)]
    order = list(range(len(ROWS)))
    rng.shuffle(order)
    before = [one.predicted for one in compare_rows(training, ROWS, "before").rows]
    after = [one.predicted for one in compare_rows(training, [changed[i] for i in order], "after").rows]
    assert after == [before[i] for i in order]


def test_many_scenarios_are_shared_among_processes_with_the_same_result() -> None:
    rows = [{**ROWS[0], "global_batch": str(4 * n)} for n in range(1, training.FEW + 2)]
    together = [one.predicted for one in compare_rows(training, rows, "rows").rows]
    assert together == [compare_rows(training, [one], "rows").rows[0].predicted for one in rows]
    assert sorted(together) == together


def test_rows_that_share_a_session_have_the_outcomes_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, intervals and memory, of steps of many microbatches too, of which a session simulates fewer."""
    cells: list[dict[str, Any]] = [
        {},
        {"pp": 4, "global_batch": 256},
        {"pp": 2, "tp": 2, "global_batch": 128, "microbatch_size": 2},
    ]
    texts = [text for one in cells if isinstance(text := training._described({**ROWS[0], **row(**{**SMALL, **one})})[0], str)]
    session = ProcessSession()
    monkeypatch.setattr(training, "of_this_thread", lambda: session)
    shared = [training._run(text) for text in texts]
    monkeypatch.setattr(training, "of_this_thread", lambda: None)
    assert shared == [training._run(text) for text in texts]
    assert len({repr(one) for one in shared}) == len(cells)


def test_rows_of_equal_scenarios_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = training._run
    monkeypatch.setattr(training, "_run", lambda text: ran.append(text) or run(text))
    first, *_, last = compare_rows(training, ROWS, "rows").rows
    assert first.predicted == last.predicted
    assert len(ran) == 3


MODEL = load.model({"layers": 4, "hidden": 512, "heads": 8, "vocab": 51200, "gated_mlp": False})
FLOP = 16 * 256 * (6 * (12 * 4 * 512**2 + 51200 * 512) + 12 * 4 * 512 * 256)
"""Flop of a step with the whole attention."""
HALF_ATTENTION = 16 * 256 * 6 * 4 * 512 * 256
REPEATED = 16 * 256 * (24 * 4 * 512**2 + 4 * 4 * 512 * 256)


@pytest.mark.parametrize(
    ("cells", "step_s"),
    [
        ({"step_time_s": "2", "tokens_per_s_per_gpu": "1", "mfu": "0.5"}, 2.0),
        ({"tokens_per_s_per_gpu": "1024", "samples_per_s": "1"}, 16 * 256 / (1024 * 8)),
        ({"samples_per_s": "4", "tflops_per_gpu": "100"}, 4.0),
        ({"tflops_per_gpu": "100", "flop_convention": "full"}, FLOP / 8e14),
        ({"tflops_per_gpu": "100", "flop_convention": "causal"}, (FLOP - HALF_ATTENTION) / 8e14),
        ({"tflops_per_gpu": "100", "flop_convention": "hardware"}, FLOP / 8e14),
        ({"tflops_per_gpu": "100", "flop_convention": "hardware", "recompute": "full"}, (FLOP + REPEATED) / 8e14),
        ({"mfu": "0.5", "flop_convention": "full"}, FLOP / (8 * 156e12)),
        ({"mfu": "0.5", "hidden": "?"}, None),
        ({"step_time_s": "-1"}, None),
        ({}, None),
    ],
)
def test_the_measured_step_follows_from_what_was_published(cells: dict[str, str], step_s: float | None) -> None:
    assert training.measured({**row(**SMALL), **cells}) == (None if step_s is None else pytest.approx(step_s))


REFUSED = ("the row has no layout", "are not taken for dense decoders", "not modelled")
"""Reasons for which published rows are skipped."""


@pytest.mark.slow
@pytest.mark.skipif(not TABLE.exists(), reason="the table of published runs is not part of this project")
def test_published_rows_are_predicted_or_refused_by_name() -> None:
    """Every twelfth row: all of them take a quarter of an hour of one core, which `trainsim validate --kind training` spends."""
    rows = read(TABLE)[::12]
    found = compare_rows(training, rows, "training.csv").rows
    assert [one.id for one in found] == [one["id"] for one in rows]
    assert all(bool(one.predicted) != bool(one.skipped) for one in found)
    unexplained = {one.id: one.skipped for one in found if one.skipped and not any(why in one.skipped for why in REFUSED)}
    assert not unexplained


def test_a_table_may_lack_columns_that_only_a_published_rate_needs(tmp_path: Path) -> None:
    """The time of a step follows from TFLOP/s by the model, whose columns the table need not all have."""
    lacking = ("facts", "kv_heads", "vocab", "arch", "num_experts", "framework", "intra_node")
    rate = {"step_time_s": "", "tflops_per_gpu": "100", "flop_convention": "full"}
    rows = [{name: cell for name, cell in {**ROWS[0], **rate}.items() if name not in lacking}]
    said = trainsim("validate", "--kind", "training", table(tmp_path / "rows.csv", rows), "--json")
    (made,) = said.record["rows"]
    (whole,) = compare_rows(training, [{**ROWS[0], **rate}], "rows").rows
    assert made["measured"] == pytest.approx(whole.measured)
    assert made["measured"] > 0


def test_flop_are_counted_by_the_word_of_either_column() -> None:
    rate = {**ROWS[0], "step_time_s": "", "tflops_per_gpu": "100", "recompute": "full"}
    plain = training.measured(rate) or 0.0
    assert training.measured({**rate, "tflops_kind": "hardware"}) == training.measured({**rate, "flop_convention": "hardware"})
    assert (training.measured({**rate, "tflops_kind": "hardware", "recompute": "yes"}) or 0.0) > plain
    assert training.measured({**rate, "tflops_kind": "model"}) == plain


def test_a_utilisation_in_percent_is_noted_and_not_compared() -> None:
    used = {**ROWS[0], "step_time_s": "", "mfu": "41.2"}
    (made,) = compare_rows(training, [used], "rows").rows
    assert (made.measured, made.error, made.note) == (None, None, "mfu: '41.2' is no fraction of the peak, and is not compared")
    (fraction,) = compare_rows(training, [{**used, "mfu": "0.412"}], "rows").rows
    assert fraction.measured
    assert fraction.note is None


def test_cells_that_say_that_there_is_no_value_are_blank() -> None:
    blank, nothing = ({**ROWS[0], **dict.fromkeys(("vocab", "vpp", "recompute", "ep"), cell)} for cell in ("", "nan"))
    first, second = compare_rows(training, [blank, nothing], "rows").rows
    assert (first.predicted, second.skipped) == (second.predicted, None)
