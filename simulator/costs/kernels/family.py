"""Families of kernels: what there is to know about one, and the constants that were fitted to it.

A family is one file of this folder with one object, `FAMILY`: the constants of its model with where a fit starts and how far
it may go, the sizes that describe its kernels, the time that the model gives, what scales when a GPU borrows from another,
and what was measured beside its kernels. Everything else (estimates, fits, files of fits, profiles, reports) asks that object,
so that a new family is one file. The nouns of `simulator.kernels` say by name which family they are of.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from ...fields import Declared, Length, Limits
from ...hardware.gpu import Gpu
from .gpu_model import Array, Machine

Provenance = Literal["measured", "transferred", "roofline"]
"""Ways to know a time, the best first."""
NotNegative = Annotated[float, Limits(ge=0)]
Constants = Any
"""A frozen dataclass of a family, each field of which is a `constant`, a `word` or plain."""
ANY = "any"
"""The library of a fit to the rows of all of them."""
MOST_OF_PEAK = 0.99
"""No fraction of a peak becomes more by being scaled."""


# Constants ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """How a constant is fitted: on an axis that has no ends."""

    inward: Callable[[float], float]
    outward: Callable[[float], float]


LOG = Scale(math.log, math.exp)
"""Scale of a positive constant."""
SHARE = Scale(lambda value: math.log(value / (1 - value)), lambda x: 1 / (1 + math.exp(-x)))
"""Scale of a constant between 0 and 1."""
ABOVE_ONE = Scale(lambda value: math.log(value - 1), lambda x: 1 + math.exp(x))


@dataclass(frozen=True, slots=True)
class Constant:
    """A field of a model's constants, as fits and files of fits treat it."""

    sigma: float = 0.0
    """Prior of a fit: how far the constant may be believed to lie from its start, on its scale; 0 where it is not fitted."""
    scale: Scale = LOG
    sometimes: bool = False
    """Whether only some tables tell it: the family frees it where they do."""
    positive: bool = False
    """Whether 0 is refused in a file: a rate, a size, or work that takes no time."""
    optional: bool = False
    """Whether a file may leave it out: its default changes nothing."""
    scales: Literal["", "time", "compute", "memory"] = ""
    """How it follows a machine that is slower: `time` grows with it, a fraction of the peak of `compute` or `memory` falls."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """A field that is one of several words."""

    words: Iterable[str]


def constant(default: float, sigma: float = 0.0, **how: Any) -> Any:
    """A constant of a model with its usual value and the prior of its fit, and other fields of `Constant`."""
    return field(default=default, metadata={"kind": Constant(sigma, **how)})


def one_of(default: str, words: Iterable[str]) -> Any:
    """A choice among words."""
    return field(default=default, metadata={"kind": OneOf(words)})


def kinds(constants: Constants) -> dict[str, Constant | OneOf | None]:
    """The fields of a class of constants, or of a value; None for a plain one."""
    return {each.name: each.metadata.get("kind") for each in fields(constants)}


def priors(constants: Constants, *also: str) -> dict[str, float]:
    """The constants that a fit leaves free, with their sigmas: those that every table tells, and some others."""
    found = {name: kind for name, kind in kinds(constants).items() if isinstance(kind, Constant) and kind.sigma}
    usual = {name: kind.sigma for name, kind in found.items() if not kind.sometimes}
    return usual | {name: found[name].sigma for name in also}


def scaling(constants: Constants) -> list[tuple[str, float, str]]:
    """The constants that follow a slower machine, with their values, and how."""
    found = [(name, kind.scales) for name, kind in kinds(constants).items() if isinstance(kind, Constant) and kind.scales]
    return [(name, getattr(constants, name), way) for name, way in found]


# Fits -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RatioRows(Declared):
    """The rows that the ratio of an operator to a pointwise kernel was fitted to: so large that they hardly wait for a launch."""

    bytes: Annotated[tuple[NotNegative, NotNegative], Length(2, 2)]
    rows: Annotated[int, Limits(ge=1)]
    smaller_sigma: NotNegative = 0.0
    """Relative error that 68% of the rows that were smaller stay below; 0 if there were none."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants fitted to one family of kernels of one dtype and library on one GPU."""

    family: str
    dtype: str
    library: str
    constants: Constants
    sigma: float
    """Relative error that 68% of held-out rows stay below."""
    ranges: Mapping[str, tuple[float, float]]
    """Sizes between which rows were measured."""
    rows: int = 0
    source: str = ""
    cast: tuple[float, float] | None = None
    """Unfused cast of the first operand, measured with GEMMs: microseconds, and passes over its bytes."""
    backward_rows: int = 0
    """Rows of attention's backward pass, or of GEMMs that are added to a gradient, among those that were fitted."""
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Operators that were measured themselves: how much longer they take than a pointwise kernel of the same bytes, and the
    relative error of that."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """Times measured with the kernels that are none of theirs, by the names that the family has for them."""
    ratio_rows: Mapping[str, RatioRows] = field(default_factory=dict)
    """The rows of ratios that were fitted to somebody's own table."""
    transferred_ranges: Mapping[str, tuple[float, float]] | None = None
    """Sizes of the fit that was scaled to a few rows: there, and not at the sizes of the rows, it is transferred."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted time; `sigma` is its relative standard error."""

    seconds: float
    model: str
    provenance: Provenance
    sigma: float
    extrapolated: bool


