"""Time by which a GEMM takes longer if it adds a weight gradient to that of earlier microbatches.

It reads the gradient and writes their sum. A gradient in fp32 moves 6 bytes more than the 16-bit result of a GEMM, a gradient in
16 bits 2 more, to be read. All of this adds to a short GEMM. A long one hides all but a share, which was fitted to GEMMs in fp32
on A100. Seen on an H100 and an H200 (results/calibration): with that share of another GPU, sums in fp32 are predicted as well as
plain gradients. GEMMs of a group run on several streams, where one hides what another one adds: they count as infinitely long.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from .gpu_model import Array, columns

ACCUMULATED_BYTES = 8
"""Bytes per element for accumulating a weight gradient in fp32: a read and a write."""
PLAIN_BYTES, FP32_BYTES = 2, 4
"""Bytes of an element of the result of a GEMM that accumulates nothing, and of an fp32 gradient."""


def accumulation_s(
    share: float, bytes_per_s: float, m: ArrayLike, n: ArrayLike, alone_s: ArrayLike, width: int = FP32_BYTES
) -> Array:
    """Seconds of m x n weight gradients in elements of `width` bytes beyond their GEMMs, which take `alone_s`, where long GEMMs
    do not hide a `share` of what moves at `bytes_per_s`."""
    m, n, alone = columns(m, n, alone_s)
    moved_bytes = ACCUMULATED_BYTES * (2 * width - PLAIN_BYTES) / (2 * FP32_BYTES - PLAIN_BYTES) * m * n
    moved_s = moved_bytes / bytes_per_s
    took_s: Array = moved_s * (share + (1 - share) * moved_s / (moved_s + alone))
    return took_s
