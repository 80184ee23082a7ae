"""Products without tensor cores: what wide ones read again, and what eager linear layers take that is none of theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.gemm import TALL, TILE_SETS, TILES, GemmConstants, gemm_s
from simulator.costs.machine import Machine
from simulator.costs.measured import Estimate, Estimator, Options
from simulator.costs.shelf import LINEAR_US
from simulator.kernels import Gemm, Rowwise
from simulator.study import kernel_fits, validate
from simulator.study.validate import kernels
from simulator.units import GB, MB, TFLOP, US_PER_S

WIDTH = 4
SMALL_CACHE = Machine(9.3 * TFLOP, 732 * GB, 56, cache_bytes=4 * MB)
LARGE_CACHE = replace(SMALL_CACHE, cache_bytes=2**20 * MB)
EAGER = GemmConstants(launch_us=30.0, reread=15.0, tiles="tall")
PRODUCTS = [fit for fits in kernel_fits.shelf().fits.values() for fit in fits if fit.family in ("gemm", "moe")]


def took_us(c: GemmConstants, on: Machine, m: int, n: int, k: int, batch: int = 1) -> float:
    return US_PER_S * float(gemm_s(c, on, m, n, k, batch, width=WIDTH))


def test_wide_products_read_again_what_exceeds_the_cache() -> None:
    """As P100 shows: as many tiles, but the columns in flight are four times as many, and the rows a quarter."""
    wide, tall = (took_us(EAGER, SMALL_CACHE, *sizes, 4096) for sizes in ((2048, 32768), (32768, 2048)))
    assert wide > 1.5 * tall
    kept, never = (took_us(c, LARGE_CACHE, 2048, 32768, 4096) for c in (EAGER, replace(EAGER, reread=0.0)))
    assert kept == pytest.approx(never, rel=1e-3)
    assert took_us(EAGER, replace(SMALL_CACHE, cache_bytes=0.0), 2048, 32768, 4096) >= wide


@given(*[st.integers(1, 2**14)] * 3, st.integers(1, 64), st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 4096))
def test_more_takes_no_less(m: int, n: int, k: int, batch: int, which: str, more: int) -> None:
    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    grown = {**sizes, which: sizes[which] + more}
    assert took_us(EAGER, SMALL_CACHE, *grown.values()) >= took_us(EAGER, SMALL_CACHE, *sizes.values()) * (1 - 1e-9)


def test_tall_tiles_are_no_wider_than_tall() -> None:
    assert TILE_SETS["tall"] == TALL
    assert all(rows >= across for rows, across in TALL)
    assert any(rows < across for rows, across in TILES)


def test_only_eager_fits_read_again() -> None:
    """Those of CUDA graphs, on tensor cores, are what they were."""
    eager = [fit for fit in PRODUCTS if isinstance(fit.constants, GemmConstants) and fit.constants.tiles == "tall"]
    others = [fit for fit in PRODUCTS if isinstance(fit.constants, GemmConstants) and fit.constants.tiles != "tall"]
    assert {fit.dtype for fit in eager} == {"fp32"}
    assert len(eager) == 8
    assert all(
        fit.constants.reread > 0 and fit.beside[LINEAR_US] > 0 for fit in eager if isinstance(fit.constants, GemmConstants)
    )
    assert not any(fit.constants.reread or LINEAR_US in fit.beside for fit in others if isinstance(fit.constants, GemmConstants))


def test_tables_of_eager_linear_layers_hold_more_than_the_product() -> None:
    row = {"gpu": "v100-pcie-32gb", "op": "gemm", "dtype": "fp32", "m": "512", "n": "512", "k": "512"}
    linear, whole, plain, backward = (
        validate.judged(kernels, [{**row, "variant": variant, "op": op}], "t.csv").rows[0].predicted or 0.0
        for variant, op in (("torch2.1 linear", "gemm"), ("fwd", "gemm"), ("", "gemm"), ("bwd(all grads)", "gemm_bwd"))
    )
    gpu = kernel_fits.gpu("v100-pcie-32gb")
    by = Estimator(gpu, "fp32", kernel_fits.shelf_for(gpu))
    assert plain == pytest.approx(by.product(Gemm(512, 512, 512, 4), 4).seconds * US_PER_S)
    assert linear == whole == pytest.approx(plain + by.beside(LINEAR_US))
    assert backward == pytest.approx(2 * plain)


def test_norms_that_were_measured_are_what_was_measured() -> None:
    """In the format that was; in others beside a doubt, and elsewhere by the ratio that is the same for all GPUs."""

    def norm(name: str, dtype: str, *, eager: bool = False) -> Estimate:
        gpu = kernel_fits.gpu(name)
        by = Estimator(gpu, dtype, kernel_fits.shelf_for(gpu), Options(eager=eager))
        return by.estimate(Rowwise("layernorm", 16384, 8192, 1, 8))

    (fit,) = (fit for fit in kernel_fits.shelf().fits["l4"] if fit.family == "rowwise")
    gpu = kernel_fits.gpu("l4")
    pointwise = Estimator(gpu, "fp32", kernel_fits.shelf_for(gpu)).estimate(Rowwise("add", 16384, 8192, 1, 8))
    found, eager, narrow = norm("l4", "fp32"), norm("l4", "fp32", eager=True), norm("l4", "bf16")
    assert found.seconds == eager.seconds == narrow.seconds == pytest.approx(fit.ratios["layernorm"][0] * pointwise.seconds)
    assert (found.provenance, found.sigma) == ("measured", fit.ratios["layernorm"][1])
    assert (narrow.provenance, narrow.sigma > 0.15) == ("transferred", True)
    assert norm("h100", "fp32").provenance == "transferred"


def test_look_ups_are_hardly_known() -> None:
    gpu = kernel_fits.gpu("a100-pcie-80gb")
    assert Estimator(gpu, "fp32", kernel_fits.shelf_for(gpu)).estimate(Rowwise("embedding", 4096, 4096, 1, 12)).sigma > 0.5
