"""Memory-bound operators: their bytes at the rate that streaming kernels sustain, and what an operator needs beyond.

A pointwise kernel moves its bytes at a fraction of the memory's rate that hardly depends on the operation. Fused reductions
over a row take a multiple of that: its own where they were measured, and else one for all GPUs. Eager kernels are bound
elsewhere: each thread waits for what it has read, so that a multiprocessor moves so many bytes in a cycle, whatever the memory
could do; a kernel that gives a row to one block walks along it, a round trip to memory at each step, and cannot end sooner.
What fits into the last cache was left there by the kernel before, and comes back as much faster as the cache answers sooner. A
lookup is bound by the arithmetic of its indices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ..units import US_PER_S
from .machine import UNKNOWN, Array, Machine, columns, held

BACKWARD = "_backward"
TRIP_CYCLES = 2 * 475
"""There and back at each step of a row: one that is read and one that is written, each about 475 cycles to memory on A100 and
H100 (Luo et al., arXiv 2402.13499, from memory)."""
CACHED = 1.8
"""How much sooner the last cache answers than memory: about 265 cycles against 475 (the same)."""
NORM = 3.0
"""Between what binds a kernel: the memory, its threads, and the walk along a row."""


@dataclass(frozen=True, slots=True)
class RowwiseConstants:
    """Fitted to one GPU."""

    launch_us: float = 1.5
    """From the start of a kernel that does next to nothing to its end, at the clock of an A100."""
    stream: float = 0.87
    """Fraction of the memory's rate that a pointwise kernel reaches."""
    lookup_cycles: float = 1.75
    """Clock cycles for which an element that is looked up keeps one multiprocessor busy."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How one operator is run, beside a pointwise kernel of the same bytes."""

    times: float = 1.0
    """How much slower it streams."""
    kernels: int = 1
    cycle_bytes: float = math.inf
    """What a multiprocessor that holds 2,048 of its threads moves in a cycle at most, in elements of 16 bits."""
    block: int = 0
    """Its threads to a block; a multiprocessor holds whole ones."""
    step: int = 0
    """Elements of a row between one wait and the next; 0 where a row is no one block's."""


@dataclass(frozen=True, slots=True)
class Work:
    """An operator fused into one kernel, and as eager frameworks run it; `backward` is the former's backward pass, how much
    slower it streams the bytes of that."""

    fused: float = 1.0
    eager: Pace = Pace()
    backward: float = 1.0


