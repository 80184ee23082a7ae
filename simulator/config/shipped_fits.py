"""GPUs from files of the catalog or of users, and the shipped fits of kernel models: measured, or transferred from another GPU.

Fits are the constants of kernel models, one YAML file per measured GPU in topologies/kernels, which `results/kernels/make.py`
writes. A file holds fitted numbers, the number of rows of each fit, its error and the range of measured sizes, but no measured
times. `trainsim calibrate fit` writes such a file too, as the profile of a user's GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from os.path import lexists
from pathlib import Path
from typing import Annotated, Any

from .. import escape
from ..costs.kernels.family import ABOVE_ONE, MOST, Constant, Fit, NotNegative, OneOf, RatioRows, families, kinds
from ..costs.kernels.fit_choice import FitLibrary
from ..costs.kernels.gpu_model import same_kernels, similarity
from ..errors import UserError, did_you_mean, shown
from ..fields import Contradiction, Declared, Key, Length, Limits, Written, specs
from ..files import read_bounded
from ..hardware.gpu import AT_PEAK, Gpu
from ..kernels import NARROW_BYTES
from ..lazy_mapping import LazyMapping
from . import catalog
from .catalog import gpu_named, unambiguous_gpu
from .document import Document, Place, beside, placed, read
from .named_parts import Named, read_with_parts
from .reader import validated

GPU = Named(("cluster", "gpu"), "gpus", Gpu, unambiguous_gpu)
"""The GPU as a named part of a scenario. Faults use this place wherever the GPU was named."""
PROFILE: Place = (*GPU.place, "profile")
AS_IT_SHIPS = "as it ships"
"""Suffix of the GPU name of shipped fits where a profile of the same GPU model is in use too."""
PLAIN = re.compile(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*")
"""A name that YAML reads as a string without quotes."""
DIGITS, HASH_DIGITS = 4, 12
DTYPES = ("fp32", "tf32", "bf16", "fp16", *NARROW_BYTES, "mxfp4")
"""Formats of kernels that tables hold."""

# Files of fits --------------------------------------------------------------------------------------------------------------

Number = Annotated[float, Limits(ge=0, le=MOST)]
Pair = Annotated[tuple[Number, Number], Length(2, 2)]
Range = Annotated[tuple[NotNegative, NotNegative], Length(2, 2)]
Ratio = Annotated[float, Limits(gt=0, le=MOST)] | Pair
Count = Annotated[int, Limits(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFile(Declared):
    """An entry of `fits:` in a file: the fields of a `Fit`, in the order in which they are written."""

    family: str
    dtype: str = ""
    library: str = ""
    rows: Annotated[Count, Written(with_field="family")] = 0
    sigma: Annotated[float, Limits(gt=0, le=2)]
    ranges: dict[str, Range] = field(default_factory=dict)
    transferred_ranges: Annotated[dict[str, Range] | None, Key("lent_ranges")] = None
    cast: Pair | None = None
    beside: dict[str, Number] = field(default_factory=dict)
    backward_rows: Count = 0
    ratios: dict[str, Ratio] = field(default_factory=dict)
    ratio_rows: dict[str, RatioRows] = field(default_factory=dict)
    source: str = ""
    constants: dict[str, Number | bool | str]

    def contradictions(self) -> Iterator[Contradiction]:
        family = families().get(self.family)
        if family is None:
            yield "family", f": {self.family!r} is not a family of kernels", did_you_mean(self.family, families())
            return
        if self.dtype and self.dtype not in DTYPES:
            yield "dtype", f": {self.dtype!r} is not a dtype", did_you_mean(self.dtype, DTYPES)
        for key, ranges in (("ranges", self.ranges), ("transferred_ranges", self.transferred_ranges or {})):
            for name, (low, high) in ranges.items():
                if low > high:
                    yield f"{key}.{name}", f": {low:,g} to {high:,g} holds nothing", "the smallest size, then the largest"
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
            if isinstance(ratio, tuple) and not ratio[0]:
                yield f"ratios.{name}", ": nothing takes no time", "how many times as long as a pointwise kernel it takes"
        for name in sorted(set(self.ratio_rows) - set(self.ratios)):
            yield f"ratio_rows.{name}", ": there is no such ratio", did_you_mean(name, self.ratios)


def _wrong_constant(name: str, value: float | bool | str, kind: Constant | OneOf | None) -> Iterator[Contradiction]:
    """Faults in the value of a constant."""
    where = f"constants.{name}"
    if isinstance(kind, OneOf) != isinstance(value, str):
        yield where, f": {value!r} is no {'word' if isinstance(kind, OneOf) else 'number'}", ""
    elif isinstance(kind, OneOf) and str(value) not in kind.words:
        yield where, f": {value!r} is none of its words", did_you_mean(str(value), kind.words)
    elif isinstance(kind, Constant) and kind.positive and not value:
        yield where, ": nothing is too little", "a number above 0"
    elif isinstance(kind, Constant) and kind.scale is ABOVE_ONE and isinstance(value, float) and value < 1:
        yield where, f": {value:g} is too little", "a number of at least 1"
    elif not isinstance(value, str) and value > (most := kind.scale.most if isinstance(kind, Constant) else MOST):
        yield where, f": {value:g} is too much", f"a number of at most {most:g}"


@dataclass(frozen=True, slots=True)
class FitsFile(Declared):
    """A file of topologies/kernels, or a profile: the fits of one GPU."""

    gpu: Annotated[str, "name of the GPU that was measured"]
    fits: Annotated[list[FitFile], Length(1), "fits of kernel families on this GPU"]


def folder() -> Path:
    """The folder of the shipped fits."""
    return catalog.folder("clusters") / "kernels"


def load(path: Path) -> tuple[str, tuple[Fit, ...]]:
    """The name of the GPU in a file, and its fits."""
    found = validated(FitsFile, read(path))
    return found.gpu, tuple(_fit(entry) for entry in found.fits)


def _fit(entry: FitFile) -> Fit:
    """A fit with the constants of its family. A ratio without a stated error takes the error of the fit."""
    held = {spec.name: getattr(entry, spec.name) for spec in specs(FitFile)}
    held["constants"] = families()[entry.family].constants(**entry.constants)
    held["ratios"] = {op: one if isinstance(one, tuple) else (one, entry.sigma) for op, one in entry.ratios.items()}
    return Fit(**held)


def text(gpu_name: str, fits: Iterable[Fit], about: str) -> str:
    """The fits of a GPU as the text of a YAML file."""
    lines = [f"# {about}", f"gpu: {gpu_name if PLAIN.fullmatch(gpu_name) else escape.yaml(gpu_name)}", "fits:"]
    for fit in fits:
        stated = {spec.name: getattr(fit, spec.name) for spec in specs(FitFile)}
        stated |= {"source": escape.yaml(fit.source), "constants": _stated_constants(fit)}
        for spec in specs(FitFile):
            value, start = stated[spec.name], f"  {'-' if spec.name == 'family' else ' '} {spec.key}:"
            if value and spec.name in ("constants", "ratio_rows"):
                lines += [start, *(f"      {name}: {flow(one)}" for name, one in value.items())]
            elif value != spec.default or spec.form.written.with_field:
                lines.append(f"{start} {flow(value)}")
    return "\n".join(lines) + "\n"


def _stated_constants(fit: Fit) -> dict[str, Any]:
    """The constants that a file states: all except optional constants at their default values."""
    usual, found = type(fit.constants)(), kinds(fit.constants)
    optional = [name for name, kind in found.items() if isinstance(kind, Constant) and kind.optional]
    stated = [name for name in found if name not in optional or getattr(fit.constants, name) != getattr(usual, name)]
    return {name: getattr(fit.constants, name) for name in stated}


def flow(value: Any) -> str:
    """A value as one line of YAML: mappings in braces, pairs in brackets, words and whole numbers unchanged, others with four
    digits."""
    if isinstance(value, RatioRows):
        value = {spec.key: held for spec in specs(RatioRows) if (held := getattr(value, spec.name)) != spec.default}
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {flow(one)}' for name, one in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    if value == int(value):
        return str(int(value))
    rounded = float(f"{value:.{DIGITS}g}")
    return str(int(rounded)) if rounded == int(rounded) else f"{value:.{DIGITS}g}"


# Shipped fits, and those of users -------------------------------------------------------------------------------------------


@cache
def shipped() -> FitLibrary:
    """All shipped fits, and the GPUs of the catalog on which the fits were measured; files are read on demand."""
    files = {path.stem: path for path in sorted(folder().glob("*.yaml"))}
    return FitLibrary(LazyMapping(files, lambda gpu: load(files[gpu])[1]), LazyMapping(files, _of_the_catalog))


def fits_for(owner: Gpu) -> FitLibrary:
    """All shipped fits, preceded by the fits of a GPU's profile, which take precedence for their kernels."""
    return overlaid(owner, load(Path(owner.profile))[1]) if owner.profile else shipped()


