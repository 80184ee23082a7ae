"""Time of fused attention: blocks of query rows iterate over their keys, spread over the multiprocessors.

The pass of a block over its keys is called a walk. A block of rows needs, per key, two GEMMs of the width of a head and an
exponential, which tensor cores cannot compute; the two overlap, as a p-norm, so that narrow heads are slower per flop. A library
is compiled for a number of rows per block, which is smaller for wide heads. Blocks of full attention are equal and run in waves.
Blocks of causal attention differ: with few heads the longest walk decides, unless the library splits the walk; with many heads
the mean load of the multiprocessors decides; a p-norm joins the two. Libraries for grouped queries pack the heads that share keys
into a block. The traffic of queries, keys, values and results overlaps with the arithmetic, as a p-norm. Heads are padded to the
widths that a library is compiled for. Backward has five GEMMs, not two. See Dao, arXiv 2307.08691; Shah et al., arXiv 2407.08608.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ...errors import UserError
from ...hardware.gpu import PEAK_OF, Gpu
from ...kernels import Attention, Gemm, Kernel, Part, Rowwise
from ...units import US_PER_S
from .estimator import Estimator
from .family import ABOVE_ONE, BURST, SHARE, Estimate, Fit, KernelFamily, TimedKernels, Transfer, constant, one_of, priors
from .fit_choice import SelectedFit
from .gpu_model import UNKNOWN, Array, Machine, architecture, columns, flop_per_cycle

NARROW_WIDTH, USUAL_WIDTH = 96, 128
"""Largest widths of heads for which a library's tallest blocks, and its usual blocks, are compiled."""
EQUAL_BLOCKS_NORM = 8.0
"""Exponent of the norm of the longest walk and the mean load where all blocks are equal: nearly the maximum."""
HEAD_MULTIPLE = 16
"""Part of the width of a head that a tensor core processes at once."""
SIXTEENS = "sixteens"
WIDTHS: Mapping[str, tuple[int, ...]] = {
    SIXTEENS: tuple(range(HEAD_MULTIPLE, 257, HEAD_MULTIPLE)),
    "flash": (32, 64, 96, 128, 192, 256),
    "flash3": (64, 96, 128, 160, 192, 256),
}
"""Widths of heads that libraries are compiled for; a head is padded to the next width. `sixteens`: all multiples of 16; the rest
are FlashAttention 2 and 3 (Dao-AILab/flash-attention, `csrc/flash_attn` and `hopper`). 160 represents keys of 192 with values of
128, for which FlashAttention 3 has a kernel and FlashAttention 2 pads."""
REFERENCE_WIDTH = 128
"""Head width of the GEMMs that serve as the unit of the cost of an exponential."""
SPLITS = (1, 2, 4, 8, 16, 32)
FORWARD_GEMMS, BACKWARD_GEMMS = 2, 5
LEAST_BACKWARD = BACKWARD_GEMMS / FORWARD_GEMMS
"""Least time of the backward pass over that of the forward pass, on heads of any width: that of their flop."""
WIDENING = 0.3
"""Power of the width of a head with which backward over forward grows: wide heads leave room for fewer rows and keys in a block.
On an A100, over heads of 128: 1.09 to 1.12 times on heads of 192 (MooreThreads/SimuMax@4dcaae5), and 0.84 on heads of 64, from
the sums of both passes of FlashAttention 2 (Dao-AILab/flash-attention@0251105)."""
MULTIPLY_ADD_FLOP = 2.0
"""Flop of a multiply-add."""
EXPONENTIAL_SHARE = 2 / 3
"""Share of the exponential in the time of a score beside its GEMMs, at 16 exponentials per cycle: 0.58 to 0.72 of the times that
are fitted to A100, H100 and B200. The rest is scaling, maxima and sums."""
FOR_AMPERE = ("flash_attention", "vllm_flash_attn")
BACKWARD_SIGMA = 0.1
"""Relative error of using a single ratio of backward to forward, which varies with the width of the heads."""
UNTIMED_PASS_SIGMA = 0.2
"""Relative error of a pass without rows in the fit, since the ratio of backward to forward is that of another fit: of the
published ratios for B200, half lie up to 27% below or 16% above their median, depending on the width of the heads."""
ODD_SIGMA = 0.2
"""Relative error for heads whose width is not a multiple of 16: half of the measured heads have errors of 4 to 13%."""
WINDOW_SIGMA = 0.15
"""Relative error of attention in a window or within documents, whose time follows from its share of the flop: assumed, as none
was measured."""
SIXTEEN_BITS, NARROW_PEAKS, NARROWEST = "bf16", ("fp8", "nvfp4"), "nvfp4"
NARROW_SIGMA = 0.2
"""Relative error of attention in 8 bits that is predicted from attention in 16 bits: assumed, as none was measured."""
CACHE_US, CACHE_PASSES, PAGED = "cache_us", "cache_passes", "paged"
"""Names of quantities timed beside attention in inference frameworks: microseconds of writing keys and values to a cache, passes
over the bytes that this write reads and writes, and the slowdown of the kernel that reads keys and values from the cache
(measurements/attention_libraries.py)."""


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Constants of the attention model, fitted to one GPU and library."""

    launch_us: float = constant(8.0, 0.7, scales="cycles")
    """Launch overhead, including metadata, scheduling and copies around the kernel."""
    compute: float = constant(0.85, 0.8, scale=SHARE, positive=True, scales="compute")
    """Fraction of the peak that the GEMMs alone reach."""
    exponential: float = constant(0.4, 0.7, positive=True, scales="time")
    """Cost of the exponential of a score, over the time of the GEMMs of a REFERENCE_WIDTH-wide head at the peak."""
    overlap: float = constant(1.5, 1.0, scale=ABOVE_ONE)
    """Exponent of the norm of GEMMs and exponentials: 1 adds both times, infinity takes the larger time."""
    ramp: float = constant(150.0, 1.0)
    """Time to start and end a block, expressed in exponentials of keys."""
    quantum: float = constant(0.2, 1.0, scale=SHARE)
    """Share of the last wave that is lost."""
    norm: float = constant(2.5, 0.7, scale=ABOVE_ONE)
    """Exponent of the norm of the longest walk and the mean load, where walks differ."""
    memory: float = constant(0.85, 0.15, scale=SHARE, positive=True, scales="memory")
    """Fraction of the memory's rate, at which queries, keys, values and results are each moved once."""
    cover: float = constant(2.0, 0.3, scale=ABOVE_ONE)
    """Exponent of the norm of arithmetic and traffic: 1 adds both times, infinity takes the larger time."""
    walk: float = constant(1.0, 0.7, positive=True)
    """Slowdown of a single block on a multiprocessor, compared with many blocks."""
    walk_products: float = constant(1.0, 0.7, positive=True)
    """Further slowdown of the GEMMs of a single block."""
    split_us: float = constant(10.0, 1.0, scales="cycles")
    """Time to join the two halves of a split walk."""
    throttle: float = constant(0.05, 0.7)
    """Slowdown of long loops of launches, whose clock a governor has lowered."""
    throttle_us: float = constant(1024.0, 1.0, scales="time")
    """Time of a kernel for which a loop of `BURST` launches has half of this slowdown; other loops have it after an equal
    time."""
    limited: float = constant(1.0, positive=True, optional=True)
    """Factor on the time of the arithmetic on a board with another limit of power than the measured board."""
    backward: float = constant(2.8, 0.7, sometimes=True, positive=True)
    """Time of the backward pass over the time of the forward pass, on heads of REFERENCE_WIDTH, without launches."""
    odd: float = constant(1.0, 1.0, scale=ABOVE_ONE, sometimes=True, optional=True)
    """Slowdown of heads whose width is not a multiple of HEAD_MULTIPLE, for which libraries may have another kernel."""
    odd_ramp: float = constant(1.0, 1.0, sometimes=True, optional=True)
    """Factor on the ramp of heads whose width is not a multiple of HEAD_MULTIPLE."""
    widths: str = one_of(SIXTEENS, WIDTHS)
    """Name in `WIDTHS` of the widths that the library is compiled for."""
    packed: bool = False
    """Whether heads that share keys share a block."""
    narrow_rows: float = constant(128, positive=True)
    """Query rows of a block, for heads up to NARROW_WIDTH wide."""
    rows: float = constant(128, positive=True)
    wide_rows: float = constant(128, positive=True)
    """Query rows of a block for heads wider than USUAL_WIDTH."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of attention, or columns of sizes. `causal` is 1 where a query attends only to earlier keys; `prefix` is the number
    of keys before the sequence, to which all queries attend.
    """

    batch: ArrayLike
    seq: ArrayLike
    heads: ArrayLike
    kv_heads: ArrayLike
    head_dim: ArrayLike
    causal: ArrayLike = 1
    prefix: ArrayLike = 0


