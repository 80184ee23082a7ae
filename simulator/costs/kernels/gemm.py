"""Time of GEMMs: tiles run in waves over the multiprocessors, overlapped with memory traffic.

A library is assumed to pick the tile and the split of the inner dimension with which the GEMM ends soonest. A tile of tm x tn
over k takes 2 tm tn (k + ramp) flop at the rate of one multiprocessor; this rate is lower for small tiles, which reuse their
operands less. Tiles run in waves, the last wave is partly empty, and the ramps of one wave may overlap with the work of another
wave. The clock falls with the power that the arithmetic draws, at once and over the milliseconds that a loop of launches lasts.
Arithmetic and traffic overlap: the total is the p-norm of their times. Tiles in flight read their operands together, but drift
apart along a long inner dimension; operands that the cache no longer holds when the last tile needs them are read from memory
again. Operands in memory start later and stream slower than operands that a repeating benchmark left in the cache. The form is
the same for every GPU; its constants are fitted. Every term grows with m, n and k, and so does the minimum over tiles and splits.
Reference on tile and wave quantisation: NVIDIA, "Matrix multiplication background user's guide", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ...hardware.gpu import Gpu
from ...kernels import Gemm, Part
from ...units import US_PER_S
from .accumulation import FP32_BYTES, accumulation_s
from .deep_gemm import DEEP_TILES, SPILL_START, SPILL_US, spilled_s
from .estimator import Estimator
from .family import (
    ABOVE_ONE,
    BURST,
    SHARE,
    WITHOUT_TENSOR_CORES,
    Estimate,
    Fit,
    KernelFamily,
    TimedKernels,
    Transfer,
    constant,
    one_of,
    priors,
)
from .fit_choice import SelectedFit, portable
from .gpu_model import Array, Machine, cached_share, clock_per_s, columns, flop_per_cycle, similarity

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64))
"""Approximate tiles of cuBLAS and CUTLASS, from the names of their kernels in public profiles."""
BLOCK_TILES = ((128, 256), (128, 192), (128, 128), (128, 64), (128, 32))
DEEP_GEMM_TILES = ((256, 128), (128, 192), (128, 128), (128, 64), (64, 64), (64, 32), (64, 16))
PLAIN_TILES = ((128, 128), (64, 128), (32, 128), (64, 64), (32, 64))
TILE_SETS = {
    "any": TILES,
    "warpgroups": ((192, 128), (128, 192), *TILES),
    "blocks": BLOCK_TILES,
    "block": BLOCK_TILES[:1],
    "deep_gemm": DEEP_GEMM_TILES,
    "plain": PLAIN_TILES,
    "plain_wide": ((256, 128), (128, 256), *PLAIN_TILES),
}
"""Sets of tiles by name. `any`: the usual tiles. `warpgroups`: also tiles of three warpgroups, as on Hopper and later. `blocks`:
128 rows, as in 8-bit formats. `block`: a single tile, as the times of NVFP4 GEMMs show: 64 tiles take as long as one, and 129
tiles twice as long. `deep_gemm`: about every second tile of DeepGEMM on Hopper, with 64, 128 or 256 rows, one or two warpgroups
of 64, and few columns for few rows. `plain`: fp32 without tensor cores, sizes of cuBLAS kernels, limited to tiles no narrower
than high, which held-out rows selected. `plain_wide`: from Ampere on, also CUTLASS's tiles."""
SPLITS = (1, 2, 4, 8, 16, 32)
"""Splits of the inner dimension: powers of two, so that a whole number of waves is also whole in floating point."""
PARTIAL_BYTES = 4
"""Bytes per partial sum of a split GEMM (fp32)."""
REFERENCE_TILE = 2 * 256 * 128 / (256 + 128)
"""Reuse (2 tm tn / (tm + tn)) of the tile that reaches the `compute` fraction."""
DRIFT_SHARE = 2.0**-4
"""Share of the inner dimension by which tiles in flight drift apart, chosen among powers of 1/2 by splits of fp32 GEMMs."""
CHUNK_GEMMS = 4096
"""Number of GEMMs that are computed together, small enough for their tables to stay in the cache."""
CAST_START = (10.0, 2.5)
"""Start of the fit of an unfused cast: microseconds, and passes over the bytes that the cast reads and writes."""
CAST_FROM_BYTES = 2
"""Bytes per element before a cast."""
CAST_PASSES, CAST_CYCLE_BYTES = 1.84, 20.7
"""Passes of a cast, and bytes per cycle of a multiprocessor. A cast reads 16 bits for the maximum, reads them again and writes 8
bits: 5 bytes for 3, at nine tenths of the rate. Both constants together give the separately measured casts on H100 and B200."""
LINEAR_US = "linear_us"
"""Name of a quantity timed beside GEMMs: extra launch time of an eager linear layer over a batch of GEMMs, in microseconds."""
LATER = ("throttle", "throttle_us")
OF_BOARD = ("power_us", *LATER)
"""Constants of the clock, which belong to a board: GEMMs in 16 bits determine them, also for experts in long loops. In narrower
formats the casts and kernels of each library also slow long rows, which a fit would mistake for the clock."""
SINGLE_BATCH = (1.0, 1.0)
"""Range of batch sizes of a fit that does not state a range."""

