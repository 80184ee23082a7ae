"""Which products DeepGEMM runs in one wave of its widest tiles: by hand, and by what the rule cannot break."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.config import shipped_fits
from simulator.costs.kernels.deep_gemm import SPILL_US, spilled_s, widest_alone
from simulator.costs.kernels.estimator import Estimator
from simulator.costs.kernels.gemm import FAMILY as GEMM
from simulator.costs.kernels.gpu_model import Machine
from simulator.kernels import Gemm
from simulator.units import GB, TFLOP, US_PER_S
from simulator.validate import kernels, report

HOPPER = Machine(1979 * TFLOP, 3350 * GB, 132)


@pytest.mark.parametrize(
    "m, n, k, found",
    [
        (512, 6144, 8192, True),  # 4 x 32 tiles of 128 x 192
        (513, 6144, 8192, False),  # 5 x 32 do not fit
        (512, 6337, 8192, False),  # nor do 4 x 34
        (768, 5120, 16384, True),  # 3 x 40 of 256 x 128
        (1280, 2048, 4096, False),  # 10 x 13 of 128 x 160 fit as well and hold less
        (1537, 2048, 5120, False),  # 7 x 16 leave 20 multiprocessors idle: two waves of narrower tiles move less
        (768, 4096, 1152, True),  # 6 x 22 of 128 x 192, a cycle ahead of two waves of pairs of 128 x 96
        (768, 4096, 1024, False),  # and a cycle behind
        (8192, 8192, 8192, False),
    ],
)
def test_by_hand(m: int, n: int, k: int, found: bool) -> None:
    assert widest_alone(HOPPER.sms, m, n, k) == found


@pytest.mark.slow
def test_one_wave_holds_them_and_not_as_many_squares() -> None:
    """Of 128 x 192 or 256 x 128 no more than there are multiprocessors, and of 128 x 128 more."""
    m, n, k = (
        sizes.ravel() for sizes in np.meshgrid(np.arange(1, 8192, 61), 128 * np.arange(1, 65), 128 * np.array([1, 8, 64, 512]))
    )
    found = widest_alone(HOPPER.sms, m, n, k)
    fewest = np.minimum(-(-m // 128) * -(-n // 192), -(-m // 256) * -(-n // 128))
    assert found.sum() > len(found) / 100
    assert (fewest[found] <= HOPPER.sms).all()
    assert (-(-m // 128) * -(-n // 128) > HOPPER.sms)[found].all()


def test_what_it_adds_is_in_steps() -> None:
    m, n, k = (np.array(sizes, dtype=np.float64) for sizes in ([512, 512, 512], [6144, 6144, 16384], [8192, 8193, 8192]))
    assert spilled_s(2.0, HOPPER, m, n, k) * 1e6 == pytest.approx([128, 130, 0])


def test_tables_hold_them_and_runs_do_not() -> None:
    row = {"gpu": "h100", "op": "gemm", "dtype": "fp8_block", "m": "512", "n": "6144", "k": "8192", "variant": "TN fwd"}
    wide, narrow, plain = (
        report.compare_rows(kernels, [{**row, **changes}], "t.csv").rows[0].predicted or 0.0
        for changes in ({}, {"m": "513"}, {"variant": ""})
    )
    gpu = shipped_fits.gpu("h100")
    by = Estimator(gpu, "fp8_block", shipped_fits.fits_for(gpu))
    alone = by.estimate(Gemm(512, 6144, 8192, 1)).seconds
    assert plain == pytest.approx(alone * US_PER_S)
    assert wide - plain == pytest.approx(GEMM.cast_s(by, 512, 8192, 1) * US_PER_S + 64 * by.beside(SPILL_US))
    assert narrow < wide / 1.5


def test_only_gpus_that_run_those_kernels_have_them() -> None:
    found = {
        name: Estimator(shipped_fits.gpu(name), "fp8_block", shipped_fits.shipped()).beside(SPILL_US) for name in ("h200", "b200")
    }
    assert found["h200"] > 0
    assert found["b200"] == 0
