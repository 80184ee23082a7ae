"""Time of a kernel on a GPU from the best available fit and library (`best_fit_for`), with provenance and error.

A prediction states the fit, whether the fit was measured on this GPU or borrowed from another GPU, the relative standard error,
and whether the sizes lie beyond the measured sizes. Kernels without measurements have the default constants of their family: a
roofline with a launch. fit_choice.py says which fit that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import get_args

from ...hardware.gpu import PEAK_OF, TENSOR_CORE_DTYPE, Gpu
from ...kernels import UNFUSED, Gemm, Kernel, Shape
from ...units import ns
from . import power
from .family import (
    BURST,
    SUSTAINED,
    WITHOUT_TENSOR_CORES,
    Constants,
    Estimate,
    KernelFamily,
    Provenance,
    families,
)
from .fit_choice import LIBRARY_ALIASES, FitLibrary, SelectedFit, best_fit_for, known_library, timed_as
from .gpu_model import Machine, machine, same_kernels

RANGE_TOLERANCE = 1.001
"""Factor of tolerance on the range of measured sizes, so that the largest measured size counts as measured."""
EXTRAPOLATION_FACTOR = 2.0
"""Factor on the error beyond the measured sizes."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the software that runs the kernels."""

    library: str = ""
    eager: bool = False
    """Whether norms, activations and losses run as the several kernels of an eager framework."""
    tensor_cores: bool = True
    """Whether GEMMs in fp32 run as TF32."""
    accumulate: bool = True
    """Whether GEMMs add weight gradients to those of earlier microbatches themselves."""
    gradient_bytes: int = 4
    """Bytes per element of these gradients."""
    turns: int = 0
    """Number of second operands that a benchmark cycles through when it repeats a GEMM; 0 without repetition."""
    launches: float = BURST
    """Number of launches in a row: `SUSTAINED` for kernels of a step, or those of a measuring loop."""
    boards: int = 1
    """Number of GPUs that wait for one another, so that kernels in a step run at the speed of the slowest GPU."""
    arithmetic: float = 1.0
    """Factor on GEMMs, attention and experts: in a step they take longer than in a loop of the same kernel."""


