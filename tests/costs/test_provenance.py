"""Whose word the time of a product is: measured only where others of its kind, format and library were; boards by one rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibrate.fit_profile import profile
from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import EXTRAPOLATION_FACTOR, Estimator, Options
from simulator.costs.kernels.family import Estimate, Fit
from simulator.costs.kernels.fit_choice import BORROWED_SIGMA
from simulator.kernels import Attention, Gemm, Part, Rowwise
from simulator.measurements.kernel_table import Measured
from simulator.measurements.kernel_words import Probe
from simulator.units import TB

from ..commandline import trainsim
from ..small_scenarios import scenario, small_cluster

SHELF = shipped_fits.shipped()
LARGE = Gemm(8192, 8192, 8192, 2)
GRADIENT = replace(LARGE, part=Part.WEIGHT_GRADIENT)
SEVERAL = replace(LARGE, batch=8)
SIZES = ("-m", 8192, "-n", 8192, "-k", 8192)


def said(gpu: str, kernel: Gemm, dtype: str = "bf16", options: Options | None = None) -> Estimate:
    return Estimator(shipped_fits.gpu(gpu), dtype, SHELF, options or Options()).estimate(kernel)


# A library without a fit in a format -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "dtype", "library"), [("h100", "fp8", "trtllm"), ("h100", "fp8-block", "trtllm"), ("h100", "fp8", "sglang")]
)
def test_a_library_that_was_not_fitted_in_a_format_takes_what_was_and_says_so(gpu: str, dtype: str, library: str) -> None:
    asked = ("kernel", "gemm", "--gpu", gpu, "--dtype", dtype, *SIZES, "--json")
    fitted, named = trainsim(*asked).record, trainsim(*asked, "--library", library).record
    assert (named["time_us"], named["model"]) == (fitted["time_us"], fitted["model"])
    assert (fitted["provenance"], named["provenance"]) == ("measured", "transferred")
    assert named["sigma"] == pytest.approx((fitted["sigma"] ** 2 + BORROWED_SIGMA**2) ** 0.5)


@pytest.mark.parametrize("library", ["trtllm", "sglang"])
def test_a_library_that_was_fitted_in_a_format_is_measured(library: str) -> None:
    made = said("h100", LARGE, options=Options(library))
    assert (made.provenance, made.model) == ("measured", f"gemm: bf16 {library} of h100")


# Kinds of products -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["h100", "b200", "a100-80gb"])
def test_sums_and_several_at_once_are_lent_where_none_were_timed(gpu: str) -> None:
    plain, sums, several = (said(gpu, kernel) for kernel in (LARGE, GRADIENT, SEVERAL))
    assert [one.provenance for one in (plain, sums, several)] == ["measured", "transferred", "transferred"]
    assert said(gpu, GRADIENT, options=Options(accumulate=False)).provenance == "measured"
    assert (plain.extrapolated, several.extrapolated) == (False, True)


def test_they_are_measured_where_they_were_timed() -> None:
    """SimuMax timed weight gradients and groups on A100 PCIe, NeuSight batches in fp32."""
    for made in (said("a100-pcie-80gb", GRADIENT), said("a100-pcie-80gb", SEVERAL)):
        assert (made.provenance, made.extrapolated) == ("measured", False)
    assert said("h100", SEVERAL, "fp32", Options(tensor_cores=False)).provenance == "measured"


@pytest.mark.parametrize("op", ["grouped_gemm", "bmm"])
def test_the_command_says_so_too(op: str) -> None:
    record = trainsim("kernel", op, "--gpu", "h100", *SIZES, "--batch", 8, "--json").record
    assert (record["provenance"], record["extrapolated"]) == ("transferred", True)


def test_weight_gradients_of_a_run_are_lent() -> None:
    known = {cost.name: cost.provenance for cost in scenario(cluster=small_cluster(1)).simulate().kernel_costs}
    assert (known["mlp_up"], known["mlp_up.dgrad"], known["mlp_up.wgrad"]) == ("measured", "measured", "transferred")


def rows(op: str = "gemm", batch: int = 0, variant: str = "") -> list[Measured]:
    """What an H200 takes by what is lent to it."""
    by = Estimator(shipped_fits.gpu("h200"), "bf16", SHELF)
    part = Part.WEIGHT_GRADIENT if variant else Part.FORWARD
    shapes = [(m, n, k) for m in (512, 2048, 8192) for n in (1024, 4096, 16384) for k in (1024, 4096, 16384)]
    took_s = [by.estimate(Gemm(*shape, 2, part, batch or 1)).seconds for shape in shapes]
    probes = [Probe(op, "bf16", *shape, batch, variant=variant) for shape in shapes]
    return [Measured("h200", probe, seconds) for probe, seconds in zip(probes, took_s, strict=True)]


def told_by(table: list[Measured], kernel: Gemm) -> Estimate:
    gpu = shipped_fits.gpu("h200")
    fits = [judged.fit for judged in profile(table, gpu, SHELF).fits]
    written = shipped_fits.text(gpu.name, fits, "mine")
    assert ("backward_rows" in written) == any(row.probe.variant != "" for row in table)
    return Estimator(gpu, "bf16", shipped_fits.overlaid(gpu, fits)).estimate(kernel)


def test_a_profile_speaks_for_the_kinds_of_its_rows() -> None:
    plain, sums, several = rows(), rows(variant="wgrad acc=true"), rows("bmm", 8)
    for table, kernel, provenance, extrapolated in (
        (plain, LARGE, "measured", False),
        (plain, GRADIENT, "transferred", False),
        (plain, SEVERAL, "transferred", True),
        (plain + sums, GRADIENT, "measured", False),
        (plain + several, SEVERAL, "measured", False),
        (several, LARGE, "transferred", True),
    ):
        made = told_by(table, kernel)
        assert (made.provenance, made.extrapolated) == (provenance, extrapolated), (kernel, len(table))


def test_a_profile_that_does_not_tell_its_batches_had_none() -> None:
    (fit,) = [fit for fit in SHELF.fits["h100"] if (fit.family, fit.dtype, fit.library) == ("gemm", "bf16", "any")]
    untold: Fit = replace(fit, ranges={name: span for name, span in fit.ranges.items() if name != "batch"})
    gpu = shipped_fits.gpu("h200")
    by = Estimator(gpu, "bf16", shipped_fits.overlaid(gpu, [untold]))
    plain, several = by.estimate(LARGE), by.estimate(SEVERAL)
    assert (plain.provenance, plain.extrapolated, plain.sigma) == ("measured", False, fit.sigma)
    assert (several.provenance, several.extrapolated, several.sigma) == ("transferred", True, EXTRAPOLATION_FACTOR * fit.sigma)


# Boards that run the same kernels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["b200", "b300", "gb200", "gb300"])
def test_memories_of_data_centre_blackwell_are_stated_by_one_rule(gpu: str) -> None:
    """By that of B200, against which the fraction that all of them take was fitted."""
    assert shipped_fits.gpu(gpu).memory_bytes_per_s == 8 * TB
    assert shipped_fits.gpu(gpu).kernels.memory_fraction == shipped_fits.gpu("b200").kernels.memory_fraction


lengths = st.integers(1, 2**15)


@given(lengths, lengths, lengths, st.sampled_from([("h100", "h200"), ("b200", "b300")]))
def test_a_board_that_has_nothing_less_is_no_slower(m: int, n: int, k: int, boards: tuple[str, str]) -> None:
    eldest = {name: fits for name, fits in SHELF.fits.items() if name not in ("h200", "b300", "gb200", "gb300")}
    sooner, later = (Estimator(shipped_fits.gpu(name), "bf16", replace(SHELF, fits=eldest)) for name in boards)
    for kernel in (Gemm(m, n, k, 2), Rowwise("add", m, n, 2, 6), Attention(1, m, 8, 8, 128, True, 2)):
        assert later.estimate(kernel).seconds <= sooner.estimate(kernel).seconds * (1 + 1e-9)  # TOLERANCE: rounding
