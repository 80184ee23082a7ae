"""Time of a kernel on a GPU from the best available fit and library (`best_fit_for`), with provenance and error.

A prediction states the fit, whether the fit was measured on this GPU or borrowed from another GPU, the relative standard error,
and whether the sizes lie beyond the measured sizes. Kernels without measurements have the default constants of their family: a
roofline with a launch.

A GPU without a fit of its own borrows the fit of a GPU that runs the same kernels (Ampere, Ada and workstation Blackwell form one
group; Hopper; data-centre Blackwell), namely the GPU with the nearest tensor peak per multiprocessor; without a GPU that runs the
same kernels, the nearest of all GPUs. Constants are fractions of peaks, and times, so that they scale with the peaks. Further
scaling follows the fraction of its peaks that each of the two GPUs sustains (`kernels` in topologies/gpus), and the family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import get_args

from ...errors import UserError, did_you_mean
from ...hardware.gpu import PEAK_OF, TENSOR_CORE_DTYPE, Gpu
from ...kernels import UNFUSED, Kernel, Shape
from ...units import ns
from . import power
from .family import (
    ANY,
    BURST,
    SUSTAINED,
    WITHOUT_TENSOR_CORES,
    Constants,
    Estimate,
    Fit,
    KernelFamily,
    Provenance,
    Transfer,
    families,
)
from .gpu_model import HALVES, Machine, architecture, is_slot_powered, machine, same_kernels, similarity

RANGE_TOLERANCE = 1.001
"""Factor of tolerance on the range of measured sizes, so that the largest measured size counts as measured."""
EXTRAPOLATION_FACTOR = 2.0
"""Factor on the error beyond the measured sizes."""
FITTED_AS = {"fp16": "bf16", "tf32": "bf16", "mxfp8": "fp8"}
"""Dtypes that use the kernels of another dtype, at their own peak."""
PREFERRED_LIBRARIES = (ANY, "flash_attention", "fa3", "torch_flow")
"""Order of preference of libraries where none is named: FlashAttention's design on Ampere, FlashAttention 3 on Hopper,
TensorRT-LLM's attention on Blackwell."""
LIBRARY_ALIASES = {
    "fa2": "flash_attention", "flash_attention_2": "flash_attention",
    "flash_attention_3": "fa3", "flash_attention_v3": "fa3", "flash_attn": "flash_attention", "flash_attn_2": "flash_attention",
    "flash_attn_3": "fa3", "cudnn": "torch_flow",
}  # fmt: skip
"""Aliases of libraries; NVIDIA's own kernels were measured in TensorRT-LLM."""
BORROWED_SIGMA, SAME_KERNELS_SIGMA = 0.1, 0.2
"""Relative error added by borrowing a fit: from a board with the same multiprocessors and memory, and from a GPU that runs the
same kernels on other multiprocessors. Estimated by leaving out one GPU at a time (results/kernels/report.md): sisters add 0.10 to
GEMMs, 0.12 to attention and 0.08 to memory-bound operators; V100 and T4 add 0.1 to memory-bound operators of each other, the
GDDR board L4 adds 0.3 to GEMMs. Other GPUs add the family's `far_sigma`."""
PLAIN_SIGMA = 0.33
"""Relative error added by borrowing fp32 without tensor cores from another architecture: with one of six GPUs left out, 68% of
its rows are off by less than 0.37, to which the fits add 0.15. The rows were timed in eager PyTorch on hosts of several speeds,
and how often operands are read again differs between boards."""
ROOFLINE_SIGMA = 0.4
"""Relative error of the default constants of a family without measurements."""
AMPERE_ON_LATER = 0.45
"""Relative speed of attention for Ampere's tensor cores on Hopper and data-centre Blackwell: FlashAttention 2 sustains 326 of
989 TFLOP/s on an H100 (the tables that results/kernels fits), compared with 73% of the peak on an A100 (arXiv 2307.08691)."""
GENERATION_DISTANCE = 0.5
"""Least difference in `similarity` between generations of tensor cores."""
SISTER_DISTANCE = 0.1
"""Largest difference in `similarity` between two boards with the same multiprocessors."""
PORTABLE_KERNELS = "ampere"
"""The generation whose kernels are written for warps, and run in every format of later GPUs."""
SIXTEEN_BITS = "bf16"
NOT_NARROWER = ("", "fp32", "tf32")
"""Formats that never use fits in 16 bits: no format, fp32 and TF32."""
FEW_ROWS = 4
"""Number of rows below which rows do not make a fit: fewer rows scale a fit, and count as measured only at their own sizes."""


@dataclass(frozen=True, slots=True)
class FitLibrary:
    """All fits and their GPUs, by the name of the GPU."""

    fits: Mapping[str, Sequence[Fit]]
    gpus: Mapping[str, Gpu]
    profile: Sequence[Fit] = ()
    """The fits in the profile of the simulated GPU, which its owner measured."""

    def libraries(self, family: str) -> tuple[str, ...]:
        """The libraries whose kernels of a family were measured."""
        return libraries_of((fit for fits in self.fits.values() for fit in fits), family)