@dataclass(frozen=True)
class Estimator:
    """Predicts the times of kernels of one dtype on one GPU."""

    gpu: Gpu
    dtype: str
    fits: FitLibrary
    options: Options = field(default_factory=Options)
    best: dict[tuple[str, str, str], SelectedFit] = field(default_factory=dict, repr=False, compare=False)
    """Cache of `best_fit_for` on the GPU, by family, format and library."""

    @property
    def gemm_dtype(self) -> str:
        """The format in which GEMMs of the dtype run."""
        tensor = TENSOR_CORE_DTYPE.get(self.dtype, self.dtype) if self.options.tensor_cores else self.dtype
        return tensor if tensor in self.gpu.peak_flop_per_s else self.dtype

    @property
    def peak_dtype(self) -> str:
        """The format whose peak applies to GEMMs of the dtype."""
        return PEAK_OF.get(self.gemm_dtype, self.gemm_dtype)

    @property
    def machine(self) -> Machine:
        """The GPU at the peak of the dtype; a dtype that the GPU lacks is refused."""
        return machine(self.gpu, self.gemm_dtype)

    def machine_for(self, family: KernelFamily) -> Machine:
        """The machine for the kernels of a family: at the tensor peak where one fit of the family holds for every format."""
        return machine(self.gpu) if family.any_format else self.machine

    def with_nothing_cached(self) -> Estimator:
        """The estimator of kernels whose operands are not in the last-level cache, as in benchmarks with a cold cache."""
        return replace(self, gpu=replace(self.gpu, cache_bytes=0.0), best={})

    def estimate(self, kernel: Shape) -> Estimate:
        """The time of a kernel, with its fit, provenance and error."""
        return self.made(kernel)

    def made(self, kernel: Shape) -> Estimate:
        """Computes the time of a kernel, or of a part of one."""
        family, dtype = families()[kernel.family], getattr(kernel, "dtype", "")
        if self.options.library == UNFUSED and (parts := family.unfused(kernel)):
            return together(f"{family.name}: {UNFUSED}", [self.made(part) for part in parts])
        estimator = replace(self, dtype=dtype) if dtype else self
        if isinstance(kernel, Gemm) and not kernel.aligned and WITHOUT_TENSOR_CORES in self.gpu.peak_flop_per_s:
            estimator = replace(self, dtype=WITHOUT_TENSOR_CORES, options=replace(self.options, tensor_cores=False))
        chosen = estimator.selected(
            family.name, lambda constants: family.kernel_s(constants, estimator, estimator.machine_for(family), kernel)
        )
        found: Estimate = family.estimate(estimator, estimator.machine_for(family), kernel, chosen)
        throttles = self.options.launches > BURST and hasattr(chosen.fit.constants, "throttle")
        slower = estimator._beyond_burst(family, kernel, chosen) if throttles else 0.0
        if family.any_format:
            return found
        sigma = math.hypot(found.sigma, power.THROTTLE_SIGMA * slower)
        return replace(found, seconds=found.seconds * self.options.arithmetic, sigma=sigma)

    def _beyond_burst(self, family: KernelFamily, kernel: Shape, chosen: SelectedFit) -> float:
        """The fraction of a kernel's time by which it exceeds the time in a burst."""
        short = replace(self, options=replace(self.options, launches=BURST))
        took_s, burst_s = (family.kernel_s(chosen.fit.constants, by, self.machine_for(family), kernel) for by in (self, short))
        return 1 - burst_s / took_s

    def selected(self, family: str, takes_s: Callable[[Constants], float] | None = None) -> SelectedFit:
        """The fit for a family of kernels; the library of the options counts only where the library has such kernels.

        In a step, arithmetic is slower on a board with a lower power limit than the measured one, and on the slowest of several
        boards. If no library is named, the fastest one (by `takes_s`) in the profile of this GPU is taken.
        """
        chosen = self._unlimited(family, takes_s)
        if self.options.launches != SUSTAINED:
            return chosen
        at_w = power.reference_w(self.gpu, self.fits.gpus.get(chosen.owner))
        slower, slowest = power.slowdown(self.gpu, at_w), power.slowest(self.options.boards)
        limited = families()[family].limited(chosen.fit.constants, slower, slowest)
        made = replace(chosen, fit=replace(chosen.fit, constants=limited))
        if slower == 1 or limited == chosen.fit.constants:
            return made
        provenance: Provenance = "transferred" if chosen.provenance == "measured" else chosen.provenance
        return replace(made, provenance=provenance, sigma=math.hypot(chosen.sigma, power.slowdown_sigma(self.gpu, at_w)))

    def _unlimited(self, family: str, takes_s: Callable[[Constants], float] | None = None) -> SelectedFit:
        """The fit for a family of kernels at the power limit of the measured board."""
        kernels = families()[family]
        dtype = "" if kernels.any_format else self.gemm_dtype
        library = LIBRARY_ALIASES.get(self.options.library, self.options.library)
        if library and library not in kernels.slower_libraries and not self.fits.has(family, library):
            library = ""
        rivals = [fit for fit in self.fits.profile if fit.family == family and timed_as(fit, dtype)]
        if takes_s and not library and len(rivals) > 1:
            best = min(rivals, key=lambda fit: takes_s(fit.constants))
            return SelectedFit(best, self.gpu.name, "measured", best.sigma)
        wanted = family, dtype, library
        if wanted not in self.best:
            self.best[wanted] = best_fit_for(self.gpu, self.fits, *wanted)
        return self.best[wanted]

    def estimate_from(self, selected: SelectedFit, time_s: float, model: str, sizes: Mapping[str, float]) -> Estimate:
        """The estimate for a time by the constants of a fit: the time on this site, its provenance and error."""
        time_s, fit = time_s * self.gpu.site_scalar, selected.fit
        if selected.provenance == "roofline":
            return Estimate(time_s, f"{model}: usual constants", "roofline", selected.sigma, True)
        unstated, provenance = families()[fit.family].unstated, selected.provenance
        beyond = _beyond({**unstated, **fit.ranges}, sizes)
        if beyond and fit.transferred_ranges is not None:
            beyond = not fit.transferred_ranges or _beyond({**unstated, **fit.transferred_ranges}, sizes)
            provenance = "transferred"
        limited = f"at {self.gpu.tdp_w:g} W" if getattr(fit.constants, "limited", 1.0) != 1 else ""
        name = " ".join(word for word in (f"{model}:", fit.dtype, fit.library, f"of {selected.owner}", limited) if word)
        return Estimate(time_s, name, provenance, selected.sigma * (EXTRAPOLATION_FACTOR if beyond else 1.0), beyond)

    def beside(self, name: str, family: str = "gemm") -> float:
        """A quantity that was fitted beside kernels, or 0 without a fit of a GPU that runs the same kernels. Host times hardly
        depend on the GPU: if a shipped fit does not state one, it is the median of the fits that do. A user's own fit has it in
        its constants."""
        selected = self._unlimited(family)
        if name in families()[family].of_host and name not in selected.fit.beside and not self.is_own(selected):
            told = [fit.beside[name] for fits in self.fits.fits.values() for fit in fits if name in fit.beside]
            return median(told) if told else 0.0
        return selected.fit.beside.get(name, 0.0) if self.runs_kernels_of(selected) else 0.0

    def runs_kernels_of(self, selected: SelectedFit) -> bool:
        """Whether a fit belongs to a GPU that runs the same kernels."""
        return selected.provenance != "roofline" and same_kernels(self.gpu, self.fits.gpus[selected.owner])

    def is_own(self, selected: SelectedFit) -> bool:
        """Whether a fit belongs to the profile of this GPU."""
        return selected.fit in self.fits.profile


