"""What the kernel models know of a GPU: its peaks in one dtype, and nothing else.

Fitted constants are dimensionless fractions of these peaks, or times, so that they can be lent from GPU to GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """Dense peak of the dtype, rate of the memory, and number of multiprocessors."""

    flop_per_s: float
    bytes_per_s: float
    sms: int


def columns(*sizes: ArrayLike) -> list[Array]:
    """Sizes as arrays of one shape, of floats: sizes are whole numbers, their products need not fit an int64."""
    return list(np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes)))


def in_blocks(size: int, length: int) -> list[slice]:
    """Slices that cover `size` elements, each small enough for the tables of a block to stay in the cache."""
    return [slice(start, start + length) for start in range(0, size, length)]
