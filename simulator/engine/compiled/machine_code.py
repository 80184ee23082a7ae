"""Machine code of the compiled engine: compilation with a cache on disk, records of integers, and a heap of records.

Compilation takes ten seconds. numba caches machine code and recompiles a function when the file of the function changes, but the
machine code includes copies of called functions from other files: so the cache here depends on all files of this folder. numba
also raises where no folder is writable, as in a container with a read-only installation, and where a cache file is truncated,
and trusts the content of cache files. Here the code is compiled again, for the process in the first case and on disk in the
second; a digest is stored with the code, because a flipped bit might change results.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ..task import Array

numba: Any = None
with suppress(ImportError):
    import numba

Function = TypeVar("Function", bound=Callable[..., object])
FunctionCache: Any = numba.core.caching.FunctionCache if numba else object

NO_FOLDER = "no folder for machine code can be written to: NUMBA_CACHE_DIR may name one"
SOURCES = tuple(sorted((path.name, path.stat().st_mtime, path.stat().st_size) for path in Path(__file__).parent.glob("*.py")))
"""The source files of the machine code, with modification times and sizes."""
UNCOUNTED = {"_nrt": False} if numba and hasattr(numba.core.options.DefaultOptions, "_nrt") else {}
"""Option without reference counting of arrays: compiled code makes no arrays, and counting took a quarter to half of the time."""


class Files:
    """The cache files of one function, with a digest of the content."""

    def __init__(self, files: Any) -> None:
        files._source_stamp = SOURCES
        self.files, self.flush = files, files.flush

    def load(self, key: Any) -> Any:
        found = self.files.load(key)
        if found is None:
            return None
        digest, data = found
        if sha256(data).hexdigest() != digest:
            raise ValueError("a file of the cache does not hold what was written")
        return numba.core.serialize.loads(data)

    def save(self, key: Any, data: Any) -> None:
        written = numba.core.serialize.dumps(data)
        self.files.save(key, (sha256(written).hexdigest(), written))


class CodeCache(FunctionCache):  # type: ignore[misc]
    """The cache of one function, which never raises once a folder for the cache exists."""

    fault = ""
    """The reason why machine code was not kept; empty if the code was kept."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._cache_file: Any = Files(self._cache_file)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code; None if no code is cached, or if the files cannot be read: then the files are discarded."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever reading a damaged pickle may raise
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, or damage that could not be cleared away
            self.fault = f"machine code was not kept: {error}"


def compiled(function: Function) -> Function:
    """The function as machine code if numba is installed, else the function itself."""
    if not numba:
        return function
    machine_code = numba.njit(**UNCOUNTED)(function)
    with suppress(RuntimeError):  # numba's word for "no locator available"
        machine_code._cache = CodeCache(function)
    return cast(Function, machine_code)


def why_not_kept(function: Any) -> str:
    """The reason why a function is compiled again in every process, or an empty string if the machine code is kept."""
    cache = getattr(function, "_cache", None)
    return cache.fault if isinstance(cache, CodeCache) else NO_FOLDER


def records(n: int, **columns: Any) -> Array:
    """An array of `n` records with named integer columns."""
    rows = np.zeros(n, dtype=[(name, np.int64) for name in columns])
    for name, values in columns.items():
        rows[name][: len(values) if isinstance(values, np.ndarray) else n] = values
    return rows


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
