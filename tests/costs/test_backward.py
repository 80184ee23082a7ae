"""Backward passes of memory-bound operators: what they move, what is told of them per GPU, and what was measured."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import pandas as pd
import pytest

from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator, Options
from simulator.costs.kernels.family import Fit
from simulator.costs.kernels.fit_choice import BORROWED_SIGMA
from simulator.costs.kernels.rowwise import (
    AUTOGRAD,
    BACKWARD,
    BACKWARD_OPERATORS,
    HANDED_ON_US,
    LOOKUP_SIGMA,
    ONE_ID,
    OPERATOR_US,
    UNTIMED_SIGMA,
    RowwiseConstants,
    is_one_by_one,
    is_timed,
    ratios_of,
)
from simulator.errors import UserError
from simulator.kernels import Rowwise
from simulator.measurements import csv_tables
from simulator.measurements.kernel_words import WIDTH
from simulator.validate import kernels, report

from ..commandline import trainsim
from ..project.source import ROOT, study_script

TABLE = ROOT.parent / "shared" / "data" / "kernels.csv.gz"
GPUS = ("a100-pcie-80gb", "v100-pcie-32gb")
"""Those of which backward rows exist."""
PRODUCTS = ("gemm", "bmm")
ROW = {"gpu": "v100-pcie-32gb", "dtype": "fp32", "m": "65536", "n": "4096", "time_us": "1"}


def fit_of(gpu: str) -> Fit:
    (fit,) = (fit for fit in shipped_fits.shipped().fits[gpu] if fit.family == "rowwise")
    return fit


def predicted_us(**words: str) -> float:
    (row,) = report.compare_rows(kernels, [{**ROW, **words}], "t.csv").rows
    assert row.predicted is not None, row.skipped
    return row.predicted


# As measured ----------------------------------------------------------------------------------------------------------------


@cache
def passes() -> dict[str, Any]:
    """Every operator's backward pass on every GPU that has rows of it, as the report judges it."""
    if not TABLE.exists():
        return {}
    table, rows = study_script("kernels").measured([TABLE]), csv_tables.read(TABLE)
    timed = set(table[table.op.isin([f"{name}_bwd" for name in PRODUCTS])].gpu)
    """Only boards of these rows are predicted: every worker does it before its first test."""
    kept = table.gpu.isin(timed)
    told = report.compare_rows(kernels, [row for row, keep in zip(rows, kept, strict=True) if keep], TABLE.name).rows
    predicted = pd.Series([row.predicted for row in told], index=table.index[kept])
    found = study_script("kernels", "backward").passes(table[kept], predicted, shipped_fits.shipped())
    return {f"{one.gpu} {one.name}": one for one in found}


needs_the_table = pytest.mark.skipif(not TABLE.exists(), reason="needs ../shared/data/kernels.csv.gz")


def error_of(one: Any) -> float:
    """That of its ratio; without one, what is said of such an operator, or of products on a sister of the board."""
    if one.ratio:
        return float(one.ratio[1])
    if one.name in PRODUCTS:
        return math.hypot(one.fit.sigma, BORROWED_SIGMA)
    return LOOKUP_SIGMA if one.name == "embedding" else float(one.fit.sigma)


def forward_error_of(one: Any) -> float:
    """What is said of its forward pass."""
    if one.name in PRODUCTS:
        return float(one.fit.sigma)
    told = one.fit.ratios.get(one.name)
    known = told[1] if told else one.fit.sigma if is_timed(one.name) else one.fit.sigma + UNTIMED_SIGMA
    return LOOKUP_SIGMA if one.name == "embedding" else float(known)


@needs_the_table
def test_every_backward_operator_with_rows_is_judged() -> None:
    names = {key: {name.split()[1] for name in passes() if name.startswith(key)} for key in GPUS}
    known = {name.removeprefix(AUTOGRAD).removeprefix(ONE_ID) for name in BACKWARD_OPERATORS}
    every = {"add", *PRODUCTS, *known} - {"relu"}
    assert names == dict.fromkeys(GPUS, every)
    table = study_script("kernels").measured([TABLE])
    rows = table[table.op.str.endswith("_bwd") & ~table.op.str.contains("attention") & (table.dtype == "fp32")]
    assert sum(len(one.rows) for one in passes().values()) == len(rows)


