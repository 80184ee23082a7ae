"""Legal values of the options of Python functions, which no file reader and no command line has checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from ..errors import Fault, UserError, described, did_you_mean
from ..fields import LEAST_FACTOR

MOST_SIZE, MOST_SCALAR = 2**31, 1000
"""The largest size of a kernel, and the largest factor by which all kernels of one machine may take longer than on others."""


@dataclass(frozen=True, slots=True)
class Legal:
    """The legal values of an option."""

    holds: Callable[[Any], bool]
    fault: str
    """The message about an illegal value, such as `is no count`."""
    hint: str
    may_be_open: bool = False
    """Whether None stands for a default."""
    may_be_several: bool = False
    """Whether a list may stand for one value."""

    @property
    def or_none(self) -> Legal:
        return replace(self, may_be_open=True)

    @property
    def or_several(self) -> Legal:
        return replace(self, may_be_several=True)

    def wrong(self, value: Any) -> list[Any]:
        """The fault of a value; None for a legal one."""
        if value is None and self.may_be_open:
            return []
        several = value if self.may_be_several and isinstance(value, (list, tuple)) and value else [value]
        return [one for one in several if not self.holds(one)]


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python or numpy."""
    return isinstance(value, Real) and not isinstance(value, bool)


def count(most: int) -> Legal:
    """A positive whole number."""

    def holds(value: Any) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= most

    return Legal(holds, "is not a count", f"a whole number from 1 to {most:,}")


def factor_to(most: float) -> Legal:
    """A factor on times or rates."""
    words = f"a number from {LEAST_FACTOR:g} to {most:,}"
    return Legal(lambda value: is_number(value) and LEAST_FACTOR <= value <= most, "is no such factor", words)


def number_to(most: float, *, above_zero: bool = False) -> Legal:
    """A number from zero, or above it."""
    if above_zero:
        return Legal(lambda value: is_number(value) and 0 < value <= most, "is not above 0", f"above 0, and at most {most:,}")
    return Legal(lambda value: is_number(value) and 0 <= value <= most, "is not a duration", f"a number from 0 to {most:,}")


def one_of(*words: str) -> Legal:
    """One of some words."""
    return Legal(lambda value: isinstance(value, str) and value in words, "is not known", " or ".join(words))


def of_type(kind: type, fault: str, hint: str) -> Legal:
    """Any value of a type."""
    return Legal(lambda value: isinstance(value, kind), fault, hint)


def check(of: str, options: Mapping[str, Any], known: Mapping[str, Legal], other_names: Mapping[str, str] | None = None) -> None:
    """Raises `UserError` with all options `of` something that do not exist, or whose values are not legal; `other_names` are
    names that the same options have elsewhere."""
    faults = []
    for name, value in options.items():
        legal = known.get(name)
        if legal is None:
            hint = f"in Python {name} is called {other_names[name]}" if other_names and name in other_names else ""
            faults.append(Fault(f"{of} has no option {name}", hint or did_you_mean(name, known)))
        elif wrong := legal.wrong(value):
            faults.append(Fault(f"{name}: {described(wrong[0])} {legal.fault}", legal.hint))
    if faults:
        raise UserError(faults=faults)
