"""Fits on a shelf, and which of them speaks for a GPU.

A GPU without a fit of its own borrows that of another that runs the same kernels (Ampere, Ada and workstation Blackwell on one
side; Hopper; data-centre Blackwell), of the one whose multiprocessors have nearest the same tensor peak; without any of those,
of the nearest. Constants are fractions of peaks, and times, so borrowing them scales them. What else scales them: how much of
its peaks each of the two is known to sustain (`kernels` in topologies/gpus), how long exponentials take a multiprocessor beside
its tensor cores, and how much of an inner dimension goes by in the cycles that it takes to fill a tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..errors import UserError, did_you_mean
from ..hardware.gpu import PEAK_OF, Gpu
from .attention import AttentionConstants
from .gemm import GemmConstants
from .machine import UNKNOWN, architecture, clock_per_s, tensor_peak
from .rowwise import RowwiseConstants

Family = Literal["gemm", "moe", "attention", "rowwise"]
Provenance = Literal["measured", "transferred", "roofline"]
Constants = GemmConstants | AttentionConstants | RowwiseConstants

ANY = "any"
"""The library of a fit to the rows of all of them."""
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
SLOWER = {"fa1": ("flash_attention", 1.7)}
"""Libraries that are known by how much slower they are than one that was measured: FlashAttention 1 than 2, as its second
paper (arXiv 2307.08691) shows and runs of 2023 confirm."""
LENT_SIGMA, KIN_SIGMA = 0.1, 0.15
LENT_AFAR_SIGMA = {"gemm": 0.15, "moe": 0.3, "attention": 0.4, "rowwise": 0.15}
"""What lending adds to the error: to a sister of the same multiprocessors and memory, to a GPU that runs the same kernels
on others (both assumed: none was measured), and to one that does not, as results/kernels/report.md finds it, one GPU left out."""
UNFUSED = "unfused"
"""Attention as two products with a softmax between them: no library of its own."""
FOR_AMPERE = ("flash_attention", "vllm_flash_attn")
AMPERE_ON_LATER = 0.45
"""Attention written for Ampere's tensor cores, on those of Hopper and data-centre Blackwell: FlashAttention 2 sustains 326 of
989 TFLOP/s on an H100 (the reference notes on measured kernels), where it is 73% of the peak of an A100 (arXiv 2307.08691)."""
GENERATION = 0.5
"""How far apart, in `likeness`, generations of tensor cores are at least."""
SISTERS = 0.1
"""How far apart two boards of one kind are at most."""
PORTABLE = "ampere"
"""The generation whose kernels are written for warps, and run in every format of those that came after it."""
PLAIN = "bf16"
WIDER = ("", "fp32", "tf32")
EXPONENTIAL_SHARE = 2 / 3
"""Of the time that a score costs beside its products, at 16 exponentials a cycle: .58 to .72 of what is fitted to A100, H100 and
B200. The rest is scaling, maxima and sums."""
CAST_PASSES, CAST_CYCLE_BYTES = 1.84, 20.7
"""A cast reads 16 bits for the maximum, reads them again and writes 8: 5 bytes for 3, at nine tenths of the rate. Together with
so many bytes in a cycle of a multiprocessor that gives what was taken apart on both H100 and B200."""
SPILL_US, UNFILLED_SAVES, UNFILLED_GB, LINEAR_US = "spill_us", "unfilled_saves", "unfilled_gb", "linear_us"
OPERATOR_US, HANDED_ON_US = "operator_us", "handed_on_us"
CACHE_US, CACHE_PASSES, PAGED = "cache_us", "cache_passes", "paged"
BESIDE = (SPILL_US, UNFILLED_SAVES, UNFILLED_GB, LINEAR_US)
"""What was timed with products and is none of theirs: microseconds that a step of 128 of the inner dimension takes longer in
kernels whose tile is too wide (study/calibrate/deep_gemm.py); the share of time that weights full of zeros save, and the size of
weights of which half are (study/calibrate/unfilled.py); microseconds that an eager linear layer takes longer to launch than a
batch of products."""
BESIDE_ROWWISE = (OPERATOR_US, HANDED_ON_US)
"""The same of memory-bound operators that were timed one by one: microseconds that the framework takes around one, and around one
that launches nothing, as an addition's backward pass that hands its gradient on (study/gpus/eager.py)."""
FEW_ROWS = 4
"""Fewer rows than that are no fit: they scale one, and are measured at their own sizes only."""
BESIDE_ATTENTION = (CACHE_US, CACHE_PASSES, PAGED)
"""The same of attention in inference frameworks: microseconds of writing keys and values to a cache, passes over the bytes that
this reads and writes, and how many times longer the kernel takes that reads them there (study/calibrate/cached.py)."""
MOST = 0.99
"""Of a peak: no fraction becomes more by being scaled."""


