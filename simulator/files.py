"""Reading files up to a stated size, parsing JSON, and writing files whole or not at all."""

from __future__ import annotations

import errno
import gzip
import json
import os
import select
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TextIO

from .errors import OutputFailed, UserError, nearest, shown

MOST_SILENT_MS = 5000
"""Longest time in which a pipe may send nothing, in milliseconds."""
MOST_AT_ONCE_BYTES = 2**20
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of failures of the machine, not of the request."""


MOST_NAMED = 240
"""Most characters of a path in a message: the last characters, which are more specific than the first."""
Hint = str | Callable[[Path], str]
"""The hint for an unreadable file. A function, which may look for files of similar names, is called only for a missing file."""
HINTS_OF_ERRORS = {
    errno.EISDIR: "name a file in that folder",
    errno.EACCES: "`chmod u+r` lets its owner read it, `chmod u+x` enter its folder",
    errno.ELOOP: "the link leads back to itself: name the file itself",
}
"""Hints for files that exist and cannot be read."""


def read_bounded(path: str | Path, most_bytes: int, what: str, hint: Hint = "") -> bytes:
    """The content of a file of some kind ("a scenario"). Raises `UserError` if it is larger than such a file may be.

    Pipes are read to their end; one that stays silent, a folder and a device that never ends are refused.
    """
    path = Path(path)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", buffering=0) as file:
            raw = _content(file.fileno(), most_bytes)
    except (OSError, ValueError) as error:
        missing, why = isinstance(error, FileNotFoundError), getattr(error, "strerror", None) or error
        message = f"no file {named(path)}" if missing else f"cannot read {named(path)}: {why}"
        raise UserError(message, hint=_hint(path, error, hint)) from None
    if len(raw) > most_bytes:
        raise _too_large(path, most_bytes, what)
    return raw


def _hint(path: Path, error: OSError | ValueError, hint: Hint) -> str:
    """The hint for a file that could not be read: the given hint, or, for an existing file, the hint for the error."""
    if isinstance(hint, str):
        return hint
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) or not isinstance(error, OSError):
        return hint(path)
    return HINTS_OF_ERRORS.get(error.errno or 0, "")


def read_unzipped(path: str | Path, most_bytes: int, what: str) -> bytes:
    """The content of a file that may be gzipped; the limit applies to the size after decompression."""
    raw = read_bounded(path, most_bytes, what)
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        with gzip.open(BytesIO(raw)) as file:
            content = file.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {named(path)}: {error}") from None
    if len(content) > most_bytes:
        raise _too_large(path, most_bytes, what, " when it is unzipped")
    return content


def decoded(raw: bytes, path: str | Path, hint: str) -> str:
    """The text of a content in UTF-8, without a byte-order mark. Raises `UserError` with the first line that is not text."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_text(error, path, hint) from None


def _not_text(error: UnicodeDecodeError, path: str | Path, hint: str) -> UserError:
    line = error.object[: error.start].count(b"\n") + 1
    return UserError("not a text file", where=f"{path}:{line}", hint=hint)


def check_count(raw: bytes, marks: bytes, most: int, path: str | Path, what: str) -> None:
    """Raises `UserError` for a content with more separator characters than a file of its kind may hold.

    Separators are counted before parsing, since a parsed value takes many times its bytes.
    """
    count = sum(map(raw.count, marks))
    if count > most:
        hint = f"at most {most:,} are read"
        raise UserError(f"too much for {what}: about {count:,} values or lines", where=str(path), hint=hint)


def _too_large(path: str | Path, most_bytes: int, what: str, when: str = "") -> UserError:
    return UserError(f"too large for {what}{when}", where=str(path), hint=f"at most {most_bytes:,} bytes are read")


def _content(file: int, most_bytes: int) -> bytes:
    """The content of an open file, read to at most one byte beyond the limit."""
    mode = os.fstat(file).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    parts, left = [], most_bytes + 1
    while left:
        if not stat.S_ISREG(mode):
            _wait_for(file)
        part = os.read(file, min(left, MOST_AT_ONCE_BYTES))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _wait_for(file: int) -> None:
    """Returns when a pipe or a device has something to read, or has ended."""
    waiter = select.poll()
    waiter.register(file, select.POLLIN)
    if not waiter.poll(MOST_SILENT_MS):
        raise TimeoutError(errno.ETIMEDOUT, f"nothing was written to it for {MOST_SILENT_MS:,} ms")