@dataclass(frozen=True, slots=True)
class SelectedFit:
    """A fit that was selected for a GPU, with the GPU that owns the fit, provenance and error."""

    fit: Fit
    owner: str
    provenance: Provenance
    sigma: float
    borrowed_sigma: float = 0.0
    """The share of `sigma` that borrowing added."""


def best_fit_for(gpu: Gpu, library: FitLibrary, family: str, dtype: str = "", named: str = "") -> SelectedFit:
    """The fit for a family of kernels on a GPU: its own fit, else the fit of the most similar GPU, else the default constants.

    Where the `named` library has no fit in a format, fits of other libraries are used.
    """
    kernels = families()[family]
    named, times = kernels.slower_libraries.get(named, (LIBRARY_ALIASES.get(named, named), 1.0))
    wanted = FITTED_AS.get(dtype, dtype)
    known = [(owner, fit) for owner, fits in library.fits.items() for fit in fits]
    formats = {owner: _formats(wanted, kernels, gpu, library.gpus[owner]) for owner in library.fits}
    fitting = [(owner, fit) for owner, fit in known if fit.family == family and fit.dtype in formats[owner]]
    unfitted = named not in {fit.library for _, fit in fitting}
    own = [fit.library for owner, fit in fitting if owner == gpu.name]
    unnamed = not kernels.names_libraries and bool(own) and named not in own
    another = bool(named) and (unfitted or unnamed or _runs_others(gpu, library, kernels, named))
    usable = [(owner, fit) for owner, fit in fitting if another or named in ("", fit.library)]
    if not usable:
        return SelectedFit(Fit(family, "", "", kernels.constants(), ROOFLINE_SIGMA, {}), "", "roofline", ROOFLINE_SIGMA)

    def order(found: tuple[str, Fit]) -> tuple[float, ...]:
        owner, fit = found
        place = PREFERRED_LIBRARIES.index(fit.library) if fit.library in PREFERRED_LIBRARIES else len(PREFERRED_LIBRARIES)
        if fit.library in kernels.for_ampere and architecture(gpu).kernels not in ("", "ampere"):
            place = len(PREFERRED_LIBRARIES)  # later generations have kernels of their own, which training takes unless told
        other, others = library.gpus[owner], fit.dtype not in ("", wanted)
        if wanted == WITHOUT_TENSOR_CORES:
            throttled = is_slot_powered(other) > is_slot_powered(gpu)
            far = abs(similarity(other, wanted) - similarity(gpu, wanted))
            return owner != gpu.name, throttled, other.architecture != gpu.architecture, far
        far, same = similarity(other) - similarity(gpu), same_kernels(gpu, other)
        later = far > 0 and not same and bool(architecture(gpu).kernels)
        foreign = fit.library in kernels.for_ampere and architecture(other).kernels not in ("", "ampere") and not same
        unlike = (owner != gpu.name, not same, foreign, others, other.architecture != gpu.architecture, later)
        return *unlike, abs(far), place, -fit.rows

    owner, fit = min(usable, key=order)
    owning = library.gpus[owner]
    ported = fit.library in kernels.for_ampere and similarity(gpu) - similarity(owning) > GENERATION_DISTANCE
    slower = (1.0 if another else times) / (AMPERE_ON_LATER if ported else 1.0)
    everything = [(library.gpus[name], each) for name, each in known]
    made = fit if owner == gpu.name else kernels.transferred(fit, Transfer(owning, gpu, wanted, ported, everything))
    made = made if slower == 1 else replace(made, constants=kernels.slower_library(made.constants, slower))
    if owner == gpu.name and slower == 1 and _timed_as(fit, dtype) and not another:
        return SelectedFit(made, owner, "measured", fit.sigma)
    sisters = (
        abs(similarity(gpu) - similarity(owning)) < SISTER_DISTANCE
        and gpu.kernels.memory_fraction == owning.kernels.memory_fraction
    )
    far_sigma = max(kernels.far_sigma, PLAIN_SIGMA) if wanted == WITHOUT_TENSOR_CORES else kernels.far_sigma
    borrowed = BORROWED_SIGMA if sisters else SAME_KERNELS_SIGMA if same_kernels(gpu, owning) else far_sigma
    return SelectedFit(made, owner, "transferred", math.hypot(fit.sigma, borrowed), borrowed)


def portable(gpu: Gpu, other: Gpu) -> bool:
    """Whether both GPUs run kernels that are written for warps, which run in every format."""
    return architecture(gpu).kernels == architecture(other).kernels == PORTABLE_KERNELS


def libraries_of(fits: Iterable[Fit], family: str) -> tuple[str, ...]:
    """The libraries that some fits name for the kernels of a family."""
    return tuple(dict.fromkeys(fit.library for fit in fits if fit.family == family and fit.library not in ("", ANY)))


