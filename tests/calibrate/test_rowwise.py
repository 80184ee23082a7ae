"""Memory-bound operators of a table of one's own: its profile predicts its rows as well as the fit claims."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from simulator.calibrate.fit_profile import GpuProfile, profile
from simulator.config import shipped_fits
from simulator.costs.kernels.gpu_model import machine
from simulator.costs.kernels.rowwise import RowwiseConstants, rowwise_s
from simulator.measurements import csv_tables
from simulator.measurements.kernel_table import Measured, text
from simulator.measurements.kernel_words import Probe, name_of, rowwise_of
from simulator.validate import kernels, report
from simulator.validate.report import Own

from ..commandline import trainsim

GPU, NAME = "h100", "NVIDIA H100 80GB HBM3"
TRUE = RowwiseConstants(launch_us=4.0, stream=0.92)
SIZES = [(m, n) for m in (4096, 16384, 65536, 131072) for n in (2048, 4096, 12288)]
WIDTH = {"bf16": 2, "fp32": 4}
PLAIN = [
    ("elementwise", "add", 3, 1.0), ("elementwise", "mul", 3, 1.0), ("elementwise", "relu", 2, 1.0),
    ("elementwise", "gelu", 2, 1.1), ("elementwise", "dropout", 2, 1.24), ("layernorm", "", 2, 1.3), ("rmsnorm", "", 2, 1.2),
    ("elementwise_bwd", "dropout", 3, 0.95), ("elementwise_bwd", "mul", 3, 1.7), ("elementwise_bwd", "silu", 3, 1.1),
    ("elementwise_bwd", "tanh", 2, 1.5), ("layernorm_bwd", "", 3, 1.9), ("softmax_bwd", "", 3, 2.1),
    ("embedding_bwd", "", 3, 2.5),
]  # fmt: skip
"""Operators in bf16 as a survey times them: how often they move their elements, and how much slower than pointwise ones."""
ONE_BY_ONE = [
    ("elementwise", "torch2.1 add", 3, 1.0), ("elementwise", "mul fwd", 2, 1.0), ("elementwise", "pow fwd", 2, 1.0),
    ("elementwise_bwd", "drop bwd(all grads)", 6.25, 1.12), ("elementwise_bwd", "mul bwd(all grads)", 2, 0.95),
    ("elementwise_bwd", "tanh bwd(all grads)", 3, 0.97), ("elementwise_bwd", "pow bwd(all grads)", 7, 1.02),
    ("elementwise_bwd", "truediv bwd(all grads)", 2, 1.06), ("elementwise_bwd", "where bwd(all grads)", 2.25, 1.08),
    ("elementwise_bwd", "gelu bwd(all grads)", 3, 0.92), ("elementwise_bwd", "add bwd(all grads)", 0, 0.6),
    ("layernorm_bwd", "bwd(all grads)", 3, 1.9), ("softmax", "fwd", 2, 1.2), ("embedding_bwd", "bwd(all grads)", 3, 6.5),
]  # fmt: skip
"""The same in fp32 as eager PyTorch runs them one by one, whose backward passes are several kernels."""
TABLES = {"bf16": PLAIN, "fp32": ONE_BY_ONE}


def rows(*dtypes: str, cold: bool = False) -> list[Measured]:
    """Rows of those operators, each 2% off to one side or the other."""
    made = []
    for dtype in dtypes:
        on = machine(shipped_fits.gpu(GPU), "")
        on = replace(on, cache_bytes=0.0) if cold else on
        for op, variant, passes, times in TABLES[dtype]:
            for i, (m, n) in enumerate(SIZES):
                took_s = times * float(rowwise_s(TRUE, on, passes * WIDTH[dtype] * m * n)) * (0.98 if i % 2 else 1.02)
                made.append(Measured(NAME, Probe(op, dtype, m, n, variant=variant), took_s, source="mine", cold=cold))
    return made


def claims(found: GpuProfile) -> dict[str, float]:
    """By operator, the error that a fit claims; nothing, that of pointwise kernels."""
    (judged,) = found.fits
    return {"": judged.fit.sigma} | {op: ratio[1] for op, ratio in judged.fit.ratios.items()}


@pytest.mark.parametrize("dtypes", [("bf16",), ("fp32",), ("bf16", "fp32")], ids=" and ".join)
def test_a_table_is_predicted_by_its_own_profile_as_well_as_the_fit_claims(tmp_path: Path, dtypes: tuple[str, ...]) -> None:
    table = rows(*dtypes)
    found = profile(table, shipped_fits.gpu(GPU), shipped_fits.shipped())
    assert not found.unused
    claimed = claims(found)
    (tmp_path / "table.csv").write_text(text(table))
    assert trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml").code == 0
    own = Own("", str(tmp_path / "mine.yaml"))
    told = report.compare_rows(kernels, csv_tables.read(tmp_path / "table.csv"), "table", own).rows
    errors: dict[str, list[float]] = defaultdict(list)
    for row, one in zip(table, told, strict=True):
        assert one.predicted is not None, one.skipped
        kernel = rowwise_of(row.probe)
        assert kernel is not None
        errors[kernel.op].append(abs(one.predicted * 1e-6 / row.seconds - 1))
        assert one.provenance == "measured", row.probe
    assert errors.keys() > claimed.keys() - {""}
    for op, some in errors.items():
        assert median(some) <= claimed.get(op, claimed[""]), op
    assert max(claimed.values()) <= 0.1


def test_backward_rows_that_were_timed_one_by_one_have_ratios_of_their_own() -> None:
    """Beside those of a survey: each belongs to its own count of bytes."""
    (judged,) = profile(rows("bf16", "fp32"), shipped_fits.gpu(GPU), shipped_fits.shipped()).fits
    told = {op: ratio[0] for op, ratio in judged.fit.ratios.items()}
    wanted = {"dropout": 0.95, "autograd_dropout": 1.12, "mul": 1.7, "autograd_mul": 0.95, "tanh": 1.5, "autograd_tanh": 0.97}
    wanted |= {"embedding": 2.5, "one_id_embedding": 6.5, "autograd_add": 0.6, "autograd_pow": 1.02}
    assert {name: told[f"{name}_backward"] for name in wanted} == pytest.approx(wanted, rel=0.05)  # TOLERANCE: rows are 2% off


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm", "gelu", "dropout_backward", "layernorm_backward", "embedding_backward"])
def test_own_fits_come_first_eager_or_not(tmp_path: Path, op: str) -> None:
    (tmp_path / "table.csv").write_text(text(rows("bf16")))
    trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml")
    asked = ("kernel", op, "--gpu", GPU, "-m", 16384, "-n", 4096, "--profile", tmp_path / "mine.yaml", "--json")
    eager, fused = trainsim(*asked, "--eager").record, trainsim(*asked).record
    assert eager == fused
    assert eager["provenance"] == "measured"
    (row,) = (
        one for one in rows("bf16")
        if (one.probe.m, one.probe.n) == (16384, 4096)
        and f"{name_of(one.probe.op, one.probe.variant)}{'_backward' * one.probe.op.endswith('_bwd')}" == op
    )  # fmt: skip
    assert eager["time_us"] * 1e-6 == pytest.approx(row.seconds, rel=0.05)  # TOLERANCE: the row is 2% off


def test_what_was_not_fitted_claims_no_error(tmp_path: Path) -> None:
    """Ratios to pointwise kernels that ship: of those nothing was measured here."""
    (tmp_path / "table.csv").write_text(text([row for row in rows("bf16") if row.probe.op == "layernorm"]))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml").out
    assert "layernorm" in said
    assert "standard error" not in said
    assert "not measured: rowwise" in said


# A cold cache ---------------------------------------------------------------------------------------------------------------

SMALL = [(m, 4096) for m in (256, 512, 1024, 2048, 4096, 16384)]
"""Most of these fit into a cache of 50 MB."""


def small(op: str, variant: str, passes: int, *, cold: bool) -> list[Measured]:
    on = machine(shipped_fits.gpu(GPU), "")
    on = replace(on, cache_bytes=0.0) if cold else on
    times = [float(rowwise_s(TRUE, on, passes * 2 * m * n)) for m, n in SMALL]
    probes = [Probe(op, "bf16", m, n, variant=variant) for m, n in SMALL]
    return [Measured(NAME, probe, took_s, cold=cold) for probe, took_s in zip(probes, times, strict=True)]


def errors_of(path: Path, profile_path: Path) -> list[float]:
    own = Own("", str(profile_path))
    return [abs(row.error or 0.0) for row in report.compare_rows(kernels, csv_tables.read(path), "table", own).rows]


def test_a_cold_cache_is_read_alike_by_fit_and_validate_row_by_row(tmp_path: Path) -> None:
    """Rows with a warm one in the same table too: the constants of all are the same."""
    table = [*small("elementwise", "add", 3, cold=True), *small("copy", "d2d", 2, cold=False)]
    (tmp_path / "table.csv").write_text(text(table))
    assert trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml").code == 0
    (fit,) = shipped_fits.load(tmp_path / "mine.yaml")[1]
    assert isinstance(fit.constants, RowwiseConstants)
    assert (fit.constants.launch_us, fit.constants.stream) == pytest.approx((4.0, 0.92), rel=0.02)
    assert max(errors_of(tmp_path / "table.csv", tmp_path / "mine.yaml")) < 0.02
    (tmp_path / "unsaid.csv").write_text(text([replace(row, cold=False) for row in table]))
    assert max(errors_of(tmp_path / "unsaid.csv", tmp_path / "mine.yaml")) > 0.1, "the cache matters at these sizes"


def test_a_cache_that_is_neither_cold_nor_warm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text(small("elementwise", "add", 3, cold=True)).replace(",cold\n", ",tepid\n", 1))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv")
    assert (said.code, "table.csv:2: cache: 'tepid' is neither cold nor warm" in said.err) == (2, True)
    first, second, *_ = report.compare_rows(kernels, csv_tables.read(tmp_path / "table.csv"), "table").rows
    assert first.skipped == "cache: 'tepid' is neither cold nor warm"
    assert second.skipped is None


# Rows that are too small for a ratio ------------------------------------------------------------------------------------------


def with_small_rows() -> list[Measured]:
    """An operator that streams 2.2 times as long as a pointwise kernel and waits for one launch as that does."""
    plain = [*small("elementwise", "add", 3, cold=True), *(row for row in rows("bf16", cold=True) if row.probe.variant == "add")]
    norms = [replace(row, probe=replace(row.probe, op="rmsnorm_bwd", variant="")) for row in plain]
    launch_s = TRUE.launch_us * 1e-6
    return [*plain, *(replace(row, seconds=launch_s + 2.2 * (row.seconds - launch_s)) for row in norms)]


def test_a_ratio_claims_its_error_at_the_sizes_that_it_was_judged_at(tmp_path: Path) -> None:
    """Smaller rows are counted, and as far off as they are by it is what is claimed of such kernels."""
    table = with_small_rows()
    (tmp_path / "table.csv").write_text(text(table))
    said = trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml", "--json").record
    (ratio,) = said["ratios"]
    counted = sum(row.probe.op == "rmsnorm_bwd" for row in table)
    assert (ratio["rows"] + ratio["smaller_rows"], said["unused"]) == (counted, {})
    assert ratio["smaller_error"] > 2 * ratio["error"]
    told = report.compare_rows(kernels, csv_tables.read(tmp_path / "table.csv"), "table", Own("", str(tmp_path / "mine.yaml")))
    judged: list[Any] = [row for row in told.rows if "rmsnorm_bwd" in row.source_key]
    assert sum(row.extrapolated for row in judged) == ratio["smaller_rows"]
    assert all(row.interval[0] <= row.measured <= row.interval[1] for row in judged)
    assert "smaller rows" in trainsim("calibrate", "fit", tmp_path / "table.csv", "--out", tmp_path / "mine.yaml").out