@pytest.mark.thinned(3)
@needs_the_table
@pytest.mark.parametrize("name", passes())
def test_backward_times_are_those_measured(name: str) -> None:
    """By rows of other sizes, or of another run for products, the median row is as near as the fit says that most are."""
    one = passes()[name]
    assert abs(median(one.errors if one.name in PRODUCTS else one.held_out)) <= error_of(one)


@pytest.mark.thinned(3)
@needs_the_table
@pytest.mark.parametrize("name", [name for name in passes() if name.split()[1] not in PRODUCTS])
def test_held_out_sizes_are_as_far_off_as_the_report_says(name: str) -> None:
    one = passes()[name]
    row = re.search(rf"^\| {one.gpu} \| {one.name} \|(.*)\|$", (ROOT / "results/kernels/report.md").read_text(), re.MULTILINE)
    assert row
    told, _ = row[1].split("|")[4].split("/")
    assert 100 * median(map(abs, one.held_out)) == pytest.approx(float(told), abs=0.051)  # TOLERANCE: a printed digit


@needs_the_table
@pytest.mark.parametrize("name", [name for name in passes() if not name.endswith(" add")])
def test_backward_over_forward_is_as_measured(name: str) -> None:
    """To the errors of both fits; an addition launches nothing backward."""
    one = passes()[name]
    measured, predicted = one.over_forward()
    down = forward_error_of(one)
    up = down if one.name in PRODUCTS else error_of(one)
    assert (1 - up) / (1 + down) <= predicted / measured <= (1 + up) / (1 - down)


@needs_the_table
@pytest.mark.parametrize("gpu", GPUS)
def test_an_additions_backward_pass_launches_nothing(gpu: str) -> None:
    """One time for all sizes, which lie far apart: within the error of the fit for the median row of a size that was not seen,
    and within a fifth for nine rows of ten."""
    one = passes()[f"{gpu} add"]
    slow, fast = one.rows.time_us.max(), one.rows.time_us.min()
    assert median(map(abs, one.held_out)) <= one.fit.sigma
    assert one.rows.predicted.nunique() == 1
    assert sum(abs(error) < 0.2 for error in one.held_out) >= 0.9 * len(one.rows)  # TOLERANCE: they differ by 1.3 themselves
    assert slow / fast < 1.3 < one.rows.m.max() * one.rows.n.max() / (one.rows.m.min() * one.rows.n.min())


# What they move -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "op", "passes"),
    [
        ("mul", f"{AUTOGRAD}mul", 2), ("truediv", "truediv", 2), ("where", f"{AUTOGRAD}where", 2.25), ("gelu", "gelu", 3),
        ("tanh", f"{AUTOGRAD}tanh", 3), ("pow", f"{AUTOGRAD}pow", 7), ("dropout", f"{AUTOGRAD}dropout", 6.25),
    ],
)  # fmt: skip
def test_backward_passes_stream_what_autograd_moves(name: str, op: str, passes: float) -> None:
    """As plain copies of as many bytes do, but for what is told of this GPU; none is faster than its bytes."""
    fit = fit_of(ROW["gpu"])
    around_us = fit.beside[OPERATOR_US]
    back = predicted_us(op="elementwise_bwd", variant=f"{name} bwd(all grads)") - around_us
    copied = predicted_us(op="elementwise", variant="torch2.1 relu") - around_us
    times, constants = fit.ratios[f"{op}{BACKWARD}"][0], fit.constants
    assert isinstance(constants, RowwiseConstants)
    assert back / copied == pytest.approx(max(times, constants.stream) * passes / 2, rel=0.01)
    assert 0.85 < times < 1.2  # TOLERANCE: no kernel of these is far from a copy, or the passes are miscounted


def test_what_a_framework_takes_around_an_operator_is_of_rows_that_were_timed_so() -> None:
    fit, plain = fit_of(ROW["gpu"]), {"op": "elementwise", "variant": "relu"}
    assert predicted_us(op="elementwise", variant="torch2.1 relu") - predicted_us(**plain) == pytest.approx(
        fit.beside[OPERATOR_US]
    )
    handed_on = predicted_us(op="elementwise_bwd", variant="add bwd(all grads)")
    assert handed_on == pytest.approx(fit.beside[HANDED_ON_US] + 1.5)
    assert handed_on == predicted_us(op="elementwise_bwd", variant="add bwd(all grads)", m="1", n="1")


