"""The version of the program: a hash of its code and of the data that predictions read. Results of another are not reused."""

from __future__ import annotations

from functools import cache
from hashlib import sha256

from ..config import catalog
from ..files import read_bounded

MOST_BYTES = 2**28
DIGITS = 16


@cache
def version() -> str:
    """A hash of the code of the simulator and of the data that predictions read."""
    digest = sha256()
    for folder, pattern in (
        (catalog.PACKAGE, "*.py"),
        *((catalog.folder(kind), "*.yaml") for kind in ("clusters", "models", "frameworks")),
    ):
        for path in sorted(folder.rglob(pattern)):
            digest.update(path.relative_to(folder).as_posix().encode() + read_bounded(path, MOST_BYTES, "a file of the program"))
    return digest.hexdigest()[:DIGITS]