Sizes = Sequence[ArrayLike]
Cast = Sequence[float] | Array
"""Microseconds of a cast, and passes of the cast over its bytes."""

_SPLIT_AXIS = np.array(SPLITS, dtype=np.float64)[:, None]


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Constants of the GEMM model, fitted to one GPU, dtype and library."""

    launch_us: float = constant(2.5, 1.0, scales="cycles")
    """Time from one kernel to the next when the host is ahead of the GPU."""
    compute: float = constant(0.9, 0.6, scale=SHARE, positive=True, scales="compute")
    """Fraction of the peak at the full clock."""
    memory: float = constant(0.82, 0.6, scale=SHARE, positive=True, scales="memory")
    cold_us: float = constant(0.0, 1.0, sometimes=True, optional=True)
    """Extra microseconds of a kernel whose operands are in memory and not in the cache, apart from the traffic."""
    ramp: float = constant(180.0, 1.0)
    """Time to fill and drain a tile's pipeline, expressed as an inner dimension."""
    hidden: float = constant(0.2, 1.0, scale=SHARE)
    """Share of the ramp that overlaps with work on another tile, in all waves but one."""
    quantum: float = constant(0.5, 1.5, scale=SHARE)
    """Loss in the last wave: 1 for the time of a full wave, 0 for work that is spread evenly."""
    norm: float = constant(3.0, 0.7, scale=ABOVE_ONE)
    """Exponent of the norm of arithmetic and traffic: 1 adds both times, infinity takes the larger time."""
    tile: float = constant(400.0, 1.0)
    """Cost of small tiles: the reuse at which half of the rate would be lost."""
    split_us: float = constant(2.0, 1.0, scales="cycles")
    """Least time for adding the partial sums."""
    split_traffic: float = constant(0.2, 1.0, scale=SHARE)
    """Share of the partial sums that goes to memory and not to the cache."""
    power: float = constant(0.2, 1.0, scales="time")
    """Immediate slowdown when the arithmetic units never wait. The clock falls with the share of the peak that is reached; this
    constant grows on a slower machine because the share there is relative to the slower rate."""
    power_us: float = constant(10.0, 1.0, scales="time")
    throttle: float = constant(0.2, 0.35, scales="time")
    """Slowdown in endless loops of launches, after power management has lowered the clock, if the arithmetic never waits. The
    clock of a B200 fell from 1,965 to 1,580 MHz (flashinfer-ai/flashinfer, pull request 2899). With this prior a fit to loops
    below 50 ms predicts those above 100 ms within 2 to 8% (median by board), with one of 0.1 and a sigma of 1 within 5 to 11%."""
    throttle_us: float = constant(4096.0, 1.0, scales="time")
    """Time of a kernel for which a loop of `BURST` launches has half of this slowdown; other loops have it after an equal
    time."""
    limited: float = constant(1.0, positive=True, optional=True)
    """Factor on the time of the arithmetic on a board with another limit of power than the measured board."""
    accumulate: float = constant(0.5, 1.0, sometimes=True)
    """Share of the traffic of fp32 gradient accumulation that long GEMMs do not hide."""
    odd: float = constant(1.0, 1.0, scale=ABOVE_ONE, sometimes=True, optional=True)
    """Slowdown of experts whose channels are not a multiple of 16, for which loads of their kernels are compiled."""
    reread: float = constant(0.0, 2.0, sometimes=True, optional=True)
    """Time of rereading operands that the cache did not keep, over the time at the memory's peak rate."""
    split_loss: float = constant(0.0, 2.0, sometimes=True, optional=True)
    """Relative slowdown of a split GEMM apart from its traffic: the parts wait for each other."""
    tiles: str = one_of("any", TILE_SETS)
    """Name of the set of tiles in TILE_SETS."""