@pytest.mark.parametrize("variant", ["torch2.1 add", "torch2.1 ln", "fwd", "gelu fwd", "bwd(all grads)", "pow bwd(all grads)"])
def test_rows_that_were_timed_one_by_one(variant: str) -> None:
    assert is_one_by_one("fp32", variant)
    assert not is_one_by_one("bf16", variant)
    assert not is_one_by_one("fp32", variant.removeprefix("torch2.1 ").removesuffix("fwd").removesuffix("bwd(all grads)"))


# Per GPU, and shared ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["softmax", "layernorm", "gelu"])
def test_the_ratio_for_all_gpus_is_near_those_of_each(op: str) -> None:
    """As near as a ratio from another GPU is said to be."""
    for gpu in GPUS:
        own, _ = fit_of(gpu).ratios[f"{op}{BACKWARD}"]
        assert ratios_of(f"{op}{BACKWARD}").backward == pytest.approx(own, rel=UNTIMED_SIGMA)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_with_rows_follows_them(gpu: str) -> None:
    on, kernel = shipped_fits.gpu(gpu), Rowwise("softmax_backward", 65536, 4096, 1, 12)
    own, other = (Estimator(one, "fp32", shipped_fits.shipped(), Options(eager=True)) for one in (on, shipped_fits.gpu("t4")))
    times, error = fit_of(gpu).ratios["softmax_backward"]
    pointwise = own.estimate(Rowwise("add", 65536, 4096, 1, 12))
    said = own.estimate(kernel)
    assert (said.seconds, said.sigma, said.provenance) == (pytest.approx(times * pointwise.seconds), error, "measured")
    assert other.estimate(kernel).provenance == "transferred"


def test_look_ups_backward_are_hardly_known_where_their_rows_tell_nothing() -> None:
    assert f"{ONE_ID}embedding{BACKWARD}" not in fit_of("v100-pcie-32gb").ratios
    by = Estimator(shipped_fits.gpu("v100-pcie-32gb"), "fp32", shipped_fits.shipped(), Options(eager=True))
    for op in ("embedding_backward", f"{ONE_ID}embedding_backward"):
        assert by.estimate(Rowwise(op, 4096, 1024, 1, 12)).sigma > LOOKUP_SIGMA


# One ratio, one count of passes ------------------------------------------------------------------------------------------------


def kernel_us(op: str, *more: str, gpu: str = "a100-pcie-80gb", dtype: str = "fp32") -> tuple[float, str, float]:
    """What `trainsim kernel` says of 65536 x 4096: microseconds, whose word it is, and its relative error."""
    said = trainsim("kernel", op, "--gpu", gpu, "--dtype", dtype, "-m", 65536, "-n", 4096, *more, "--json").record
    return said["time_us"], said["provenance"], said["sigma"]


@pytest.mark.parametrize("name", ["mul", "dropout"])
def test_what_autograd_runs_is_what_its_rows_say(name: str) -> None:
    """In eager fp32 the passes and the ratio of the rows."""
    row = {"op": "elementwise_bwd", "variant": f"{name} bwd(all grads)", "gpu": "a100-pcie-80gb"}
    eager_us, provenance, _ = kernel_us(f"{name}_backward", "--eager")
    assert eager_us == pytest.approx(predicted_us(**row) - fit_of("a100-pcie-80gb").beside[OPERATOR_US])
    assert provenance == "measured"


@pytest.mark.parametrize("name", ["add", "mul", "dropout"])
def test_a_fused_framework_takes_what_workloads_count(name: str) -> None:
    """With the ratio that all GPUs share."""
    fused_us, provenance, sigma = kernel_us(f"{name}_backward")
    assert fused_us == pytest.approx(ratios_of(name).backward * kernel_us("add")[0], rel=0.01)  # TOLERANCE: a launch beside it
    assert (provenance, sigma >= UNTIMED_SIGMA) == ("transferred", True)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize(("name", "passes", "mask_bytes"), [("add", 0, 0), ("mul", 2, 0), ("dropout", 6, 1)])
