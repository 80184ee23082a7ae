"""Families of kernels: the interface of a family, and the constants that were fitted to a family.

A family is one file of this folder with one object, `FAMILY`: the constants of its model with start and prior of a fit, the sizes
that describe its kernels, the time by the model, the scaling of constants that a GPU borrows from another GPU, and quantities
measured beside its kernels. All other code (estimates, fits, files of fits, profiles, reports) uses this object, so that a new
family is one file. The classes of `simulator.kernels` name their family.
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
from numpy.typing import ArrayLike

from ...fields import Declared, Length, Limits
from ...hardware.gpu import Gpu
from .gpu_model import Array, Machine, clock_per_s
from .power import reaches_limit

Provenance = Literal["measured", "transferred", "roofline"]
"""Provenance of a time, the best first."""
NotNegative = Annotated[float, Limits(ge=0, le=2.0**63)]
Constants = Any
"""A frozen dataclass of a family, in which each field is a `constant`, a choice among words (`one_of`) or plain."""
ANY = "any"
"""Library name of a fit to the rows of all libraries."""
WITHOUT_TENSOR_CORES = "fp32"
"""The format whose GEMMs run without tensor cores."""
MOST = 2.0**24
"""Largest number that a file of fits may give for a constant: 17 seconds, as microseconds."""
MOST_OF_PEAK = 0.99
"""Largest fraction of a peak that scaling can give."""
BURST, SUSTAINED = 12.0, math.inf
"""Consecutive launches of a kernel: in a table that states no other loop, and within a step. The power management of a board
lowers its clock over some milliseconds of work, so a short loop ends before its kernels are as slow as in a step."""
LAUNCHES = {"burst": BURST, "sustained": SUSTAINED}
"""Launches by the word for them."""


# Constants ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """Transformation of a constant to an unbounded axis for fitting, and its inverse."""

    inward: Callable[[float], float]
    outward: Callable[[float], float]
    most: float
    """Largest value that a file may give: 1 for shares; others are far above what was ever fitted, and keep times finite."""


LOG = Scale(math.log, math.exp, MOST)
"""Scale of a positive constant."""
SHARE = Scale(lambda value: math.log(value / (1 - value)), lambda x: 1 / (1 + math.exp(-x)), 1.0)
"""Scale of a constant between 0 and 1 (logit)."""
ABOVE_ONE = Scale(lambda value: math.log(value - 1), lambda x: 1 + math.exp(x), 64.0)


@dataclass(frozen=True, slots=True)
class Constant:
    """Properties of a field of a model's constants for fits and files of fits."""

    sigma: float = 0.0
    """Prior of a fit: standard deviation of the constant from its start, on its scale; 0 for a constant that is not fitted."""
    scale: Scale = LOG
    sometimes: bool = False
    """Whether only some tables determine the constant; the family frees the constant for these tables."""
    positive: bool = False
    """Whether a file must not give 0, as for a rate, a size or a time."""
    optional: bool = False
    """Whether a file may omit the constant; its default changes nothing."""
    scales: Literal["", "time", "cycles", "compute", "memory"] = ""
    """Scaling on a slower machine: a `time` grows, and one that is a number of `cycles` of the clock; a fraction of the peak of
    `compute` or `memory` falls; empty: no scaling."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """A field of a model's constants whose value is one of several words."""

    words: Iterable[str]


def constant(default: float, sigma: float = 0.0, **how: Any) -> Any:
    """A field for a constant of a model, with its default, the sigma of its prior, and other fields of `Constant`."""
    return field(default=default, metadata={"kind": Constant(sigma, **how)})


def one_of(default: str, words: Iterable[str]) -> Any:
    """A field for a choice among words."""
    return field(default=default, metadata={"kind": OneOf(words)})


def kinds(constants: Constants) -> dict[str, Constant | OneOf | None]:
    """The kinds of the fields of a dataclass of constants or of its instance; None for a plain field."""
    return {each.name: each.metadata.get("kind") for each in fields(constants)}


