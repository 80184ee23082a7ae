"""Fused attention: blocks of query rows that walk over the keys before them, spread over the multiprocessors.

A block of rows costs, per key, two products of the width of a head and an exponential, which no tensor core does; the two
overlap, a p-norm of both: that is why narrow heads are slower per flop. A library is compiled for blocks of so many rows, fewer
for wide heads. Blocks of full attention are alike and run in waves. Causal ones are not: with few heads the longest walk decides,
unless the library splits it; with many, the sum over the multiprocessors; between the two, a p-norm. Libraries for grouped
queries pack the heads that share keys into a block. Queries, keys, values and results move meanwhile: a p-norm of the arithmetic
and the traffic. Heads are padded to the widths that a library is compiled for. Backward does five products instead of two.
References: Dao, arXiv 2307.08691; Shah et al., arXiv 2407.08608.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..kernels import Attention, Gemm, Kernel, Part, Rowwise
from ..units import US_PER_S
from .machine import Array, Machine, columns

NARROW, WIDE = 96, 128
"""Widths of heads up to which a library's tallest blocks, and its usual ones, are compiled."""
ALIKE = 8.0
"""The norm between the longest block and the mean load where all blocks are as long: nearly the larger."""
HEAD_MULTIPLE = 16
"""What a tensor core takes at once of a head's width."""
WIDTHS: Mapping[str, tuple[int, ...]] = {
    "sixteens": tuple(range(HEAD_MULTIPLE, 257, HEAD_MULTIPLE)),
    "flash": (32, 64, 96, 128, 160, 192, 224, 256),
}
"""Widths of heads that libraries are compiled for, to the next of which a head is padded: every multiple, or those of
FlashAttention (Dao-AILab/flash-attention, `csrc/flash_attn` and `hopper`; not every release has 160 and 224)."""
WIDTH = 128
"""The head width in whose products the cost of an exponential is counted."""
SPLITS = (1, 2, 4, 8, 16, 32)
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
EXACT = 2.0
"""Flop of a multiplication with its addition."""


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Fitted to one GPU and library."""

    launch_us: float = 8.0
    """With what wraps the kernel: metadata, scheduling, copies."""
    compute: float = 0.85
    """Fraction of the peak of the products alone."""
    exponential: float = 0.4
    """What the exponential of a score costs, in products of WIDTH-wide heads at the peak."""
    overlap: float = 1.5
    """The norm of products and exponentials: 1 adds them up, infinite takes the larger."""
    ramp: float = 150.0
    """Starting and ending a block, in exponentials of keys."""
    quantum: float = 0.2
    """How much of the last wave is lost."""
    norm: float = 2.5
    """Of the longest walk and the mean load, where walks differ."""
    memory: float = 0.85
    """Of the memory's rate, at which queries, keys, values and results move, once each."""
    cover: float = 2.0
    """The norm of arithmetic and traffic: 1 adds them up, infinite takes the larger."""
    walk: float = 1.0
    """How much slower a block walks alone than the multiprocessor works through many."""
    walk_products: float = 1.0
    """The same again, for the products of it."""
    split_us: float = 10.0
    """What joining a walk that was halved takes."""
    throttle: float = 0.05
    """Slowdown of long kernels."""
    throttle_us: float = 1024.0
    backward: float = 2.8
    """Time of the backward pass over that of the forward pass, without launches."""
    odd: float = 1.0
    """How much slower a head walks whose width is no multiple of HEAD_MULTIPLE: libraries may have another kernel for those."""
    odd_ramp: float = 1.0
    """And how much slower its blocks begin and end."""
    widths: str = "sixteens"
    """Which of `WIDTHS` the library is compiled for."""
    packed: bool = False
    """Whether heads that share keys share a block."""
    narrow_rows: float = 128
    """Query rows of a block, for heads up to NARROW wide."""
    rows: float = 128
    wide_rows: float = 128
    """The same beyond WIDE."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What is attended to: sizes, or columns of sizes. `causal` is 1 where only earlier keys are seen, `prefix` the number of
    keys before the sequence itself, which all of it sees.
    """

    batch: ArrayLike
    seq: ArrayLike
    heads: ArrayLike
    kv_heads: ArrayLike
    head_dim: ArrayLike
    causal: ArrayLike = 1
    prefix: ArrayLike = 0


