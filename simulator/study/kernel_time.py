"""Time of one kernel: the kernel that a user describes by options, its shape, and its predicted time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict, Unpack

from ..config import shipped_fits
from ..costs.kernels import rowwise
from ..costs.kernels.estimator import Estimator, together
from ..costs.kernels.estimator import Options as Software
from ..costs.kernels.family import BURST, LAUNCHES, Estimate, families
from ..costs.kernels.fit_choice import known_library
from ..errors import UserError, did_you_mean, in_one_go, shown
from ..escape import Summarised
from ..kernels import UNFUSED, Experts, Rowwise, Shape
from ..measurements.kernel_words import (
    ATTENTIONS,
    EXPERTS,
    GEMMS,
    GEMMS_BACKWARD,
    KNOWN,
    PASSES,
    WIDTH,
    attention_of,
    bytes_per_element,
    gemms_of,
    is_backward,
    table_name,
    workload_name,
)
from ..units import GB, TFLOP, US_PER_S
from . import legal_values
from .legal_values import MOST_SCALAR, MOST_SIZE, Legal, count, factor_to, of_type

HEAD_DIM = 128
FLAGS = {
    **{name: f"-{name}" for name in ("m", "n", "k")},
    **{name: f"--{name.replace('_', '-')}" for name in ("seq", "heads", "kv_heads", "head_dim")},
    "causal": "--causal/--full", "top_k": "--top-k", "library": "--library", "eager": "--eager",
}  # fmt: skip
"""Options that describe a kernel, in the form of the command line."""
OPTIONS_OF = {
    "gemm": ("m", "n", "k", "library"),
    "moe": ("m", "n", "k", "top_k"),
    "attention": ("seq", "heads", "kv_heads", "head_dim", "causal", "library"),
    "rowwise": ("m", "n", "eager"),
}
"""The options of each family of kernels."""
MEANINGS = {
    **dict.fromkeys(("matmul", "mm", "linear", "dense", "sgemm", "hgemm"), "gemm"),
    **dict.fromkeys(("sdpa", "mha", "flash_attention", "flash"), "attention"),
    **dict.fromkeys(("optimizer", "optimizer_step"), "adam"),
}
"""Names of kernels in other programs that look different from ours."""
SIZES = ("m", "n", "k", "seq", "heads", "kv_heads", "head_dim", "top_k")
LEGAL: Mapping[str, Legal] = {
    "op": of_type(str, "is not a name", "such as gemm"),
    "gpu": of_type(str, "is not a name", "such as h100"),
    "dtype": of_type(str, "is not a name", "such as bf16"),
    **dict.fromkeys(SIZES, count(MOST_SIZE).or_none),
    "batch": count(MOST_SIZE),
    "causal": of_type(bool, "is neither True nor False", "True where a token sees only those before it").or_none,
    "eager": of_type(bool, "is neither True nor False", "True for operators that are not fused"),
    "library": of_type(str, "is not a name", "such as fa2"),
    "profile": of_type(str, "is not a name of a file", "what `trainsim calibrate fit` wrote"),
    "power": of_type(str, "is not a word", "burst or sustained"),
    "site_scalar": factor_to(MOST_SCALAR).or_none,
}
EXAMPLE = {"m": 8192, "n": 8192, "k": 8192, "seq": 4096, "heads": 32, "top_k": 2}


@dataclass(frozen=True, repr=False)
class KernelTime(Summarised):
    """The predicted time of a kernel, with what is known about the prediction."""

    op: str
    gpu: str
    dtype: str
    time_us: float
    power: str
    """Whether the time is that of a `burst` of launches, or `sustained`, at the clock of a step of one GPU."""
    burst_us: float
    sustained_us: float
    model: str
    provenance: str
    sigma: float
    """Relative standard error."""
    extrapolated: bool
    tflop_per_s: float
    gb_per_s: float
    site_scalar: float = 1.0

    @property
    def summary(self) -> list[tuple[str, str]]:
        rates = [f"{self.tflop_per_s:,.1f} TFLOP/s"] if self.tflop_per_s else []
        rates += [f"{self.gb_per_s:,.0f} GB/s"] if self.gb_per_s else []
        slow = [("site", f"every kernel takes {self.site_scalar:g} times as long")] if self.site_scalar != 1 else []
        return [
            ("kernel", f"{self.op} on {self.gpu} in {self.dtype}"),
            *self._times,
            ("model", self.model),
            ("provenance", self.provenance + (", beyond the measured sizes" if self.extrapolated else "")),
            *slow,
            *([("rate", ", ".join(rates))] if rates else []),
        ]

    @property
    def _times(self) -> list[tuple[str, str]]:
        """Both times of the kernel; the requested one is first, and has its error."""
        burst = (f"time, burst of {BURST:.0f} launches", f"{self.burst_us:,.2f} us")
        sustained = ("time, sustained", f"{self.sustained_us:,.2f} us, at the clock of a step of one GPU")
        (name, value), other = (burst, sustained) if self.power == "burst" else (sustained, burst)
        return [(name, f"{value}, give or take {self.sigma:.0%} (one standard error)"), other]

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim kernel --json`."""
        record = asdict(self)
        return record if self.site_scalar != 1 else {name: value for name, value in record.items() if name != "site_scalar"}