def gemm_s(
    constants: GemmConstants,
    machine: Machine,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1,
    *,
    element_bytes: float = 2,
    turns: int = 0,
    launches: ArrayLike = BURST,
    slower: ArrayLike = 1.0,
) -> Array:
    """Seconds of `batch` GEMMs (m, k) x (k, n) with `element_bytes` bytes per element, in a loop of `launches`, whose arithmetic
    takes `slower` times as long as usual; arrays of sizes give arrays of times.

    Operands are in memory; with `turns` a benchmark repeats the GEMM and cycles through `turns` second operands, which the cache
    may hold.
    """
    sizes = columns(m, n, k, batch, launches, slower)
    flat = [size.ravel() for size in sizes]
    out = np.empty(flat[0].shape)
    for start in range(0, out.size, CHUNK_GEMMS):
        part = slice(start, start + CHUNK_GEMMS)
        out[part] = _block(constants, machine, [size[part] for size in flat], element_bytes, turns)
    return out.reshape(sizes[0].shape)


def cast_s(cast: Cast, machine: Machine, m: ArrayLike, k: ArrayLike, element_bytes: float) -> Array:
    """Seconds of an unfused cast of an m x k operand from 16 bits to elements of `element_bytes` bytes."""
    m, k = columns(m, k)
    took_s: Array = cast[0] / US_PER_S + cast[1] * m * k * (CAST_FROM_BYTES + element_bytes) / machine.bytes_per_s
    return took_s


def timed_gemm_s(
    constants: GemmConstants,
    machine: Machine,
    sizes: Sizes,
    element_bytes: float,
    *,
    adds: ArrayLike = False,
    cast: Cast = (),
    turns: int = 0,
    launches: ArrayLike = BURST,
    back: ArrayLike = False,
    width: int = FP32_BYTES,
) -> Array:
    """Seconds of GEMMs of `sizes` m, n, k and batch as timed: `adds` marks GEMMs that accumulate into a gradient of `width` bytes
    per element, `back` those of the backward pass; `cast` adds an unfused cast of the first operand; `turns` is the number of
    second operands of a repeating benchmark, 0 without one.
    """
    m, n, k, batch = sizes
    how: dict[str, Any] = {"turns": turns, "launches": launches, "slower": np.where(back, machine.exact, 1.0)}
    time = gemm_s(constants, machine, m, n, k, batch, element_bytes=element_bytes, **how)
    alone_s = np.where(np.asarray(batch) > 1, np.inf, time)
    memory_bytes_per_s = constants.memory * machine.bytes_per_s
    time = time + np.where(adds, accumulation_s(constants.accumulate, memory_bytes_per_s, m, n, alone_s, width) * batch, 0.0)
    return time + cast_s(cast, machine, m, k, element_bytes) if len(cast) else time