def attention_s(c: AttentionConstants, on: Machine, what: Heads, *, width: float = 2, backward: bool = False) -> Array:
    """Seconds of the forward pass, or of the backward pass alone."""
    batch, seq, heads, kv_heads, head_dim, causal, prefix = columns(
        what.batch, what.seq, what.heads, what.kv_heads, what.head_dim, what.causal, what.prefix
    )
    working_s = _working(c, on, Heads(batch, seq, heads, kv_heads, head_dim, causal, prefix))
    working_s = working_s * (1 + c.throttle * working_s / (working_s + c.throttle_us / US_PER_S))
    moved = 2 * batch * head_dim * (seq * heads + (seq + prefix) * kv_heads)
    moving_s = width * moved / (c.memory * on.bytes_per_s)
    kernel_s = (working_s**c.cover + moving_s**c.cover) ** (1 / c.cover)
    scores = batch * heads * seq * (np.where(causal > 0, (seq + 1) / 2, seq) + prefix)
    products = BACKWARD_PRODUCTS if backward else FORWARD_PRODUCTS
    ideal_s = EXACT * products * scores * head_dim / on.flop_per_s
    times = c.backward if backward else 1.0
    took_s: Array = c.launch_us / US_PER_S + np.maximum(times * kernel_s, ideal_s)
    return took_s


def _working(c: AttentionConstants, on: Machine, what: Heads) -> Array:
    """Seconds of the arithmetic; what is causal takes no longer than what is not."""
    batch, seq, heads, kv_heads, head_dim, causal, prefix = columns(
        what.batch, what.seq, what.heads, what.kv_heads, what.head_dim, what.causal, what.prefix
    )
    shared = heads / kv_heads if c.packed else np.ones_like(heads)
    rows = np.where(head_dim <= NARROW, c.narrow_rows, np.where(head_dim <= WIDE, c.rows, c.wide_rows))
    of_head = np.ceil(seq * shared / rows)
    blocks = batch * heads / shared * of_head
    waves = ((1 - c.quantum) * blocks + c.quantum * np.ceil(blocks / on.sms) * on.sms) / on.sms
    per_key_s, walk_s, ramp_s = (rows * each_s for each_s in _per_row(c, on, head_dim))
    longest_s = (seq + prefix) * walk_s + c.walk * ramp_s
    even_s = _spread(c, on, blocks, (waves * ((seq + prefix) * per_key_s + ramp_s), longest_s, ALIKE))
    mean = np.minimum((of_head + 1) * rows / shared / 2, seq) + prefix
    uneven_s = _spread(c, on, blocks, (waves * (mean * per_key_s + ramp_s), longest_s, c.norm))
    return np.where(causal > 0, np.minimum(uneven_s, even_s), even_s)


def _per_row(c: AttentionConstants, on: Machine, head_dim: Array) -> tuple[Array, Array, Array]:
    """Seconds of a row of queries on one multiprocessor: for a key among many blocks, for one in a walk alone, and to begin."""
    per_sm = on.flop_per_s / on.sms
    product_s = EXACT * FORWARD_PRODUCTS * _padded(head_dim, WIDTHS[c.widths]) / (c.compute * per_sm)
    exponential_s = c.exponential * EXACT * FORWARD_PRODUCTS * WIDTH / per_sm

    def both(products_s: Array) -> Array:
        found: Array = (products_s**c.overlap + exponential_s**c.overlap) ** (1 / c.overlap)
        return found

    slower, ramps = (np.where(head_dim % HEAD_MULTIPLE, odd, 1.0) for odd in (c.odd, c.odd_ramp))
    return slower * both(product_s), slower * c.walk * both(c.walk_products * product_s), ramps * c.ramp * exponential_s


def _padded(head_dim: Array, widths: tuple[int, ...]) -> Array:
    """The width that a head is computed with: the next of `widths`, beyond them the next multiple."""
    every = np.array([*widths, np.inf])
    wide = every[np.searchsorted(every, head_dim)]
    return np.where(np.isinf(wide), np.ceil(head_dim / HEAD_MULTIPLE) * HEAD_MULTIPLE, wide)


def _spread(c: AttentionConstants, on: Machine, blocks: Array, times: tuple[Array, Array, float]) -> Array:
    """Seconds between an even share and the longest walk, by their norm; walks are split while multiprocessors are free."""
    share_s, longest_s, norm = times
    least = np.full(share_s.shape, np.inf)
    for split in SPLITS:
        taken_s = (share_s**norm + (longest_s / split) ** norm) ** (1 / norm) + np.log2(split) * c.split_us / US_PER_S
        allowed = (split == 1) | (blocks * split <= on.sms)
        least = np.where(allowed, np.minimum(least, taken_s), least)
    return least


def unfused(kernel: Attention) -> list[Kernel]:
    """The same as two products with a softmax between them, which write and read all scores, the masked ones too."""
    lines, keys, width = kernel.batch * kernel.heads, kernel.seq + kernel.prefix, kernel.element_bytes
    scores = Gemm(kernel.seq, keys, kernel.head_dim, width, batch=lines)
    mixed = Gemm(kernel.seq, kernel.head_dim, keys, width, batch=lines)
    if kernel.part is Part.FORWARD:
        return [scores, Rowwise("softmax", lines * kernel.seq, keys, width, 2 * width), mixed]
    turned = Gemm(keys, kernel.head_dim, kernel.seq, width, batch=lines)
    return [scores, turned, Rowwise("softmax_backward", lines * kernel.seq, keys, width, 3 * width), mixed, turned]
