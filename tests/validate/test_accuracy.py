"""results/validation: scores, halves of sources, calibrated intervals, and pages that follow from the stored predictions."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config.document import Document
from simulator.config.named_parts import Trust
from simulator.config.scenario import from_document
from simulator.config.step_constants import model_error, step_constants
from simulator.measurements.training_rows import scenario_of
from simulator.validate import training
from simulator.validate.report import compare_rows

from ..made_up_runs import row
from ..project.source import study_script

made = study_script("validation")
rows, halves, ablations = made.published_rows, made.halves, made.ablations
baselines, checks = made.accuracy_pages.baselines, made.accuracy_pages.checks


def run(number: int, error: float, source: str = "ours", **fields: Any) -> Any:
    """A run whose published step is one second."""
    plain = {"tier": "A", "derived": "", "gpu": "h100", "gpus": 8, "dtype": "bf16", "experts": "dense", "parallelism": "FSDP"}
    plain |= {
        "of_rows": 1,
        "model": "2 x 128",
        "schedule": "1f1b",
        "tflop": 100.0,
        "tokens": 2048,
        "recompute": "none",
        "framework": "none",
        "states": "",
        "sigma": 0.02,
    }
    plain |= {"memory_gb": None, "measured_memory_gb": None, "skipped": "", "note": ""}
    plain |= {"measured_s": 1.0, "predicted_s": 1 + error}
    return rows.PublishedRun(id=f"run-{number}", source=source, **{**plain, **fields})


ERRORS = st.lists(st.floats(-0.5, 1.0), min_size=1, max_size=40)


@given(ERRORS)
@settings(max_examples=40)
def test_nine_in_ten_intervals_hold_what_was_published_and_no_smaller_error_does(errors: list[float]) -> None:
    runs = [run(i, error, sigma=0.01 * (i % 5)) for i, error in enumerate(errors)]
    error = halves.calibrated(runs)
    assert halves.coverage(runs, error).rows >= 0.9
    if error > 0:
        assert halves.coverage(runs, error * (1 - 1e-9)).rows < 0.9


def test_an_interval_holds_a_step_two_errors_away() -> None:
    """The errors of kernels and collectives, and that of the model, are independent."""
    whole = math.hypot(0.03, 0.04)
    just = run(0, math.expm1(2 * whole), sigma=0.03)
    assert halves.needed(just) == pytest.approx(0.04)
    assert halves.needed(run(0, math.expm1(-2 * whole), sigma=0.03)) == pytest.approx(0.04)
    assert halves.calibrated([just] * 5, centred=True) == 0.0


def test_p90_is_the_smallest_error_that_nine_in_ten_do_not_exceed() -> None:
    assert halves.p90([0.1 * i for i in range(1, 11)]) == pytest.approx(0.9)
    assert halves.p90([0.3]) == 0.3


@given(st.lists(ERRORS, min_size=4, max_size=8).filter(lambda of: len(of) % 2 == 0))
@settings(max_examples=15)
def test_with_nothing_fitted_the_halves_have_the_errors_of_all_sources(of_sources: list[list[float]]) -> None:
    runs = [run(i, error, source=f"source {k}") for k, errors in enumerate(of_sources) for i, error in enumerate(errors)]
    plain = halves.headline(runs, lambda one: one.error)
    split = halves.two_way(runs, lambda _: None, lambda one, _: one.error)
    assert (split.median, split.p90, split.bias) == pytest.approx((plain.median, plain.p90, plain.bias))
    for one, other in halves.halves(runs):
        assert not {each.source for each in one} & {each.source for each in other}
        assert len(one) + len(other) == len(runs)


def test_rows_that_were_skipped_do_not_count_as_predicted() -> None:
    counted, runs = made.accuracy_pages.counted, [run(i, 0.1, of_rows=4) for i in range(4)]
    in_vain = run(3, 0.0, of_rows=4, predicted_s=None, skipped="no such GPU")
    assert counted(runs) == "all 4 rows of 1 sources"
    assert counted([*runs[:3], in_vain]) == "3 of the 4 rows of 1 sources (1 skipped)"
    assert counted([*runs[:2], in_vain]) == "2 of the 4 rows of 1 sources (1 skipped)"
    assert counted(runs[:2]) == "2 of the 4 rows of 1 sources"


def test_a_factor_removes_a_common_error_and_a_constant_mfu_fits_runs_of_one_mfu() -> None:
    runs = [run(i, -0.2, source=f"source {i % 4}", variants={"mfu": 0.5}) for i in range(12)]
    assert halves.two_way(runs, baselines.factor, baselines.error_without).p90 == pytest.approx(0.0, abs=1e-12)
    assert halves.two_way(runs, baselines.constant_mfu, baselines.mfu_error).p90 == pytest.approx(0.0, abs=1e-12)
    assert baselines.implied_mfu(runs[0]) == pytest.approx(0.4)


def test_the_best_factor_is_what_sources_ask_for_each_counting_once() -> None:
    runs = [run(i, 1 / 1.05 - 1, source=f"source {i}") for i in range(3)] + [run(i, 0.0, source="large") for i in range(3, 9)]
    assert math.exp(-baselines.best_factor(runs)) == pytest.approx(1.05)
    assert halves.two_way(runs[:3] * 2, baselines.best_factor, baselines.error_without).p90 == pytest.approx(0.0, abs=1e-12)


def test_speeds_are_compared_relative_to_1f1b_and_to_the_smallest_run() -> None:
    slow, quick = run(0, 0.1), run(1, 0.0, schedule="zb-auto 1.0", measured_s=0.8, predicted_s=0.88)
    assert checks.speed_ups([slow, quick]) == pytest.approx([0.0])
    assert checks.speed_ups([quick]) == []
    large = run(2, 0.0, gpus=64, tflop=50.0, measured_s=0.5, predicted_s=0.6)
    assert checks.scaling([large, slow]) == pytest.approx([100 * (1.1 * 0.5 / 0.6 - 1.0)])
    assert checks.ranking([slow, quick]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ablations.VARIANTS)
def test_every_ablation_is_a_legal_scenario_of_its_own(name: str) -> None:
    facts = {"framework_profile": "megatron-deepspeed-2022", "framework_date": "2022-02", "tp": 2, "sp": 0, "recompute": "full"}
    scenario = json.loads(json.dumps(scenario_of(row(gpus=16, **facts))[0]))
    usual = from_document(Document.of(scenario), Trust())
    assert from_document(Document.of(ablations.changed(scenario, ablations.VARIANTS[name].fields)), Trust()) != usual


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = [run(0, 0.1, variants={"burst": 1.5}), run(1, 0.2, predicted_s=None, skipped="no layout, here")]
    rows.write(runs, tmp_path / "rows.csv")
    assert rows.read(tmp_path / "rows.csv") == runs


def test_a_sample_is_spread_over_each_source() -> None:
    table = [{"source_key": "a", "id": str(i)} for i in range(20)] + [{"source_key": "b", "id": "0"}]
    assert [one["id"] for one in rows.thinned(table, 3)] == ["0", "7", "14", "0"]
    assert rows.thinned(table, 0) == table


@cache
def pages_made_anew() -> dict[Path, str]:
    pages: dict[Path, str] = made.pages(stored())
    return pages


def stored() -> Any:
    return rows.read(made.PREDICTIONS)


@pytest.mark.parametrize("path", made.TEXTS, ids=lambda path: path.name)
def test_docs_accuracy_and_the_report_are_those_of_the_stored_predictions(path: Path) -> None:
    """`python results/validation/make.py` writes them anew."""
    assert path.read_text(encoding="utf-8") == pages_made_anew()[path]


def test_what_arithmetic_loses_beside_communication_is_the_middle_of_what_halves_choose() -> None:
    shipped, found = step_constants()["arithmetic beside communication"], made.accuracy_pages.beside.by_halves(stored())
    assert (found.chosen[0], found.chosen[2]) == shipped.interval
    assert found.chosen[1] == shipped.value
    assert found.fitted < found.plain  # on the sources that were not used


def test_a_row_is_told_apart_by_its_scenario() -> None:
    """And its error of kernels and collectives is what the interval holds beside the model error."""
    small = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn_hidden": 2048, "seq_len": 256, "global_batch": 16}
    stated = {**row(**small), "id": "run-0", "source_key": "ours", "tier": "B", "step_time_s": "0.5", "mem_gb": "10"}
    (found,) = rows.predicted([stated] * 3, [stated])
    assert (found.id, found.source, found.of_rows, found.tier, found.gpu, found.gpus) == (
        "run-0",
        "ours",
        3,
        "B",
        "a100-80gb",
        16,
    )
    assert (found.parallelism, found.experts, found.generation, found.length) == ("pipeline", "dense", "Ampere", "to 2,048")
    (made,) = compare_rows(training, [stated], "rows").rows
    assert made.interval
    assert made.predicted
    whole = math.log(made.interval[1] / made.predicted) / 2
    assert math.hypot(found.sigma, model_error()) == pytest.approx(whole, rel=1e-4)
    assert found.error == pytest.approx(made.error, rel=1e-4)
