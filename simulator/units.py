"""Quantities with units: the parser, rounding to integers, and the printing of numbers.

Inside the simulator the name of a quantity states its unit (`_bytes`, `_bytes_per_s`, `_flop_per_s`, `_s`, `_ns`). In YAML and on
the command line the value states its unit: "400 Gbit/s", "80 GiB", "5 us". A bare number is refused there. B is a byte and bit
(or b) a bit; G is 10^9 and Gi is 2^30. This is the only file that holds a power of ten.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NewType

from .errors import UserError, nearest, shown

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
TFLOP = 10**12
BITS_PER_BYTE = 8
NS_PER_S = 10**9
US_PER_S = 10**6
MS_PER_S = 10**3
NS_PER_US = 10**3
PER_PICO = 10**12
MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
J_PER_KWH = 10**3 * HOUR_S
DAY_S = 24 * HOUR_S
YEAR_S = 365 * DAY_S

Nanoseconds = NewType("Nanoseconds", int)

_DECIMAL = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
_PREFIX: dict[str, Fraction] = {name: Fraction(10) ** power for name, power in _DECIMAL.items()}
_PREFIX |= {name: Fraction(2) ** power for name, power in _BINARY.items()}
_SECONDS = {
    "ns": Fraction(1, NS_PER_S),
    "us": Fraction(1, US_PER_S),
    "µs": Fraction(1, US_PER_S),
    "μs": Fraction(1, US_PER_S),
    "ms": Fraction(1, MS_PER_S),
    **dict.fromkeys(("s", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("min", "minute", "minutes"), Fraction(MINUTE_S)),
    **dict.fromkeys(("h", "hour", "hours"), Fraction(HOUR_S)),
    **dict.fromkeys(("d", "day", "days"), Fraction(DAY_S)),
}
_BYTE = {"B": Fraction(1)}
_BIT = {"bit": Fraction(1, BITS_PER_BYTE), "b": Fraction(1, BITS_PER_BYTE)}


def _scaled(base: dict[str, Fraction], suffix: str = "") -> dict[str, Fraction]:
    """Every prefixed spelling of the units in `base`, each with its factor to the dimension's own unit."""
    return {p + unit + suffix: factor * size for p, factor in _PREFIX.items() for unit, size in base.items()}


_SPELLINGS: dict[str, dict[str, Fraction]] = {
    "bytes": _scaled(_BYTE),
    "bytes per second": _scaled(_BYTE | _BIT, "/s") | _scaled({"bps": Fraction(1, BITS_PER_BYTE)}),
    "seconds": _SECONDS,
    "flop per second": _scaled({"FLOP/s": Fraction(1), "flop/s": Fraction(1), "FLOPS": Fraction(1)}),
    "watts": _scaled({"W": Fraction(1)}),
    "hertz": _scaled({"Hz": Fraction(1)}),
}


@dataclass(frozen=True, slots=True)
class Dimension:
    """The kind of a quantity: the suffix of a field with such a quantity, an example, the least and the largest sensible value.

    Within these limits every number of the simulator fits its integers. Zero is legal where `least` is zero.
    """

    name: str
    suffix: str
    example: str
    least: str
    most: str

    @property
    def spellings(self) -> dict[str, Fraction]:
        """Every known unit with its factor to the dimension's own unit."""
        return _SPELLINGS[self.name]

    @property
    def hint(self) -> str:
        """An example of how to write the quantity."""
        return f'write it like "{self.example}"'


BYTES = Dimension("bytes", "_bytes", "80 GiB", "1 B", "1000 TB")
BYTES_OR_NONE = Dimension("bytes", "_bytes", "0.5 GiB", "0 B", "1000 TB")
BYTES_PER_SECOND = Dimension("bytes per second", "_bytes_per_s", "400 Gbit/s", "1 MB/s", "1000 TB/s")
SECONDS = Dimension("seconds", "_s", "5 s", "0 s", "24 h")
SPAN = Dimension("seconds", "_s", "30 min", "0 s", "100000000 d")
LATENCY = Dimension("seconds", "_s", "5 us", "0 s", "1 s")
FLOP_PER_SECOND = Dimension("flop per second", "_flop_per_s", "989 TFLOP/s", "1 GFLOP/s", "1000 PFLOP/s")
WATTS = Dimension("watts", "_w", "700 W", "1 W", "1 MW")
HERTZ = Dimension("hertz", "_hz", "1980 MHz", "100 MHz", "10 GHz")

_QUANTITY = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([^0-9\s].*?)?\s*")


def parse(value: object, dimension: Dimension) -> float:
    """A text in the dimension's own unit: `parse("400 Gbit/s", BYTES_PER_SECOND)` is 5e10 bytes/s."""
    return _bounded(value, _exact(value, dimension), dimension)


