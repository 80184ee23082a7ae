"""Tables of integers as arrays of records, and a heap of items in such a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..task import Array
from .machine_code import compiled

ROWS_AT_ONCE = 8192  # the records stay in the cache of a core while their columns are written one by one


def records(n: int, **columns: Any) -> Array:
    """An array of `n` records with named integer columns; records beyond the end of an array are zero."""
    table: Array = np.empty((n, len(columns)), dtype=np.int64)
    for first in range(0, n, ROWS_AT_ONCE):
        rows = table[first : first + ROWS_AT_ONCE]
        for column, values in enumerate(columns.values()):
            if isinstance(values, np.ndarray):
                part = values[first : first + ROWS_AT_ONCE]
                rows[: len(part), column], rows[len(part) :, column] = part, 0
            else:
                rows[:, column] = values
    return table.view([(name, np.int64) for name in columns]).reshape(n)


def heap(items: int) -> Array:
    """An empty heap. Row i holds the item at place i (from 1 on), and the place and key of item i; row 0 holds the size."""
    return records(items + 1, item=0, place=0, key=0)


@compiled
def push(heap: Array, item: int, key: int) -> None:
    """Inserts an item into the heap, or changes the key of the item."""
    row = heap[item]
    row.key = key
    at = row.place
    if not at:
        heap[0].item += 1
        at = heap[0].item
    _sift(heap, item, at)


@compiled
def remove(heap: Array, item: int) -> None:
    """Removes an item from the heap."""
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
