"""What a kernel takes on a GPU, by models whose constants were fitted to measured kernels, and how far to trust it.

A prediction says which fit it comes from, whether that was measured on this GPU or is borrowed from another, its relative
standard error, and whether the sizes lie beyond those that were measured. What nobody measured takes the usual constants, a
roofline with a launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..errors import UserError
from ..hardware.gpu import PEAK_OF, TENSOR_CORE_DTYPE, Gpu
from ..kernels import Attention, Gemm, Kernel, Part, Rowwise
from ..units import US_PER_S, ns
from .attention import HEAD_MULTIPLE, AttentionConstants, Heads, attention_s, unfused
from .gemm import GemmConstants, accumulation_s, gemm_s
from .machine import Machine, machine
from .moe import moe_s
from .rowwise import LOOKUPS, ONE_ID, RowwiseConstants, is_lookup, is_timed, lookup_s, pace_of, ratio_s, rowwise_s
from .shelf import FEW_ROWS, SHORT, SLOWER, UNFUSED, Chosen, Family, Fit, Provenance, Shelf, akin, choose, known_library

C = TypeVar("C", GemmConstants, AttentionConstants, RowwiseConstants)

USUAL_CONSTANTS: Mapping[Family, Any] = {
    "gemm": GemmConstants(),
    "moe": GemmConstants(),
    "rowwise": RowwiseConstants(),
}
"""Of kernels that nobody measured."""
PROVENANCES: tuple[Provenance, ...] = ("measured", "transferred", "roofline")
"""From the best word to the last."""
ROOFLINE_SIGMA = 0.4
BACKWARD_SIGMA = 0.1
"""What one ratio of backward to forward leaves open: it differs from width to width of the heads."""
ODD_SIGMA = 0.2
"""What heads leave open whose width is no multiple of 16: half of those that were measured are off by 4 to 13%."""
SIXTEEN_BITS, NARROW_PEAKS, NARROWEST = "bf16", ("fp8", "nvfp4"), "nvfp4"
NARROW_ATTENTION_SIGMA = 0.2
"""What attention in 8 bits leaves open that is told by that in 16: assumed, as none was measured."""
UNTIMED_BACKWARD_SIGMA = 0.2
"""The same of a ratio that was not fitted to rows of the GPU: of published ones for B200, half lie up to 27% lower or 16% higher
than their median, by the width of the heads."""
UNTIMED_SIGMA = 0.15
"""What a memory-bound operator leaves open whose time beside a plain one's is taken from other GPUs: with the error of the plain
one, 68% of all that were measured are off by less than 17%."""
BACKWARD_OPERATORS = (
    "layernorm", "softmax", "gelu", "relu", "truediv", f"{ONE_ID}embedding",
    "autograd_dropout", "autograd_tanh", "autograd_pow", "autograd_mul", "autograd_where",
)  # fmt: skip
ONE_OPERATOR = ("layernorm", "softmax", *(f"{name}_backward" for name in BACKWARD_OPERATORS))
FORMATS_OF_RATIOS = ("fp32", "tf32")
"""What an eager framework has as one operator too, bound by memory in these formats, in which the ratios that ship were
measured; in others by its threads. What autograd moves other bytes for has a name of its own (study/gpus/eager.py)."""
LOOKUP_SIGMA = 0.6
"""What look-ups leave open: 68% of those that were measured are off by less, and all by more than a fifth."""
WIDE, NARROW = 4, 2
"""Bytes of an element outside of products: in 32 bits, and in 16 whatever products run in."""
UNTOLD = {"batch": (1.0, 1.0)}
"""Sizes between which rows were measured where a fit does not tell: products one by one, and any of all others."""
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
    """Whether products in fp32 run as TF32."""
    accumulate: bool = True
    """Whether weight gradients are added to fp32 ones."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted time; `sigma` is its relative standard error."""

    seconds: float
    model: str
    provenance: Provenance
    sigma: float
    extrapolated: bool