def _block(constants: GemmConstants, machine: Machine, sizes: list[Array], element_bytes: float, turns: int) -> Array:
    *sizes, launches, slower = sizes
    m, n, k, batch = sizes
    ideal_s = 2 * batch * m * n * k / machine.flop_per_s
    moved = element_bytes * batch * (m * k + k * n + m * n)
    warm = cached_share(machine, moved + (turns - 1) * element_bytes * batch * k * n) if turns else np.zeros_like(moved)
    bytes_s = (1 - warm) * moved / machine.bytes_per_s
    tiled_s = _tiled(constants, machine, sizes, element_bytes) * slower
    at_once = constants.power / (tiled_s + constants.power_us / US_PER_S)
    later = constants.throttle / (tiled_s + constants.throttle_us / US_PER_S * (BURST / launches))
    busy_s = constants.limited * tiled_s * (1 + ideal_s * (at_once + later))
    moving_s = bytes_s / constants.memory + (warm * moved / machine.cache_bytes_per_s if turns else 0.0)
    both_s = _overlapped(busy_s, moving_s, constants.norm)
    least_s = np.maximum(ideal_s, bytes_s)
    took_s: Array = (constants.launch_us + (1 - warm) * constants.cold_us) / US_PER_S + np.maximum(both_s, least_s)
    return took_s


def _overlapped(one_s: Array, other_s: Array, norm: float) -> Array:
    """The p-norm of two times, which must not both be zero."""
    larger, smaller = np.maximum(one_s, other_s), np.minimum(one_s, other_s)
    both_s: Array = larger * (1 + (smaller / larger) ** norm) ** (1 / norm)
    return both_s


@cache
def _sides(tiles: str) -> list[Array]:
    """Rows and columns of the tiles of a set, each as an array with the tiles along the first of three axes."""
    return [np.array(sides, dtype=np.float64)[:, None, None] for sides in zip(*TILE_SETS[tiles], strict=True)]


def _tiled(constants: GemmConstants, machine: Machine, sizes: list[Array], element_bytes: float) -> Array:
    """Least seconds over tiles and splits, at the full clock; the axes are tiles, splits, GEMMs."""
    m, n, k, batch = sizes
    rows, across = _sides(constants.tiles)
    reuse = 2 * rows * across / (rows + across)
    loss, sm_flop_per_s = (REFERENCE_TILE + constants.tile) / REFERENCE_TILE, machine.flop_per_s / machine.sms
    rate = constants.compute * reuse / (reuse + constants.tile) * loss * sm_flop_per_s
    per_depth_s = 2 * rows * across / rate
    waves = np.ceil(m / rows) * np.ceil(n / across) * batch / machine.sms * _SPLIT_AXIS
    whole = np.ceil(waves)
    whole *= constants.quantum * per_depth_s
    np.maximum(waves, 1, out=waves)
    waves *= (1 - constants.quantum) * per_depth_s
    waves += whole
    waves *= np.ceil(k / _SPLIT_AXIS) + (1 - constants.hidden) * constants.ramp
    waves += constants.hidden * constants.ramp * per_depth_s
    if constants.split_loss:
        waves *= np.where(_SPLIT_AXIS > 1, 1 + constants.split_loss, 1.0)
    partial_s = constants.split_traffic * PARTIAL_BYTES / (constants.memory * machine.bytes_per_s)
    waves += np.where(_SPLIT_AXIS > 1, _SPLIT_AXIS * (partial_s * batch * m * n) + constants.split_us / US_PER_S, 0)
    if constants.reread:
        waves = _overlapped(waves, _reread_s(constants, machine, sizes, element_bytes), constants.norm)
    least: Array = waves.min(axis=(0, 1))
    return least


