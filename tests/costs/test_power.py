"""Kernels under limits of power: the law, where it acts, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config import shipped_fits
from simulator.costs.kernels import power
from simulator.costs.kernels.estimator import Estimator, Options
from simulator.costs.kernels.family import BURST, SUSTAINED, Estimate
from simulator.costs.kernels.gpu_model import ARCHITECTURES
from simulator.hardware.gpu import Gpu
from simulator.kernels import Attention, Gemm, Part, Rowwise, Shape
from simulator.units import ns

GPUS = ("a100-80gb", "h100", "b200")
SHELF = shipped_fits.shipped()
PRODUCT = Gemm(8192, 8192, 8192, 2)
ADDING = Rowwise("add", 8192, 8192, 2, 6)
sizes = st.integers(0, 14).map(lambda power: 2**power)
watts = st.floats(power.LEAST_W, power.MOST_W)
kernels = st.one_of(
    st.builds(Gemm, sizes, sizes, sizes, st.just(2)),
    st.builds(Attention, st.just(1), sizes, st.just(32), st.just(8), st.sampled_from([64, 128]), st.booleans(), st.just(2)),
    st.builds(
        Attention,
        st.just(1),
        sizes,
        st.just(32),
        st.just(8),
        st.just(128),
        st.just(True),
        st.just(2),
        st.just(Part.INPUT_GRADIENT),
    ),
    st.builds(Rowwise, st.sampled_from(["add", "rmsnorm"]), sizes, sizes, st.just(2), st.just(4)),
)


def told(gpu: Gpu, kernel: Shape, launches: float = SUSTAINED, dtype: str = "bf16") -> Estimate:
    return Estimator(gpu, dtype, SHELF, Options(launches=launches)).estimate(kernel)


def limited(name: str, tdp_w: float) -> Gpu:
    return replace(shipped_fits.gpu(name), tdp_w=tdp_w)


@settings(max_examples=25)
@given(st.sampled_from(GPUS), kernels, watts, watts)
def test_a_lower_limit_never_speeds_up_any_kernel(name: str, kernel: Shape, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert told(limited(name, low), kernel).seconds >= told(limited(name, high), kernel).seconds


@settings(max_examples=25)
@given(st.sampled_from(GPUS), kernels, sizes)
def test_time_never_falls_with_work_under_a_limit(name: str, kernel: Shape, more: int) -> None:
    if isinstance(kernel, Gemm):
        larger = replace(kernel, k=kernel.k * more)
        assert told(limited(name, 350), larger).seconds >= told(limited(name, 350), kernel).seconds * (1 - 1e-9)


@settings(max_examples=25)
@given(st.sampled_from(GPUS), kernels, watts)
def test_t21_3_bursts_and_boards_at_their_reference_do_not_know_the_law(name: str, kernel: Shape, tdp_w: float) -> None:
    own = shipped_fits.gpu(name)
    burst, default = told(limited(name, tdp_w), kernel, BURST), Estimator(own, "bf16", SHELF).estimate(kernel)
    assert (burst.seconds, burst.sigma, burst.model) == (default.seconds, default.sigma, default.model)
    stated = told(replace(own, tdp_w=own.tdp_w), kernel)
    without = told(replace(own, tdp_w=0.0), kernel)
    assert ns(stated.seconds) == ns(without.seconds)


@pytest.mark.parametrize(("name", "idle_w"), [("a100-80gb", 90), ("h100", 122), ("b200", 200)])
def test_t21_3_the_law(name: str, idle_w: float) -> None:
    own = shipped_fits.gpu(name)
    for tdp_w in (300.0, 0.8 * own.tdp_w):
        expected = ((own.tdp_w - idle_w) / (tdp_w - idle_w)) ** (1 / 1.75)
        assert power.slowdown(limited(name, tdp_w), own.tdp_w) == pytest.approx(expected)
        slow, usual = told(limited(name, tdp_w), PRODUCT), told(own, PRODUCT)
        assert slow.seconds / usual.seconds == pytest.approx(expected, rel=0.02)
        assert slow.sigma > usual.sigma
        assert slow.provenance == "transferred"
        assert slow.model.endswith(f" at {tdp_w:g} W")
    assert power.slowdown(limited(name, 1400.0), own.tdp_w) >= 0.85
    assert told(limited(name, 300.0), ADDING) == told(own, ADDING)


def test_t21_3_idle_power_is_that_of_a_generation() -> None:
    idle_w = {name: built.idle_w for name, built in ARCHITECTURES.items() if built.idle_w}
    assert idle_w == {"sm_80": 90, "sm_90": 122, "sm_100": 200, "sm_103": 200}


def test_five_of_seven_hundred_watts() -> None:
    """Between the ends of what gamma may be, 500 W of an H100 take 19 to 33% longer than 700."""
    board = shipped_fits.gpu("h100-96gb-500w")
    assert power.slowdown(board, 700.0) == pytest.approx((578 / 378) ** (1 / 1.75))
    assert power.slowdown_sigma(board, 700.0) == pytest.approx(0.0531, abs=0.001)
    own, lent = told(shipped_fits.gpu("h100"), PRODUCT), told(board, PRODUCT)
    assert lent.seconds / own.seconds == pytest.approx(1.275, abs=0.01)


@pytest.mark.parametrize(
    "name", ["h100-nvl", "h100-pcie", "b300", "gb200", "gb300", "a100-pcie-40gb", "gh200-96gb", "l40s", "mi300x"]
)
def test_other_chips_are_not_compared_by_their_limits(name: str) -> None:
    """What tells their sustained rates apart says it already. A limit that a user changes acts where idle power is known."""
    own = shipped_fits.gpu(name)
    assert " W" not in told(own, PRODUCT).model
    slower = told(replace(own, tdp_w=0.7 * own.tdp_w), PRODUCT).seconds / told(own, PRODUCT).seconds
    assert slower > 1.1 if ARCHITECTURES.get(own.architecture) and ARCHITECTURES[own.architecture].idle_w else slower == 1


def test_a_profile_holds_at_the_limit_of_its_own_board() -> None:
    mine = replace(limited("h100", 500.0), profile="mine.yaml")
    own = [fit for fit in SHELF.fits["h100"] if fit.family == "gemm" and fit.dtype == "bf16"]
    fits = shipped_fits.overlaid(mine, own)
    with_profile = Estimator(mine, "bf16", fits, Options(launches=SUSTAINED))
    usual = told(shipped_fits.gpu("h100"), PRODUCT)
    assert min(usual.seconds, told(mine, PRODUCT).seconds) >= with_profile.estimate(PRODUCT).seconds
    attention = Attention(1, 8192, 32, 8, 128, True, 2)
    assert with_profile.estimate(attention).seconds > 1.2 * told(shipped_fits.gpu("h100"), attention).seconds