def attention_s(
    constants: AttentionConstants,
    machine: Machine,
    shape: Heads | Attention,
    *,
    element_bytes: float = 2,
    backward: bool = False,
    launches: ArrayLike = BURST,
) -> Array:
    """Seconds of the forward pass, or of the backward pass alone, in a loop of `launches`."""
    sizes = columns(shape.batch, shape.seq, shape.heads, shape.kv_heads, shape.head_dim, shape.causal, shape.prefix)
    batch, seq, heads, kv_heads, head_dim, causal, prefix = sizes
    working_s = _working(constants, machine, sizes)
    half_s = constants.throttle_us / US_PER_S * (BURST / np.asarray(launches))
    working_s = constants.limited * working_s * (1 + constants.throttle * working_s / (working_s + half_s))
    moved = 2 * batch * head_dim * (seq * heads + (seq + prefix) * kv_heads)
    moving_s = element_bytes * moved / (constants.memory * machine.bytes_per_s)
    kernel_s = (working_s**constants.cover + moving_s**constants.cover) ** (1 / constants.cover)
    scores = batch * heads * seq * (np.where(causal > 0, (seq + 1) / 2, seq) + prefix)
    gemms = BACKWARD_GEMMS if backward else FORWARD_GEMMS
    ideal_s = MULTIPLY_ADD_FLOP * gemms * scores * head_dim / machine.flop_per_s
    factor = backward_over_forward(constants, head_dim) if backward else 1.0
    took_s: Array = constants.launch_us / US_PER_S + np.maximum(factor * kernel_s, ideal_s)
    return took_s


