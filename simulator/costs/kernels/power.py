"""Power of boards: the arithmetic under another limit of power, and the energy of a kernel.

The governor of a board lowers the clock of its multiprocessors until it draws its limit; the clock of the memory stays. What a
board draws beyond its idle power grows like the clock to the power gamma: with the voltage squared times the clock, so with at
least the clock, and with its cube where the voltage falls with the clock. Time of arithmetic on two boards of one chip therefore
goes like ((reference - idle) / (limit - idle)) ** (1 / gamma). Within a step the clock is that of all kernels, so the law holds
for all arithmetic that runs long enough to be sustained, and not for a short burst. Of gamma, 1.5 to 2 is assumed: 500 and 1,400
W of a GB300 (facebookexperimental/triton, pull request 2023) say 1.25 to 1.35 over that wide a range, and a B200 whose clock fell
from 1,965 to 1,580 MHz at its limit (flashinfer-ai/flashinfer, pull request 2899) says nothing of another limit.

The clock of one board was seen under a third to all of its load (results/calibration): where a GEMM may draw a third less beyond
idle power, it takes 1.18 times as long on an H200 and 1.11 times on an H100, a gamma of 2.6 and 4.1. Near the highest clock the
voltage falls with it; at lower limits it falls less.

Energy per flop is that of long products on random data: what a board draws beyond its idle power at its limit, over their rate.
Energy per byte, that of attention over that of a GEMM, and idle power at full clock were measured on Hopper, and are taken for
other generations too (results/calibration); idle powers are those of a generation.
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
"""The least factor on times: beyond some limit the clock is at its highest (assumed)."""
LEAST_W, MOST_W = 300.0, 1400.0
"""Limits of power, in watts, between which the law is taken to hold."""

THROTTLE_SIGMA = 0.5
"""Relative standard error of what kernels take beyond a burst. Two libraries that run the same products in 16 bits on one board,
each fitted alone, differ by half the logarithm of 1.6 (B200) to 4.5 (GB300): 0.5 is their root mean square."""

BOARD_SPREAD = 0.28
"""Standard deviation, among boards of one chip, of what their limit of power adds to arithmetic, relative to it. From two boards
alone (results/calibration): endless loops of GEMMs and attention take 12.5% longer than bursts on one, and 9.1% on the other."""

PJ_PER_FLOP: Mapping[str, Mapping[str, float]] = {
    "ampere": {"bf16": 1.2},
    "hopper": {"bf16": 0.79, "fp8": 0.44},
    "blackwell": {"bf16": 0.59, "fp8": 0.34, "nvfp4": 0.26},
}
"""Picojoules per flop by generation of kernels and format: A100, H100 and B200, from the public tables of products."""
PJ_PER_BYTE = 140.0
"""Picojoules per byte of traffic. Copies, gates and Adam on an H200 and an H100 draw 117 to 156 beyond idle power."""


def one_chip(gpu: Gpu, other: Gpu) -> bool:
    """Whether two boards have the same chip, with nothing known of them that tells their sustained rates apart."""
    alike = gpu.architecture == other.architecture != "" and gpu.sms == other.sms
    return alike and tensor_peak(gpu) == tensor_peak(other) and gpu.kernels.compute_fraction == other.kernels.compute_fraction


def reference_w(gpu: Gpu, owner: Gpu | None) -> float:
    """The limit of power, in watts, at which a fit of `owner` holds for a GPU: that of the owner if it has the same chip, else
    that of the board of the GPU's name in the catalog; 0 if neither is known."""
    return owner.tdp_w if owner is not None and one_chip(gpu, owner) else gpu.reference_tdp_w


def slowdown(gpu: Gpu, reference: float) -> float:
    """The factor on times of arithmetic on a GPU whose fit holds at a `reference` limit; 1 where no law is known."""
    return max(LEAST_FACTOR, math.pow(_ratio(gpu, reference), 1 / GAMMA))


def slowdown_sigma(gpu: Gpu, reference: float) -> float:
    """The relative standard error of this factor: half of what it differs between the ends of `GAMMA_RANGE`."""
    steep, flat = (1 / gamma for gamma in GAMMA_RANGE)
    return abs(math.log(_ratio(gpu, reference))) * (steep - flat) / 2


def slowest(boards: int) -> float:
    """The factor on what the limit of power adds to arithmetic, on the slowest of so many boards over the usual board.

    A group that waits for all of its GPUs has the pace of this one. Expected greatest of normal values: Blom, "Statistical
    Estimates and Transformed Beta-Variables", 1958.
    """
    return 1 + BOARD_SPREAD * NormalDist().inv_cdf((boards - 0.375) / (boards + 0.25))


def acts(gpu: Gpu, reference: float) -> bool:
    """Whether the limit of a GPU differs from a reference, and a law is known for its architecture."""
    return bool(architecture(gpu).idle_w and gpu.tdp_w and reference) and gpu.tdp_w != reference


def _ratio(gpu: Gpu, reference: float) -> float:
    """What a board may draw beyond its idle power at the reference, over the same at its own limit."""
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
    """Joules of a kernel beyond those of an idle GPU, which its limit of power bounds."""
    return min((flop_pj + moved_bytes * PJ_PER_BYTE) / PER_PICO, (gpu.tdp_w - architecture(gpu).idle_w) * took_s)
