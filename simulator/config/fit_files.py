"""Fits in files: the constants of kernel models, one YAML file per measured GPU in topologies/kernels.

`results/kernels/make.py` writes those that ship. They hold fitted numbers, how many rows they were fitted to, their error
and the sizes between which they were measured; no measured time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from .. import escape
from ..costs.kernels.family import ABOVE_ONE, Constant, Constants, Fit, OneOf, RatioRows, families, kinds
from ..errors import did_you_mean
from ..fields import Contradiction, Declared, Length, Limits
from ..files import read_bounded
from . import catalog
from .document import read
from .reader import validated

FOLDER = "kernels"
PLAIN = re.compile(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*")
"""A name that YAML takes for a word as it stands."""
DIGITS, HASH_DIGITS = 4, 12

Number = Annotated[float, Limits(ge=0)]
Pair = Annotated[list[Number], Length(2, 2)]
Ratio = Annotated[float, Limits(gt=0)] | Pair
Count = Annotated[int, Limits(ge=0)]


@dataclass(frozen=True, slots=True)
class RatioRowsFile(Declared):
    """The rows that a ratio was fitted to."""

    bytes: Pair
    rows: Annotated[int, Limits(ge=1)]
    smaller_sigma: Number = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFile(Declared):
    """One fit."""

    family: str
    dtype: str = ""
    library: str = ""
    constants: dict[str, Number | bool | str]
    sigma: Annotated[float, Limits(gt=0, le=2)]
    ranges: dict[str, Pair] = field(default_factory=dict)
    rows: Count = 0
    source: str = ""
    cast: Pair | None = None
    backward_rows: Count = 0
    ratios: dict[str, Ratio] = field(default_factory=dict)
    ratio_rows: dict[str, RatioRowsFile] = field(default_factory=dict)
    beside: dict[str, Number] = field(default_factory=dict)
    lent_ranges: dict[str, Pair] | None = None

    def contradictions(self) -> Iterator[Contradiction]:
        family = families().get(self.family)
        if family is None:
            yield "family", f": {self.family!r} is no family of kernels", did_you_mean(self.family, families())
            return
        known = kinds(family.constants)
        needed = [name for name, kind in known.items() if not (isinstance(kind, Constant) and kind.optional)]
        for name in sorted({*needed, *self.constants} - (set(self.constants) & set(known))):
            is_ = "missing" if name in known else "none of them"
            yield "constants", f": {name} is {is_}", f"they are {', '.join(sorted(known))}"
        for name, value in self.constants.items():
            yield from _wrong_constant(name, value, known.get(name))
        for name in sorted(set(self.beside) - set(family.beside)) if family.beside else ():
            yield f"beside.{name}", f": nothing of this name is timed with {family.plural}", did_you_mean(name, family.beside)
        if self.beside and not family.beside:
            yield "beside", f": {self.family} has nothing", "it is of GEMMs: family: gemm"
        if self.ratios and not family.has_ratios:
            yield "ratios", f": {self.family} has none", "they are of memory-bound operators: family: rowwise"
        for name, ratio in self.ratios.items():
            if isinstance(ratio, list) and not ratio[0]:
                yield f"ratios.{name}", ": nothing takes no time", "how many times as long as a pointwise kernel it takes"
        for name in sorted(set(self.ratio_rows) - set(self.ratios)):
            yield f"ratio_rows.{name}", ": there is no such ratio", did_you_mean(name, self.ratios)


def _wrong_constant(name: str, value: float | bool | str, kind: Constant | OneOf | None) -> Iterator[Contradiction]:
    """What is wrong with the value of a constant."""
    where = f"constants.{name}"
    if isinstance(kind, OneOf) != isinstance(value, str):
        yield where, f": {value!r} is no {'word' if isinstance(kind, OneOf) else 'number'}", ""
    elif isinstance(kind, OneOf) and isinstance(value, str) and value not in kind.words:
        yield where, f": {value!r} is none of its words", did_you_mean(value, kind.words)
    elif isinstance(kind, Constant) and kind.positive and not value:
        yield where, ": nothing is too little", "a number above 0"
    elif isinstance(kind, Constant) and kind.scale is ABOVE_ONE and isinstance(value, float) and value < 1:
        yield where, f": {value:g} is too little", "a number of at least 1"


@dataclass(frozen=True, slots=True)
class FitsFile(Declared):
    """A file of topologies/kernels."""

    gpu: str
    fits: Annotated[list[FitFile], Length(1)]


def folder() -> Path:
    """Where the fits are that ship."""
    return catalog.folder("clusters") / FOLDER


def load(path: Path) -> tuple[str, tuple[Fit, ...]]:
    """The GPU of a file, and its fits."""
    found = validated(FitsFile, read(path))
    return found.gpu, tuple(_fit(entry) for entry in found.fits)


def fingerprint(path: Path) -> str:
    """What tells a file from others of its name: some digits of a hash of its bytes."""
    return sha256(read_bounded(path, catalog.MOST_BYTES, "a profile")).hexdigest()[:HASH_DIGITS]


def _fit(entry: FitFile) -> Fit:
    return Fit(
        entry.family,
        entry.dtype,
        entry.library,
        families()[entry.family].constants(**entry.constants),
        entry.sigma,
        _ranges(entry.ranges),
        rows=entry.rows,
        source=entry.source,
        cast=(entry.cast[0], entry.cast[1]) if entry.cast else None,
        backward_rows=entry.backward_rows,
        ratios={op: (one[0], one[1]) if isinstance(one, list) else (one, entry.sigma) for op, one in entry.ratios.items()},
        beside=dict(entry.beside),
        ratio_rows={
            op: RatioRows(one.bytes[0], one.bytes[1], one.rows, one.smaller_sigma) for op, one in entry.ratio_rows.items()
        },
        transferred_ranges=None if entry.lent_ranges is None else _ranges(entry.lent_ranges),
    )


def _ranges(spans: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {name: (low, high) for name, (low, high) in spans.items()}


def text(gpu_name: str, fits: Iterable[Fit], about: str) -> str:
    """The fits of a GPU as its YAML file."""
    lines = [f"# {about}", f"gpu: {gpu_name if PLAIN.fullmatch(gpu_name) else escape.yaml(gpu_name)}", "fits:"]
    for fit in fits:
        lines += [f"  - family: {fit.family}"]
        lines += [f"    {key}: {value}" for key, value in (("dtype", fit.dtype), ("library", fit.library)) if value]
        lines += [f"    rows: {fit.rows}", f"    sigma: {number(fit.sigma)}"]
        spans = (("ranges", fit.ranges or None), ("lent_ranges", fit.transferred_ranges))
        lines += [f"    {key}: {{{', '.join(map(_span, found.items()))}}}" for key, found in spans if found is not None]
        if fit.cast:
            lines += [f"    cast: [{number(fit.cast[0])}, {number(fit.cast[1])}]"]
        if fit.beside:
            lines += [f"    beside: {{{', '.join(f'{name}: {number(value)}' for name, value in fit.beside.items())}}}"]
        if fit.backward_rows:
            lines += [f"    backward_rows: {fit.backward_rows}"]
        if fit.ratios:
            pairs = (f"{op}: [{number(times)}, {number(sigma)}]" for op, (times, sigma) in fit.ratios.items())
            lines += [f"    ratios: {{{', '.join(pairs)}}}"]
        if fit.ratio_rows:
            lines += ["    ratio_rows:", *(f"      {op}: {{{_ratio_rows_text(rows)}}}" for op, rows in fit.ratio_rows.items())]
        lines += [f"    source: {escape.yaml(fit.source)}", "    constants:"]
        lines += [f"      {name}: {number(value)}" for name, value in _written(fit.constants).items()]
    return "\n".join(lines) + "\n"


def _span(named_span: tuple[str, tuple[float, float]]) -> str:
    name, (low, high) = named_span
    return f"{name}: [{number(low)}, {number(high)}]"


def _ratio_rows_text(found: RatioRows) -> str:
    smaller = f", smaller_sigma: {number(found.smaller_sigma)}" if found.smaller_sigma else ""
    return f"{_span(('bytes', (found.least_bytes, found.most_bytes)))}, rows: {found.rows}{smaller}"


def _written(constants: Constants) -> dict[str, Any]:
    """The constants that a file holds: all but those that may be left out and change nothing."""
    return {
        each.name: getattr(constants, each.name)
        for each in fields(constants)
        if getattr(constants, each.name) != each.default or not getattr(each.metadata.get("kind"), "optional", False)
    }


def number(value: Any) -> str:
    """A number with a few digits; whole numbers as they are."""
    if isinstance(value, bool | str):
        return str(value).lower()
    if value == int(value):
        return str(int(value))
    rounded = float(f"{value:.{DIGITS}g}")
    return str(int(rounded)) if rounded == int(rounded) else f"{value:.{DIGITS}g}"
