"""GEMMs in fp8 whose products are added in fp32, as those of the backward pass are: slower on Hopper, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator, Options
from simulator.costs.kernels.gpu_model import ARCHITECTURES, machine
from simulator.kernels import Gemm, Part
from simulator.measurements import csv_tables
from simulator.validate import kernels, report

from ..project.source import ROOT

HOPPER = ARCHITECTURES["sm_90"].exact
BOARDS = ("h100", "h200")
LARGE = Gemm(8192, 8192, 8192, 2, dtype="fp8")
LEAST_FLOP = 4e10


def took_s(gpu: str, kernel: Gemm, dtype: str = "bf16") -> float:
    options = Options(accumulate=False)
    return Estimator(shipped_fits.gpu(gpu), dtype, shipped_fits.shipped(), options).estimate(kernel).seconds


@pytest.mark.parametrize("part", [Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT])
@pytest.mark.parametrize("gpu", ["h100", "h200", "gh200-96gb"])
def test_gradients_in_eight_bits_take_longer_on_hopper(gpu: str, part: Part) -> None:
    there, back = (took_s(gpu, kernel) for kernel in (LARGE, replace(LARGE, part=part)))
    assert 1 + (HOPPER - 1) / 2 < back / there <= HOPPER


@pytest.mark.parametrize("gpu", ["b200", "gb300"])
def test_tensor_cores_that_add_in_fp32_lose_nothing(gpu: str) -> None:
    assert took_s(gpu, replace(LARGE, part=Part.INPUT_GRADIENT)) == took_s(gpu, LARGE)


@pytest.mark.parametrize("dtype", ["", "fp8_block"])
def test_sums_in_other_formats_are_the_same_in_both_directions(dtype: str) -> None:
    """In 16 bits tensor cores add in fp32; with scales of blocks forward products are added in fp32 too."""
    kernel = replace(LARGE, dtype=dtype)
    assert took_s("h100", replace(kernel, part=Part.INPUT_GRADIENT)) == took_s("h100", kernel)
    assert machine(shipped_fits.gpu("h100"), dtype or "bf16").exact == 1


def test_gemms_that_wait_for_memory_lose_less() -> None:
    thin = Gemm(16, 8192, 8192, 2, dtype="fp8")
    assert took_s("h100", replace(thin, part=Part.INPUT_GRADIENT)) / took_s("h100", thin) < 1 + (HOPPER - 1) / 2


@pytest.mark.parametrize("gpu", BOARDS)
def test_gradients_are_predicted_as_well_as_forward_passes(gpu: str) -> None:
    """On the boards that we timed. Without the law gradients would be 5 to 6% further off than forward passes."""
    table = ROOT / f"results/calibration/{gpu}-2026-11-26/raw.csv"
    rows = [{**row, "gpu": gpu} for row in csv_tables.read(table) if row["op"] == "gemm" and row["dtype"] == "fp8"]
    rows = [row for row in rows if 2 * int(row["m"]) * int(row["n"]) * int(row["k"]) >= LEAST_FLOP]
    found = report.compare_rows(kernels, rows, table.name).rows
    ratio = {
        variant: median(
            each.measured / each.predicted
            for row, each in zip(rows, found, strict=True)
            if row["variant"] == variant and each.measured and each.predicted
        )
        for variant in ("fwd", "dgrad", "wgrad")
    }
    assert ratio["dgrad"] == pytest.approx(ratio["fwd"], abs=0.02)
    assert ratio["wgrad"] == pytest.approx(ratio["fwd"], abs=0.02)