def checked(value: object, dimension: Dimension) -> float:
    """A number from Python in the dimension's own unit, checked against the limits of the dimension."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and not (isinstance(value, float) and math.isfinite(value)):
        raise UserError(f"{shown(value)} is not a number of {dimension.name}", hint=f"at least {dimension.least}")
    return _bounded(value, Fraction(value), dimension)  # type: ignore[call-overload]


def _bounded(text: object, value: Fraction, dimension: Dimension) -> float:
    """The value, checked against the limits of its dimension."""
    least, most = _limits(dimension)
    if value < least:
        wrong = "negative" if value < 0 else "zero" if not value else "too small"
        raise UserError(f"{shown(text)} is {wrong}", hint=f"at least {dimension.least}; {dimension.hint}")
    if value > most:
        raise UserError(f"{shown(text)} is too large", hint=f"at most {dimension.most}; {dimension.hint}")
    return float(value)


@cache
def _limits(dimension: Dimension) -> tuple[Fraction, Fraction]:
    return _exact(dimension.least, dimension), _exact(dimension.most, dimension)


def _exact(text: object, dimension: Dimension) -> Fraction:
    """The value of `text` before any rounding."""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) and len(text) <= 100 else None
    bare = isinstance(text, (int, float)) and not isinstance(text, bool)
    if bare or (match and match[2] is None):
        raise UserError(f"{shown(text)} is a bare number: {dimension.name} need a unit", hint=dimension.hint)
    if match is None:
        raise UserError(f"{shown(text)} is not a quantity: {dimension.name} are a number and a unit", hint=dimension.hint)
    number, unit = match.groups()
    if unit not in dimension.spellings:
        raise UserError(f"{shown(text)}: {unit!r} is not a unit of {dimension.name}", hint=_unit_hint(unit, dimension))
    return Fraction(number) * dimension.spellings[unit]


def _unit_hint(unit: str, dimension: Dimension) -> str:
    """A hint with the other dimension that a unit belongs to, or else with the nearest spelling."""
    for other, spellings in _SPELLINGS.items():
        if unit in spellings:
            return f"{unit!r} measures {other}; {dimension.hint}"
    same = [known for known in dimension.spellings if _bare(known) == _bare(unit) or known in (f"{unit}it/s", f"{unit}/s")]
    same = same or [known for known in dimension.spellings if known.lower() == unit.lower()]
    close = nearest(unit, [known for known in dimension.spellings if "B" not in unit or "B" in known])
    if same or close:
        return f"did you mean {' or '.join(map(repr, same)) or repr(close)}? {dimension.hint}"
    return dimension.hint


def _bare(unit: str) -> str:
    """A unit without the notation of "per": GB/s, GBps and GBs are equal, and Gb/s is different."""
    return re.sub("/|p(?=s$)", "", unit)


def ns(seconds: float | Fraction) -> Nanoseconds:
    """Seconds rounded to the nearest whole nanosecond, half a nanosecond up."""
    number, of = seconds.as_integer_ratio()
    return Nanoseconds((2 * number * NS_PER_S + of) // (2 * of))


def seconds(nanoseconds: int | float) -> float:
    """Nanoseconds to seconds."""
    return float(nanoseconds) / NS_PER_S


def show_s(value: float) -> str:
    """A duration in the most readable unit, with four significant digits: `6.295 s`, `18.50 ms`."""
    factor, unit = next(((f, unit) for f, unit in ((1, "s"), (MS_PER_S, "ms")) if abs(value) * f >= 1), (US_PER_S, "us"))
    return f"{show_digits(value * factor)} {unit}"


def show_stated_s(value: float) -> str:
    """A duration as somebody stated it, without zeros at its end: `0.7 us`, `2.5 ms`."""
    digits, _, unit = show_s(value).partition(" ")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {unit}"


def show_span(value: float) -> str:
    """A long duration in the most readable unit: `26.4 min`, `3.09 h`, `54.0 d`; seconds and less as `show_s` does."""
    for factor, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if abs(value) >= 2 * factor:
            return f"{value / factor:,.1f} {unit}"
    return show_s(value)


def counted(number: int, noun: str) -> str:
    """A number with a noun: `1 layer`, `8 microbatches`; without a noun the number alone."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}" if noun else f"{number:,}"


def show_bytes(value: float) -> str:
    """A size in binary units, as memory is sold: `79.6 GiB`."""
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value:.0f} B"


def show_rate(value: float) -> str:
    """A bandwidth in decimal units, as links are sold: `450 GB/s`."""
    return _decimal(value, "B/s")


def show_flop_rate(value: float) -> str:
    """A rate of arithmetic: `989.4 TFLOP/s`."""
    return _decimal(value, "FLOP/s")


def show_hertz(value: float) -> str:
    """The frequency of a clock: `1.98 GHz`."""
    return _decimal(value, "Hz")


def _decimal(value: float, unit: str) -> str:
    """Four significant digits with the largest decimal prefix, up to that of 10^12, that leaves a number of one or more."""
    prefixes = ((TB, "T"), (GB, "G"), (MB, "M"), (KB, "k"))
    factor, prefix = next(((factor, prefix) for factor, prefix in prefixes if abs(value) >= factor), (1, ""))
    return f"{value / factor:.4g} {prefix}{unit}"


def show_count(value: float) -> str:
    """A count with separated thousands: `16,384`; billions and more with a letter: `70.6 B`."""
    if abs(value) >= TB:
        return f"{value / TB:.2f} T"
    if abs(value) >= GB:
        return f"{value / GB:.1f} B"
    return f"{value:,.0f}"


def show_digits(value: float) -> str:
    """Four significant digits, never in exponent form for ordinary sizes."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3e}")
    places = max(0, 3 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{places}f}"