class Options(TypedDict, total=False):
    """Options of `kernel`: the sizes of a kernel, its library, and the machine."""

    m: int | None
    n: int | None
    k: int | None
    batch: int
    seq: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    causal: bool | None
    top_k: int | None
    library: str
    eager: bool
    profile: str
    site_scalar: float | None
    power: str


@dataclass(frozen=True, slots=True)
class _Request:
    """A kernel as the user described it."""

    op: str
    name: str
    """The name of the operator in tables of measurements."""
    gpu: str
    options: Mapping[str, Any]

    def sizes(self, *needed: str) -> list[int]:
        """The sizes that a kernel needs. Raises `UserError` with all missing sizes together."""
        values = {name: self.options.get(name) for name in needed}
        if missing := [FLAGS[name] for name, value in values.items() if value is None]:
            example = " ".join(f"{FLAGS[name]} {EXAMPLE[name] if value is None else value}" for name, value in values.items())
            message = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            raise UserError(message, hint=f"trainsim kernel {self.op} --gpu {self.gpu} {example}")
        return [value for value in values.values() if value is not None]


def kernel(op: str, gpu: str, dtype: str = "bf16", **options: Unpack[Options]) -> KernelTime:
    """Times a kernel on a GPU: a GEMM by `m`, `n` and `k`, attention by `seq` and `heads`, a memory-bound operator by `m`, `n`.

    `library` names the kernels' software, `eager` splits operators as an eager framework does, `profile` is the file of a
    calibration. `power` is `burst` for the time in a short loop of launches, as in tables, or `sustained` for the time at the
    clock of a step of one GPU, without the factor on arithmetic of steps.
    """
    legal_values.check("a kernel", {"op": op, "gpu": gpu, "dtype": dtype, **options}, LEGAL)
    chosen = options.pop("power", "burst")
    asked = _Request(op, table_name(op), gpu, {"batch": 1, "library": "", "eager": False, "profile": "", **options})
    written, dtype = dtype, table_name(dtype)
    library, site_scalar = asked.options["library"], asked.options.get("site_scalar")

    def check_dtype() -> None:
        if dtype not in WIDTH:
            raise UserError(f"no kernels in {shown(written)}", hint=did_you_mean(dtype, WIDTH))

    def check_op() -> None:
        if asked.name not in KNOWN and workload_name(asked.name) not in PASSES:
            raise UserError(f"no kernel {op!r}", hint=did_you_mean(asked.name, KNOWN, meanings=MEANINGS))

    def check_power() -> None:
        if chosen not in LAUNCHES:
            raise UserError(f"no power {shown(chosen)}", hint=f"one of {', '.join(LAUNCHES)}")

    on, *_ = in_one_go(
        lambda: shipped_fits.gpu(gpu, asked.options["profile"]),
        check_dtype,
        check_op,
        check_power,
        lambda: known_library(library, shipped_fits.shipped()),
    )
    on = replace(on, site_scalar=site_scalar) if site_scalar else on
    fits = shipped_fits.fits_for(on)
    launches = LAUNCHES[chosen]
    software = Software(known_library(library, fits), asked.options["eager"], tensor_cores=dtype != "fp32", launches=launches)
    estimator = Estimator(on, dtype, fits, software)
    on.peak(estimator.peak_dtype)
    kernels = _kernels(asked, estimator)
    _check_options(asked, kernels[0], estimator)
    times = {
        word: _timed(asked, kernels, replace(estimator, options=replace(software, launches=n))) for word, n in LAUNCHES.items()
    }
    made = times[chosen]
    flop, moved = sum(one.flop for one in kernels), sum(one.traffic_bytes for one in kernels)
    return KernelTime(
        op=op,
        gpu=on.name,
        dtype=dtype,
        time_us=made.seconds * US_PER_S,
        power=chosen,
        **{f"{word}_us": one.seconds * US_PER_S for word, one in times.items()},
        model=made.model,
        provenance=made.provenance,
        sigma=made.sigma,
        extrapolated=made.extrapolated,
        tflop_per_s=flop / made.seconds / TFLOP if flop else 0.0,
        gb_per_s=moved / made.seconds / GB if moved else 0.0,
        site_scalar=on.site_scalar,
    )