def _reread_s(constants: GemmConstants, machine: Machine, sizes: list[Array], element_bytes: float) -> Array:
    """Seconds of rereading operands that the cache no longer holds: where tiles in flight, a square of the result, drift apart by
    more of the inner dimension than the cache can hold, and the operands exceed the cache."""
    m, n, k, batch = sizes
    rows, across = _sides(constants.tiles)
    moved_s = element_bytes * batch * m * n * k * (1 / rows + 1 / across) / machine.bytes_per_s
    kept = machine.cache_bytes / (element_bytes * machine.sms**0.5 * (rows + across))
    apart = 1 / (1 + (kept / (DRIFT_SHARE * k)) ** 2)
    beyond = 1 / (1 + (machine.cache_bytes / (element_bytes * k * (m + n))) ** 2)
    took_s: Array = constants.reread * apart * beyond * moved_s
    return took_s


# The family -----------------------------------------------------------------------------------------------------------------


class GemmFamily(KernelFamily):
    """The family of GEMMs, single or batched, in forward passes or for the gradient of an operand."""

    name, plural = "gemm", "GEMMs"
    constants = GemmConstants
    far_sigma = 0.25
    held_out = ("n", "k")
    unstated: ClassVar = {"batch": SINGLE_BATCH}
    beside = (SPILL_US, LINEAR_US)
    of_host = (LINEAR_US,)

    def kernel_s(self, constants: GemmConstants, estimator: Estimator, machine: Machine, kernel: Gemm) -> float:
        sizes = (kernel.m, kernel.n, kernel.k, kernel.batch)
        adds = kernel.part is Part.WEIGHT_GRADIENT and estimator.options.accumulate
        how: dict[str, Any] = {"adds": adds, "turns": estimator.options.turns, "launches": estimator.options.launches}
        how |= {"back": kernel.part is not Part.FORWARD, "width": estimator.options.gradient_bytes}
        return float(timed_gemm_s(constants, machine, sizes, kernel.operand_bytes, **how))

    def estimate(self, estimator: Estimator, machine: Machine, kernel: Gemm, chosen: SelectedFit) -> Estimate:
        found = super().estimate(estimator, machine, kernel, chosen)
        least, most = chosen.fit.ranges.get("batch", SINGLE_BATCH)
        adds = kernel.part is Part.WEIGHT_GRADIENT and estimator.options.accumulate
        timed = (most > 1 if kernel.batch > 1 else least <= 1) and (not adds or chosen.fit.backward_rows > 0)
        return found if timed or chosen.provenance != "measured" else replace(found, provenance="transferred")

    def cast_s(self, estimator: Estimator, m: int, k: int, element_bytes: float) -> float:
        """Seconds of a separate cast of the first operand from 16 bits, as measured beside FP8 GEMMs."""
        fit = estimator.selected(self.name).fit
        return estimator.gpu.site_scalar * float(cast_s(fit.cast or (0.0, 0.0), estimator.machine, m, k, element_bytes))

    def sizes(self, kernel: Gemm) -> dict[str, float]:
        return {"m": kernel.m, "n": kernel.n, "k": kernel.k, "batch": kernel.batch}

    def seconds(self, constants: GemmConstants, timed: TimedKernels, extra: Array) -> Array:
        m, n, k, batch = (timed.column(name) for name in ("m", "n", "k", "batch"))
        how: dict[str, Any] = {"adds": _adds(timed.kernels), "cast": extra[:2], "turns": timed.turns, "launches": timed.loop}
        how["back"] = np.array([kernel.part is not Part.FORWARD for kernel in timed.kernels])
        time = timed_gemm_s(constants, timed.machine, (m, n, k, batch), timed.element_bytes, **how)
        return timed.per_row(time + spilled_s(extra[2], timed.machine, m, n, k) if len(extra) > 2 else time)

    def free(self, timed: TimedKernels, start: GemmConstants) -> dict[str, float]:
        accumulate = ("accumulate",) if _adds(timed.kernels).any() else ()
        found = priors(start, *accumulate, *(("reread", "split_loss") if start.reread > 0 else ()))
        return {name: sigma for name, sigma in found.items() if not (_casts(timed) and name in OF_BOARD)}

    def extra_start(self, timed: TimedKernels, start: GemmConstants) -> Array:
        """Start of the fit of an unfused cast and, for DeepGEMM, of the extra time of slow steps."""
        slow = SPILL_START.values() if start.tiles == DEEP_TILES else ()
        return np.array([*CAST_START, *slow] if _casts(timed) else [])

    def extra_of(self, fit: Fit, timed: TimedKernels) -> Array:
        known = (*fit.cast, *(fit.beside[name] for name in SPILL_START if name in fit.beside)) if fit.cast else ()
        return np.array(known if _casts(timed) else [])

    def about(self, timed: TimedKernels, extra: Array) -> dict[str, Any]:
        cast = (float(extra[0]), float(extra[1])) if len(extra) else None
        beside = dict(zip(SPILL_START, extra[2:].tolist(), strict=False))
        adds = _adds([row[0] for row in timed.rows])
        return {"cast": cast, "beside": beside, "backward_rows": int(adds.sum())}

    def transferred(self, fit: Fit, transfer: Transfer) -> Fit:
        """The fit for another GPU; between GPUs with the same portable kernels the ramp scales with the flop per cycle."""
        made, owner, gpu = super().transferred(fit, transfer), transfer.owner, transfer.gpu
        cycles = flop_per_cycle(gpu, transfer.dtype) / flop_per_cycle(owner, fit.dtype) if portable(gpu, owner) else 1.0
        constants = replace(made.constants, ramp=made.constants.ramp * cycles)
        if transfer.dtype == WITHOUT_TENSOR_CORES:
            constants = _within_power(constants, fit.constants, transfer)
        return replace(made, constants=constants, cast=_transferred_cast(transfer))


