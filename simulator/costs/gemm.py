"""Matrix products: tiles in waves over the multiprocessors, beside the traffic that they cause.

A library picks a tile and splits the inner dimension so that the product ends soonest. A tile of tm x tn over k takes
2 tm tn (k + ramp) flop at the rate of one multiprocessor, less for small tiles, which reuse their operands less; tiles run in
waves, the last of which is (partly) empty, and the ramps of one wave may pass during the work of another. The clock falls with
the power that the arithmetic draws, at once and over milliseconds. Arithmetic and traffic overlap: the p-norm of their times.
The tiles in flight read their operands together, but run apart along a long inner dimension; what the cache no longer holds when
the last of them comes is read from memory again.
What comes from memory starts later than what a benchmark that repeats itself left in the cache, and streams slower.
The form is the same for every GPU; its constants are fitted. Every term grows with m, n and k, and so does the least over tiles
and splits. Reference on tile and wave quantisation: NVIDIA, "Matrix multiplication background user's guide", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..units import US_PER_S
from .machine import Array, Machine, columns, held, in_blocks

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64))
"""What cuBLAS and CUTLASS are built for, roughly: names of their kernels in public profiles."""
BLOCKS = ((128, 256), (128, 192), (128, 128), (128, 64), (128, 32))
DEEP = ((256, 128), (128, 192), (128, 128), (128, 64), (64, 64), (64, 32), (64, 16))
PLAIN = ((128, 128), (64, 128), (32, 128), (64, 64), (32, 64))
TILE_SETS = {
    "any": TILES,
    "warpgroups": ((192, 128), (128, 192), *TILES),
    "blocks": BLOCKS,
    "block": BLOCKS[:1],
    "deep_gemm": DEEP,
    "plain": PLAIN,
    "plain_wide": ((256, 128), (128, 256), *PLAIN),
}
"""Which tiles a library has: those; those of three warpgroups too, as on Hopper and later; blocks of 128 rows, as in formats of
eight bits; one, as the times of NVFP4 products tell: 64 tiles take as long as one, and 129 twice that; those of DeepGEMM on
Hopper, every second or so: 64, 128 or 256 rows, one or two warpgroups of 64, and few columns where there are few rows; those of
fp32 without tensor cores, sizes that cuBLAS has kernels of, of which held-out rows took those no narrower than high; and, from
Ampere on, CUTLASS's too."""
SPLITS = (1, 2, 4, 8, 16, 32)
"""Powers of two, so that a whole number of waves is one in floats as well."""
PARTIAL_BYTES = 4
"""A split adds up in fp32."""
REFERENCE_TILE = 2 * 256 * 128 / (256 + 128)
"""The tile, by its flop per byte, that reaches the `compute` fraction."""
ACCUMULATED_BYTES = 8
"""A weight gradient that is added to an fp32 one reads and writes it."""
DRIFT = 2.0**-4
"""Of the inner dimension, by which tiles in flight run apart. By random splits of fp32 products, among halves of it."""
BLOCK = 4096

_SIDES = {
    name: tuple(np.array(sides, dtype=np.float64)[:, None, None] for sides in zip(*tiles, strict=True))
    for name, tiles in TILE_SETS.items()
}
_S = np.array(SPLITS, dtype=np.float64)[:, None]


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Fitted to one GPU, dtype and library."""

    launch_us: float = 2.5
    """From one kernel to the next when the host is ahead."""
    compute: float = 0.9
    """Fraction of the peak, before the clock falls."""
    memory: float = 0.82
    cold_us: float = 0.0
    """How much later a kernel ends whose operands come from memory and not from the cache, beside their bytes."""
    ramp: float = 180.0
    """Filling and draining a tile's pipeline, as an inner dimension."""
    hidden: float = 0.2
    """How much of that passes while another tile is worked on, in all waves but one."""
    quantum: float = 0.5
    """How much of the last wave is lost: 1 for a wave like any other, 0 for work that is spread evenly."""
    norm: float = 3.0
    """Of arithmetic and traffic: 1 adds them up, infinite takes the larger."""
    tile: float = 400.0
    """How much small tiles cost: the reuse at which half of the rate would be gone."""
    split_us: float = 2.0
    """What adding up the partial sums takes at least."""
    split_traffic: float = 0.2
    """Of the partial sums, that goes to memory and not to the cache."""
    power: float = 0.2
    """Slowdown at once, when the arithmetic units never wait."""
    power_us: float = 10.0
    throttle: float = 0.1
    """Slowdown later."""
    throttle_us: float = 1024.0
    accumulate: float = 0.5
    """Of the traffic of adding to an fp32 gradient, that is not hidden."""
    odd: float = 1.0
    """How much longer experts take whose channels are no multiple of 16: their kernels are compiled for loads of so many."""
    reread: float = 0.0
    """How many times as long as at the memory's peak it takes to read, slice by slice, what the cache did not keep."""
    split_loss: float = 0.0
    """How much longer all of a product takes that is split, beside what is moved: its parts wait for each other."""
    tiles: str = "any"
    """Which of TILE_SETS."""