def _runs_others(gpu: Gpu, library: FitLibrary, kernels: KernelFamily, named: str) -> bool:
    """Whether a library was measured only on GPUs that run other kernels, while other libraries were measured on GPUs that run
    the same kernels: the library then does not run here, or runs other kernels. Kernels for Ampere run on all later GPUs, and
    what is compiled for each GPU on all.
    """
    if named in (*kernels.for_ampere, *kernels.compiled):
        return False
    near = [fits for owner, fits in library.fits.items() if same_kernels(gpu, library.gpus[owner])]
    found = [fit.library for fits in near for fit in fits if fit.family == kernels.name]
    return bool(found) and named not in found


def _timed_as(fit: Fit, dtype: str) -> bool:
    """Whether a fit was measured with kernels of this format, and not only with similar kernels."""
    return fit.dtype in ("", dtype) or (dtype in HALVES and fit.dtype in HALVES)


def _formats(wanted: str, kernels: KernelFamily, gpu: Gpu, owner: Gpu) -> tuple[str, ...]:
    """The formats whose fits apply to the `wanted` format on a GPU: the format itself, and for narrower formats also 16 bits,
    where kernels are portable or the family allows this.
    """
    narrower = PEAK_OF.get(wanted, wanted) in gpu.peak_flop_per_s and wanted not in NOT_NARROWER
    return ("", wanted, SIXTEEN_BITS) if narrower and (kernels.narrower or portable(gpu, owner)) else ("", wanted)


def known_library(name: str, library: FitLibrary) -> str:
    """The library with a name or alias; raises `UserError` if none of its kernels was measured. An empty name stays empty."""
    slower = families()["attention"].slower_libraries
    known = dict.fromkeys((*library.libraries("gemm"), *library.libraries("attention"), *LIBRARY_ALIASES, *slower, UNFUSED))
    plain = name.strip().lower().replace("-", "_")
    if plain and plain not in known:
        raise UserError(f"no kernels of library {name!r} were measured", hint=did_you_mean(plain, known))
    return LIBRARY_ALIASES.get(plain, plain)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the software that runs the kernels."""

    library: str = ""
    eager: bool = False
    """Whether norms, activations and losses run as the several kernels of an eager framework."""
    tensor_cores: bool = True
    """Whether GEMMs in fp32 run as TF32."""
    accumulate: bool = True
    """Whether weight gradients are accumulated in fp32."""
    turns: int = 0
    """Number of second operands that a benchmark cycles through when it repeats a GEMM; 0 without repetition."""
    launches: float = BURST
    """Number of launches in a row: `SUSTAINED` for kernels of a step, or those of a measuring loop."""
    boards: int = 1
    """Number of GPUs that wait for one another, so that kernels in a step have the pace of the slowest."""
    arithmetic: float = 1.0
    """Factor on GEMMs, attention and experts: in a step they take longer than in a loop of themselves."""


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
        return machine(self.gpu, self.peak_dtype)

    def machine_for(self, family: KernelFamily) -> Machine:
        """The machine for the kernels of a family: at the tensor peak where one fit of the family holds for every format."""
        return machine(self.gpu) if family.any_format else self.machine

    def with_nothing_cached(self) -> Estimator:
        """The estimator of kernels whose operands are not in the last cache, as benchmarks with a cold cache time them."""
        return replace(self, gpu=replace(self.gpu, cache_bytes=0.0), best={})

    def estimate(self, kernel: Shape) -> Estimate:
        """The time of a kernel, with its fit, provenance and error."""
        return self.made(kernel)

    def made(self, kernel: Shape) -> Estimate:
        """The time of a kernel, or of a part of one."""
        family, dtype = families()[kernel.family], getattr(kernel, "dtype", "")
        if self.options.library == UNFUSED and (parts := family.unfused(kernel)):
            return together(f"{family.name}: {UNFUSED}", [self.made(part) for part in parts])
        estimator = replace(self, dtype=dtype) if dtype else self
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
        """The share of a kernel's time that it would not take in a burst."""
        short = replace(self, options=replace(self.options, launches=BURST))
        took_s, burst_s = (family.kernel_s(chosen.fit.constants, by, self.machine_for(family), kernel) for by in (self, short))
        return 1 - burst_s / took_s

    def selected(self, family: str, takes_s: Callable[[Constants], float] | None = None) -> SelectedFit:
        """The fit for a family of kernels; the library of the options counts only where the library has such kernels.

        In a step, arithmetic is slower on a board that draws less power than the measured one, and on the slowest of several. Of
        libraries in the profile of this GPU the fastest (by `takes_s`) is taken if none is named.
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
        """The fit for a family of kernels, as it holds at the limit of power of the board that was measured."""
        kernels = families()[family]
        dtype = "" if kernels.any_format else self.gemm_dtype
        library = LIBRARY_ALIASES.get(self.options.library, self.options.library)
        if library and library not in (*self.fits.libraries(family), *kernels.slower_libraries):
            library = ""
        rivals = [fit for fit in self.fits.profile if fit.family == family and _timed_as(fit, dtype)]
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
        """A quantity that was fitted beside kernels, or 0 without a fit of a GPU that runs the same kernels. What the host takes
        hardly depends on the GPU: where a shipped fit does not tell, it is the median of all that do. A user's own fit has it
        in its constants."""
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
