"""Machine code that numba keeps on disk: compiled again where it is damaged, not kept where nothing can be written.

numba itself gives up in both cases: it raises where it finds no folder that it may write to, as in a container with a read-only
installation, and where a file of its cache is cut short. It also takes whatever code a file holds; here a digest is kept with
the code, as a flipped bit in it might change results.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any

NO_FOLDER = "no folder for machine code can be written to: NUMBA_CACHE_DIR may name one"


class Damaged(Exception):
    """A file of the cache does not hold what was written."""


class Files:
    """The files of one function, with a digest of what they hold."""

    def __init__(self, files: Any, serialize: Any) -> None:
        self.files, self.serialize = files, serialize

    def load(self, key: Any) -> Any:
        found = self.files.load(key)
        if found is None:
            return None
        digest, data = found
        if sha256(data).hexdigest() != digest:
            raise Damaged
        return self.serialize.loads(data)

    def save(self, key: Any, data: Any) -> None:
        written = self.serialize.dumps(data)
        self.files.save(key, (sha256(written).hexdigest(), written))

    def flush(self) -> None:
        self.files.flush()


class CodeCache:
    """The cache of one function, as numba uses it; it never raises."""

    def __init__(self, cache: Any, serialize: Any) -> None:
        self.cache, self.files = cache, cache._cache_file
        self.fault = ""
        """Why machine code was not kept, if it was not."""
        cache._cache_file = Files(self.files, serialize)

    @property
    def cache_path(self) -> str:
        return str(self.cache.cache_path)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The machine code; None if there is none, or none that can be read: then its files are forgotten."""
        try:
            return self.cache.load_overload(signature, target)
        except Exception:  # whatever reading a damaged pickle may raise
            with suppress(OSError):
                self.cache.flush()
            return None

    def save_overload(self, signature: Any, code: Any) -> None:
        try:
            self.cache.save_overload(signature, code)
        except Exception as error:  # a full disk, or damage that could not be cleared away
            self.fault = f"machine code was not kept: {error}"

    def enable(self) -> None:
        self.cache.enable()

    def disable(self) -> None:
        self.cache.disable()

    def flush(self) -> None:
        self.cache.flush()


def cached(numba: Any, function: Callable[..., object], stamp: object) -> CodeCache | None:
    """The cache of a function, valid for code that was made when the stamp was the same; None where nothing can be written."""
    try:
        cache = CodeCache(numba.core.caching.FunctionCache(function), numba.core.serialize)
    except RuntimeError:  # numba's word for "no locator available"
        return None
    cache.files._source_stamp = stamp
    return cache


def why_not_kept(function: Any) -> str:
    """The reason why the machine code of a function is made on every use, or an empty string if it is kept."""
    cache = getattr(function, "_cache", None)
    return cache.fault if isinstance(cache, CodeCache) else NO_FOLDER