POINTWISE = Work()
WORK = {
    "layernorm": Work(1.3, Pace(1.45, 1, 7.4, 128, 1024 // 3), 2.3),
    "rmsnorm": Work(1.3, Pace(1.3, 1, 4.8, 1024, 1024), 2.3),
    "softmax": Work(1.25, Pace(1.25), 2.2),
    "cross_entropy": Work(1.25, Pace(3.0, 6), 1.25),
    "rope": Work(1.0, Pace(1.0, 1, 6.05, 512, 1024)),
    "gated": Work(1.0, Pace(1.0, 1, 7.0, 1024, 1024)),
    "gelu": Work(1.0, Pace(1.0, 1, 10.3, 128)),
    "dropout": Work(1.2, Pace(1.2), 1.3),
    "adam": Work(1.15, Pace(2.0, 8), 1.15),
    "quantise": Work(1.2, Pace(2.7, 3), 1.2),
    "embedding": Work(1.0, Pace(6.0, 2)),
}
"""The global constants of memory-bound operators; 1 for all others.

Fused reductions: fp32 layer norm and softmax of torch 2.1 on four GPUs, over add on the same (NeuSight: 1.0 to 1.5); their
backward: 2.7 and 2.6 times forward there, on 3 passes over memory against 2. Eager norms, rope, gates and gelu: bytes in a cycle
from the bandwidth that they sustain in fp16 on A100 and H100 (the reference notes on measured kernels) beside that of add, for
which the two agree to 8% (layer norm: 17%); blocks and steps are those of the kernels of vLLM and PyTorch in 2023, from memory.
Dropout: 2.7 times forward backward in fp32. Look-ups: eager backward, where the table's gradient is zeroed and ids are sorted,
6 times as long as its three passes (5.3 and 6.1 on two GPUs, in fp32, of ids that were all the same; forward they wait for
indices). Cross-entropy: as softmax; eager, by its passes in fp32. Adam: 34 bytes per parameter at three quarters of the rate.
Quantise: the casts that are taken apart from FP8 products in results/kernels.
"""
LOOKUPS = ("embedding",)
ONE_ID = "one_id_"
"""How look-ups backward are called whose ids were all the same, as in some tables: every gradient is added to one row, the worst
case. What runs take does not follow them."""


def work_of(op: str) -> Work:
    """The ratios of an operator, by its name with or without `_backward`."""
    name = op.removesuffix(BACKWARD).removeprefix(ONE_ID)
    return WORK["gated"] if name.endswith("_gated") else WORK.get(name, POINTWISE)


def is_lookup(op: str) -> bool:
    """Whether an operator, or its backward pass, is bound by indices."""
    return op.removesuffix(BACKWARD).removeprefix(ONE_ID) in LOOKUPS


def is_timed(op: str) -> bool:
    """Whether the constants of a GPU come from kernels such as this one; others are known by a ratio to them."""
    return op in LOOKUPS or (not op.endswith(BACKWARD) and work_of(op) is POINTWISE)


def pace_of(op: str, *, eager: bool = False, width: float = 2) -> Pace:
    """How an operator, or its backward pass, is run on elements of `width` bytes. An eager backward pass loses as much more as
    the forward one streams slower."""
    work = work_of(op)
    back = op.endswith(BACKWARD)
    if not eager:
        return Pace(work.backward if back else work.fused)
    pace = replace(work.eager, cycle_bytes=work.eager.cycle_bytes * width / 2)
    return replace(pace, times=work.backward * pace.times / work.fused, step=0) if back else pace


def rowwise_s(c: RowwiseConstants, on: Machine, bytes_moved: ArrayLike, pace: Pace = Pace(), row: ArrayLike = 0) -> Array:
    """Seconds of an operator that moves so many bytes, in rows of so many elements."""
    moved, row = columns(bytes_moved, row)
    streaming_s = np.maximum(pace.times / c.stream, 1.0) * moved / on.bytes_per_s / _sooner(on, moved)
    held = on.threads // pace.block * pace.block if pace.block else on.threads
    waiting_s = moved / (pace.cycle_bytes * on.sms * on.clock_per_s * held / UNKNOWN.threads)
    walking_s = np.ceil(row / pace.step) * TRIP_CYCLES / on.clock_per_s if pace.step else np.zeros_like(moved)
    least_s = moved / on.bytes_per_s / _sooner(on, moved)
    bound_s = (streaming_s**NORM + waiting_s**NORM + walking_s**NORM) ** (1 / NORM)
    took_s: Array = pace.kernels * c.launch_us / US_PER_S + np.maximum(bound_s, least_s)
    return took_s


def ratio_s(c: RowwiseConstants, on: Machine, bytes_moved: ArrayLike, times: ArrayLike) -> Array:
    """Seconds of an operator that was measured to take so many times as long as a pointwise kernel; never less than its bytes."""
    moved = np.asarray(bytes_moved, dtype=np.float64)
    least_s = moved / on.bytes_per_s / _sooner(on, moved)
    took_s: Array = np.maximum(np.asarray(times, dtype=np.float64) * rowwise_s(c, on, moved), least_s)
    return took_s


def _sooner(on: Machine, moved: Array) -> Array:
    """How much faster bytes come that the cache holds: all of them up to half of it, none beyond it."""
    return 1 + (CACHED - 1) * held(on, moved)


def lookup_s(c: RowwiseConstants, on: Machine, elements: ArrayLike, bytes_moved: ArrayLike, kernels: int = 1) -> Array:
    """Seconds of looking up rows of a table, of so many elements in all."""
    elements, moved = columns(elements, bytes_moved)
    indexing_s = elements * c.lookup_cycles / (on.sms * on.clock_per_s)
    return kernels * c.launch_us / US_PER_S + np.maximum(indexing_s, moved / (c.stream * on.bytes_per_s))
