"""Power of boards: the time of arithmetic under another power limit, and the energy of a kernel.

The power management of a board lowers the clock of its multiprocessors until the board draws its limit; the clock of the memory
is unchanged. The power beyond idle grows with the voltage squared times the clock, so like the clock to the power gamma, where
gamma is 1 at constant voltage and 3 if the voltage is proportional to the clock. The time of arithmetic on two boards of one chip
is therefore proportional to ((reference - idle) / (limit - idle)) ** (1 / gamma). Within a step all kernels share a clock, so
this formula applies to all arithmetic that runs long enough to be sustained, but not to a short burst. A gamma of 1.5 to 2 is
assumed: a GB300 at 500 and 1,400 W (facebookexperimental/triton, pull request 2023) has 1.25 to 1.35 over that wide range, and a
B200 whose clock fell from 1,965 to 1,580 MHz at its limit (flashinfer-ai/flashinfer, pull request 2899) gives no value for
another limit.

The clock of one board was recorded under a third to all of its load (results/calibration): if a GEMM may draw a third less beyond
idle power, it takes 1.18 times as long on an H200 and 1.11 times on an H100, a gamma of 2.6 and 4.1. Near the highest clock the
voltage falls with the clock; at lower limits it falls less.

Energy per flop is that of long GEMMs on random data: the power beyond idle at the limit, over their rate. Energy per byte, the
ratio of attention to GEMM, and idle power at full clock were measured on Hopper, and are used for other generations too
(results/calibration); idle powers are those of a generation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

from ...hardware.gpu import PEAK_OF, Gpu
from ...units import PER_PICO
from .gpu_model import HALVES, architecture, tensor_peak

GAMMA_RANGE = (1.5, 2.4)
GAMMA = 1.75
LEAST_FACTOR = 0.85
"""The smallest factor on times: above some limit the clock has its maximum (assumed)."""
LEAST_W, MOST_W = 300.0, 1400.0
"""Range of power limits, in watts, in which the formula is assumed to be valid."""

THROTTLE_SIGMA = 0.5
"""Relative standard error of the excess of kernels over their times in a burst. Two libraries that run the same GEMMs in 16 bits
on one board, each fitted alone, differ by half the logarithm of 1.6 (B200) to 4.5 (GB300): 0.5 is their root mean square."""

BOARD_SPREAD = 0.14
"""Relative standard deviation, among boards of one product, of the time that their power limit adds to arithmetic. From four
boards of two products, ours and those of public tables (results/calibration), which tell it badly."""

PJ_PER_FLOP: Mapping[str, Mapping[str, float]] = {
    "ampere": {"bf16": 1.2},
    "hopper": {"bf16": 0.79, "fp8": 0.44},
    "blackwell": {"bf16": 0.59, "fp8": 0.34, "nvfp4": 0.26},
}
"""Picojoules per flop by generation of kernels and format: A100, H100 and B200, from the public tables of products."""
PJ_PER_BYTE = 140.0
"""Picojoules per byte of traffic. Copies, gates and Adam on an H200 and an H100 draw 117 to 156 beyond idle power."""


def one_chip(gpu: Gpu, other: Gpu) -> bool:
    """Whether two boards have the same chip, and no known difference in their sustained rates."""
    alike = gpu.architecture == other.architecture != "" and gpu.sms == other.sms
    return alike and tensor_peak(gpu) == tensor_peak(other) and gpu.kernels.compute_fraction == other.kernels.compute_fraction


def reference_w(gpu: Gpu, owner: Gpu | None) -> float:
    """The power limit, in watts, at which a fit of `owner` is valid for a GPU: that of the owner if it has the same chip, else
    that of the board with the GPU's name in the catalog; 0 if neither is known."""
    return owner.tdp_w if owner is not None and one_chip(gpu, owner) else gpu.reference_tdp_w


def slowdown(gpu: Gpu, reference: float) -> float:
    """The factor on times of arithmetic on a GPU whose fit is valid at a `reference` limit; 1 if its power is not modelled."""
    return max(LEAST_FACTOR, math.pow(_ratio(gpu, reference), 1 / GAMMA))


def slowdown_sigma(gpu: Gpu, reference: float) -> float:
    """The relative standard error of this factor: half of its relative difference between the ends of `GAMMA_RANGE`."""
    steep, flat = (1 / gamma for gamma in GAMMA_RANGE)
    return abs(math.log(_ratio(gpu, reference))) * (steep - flat) / 2


def reaches_limit(gpu: Gpu) -> bool:
    """Whether a GPU would draw more than its power limit at its peak, so that its clock falls; also if that is not known."""
    of = architecture(gpu)
    if not (gpu.tdp_w and of.idle_w):
        return True
    return of.idle_w + pj_per_flop(gpu, "bf16") * tensor_peak(gpu) / PER_PICO > gpu.tdp_w


def slowest(boards: int) -> float:
    """The factor on the time that the power limit adds to arithmetic, for the slowest of `boards` boards over the usual board.

    A group that waits for all of its GPUs has the speed of the slowest one. Expected greatest of normal values: Blom,
    "Statistical Estimates and Transformed Beta-Variables", 1958.
    """
    return 1 + BOARD_SPREAD * NormalDist().inv_cdf((boards - 0.375) / (boards + 0.25))


def acts(gpu: Gpu, reference: float) -> bool:
    """Whether the limit of a GPU differs from a reference, and its architecture is modelled."""
    return bool(architecture(gpu).idle_w and gpu.tdp_w and reference) and gpu.tdp_w != reference


def _ratio(gpu: Gpu, reference: float) -> float:
    """The power beyond idle that a board may draw at the reference limit, over that at its own limit."""
    idle_w = architecture(gpu).idle_w
    return (reference - idle_w) / (gpu.tdp_w - idle_w) if acts(gpu, reference) else 1.0


def no_energy(gpu: Gpu, dtype: str) -> str:
    """The reason why the energy of kernels in a format on a GPU is not known; empty if it is."""
    if not gpu.tdp_w:
        return f"the limit of power of {gpu.name} is not stated"
    if not architecture(gpu).idle_w:
        return f"the power of {gpu.architecture or gpu.name} is not known"
    formats = PJ_PER_FLOP[architecture(gpu).kernels]
    known = dtype in HALVES or PEAK_OF.get(dtype, dtype) in formats
    return "" if known else f"the energy of a flop in {dtype} on {gpu.name} is not known"


def pj_per_flop(gpu: Gpu, dtype: str) -> float:
    """Picojoules per flop in a format on a GPU, for which `no_energy` gives no reason."""
    return PJ_PER_FLOP[architecture(gpu).kernels]["bf16" if dtype in HALVES else PEAK_OF.get(dtype, dtype)]


def added_j(gpu: Gpu, flop_pj: float, moved_bytes: float, took_s: float) -> float:
    """Joules of a kernel beyond those of an idle GPU, bounded by the power limit."""
    return min((flop_pj + moved_bytes * PJ_PER_BYTE) / PER_PICO, (gpu.tdp_w - architecture(gpu).idle_w) * took_s)
