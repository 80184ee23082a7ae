"""The GPU as kernel models know it: its peaks in one dtype, and how its multiprocessors are built.

Fitted constants are dimensionless fractions of these peaks, or times, so that one GPU can borrow them from another. What a
multiprocessor does in a cycle goes by the architecture that kernels are compiled for: how many threads it holds, how many
exponentials and other operations on single numbers it computes (NVIDIA, CUDA C++ Programming Guide, tables of compute
capabilities and of arithmetic throughput; Blackwell Ultra doubles exponentials), and whose kernels it runs: those written for
the tensor cores of Ampere, of Hopper (which read shared memory by themselves) or of data-centre Blackwell (which keep sums in a
memory of their own).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...hardware.gpu import PEAK_OF, Gpu
from ...units import GB

Array = NDArray[Any]

HALVES = ("fp16", "bf16")
"""Formats that are timed as one."""
USUAL_CLOCK = 1.85 * GB
"""Clock around which, up to its double or half, the clock is looked for where none is stated."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a multiprocessor is built."""

    kernels: str = ""
    """The generation whose kernels it runs; those of nobody where it is not known."""
    threads: int = 2048
    """How many it holds at once."""
    exponentials: int = 16
    """How many it computes in a cycle."""
    lanes: int = 128
    """How many numbers of 32 bits it multiplies and adds in a cycle."""
    cache_cycle_bytes: int = 32
    """How many bytes the last cache hands to it in a cycle: a half of what its port takes, and a quarter on graphics chips. That
    is 5 TB/s on an RTX 4090 and 6 on an H100 PCIe. From no table: two thirds and twice of it fit the measured GEMMs as well.
    """


ARCHITECTURES = {
    "sm_60": Architecture(lanes=64),
    "sm_61": Architecture(),
    "sm_70": Architecture("volta", lanes=64),
    "sm_75": Architecture("volta", threads=1024, lanes=64),
    "sm_80": Architecture("ampere", lanes=64),
    "sm_86": Architecture("ampere", threads=1536, cache_cycle_bytes=16),
    "sm_89": Architecture("ampere", threads=1536, cache_cycle_bytes=16),
    "sm_120": Architecture("ampere", threads=1536, cache_cycle_bytes=16),
    "sm_90": Architecture("hopper"),
    "sm_100": Architecture("blackwell"),
    "sm_103": Architecture("blackwell", exponentials=32),
}
"""Workstation Blackwell and Ada have the tensor cores of Ampere's programming model, faster."""
UNKNOWN = Architecture()


@dataclass(frozen=True, slots=True)
class Machine:
    """Dense peak of the dtype, rate of the memory, and number of multiprocessors."""

    flop_per_s: float
    bytes_per_s: float
    sms: int
    clock_per_s: float = USUAL_CLOCK
    cache_bytes: float = 0.0
    threads: int = UNKNOWN.threads
    cache_bytes_per_s: float = 0.0


def machine(gpu: Gpu, dtype: str = "") -> Machine:
    """A GPU in a dtype, whose peak it must have; where none matters, in what it has."""
    peak = gpu.peak(dtype) if dtype else tensor_peak(gpu)
    built, clock = architecture(gpu), clock_per_s(gpu)
    cached = max(gpu.memory_bytes_per_s, built.cache_cycle_bytes * gpu.sms * clock)
    return Machine(peak, gpu.memory_bytes_per_s, gpu.sms, clock, gpu.cache_bytes, built.threads, cached)


def architecture(gpu: Gpu) -> Architecture:
    """How its multiprocessors are built, as far as that is known."""
    return ARCHITECTURES.get(gpu.architecture, UNKNOWN)


def tensor_peak(gpu: Gpu) -> float:
    """Flop/s in 16 bits, or in 32 where there is nothing narrower."""
    return gpu.peak(next((dtype for dtype in HALVES if dtype in gpu.peak_flop_per_s), "fp32"))


def similarity(gpu: Gpu) -> float:
    """The logarithm of the tensor peak of a multiprocessor: GPUs are alike whose likenesses are near."""
    return math.log(tensor_peak(gpu) / gpu.sms)


def same_kernels(gpu: Gpu, other: Gpu) -> bool:
    """Whether two GPUs run the same kernels."""
    mine = architecture(gpu).kernels
    return mine == architecture(other).kernels and (bool(mine) or gpu.architecture == other.architecture != "")


def clock_per_s(gpu: Gpu) -> float:
    """The highest; else that of the tensor peak: a multiprocessor does a power of two flop in a cycle, at 1.3 to 2.6 GHz."""
    if gpu.clock_hz:
        return gpu.clock_hz
    per_sm = tensor_peak(gpu) / gpu.sms
    return float(per_sm / 2 ** round(math.log2(per_sm / USUAL_CLOCK)))


def flop_per_cycle(gpu: Gpu, dtype: str) -> float:
    """Flop of the tensor cores of a multiprocessor in a cycle, a power of two: peaks are stated at lower clocks."""
    peak = gpu.peak_flop_per_s.get(PEAK_OF.get(dtype, dtype)) or tensor_peak(gpu)
    return float(2 ** round(math.log2(peak / gpu.sms / clock_per_s(gpu))))


def held(on: Machine, used_bytes: ArrayLike) -> Array:
    """The share of so many bytes that the last cache still holds when they are used again: all of them up to half of it, none
    beyond it.
    """
    used = np.asarray(used_bytes, dtype=np.float64)
    share: Array = np.clip(2 - 2 * used / on.cache_bytes, 0, 1) if on.cache_bytes else np.zeros_like(used)
    return share


def columns(*sizes: ArrayLike) -> list[Array]:
    """Sizes as arrays of one shape, of floats: sizes are whole numbers, their products need not fit an int64."""
    return list(np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes)))