@dataclass(frozen=True)
class Estimator:
    """Predicts kernels of one dtype on one GPU."""

    gpu: Gpu
    dtype: str
    shelf: Shelf
    options: Options = field(default_factory=Options)

    @property
    def product_dtype(self) -> str:
        """What products of the dtype run in."""
        tensor = TENSOR_CORE_DTYPE.get(self.dtype, self.dtype) if self.options.tensor_cores else self.dtype
        return tensor if tensor in self.gpu.peak_flop_per_s else self.dtype

    @property
    def peak_dtype(self) -> str:
        """The format whose peak that has."""
        return PEAK_OF.get(self.product_dtype, self.product_dtype)

    @property
    def machine(self) -> Machine:
        """The GPU at that peak; a dtype that it lacks is refused."""
        return machine(self.gpu, self.peak_dtype)

    def with_nothing_cached(self) -> Estimator:
        """The same for kernels whose operands are not in the last cache, as benchmarks with a cold cache time them."""
        return replace(self, gpu=replace(self.gpu, cache_bytes=0.0))

    def estimate(self, kernel: Kernel) -> Estimate:
        """The time of a kernel, and whose word it is."""
        if isinstance(kernel, Gemm):
            on = replace(self, dtype=kernel.dtype) if kernel.dtype else self
            return on.product(kernel, kernel.operand_bytes)
        if isinstance(kernel, Rowwise):
            return self._rowwise(kernel)
        return self._unfused(kernel) if self.options.library == UNFUSED else self._attention(kernel)

    def moe(self, tokens: int, hidden: int, expert: int, routing: tuple[int, int], width: float = 2) -> Estimate:
        """A fused feed-forward of experts of `expert` channels: `routing` is how many there are, and to how many a token goes."""
        chosen, c = self._constants("moe", GemmConstants())
        time = float(moe_s(c, self.machine, tokens, hidden, expert, routing, width=width))
        return self._said(time, "moe", chosen, {"m": tokens, "n": expert, "k": hidden})

    def cast_s(self, m: int, k: int, width: float) -> float:
        """What casting the first operand from 16 bits apart takes, as measured beside FP8 products."""
        chosen, _ = self._constants("gemm", GemmConstants())
        launch_us, passes = (chosen and chosen.fit.cast) or (0.0, 0.0)
        return self.gpu.site_scalar * (launch_us / US_PER_S + passes * m * k * (2 + width) / self.gpu.memory_bytes_per_s)

    def beside(self, name: str, family: Family = "gemm") -> float:
        """A number that was fitted beside kernels and is none of theirs, or 0: a fault of kernels that only some GPUs run."""
        chosen, _ = self._constants(family, USUAL_CONSTANTS[family])
        return chosen.fit.beside.get(name, 0.0) if chosen and self._is_akin(chosen) else 0.0

    def attention_fit(self) -> Fit | None:
        """The fit that speaks for attention, if that is of a GPU that runs the same kernels."""
        chosen, _ = self._attention_constants()
        return chosen.fit if chosen and self._is_akin(chosen) else None

    def _is_akin(self, chosen: Chosen) -> bool:
        return akin(self.gpu, self.shelf.gpus[chosen.owner])

    def product(self, kernel: Gemm, width: float, turns: int = 0) -> Estimate:
        """A matrix product of elements that may be narrower than a byte; `turns` as in `gemm_s`."""
        on, adds = self.machine, kernel.part is Part.WEIGHT_GRADIENT and self.options.accumulate

        def took_s(c: GemmConstants) -> float:
            time_s = float(gemm_s(c, on, kernel.m, kernel.n, kernel.k, kernel.batch, width=width, turns=turns))
            return time_s + float(accumulation_s(c, on, kernel.m, kernel.n)) * kernel.batch if adds else time_s

        chosen, c = self._constants("gemm", GemmConstants(), took_s)
        sizes = {"m": kernel.m, "n": kernel.n, "k": kernel.k, "batch": kernel.batch}
        said = self._said(took_s(c), "gemm", chosen, sizes)
        if chosen and chosen.provenance == "measured" and not _timed(chosen.fit, kernel.batch, adds=adds):
            return replace(said, provenance="transferred")
        return said

    def _attention(self, kernel: Attention) -> Estimate:
        on, backward = self.machine, kernel.part is not Part.FORWARD
        what = Heads(
            kernel.batch, kernel.seq, kernel.heads, kernel.kv_heads, kernel.head_dim, float(kernel.causal), kernel.prefix
        )

        def took_s(c: AttentionConstants, *, back: bool) -> float:
            return float(attention_s(c, on, what, width=kernel.element_bytes, backward=back))

        chosen, c = self._attention_constants(lambda c: took_s(c, back=False) + took_s(c, back=True))
        sizes = {"seq": kernel.seq, "lines": kernel.batch * kernel.heads, "head_dim": kernel.head_dim}
        said = self._said(took_s(c, back=backward), "attention backward" if backward else "attention", chosen, sizes)
        more = ODD_SIGMA if kernel.head_dim % HEAD_MULTIPLE else 0.0
        if backward:
            more = math.hypot(more, BACKWARD_SIGMA if chosen and chosen.fit.backward_rows else UNTIMED_BACKWARD_SIGMA)
            if chosen and not chosen.fit.backward_rows and said.provenance == "measured":
                said = replace(said, provenance="transferred")
        return replace(said, sigma=math.hypot(said.sigma, more))

    def _attention_constants(
        self, takes_s: Callable[[AttentionConstants], float] | None = None
    ) -> tuple[Chosen | None, AttentionConstants]:
        """The constants of attention; in 8 bits without rows of its own those of 16, whose exponentials take as long as before.
        In 4 bits nobody has attention."""
        chosen, c = self._constants("attention", AttentionConstants(), takes_s)
        if self.peak_dtype not in NARROW_PEAKS or (chosen and PEAK_OF.get(chosen.fit.dtype, chosen.fit.dtype) in NARROW_PEAKS):
            return chosen, c
        if self.peak_dtype == NARROWEST:
            raise UserError(f"no attention runs in {self.dtype}", hint="bf16, or fp8 where the GPU has it")
        faster = self.gpu.peak(self.peak_dtype) / self.gpu.peak(SIXTEEN_BITS)

        def narrow(wide: AttentionConstants) -> AttentionConstants:
            return replace(wide, exponential=wide.exponential * faster)

        sixteen = replace(self, dtype=SIXTEEN_BITS)
        chosen, c = sixteen._constants("attention", AttentionConstants(), takes_s and (lambda wide: takes_s(narrow(wide))))
        if chosen is None:
            return None, c
        sigma = math.hypot(chosen.sigma, NARROW_ATTENTION_SIGMA)
        return replace(chosen, provenance="transferred", sigma=sigma), narrow(c)

    def _unfused(self, kernel: Attention) -> Estimate:
        return together("attention: unfused", [self.estimate(part) for part in unfused(kernel)])

    def _rowwise(self, kernel: Rowwise) -> Estimate:
        chosen, c = self._constants("rowwise", RowwiseConstants())
        ratio = chosen.fit.ratios.get(kernel.op) if chosen and self._has_ratio(kernel.op, chosen) else None
        if chosen and ratio:
            time = float(ratio_s(c, machine(self.gpu), kernel.traffic_bytes, ratio[0]))
            said = self._said(time, kernel.op, _by_ratio(chosen, kernel), {"bytes": kernel.traffic_bytes})
            if self.dtype in FORMATS_OF_RATIOS or self._is_own(chosen):
                return said
            return replace(said, provenance="transferred", sigma=math.hypot(said.sigma, UNTIMED_SIGMA))
        wide = WIDE if self.dtype in ("fp32", "tf32") else NARROW
        on, pace = machine(self.gpu), pace_of(kernel.op, eager=self.options.eager, width=wide)
        if kernel.op in LOOKUPS:
            time = float(lookup_s(c, on, kernel.rows * kernel.columns, kernel.traffic_bytes, pace.kernels))
        else:
            time = float(rowwise_s(c, on, kernel.traffic_bytes, pace, kernel.columns))
        said = self._said(time, kernel.op, chosen, {"bytes": kernel.traffic_bytes})
        if is_lookup(kernel.op):
            said = replace(said, sigma=math.hypot(said.sigma, LOOKUP_SIGMA))
        if chosen is None or (is_timed(kernel.op) and chosen.fit.rows > 0):
            return said
        more = 0.0 if is_timed(kernel.op) else UNTIMED_SIGMA
        return replace(said, provenance="transferred", sigma=math.hypot(said.sigma, more))

    def owns(self, op: str) -> bool:
        """Whether a profile of this GPU tells how long a memory-bound operator takes."""
        chosen, _ = self._constants("rowwise", RowwiseConstants())
        return chosen is not None and self._is_own(chosen) and op in chosen.fit.ratios

    def _is_own(self, chosen: Chosen) -> bool:
        return chosen.fit in self.shelf.profile

    def _has_ratio(self, op: str, chosen: Chosen) -> bool:
        """Whether the ratios of a fit speak for an operator: all for fused ones; for eager ones those that ship where they were
        measured, and one's own but for what runs as several kernels."""
        if not self.options.eager:
            return True
        if self._is_own(chosen):
            return is_lookup(op) or pace_of(op, eager=True).kernels == 1
        return op in ONE_OPERATOR and self.dtype in FORMATS_OF_RATIOS

    def _constants(self, family: Family, usual: C, takes_s: Callable[[C], float] | None = None) -> tuple[Chosen | None, C]:
        """The constants for a family of kernels, from a fit if there is one; a library only where it has such kernels.

        Where nobody names a library, it is the fastest, by `takes_s`, of those that a profile of this GPU has.
        """
        dtype = "" if family == "rowwise" else self.product_dtype
        library = SHORT.get(self.options.library, self.options.library)
        if library not in (*self.shelf.libraries(family), *(SLOWER if family == "attention" else ())):
            library = ""
        rivals = self.shelf.rivals(family, dtype) if takes_s and not library else []
        if len(rivals) > 1:
            best = min(rivals, key=lambda fit: takes_s(fit.constants))  # type: ignore[arg-type, misc]
            return Chosen(best, self.gpu.name, "measured", best.sigma), best.constants  # type: ignore[return-value]
        chosen = choose(self.gpu, self.shelf, family, dtype, library)
        found = chosen.fit.constants if chosen else usual
        return chosen, found if isinstance(found, type(usual)) else usual

    def _said(self, time_s: float, what: str, chosen: Chosen | None, sizes: Mapping[str, float]) -> Estimate:
        """A time by some constants as it is on this machine, with whose word it is."""
        time_s *= self.gpu.site_scalar
        if chosen is None:
            return Estimate(time_s, f"{what}: usual constants", "roofline", ROOFLINE_SIGMA, True)
        fit = chosen.fit
        beyond, provenance = _beyond(fit.ranges, sizes), chosen.provenance
        if beyond and fit.lent_ranges is not None:
            beyond = not fit.lent_ranges or _beyond(fit.lent_ranges, sizes)
            provenance = "transferred"
        name = " ".join(word for word in (f"{what}:", fit.dtype, fit.library, f"of {chosen.owner}") if word)
        return Estimate(time_s, name, provenance, chosen.sigma * (BEYOND if beyond else 1.0), beyond)