def _sustained(constants: GemmConstants) -> float:
    """Fraction of the peak that long kernels sustain, at the clock that their power leaves."""
    return constants.compute / (1 + constants.compute * (constants.power + constants.throttle))


def _within_power(constants: GemmConstants, of_owner: GemmConstants, transfer: Transfer) -> GemmConstants:
    """The constants with the slowdown by power that keeps the sustained rate within `Transfer.power_times`."""
    most = transfer.power_times * _sustained(of_owner) * transfer.owner.peak(transfer.dtype) / transfer.gpu.peak(transfer.dtype)
    least_power = 1 / most - 1 / constants.compute - constants.throttle
    return replace(constants, power=max(constants.power, least_power))


def _adds(kernels: Sequence[Gemm]) -> Array:
    """Whether each GEMM accumulates into a gradient in fp32."""
    return np.array([kernel.part is Part.WEIGHT_GRADIENT for kernel in kernels])


def _casts(timed: TimedKernels) -> bool:
    """Whether GEMMs were measured with the cast of their first operand, as inference libraries are in FP8."""
    return timed.element_bytes < CAST_FROM_BYTES and timed.turns > 0


def _transferred_cast(transfer: Transfer) -> tuple[float, float] | None:
    """Constants of a cast to a format: from the owner of the fit if measured there, else from the most similar GPU."""
    found = [(owner, fit.cast) for owner, fit in transfer.known if fit.dtype == transfer.dtype and fit.cast]
    if not found:
        return None

    def distance(one: tuple[Gpu, tuple[float, float]]) -> tuple[bool, float]:
        return one[0] is not transfer.owner, abs(similarity(one[0]) - similarity(transfer.gpu))

    owner, (launch_us, passes) = min(found, key=distance)
    return launch_us, max(1.0, passes * _cast_passes(transfer.gpu) / _cast_passes(owner))


def _cast_passes(gpu: Gpu) -> float:
    """Passes of an unfused cast over its bytes: the required passes, and the time of its threads expressed as memory passes."""
    return CAST_PASSES + gpu.memory_bytes_per_s / (CAST_CYCLE_BYTES * gpu.sms * clock_per_s(gpu))


FAMILY = GemmFamily()