def priors(constants: Constants, *also: str) -> dict[str, float]:
    """The free constants of a fit with the sigmas of their priors: the constants that every table determines, and `also`."""
    found = {name: kind for name, kind in kinds(constants).items() if isinstance(kind, Constant) and kind.sigma}
    usual = {name: kind.sigma for name, kind in found.items() if not kind.sometimes}
    return usual | {name: found[name].sigma for name in also}


def scaling(constants: Constants) -> list[tuple[str, float, str]]:
    """The constants that scale on a slower machine: name, value and kind of scaling."""
    found = [(name, kind.scales) for name, kind in kinds(constants).items() if isinstance(kind, Constant) and kind.scales]
    return [(name, getattr(constants, name), way) for name, way in found]


# Fits -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RatioRows(Declared):
    """The rows to which the ratio of an operator to a pointwise kernel was fitted: rows so large that launches hardly matter."""

    bytes: Annotated[tuple[NotNegative, NotNegative], Length(2, 2), "least and most bytes that a row moves"]
    rows: Annotated[int, Limits(ge=1), "number of rows"]
    smaller_sigma: Annotated[NotNegative, "relative error that 68% of the smaller rows stay below; 0 without smaller rows"] = 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants fitted to one family of kernels, for one dtype and library on one GPU."""

    family: str
    dtype: str
    library: str
    constants: Constants
    sigma: float
    """Relative error that 68% of held-out rows stay below."""
    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest measured value of each size."""
    rows: int = 0
    source: str = ""
    cast: tuple[float, float] | None = None
    """Unfused cast of the first operand, measured with GEMMs: microseconds, and passes over the bytes of the operand."""
    backward_rows: int = 0
    """Number of fitted rows of attention's backward pass, or of GEMMs that accumulate into a gradient."""
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Operators with their own measurements: time over the time of a pointwise kernel of the same bytes, and the relative error
    of this ratio."""
    waits: float = 1.0
    """Factor on the time that threads wait for memory (apart from streaming), relative to the GPU of the ratios."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """Quantities measured beside the kernels and not part of their times, by the names that the family defines."""
    ratio_rows: Mapping[str, RatioRows] = field(default_factory=dict)
    """The rows of ratios that were fitted to a user's own table."""
    transferred_ranges: Mapping[str, tuple[float, float]] | None = None
    """Size ranges of a fit that was scaled to a few rows: the fit is transferred there, and measured at the sizes of the rows."""


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
    """Timed kernels of one family and format; each row timed one kernel, or several consecutive kernels."""

    rows: tuple[tuple[Any, ...], ...]
    seconds: Array
    machine: Machine
    element_bytes: float
    """Bytes per element of an operand."""
    cold: Array
    """Whether each row was measured with a cold cache."""
    turns: int = 0
    """Number of second operands that a benchmark of GEMMs cycles through when it repeats a GEMM; 0 unless all rows do so."""
    launches: ArrayLike = BURST
    """Launches in the measuring loop of each row."""

    @cached_property
    def kernels(self) -> tuple[Any, ...]:
        """All kernels of all rows, in order."""
        return tuple(kernel for row in self.rows for kernel in row)

    def first(self, name: str) -> Array:
        """The values of a size for the first kernel of each row."""
        return np.array([float(getattr(row[0], name)) for row in self.rows])

    def column(self, name: str) -> Array:
        """The values of a size for every kernel."""
        return np.array([float(getattr(kernel, name)) for kernel in self.kernels])

    @cached_property
    def loop(self) -> Array:
        """The launches in the measuring loop of every kernel."""
        return np.broadcast_to(self.launches, len(self.rows))[self._row_of_kernel]

    @cached_property
    def _row_of_kernel(self) -> Array:
        return np.repeat(np.arange(len(self.rows)), [len(row) for row in self.rows])

    def per_row(self, seconds: Array) -> Array:
        """Times of rows, as sums of the times of their kernels."""
        return np.bincount(self._row_of_kernel, weights=seconds, minlength=len(self.rows))

    def part(self, which: Array) -> TimedKernels:
        """The rows selected by a mask."""
        chosen = tuple(self.rows[i] for i in np.flatnonzero(which))
        launches = np.broadcast_to(self.launches, self.seconds.shape)[which]
        return replace(self, rows=chosen, seconds=self.seconds[which], cold=self.cold[which], launches=launches)