def backward_over_forward(constants: AttentionConstants, head_dim: ArrayLike) -> Array:
    """Time of the backward pass over the time of the forward pass, without launches."""
    wider = np.asarray(_padded(constants, np.asarray(head_dim, dtype=np.float64)) / REFERENCE_WIDTH)
    found: Array = np.maximum(constants.backward * wider**WIDENING, min(constants.backward, LEAST_BACKWARD))
    return found


def _working(constants: AttentionConstants, machine: Machine, sizes: list[Array]) -> Array:
    """Seconds of the arithmetic; causal attention never takes longer than full attention."""
    batch, seq, heads, kv_heads, head_dim, causal, prefix = sizes
    shared = heads / kv_heads if constants.packed else np.ones_like(heads)
    rows = np.where(
        head_dim <= NARROW_WIDTH, constants.narrow_rows, np.where(head_dim <= USUAL_WIDTH, constants.rows, constants.wide_rows)
    )
    of_head = np.ceil(seq * shared / rows)
    blocks = batch * heads / shared * of_head
    waves = ((1 - constants.quantum) * blocks + constants.quantum * np.ceil(blocks / machine.sms) * machine.sms) / machine.sms
    per_key_s, walk_s, ramp_s = (rows * each_s for each_s in _per_row(constants, machine, head_dim))
    longest_s = (seq + prefix) * walk_s + constants.walk * ramp_s
    even_s = _spread(constants, machine, blocks, (waves * ((seq + prefix) * per_key_s + ramp_s), longest_s, EQUAL_BLOCKS_NORM))
    mean = np.minimum((of_head + 1) * rows / shared / 2, seq) + prefix
    uneven_s = _spread(constants, machine, blocks, (waves * (mean * per_key_s + ramp_s), longest_s, constants.norm))
    return np.where(causal > 0, np.minimum(uneven_s, even_s), even_s)


