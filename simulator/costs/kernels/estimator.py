"""What a kernel takes on a GPU, by models whose constants were fitted to measured kernels, and how far to trust it.

A prediction says which fit it comes from, whether that was measured on this GPU or is borrowed from another, its relative
standard error, and whether the sizes lie beyond those that were measured. What nobody measured takes the usual constants, a
roofline with a launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from ...hardware.gpu import PEAK_OF, TENSOR_CORE_DTYPE, Gpu
from ...kernels import Kernel, Shape
from ...units import ns
from .family import Constants, Estimate, Provenance, families
from .fits import SHORT, FitLibrary, SelectedFit, best_fit_for, known_library
from .gpu_model import Machine, machine, same_kernels

PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)
Ranges = Mapping[str, tuple[float, float]]
STRETCH = 1.001
"""Sizes that are the largest measured are not beyond it."""
BEYOND = 2.0
"""How much less is known beyond the measured sizes."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is known about the software."""

    library: str = ""
    eager: bool = False
    """Whether norms, activations and losses run as the several kernels of an eager framework."""
    tensor_cores: bool = True
    """Whether GEMMs in fp32 run as TF32."""
    accumulate: bool = True
    """Whether weight gradients are added to fp32 ones."""
    turns: int = 0
    """How many second operands take turns where GEMMs are run over and over, as benchmarks do; 0 where nothing is repeated."""


@dataclass(frozen=True)
class Estimator:
    """Predicts kernels of one dtype on one GPU."""

    gpu: Gpu
    dtype: str
    fits: FitLibrary
    options: Options = field(default_factory=Options)

    @property
    def gemm_dtype(self) -> str:
        """What GEMMs of the dtype run in."""
        tensor = TENSOR_CORE_DTYPE.get(self.dtype, self.dtype) if self.options.tensor_cores else self.dtype
        return tensor if tensor in self.gpu.peak_flop_per_s else self.dtype

    @property
    def peak_dtype(self) -> str:
        """The format whose peak that has."""
        return PEAK_OF.get(self.gemm_dtype, self.gemm_dtype)

    @property
    def machine(self) -> Machine:
        """The GPU at that peak; a dtype that it lacks is refused."""
        return machine(self.gpu, self.peak_dtype)

    def with_nothing_cached(self) -> Estimator:
        """The same for kernels whose operands are not in the last cache, as benchmarks with a cold cache time them."""
        return replace(self, gpu=replace(self.gpu, cache_bytes=0.0))

    def estimate(self, kernel: Shape) -> Estimate:
        """The time of a kernel, and where it comes from."""
        return families()[kernel.family].estimate(self, kernel)

    def selected(self, family: str, takes_s: Callable[[Constants], float] | None = None) -> SelectedFit:
        """The fit for a family of kernels; the library that was asked for only where it has such kernels.

        Where nobody names a library, it is the fastest, by `takes_s`, of those that a profile of this GPU has.
        """
        kernels = families()[family]
        dtype = "" if kernels.any_format else self.gemm_dtype
        library = SHORT.get(self.options.library, self.options.library)
        if library not in (*self.fits.libraries(family), *kernels.slower_libraries):
            library = ""
        rivals = self.fits.rivals(family, dtype) if takes_s and not library else []
        if takes_s and len(rivals) > 1:
            best = min(rivals, key=lambda fit: takes_s(fit.constants))
            return SelectedFit(best, self.gpu.name, "measured", best.sigma)
        return best_fit_for(self.gpu, self.fits, family, dtype, library)

    def estimate_from(self, selected: SelectedFit, time_s: float, what: str, sizes: Mapping[str, float]) -> Estimate:
        """A time by the constants of a fit as it is on this machine, with where it comes from."""
        time_s, fit = time_s * self.gpu.site_scalar, selected.fit
        if selected.provenance == "roofline":
            return Estimate(time_s, f"{what}: usual constants", "roofline", selected.sigma, True)
        unstated, provenance = families()[fit.family].unstated, selected.provenance
        beyond = _beyond({**unstated, **fit.ranges}, sizes)
        if beyond and fit.transferred_ranges is not None:
            beyond = not fit.transferred_ranges or _beyond({**unstated, **fit.transferred_ranges}, sizes)
            provenance = "transferred"
        name = " ".join(word for word in (f"{what}:", fit.dtype, fit.library, f"of {selected.owner}") if word)
        return Estimate(time_s, name, provenance, selected.sigma * (BEYOND if beyond else 1.0), beyond)

    def beside(self, name: str, family: str = "gemm") -> float:
        """A number that was fitted beside kernels and is none of theirs, or 0: a fault of kernels that only some GPUs run."""
        selected = self.selected(family)
        return selected.fit.beside.get(name, 0.0) if self.runs_kernels_of(selected) else 0.0

    def runs_kernels_of(self, selected: SelectedFit) -> bool:
        """Whether a fit is of a GPU that runs the same kernels."""
        return selected.provenance != "roofline" and same_kernels(self.gpu, self.fits.gpus[selected.owner])

    def is_own(self, selected: SelectedFit) -> bool:
        """Whether a fit is of the profile of this GPU."""
        return selected.fit in self.fits.profile


def _beyond(ranges: Ranges, sizes: Mapping[str, float]) -> bool:
    """Whether some size lies outside the measured ones."""
    spans = ((size, *ranges.get(name, (0.0, math.inf))) for name, size in sizes.items())
    return any(not low / STRETCH <= size <= high * STRETCH for size, low, high in spans)


def together(what: str, parts: Sequence[Estimate]) -> Estimate:
    """Kernels that run one after the other as one: known as badly as the worst known of them."""
    total_s = sum(part.seconds for part in parts)
    sigma = sum(part.seconds * part.sigma for part in parts) / total_s
    worst = max(parts, key=lambda part: PROVENANCES.index(part.provenance))
    return Estimate(total_s, what, worst.provenance, sigma, any(part.extrapolated for part in parts))


@dataclass(frozen=True, eq=False)
class PricedKernels:
    """The kernels of a run, each estimated once. Called with a kernel it gives whole nanoseconds."""

    estimator: Estimator
    estimates: dict[Kernel, Estimate] = field(default_factory=dict)
    """Filled by `estimate`: a kernel has one estimate, whoever asks first."""

    def estimate(self, kernel: Kernel) -> Estimate:
        if kernel not in self.estimates:
            self.estimates[kernel] = self.estimator.estimate(kernel)
        return self.estimates[kernel]

    def __call__(self, kernel: Kernel) -> int:
        return ns(self.estimate(kernel).seconds)


def measured_cost(gpu: Gpu, dtype: str, fits: FitLibrary, options: Options | None = None) -> PricedKernels:
    """The cost of kernels of one dtype on one GPU, by what was measured. A dtype it lacks is refused now."""
    options = options or Options()
    options = replace(options, library=known_library(options.library, fits))
    gpu.matmul_peak(dtype)
    return PricedKernels(Estimator(gpu, dtype, fits, options))
