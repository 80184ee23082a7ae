"""Tiles of DeepGEMM on Hopper, and where it is slow.

Its rule is published (csrc/jit_kernels/heuristics/sm90.hpp): of the tiles that leave shared memory for enough stages, the one
whose operands pass the caches of the first and second level in the fewest cycles, in whole waves; two multiprocessors may share
an operand, but not where one wave is enough. The rows of H100's GEMMs with scales for blocks of 128 x 128 were timed with it,
in SGLang 0.5.14. In those 15 of 500 for which it takes, in one wave, a tile of at least 24,576 sums without a partner, a step of
128 along the inner dimension takes up to four times as long as elsewhere, 2.5 to 2.8 us where there are 48 or more (once 3.7), be
the tile 128 x 192 or 256 x 128: both keep 192 sums a thread. That they find no room in registers is inferred; nobody looked into
the kernels. Three small GEMMs of 4,353 rows are 1.4 to 2 times slow and not among them. It is a fault of those kernels and not
of the GPU, so it is fitted beside the GEMM, and left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from ...units import US_PER_S
from .gpu_model import Array, Machine, columns

DEEP_TILES = "deep_gemm"
"""Its tiles, among those that GEMMs may have."""
SPILL_US = "spill_us"
"""The name, in files of fits, of the microseconds that a step takes longer where no registers are left."""
SPILL_START: Mapping[str, float] = {SPILL_US: 2.5}
"""Microseconds of a step, where fitting starts."""
STEP = 128
"""The inner dimension between two additions to the sums."""
WIDEST = 128 * 192
"""Sums of a tile that two groups of 128 threads keep at 192 a thread, with the products that are added to them."""
SHARED_BYTES, RESULT_BYTES, SCALE_BYTES = 232_448, 2, 4
BARRIER_BYTES, ALIGNED = 256, 1024
STAGES, STAGES_OF_WIDEST = 4, 3
"""Fewest that hide the latency of loads."""
NEAR_BYTES, FAR_BYTES, FAR_BYTES_AT_MOST = 128, 64, 6153
"""A cycle moves of a multiprocessor's own cache, of the common one, and of that to all."""
WARPGROUP_ROWS = 64


@cache
def _tiles() -> tuple[Array, ...]:
    """Columns, an entry a tile: sharers of the second operand, of the first; rows and columns; the most rows of its GEMMs."""
    found = []
    for along, across in ((1, 1), (1, 2), (2, 1)):
        for rows, most in ((64, np.inf), (128, np.inf), (16, 16), (32, 32), (256, np.inf)):
            for across_tile in (*range(16, 129, 16), 144, 160, 192):
                result = -(-rows * across_tile * RESULT_BYTES // ALIGNED) * ALIGNED
                stage = (rows + across_tile) * STEP + -(-rows * SCALE_BYTES // STEP) * STEP
                stages = (SHARED_BYTES - BARRIER_BYTES - result) // stage
                fits = stages >= (STAGES if rows * across_tile < WIDEST else STAGES_OF_WIDEST)
                if fits and min(rows, across_tile) <= 128:
                    found.append((along, across, rows, across_tile, most))
    return tuple(np.array(column, dtype=np.float64)[:, None] for column in zip(*found, strict=True))


def widest_alone(sms: int, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
    """Whether GEMMs of m x k by k x n take one of the widest tiles, each multiprocessor loading for itself."""
    sizes = columns(m, n, k)
    m, n, k = (size.ravel() for size in sizes)
    along, across, rows, wide, most = _tiles()
    tiles = np.ceil(m / rows) * np.ceil(n / wide)
    waves = np.ceil(tiles / sms)
    results = RESULT_BYTES * rows * wide
    far = np.floor((k * (rows / across + wide / along) + results) * tiles / min(FAR_BYTES * sms, FAR_BYTES_AT_MOST))
    read = rows + wide + np.maximum(rows, WARPGROUP_ROWS) + wide
    near = np.floor((k * read + 2 * results) * tiles / (NEAR_BYTES * sms))
    cycles = np.floor(np.maximum(far, near) * waves * sms / tiles)
    shared = along * across > 1
    cycles = np.where((shared & (waves <= 1)) | (m > most), np.inf, cycles)
    best = cycles.argmin(axis=0)
    one_wave = np.take_along_axis(waves, best[None], axis=0)[0] <= 1
    found: Array = one_wave & ~shared[best, 0] & ((rows * wide)[best, 0] >= WIDEST)
    return found.reshape(sizes[0].shape)


def spilled_s(spill_us: float, on: Machine, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
    """Seconds that such GEMMs take longer."""
    steps: Array = np.ceil(np.asarray(k) / STEP) * widest_alone(on.sms, m, n, k)
    return spill_us / US_PER_S * steps
