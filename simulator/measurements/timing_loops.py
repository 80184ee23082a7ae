"""Loops in which the kernels of known tables were timed: how many launches in a row, and whether the operands were filled.

Fits compare a measured time with that of a kernel in such a loop. Predictions never read the source of a row; the column
`launches` of a table states its loop to both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from ..config import catalog
from ..config.document import read
from ..config.reader import validated
from ..costs.kernels.family import BURST
from ..costs.kernels.gpu_model import Array
from ..fields import Declared, Name, Size
from ..kernels import Gemm, Shape

FILE = "_timing_loops.yaml"


@dataclass(frozen=True, slots=True)
class TimingLoop(Declared):
    """A loop, and the rows that were timed in it."""

    name: Annotated[Name, "name of the loop"]
    source: Annotated[str, "regular expression that is found in the source of a row"]
    dtypes: Annotated[tuple[str, ...], "formats of its rows; empty for all"] = ()
    launches: Annotated[Size, "warm-up and timed launches with each copy of the second operand"] = int(BURST)
    copies: Annotated[Size, "copies of the second operand that take turns"] = 1
    beyond_cache: Annotated[bool, "whether no more copies take turns than exceed the last-level cache"] = False
    filled: Annotated[bool, "whether the operands are random numbers"] = True

    def launches_of(self, second_bytes: ArrayLike, cache_bytes: float) -> Array:
        """The launches in a row of kernels whose second operand has some bytes, on a GPU with a cache."""
        enough = np.ceil(cache_bytes / np.maximum(second_bytes, 1.0)) if self.beyond_cache else self.copies
        found: Array = self.launches * np.clip(enough, 1, self.copies)
        return found


BURST_LOOP = TimingLoop("burst", "")
"""The assumed loop of an unknown table."""


@dataclass(frozen=True, slots=True)
class LoopsFile(Declared):
    """The file of all known loops."""

    tables: Annotated[list[TimingLoop], "loops, of which the first counts that fits a row"] = field(default_factory=list)


@cache
def loops() -> tuple[TimingLoop, ...]:
    """The known loops, in the order of their file."""
    return tuple(validated(LoopsFile, read(catalog.folder("clusters") / FILE)).tables)


@cache
def loop_of(source: str, dtype: str) -> TimingLoop:
    """The loop of a row by its source and format."""
    fitting = (loop for loop in loops() if re.search(loop.source, source) and dtype in (loop.dtypes or (dtype,)))
    return next(fitting, BURST_LOOP)


def launches_in(loop: TimingLoop, kernel: Shape, cache_bytes: float) -> float:
    """The launches in a row of a kernel in a loop, on a GPU with a cache."""
    second_bytes = kernel.k * kernel.n * kernel.operand_bytes if isinstance(kernel, Gemm) else 0.0
    return float(loop.launches_of(second_bytes, cache_bytes))
