"""The library of fits, and which of them is best for a GPU.

A GPU without a fit of its own borrows that of another that runs the same kernels (Ampere, Ada and workstation Blackwell on one
side; Hopper; data-centre Blackwell), of the one whose multiprocessors have nearest the same tensor peak; without any of those,
of the nearest. Constants are fractions of peaks, and times, so borrowing them scales them. What else scales them: how much of
its peaks each of the two is known to sustain (`kernels` in topologies/gpus), and what the family of the kernels says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import UserError, did_you_mean
from ...hardware.gpu import PEAK_OF, Gpu
from .family import ANY, Fit, KernelFamily, Provenance, Transfer, families
from .gpu_model import likeness, portable, same_kernels

FITTED_AS = {"fp16": "bf16", "tf32": "bf16", "mxfp8": "fp8"}
"""Dtypes whose kernels are those of another, at a peak of their own."""
SAME_SPEED = ("fp16", "bf16")
"""Those of them that are timed as one."""
USUAL = (ANY, "flash_attention", "fa3", "torch_flow")
"""Libraries in the order in which they are taken, nobody naming one: FlashAttention's design on Ampere, FlashAttention 3 on
Hopper, TensorRT-LLM's attention on Blackwell."""
SHORT = {
    "fa2": "flash_attention", "flash_attention_2": "flash_attention",
    "flash_attention_3": "fa3", "flash_attention_v3": "fa3", "flash_attn": "flash_attention", "flash_attn_2": "flash_attention",
    "flash_attn_3": "fa3", "cudnn": "torch_flow",
}  # fmt: skip
"""Other names of libraries; NVIDIA's own kernels were measured in TensorRT-LLM."""
BORROWED_SIGMA, SAME_KERNELS_SIGMA = 0.1, 0.15
"""What borrowing adds to the error: from a board of the same multiprocessors and memory, and from a GPU that runs the same
kernels on others (both assumed: none was measured). From one that does not, `far_sigma` of the family."""
ROOFLINE_SIGMA = 0.4
"""Error of the usual constants of a family, where nobody measured it."""
UNFUSED = "unfused"
"""Attention as two GEMMs with a softmax between them: no library of its own."""
AMPERE_ON_LATER = 0.45
"""Attention written for Ampere's tensor cores, on those of Hopper and data-centre Blackwell: FlashAttention 2 sustains 326 of
989 TFLOP/s on an H100 (the reference notes on measured kernels), where it is 73% of the peak of an A100 (arXiv 2307.08691)."""
GENERATION = 0.5
"""How far apart, in `likeness`, generations of tensor cores are at least."""
SISTERS = 0.1
"""How far apart two boards of one kind are at most."""
PLAIN = "bf16"
WIDER = ("", "fp32", "tf32")
FEW_ROWS = 4
"""Fewer rows than that are no fit: they scale one, and are measured at their own sizes only."""


@dataclass(frozen=True, slots=True)
class FitLibrary:
    """All fits, by the name of the GPU, and the GPUs that they belong to."""

    fits: Mapping[str, Sequence[Fit]]
    gpus: Mapping[str, Gpu]
    profile: Sequence[Fit] = ()
    """Those of them that come from the profile of the GPU that is asked about: what its owner measured."""

    def rivals(self, family: str, dtype: str) -> list[Fit]:
        """The fits of the profile among which nobody has chosen: one for each library."""
        return [fit for fit in self.profile if fit.family == family and _timed_as(fit, dtype)]

    def libraries(self, family: str) -> tuple[str, ...]:
        """The libraries of which kernels of a family were measured."""
        return _libraries((fit for fits in self.fits.values() for fit in fits), family)

    def own_libraries(self, family: str) -> tuple[str, ...]:
        """Those of them that the profile has."""
        return _libraries(self.profile, family)


@dataclass(frozen=True, slots=True)
class SelectedFit:
    """A fit that was selected for a GPU, and where it comes from."""

    fit: Fit
    owner: str
    provenance: Provenance
    sigma: float
    borrowed_sigma: float = 0.0
    """The share of `sigma` that borrowing added."""


