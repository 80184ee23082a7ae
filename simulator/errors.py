"""The errors of the simulator, each with a hint on what to do.

Every error that a person can cause carries a `hint`, the next thing to try. Exit codes are those of the command
line: 2 for bad input, 3 for a configuration that cannot run, 1 for a bug of ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from . import escape

MOST_LISTED = 32
"""Most faults that a message lists."""
MOST_LETTERS = 400
"""Largest total length of names that a hint lists in full, in characters."""
ALIKE = 0.7
"""Similarity from which a word counts as a misspelling of another one."""
MOST_SHOWN, MOST_BITS = 60, 128
"""Most characters of a value that a message shows, and most bits of an integer that it writes out."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an input: its place, what is wrong, and what to do."""

    message: str
    hint: str = ""
    where: str = ""
    between: bool = False
    """Whether the fault is of fields that are each legal, but inconsistent with each other."""

    def __str__(self) -> str:
        lead = f"{self.where}: " if self.where else ""
        tail = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{lead}{self.message}{tail}"


class SimulatorError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message with unsafe characters of quoted names escaped."""
        return escape.terminal(super().__str__(), lines=True)


class UserError(SimulatorError):
    """The input is wrong: a name, a value, a file. Holds every fault found, not only the first."""

    exit_code = 2

    def __init__(self, message: str = "", *, hint: str = "", where: str = "", faults: Iterable[Fault] = ()) -> None:
        self.faults = tuple(faults) or (Fault(message, hint, where),)
        lines = [str(fault) for fault in self.faults[:MOST_LISTED]]
        if len(self.faults) > MOST_LISTED:
            more = len(self.faults) - MOST_LISTED
            lines.append(f"... and {more} {'fault' if more == 1 else 'faults'} more")
        super().__init__("\n".join(lines), hint=hint or self.faults[0].hint)


class OutsideDomain(UserError):
    """A request that is legal by itself, but that this schedule (or shape, or algorithm) does not support."""

    def __init__(
        self, message: str, *, nearest: Mapping[str, int] | None = None, other: Mapping[str, int] | None = None, hint: str = ""
    ) -> None:
        self.reason = message
        self.nearest, self.other = dict(nearest or {}), dict(other or {})
        """The nearest legal values, and the legal values of another field with everything else as requested."""
        if not hint and self.nearest:
            ways = (", ".join(f"{name} {value}" for name, value in of.items()) for of in (self.nearest, self.other) if of)
            hint = f"nearest legal: {', or '.join(ways)}"
        super().__init__(message, hint=hint)


class Infeasible(SimulatorError):
    """The input is well formed and describes something that cannot run, such as a plan that does not fit in memory."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "", over_bytes: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.over_bytes = over_bytes


@dataclass(frozen=True, slots=True)
class Blocked:
    """A stream that stopped: the task at its head and the unfinished tasks that this task waits for."""

    stream: int
    done: int
    length: int
    head: int
    waits_for: tuple[int, ...] = field(default=())


class Deadlock(Infeasible):
    """Unfinished tasks of which none can start. `blocked` gives the state of every unfinished stream."""

    def __init__(self, message: str, *, blocked: Iterable[Blocked] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.blocked = tuple(blocked)


class OutputFailed(SimulatorError):
    """The result could not be written, through no fault of the input: a disk is full, or an output was closed."""


class InvariantBroken(SimulatorError):
    """A bug in the simulator: an invariant does not hold."""

    def __init__(self, message: str, *, hint: str = "this is a bug in the simulator: please report the command") -> None:
        super().__init__(message, hint=hint)


def in_one_go(*parts: Callable[[], Any]) -> list[Any]:
    """The results of all parts. If some parts raise `UserError`, one error with all their faults is raised."""
    made: list[Any] = []
    errors: list[UserError] = []
    for part in parts:
        try:
            made.append(part())
        except UserError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UserError(faults=[fault for error in errors for fault in error.faults])
    return made


def must_be(value: object, kind: type[Any] | tuple[type[Any], ...], name: str, what: str, hint: str) -> Any:
    """An argument of a public function. Raises `UserError` if the argument is not of its type."""
    if not isinstance(value, kind):
        raise UserError(f"{name} is {described(value)}, not {what}", hint=hint)
    return value


def described(value: object) -> str:
    """A value in a message: plain data as YAML, anything else by its class."""
    plain = value is None or isinstance(value, (bool, int, float, str, dict, list, tuple))
    return shown(value) if plain else f"an object of class {type(value).__name__}"


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.5, meanings: Mapping[str, str] | None = None) -> str:
    """The hint for an unknown word: the nearest known word first, then the list (the nearest dozen of a long list).

    `meanings` are words of others, in lower case, for known words that look different.
    """
    names = sorted(known)
    close = (meanings or {}).get(word.lower()) or nearest(word, names, cutoff=cutoff)
    listed = (
        names if sum(map(len, names)) <= MOST_LETTERS else get_close_matches(word[:MOST_SHOWN].lower(), names, n=12, cutoff=0.0)
    )
    listing = f"known: {', '.join(listed)}" + ("" if len(listed) == len(names) else ", ...")
    return f"did you mean {close!r}? {listing}" if close else listing


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The known word most similar to `word`, ignoring case. Words that begin with `word` precede words less than ALIKE."""
    as_written = {name.lower(): name for name in sorted(known, reverse=True)}
    plain = word[:MOST_SHOWN].lower()
    close = get_close_matches(plain, as_written, n=1, cutoff=cutoff)
    if close and SequenceMatcher(None, close[0], plain).ratio() >= ALIKE:
        return as_written[close[0]]
    begin = [name for name in sorted(as_written) if len(plain) > 1 and name.startswith(plain)]
    found = begin or close
    return as_written[found[0]] if found else None


def either(words: Iterable[object]) -> str:
    """Alternatives in a sentence: `a, b or c`."""
    *most, last = map(str, words)
    return f"{', '.join(most)} or {last}" if most else last


def shown(value: object) -> str:
    """A value as YAML, shortened for a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a tuple"
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"a number of {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value) if isinstance(value, str) else " ".join(repr(value).split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}...{text[-1]}"


def cut(message: str) -> str:
    """The message of a library, with long values shortened as in our own messages."""
    most = MOST_SHOWN - 4
    return re.sub(rf"('[^']{{{most}}})[^']+'", r"\1...'", re.sub(rf"([^\s']{{{2 * MOST_SHOWN}}})[^\s']+", r"\1...", message))