# Families -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transfer:
    """The transfer of a fit from the GPU of its measurements (`owner`) to another GPU."""

    owner: Gpu
    gpu: Gpu
    dtype: str
    ported: bool
    """Whether the kernels were written for tensor cores of an earlier generation than the GPU's."""
    known: Sequence[tuple[Gpu, Fit]]
    """All available fits."""

    @property
    def factors(self) -> dict[str, float]:
        """Factors on constants, by their kind of scaling. A fraction of a peak is unchanged, unless the file of the GPU states
        that the GPU sustains less of its peaks. Times on the GPU are cycles of its clock. The factors for tensor cores and for
        launches in graphs do not apply to fp32 without tensor cores, which was timed in eager PyTorch."""
        gpu, owner, plain = self.gpu.kernels, self.owner.kernels, self.dtype == WITHOUT_TENSOR_CORES
        stated = gpu.provenance == "transferred"
        return {
            "compute": gpu.compute_fraction / owner.compute_fraction if stated and not plain else 1.0,
            "memory": gpu.memory_fraction / owner.memory_fraction if stated else 1.0,
            "cycles": 1.0 if plain else clock_per_s(self.owner) / clock_per_s(self.gpu),
        }

    @property
    def power_times(self) -> float:
        """Highest flop/s that the GPU's power allows, over those that the owner sustains: the square root of multiprocessors
        times watts, since power grows with the rate times the square of the voltage, which falls with the clock. Infinite if
        unknown, and for boards of one architecture, whose difference in power is considered elsewhere."""
        known = self.gpu.tdp_w and self.owner.tdp_w and self.gpu.architecture != self.owner.architecture
        return math.sqrt(self.gpu.sms * self.gpu.tdp_w / (self.owner.sms * self.owner.tdp_w)) if known else math.inf


