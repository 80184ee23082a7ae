"""Fits in files: the constants of kernel models, one YAML file per measured GPU in topologies/kernels.

`results/kernels/make.py` writes those that ship. They hold fitted numbers, how many rows they were fitted to, their error
and the sizes between which they were measured; no measured time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from ... import escape
from ...costs.attention import SIXTEENS, WIDTHS, AttentionConstants
from ...costs.gemm import TILE_SETS, GemmConstants
from ...costs.rowwise import RowwiseConstants
from ...costs.shelf import BESIDE, BESIDE_ATTENTION, BESIDE_ROWWISE, Constants, Fit, RatioRows
from ...errors import did_you_mean
from ...fields import Contradiction, Declared, Length, Limits
from ...files import read_bounded
from .. import catalog
from ..documents.reader import validated
from ..documents.source import read

FOLDER = "kernels"
PLAIN = re.compile(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*")
"""A name that YAML takes for a word as it stands."""
CONSTANTS: Mapping[str, type[Constants]] = {
    "gemm": GemmConstants,
    "moe": GemmConstants,
    "attention": AttentionConstants,
    "rowwise": RowwiseConstants,
}
SOME = (
    "compute", "memory", "stream", "exponential", "backward", "walk", "walk_products", "lookup_cycles",
    "narrow_rows", "rows", "wide_rows",
)  # fmt: skip
"""Constants of which nothing is too little: a rate, a size, or work that takes no time."""
AT_LEAST_ONE = ("norm", "overlap", "cover", "odd")
NEUTRAL = ("odd", "odd_ramp", "reread", "split_loss", "cold_us")
"""Constants that a file may leave out, and does where they change nothing."""
WORDS: Mapping[str, tuple[str, Iterable[str]]] = {
    "tiles": ("any", TILE_SETS),
    "widths": (SIXTEENS, WIDTHS),
}
"""Constants that are words: the usual one, and all."""
TIMED_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gemm": ("products", BESIDE),
    "rowwise": ("memory-bound operators", BESIDE_ROWWISE),
    "attention": ("attention", BESIDE_ATTENTION),
}
"""What may have been timed with kernels of a family, and is none of theirs."""
DIGITS, HASH_DIGITS = 4, 12

Number = Annotated[float, Limits(ge=0)]
Pair = Annotated[list[Number], Length(2, 2)]
Ratio = Annotated[float, Limits(gt=0)] | Pair
Count = Annotated[int, Limits(ge=0)]


@dataclass(frozen=True, slots=True)
class RatioRowsFile(Declared):
    """The rows that tell a ratio."""

    bytes: Pair
    rows: Annotated[int, Limits(ge=1)]
    smaller_sigma: Number = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFile(Declared):
    """One fit."""

    family: Literal["gemm", "moe", "attention", "rowwise"]
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
        known = {f.name for f in fields(CONSTANTS[self.family])}
        for name in sorted((known ^ set(self.constants)) - (known & {*NEUTRAL})):
            yield (
                "constants",
                f": {name} is {'missing' if name in known else 'none of them'}",
                f"they are {', '.join(sorted(known))}",
            )
        for name, value in self.constants.items():
            if (name in WORDS) != isinstance(value, str):
                yield f"constants.{name}", f": {value!r} is no {'word' if name in WORDS else 'number'}", ""
            elif name in SOME and not value:
                yield f"constants.{name}", ": nothing is too little", "a number above 0"
            elif name in AT_LEAST_ONE and isinstance(value, float) and value < 1:
                yield f"constants.{name}", f": {value:g} is too little", "a number of at least 1"
        for name, (usual, words) in WORDS.items():
            value = self.constants.get(name, usual)
            if isinstance(value, str) and value not in words:
                yield f"constants.{name}", f": {value!r} is none of its words", did_you_mean(value, words)
        what, timed_with = TIMED_WITH.get(self.family, ("", ()))
        for name in sorted(set(self.beside) - set(timed_with)) if what else ():
            yield f"beside.{name}", f": nothing of this name is timed with {what}", did_you_mean(name, timed_with)
        if self.beside and not what:
            yield "beside", f": {self.family} has nothing", "it is of products: family: gemm"
        if self.ratios and self.family != "rowwise":
            yield "ratios", f": {self.family} has none", "they are of memory-bound operators: family: rowwise"
        for name, ratio in self.ratios.items():
            if isinstance(ratio, list) and not ratio[0]:
                yield f"ratios.{name}", ": nothing takes no time", "how many times as long as a pointwise kernel it takes"
        for name in sorted(set(self.ratio_rows) - set(self.ratios)):
            yield f"ratio_rows.{name}", ": there is no such ratio", did_you_mean(name, self.ratios)


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


def owner_of(path: str) -> str:
    """The GPU whose profile a file is."""
    return load(Path(path))[0]


def fingerprint(path: Path) -> str:
    """What tells a file from others of its name: some digits of a hash of its bytes."""
    return sha256(read_bounded(path, catalog.MOST_BYTES, "a profile")).hexdigest()[:HASH_DIGITS]


def _fit(entry: FitFile) -> Fit:
    values: Any = entry.constants
    constants = CONSTANTS[entry.family](**values)
    ranges, lent = _ranges(entry.ranges), None if entry.lent_ranges is None else _ranges(entry.lent_ranges)
    cast = (entry.cast[0], entry.cast[1]) if entry.cast else None
    ratios = {op: (one[0], one[1]) if isinstance(one, list) else (one, entry.sigma) for op, one in entry.ratios.items()}
    rows = {op: RatioRows(one.bytes[0], one.bytes[1], one.rows, one.smaller_sigma) for op, one in entry.ratio_rows.items()}
    about = (entry.sigma, ranges, entry.rows, entry.source, cast, entry.backward_rows, ratios, dict(entry.beside), rows, lent)
    return Fit(entry.family, entry.dtype, entry.library, constants, *about)


def _ranges(spans: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {name: (low, high) for name, (low, high) in spans.items()}


def text(gpu_name: str, fits: Iterable[Fit], about: str) -> str:
    """The fits of a GPU as its YAML file."""
    lines = [f"# {about}", f"gpu: {gpu_name if PLAIN.fullmatch(gpu_name) else escape.yaml(gpu_name)}", "fits:"]
    for fit in fits:
        lines += [f"  - family: {fit.family}"]
        lines += [f"    {key}: {value}" for key, value in (("dtype", fit.dtype), ("library", fit.library)) if value]
        lines += [f"    rows: {fit.rows}", f"    sigma: {number(fit.sigma)}"]
        spans = (("ranges", fit.ranges or None), ("lent_ranges", fit.lent_ranges))
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
            lines += ["    ratio_rows:", *(f"      {op}: {{{_told_by(told)}}}" for op, told in fit.ratio_rows.items())]
        lines += [f"    source: {escape.yaml(fit.source)}", "    constants:"]
        lines += [f"      {name}: {number(value)}" for name, value in asdict(fit.constants).items() if not _neutral(fit, name)]
    return "\n".join(lines) + "\n"


def _span(named_span: tuple[str, tuple[float, float]]) -> str:
    name, (low, high) = named_span
    return f"{name}: [{number(low)}, {number(high)}]"


def _told_by(told: RatioRows) -> str:
    smaller = f", smaller_sigma: {number(told.smaller_sigma)}" if told.smaller_sigma else ""
    return f"{_span(('bytes', (told.least_bytes, told.most_bytes)))}, rows: {told.rows}{smaller}"


def _neutral(fit: Fit, name: str) -> bool:
    """Whether a constant is one of those that a file may leave out, and changes nothing."""
    return name in NEUTRAL and getattr(fit.constants, name) == getattr(type(fit.constants)(), name)


def number(value: Any) -> str:
    """A number with a few digits; whole numbers as they are."""
    if isinstance(value, bool | str):
        return str(value).lower()
    if value == int(value):
        return str(int(value))
    rounded = float(f"{value:.{DIGITS}g}")
    return str(int(rounded)) if rounded == int(rounded) else f"{value:.{DIGITS}g}"