def _beyond(ranges: Mapping[str, tuple[float, float]], sizes: Mapping[str, float]) -> bool:
    """Whether some size lies outside the measured range."""
    spans = ((size, *ranges.get(name, (0.0, math.inf))) for name, size in sizes.items())
    return any(not low / RANGE_TOLERANCE <= size <= high * RANGE_TOLERANCE for size, low, high in spans)


def together(model: str, parts: Sequence[Estimate]) -> Estimate:
    """The estimate for consecutive kernels as one kernel, with the worst provenance of its parts."""
    total_s = sum(part.seconds for part in parts)
    sigma = sum(part.seconds * part.sigma for part in parts) / total_s
    worst = max(parts, key=lambda part: get_args(Provenance).index(part.provenance))
    return Estimate(total_s, model, worst.provenance, sigma, any(part.extrapolated for part in parts))


@dataclass(frozen=True, eq=False)
class PricedKernels:
    """The estimates of the kernels of a run, each computed once. A call with a kernel returns whole nanoseconds."""

    estimator: Estimator
    estimates: dict[Kernel, Estimate] = field(default_factory=dict)
    """Cache of `estimate`."""

    def estimate(self, kernel: Kernel) -> Estimate:
        if kernel not in self.estimates:
            self.estimates[kernel] = self.estimator.estimate(kernel)
        return self.estimates[kernel]

    def burst_s(self, kernel: Kernel) -> float:
        """Seconds of a kernel in a short burst of launches."""
        estimator = self.estimator
        if estimator.options.launches == BURST:
            return self.estimate(kernel).seconds
        return replace(estimator, options=replace(estimator.options, launches=BURST)).made(kernel).seconds

    def __call__(self, kernel: Kernel) -> int:
        return ns(self.estimate(kernel).seconds)


def measured_cost(gpu: Gpu, dtype: str, fits: FitLibrary, options: Options | None = None) -> PricedKernels:
    """The cost of kernels of one dtype on one GPU, from fits to measurements. A dtype that the GPU lacks is refused at once."""
    options = options or Options()
    options = replace(options, library=known_library(options.library, fits))
    gpu.matmul_peak(dtype)
    return PricedKernels(Estimator(gpu, dtype, fits, options))
