"""GPU as seen by the kernel models: its peaks in one dtype, and the architecture of its multiprocessors.

Fitted constants are dimensionless fractions of these peaks, or times, so that one GPU can borrow the constants of another. The
throughput of a multiprocessor per cycle follows from the architecture that kernels are compiled for: the number of threads, and
the number of exponentials and of other scalar operations (NVIDIA, CUDA C++ Programming Guide, tables of compute capabilities and
of arithmetic throughput; Blackwell Ultra doubles exponentials). The architecture also determines which kernels a GPU runs:
kernels for the tensor cores of Ampere, of Hopper (which read shared memory directly) or of data-centre Blackwell (which keep
accumulators in a separate memory).
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
"""Formats whose kernels take the same time."""
SLOT_W = 75.0
"""Watts that a PCI Express slot gives a board (PCI-SIG, PCI Express Card Electromechanical Specification)."""
HELD = {1: (0.7, 1.5), 2: (0.6, 1.2)}
"""Size of the data over that of the last-level cache up to which the cache holds all of it, and from which it holds nothing, by
number of partitions: with two partitions some data are held twice. From additions on A100 and H100 (microsoft/vidur@7d47513), and
from softmax and layer norm of 50 MB on an L4 (sitar-lab/NeuSight@6945927)."""
USUAL_CLOCK = 1.85 * GB
"""Clock in Hz near which an unstated clock is estimated, within a factor of two."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Architecture of a multiprocessor."""

    kernels: str = ""
    """Generation whose kernels the multiprocessor runs; empty where the generation is not known."""
    threads: int = 2048
    """Largest number of resident threads."""
    exponentials: int = 16
    """Exponentials per cycle."""
    lanes: int = 128
    """Multiply-adds of 32-bit numbers per cycle."""
    idle_w: float = 0.0
    """Power of an idle board in watts; 0 where it is not known. Ampere: measured (thonking.ai). Others: assumed."""
    cache_cycle_bytes: int = 20
    """Bytes per cycle of a multiprocessor from the last-level cache, of kernels that read and write: additions in fp16 on A100
    and H100 whose tensors the cache holds move 16 to 20 (microsoft/vidur@7d47513); reads reach 5 TB/s on an RTX 4090: 16."""
    cache_partitions: int = 1
    """Halves of the last-level cache that each hold what the multiprocessors near them use (NVIDIA A100 whitepaper, 2020)."""
    exact: float = 1.0
    """Factor on the arithmetic of GEMMs in fp8 with one scale per tensor that add their products in fp32. Hopper's tensor cores
    add with fewer bits (DeepSeek-V3, arXiv 2412.19437, section 3.3.2), so that other units add their sums of 128 products or so:
    a quarter of the time of the products, of which all but a quarter is hidden. Measured: `EXACT_FORMAT`."""


ARCHITECTURES = {
    "sm_60": Architecture(lanes=64),
    "sm_61": Architecture(),
    "sm_70": Architecture("volta", lanes=64),
    "sm_75": Architecture("volta", threads=1024, lanes=64),
    "sm_80": Architecture("ampere", lanes=64, idle_w=90, cache_partitions=2),
    "sm_86": Architecture("ampere", threads=1536, cache_cycle_bytes=16),
    "sm_89": Architecture("ampere", threads=1536, cache_cycle_bytes=16),
    "sm_120": Architecture("ampere", threads=1536, cache_cycle_bytes=16),
    "sm_90": Architecture("hopper", idle_w=122, cache_partitions=2, exact=1.06),
    "sm_100": Architecture("blackwell", idle_w=200, cache_partitions=2),
    "sm_103": Architecture("blackwell", exponentials=32, idle_w=200, cache_partitions=2),
}
"""Multiprocessors by architecture. Workstation Blackwell and Ada have faster tensor cores with Ampere's programming model."""
UNKNOWN = Architecture()
EXACT_FORMAT = "fp8"
"""The format whose GEMMs add in fp32 in the backward pass only: fast accumulation (CUBLASLT_MATMUL_DESC_FAST_ACCUM) is on forward
and off backward in Transformer Engine (_2X_ACC_FPROP, _2X_ACC_DGRAD and _2X_ACC_WGRAD of v0.8 and later; the recipes of v2.8) and
in torchao (Float8GemmConfig @024fe94). PyTorch's _scaled_mm, called so, was timed at 91 sizes on an H100 and on an H200
(results/calibration, raw.csv): relative to the shipped fits, the gradients of inputs and of weights take 5.2 to 6.1% longer than
forward GEMMs (medians of large ones), and in bf16 up to 1.6%."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The quantities of a GPU that kernel models use: dense peak of a dtype, memory rate, multiprocessors, clock and cache."""

    flop_per_s: float
    bytes_per_s: float
    sms: int
    clock_per_s: float = USUAL_CLOCK
    cache_bytes: float = 0.0
    threads: int = UNKNOWN.threads
    cache_bytes_per_s: float = 0.0
    cache_partitions: int = 1
    exact: float = 1.0
    """Factor on the arithmetic of GEMMs in the backward pass (`Architecture.exact`)."""