def test_autograd_runs_the_same_in_every_format(name: str, passes: float, mask_bytes: int, dtype: str) -> None:
    asked = ("kernel", f"{name}_backward", "--gpu", "a100-80gb", "--dtype", dtype, "-m", 65536, "-n", 4096, "--eager", "--json")
    record = trainsim(*asked).record
    each = record["gb_per_s"] * record["time_us"] * 1e3 / (65536 * 4096)
    assert each == pytest.approx(passes * WIDTH[dtype] + mask_bytes)


@pytest.mark.parametrize("op", ["add_backward", "elementwise_bwd"])
@pytest.mark.parametrize("gpu", ["a100-80gb", "h100", "v100-pcie-32gb"])
def test_handing_a_gradient_on_takes_no_time(gpu: str, op: str) -> None:
    """Its rows hold what the framework takes on the host, as much for each size; a sum that is computed is a `residual`."""
    asked = ("kernel", op, "--gpu", gpu, "--dtype", "fp32", "-m", 16384, "-n", 8192)
    record = trainsim(*asked, "--eager", "--json").record
    assert [record[name] for name in ("time_us", "sigma", "tflop_per_s", "gb_per_s")] == [0, 0, 0, 0]
    assert "nothing is launched" in trainsim(*asked, "--eager").out
    summed = ("kernel", "residual_backward", *asked[2:])
    assert trainsim(*summed, "--eager", "--json").record["time_us"] == trainsim(*asked, "--json").record["time_us"] > 100


def test_a_run_with_dropout_takes_the_ratio_of_all_gpus() -> None:
    """Its three passes are not those of which the ratio of autograd tells, eager or not."""
    kernel = Rowwise("dropout_backward", 65536, 4096, 4, 12)
    for eager in (False, True):
        by = Estimator(shipped_fits.gpu("a100-pcie-80gb"), "fp32", shipped_fits.shipped(), Options(eager=eager))
        made, pointwise = by.estimate(kernel), by.estimate(replace(kernel, op="add"))
        assert made.seconds == pytest.approx(ratios_of("dropout").backward * pointwise.seconds, rel=0.01)  # TOLERANCE: a launch
        assert made.provenance == "transferred"


@pytest.mark.parametrize("eager", [[], ["--eager"]], ids=["fused", "eager"])
def test_look_ups_of_one_id_do_not_set_what_runs_take(eager: list[str]) -> None:
    """A board with such rows takes as long as its sister, but for the rates of their memories."""
    times = {gpu: kernel_us("embedding_backward", *eager, gpu=gpu, dtype="bf16") for gpu in ("a100-80gb", "a100-pcie-80gb")}
    rate = {gpu: shipped_fits.gpu(gpu).memory_bytes_per_s for gpu in times}
    one, other = ((took_us * rate[gpu], sigma) for gpu, (took_us, _, sigma) in times.items())
    assert one[0] == pytest.approx(other[0], rel=0.02)  # TOLERANCE: launches, and the fits of two boards
    assert min(one[1], other[1]) >= LOOKUP_SIGMA
    row = {"op": "embedding_bwd", "variant": "bwd(all grads)", "gpu": "a100-pcie-80gb"}
    assert predicted_us(**row) > 1.05 * kernel_us("embedding_backward", "--eager")[0]


@pytest.mark.parametrize("gpu", shipped_fits.shipped().fits)
def test_ratios_that_ship_are_of_the_bytes_that_workloads_count_or_say_otherwise(gpu: str) -> None:
    """No operator whose backward pass autograd runs in other kernels, and no look-up of one id, goes by its plain name."""
    ratios = {op for fit in shipped_fits.shipped().fits[gpu] for op in fit.ratios}
    assert not ratios & {f"{name}{BACKWARD}" for name in ("add", "mul", "where", "tanh", "pow", "dropout", "embedding")}


def test_what_is_timed_around_operators_is_of_no_product(tmp_path: Any) -> None:
    (fit,) = (fit for fit in shipped_fits.shipped().fits["p100-pcie-16gb"] if fit.family == "rowwise")
    file = tmp_path / "mine.yaml"
    text = shipped_fits.text("p100-pcie-16gb", [fit], "mine")
    file.write_text(text)
    assert shipped_fits.load(file)[1][0].beside == {OPERATOR_US: fit.beside[OPERATOR_US]}
    file.write_text(text.replace(OPERATOR_US, "linear_us"))
    with pytest.raises(UserError, match="linear_us: nothing of this name is timed with memory-bound operators"):
        shipped_fits.load(file)