def _per_row(constants: AttentionConstants, machine: Machine, head_dim: Array) -> tuple[Array, Array, Array]:
    """Seconds per row of queries on one multiprocessor: per key with many blocks, per key in a single walk, and for the ramp."""
    per_sm = machine.flop_per_s / machine.sms
    product_s = MULTIPLY_ADD_FLOP * FORWARD_GEMMS * _padded(constants, head_dim) / (constants.compute * per_sm)
    exponential_s = constants.exponential * MULTIPLY_ADD_FLOP * FORWARD_GEMMS * REFERENCE_WIDTH / per_sm

    def both(products_s: Array) -> Array:
        found: Array = (products_s**constants.overlap + exponential_s**constants.overlap) ** (1 / constants.overlap)
        return found

    slower, ramps = (np.where(head_dim % HEAD_MULTIPLE, odd, 1.0) for odd in (constants.odd, constants.odd_ramp))
    return (
        slower * both(product_s),
        slower * constants.walk * both(constants.walk_products * product_s),
        ramps * constants.ramp * exponential_s,
    )


def _padded(constants: AttentionConstants, head_dim: Array) -> Array:
    """The widths that heads are padded to."""
    compiled = np.array([*WIDTHS[constants.widths], np.inf])
    padded = compiled[np.searchsorted(compiled, head_dim)]
    return np.where(np.isinf(padded), np.ceil(head_dim / HEAD_MULTIPLE) * HEAD_MULTIPLE, padded)


def _spread(constants: AttentionConstants, machine: Machine, blocks: Array, times: tuple[Array, Array, float]) -> Array:
    """Seconds by the norm of an even share of the load and the longest walk; walks are split while multiprocessors are free."""
    share_s, longest_s, norm = times
    least = np.full(share_s.shape, np.inf)
    for split in SPLITS:
        taken_s = (share_s**norm + (longest_s / split) ** norm) ** (1 / norm) + np.log2(split) * constants.split_us / US_PER_S
        allowed = (split == 1) | (blocks * split <= machine.sms)
        least = np.where(allowed, np.minimum(least, taken_s), least)
    return least


# The family -----------------------------------------------------------------------------------------------------------------