def _beyond(ranges: Mapping[str, tuple[float, float]], sizes: Mapping[str, float]) -> bool:
    """Whether some size lies outside the measured ones."""
    spans = ((size, *ranges.get(name, UNTOLD.get(name, (0.0, math.inf)))) for name, size in sizes.items())
    return any(not low / STRETCH <= size <= high * STRETCH for size, low, high in spans)


def _by_ratio(chosen: Chosen, kernel: Rowwise) -> Chosen:
    """A fit as it speaks for an operator by its ratio: as surely as the rows of that tell, and at their sizes. That of a few rows
    is measured there only."""
    fit = chosen.fit
    sigma, told = fit.ratios[kernel.op][1], fit.ratio_rows.get(kernel.op)
    if told:
        few: dict[str, tuple[float, float]] | None = {} if told.rows < FEW_ROWS else None
        fit = replace(fit, ranges={"bytes": (told.least_bytes, told.most_bytes)}, lent_ranges=few)
        if kernel.traffic_bytes * STRETCH < told.least_bytes:
            sigma = max(sigma, told.smaller_sigma / BEYOND)
    return replace(chosen, fit=fit, sigma=math.hypot(chosen.lent_sigma, sigma))


def _timed(fit: Fit, batch: int, *, adds: bool) -> bool:
    """Whether a fit saw products of this kind: several at once or one, and added to a gradient in fp32 if this one is."""
    least, most = fit.ranges.get("batch", UNTOLD["batch"])
    return (most > 1 if batch > 1 else least <= 1) and (not adds or fit.backward_rows > 0)


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


def measured_cost(gpu: Gpu, dtype: str, shelf: Shelf, options: Options | None = None) -> PricedKernels:
    """The cost of kernels of one dtype on one GPU, by what was measured. A dtype it lacks is refused now."""
    options = options or Options()
    options = replace(options, library=known_library(options.library, shelf))
    gpu.matmul_peak(dtype)
    return PricedKernels(Estimator(gpu, dtype, shelf, options))
