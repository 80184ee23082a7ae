"""Fits on a shelf, and which of them speaks for a GPU.

A GPU without a fit of its own borrows that of the GPU most like it: the one whose multiprocessors have nearest the same
tensor peak, which tells generations apart (Ampere, Ada and workstation Blackwell on one side; Hopper; data-centre Blackwell).
Constants are fractions of peaks, and times, so borrowing them scales them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import UserError, did_you_mean
from ..hardware.gpu import Gpu
from .attention import AttentionConstants
from .gemm import GemmConstants
from .rowwise import RowwiseConstants

Family = Literal["gemm", "moe", "attention", "rowwise"]
Provenance = Literal["measured", "transferred", "roofline"]
Constants = GemmConstants | AttentionConstants | RowwiseConstants

ANY = "any"
"""The library of a fit to the rows of all of them."""
FITTED_AS = {"fp16": "bf16", "tf32": "bf16", "mxfp8": "fp8"}
"""Dtypes whose kernels are those of another, at a peak of their own."""
USUAL = (ANY, "flash_attention", "fa3", "torch_flow")
"""Libraries in the order in which they are taken, nobody naming one: FlashAttention's design on Ampere, FlashAttention 3 on
Hopper, TensorRT-LLM's attention on Blackwell."""
SHORT = {"fa2": "flash_attention", "flash_attention_2": "flash_attention", "flash_attention_3": "fa3", "cudnn": "torch_flow"}
"""Other names of libraries; NVIDIA's own kernels were measured in TensorRT-LLM."""
SLOWER = {"fa1": ("flash_attention", 1.7)}
"""Libraries that are known by how much slower they are than one that was measured: FlashAttention 1 than 2, as its second
paper (arXiv 2307.08691) shows and runs of 2023 confirm."""
LENT_SIGMA = 0.1
LENT_AFAR_SIGMA = {"gemm": 0.15, "moe": 0.3, "attention": 0.4, "rowwise": 0.15}
"""What lending adds to the error, within a generation (H100 to H200: 6% for products) and to another: results/kernels/report.md,
one GPU left out."""
UNFUSED = "unfused"
"""Attention as two products with a softmax between them: no library of its own."""
FOR_AMPERE = ("flash_attention", "vllm_flash_attn")
AMPERE_ON_LATER = 0.57
"""Attention written for Ampere's tensor cores, on those of Hopper and data-centre Blackwell: FlashAttention 2 sustains 326
TFLOP/s on an H100 where 3 does 570 (the reference notes on measured kernels)."""
GENERATION = 0.5
"""How far apart, in `likeness`, generations of tensor cores are at least."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants fitted to one family of kernels of one dtype and library on one GPU."""

    family: Family
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
    """What an unfused cast of the first operand added to the measured products: microseconds, and passes over its bytes."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """All fits, by the name of the GPU, and the GPUs that they belong to."""

    fits: Mapping[str, Sequence[Fit]]
    gpus: Mapping[str, Gpu]

    def libraries(self, family: Family) -> tuple[str, ...]:
        """The libraries of which kernels of a family were measured."""
        found = (fit.library for fits in self.fits.values() for fit in fits if fit.family == family)
        return tuple(dict.fromkeys(library for library in found if library not in ("", ANY)))


@dataclass(frozen=True, slots=True)
class Chosen:
    """A fit, and how it came to speak for a GPU."""

    fit: Fit
    owner: str
    provenance: Provenance
    sigma: float


def likeness(gpu: Gpu) -> float:
    """The logarithm of the tensor peak of a multiprocessor."""
    return math.log(gpu.matmul_peak("fp16") / gpu.sms)


def choose(gpu: Gpu, shelf: Shelf, family: Family, dtype: str = "", library: str = "") -> Chosen | None:
    """The fit that speaks for a family of kernels on a GPU: its own, or that of the GPU most like it; None without any."""
    library, times = SLOWER.get(library, (SHORT.get(library, library), 1.0))
    wanted = FITTED_AS.get(dtype, dtype)
    usable = [
        (owner, fit)
        for owner, fits in shelf.fits.items()
        for fit in fits
        if fit.family == family and fit.dtype in ("", wanted) and (not library or fit.library == library)
    ]
    if not usable:
        return None

    def order(found: tuple[str, Fit]) -> tuple[bool, float, int]:
        owner, fit = found
        place = USUAL.index(fit.library) if fit.library in USUAL else len(USUAL)
        return owner != gpu.name, abs(likeness(shelf.gpus[owner]) - likeness(gpu)), place

    owner, fit = min(usable, key=order)
    newer = likeness(gpu) - likeness(shelf.gpus[owner])
    slower = times / (AMPERE_ON_LATER if fit.library in FOR_AMPERE and newer > GENERATION else 1.0)
    fit = replace(fit, constants=_slower(fit.constants, slower))
    if owner == gpu.name and slower == 1:
        return Chosen(fit, owner, "measured", fit.sigma)
    lent = LENT_AFAR_SIGMA[family] if abs(newer) > GENERATION else LENT_SIGMA
    return Chosen(fit, owner, "transferred", math.hypot(fit.sigma, lent))


def _slower(constants: Constants, times: float) -> Constants:
    """Attention whose arithmetic takes so many times longer; other kernels as they are."""
    if not isinstance(constants, AttentionConstants) or times == 1:
        return constants
    return replace(constants, compute=constants.compute / times, exponential=constants.exponential * times)


def known_library(name: str, shelf: Shelf) -> str:
    """A library by name, refused if no kernel of it was measured; nothing stays nothing."""
    known = dict.fromkeys((*shelf.libraries("gemm"), *shelf.libraries("attention"), *SHORT, *SLOWER, UNFUSED))
    plain = name.strip().lower().replace("-", "_")
    if plain and plain not in known:
        raise UserError(f"no kernels of library {name!r} were measured", hint=did_you_mean(plain, known))
    return SHORT.get(plain, plain)