def gemm_s(
    c: GemmConstants,
    on: Machine,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1,
    *,
    width: float = 2,
    turns: int = 0,
) -> Array:
    """Seconds of (m, k) x (k, n), `batch` times, of elements `width` bytes wide: of one product, or of many at once. Operands
    come from memory; with `turns` they are timed over and over, so many second operands in turn, and the cache may hold all.
    """
    sizes = columns(m, n, k, batch)
    flat = [size.ravel() for size in sizes]
    out = np.empty(flat[0].shape)
    for part in in_blocks(out.size, BLOCK):
        out[part] = _block(c, on, [size[part] for size in flat], width, turns)
    return out.reshape(sizes[0].shape)


def accumulation_s(c: GemmConstants, on: Machine, m: ArrayLike, n: ArrayLike) -> Array:
    """What a weight gradient takes longer than the product alone, when it is added to one in fp32."""
    m, n = columns(m, n)
    return c.accumulate * ACCUMULATED_BYTES * m * n / (c.memory * on.bytes_per_s)


def _block(c: GemmConstants, on: Machine, sizes: list[Array], width: float, turns: int) -> Array:
    m, n, k, batch = sizes
    ideal_s = 2 * batch * m * n * k / on.flop_per_s
    moved = width * batch * (m * k + k * n + m * n)
    warm = held(on, moved + (turns - 1) * width * batch * k * n) if turns else np.zeros_like(moved)
    bytes_s = (1 - warm) * moved / on.bytes_per_s
    tiled_s = _tiled(c, on, sizes, width)
    slowed = c.power / (tiled_s + c.power_us / US_PER_S) + c.throttle / (tiled_s + c.throttle_us / US_PER_S)
    busy_s = tiled_s * (1 + ideal_s * slowed)
    moving_s = bytes_s / c.memory + (warm * moved / on.cache_bytes_per_s if turns else 0.0)
    both_s = _overlapped(busy_s, moving_s, c.norm)
    least_s = np.maximum(ideal_s, bytes_s)
    took_s: Array = (c.launch_us + (1 - warm) * c.cold_us) / US_PER_S + np.maximum(both_s, least_s)
    return took_s


def _overlapped(one_s: Array, other_s: Array, norm: float) -> Array:
    """The p-norm of two times, of which not both are nothing."""
    larger, smaller = np.maximum(one_s, other_s), np.minimum(one_s, other_s)
    both_s: Array = larger * (1 + (smaller / larger) ** norm) ** (1 / norm)
    return both_s


def _tiled(c: GemmConstants, on: Machine, sizes: list[Array], width: float) -> Array:
    """The soonest end over tiles and splits, at the full clock: axes are tiles, splits, products."""
    m, n, k, batch = sizes
    rows, across = _SIDES[c.tiles]
    reuse = 2 * rows * across / (rows + across)
    rate = c.compute * reuse / (reuse + c.tile) * ((REFERENCE_TILE + c.tile) / REFERENCE_TILE) * (on.flop_per_s / on.sms)
    per_depth_s = 2 * rows * across / rate
    waves = np.ceil(m / rows) * np.ceil(n / across) * batch / on.sms * _S
    whole = np.ceil(waves)
    whole *= c.quantum * per_depth_s
    np.maximum(waves, 1, out=waves)
    waves *= (1 - c.quantum) * per_depth_s
    waves += whole
    waves *= np.ceil(k / _S) + (1 - c.hidden) * c.ramp
    waves += c.hidden * c.ramp * per_depth_s
    if c.split_loss:
        waves *= np.where(_S > 1, 1 + c.split_loss, 1.0)
    partial_s = c.split_traffic * PARTIAL_BYTES / (c.memory * on.bytes_per_s)
    waves += np.where(_S > 1, _S * (partial_s * batch * m * n) + c.split_us / US_PER_S, 0)
    if c.reread:
        waves = _overlapped(waves, _reread_s(c, on, sizes, width), c.norm)
    least: Array = waves.min(axis=(0, 1))
    return least


def _reread_s(c: GemmConstants, on: Machine, sizes: list[Array], width: float) -> Array:
    """Reading for each tile what the cache holds no longer: where tiles in flight, a square of the result, run apart by more of
    the inner dimension than it has room for, and the operands exceed it."""
    m, n, k, batch = sizes
    rows, across = _SIDES[c.tiles]
    moved_s = width * batch * m * n * k * (1 / rows + 1 / across) / on.bytes_per_s
    kept = on.cache_bytes / (width * on.sms**0.5 * (rows + across))
    apart = 1 / (1 + (kept / (DRIFT * k)) ** 2)
    beyond = 1 / (1 + (on.cache_bytes / (width * k * (m + n))) ** 2)
    took_s: Array = c.reread * apart * beyond * moved_s
    return took_s
