"""How well the models predict measured kernels that they were not fitted to. Without the table of measurements: skipped."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.config import shipped_fits
from simulator.measurements import csv_tables
from simulator.validate import kernels
from simulator.validate.report import compare_rows
from simulator.validate.report import validate as run

from ..project.source import ROOT, study_script

TABLE = ROOT.parent / "shared" / "data" / "kernels.csv.gz"

pytestmark = pytest.mark.skipif(not TABLE.exists(), reason="needs ../shared/data/kernels.csv.gz")

LARGE = {"a100-80gb": (6, 14), "a100-pcie-80gb": (6, 14), "h100": (6, 14), "b200": (8, 18)}
"""Percent, mean and 90th percentile, of products of training size whose n or k was held out."""
ALL_SIZES, LONG_ATTENTION, LAYER_SUMS = 10, 8, 7
PREDICTED = 0.9


def make() -> Any:
    """The script that fits."""
    return study_script("kernels")


@cache
def table() -> Any:
    return make().measured([TABLE])


@cache
def fits() -> dict[str, Any]:
    """Every fit that has marks, by a name; of fp32 those of many rows."""
    if not TABLE.exists():
        return {}
    found = [t for t in make().tasks(table()) if t.gpu in LARGE and t.family in ("gemm", "attention")]
    return {f"{t.gpu} {t.family} {t.dtype} {t.library}": t for t in found}


@cache
def score(name: str) -> Any:
    """Errors of the rows that a fit to the others did not see."""
    task = fits()[name]
    return task.score_of(task.held_out())


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", fits())
def test_held_out_sizes(name: str) -> None:
    found = score(name)
    large = 100 * np.abs(found.errors[found.large])
    if fits()[name].family == "attention":
        assert large.mean() < LONG_ATTENTION
        return
    mean, p90 = LARGE[fits()[name].gpu]
    assert (100 * np.abs(found.errors)).mean() < ALL_SIZES
    assert large.mean() < mean
    assert np.quantile(large, 0.9) < p90


@pytest.mark.slow
@pytest.mark.parametrize("name", fits())
def test_other_held_out_sizes(name: str) -> None:
    """The same on average of five random draws of whole values."""
    own = fits()[name]
    scores = [own.score_of(own.drawn(seed)) for seed in range(make().model_errors.SPLITS)]
    large = 100 * np.mean([np.abs(s.errors[s.large]).mean() for s in scores])
    assert 100 * np.mean([np.abs(s.errors).mean() for s in scores]) < ALL_SIZES
    assert large < (LONG_ATTENTION if own.family == "attention" else LARGE[own.gpu][0])


def test_marks_say_what_is_met_and_what_is_missed_by_how_much() -> None:
    errors, marks = make().model_errors, {"all": 10.0, "large": 6.0, "large, p90": 14.0}
    found = {"all": 10.0, "large": 6.004, "large, p90": 14.2}
    assert errors.verdict(marks, {"all": 10.0}) == "all 10: met"
    assert errors.verdict(marks, found) == "all 10; large 6; large, p90 14: **missed** (large; large, p90)"
    assert errors.verdict({}, found) == "nothing"
    lines = list(errors.misses([("one", marks, found)]))
    assert lines[1:] == ["- one: large 6.00 where 6 was asked", "- one: large, p90 14.20 where 14 was asked"]
    assert list(errors.misses([("one", marks, {})])) == ["\nNothing is missed."]


def test_the_report_lists_every_miss_of_its_tables() -> None:
    text = (ROOT / "results" / "kernels" / "report.md").read_text(encoding="utf-8")
    every = []
    for section in text.split("\n## "):
        missed = [line.split("|") for line in section.splitlines() if "**missed**" in line]
        listed = list(dict.fromkeys(line[2:].partition(": ")[0] for line in section.splitlines() if line.startswith("- ")))
        cells = [" ".join(cell.strip() for cell in row) for row in missed]
        assert len(cells) == len(listed)
        assert all(cell.startswith(f" {name.split()[0]} ") for cell, name in zip(cells, listed, strict=True))
        assert all(set(name.split()) <= set(cell.split()) for cell, name in zip(cells, listed, strict=True))
        every += listed
    assert "a100-pcie-40gb gemm fp32 any" in every


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100"])
def test_layers_on_another_machine_after_one_scalar(gpu: str) -> None:
    rows = table()
    rows = rows[(rows.role == "site-scalar") & (rows.op == "gemm") & (rows.owner == gpu)]
    fit = make().chosen(list(shipped_fits.shipped().fits[gpu]), "gemm", "bf16")
    made = make().gemm(fit.constants, make().machine(gpu, "bf16"), rows)
    errors, scalar = make().model_errors.layer_sums(rows.assign(predicted=made))
    assert 100 * np.abs(errors).mean() < LAYER_SUMS
    assert 0.9 < scalar < 1.2


@cache
def report() -> Any:
    return compare_rows(kernels, csv_tables.read(TABLE), TABLE.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "gpu, op, percent",
    [
        ("A100-SXM-80", "rmsnorm", 12),
        ("A100-SXM-80", "swiglu", 12),
        ("A100-SXM-80", "rope", 12),
        ("A100-SXM-80", "embedding", 12),
        ("A100-SXM-80", "layernorm", 12),
        ("H100-SXM", "rmsnorm", 12),
        ("H100-SXM", "rope", 12),
        ("H100-SXM", "embedding", 12),
        ("H100-SXM", "layernorm", 12),
    ],
)
def test_eager_kernels_of_two_machines_before_any_scalar(gpu: str, op: str, percent: float) -> None:
    assert 100 * report().sources[f"{gpu}+{op}"]["median"] < percent


@pytest.mark.slow
def test_nearly_every_row_is_predicted_and_the_others_say_why() -> None:
    rows = report().rows
    predicted = [row for row in rows if row.predicted is not None]
    assert len(predicted) > PREDICTED * len(rows)
    assert all(row.skipped for row in rows if row.predicted is None)
    assert [row.id for row in rows] == list(range(len(rows)))


@pytest.mark.slow
def test_products_and_attention_of_the_whole_table() -> None:
    sources = report().sources
    for gpu in ("A100-SXM-80", "H100-SXM", "B200-SXM"):
        assert sources[f"{gpu}+gemm"]["median"] < 0.08
        assert sources[f"{gpu}+attention_fwd"]["median"] < 0.10
        assert sources[f"{gpu}+moe_ffn"]["median"] < 0.12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "op", "kernel", "percent"),
    [
        ("A100-SXM-80", "attention_fwd_bwd", "FA2", 7),
        ("H100-SXM", "attention_fwd", "FA3", 5),
        ("H100-SXM", "attention_bwd", "FA3", 8),
        ("H100-SXM", "attention_bwd", "cuDNN", 9),
        ("H100-SXM", "attention_bwd", "FA2", 15),
    ],
)
def test_published_attention_of_training(gpu: str, op: str, kernel: str, percent: float) -> None:
    """Kernels alone, as training runs them; most of these rows are in no fit."""
    rows = csv_tables.read(TABLE)
    found = [
        one for row, one in zip(rows, report().rows, strict=True) if (row["gpu"], row["op"], row["variant"]) == (gpu, op, kernel)
    ]
    assert len(found) >= 6
    assert 100 * np.median([abs(one.predicted / one.measured - 1) for one in found if one.predicted and one.measured]) < percent


def test_what_was_measured_is_not_seen() -> None:
    """Other times, sources and roles change no prediction; shuffled rows take theirs along."""
    rows = csv_tables.read(TABLE)[::500]
    blind = [{**row, "time_us": "1", "source": "", "role": ""} for row in rows]
    seen, unseen = (compare_rows(kernels, some, "x").rows for some in (rows, blind))
    assert [row.predicted for row in seen] == [row.predicted for row in unseen]
    turned = compare_rows(kernels, rows[::-1], "x").rows
    assert [row.predicted for row in turned[::-1]] == [row.predicted for row in seen]


@pytest.mark.slow
def test_the_command_takes_the_table() -> None:
    assert run("kernels", TABLE).as_dict()["overall"]["n"] > 0
