"""Choice of the fit for a kernel on a GPU: its own, that of the most similar GPU, or the default constants of its family.

A GPU without a fit of its own borrows the fit of a GPU that runs the same kernels (Ampere, Ada and workstation Blackwell form one
group; Hopper; data-centre Blackwell), namely the GPU with the nearest tensor peak per multiprocessor; without a GPU that runs the
same kernels, the nearest of all GPUs. Constants are fractions of peaks, and times, so that they scale with the peaks. Further
scaling follows the fraction of its peaks that each of the two GPUs sustains (`kernels` in topologies/gpus), and the family.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import UserError, did_you_mean
from ...hardware.gpu import PEAK_OF, Gpu
from ...kernels import UNFUSED
from .family import ANY, WITHOUT_TENSOR_CORES, Fit, KernelFamily, Provenance, Transfer, families
from .gpu_model import HALVES, architecture, is_slot_powered, same_kernels, similarity

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
its rows have an error below 0.37, to which the fits add 0.15. The rows were timed in eager PyTorch on hosts of several speeds,
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

    def has(self, family: str, named: str) -> bool:
        """Whether kernels of a family were measured in a library with this name."""
        return any(named in libraries_of(fits, family) for fits in self.fits.values())


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
    its_own = _has_its_own(gpu, library, kernels, wanted, named)
    owners = [gpu.name] if its_own else list(library.fits)
    known = [(owner, fit) for owner in owners for fit in library.fits[owner]]
    formats = {owner: _formats(wanted, kernels, gpu, library.gpus[owner]) for owner in owners}
    fitting = [(owner, fit) for owner, fit in known if fit.family == family and fit.dtype in formats[owner]]
    unfitted = named not in {fit.library for _, fit in fitting}
    own = [fit.library for owner, fit in fitting if owner == gpu.name]
    unnamed = not kernels.names_libraries and bool(own) and named not in own
    another = bool(named) and not its_own and (unfitted or unnamed or _runs_others(gpu, library, kernels, named))
    usable = [(owner, fit) for owner, fit in fitting if another or named in ("", fit.library)]
    if not usable:
        return SelectedFit(Fit(family, "", "", kernels.constants(), ROOFLINE_SIGMA, {}), "", "roofline", ROOFLINE_SIGMA)

    def order(found: tuple[str, Fit]) -> tuple[float, ...]:
        owner, fit = found
        place = PREFERRED_LIBRARIES.index(fit.library) if fit.library in PREFERRED_LIBRARIES else len(PREFERRED_LIBRARIES)
        if fit.library in kernels.for_ampere and architecture(gpu).kernels not in ("", "ampere"):
            place = len(PREFERRED_LIBRARIES)  # later generations have their own kernels, which training takes by default
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
    if owner == gpu.name and slower == 1 and timed_as(fit, dtype) and not another:
        return SelectedFit(made, owner, "measured", fit.sigma)
    sisters = (
        abs(similarity(gpu) - similarity(owning)) < SISTER_DISTANCE
        and gpu.kernels.memory_fraction == owning.kernels.memory_fraction
    )
    far_sigma = max(kernels.far_sigma, PLAIN_SIGMA) if wanted == WITHOUT_TENSOR_CORES else kernels.far_sigma
    borrowed = BORROWED_SIGMA if sisters else SAME_KERNELS_SIGMA if same_kernels(gpu, owning) else far_sigma
    return SelectedFit(made, owner, "transferred", math.hypot(fit.sigma, borrowed), borrowed)


def _has_its_own(gpu: Gpu, library: FitLibrary, kernels: KernelFamily, wanted: str, named: str) -> bool:
    """Whether a GPU has its own fit for a format and a library, so that fits of other GPUs are not considered."""
    if gpu.name not in library.fits or not same_kernels(gpu, library.gpus[gpu.name]):
        return False
    formats = _formats(wanted, kernels, gpu, library.gpus[gpu.name])
    own = (fit for fit in library.fits[gpu.name] if fit.family == kernels.name and fit.dtype in formats)
    return any(named in ("", fit.library) for fit in own)


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


def timed_as(fit: Fit, dtype: str) -> bool:
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
    others = *LIBRARY_ALIASES, *LIBRARY_ALIASES.values(), *families()["attention"].slower_libraries, UNFUSED
    plain = name.strip().lower().replace("-", "_")
    if plain and plain not in others:
        known = dict.fromkeys((*library.libraries("gemm"), *library.libraries("attention"), *others))
        if plain not in known:
            raise UserError(f"no kernels of library {name!r} were measured", hint=did_you_mean(plain, known))
    return LIBRARY_ALIASES.get(plain, plain)