class AttentionFamily(KernelFamily):
    """The family of fused attention, forward or backward, with the unfused kernels of an eager framework."""

    name = plural = "attention"
    constants = AttentionConstants
    far_sigma = 0.4
    held_out = ("seq", "heads")
    beside = (CACHE_US, CACHE_PASSES, PAGED)
    names_libraries = True
    slower_libraries: ClassVar = {"fa1": ("flash_attention", 1.7)}
    """FlashAttention 1 is 1.7 times as slow as 2, as the second paper (arXiv 2307.08691) shows and runs of 2023 confirm."""
    for_ampere = FOR_AMPERE
    compiled = ("triton", "triton_kv_fp8")

    def kernel_s(self, constants: AttentionConstants, estimator: Estimator, machine: Machine, kernel: Attention) -> float:
        """Seconds of both passes, since the same library serves both passes."""
        launches = estimator.options.launches
        return sum(_pass_s(constants, machine, kernel, launches, backward=backward) for backward in (False, True))

    def estimate(self, estimator: Estimator, machine: Machine, kernel: Attention, chosen: SelectedFit) -> Estimate:
        narrower = kernel.head_dim < chosen.fit.ranges.get("head_dim", (0, 0))[0]
        if chosen.fit.library in self.compiled and chosen.owner != estimator.gpu.name and narrower:
            # this library was timed only on wide heads, whose blocks are smaller: narrow heads use the usual library
            usual = replace(estimator, options=replace(estimator.options, library=""))
            return self.estimate(usual, machine, kernel, usual.selected(self.name))
        chosen = self.in_sixteen_bits(estimator, chosen, lambda constants: self.kernel_s(constants, estimator, machine, kernel))
        backward = kernel.part is not Part.FORWARD
        timed = chosen.fit.backward_rows > 0 if backward else chosen.fit.backward_rows < chosen.fit.rows
        time_s = _pass_s(chosen.fit.constants, machine, kernel, estimator.options.launches, backward=backward)
        found = estimator.estimate_from(chosen, time_s, f"{self.name} backward" if backward else self.name, self.sizes(kernel))
        masked = kernel.effective_window > 0 or kernel.packed < 1
        of_pass = UNTIMED_PASS_SIGMA * (not timed) or BACKWARD_SIGMA * backward
        more = math.hypot(ODD_SIGMA * (kernel.head_dim % HEAD_MULTIPLE > 0), WINDOW_SIGMA * masked, of_pass)
        if (masked or not timed) and found.provenance == "measured":
            found = replace(found, provenance="transferred")
        return replace(found, sigma=math.hypot(found.sigma, more))

    def unfused(self, kernel: Attention) -> list[Kernel]:
        """Attention as GEMMs and a softmax, which write and read all scores, including masked scores."""
        lines, keys, element_bytes = kernel.batch * kernel.heads, kernel.keys, kernel.element_bytes
        rows, (depth, value_depth) = lines * kernel.seq, kernel.widths
        scores = Gemm(kernel.seq, keys, depth, element_bytes, batch=lines, aligned=kernel.aligned)
        mixed = replace(scores, n=value_depth, k=keys)
        if kernel.part is Part.FORWARD:
            return [scores, Rowwise("softmax", rows, keys, element_bytes, 2 * element_bytes), mixed]
        to_keys, to_values = (replace(scores, m=keys, n=each, k=kernel.seq) for each in kernel.widths)
        softmax = Rowwise("softmax_backward", rows, keys, element_bytes, 3 * element_bytes)
        return [replace(scores, k=value_depth), to_values, softmax, replace(mixed, n=depth), to_keys]

    def in_sixteen_bits(
        self, estimator: Estimator, chosen: SelectedFit, takes_s: Callable[[AttentionConstants], float] | None = None
    ) -> SelectedFit:
        """The fit of attention in 8 bits without rows of its own: the fit in 16 bits, with the same time for exponentials.
        Attention in 4 bits does not exist and is refused."""
        if estimator.peak_dtype not in NARROW_PEAKS or PEAK_OF.get(chosen.fit.dtype, chosen.fit.dtype) in NARROW_PEAKS:
            return chosen
        if estimator.peak_dtype == NARROWEST:
            raise UserError(f"no attention runs in {estimator.dtype}", hint="bf16, or fp8 where the GPU has it")
        faster = estimator.gpu.peak(estimator.peak_dtype) / estimator.gpu.peak(SIXTEEN_BITS)

        def narrow(wide: AttentionConstants) -> AttentionConstants:
            return replace(wide, exponential=wide.exponential * faster)

        chosen = replace(estimator, dtype=SIXTEEN_BITS).selected(self.name, takes_s and (lambda wide: takes_s(narrow(wide))))
        if chosen.provenance == "roofline":
            return chosen
        fit = replace(chosen.fit, constants=narrow(chosen.fit.constants))
        return replace(chosen, fit=fit, provenance="transferred", sigma=math.hypot(chosen.sigma, NARROW_SIGMA))

    def sizes(self, kernel: Attention) -> dict[str, float]:
        return {"seq": kernel.seq, "head_dim": kernel.head_dim, "lines": kernel.batch * kernel.heads}

    def seconds(self, constants: AttentionConstants, timed: TimedKernels, extra: Array) -> Array:
        shape = Heads(*(timed.column(name) for name in ("batch", "seq", "heads", "kv_heads", "head_dim", "causal")))
        backward = _is_backward(timed)
        how: dict[str, Any] = {"element_bytes": timed.element_bytes, "launches": timed.loop}
        return timed.per_row(passes_s(constants, timed.machine, shape, ~backward, backward, **how))

    def free(self, timed: TimedKernels, start: AttentionConstants) -> dict[str, float]:
        return priors(start, *(("backward",) if _is_backward(timed).any() else ()))

    def about(self, timed: TimedKernels, extra: Array) -> dict[str, Any]:
        return {"backward_rows": sum(any(kernel.part is not Part.FORWARD for kernel in row) for row in timed.rows)}

    def transferred(self, fit: Fit, transfer: Transfer) -> Fit:
        """The fit for another GPU; the cost of exponentials relative to tensor cores follows the architectures."""
        made = super().transferred(fit, transfer)
        sooner = 1.0 if transfer.ported else _flop_per_score(transfer.gpu) / _flop_per_score(transfer.owner)
        return replace(made, constants=replace(made.constants, exponential=made.constants.exponential * sooner))

    def slower_library(self, constants: AttentionConstants, factor: float) -> AttentionConstants:
        return replace(constants, compute=constants.compute / factor, exponential=constants.exponential * factor)

    def scaled_to(self, start: AttentionConstants, timed: TimedKernels, extra: Array) -> tuple[AttentionConstants, float]:
        """Constants scaled to the rows with a forward pass, if any, and a backward ratio scaled to the other rows."""
        only_back = np.array([all(kernel.part is not Part.FORWARD for kernel in row) for row in timed.rows])
        return scaled_both_ways(start, np.log(timed.seconds / self.seconds(start, timed, extra)), only_back)