def overlaid(owner: Gpu, fits: Sequence[Fit]) -> FitLibrary:
    """All shipped fits, preceded by fits of a user's GPU. Shipped fits of the same GPU model are kept under a separate name,
    since they were measured on another machine."""
    found, gpus = {**shipped().fits, owner.name: fits}, {**shipped().gpus, owner.name: owner}
    if owner.name in shipped().fits:
        sister = f"{owner.name} {AS_IT_SHIPS}"
        found[sister], gpus[sister] = shipped().fits[owner.name], shipped().gpus[owner.name]
    return FitLibrary(found, gpus, tuple(fits))


def gpu(name: str, profile: str = "") -> Gpu:
    """A GPU by any of its names in the catalog, or by the path of a file. A profile of another GPU is refused."""
    own = catalog.is_path(name)
    name = name if own else gpu_named(name)
    return complete(file_of(name, profile)) if own or profile else _of_the_catalog(name)


@cache
def _of_the_catalog(name: str) -> Gpu:
    """A GPU of the catalog, read once. Files of the catalog do not change during a run; files of users may, and are read each
    time."""
    return complete(_described(name))


@cache
def _described(name: str) -> Gpu:
    """A GPU as its file in the catalog describes it."""
    return file_of(name)


def complete(described: Gpu) -> Gpu:
    """A GPU from a file, with the hash of its profile and the power of its board in the catalog. Kernel constants that the file
    does not state come from the most similar measured GPU: the same kernels, and the nearest peak per multiprocessor."""
    if described.profile:
        content = read_bounded(described.profile, catalog.MOST_BYTES, "a profile")
        described = replace(described, profile_hash=sha256(content).hexdigest()[:HASH_DIGITS])
    if described.name in catalog.files("gpus"):
        described = replace(described, reference_tdp_w=_described(described.name).tdp_w)
    if described.kernels is not AT_PEAK:
        return described

    def far(other: Gpu) -> tuple[bool, float]:
        return not same_kernels(described, other), abs(similarity(other) - similarity(described))

    return replace(described, kernels=replace(min(shipped().gpus.values(), key=far).kernels, provenance="transferred"))


