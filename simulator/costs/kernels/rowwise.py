"""Time of memory-bound operators: their bytes at the rate that streaming kernels sustain, and a ratio for each operator.

A pointwise kernel moves its bytes at a fraction of the memory's rate that hardly depends on the operation. Fused reductions
over a row take a multiple of this time: a ratio of the GPU where measured, else one ratio for all GPUs. Eager kernels have other
limits: each thread waits for the data that it has read, so that a multiprocessor moves a fixed number of bytes per cycle at any
memory rate; a kernel with one block per row needs a round trip to memory for each step along the row. Data that fits in the
last-level cache was left there by the previous kernel, and moves at the rate of the cache (`gpu_model.fetched_s`). A look-up is
bound by the arithmetic of its indices; a look-up of few ids reads one id after the other.

Some rows time operators that eager PyTorch ran one by one, from an idle GPU, in fp32: `torch2.1 add`, or `gelu fwd` and
`gelu bwd(all grads)` where a model was run operator by operator. Such a time includes the dispatch and the launch by the
framework: some microseconds of the host, the same for every operator of a machine, and fewer if nothing is launched. These
microseconds are fitted beside the kernels, not in them. Backward passes move the bytes of the several kernels that autograd runs,
counted here kernel by kernel where workloads count other bytes: such passes stream as pointwise kernels do, with a slowdown that
is fitted per GPU under separate names. A ratio holds only for the passes with which the ratio was fitted. The ids of the look-ups
in these rows were all the same, so that the cache holds what is read, and a row holds the mean of a model's tables: these rows
fit nothing about look-ups (`of_one_id`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ...hardware.gpu import Gpu
from ...kernels import Rowwise
from ...units import US_PER_S
from .estimator import EXTRAPOLATION_FACTOR, RANGE_TOLERANCE, Estimator
from .family import SHARE, Estimate, Fit, KernelFamily, TimedKernels, Transfer, constant, priors
from .fit_choice import FEW_ROWS, SelectedFit
from .gpu_model import HALVES, UNKNOWN, Array, Machine, architecture, clock_per_s, columns, fetched_s, same_kernels

BACKWARD = "_backward"
TRIP_CYCLES = 2 * 475
"""Clock cycles of a round trip at each step along a row: a read and a write, each with about 475 cycles to memory on A100 and
H100 (Luo et al., arXiv 2402.13499, from memory)."""
NORM = 3.0
"""Exponent of the norm of the three limits of a kernel: the memory, its threads, and the steps along a row."""
WAITS_POWER = 0.5
"""Exponent with which the waiting time of threads on another GPU grows with the bytes that its memory delivers per cycle and
thread. Evaluated on pairs of GPUs that both have ratios. Median errors at 0, 0.5 and 1 are, of seven GPUs in fp32, 14, 12 and 12%
for layer norms and 17, 13 and 18% for softmax; of H100 and H200, 9, 5 and 18% for layer norms, 2, 10 and 21% for RMS norms, 15, 2
and 12% for dropout."""


@dataclass(frozen=True, slots=True)
class RowwiseConstants:
    """Constants of memory-bound operators, fitted to one GPU."""

    launch_us: float = constant(1.5, 1.0, scales="cycles")
    """Duration of a nearly empty kernel."""
    stream: float = constant(0.87, 1.0, scale=SHARE, positive=True, scales="memory")
    """Fraction of the memory's rate that a pointwise kernel reaches."""
    lookup_cycles: float = constant(1.75, 1.0, sometimes=True, positive=True, scales="time")
    """Clock cycles of one multiprocessor per element of a look-up. In fp16 H100 SXM takes 1.75 and A100 SXM 2.0
    (microsoft/vidur@7d47513)."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Execution of an operator relative to a pointwise kernel of the same bytes."""

    slowdown: float = 1.0
    """Slowdown of streaming."""
    kernels: int = 1
    cycle_bytes: float = math.inf
    """Largest number of bytes per cycle of a multiprocessor with 2,048 threads, for elements of 16 bits."""
    block: int = 0
    """Threads per block; a multiprocessor holds only whole blocks."""
    step: int = 0
    """Elements of a row between two waits; 0 where a row does not belong to a single block."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of an operator: `fused` into one kernel, as run by `eager` frameworks, and in the fused `backward` pass; `fused` and
    `backward` are slowdowns of streaming the bytes of the pass."""

    fused: float = 1.0
    eager: Speed = Speed()
    backward: float = 1.0


