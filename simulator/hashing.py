"""A hash of integers that is equal on every machine, used to colour ranks in folding and to spread flows in routing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mix(values: NDArray[Any]) -> NDArray[Any]:
    """A 64-bit finaliser (splitmix64; Steele, Lea and Flood 2014): every output bit depends on every input bit. Wraps."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[Any] = z ^ (z >> np.uint64(31))
    return mixed