@dataclass(frozen=True)
class TimedKernels:
    """Kernels of one family and format that were timed: a row timed one kernel, or several one after the other."""

    rows: tuple[tuple[Any, ...], ...]
    seconds: Array
    on: Machine
    width_bytes: float
    """Bytes of an element of an operand."""
    cold: Array
    """Which rows were measured with a cold cache."""
    turns: int = 0
    """How many second operands took turns, as benchmarks of GEMMs repeat themselves; 0 if that is not so of every row."""

    @cached_property
    def kernels(self) -> tuple[Any, ...]:
        """Every kernel of every row."""
        return tuple(kernel for row in self.rows for kernel in row)

    def first(self, name: str) -> Array:
        """A size of the first kernel of each row."""
        return np.array([float(getattr(row[0], name)) for row in self.rows])

    def column(self, name: str) -> Array:
        """A size of every kernel."""
        return np.array([float(getattr(kernel, name)) for kernel in self.kernels])

    def per_row(self, seconds: Array) -> Array:
        """Times of rows from those of every kernel."""
        row_of_kernel = np.repeat(np.arange(len(self.rows)), [len(row) for row in self.rows])
        return np.bincount(row_of_kernel, weights=seconds, minlength=len(self.rows))

    def part(self, which: Array) -> TimedKernels:
        """Some of the rows."""
        chosen = tuple(self.rows[i] for i in np.flatnonzero(which))
        return replace(self, rows=chosen, seconds=self.seconds[which], cold=self.cold[which])


# Families -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transfer:
    """The way of a fit from the GPU that it was measured on to another."""

    owner: Gpu
    gpu: Gpu
    dtype: str
    ported: bool
    """Whether the kernels were written for tensor cores of an earlier generation."""
    known: Sequence[tuple[Gpu, Fit]]
    """Every fit that there is."""