def scaled_both_ways(start: AttentionConstants, logs: Array, backward: Array) -> tuple[AttentionConstants, float]:
    """Constants scaled by the logarithms of measured over predicted times, each direction by its rows, and the factor."""
    both = bool(backward.any() and not backward.all())
    times = math.exp(float(np.median(logs[~backward] if both else logs)))
    made = FAMILY.slowed(start, times)
    back = math.exp(float(np.median(logs[backward]))) / times if both else 1.0
    return replace(made, backward=made.backward * back), times


def passes_s(
    constants: AttentionConstants,
    machine: Machine,
    shape: Heads,
    forward: Array,
    backward: Array,
    *,
    element_bytes: float = 2,
    launches: ArrayLike = BURST,
) -> Array:
    """Seconds of the measured passes of attention: forward and backward passes count where their columns are 1."""
    how: dict[str, Any] = {"element_bytes": element_bytes, "launches": launches}
    forward_s = attention_s(constants, machine, shape, **how)
    both_s: Array = forward * forward_s + backward * attention_s(constants, machine, shape, backward=True, **how)
    return both_s


def _pass_s(constants: AttentionConstants, machine: Machine, kernel: Attention, launches: float, *, backward: bool) -> float:
    """Seconds of one pass of attention with the sizes of a kernel; values of another width count by the mean of both widths.

    A window, or documents that share a sequence, take their share of the flop of causal attention without, and at least the time
    that the tensors need.
    Queries that see no keys of their own have no mask.
    """
    if not kernel.diagonal:
        kernel = replace(kernel, causal=False, prefix=kernel.prefix - kernel.seq, diagonal=True)
    alike = replace(kernel, head_dim=sum(kernel.widths) // 2)
    how: dict[str, Any] = {"element_bytes": kernel.element_bytes, "backward": backward, "launches": launches}
    took_s = float(attention_s(constants, machine, alike, **how))
    if not kernel.effective_window and kernel.packed == 1:
        return took_s
    launch_s, moving_s = constants.launch_us / US_PER_S, kernel.traffic_bytes / (constants.memory * machine.bytes_per_s)
    share = kernel.flop / replace(kernel, window=0, chunked=False, packed=1.0).flop
    return min(took_s, launch_s + max(share * (took_s - launch_s), moving_s))


def _is_backward(timed: TimedKernels) -> Array:
    return np.array([kernel.part is not Part.FORWARD for kernel in timed.kernels])


def _flop_per_score(gpu: Gpu) -> float:
    """Flop of the tensor cores in the time of a score's exponential and of the scalar operations around the exponential."""
    built = architecture(gpu)
    exponential, around = UNKNOWN.exponentials / built.exponentials, UNKNOWN.lanes / built.lanes
    return flop_per_cycle(gpu, "fp16") * (EXPONENTIAL_SHARE * exponential + (1 - EXPONENTIAL_SHARE) * around)


FAMILY = AttentionFamily()