class KernelFamily(ABC):
    """The interface of a family of kernels."""

    name: ClassVar[str]
    """Name of the family in kernels and files of fits."""
    plural: ClassVar[str]
    """Name of the family in messages."""
    constants: ClassVar[type]
    """The dataclass of the family's constants, whose defaults apply to kernels without measurements."""
    least_sigma: ClassVar[float] = 0.01
    """Least relative error of a fit, due to the variation of a GPU's clock."""
    far_sigma: ClassVar[float]
    """Error added by borrowing from a GPU that runs other kernels, from results/kernels/report.md with one GPU left out at a
    time."""
    held_out: ClassVar[tuple[str, ...]]
    """The sizes of which every fourth value is held out to judge a fit."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Names of quantities that may be timed beside the kernels and are not part of their times."""
    of_host: ClassVar[tuple[str, ...]] = ()
    """The quantities of `beside` that are times of the host, equal on every GPU."""
    unstated: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Size ranges of the rows of a fit that does not state a range; sizes not listed here have no limit."""
    any_format: ClassVar[bool] = False
    """Whether one fit holds for every format."""
    narrower: ClassVar[bool] = False
    """Whether a fit in 16 bits is used for narrower formats."""
    has_ratios: ClassVar[bool] = False
    """Whether operators of the family may be known by their ratio to the fitted operators."""
    names_libraries: ClassVar[bool] = False
    """Whether tables name the library of the kernels; each library then has its own fit."""
    slower_libraries: ClassVar[Mapping[str, tuple[str, float]]] = {}
    """Libraries without measurements: a measured library, and the factor of their time over its time."""
    for_ampere: ClassVar[tuple[str, ...]] = ()
    """Libraries written for the tensor cores of Ampere, which also run on all later GPUs."""
    compiled: ClassVar[tuple[str, ...]] = ()
    """Libraries whose source is compiled for each GPU, so that they run on all."""

    @abstractmethod
    def kernel_s(self, constants: Constants, estimator: Any, machine: Machine, kernel: Any) -> float:
        """Seconds of a kernel on a machine by the given constants, for the dtype and options of the `Estimator`."""

    def estimate(self, estimator: Any, machine: Machine, kernel: Any, chosen: Any) -> Estimate:
        """The time of a kernel on a machine by the fit that an `Estimator` has selected."""
        time_s = self.kernel_s(chosen.fit.constants, estimator, machine, kernel)
        found: Estimate = estimator.estimate_from(chosen, time_s, self.name, self.sizes(kernel))
        return found

    def unfused(self, kernel: Any) -> list[Any]:
        """The kernels that replace a kernel where it is not fused; empty if the kernel is always fused."""
        return []

    @abstractmethod
    def seconds(self, constants: Constants, timed: TimedKernels, extra: Array) -> Array:
        """The times of rows by the given constants, where `extra` holds the quantities timed beside the kernels."""

    @abstractmethod
    def sizes(self, kernel: Any) -> dict[str, float]:
        """The sizes of a kernel that the ranges of a fit refer to, by their names in files of fits."""

    def transferred(self, fit: Fit, transfer: Transfer) -> Fit:
        """The fit of one GPU for another GPU by `Transfer.factors`; fractions of peaks grow up to `MOST_OF_PEAK`. Nothing slows
        the arithmetic of a GPU that draws less than its power limit at its peak."""
        factors = transfer.factors
        known = [(name, value, way, value * factors[way]) for name, value, way in scaling(fit.constants) if way in factors]
        found = {name: made if way == "cycles" else min(max(MOST_OF_PEAK, value), made) for name, value, way, made in known}
        found |= {} if reaches_limit(transfer.gpu) else dict.fromkeys(("power", "throttle") & kinds(fit.constants).keys(), 0.0)
        return replace(fit, constants=replace(fit.constants, **found))

    def slowed(self, constants: Constants, factor: float) -> Constants:
        """Constants of kernels whose times are `factor` times as long, within the limits of the peaks."""
        slower = {
            name: v * factor if way in ("time", "cycles") else min(MOST_OF_PEAK, v / factor)
            for name, v, way in scaling(constants)
        }
        return replace(constants, **slower)

    def limited(self, constants: Constants, slowdown: float, throttled: float) -> Constants:
        """Constants of kernels whose arithmetic takes `slowdown` times as long on a board with another limit of power, and which
        a limit of power slows `throttled` times as much as on the measured board.
        """
        if not {"limited", "throttle"} <= kinds(constants).keys():
            return constants
        return replace(constants, limited=slowdown, throttle=constants.throttle * throttled)

    def slower_library(self, constants: Constants, factor: float) -> Constants:
        """Constants of a library whose arithmetic takes `factor` times as long."""
        return constants

    def free(self, timed: TimedKernels, start: Constants) -> dict[str, float]:
        """The constants that the rows determine, with the sigmas of their priors."""
        return priors(start)

    def extra_start(self, timed: TimedKernels, start: Constants) -> Array:
        """Start of the fit of the quantities beside the constants; empty if only kernels were timed."""
        return np.array([])

    def extra_of(self, fit: Fit, timed: TimedKernels) -> Array:
        """The quantities beside the constants from an earlier fit."""
        return np.array([])

    def about(self, timed: TimedKernels, extra: Array) -> dict[str, Any]:
        """Fields of a fit beside its constants, computed from the quantities in `extra`."""
        return {}

    def scaled_to(self, start: Constants, timed: TimedKernels, extra: Array) -> tuple[Constants, float]:
        """Constants scaled as a whole to match a few rows, and the factor on the times."""
        times = math.exp(float(np.median(np.log(timed.seconds / self.seconds(start, timed, extra)))))
        return self.slowed(start, times), times

    def is_fitted(self, kernel: Any) -> bool:
        """Whether constants are fitted to a kernel; other kernels are known by a ratio to fitted kernels."""
        return True


@cache
def families() -> Mapping[str, KernelFamily]:
    """All families by name: the `FAMILY` of each module of this folder that has one."""
    package = import_module(__package__)
    modules = [import_module(f"{__package__}.{one.name}") for one in iter_modules(package.__path__)]
    return {module.FAMILY.name: module.FAMILY for module in modules if hasattr(module, "FAMILY")}