def _timed(asked: _Request, kernels: Sequence[Shape], by: Estimator) -> Estimate:
    """The time of the requested kernels one after the other."""
    parts = [_launched(asked, one, by) for one in kernels]
    return parts[0] if len(parts) == 1 else together(parts[0].model, parts)


def _launched(asked: _Request, kernel: Shape, by: Estimator) -> Estimate:
    """The time of a kernel, or zero if a framework launches none: the gradient of a sum is passed on unchanged."""
    made = by.estimate(kernel)
    if kernel.traffic_bytes:
        return made
    model = f"{workload_name(asked.name)}{rowwise.BACKWARD}: nothing is launched"
    return replace(made, seconds=0.0, model=model, sigma=0.0, extrapolated=False)


def _check_options(asked: _Request, kernel: Shape, by: Estimator) -> None:
    """Raises `UserError` for options that do not apply to the kernel, and for libraries without such a kernel."""
    library, family = by.options.library, kernel.family
    unfused = (UNFUSED,) if family == "attention" else ()
    useful = (*OPTIONS_OF[family], *(("eager",) if library in unfused else ()))
    given = {**asked.options, "library": library or None, "eager": asked.options["eager"] or None}
    if wrong := [flag for name, flag in FLAGS.items() if given.get(name) is not None and name not in useful]:
        raise UserError(f"{', '.join(wrong)}: says nothing about {asked.op}", hint="leave it out")
    known = (*by.fits.libraries(family), *families()[family].slower_libraries, *unfused)
    if library and library not in known:
        raise UserError(f"{library} has no {asked.op} that was measured", hint=did_you_mean(library, known))


def _kernels(asked: _Request, by: Estimator) -> Sequence[Shape]:
    """The requested kernels: two for the backward pass of a GEMM. In a backward pass, eager PyTorch moves other bytes."""
    op, batch, dtype = asked.name, asked.options["batch"], by.dtype
    if op in GEMMS or op in GEMMS_BACKWARD:
        m, n, k = asked.sizes("m", "n", "k")
        return gemms_of(op, (m, n, k), batch, WIDTH[dtype])
    if op == EXPERTS:
        m, n, k, top_k = asked.sizes("m", "n", "k", "top_k")
        if top_k > batch:
            raise UserError(f"--top-k {top_k}: there are {batch} experts", hint="--batch is how many experts there are")
        return [Experts(m, n, k, batch, top_k, WIDTH[dtype])]
    if op in ATTENTIONS:
        seq, heads = asked.sizes("seq", "heads")
        sizes = (batch, seq, heads, asked.options.get("kv_heads") or heads, asked.options.get("head_dim") or HEAD_DIM)
        return [attention_of(sizes, asked.options.get("causal") is not False, dtype, part) for part in ATTENTIONS[op]]
    name, back = workload_name(op), is_backward(op)
    m, n = asked.sizes("m", "n")
    as_autograd = back and by.options.eager and not rowwise.FAMILY.owns(by, f"{name}{rowwise.BACKWARD}")
    written_out = rowwise.autograd(name, WIDTH[dtype]) if as_autograd else None
    op, each = written_out or (name + rowwise.BACKWARD * back, bytes_per_element(name, dtype, backward=back))
    return [Rowwise(op, m * batch, n, 1, each)]
