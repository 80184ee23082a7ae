"""One kernel by itself: from what a person asks to a shape, and from a shape to a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import shipped_fits
from ..costs.kernels import rowwise
from ..costs.kernels.eager_pytorch import autograd
from ..costs.kernels.estimator import UNFUSED, Estimator, Options, known_library, together
from ..costs.kernels.family import Estimate, families
from ..errors import UserError, did_you_mean, in_one_go
from ..kernels import Experts, Rowwise, Shape
from ..measurements.operator_names import (
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

HEAD_DIM = 128
OPTIONS = (
    "-m", "-n", "-k", "--seq", "--heads", "--kv-heads", "--head-dim", "--causal/--full", "--top-k", "--library", "--eager"
)  # fmt: skip
OPTIONS_OF = {
    "gemm": ("-m", "-n", "-k", "--library"),
    "moe": ("-m", "-n", "-k", "--top-k"),
    "attention": ("--seq", "--heads", "--kv-heads", "--head-dim", "--causal/--full", "--library"),
    "rowwise": ("-m", "-n", "--eager"),
}
"""Options that say something about a kernel, by its family."""
EXAMPLE = {"-m": 8192, "-n": 8192, "-k": 8192, "--seq": 4096, "--heads": 32, "--top-k": 2}


@dataclass(frozen=True, slots=True)
class Asked:
    """A kernel in words and sizes: (m, n, k), and (seq, heads, kv_heads, head_dim)."""

    op: str
    gpu: str
    dtype: str
    sizes: tuple[int | None, int | None, int | None]
    batch: int
    heads: tuple[int | None, int | None, int | None, int | None]
    causal: bool | None
    top_k: int | None = None
    """Of experts, to how many of which a token goes."""

    @property
    def name(self) -> str:
        """The operator as it is called here."""
        return table_name(self.op)


@dataclass(frozen=True, slots=True)
class Software:
    """Whose kernels on which machine: a library, several operators for one, a profile of the GPU, and how slow the site is."""

    library: str = ""
    eager: bool = False
    profile: str = ""
    site_scalar: float | None = None


def time_kernel(asked: Asked, by: Software = Software()) -> dict[str, Any]:
    """The predicted time of a kernel with all that is known about the prediction."""
    dtype = table_name(asked.dtype)
    gpu, *_ = in_one_go(
        lambda: shipped_fits.gpu(asked.gpu, by.profile),
        lambda: _known_dtype(dtype),
        lambda: _known_op(asked),
        lambda: known_library(by.library, shipped_fits.shipped()),
    )
    gpu = replace(gpu, site_scalar=by.site_scalar) if by.site_scalar else gpu
    fits = shipped_fits.fits_for(gpu)
    estimator = Estimator(gpu, dtype, fits, Options(known_library(by.library, fits), by.eager, tensor_cores=dtype != "fp32"))
    gpu.peak(estimator.peak_dtype)
    made, flop, moved = _kernels(asked, estimator)
    return {
        "op": asked.op,
        "gpu": gpu.name,
        "dtype": dtype,
        "time_us": made.seconds * US_PER_S,
        "model": made.model,
        "provenance": made.provenance,
        "sigma": made.sigma,
        "extrapolated": made.extrapolated,
        "tflop_per_s": flop / made.seconds / TFLOP if flop else 0.0,
        "gb_per_s": moved / made.seconds / GB if moved else 0.0,
        **({"site_scalar": gpu.site_scalar} if gpu.site_scalar != 1 else {}),
    }


def _known_dtype(dtype: str) -> None:
    if dtype not in WIDTH:
        raise UserError(f"no kernels in {dtype}", hint=did_you_mean(dtype, WIDTH))


def _known_op(asked: Asked) -> None:
    if asked.name not in KNOWN and workload_name(asked.name) not in PASSES:
        raise UserError(f"no kernel {asked.op!r}", hint=did_you_mean(asked.name, KNOWN))


def _kernels(asked: Asked, by: Estimator) -> tuple[Estimate, float, float]:
    """The time of what was asked, its flop and the bytes that it moves."""
    as_autograd = by.options.eager and not rowwise.FAMILY.owns(by, f"{workload_name(asked.name)}{rowwise.BACKWARD}")
    kernels = kernels_of(asked, by.dtype, as_autograd)
    _apply(asked, kernels[0], by)
    parts = [_launched(asked, one, by) for one in kernels]
    moved = sum(one.traffic_bytes for one in kernels)
    return parts[0] if len(parts) == 1 else together(parts[0].model, parts), sum(one.flop for one in kernels), moved


def _launched(asked: Asked, kernel: Shape, by: Estimator) -> Estimate:
    """The time of a kernel, none if a framework has none to launch: the gradient of a sum is handed on as it is."""
    made = by.estimate(kernel)
    if kernel.traffic_bytes:
        return made
    model = f"{workload_name(asked.name)}{rowwise.BACKWARD}: nothing is launched"
    return replace(made, seconds=0.0, model=model, sigma=0.0, extrapolated=False)


def _apply(asked: Asked, kernel: Shape, by: Estimator) -> None:
    """Refuses options that say nothing about a kernel, and libraries that have no such one."""
    library, family = by.options.library, kernel.family
    unfused = (UNFUSED,) if family == "attention" else ()
    _refuse(asked, by, (*OPTIONS_OF[family], *(("--eager",) if library in unfused else ())))
    known = (*by.fits.libraries(family), *families()[family].slower_libraries, *unfused)
    if library and library not in known:
        raise UserError(f"{library} has no {asked.op} that was measured", hint=did_you_mean(library, known))


def _refuse(asked: Asked, by: Estimator, useful: Sequence[str]) -> None:
    """Refuses all options but the useful ones."""
    values = (*asked.sizes, *asked.heads, asked.causal, asked.top_k, by.options.library or None, by.options.eager or None)
    wrong = [name for name, value in zip(OPTIONS, values, strict=True) if value is not None and name not in useful]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: says nothing about {asked.op}", hint="leave it out")


def kernels_of(asked: Asked, dtype: str, eager: bool = False) -> Sequence[Shape]:
    """The kernels that were asked for: two of the backward pass of a GEMM. Backward, eager PyTorch moves other bytes."""
    op, (m, n, k) = asked.name, asked.sizes
    if op in GEMMS or op in GEMMS_BACKWARD:
        m, n, k = _given(asked, {"-m": m, "-n": n, "-k": k})
        return gemms_of(op, (m, n, k), asked.batch, WIDTH[dtype])
    if op == EXPERTS:
        m, n, k, top_k = _given(asked, {"-m": m, "-n": n, "-k": k, "--top-k": asked.top_k})
        if top_k > asked.batch:
            raise UserError(f"--top-k {top_k}: there are {asked.batch} experts", hint="--batch is how many experts there are")
        return [Experts(m, n, k, asked.batch, top_k, WIDTH[dtype])]
    if op in ATTENTIONS:
        seq, heads = _given(asked, {"--seq": asked.heads[0], "--heads": asked.heads[1]})
        sizes = (asked.batch, seq, heads, asked.heads[2] or heads, asked.heads[3] or HEAD_DIM)
        return [attention_of(sizes, asked.causal is not False, dtype, part) for part in ATTENTIONS[op]]
    return [_rowwise(asked, dtype, eager)]


def _rowwise(asked: Asked, dtype: str, eager: bool) -> Rowwise:
    """The memory-bound operator that was asked for."""
    _known_op(asked)
    name, back = workload_name(asked.name), is_backward(asked.name)
    each = bytes_per_element(name, dtype, backward=back)
    m, n = _given(asked, {"-m": asked.sizes[0], "-n": asked.sizes[1]})
    written_out = autograd(name, WIDTH[dtype]) if eager and back else None
    op, each = written_out or (name + rowwise.BACKWARD * back, each)
    return Rowwise(op, m * asked.batch, n, 1, each)


def _given(asked: Asked, needed: Mapping[str, int | None]) -> list[int]:
    """The sizes that a kernel needs; all that are missing are named at once."""
    missing = [option for option, value in needed.items() if value is None]
    if missing:
        example = " ".join(f"{option} {EXAMPLE[option] if value is None else value}" for option, value in needed.items())
        verb = "is" if len(missing) == 1 else "are"
        message = f"{', '.join(missing)} {verb} missing"
        raise UserError(message, hint=f"trainsim kernel {asked.op} --gpu {asked.gpu} {example}")
    return [value for value in needed.values() if value is not None]