def parsed_json(text: str | bytes, where: str, *, unique: bool = False) -> Any:
    """The value of a JSON text that another program wrote; `where` stands for its file in messages. With `unique` a repeated key
    in an object is refused."""
    try:
        return json.loads(text, object_pairs_hook=_unique) if unique else json.loads(text)
    except UserError as error:
        raise UserError(error.faults[0].message, where=where, hint=error.hint) from None
    except json.JSONDecodeError as error:
        at = f"{where}:{error.lineno}:{error.colno}"
        raise UserError(f"not JSON: {error.msg}", where=at, hint="whole JSON, as the program that wrote it left it") from None
    except RecursionError:
        raise UserError("not JSON that can be read: nested too deeply", where=where, hint="a few levels at most") from None
    except UnicodeDecodeError as error:
        raise _not_text(error, where, "JSON is written in UTF-8") from None
    except ValueError:  # the remaining case: Python refuses to convert thousands of digits
        hint = "numbers of a few dozen digits at most"
        raise UserError("not JSON that can be read: a number of thousands of digits", where=where, hint=hint) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise UserError(f"{shown(twice)} occurs twice in one object", hint="remove one of the two")
    return found


def similar_file(path: Path, ending: str, hint: str) -> str:
    """The hint for a missing file: a similar name with this ending in the same folder, or else the given hint."""
    try:
        names = [p.name for p in path.parent.iterdir() if p.name.lower().endswith(ending)]
    except (OSError, ValueError):
        return f"there is no folder {shown(str(path.parent))}"
    close = nearest(path.name, names)
    return f"did you mean {close!r}?" if close else hint


def check_folder(path: str | Path) -> None:
    """Raises `UserError` if a path names no file to write, or its folder does not exist or takes no files."""
    if not Path(path).name:
        raise UserError(f"cannot write {shown(str(path))}: no file has this name", hint="name a file in a folder")
    folder = Path(path).parent
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        hint = f"mkdir -p {folder}" if wrong == "does not exist" else "name a file in a folder"
        raise UserError(f"cannot write {named(path)}: the folder {named(folder)} {wrong}", hint=hint)
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"cannot write {named(path)}: the folder {named(folder)} is not writable"
        raise UserError(message, hint="name a file in another folder")


def make_folder(path: str | Path) -> Path:
    """The path of a folder, created with its parents if necessary."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from None
    return Path(path)


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to `path` on success and removed otherwise, however the program ends."""
    target = Path(path)
    check_folder(target)
    temporary = target.with_name(f".trainsim-{os.getpid()}-{time.monotonic_ns()}.part")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        temporary.touch(exist_ok=False)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise not_written(target, error) from None
    finally:
        with suppress(OSError):  # a file system that is read-only has no temporary file, and says so again
            temporary.unlink(missing_ok=True)


def keep(path: Path, data: bytes) -> None:
    """Writes a file for later processes, and creates its folder. Raises `UserError` or `OutputFailed` if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from None
    with atomic(path) as temporary:
        temporary.write_bytes(data)


def is_writable(folder: Path) -> bool:
    """Whether files can be created in a folder, which is created if missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def not_written(path: str | Path, error: OSError, hint: str = "") -> UserError | OutputFailed:
    """The error for a file that could not be written: `UserError` for a wrong name, `OutputFailed` for a full disk."""
    kind = OutputFailed if error.errno in OUT_OF_ROOM else UserError
    return kind(f"cannot write {named(path)}: {error.strerror or error}", hint=hint)


def nowhere() -> TextIO:
    """A file that discards all output, in place of a closed output."""
    return open(os.devnull, "w", encoding="utf-8")


def moved(stream: TextIO, other: TextIO | None) -> TextIO:
    """A stream to where another one writes, whose descriptor from now on leads to where a third one writes, or nowhere."""
    usual = stream.fileno()
    kept = os.dup(usual)
    os.dup2(other.fileno() if isinstance(other, TextIOWrapper) else os.open(os.devnull, os.O_WRONLY), usual)
    return open(kept, "w", encoding=stream.encoding)


def named(path: str | Path) -> str:
    """A path as shown in a message."""
    text = str(path)
    return repr(text if len(text) <= MOST_NAMED else f"...{text[-MOST_NAMED:]}")