def file_of(name: str, profile: str = "") -> Gpu:
    """The GPU as its file in the catalog, or a user's file, describes it. A profile of another GPU is refused."""
    words = {"name": name, "profile": profile} if profile else {"name": name}
    found: Gpu
    found, _ = read_with_parts(Document.of({"cluster": {"gpu": words}}), [GPU], [profiled], Gpu, GPU.place)
    return found


def profiled(document: Document) -> Document:
    """The document with the path of the GPU's profile relative to the current folder. Raises `UserError` for a missing profile
    and for the profile of another GPU, whose kernels have other times."""
    name, mark = document.at(PROFILE), document.mark(PROFILE)
    if not isinstance(name, str) or not mark:
        return document
    path, owner = beside(name, mark), document.at((*GPU.place, "name"))
    with placed(document.where(PROFILE)):
        if not lexists(path):
            raise UserError(f"no file {shown(name)}", hint="`trainsim calibrate fit` writes one")
        measured, _ = load(Path(path))
        if owner is None:
            message = f"{shown(path)} holds kernels of {measured}, not of a GPU without a name"
            raise UserError(message, hint=f"use its own name: gpu: {{name: {measured}, ...}}")
        if catalog.plain(measured) != catalog.plain(str(owner)):
            owner = shown(str(owner)).strip("'")
            hint = f"give it a profile of {owner}: `trainsim calibrate fit TABLE.csv --gpu {owner}`"
            raise UserError(f"{shown(path)} holds kernels of {measured}, not of {owner}", hint=hint)
    return document.changed(PROFILE, path, mark)
