"""Kernels in loops of launches: in a short burst, in longer loops of tables, and sustained within a step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import catalog, shipped_fits
from simulator.costs.kernels.attention import AttentionConstants, Heads, attention_s
from simulator.costs.kernels.estimator import Estimator, Options
from simulator.costs.kernels.experts import moe_s
from simulator.costs.kernels.family import BURST, SUSTAINED, Estimate
from simulator.costs.kernels.fit_choice import best_fit_for
from simulator.costs.kernels.gemm import GemmConstants, gemm_s
from simulator.costs.kernels.gpu_model import machine
from simulator.costs.kernels.power import reaches_limit
from simulator.hardware.gpu import PEAK_OF
from simulator.kernels import Attention, Gemm, Part, Rowwise, Shape

MOST_OVER_BURST = 1.3
H100 = machine(shipped_fits.gpu("h100"), "bf16")
SIZE = st.integers(0, 15).map(lambda power: 2**power)
GEMM = Gemm(8192, 8192, 8192, 2)
CAUSAL = Attention(1, 8192, 32, 32, 128, True, 2, Part.FORWARD)


CLOCKED = [(gpu, fit) for gpu, fits in shipped_fits.shipped().fits.items() for fit in fits if fit.family in ("gemm", "moe")]
"""Shipped fits of GEMMs and experts, with their boards."""


def took_s(kernel: Shape, launches: float, gpu: str = "h100") -> float:
    options = Options(launches=launches)
    return Estimator(shipped_fits.gpu(gpu), "bf16", shipped_fits.shipped(), options).estimate(kernel).seconds


@given(SIZE, SIZE, SIZE, st.floats(1, 1e6), st.floats(1, 10))
def test_longer_loops_are_never_faster_per_launch(m: int, n: int, k: int, launches: float, more: float) -> None:
    loops = np.array([launches, launches * more, SUSTAINED])
    for took in (
        gemm_s(GemmConstants(), H100, m, n, k, launches=loops),
        moe_s(GemmConstants(), H100, m, n, k, (8, 2), launches=loops),
    ):
        assert took[0] <= took[1] * (1 + 1e-12)
        assert took[1] <= took[2] * (1 + 1e-12)


@given(SIZE, SIZE, SIZE)
def test_a_loop_without_a_stated_length_is_one_of_twelve(m: int, n: int, k: int) -> None:
    assert gemm_s(GemmConstants(), H100, m, n, k) == gemm_s(GemmConstants(), H100, m, n, k, launches=BURST)
    what = Heads(1, m, 16, 16, 128)
    assert attention_s(AttentionConstants(), H100, what) == attention_s(AttentionConstants(), H100, what, launches=BURST)


@pytest.mark.parametrize("times", [2, 6])
def test_t21_2_what_counts_is_the_time_of_the_loop(times: int) -> None:
    """Constants for loops of 12 say the same as those for loops of 72, of which each kernel takes a sixth of the time."""
    longer = replace(GemmConstants(), throttle_us=times * GemmConstants().throttle_us)
    short, long = gemm_s(GemmConstants(), H100, 8192, 8192, 8192), gemm_s(longer, H100, 8192, 8192, 8192, launches=times * BURST)
    assert short == long


def test_t21_2_the_asymptote_adds_the_whole_slowdown() -> None:
    c = replace(GemmConstants(), launch_us=0.0, power=0.0, memory=1.0, norm=50.0)
    without = gemm_s(replace(c, throttle=0.0), H100, 2**14, 2**14, 2**14)
    share = 2 * 2**42 / H100.flop_per_s / without
    assert gemm_s(c, H100, 2**14, 2**14, 2**14, launches=SUSTAINED) == pytest.approx(without * (1 + c.throttle * share))
    a = replace(AttentionConstants(), launch_us=0.0, cover=50.0)
    plain, slow = (attention_s(replace(a, throttle=x), H100, Heads(8, 8192, 32, 32, 128), launches=SUSTAINED) for x in (0.0, 0.1))
    assert slow == pytest.approx(1.1 * plain)


def test_t21_2_a_limit_that_is_never_reached_slows_nothing() -> None:
    """At its peak an H20 draws 122 W idle and 148 TFLOP/s times 0.79 pJ, 239 of 400 W; at a limit of 200 W its clock falls."""
    h20 = shipped_fits.gpu("h20")
    assert reaches_limit(h20) is False
    assert [name for name in catalog.files("gpus") if not reaches_limit(shipped_fits.gpu(name))] == ["h20"]
    for gpu, slows in ((h20, False), (replace(h20, tdp_w=200.0), True)):
        fit = best_fit_for(gpu, shipped_fits.shipped(), "gemm", "bf16").fit
        assert (fit.constants.throttle > 0, fit.constants.power > 0) == (slows, slows)
    assert took_s(GEMM, SUSTAINED, "h20") == took_s(GEMM, BURST, "h20")
    assert took_s(CAUSAL, SUSTAINED, "h20") == took_s(CAUSAL, BURST, "h20")


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100", "b200", "l40s"])
def test_steps_are_slower_than_bursts_where_tensor_cores_work(gpu: str) -> None:
    for kernel in (GEMM, CAUSAL):
        assert 1.0 < took_s(kernel, SUSTAINED, gpu) / took_s(kernel, BURST, gpu) < 1.3
    adding = Rowwise("add", 8192, 8192, 2, 6)
    assert took_s(adding, SUSTAINED, gpu) == took_s(adding, BURST, gpu)


def test_t21_7_no_shipped_fit_slows_a_kernel_by_more_than_a_clock_can() -> None:
    sizes = [side.ravel() for side in np.meshgrid(*[2.0 ** np.arange(4, 17, 3)] * 3)]
    for gpu, fit in CLOCKED:
        on = machine(shipped_fits.gpu(gpu), PEAK_OF.get(fit.dtype, fit.dtype))
        burst, sustained = (gemm_s(fit.constants, on, *sizes, launches=launches) for launches in (BURST, SUSTAINED))
        assert (burst <= sustained).all()
        assert (sustained <= MOST_OVER_BURST * burst).all()


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100", "h200", "b200", "b300", "gb200", "gb300"])
def test_t21_7_a_board_has_one_clock(gpu: str) -> None:
    own = [fit.constants for name, fit in CLOCKED if name == gpu and fit.dtype != "fp32"]
    assert len({(constants.throttle, constants.throttle_us) for constants in own}) == 1


def test_t21_8_what_is_beyond_a_burst_is_uncertain() -> None:
    def told(launches: float) -> Estimate:
        options = Options(launches=launches)
        return Estimator(shipped_fits.gpu("h100"), "bf16", shipped_fits.shipped(), options).estimate(GEMM)

    burst, sustained = told(BURST), told(SUSTAINED)
    beyond = 1 - burst.seconds / sustained.seconds
    assert 0.02 < beyond < 0.2
    assert sustained.sigma == pytest.approx(math.hypot(burst.sigma, beyond / 2))
    assert told(BURST / 2).sigma == burst.sigma