@dataclass(frozen=True, slots=True)
class RatioRows:
    """What the ratio of an operator to a pointwise kernel is told by: rows so large that they hardly wait for a launch."""

    least_bytes: float
    most_bytes: float
    rows: int
    smaller_sigma: float
    """Relative error that 68% of the rows that were smaller stay below; 0 if there were none."""


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
    backward_rows: int = 0
    """Rows of attention's backward pass, or of products that are added to a gradient, among those that were fitted."""
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of operators that were measured themselves: how much longer they take than a pointwise kernel of the same bytes, and the
    relative error of that."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """What else was timed with the products and is none of theirs, by the names of `BESIDE`, or with memory-bound operators."""
    ratio_rows: Mapping[str, RatioRows] = field(default_factory=dict)
    """Of ratios that somebody's own rows tell, which rows."""
    lent_ranges: Mapping[str, tuple[float, float]] | None = None
    """Of what was scaled to a few rows, the sizes that the fit before it was measured between: there it is transferred."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """All fits, by the name of the GPU, and the GPUs that they belong to."""

    fits: Mapping[str, Sequence[Fit]]
    gpus: Mapping[str, Gpu]
    profile: Sequence[Fit] = ()
    """Those of them that come from the profile of the GPU that is asked about: what its owner measured."""

    def rivals(self, family: Family, dtype: str) -> list[Fit]:
        """The fits of the profile among which nobody has chosen: one for each library."""
        return [fit for fit in self.profile if fit.family == family and _timed_as(fit, dtype)]

    def libraries(self, family: Family) -> tuple[str, ...]:
        """The libraries of which kernels of a family were measured."""
        found = (fit.library for fits in self.fits.values() for fit in fits if fit.family == family)
        return tuple(dict.fromkeys(library for library in found if library not in ("", ANY)))

    def own_libraries(self, family: Family) -> tuple[str, ...]:
        """Those of them that the profile has."""
        return tuple(dict.fromkeys(fit.library for fit in self.profile if fit.family == family and fit.library not in ("", ANY)))


@dataclass(frozen=True, slots=True)
class Chosen:
    """A fit, and how it came to speak for a GPU."""

    fit: Fit
    owner: str
    provenance: Provenance
    sigma: float
    lent_sigma: float = 0.0
    """Of that, what lending added."""


def likeness(gpu: Gpu) -> float:
    """The logarithm of the tensor peak of a multiprocessor."""
    return math.log(tensor_peak(gpu) / gpu.sms)


def choose(gpu: Gpu, shelf: Shelf, family: Family, dtype: str = "", library: str = "") -> Chosen | None:
    """The fit that speaks for a family of kernels on a GPU: its own, or that of the GPU most like it; None without any.

    Where a library has no fit in a format, that of others is lent to it.
    """
    library, times = SLOWER.get(library, (SHORT.get(library, library), 1.0))
    wanted = FITTED_AS.get(dtype, dtype)
    speaking = [
        (owner, fit)
        for owner, fits in shelf.fits.items()
        for fit in fits
        if fit.family == family and _fits_format(fit, wanted, gpu, shelf.gpus[owner])
    ]
    unfitted = library not in {fit.library for _, fit in speaking}
    another = bool(library) and (unfitted or _runs_others(gpu, shelf, family, library))
    usable = [(owner, fit) for owner, fit in speaking if another or library in ("", fit.library)]
    if not usable:
        return None

    def order(found: tuple[str, Fit]) -> tuple[float, ...]:
        owner, fit = found
        place = USUAL.index(fit.library) if fit.library in USUAL else len(USUAL)
        other, others = shelf.gpus[owner], fit.dtype not in ("", wanted)
        far = abs(likeness(other) - likeness(gpu))
        return owner != gpu.name, not akin(gpu, other), others, other.architecture != gpu.architecture, far, place

    owner, fit = min(usable, key=order)
    newer = likeness(gpu) - likeness(shelf.gpus[owner])
    ported = fit.library in FOR_AMPERE and newer > GENERATION
    lent = fit if owner == gpu.name else _lent(fit, shelf.gpus[owner], gpu, wanted, ported=ported)
    slower = (1.0 if another else times) / (AMPERE_ON_LATER if ported else 1.0)
    lent = replace(lent, constants=_slower(lent.constants, slower))
    if owner != gpu.name and family == "gemm":
        lent = replace(lent, cast=_cast(gpu, shelf, owner, wanted))
    if owner == gpu.name and slower == 1 and _timed_as(fit, dtype) and not another:
        return Chosen(lent, owner, "measured", fit.sigma)
    doubt = _doubt(gpu, shelf.gpus[owner], family)
    return Chosen(lent, owner, "transferred", math.hypot(fit.sigma, doubt), doubt)


def akin(one: Gpu, other: Gpu) -> bool:
    """Whether two GPUs run the same kernels."""
    mine = architecture(one).kernels
    return mine == architecture(other).kernels and (bool(mine) or one.architecture == other.architecture != "")


def _runs_others(gpu: Gpu, shelf: Shelf, family: Family, library: str) -> bool:
    """Whether a library was measured, on GPUs that are not akin only, while others were on some that are: it does not run here,
    or not with those kernels. Kernels of Ampere run on everything later.
    """
    if library in FOR_AMPERE:
        return False
    kin = [fits for owner, fits in shelf.fits.items() if akin(gpu, shelf.gpus[owner])]
    found = [fit.library for fits in kin for fit in fits if fit.family == family]
    return bool(found) and library not in found


def _timed_as(fit: Fit, dtype: str) -> bool:
    """Whether kernels of a format are those that were measured, and not only like them."""
    return fit.dtype in ("", dtype) or (dtype in SAME_SPEED and fit.dtype in SAME_SPEED)


def _fits_format(fit: Fit, wanted: str, gpu: Gpu, owner: Gpu) -> bool:
    """Whether a fit to one format speaks for another: its own, and 16 bits for narrower ones where kernels are portable, or
    those of experts.
    """
    narrower = PEAK_OF.get(wanted, wanted) in gpu.peak_flop_per_s and wanted not in WIDER
    others = fit.dtype == PLAIN and narrower and (fit.family == "moe" or _portable(gpu, owner))
    return fit.dtype in ("", wanted) or others


def _portable(gpu: Gpu, owner: Gpu) -> bool:
    return architecture(gpu).kernels == architecture(owner).kernels == PORTABLE


def _cast(gpu: Gpu, shelf: Shelf, owner: str, dtype: str) -> tuple[float, float] | None:
    """What a cast to a format takes, from where it was measured: there, or else on the GPU most like this one."""
    found = [(name, fit.cast) for name, fits in shelf.fits.items() for fit in fits if fit.dtype == dtype and fit.cast]
    if not found:
        return None
    near = min(found, key=lambda one: (one[0] != owner, abs(likeness(shelf.gpus[one[0]]) - likeness(gpu))))
    name, (launch_us, passes) = near
    return launch_us, max(1.0, passes * _cast_passes(gpu) / _cast_passes(shelf.gpus[name]))


def _cast_passes(gpu: Gpu) -> float:
    """How often an unfused cast moves its bytes: what it needs, and the time of its threads in terms of the memory's rate."""
    return CAST_PASSES + gpu.memory_bytes_per_s / (CAST_CYCLE_BYTES * gpu.sms * clock_per_s(gpu))