def machine(gpu: Gpu, dtype: str = "") -> Machine:
    """A GPU as a machine in a dtype, for which the GPU must have a peak; without a dtype, at its tensor peak."""
    peak = gpu.peak(PEAK_OF.get(dtype, dtype)) if dtype else tensor_peak(gpu)
    built, clock = architecture(gpu), clock_per_s(gpu)
    cached = max(gpu.memory_bytes_per_s, built.cache_cycle_bytes * gpu.sms * clock)
    caches, exact = (cached, built.cache_partitions), built.exact if dtype == EXACT_FORMAT else 1.0
    return Machine(peak, gpu.memory_bytes_per_s, gpu.sms, clock, gpu.cache_bytes, built.threads, *caches, exact)


def architecture(gpu: Gpu) -> Architecture:
    """The architecture of a GPU's multiprocessors, or `UNKNOWN`."""
    return ARCHITECTURES.get(gpu.architecture, UNKNOWN)


def tensor_peak(gpu: Gpu) -> float:
    """Peak flop/s in 16 bits, or in fp32 where a GPU has no 16-bit peak."""
    return gpu.peak(next((dtype for dtype in HALVES if dtype in gpu.peak_flop_per_s), "fp32"))


def similarity(gpu: Gpu, dtype: str = "") -> float:
    """The logarithm of the peak per multiprocessor, in a dtype or of the tensor cores; GPUs with close values are similar."""
    return math.log((gpu.peak(dtype) if dtype else tensor_peak(gpu)) / gpu.sms)


def is_slot_powered(gpu: Gpu) -> bool:
    """Whether a board draws no more than its slot gives. Such boards slow down in long runs of measurements."""
    return 0 < gpu.tdp_w <= SLOT_W


def same_kernels(gpu: Gpu, other: Gpu) -> bool:
    """Whether two GPUs run the same kernels."""
    mine = architecture(gpu).kernels
    return mine == architecture(other).kernels and (bool(mine) or gpu.architecture == other.architecture != "")


def clock_per_s(gpu: Gpu) -> float:
    """The highest clock in Hz; where none is stated, the clock between 1.3 and 2.6 GHz at which the tensor peak of a
    multiprocessor is a power of two flop per cycle."""
    if gpu.clock_hz:
        return gpu.clock_hz
    per_sm = tensor_peak(gpu) / gpu.sms
    return float(per_sm / 2 ** round(math.log2(per_sm / USUAL_CLOCK)))


def flop_per_cycle(gpu: Gpu, dtype: str) -> float:
    """Flop per cycle of a multiprocessor's tensor cores, rounded to a power of two, since peaks are stated at lower clocks."""
    peak = gpu.peak_flop_per_s.get(PEAK_OF.get(dtype, dtype)) or tensor_peak(gpu)
    return float(2 ** round(math.log2(peak / gpu.sms / clock_per_s(gpu))))


def cached_share(machine: Machine, used_bytes: ArrayLike) -> Array:
    """The fraction of `used_bytes` that the last-level cache still holds at reuse: 1 for data much smaller than the cache, 0 for
    data much larger, by `HELD`."""
    used = np.asarray(used_bytes, dtype=np.float64)
    most, none = HELD[machine.cache_partitions]
    share = np.clip((none - used / machine.cache_bytes) / (none - most), 0, 1) if machine.cache_bytes else np.zeros_like(used)
    return np.asarray(share)


def fetched_s(machine: Machine, moved_bytes: ArrayLike) -> Array:
    """Seconds to move bytes that were used just before, from the cache as far as it holds them, else from memory."""
    moved = np.asarray(moved_bytes, dtype=np.float64)
    held = cached_share(machine, moved)
    from_cache_s = held / machine.cache_bytes_per_s if machine.cache_bytes and machine.cache_bytes_per_s else 0.0
    took_s: Array = moved * ((1 - held) / machine.bytes_per_s + from_cache_s)
    return took_s


def columns(*sizes: ArrayLike) -> list[Array]:
    """Sizes as float arrays of one shape: sizes are whole numbers, but their products may not fit an int64."""
    return list(np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes)))