class KernelFamily(ABC):
    """One family of kernels."""

    name: ClassVar[str]
    """As kernels and files of fits have it."""
    plural: ClassVar[str]
    """As messages have it."""
    constants: ClassVar[type]
    """The dataclass of its constants, whose defaults are those of kernels that nobody measured."""
    least_sigma: ClassVar[float] = 0.01
    """Variation of a GPU's clock by itself."""
    far_sigma: ClassVar[float]
    """Error that borrowing from a GPU adds that runs other kernels, as results/kernels/report.md finds it, one GPU left
    out."""
    held_out: ClassVar[tuple[str, ...]]
    """The sizes of which every fourth value is held out to judge a fit."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Names of what may have been timed with its kernels and is none of theirs."""
    unstated: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Sizes between which rows lie of a fit that does not say; any, of all other sizes."""
    any_format: ClassVar[bool] = False
    """Whether one fit holds for every format."""
    narrower: ClassVar[bool] = False
    """Whether a fit in 16 bits stands in for narrower formats."""
    has_ratios: ClassVar[bool] = False
    """Whether operators of it may be known by their ratio to those that were fitted."""
    names_libraries: ClassVar[bool] = False
    """Whether tables name the library of its kernels, each of which has a fit of its own."""
    slower_libraries: ClassVar[Mapping[str, tuple[str, float]]] = {}
    """Libraries that are known by how much slower they are than one that was measured."""
    for_ampere: ClassVar[tuple[str, ...]] = ()
    """Libraries written for the tensor cores of Ampere, which run on everything later."""

    @abstractmethod
    def kernel_s(self, c: Constants, by: Any, on: Machine, kernel: Any) -> float:
        """The seconds of a kernel by some constants, as an `Estimator` has asked for it on a machine."""

    def estimate(self, by: Any, on: Machine, kernel: Any, chosen: Any) -> Estimate:
        """The time of a kernel on a machine by the fit that an `Estimator` has selected."""
        time_s = self.kernel_s(chosen.fit.constants, by, on, kernel)
        found: Estimate = by.estimate_from(chosen, time_s, self.name, self.sizes(kernel))
        return found

    def unfused(self, kernel: Any) -> list[Any]:
        """The kernels that take its place where it is not fused; none if it always is one."""
        return []

    @abstractmethod
    def seconds(self, c: Constants, timed: TimedKernels, extra: Array) -> Array:
        """The times of rows by some constants, with `extra` numbers about what was timed beside the kernels."""

    @abstractmethod
    def sizes(self, kernel: Any) -> dict[str, float]:
        """The sizes between which a fit is known, by the names that files of fits have for them."""

    def transferred(self, fit: Fit, transfer: Transfer) -> Fit:
        """A fit to one GPU for another: fractions of peaks by how much of them each sustains, no further than `MOST_OF_PEAK`."""
        gpu, owner = transfer.gpu.kernels, transfer.owner.kernels
        times = {"compute": gpu.compute_fraction / owner.compute_fraction, "memory": gpu.memory_fraction / owner.memory_fraction}
        shares = [(name, share, times[way]) for name, share, way in scaling(fit.constants) if way in times]
        found = {name: min(max(MOST_OF_PEAK, share), share * more) for name, share, more in shares}
        return replace(fit, constants=replace(fit.constants, **found))

    def slowed(self, c: Constants, times: float) -> Constants:
        """Constants of kernels that take so many times as long, down to what the peaks allow."""
        slower = {name: v * times if way == "time" else min(MOST_OF_PEAK, v / times) for name, v, way in scaling(c)}
        return replace(c, **slower)

    def slower_library(self, c: Constants, times: float) -> Constants:
        """Constants of a library whose arithmetic takes so many times longer."""
        return c

    def free(self, timed: TimedKernels, start: Constants) -> dict[str, float]:
        """The constants that rows can tell, with the sigmas of their priors."""
        return priors(start)

    def extra_start(self, timed: TimedKernels, start: Constants) -> Array:
        """Where a fit of the numbers beside the constants starts; empty if nothing was timed beside the kernels."""
        return np.array([])

    def extra_of(self, fit: Fit, timed: TimedKernels) -> Array:
        """The numbers beside the constants, as an earlier fit has them."""
        return np.array([])

    def about(self, timed: TimedKernels, extra: Array) -> dict[str, Any]:
        """Fields of a fit beside its constants, by those numbers."""
        return {}

    def scaled_to(self, start: Constants, timed: TimedKernels, extra: Array) -> tuple[Constants, float]:
        """Constants made slower or faster as a whole to meet a few rows, and how many times slower."""
        times = math.exp(float(np.median(np.log(timed.seconds / self.seconds(start, timed, extra)))))
        return self.slowed(start, times), times

    def is_fitted(self, kernel: Any) -> bool:
        """Whether a kernel is of those that constants are fitted to, and not known by a ratio to them."""
        return True


@cache
def families() -> Mapping[str, KernelFamily]:
    """Every family by its name: the `FAMILY` of the modules of this folder."""
    package = import_module(__package__)
    modules = [import_module(f"{__package__}.{one.name}") for one in iter_modules(package.__path__)]
    return {module.FAMILY.name: module.FAMILY for module in modules if hasattr(module, "FAMILY")}
