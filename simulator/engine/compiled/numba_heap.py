"""The parts of the compiled engine: functions as machine code, records of integers, and a heap of them.

Machine code is kept on disk (`code_cache.py`), as making it takes ten seconds. numba makes it anew when the file of a function
changes, but holds copies of what that calls in other files: so here it looks at all files of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ..task import Array
from .code_cache import cached

numba: Any = None
with suppress(ImportError):
    import numba

Function = TypeVar("Function", bound=Callable[..., object])


SOURCES = tuple(sorted((path.name, path.stat().st_mtime, path.stat().st_size) for path in Path(__file__).parent.glob("*.py")))
"""The files that machine code is made from, with their times and sizes."""


UNCOUNTED = {"_nrt": False} if numba and hasattr(numba.core.options.DefaultOptions, "_nrt") else {}
"""Nothing here makes an array, so nobody needs to count who holds one: counting took a quarter to half of the time."""


def compiled(function: Function) -> Function:
    """The function as machine code, where numba is installed."""
    if not numba:
        return function
    machine_code = numba.njit(**UNCOUNTED)(function)
    if cache := cached(numba, function, SOURCES):
        machine_code._cache = cache
    return cast(Function, machine_code)


def records(n: int, **columns: Any) -> Array:
    """Rows of integers with names."""
    rows = np.zeros(n, dtype=[(name, np.int64) for name in columns])
    for name, values in columns.items():
        rows[name][: len(values) if isinstance(values, np.ndarray) else n] = values
    return rows


def heap(items: int) -> Array:
    """An empty heap. Row i holds the item at place i of the heap, from 1 on, and the place and key of item i; row 0 the size."""
    return records(items + 1, item=0, place=0, key=0)


@compiled
def push(heap: Array, item: int, key: int) -> None:
    """Puts an item into the heap, or moves it to another key."""
    row = heap[item]
    row.key = key
    at = row.place
    if not at:
        heap[0].item += 1
        at = heap[0].item
    _sift(heap, item, at)


@compiled
def remove(heap: Array, item: int) -> None:
    """Takes an item out of the heap."""
    at = heap[item].place
    heap[item].place = 0
    last = heap[heap[0].item].item
    heap[0].item -= 1
    if last != item:
        _sift(heap, last, at)


@compiled
def _sift(heap: Array, item: int, at: int) -> None:
    """Moves an item up or down from place `at` until the heap is in order."""
    key, size = heap[item].key, heap[0].item
    while at > 1 and heap[heap[at >> 1].item].key > key:
        above = heap[at >> 1].item
        heap[at].item, heap[above].place = above, at
        at >>= 1
    while 2 * at <= size:
        below = 2 * at
        if below < size and heap[heap[below + 1].item].key < heap[heap[below].item].key:
            below += 1
        other = heap[below].item
        if heap[other].key >= key:
            break
        heap[at].item, heap[other].place = other, at
        at = below
    heap[at].item, heap[item].place = item, at