def _doubt(gpu: Gpu, owner: Gpu, family: Family) -> float:
    """What lending adds to the error."""
    alike = abs(likeness(gpu) - likeness(owner)) < SISTERS and gpu.kernels.memory_fraction == owner.kernels.memory_fraction
    return LENT_SIGMA if alike else KIN_SIGMA if akin(gpu, owner) else LENT_AFAR_SIGMA[family]


def _lent(fit: Fit, owner: Gpu, gpu: Gpu, dtype: str, *, ported: bool) -> Fit:
    """A fit to one GPU for another."""
    compute, memory = _sustained(gpu, owner)
    c = fit.constants
    if isinstance(c, RowwiseConstants):
        return replace(fit, constants=replace(c, stream=_scaled(c.stream, memory))) if akin(gpu, owner) else fit
    computed, moved = _scaled(c.compute, compute), _scaled(c.memory, memory)
    if isinstance(c, GemmConstants):
        cycles = _flop_per_cycle(gpu, dtype) / _flop_per_cycle(owner, fit.dtype) if _portable(gpu, owner) else 1.0
        return replace(fit, constants=replace(c, compute=computed, memory=moved, ramp=c.ramp * cycles))
    sooner = 1.0 if ported else _flop_per_score(gpu) / _flop_per_score(owner)
    return replace(fit, constants=replace(c, compute=computed, memory=moved, exponential=c.exponential * sooner))


def _scaled(fraction: float, times: float) -> float:
    """A fraction of a peak so many times as large; one that was fitted above `MOST` stays where it is."""
    return min(max(MOST, fraction), fraction * times)


def _sustained(gpu: Gpu, owner: Gpu) -> tuple[float, float]:
    """How much of its peaks of arithmetic and of memory a GPU sustains for what another does."""
    mine, others = gpu.kernels, owner.kernels
    return mine.compute_fraction / others.compute_fraction, mine.memory_fraction / others.memory_fraction


def _flop_per_cycle(gpu: Gpu, dtype: str) -> float:
    """What the tensor cores of a multiprocessor do in a cycle, a power of two: peaks are stated at lower clocks."""
    peak = gpu.peak_flop_per_s.get(PEAK_OF.get(dtype, dtype)) or tensor_peak(gpu)
    return float(2 ** round(math.log2(peak / gpu.sms / clock_per_s(gpu))))


def _flop_per_score(gpu: Gpu) -> float:
    """What tensor cores would do while a score is made a weight: its exponential, and what is computed around that."""
    built = architecture(gpu)
    exponential, around = UNKNOWN.exponentials / built.exponentials, UNKNOWN.lanes / built.lanes
    return _flop_per_cycle(gpu, "fp16") * (EXPONENTIAL_SHARE * exponential + (1 - EXPONENTIAL_SHARE) * around)


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