def best_fit_for(gpu: Gpu, library: FitLibrary, family: str, dtype: str = "", named: str = "") -> SelectedFit:
    """The fit for a family of kernels on a GPU: its own, or that of the GPU most like it; the usual constants without any.

    Where a library that is `named` has no fit in a format, that of others stands in for it.
    """
    kernels = families()[family]
    named, times = kernels.slower_libraries.get(named, (SHORT.get(named, named), 1.0))
    wanted = FITTED_AS.get(dtype, dtype)
    known = [(owner, fit) for owner, fits in library.fits.items() for fit in fits]
    fitting = [
        (owner, fit)
        for owner, fit in known
        if fit.family == family and _fits_format(fit, kernels, wanted, (gpu, library.gpus[owner]))
    ]
    unfitted = named not in {fit.library for _, fit in fitting}
    another = bool(named) and (unfitted or _runs_others(gpu, library, kernels, named))
    usable = [(owner, fit) for owner, fit in fitting if another or named in ("", fit.library)]
    if not usable:
        return SelectedFit(Fit(family, "", "", kernels.constants(), ROOFLINE_SIGMA, {}), "", "roofline", ROOFLINE_SIGMA)

    def order(found: tuple[str, Fit]) -> tuple[float, ...]:
        owner, fit = found
        place = USUAL.index(fit.library) if fit.library in USUAL else len(USUAL)
        other, others = library.gpus[owner], fit.dtype not in ("", wanted)
        far = abs(likeness(other) - likeness(gpu))
        return owner != gpu.name, not same_kernels(gpu, other), others, other.architecture != gpu.architecture, far, place

    owner, fit = min(usable, key=order)
    owning = library.gpus[owner]
    ported = fit.library in kernels.for_ampere and likeness(gpu) - likeness(owning) > GENERATION
    slower = (1.0 if another else times) / (AMPERE_ON_LATER if ported else 1.0)
    everything = [(library.gpus[name], each) for name, each in known]
    made = fit if owner == gpu.name else kernels.transferred(fit, Transfer(owning, gpu, wanted, ported, everything))
    made = made if slower == 1 else replace(made, constants=kernels.slower_library(made.constants, slower))
    if owner == gpu.name and slower == 1 and _timed_as(fit, dtype) and not another:
        return SelectedFit(made, owner, "measured", fit.sigma)
    borrowed = _borrowed_sigma(gpu, owning, kernels)
    return SelectedFit(made, owner, "transferred", math.hypot(fit.sigma, borrowed), borrowed)


def _libraries(fits: Iterable[Fit], family: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fit.library for fit in fits if fit.family == family and fit.library not in ("", ANY)))


def _runs_others(gpu: Gpu, library: FitLibrary, kernels: KernelFamily, named: str) -> bool:
    """Whether a library was measured on GPUs only that run other kernels, while others were on some that run the same: it does
    not run here, or not with those kernels. Kernels of Ampere run on everything later.
    """
    if named in kernels.for_ampere:
        return False
    near = [fits for owner, fits in library.fits.items() if same_kernels(gpu, library.gpus[owner])]
    found = [fit.library for fits in near for fit in fits if fit.family == kernels.name]
    return bool(found) and named not in found


def _timed_as(fit: Fit, dtype: str) -> bool:
    """Whether kernels of a format are those that were measured, and not only like them."""
    return fit.dtype in ("", dtype) or (dtype in SAME_SPEED and fit.dtype in SAME_SPEED)


def _fits_format(fit: Fit, kernels: KernelFamily, wanted: str, gpus: tuple[Gpu, Gpu]) -> bool:
    """Whether a fit to one format stands in for another on a GPU (the first; the other is its owner): its own, and 16 bits for
    narrower ones where kernels are portable, or the family's are alike.
    """
    narrower = PEAK_OF.get(wanted, wanted) in gpus[0].peak_flop_per_s and wanted not in WIDER
    others = fit.dtype == PLAIN and narrower and (kernels.narrower or portable(*gpus))
    return fit.dtype in ("", wanted) or others


def _borrowed_sigma(gpu: Gpu, owner: Gpu, kernels: KernelFamily) -> float:
    """What borrowing adds to the error."""
    alike = abs(likeness(gpu) - likeness(owner)) < SISTERS and gpu.kernels.memory_fraction == owner.kernels.memory_fraction
    return BORROWED_SIGMA if alike else SAME_KERNELS_SIGMA if same_kernels(gpu, owner) else kernels.far_sigma


def known_library(name: str, library: FitLibrary) -> str:
    """A library by name, refused if no kernel of it was measured; nothing stays nothing."""
    slower = families()["attention"].slower_libraries
    known = dict.fromkeys((*library.libraries("gemm"), *library.libraries("attention"), *SHORT, *slower, UNFUSED))
    plain = name.strip().lower().replace("-", "_")
    if plain and plain not in known:
        raise UserError(f"no kernels of library {name!r} were measured", hint=did_you_mean(plain, known))
    return SHORT.get(plain, plain)