NO_RATIOS = Ratios()
RATIOS = {
    "layernorm": Ratios(1.3, Speed(1.45, 1, 7.4, 128, 1024 // 3), 2.3),
    "rmsnorm": Ratios(1.3, Speed(1.3, 1, 4.8, 1024, 1024), 2.3),
    "softmax": Ratios(1.25, Speed(1.25), 2.2),
    "cross_entropy": Ratios(1.25, Speed(3.0, 6), 1.25),
    "rope": Ratios(1.0, Speed(1.0, 1, 6.05, 512, 1024)),
    "gated": Ratios(1.0, Speed(1.0, 1, 7.0, 1024, 1024)),
    "gelu": Ratios(1.0, Speed(1.0, 1, 10.3, 128)),
    "dropout": Ratios(1.2, Speed(1.2), 1.3),
    "adam": Ratios(1.15, Speed(2.0, 8), 1.15),
    "quantise": Ratios(1.2, Speed(2.7, 3), 1.2),
    "embedding": Ratios(1.0, Speed(6.0, 2)),
}
"""Ratios of memory-bound operators that hold for all GPUs; all other operators have ratio 1.

Fused reductions: fp32 layer norm and softmax of torch 2.1 on four GPUs, over add on the same GPUs (NeuSight: 1.0 to 1.5); their
backward: 2.7 and 2.6 times forward there, with 3 passes over memory against 2. Eager norms, rope, gates and gelu: bytes per cycle
from the bandwidth that these kernels sustain in fp16 on A100 and H100 (microsoft/vidur@7d47513) relative to add; both GPUs
agree to 8% (layer norm: 17%); blocks and steps are those of the kernels of vLLM and PyTorch in 2023, from memory.
Dropout: backward takes 2.7 times forward in fp32. Look-ups: eager backward, where the table's gradient is zeroed and ids are
sorted, takes 6 times as long as its three passes (5.3 and 6.1 on two GPUs, in fp32, with equal ids; forward look-ups wait for
indices). Cross-entropy: as softmax; eager, by its passes in fp32. Adam: 34 bytes per parameter at three quarters of the rate.
Quantise: the casts that are separated from FP8 GEMMs in results/kernels.
"""
LOOKUPS = ("embedding",)
FEW_IDS = 16
"""Largest number of ids of a look-up for which PyTorch has a separate kernel (`index_select_out_cuda_impl`,
pytorch/pytorch@006048e, aten/src/ATen/native/cuda/Indexing.cu): its threads belong to columns and read id after id, so that 16
ids take longer than 17."""
ONE_ID = "one_id_"
"""Prefix of backward look-ups whose ids were all the same, as in some tables: every gradient is added to one row, the worst case.
The times of runs do not use these rows."""


BACKWARD_OPERATORS = (
    "layernorm", "softmax", "gelu", "relu", "truediv", f"{ONE_ID}embedding",
    "autograd_dropout", "autograd_tanh", "autograd_pow", "autograd_mul", "autograd_where",
)  # fmt: skip
ONE_OPERATOR = ("layernorm", "softmax", *map("{}_backward".format, BACKWARD_OPERATORS))
FORMATS_OF_RATIOS = ("fp32", "tf32")
"""Formats in which the ratios of public tables were measured. An eager framework also runs each `ONE_OPERATOR` as one operator,
which is bound by memory in these formats and by threads in others. Backward passes with other bytes are named in
`AUTOGRAD_PASSES`."""
UNTIMED_SIGMA = 0.15
"""Relative error of a memory-bound operator whose ratio to a pointwise kernel is from other GPUs: together with the error of the
pointwise kernel, 68% of all measured operators are off by less than 17%."""
LOOKUP_SIGMA = 0.6
"""Relative error of look-ups: 68% of the measured look-ups have a smaller error, and all have an error above a fifth."""
SINGLE_BYTES, HALF_BYTES = 4, 2
"""Bytes per element outside of GEMMs: in 32-bit formats, and in 16 bits for all other formats of GEMMs."""
OPERATOR_US, HANDED_ON_US = "operator_us", "handed_on_us"
"""Names of quantities timed beside memory-bound operators that run one by one: microseconds of the framework around an operator,
and around an operator without a launch, such as an addition's backward pass, which passes its gradient on (`AUTOGRAD_PASSES`)."""


def ratios_of(op: str) -> Ratios:
    """The ratios of an operator, by its name with or without `_backward`."""
    name = op.removesuffix(BACKWARD).removeprefix(ONE_ID)
    return RATIOS["gated"] if name.endswith("_gated") else RATIOS.get(name, NO_RATIOS)


def is_lookup(op: str) -> bool:
    """Whether an operator is a look-up or the backward pass of a look-up, which are bound by indices."""
    return op.removesuffix(BACKWARD).removeprefix(ONE_ID) in LOOKUPS


def is_timed(op: str) -> bool:
    """Whether the constants of a GPU are fitted to kernels of this operator; other operators are known by a ratio to these."""
    return op in LOOKUPS or (not op.endswith(BACKWARD) and ratios_of(op) is NO_RATIOS)


def speed_of(op: str, *, eager: bool = False, element_bytes: float = 2) -> Speed:
    """The speed of an operator, or of its backward pass, with `element_bytes` bytes per element. An eager backward pass is slower
    than the fused one by the same factor as the forward pass."""
    ratios = ratios_of(op)
    back = op.endswith(BACKWARD)
    if not eager:
        return Speed(ratios.backward if back else ratios.fused)
    speed = replace(ratios.eager, cycle_bytes=ratios.eager.cycle_bytes * element_bytes / 2)
    return replace(speed, slowdown=ratios.backward * speed.slowdown / ratios.fused, step=0) if back else speed


def rowwise_s(
    constants: RowwiseConstants, machine: Machine, bytes_moved: ArrayLike, speed: Speed = Speed(), row: ArrayLike = 0
) -> Array:
    """Seconds of an operator that moves `bytes_moved` bytes, in rows of `row` elements."""
    moved, row = columns(bytes_moved, row)
    least_s = fetched_s(machine, moved)
    streaming_s = np.maximum(speed.slowdown / constants.stream, 1.0) * least_s
    held_threads = machine.threads // speed.block * speed.block if speed.block else machine.threads
    waiting_s = moved / (speed.cycle_bytes * machine.sms * machine.clock_per_s * held_threads / UNKNOWN.threads)
    walking_s = np.ceil(row / speed.step) * TRIP_CYCLES / machine.clock_per_s if speed.step else np.zeros_like(moved)
    bound_s = (streaming_s**NORM + waiting_s**NORM + walking_s**NORM) ** (1 / NORM)
    took_s: Array = speed.kernels * constants.launch_us / US_PER_S + np.maximum(bound_s, least_s)
    return took_s


def ratio_s(constants: RowwiseConstants, machine: Machine, bytes_moved: ArrayLike, ratio: ArrayLike, waits: float = 1.0) -> Array:
    """Seconds of an operator that takes `ratio` times as long as a pointwise kernel; never below the time of its bytes.

    Where threads wait `waits` times as long for memory as on the GPU of the ratio, the bytes take longer than the ratio says; the
    launch does not.
    """
    moved, ratio = np.asarray(bytes_moved, dtype=np.float64), np.asarray(ratio, dtype=np.float64)
    launch_s = constants.launch_us / US_PER_S
    times = ratio * launch_s + _waiting(ratio, waits) * (rowwise_s(constants, machine, moved) - launch_s)
    took_s: Array = np.maximum(times, fetched_s(machine, moved))
    return took_s


def lookup_s(
    constants: RowwiseConstants,
    machine: Machine,
    ids: ArrayLike,
    width: ArrayLike,
    bytes_moved: ArrayLike,
    kernels: int = 1,
) -> Array:
    """Seconds of looking up `ids` rows of a table that is `width` elements wide."""
    ids, width, moved = columns(ids, width, bytes_moved)
    cycles = np.where(ids <= FEW_IDS, ids * TRIP_CYCLES, ids * width * constants.lookup_cycles / machine.sms)
    indexing_s = cycles / machine.clock_per_s
    moving_s = moved / (constants.stream * machine.bytes_per_s)
    took_s: Array = kernels * constants.launch_us / US_PER_S + np.maximum(indexing_s, moving_s)
    return took_s


FORWARD = "fwd"
ONE_BY_ONE = re.compile(r"torch2\.1 |(\w+ )?(fwd|bwd\(all grads\))$")
"""Variants of rows that time operators one by one."""
AUTOGRAD = "autograd_"
"""Prefix of the names of backward passes whose bytes are counted by `AUTOGRAD_PASSES`."""
MASK_BYTES = 1
"""Bytes of a mask (boolean) per element."""
MASK_PASS = MASK_BYTES / 4
"""Share of a pass over elements of four bytes."""
AUTOGRAD_PASSES: Mapping[str, float] = {"add": 0, "mul": 2, "where": 2, "tanh": 3, "pow": 2 + 2 + 3, "dropout": 1 + 2 + 3}
"""Passes over the elements of a backward row, where workloads count other passes. `add` passes its gradient on. Scalar factors
have no gradient; `where` reads its mask. Tanh reads the gradient and the saved result. Power: x^(p-1), times p, times the
gradient. Dropout: the mask converted to numbers, scaled, times the gradient. Other operators are counted as in runs, and known
by a ratio: gelu and relu read the gradient and a saved tensor; a division by a number reads the gradient; softmax multiplies
gradient and result before its kernel (six passes in all), layer norm reads both operands for its input and again for its weights
(seven), a look-up zeroes the table's gradient, sorts ids and adds rows."""
MASKED = ("where", "dropout")
"""Operators that also read a mask."""
TRACED_PASSES: Mapping[str, float] = {"mul": 2, "truediv": 2, "pow": 2, "where": 2 + MASK_PASS}
"""Forward passes in rows of a model, with a number, or a mask and a number; operators that are timed alone have two tensors."""


def is_one_by_one(dtype: str, variant: str) -> bool:
    """Whether a row is of an operator that eager PyTorch ran one by one."""
    return dtype == "fp32" and bool(ONE_BY_ONE.match(variant.strip().lower()))


def of_one_id(op: str, dtype: str, variant: str) -> bool:
    """Whether a row is of a look-up whose ids were all the same."""
    return op in LOOKUPS and is_one_by_one(dtype, variant)


def autograd(name: str, element_bytes: float) -> tuple[str, float] | None:
    """The backward pass of an operator in eager PyTorch with `element_bytes` bytes per element: its name, and the bytes that it
    moves per element, 0 if nothing is launched; None if the backward pass is counted as in workloads."""
    if name not in AUTOGRAD_PASSES:
        return None
    return f"{AUTOGRAD}{name}{BACKWARD}", AUTOGRAD_PASSES[name] * element_bytes + MASK_BYTES * (name in MASKED)


def backward_name(name: str) -> str:
    """Name in the ratios of a backward pass that was timed one by one and is counted as in workloads."""
    return f"{ONE_ID * (name in LOOKUPS)}{name}{BACKWARD}"


def traced_passes(name: str, variant: str) -> float | None:
    """Passes over the elements of a forward row that was timed one by one; None for the usual number of passes."""
    return TRACED_PASSES.get(name) if variant.strip().lower().endswith(FORWARD) else None


# The family -----------------------------------------------------------------------------------------------------------------


class RowwiseFamily(KernelFamily):
    """The family of memory-bound operators: pointwise kernels and look-ups with fitted constants, and others by their ratios."""

    name, plural = "rowwise", "memory-bound operators"
    constants = RowwiseConstants
    least_sigma = 0.05
    far_sigma = 0.1
    held_out = ("traffic_bytes",)
    beside = of_host = (OPERATOR_US, HANDED_ON_US)
    any_format = True
    has_ratios = True

    def kernel_s(self, constants: RowwiseConstants, estimator: Estimator, machine: Machine, kernel: Rowwise) -> float:
        element_bytes = SINGLE_BYTES if estimator.dtype in FORMATS_OF_RATIOS else HALF_BYTES
        speed = speed_of(kernel.op, eager=estimator.options.eager, element_bytes=element_bytes)
        if kernel.op in LOOKUPS:
            return float(lookup_s(constants, machine, kernel.rows, kernel.columns, kernel.traffic_bytes, speed.kernels))
        return float(rowwise_s(constants, machine, kernel.traffic_bytes, speed, kernel.columns))

    def estimate(self, estimator: Estimator, machine: Machine, kernel: Rowwise, chosen: SelectedFit) -> Estimate:
        sizes, constants, lookup_sigma = self.sizes(kernel), chosen.fit.constants, 0.0
        ratio = chosen.fit.ratios.get(kernel.op) if self._has_ratio(estimator, kernel.op, chosen) else None
        if ratio is not None:
            waits = 1.0 if kernel.op.endswith(BACKWARD) else chosen.fit.waits
            time_s = float(ratio_s(constants, machine, kernel.traffic_bytes, ratio[0], waits))
            found = estimator.estimate_from(_as_ratio(chosen, kernel), time_s, kernel.op, sizes)
            known, more = estimator.dtype in formats_of_ratios(chosen.fit) or estimator.is_own(chosen), UNTIMED_SIGMA
        else:
            found = estimator.estimate_from(chosen, self.kernel_s(constants, estimator, machine, kernel), kernel.op, sizes)
            known, more = chosen.provenance == "roofline", 0.0 if is_timed(kernel.op) else UNTIMED_SIGMA
            told = not is_lookup(kernel.op) or estimator.is_own(chosen)
            known = known or (told and not more and chosen.fit.rows > 0)
            lookup_sigma = LOOKUP_SIGMA if is_lookup(kernel.op) else 0.0
        found = replace(found, sigma=math.hypot(found.sigma, lookup_sigma))
        return found if known else replace(found, provenance="transferred", sigma=math.hypot(found.sigma, more))

    def owns(self, estimator: Estimator, op: str) -> bool:
        """Whether a profile of this GPU has a ratio for a memory-bound operator."""
        chosen = estimator.selected(self.name)
        return estimator.is_own(chosen) and op in chosen.fit.ratios

    def _has_ratio(self, estimator: Estimator, op: str, chosen: SelectedFit) -> bool:
        """Whether the ratios of a fit hold for an operator: always for fused operators; for eager operators, shipped ratios in
        the measured formats, and ratios of the user's profile except for operators that run as several kernels."""
        if not estimator.options.eager:
            return True
        if estimator.is_own(chosen):
            return is_lookup(op) or speed_of(op, eager=True).kernels == 1
        return op in ONE_OPERATOR and estimator.dtype in FORMATS_OF_RATIOS and not chosen.fit.ratio_rows

    def is_fitted(self, kernel: Rowwise) -> bool:
        return is_timed(kernel.op)

    def sizes(self, kernel: Rowwise) -> dict[str, float]:
        return {"bytes": kernel.traffic_bytes}

    def seconds(self, constants: RowwiseConstants, timed: TimedKernels, extra: Array) -> Array:
        moved = timed.column("traffic_bytes")
        lookups_s = lookup_s(constants, timed.machine, timed.column("rows"), timed.column("columns"), moved)
        others_s = pointwise_s(constants, timed.machine, moved, timed.cold)
        return timed.per_row(np.where(_are_lookups(timed), lookups_s, others_s))

    def free(self, timed: TimedKernels, start: RowwiseConstants) -> dict[str, float]:
        return priors(start, *(("lookup_cycles",) if _are_lookups(timed).any() else ()))

    def transferred(self, fit: Fit, transfer: Transfer) -> Fit:
        """The fit for another GPU; reductions are slower than pointwise kernels as far as their threads wait for memory."""
        made = super().transferred(fit, transfer)
        if not same_kernels(transfer.gpu, transfer.owner):
            made = replace(made, constants=replace(made.constants, stream=fit.constants.stream))
        more = _bytes_per_thread_cycle(transfer.gpu) / _bytes_per_thread_cycle(transfer.owner)
        return replace(made, waits=fit.waits * more**WAITS_POWER)


def _bytes_per_thread_cycle(gpu: Gpu) -> float:
    """Bytes that the memory can deliver per cycle and resident thread."""
    return gpu.memory_bytes_per_s / (gpu.sms * clock_per_s(gpu) * architecture(gpu).threads)


def _waiting(ratio: Array, waits: float) -> Array:
    """The ratio to a pointwise kernel where threads wait `waits` times as long: the norm of streaming and waiting, of which only
    waiting changes."""
    return np.where(ratio <= 1, ratio, (1 + (np.maximum(ratio, 1) ** NORM - 1) * waits**NORM) ** (1 / NORM))


def pointwise_s(constants: RowwiseConstants, machine: Machine, moved: Array, cold: ArrayLike, ratio: ArrayLike = 1.0) -> Array:
    """Seconds of kernels that take `ratio` times as long as pointwise kernels of `moved` bytes; the last-level cache held none of
    these bytes where `cold`."""
    nothing_held = replace(machine, cache_bytes=0.0)
    return np.where(cold, ratio_s(constants, nothing_held, moved, ratio), ratio_s(constants, machine, moved, ratio))


def formats_of_ratios(fit: Fit) -> tuple[str, ...]:
    """Formats in which the ratios of a shipped fit were measured: those of public tables in fp32, and in 16 bits those that state
    their rows, which `calibrate gpu` timed."""
    return HALVES if fit.ratio_rows else FORMATS_OF_RATIOS


def _as_ratio(chosen: SelectedFit, kernel: Rowwise) -> SelectedFit:
    """A fit applied to an operator by its ratio, with the error and the sizes of the rows of the ratio. A ratio from fewer than
    `FEW_ROWS` rows counts as measured only at their sizes."""
    fit = chosen.fit
    sigma, rows = fit.ratios[kernel.op][1], fit.ratio_rows.get(kernel.op)
    if rows:
        few: dict[str, tuple[float, float]] | None = {} if rows.rows < FEW_ROWS else None
        fit = replace(fit, ranges={"bytes": rows.bytes}, transferred_ranges=few)
        if kernel.traffic_bytes * RANGE_TOLERANCE < rows.bytes[0]:
            sigma = max(sigma, rows.smaller_sigma / EXTRAPOLATION_FACTOR)
    return replace(chosen, fit=fit, sigma=math.hypot(chosen.borrowed_sigma, sigma))


def _are_lookups(timed: TimedKernels) -> Array:
    return np.array([kernel.op in LOOKUPS for kernel in timed.kernels])


FAMILY = RowwiseFamily()
