"""One kernel by itself: from what a person asks to a shape, and from a shape to a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...costs import rowwise
from ...costs.family import Estimate, families
from ...costs.measured import Estimator, Options, together
from ...costs.shelf import UNFUSED, known_library
from ...errors import UserError, did_you_mean, in_one_go
from ...kernels import Attention, Experts, Gemm, Part, Rowwise, Shape
from ...lowering.passes.optimizer import ADAM_BYTES
from ...units import GB, TFLOP, US_PER_S
from . import kernel_fits
from .eager import autograd

WIDTH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 0.5625, "mxfp4": 0.53125}
"""Bytes of an element, with what scales it: a byte for 16 or 32 of four bits."""
PRODUCTS = {"gemm": Part.FORWARD, "gemm_dgrad": Part.INPUT_GRADIENT, "gemm_wgrad": Part.WEIGHT_GRADIENT, "bmm": Part.FORWARD}
PRODUCTS |= {"grouped_gemm": Part.FORWARD}
ATTENTIONS = {"attention": Part.FORWARD, "attention_fwd": Part.FORWARD}
ATTENTIONS |= {"attention_backward": Part.INPUT_GRADIENT}
BOTH = {"gemm_backward": "gemm", "bmm_backward": "bmm", "grouped_gemm_backward": "grouped_gemm"}
"""Backward passes of GEMMs, as tables time them: those of both operands, neither added to a gradient."""
ATTENTION_BOTH = "attention_fwd_backward"
HEAD_DIM = 128
EXPERTS = "moe_ffn"
"""The feed-forward network of a mixture of experts, as one fused kernel: m tokens of k channels, `batch` experts of n."""
PASSES = {
    "add": (3, 3), "mul": (3, 3), "dropout": (2, 3), "residual": (3, 3), "embedding": (2, 3), "copy": (2, 2), "cast": (2, 2),
    "gelu": (2, 3), "silu": (2, 3), "relu": (2, 3), "silu_gated": (3, 5), "gelu_gated": (3, 5), "rope": (2, 2),
    "layernorm": (2, 3), "rmsnorm": (2, 3), "softmax": (2, 3), "cross_entropy": (2, 2), "adam": (7, 7), "quantise": (2, 2),
}  # fmt: skip
"""Elements that an operator moves for each of its shape, forward and backward, if all are of one width. Adam reads parameter,
gradient and two moments, and writes all but the gradient."""
NARROWING = ("cast", "quantise")
"""Read 16 bits and write the format that is asked for, once."""
FORWARD_ONLY = ("adam", "copy", *NARROWING)
"""Have no backward pass."""
SINGLE = ("fp32", "tf32")
OTHER = {
    "elementwise": "add",
    "swiglu": "silu_gated",
    "geglu": "gelu_gated",
    "rms_norm": "rmsnorm",
    "layer_norm": "layernorm",
    "quantize": "quantise",
    "adamw": "adam",
    "memcpy": "copy",
}
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
KNOWN = (*PRODUCTS, *ATTENTIONS, *BOTH, ATTENTION_BOTH, EXPERTS, *PASSES, *OTHER)
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
        return plain(self.op)


@dataclass(frozen=True, slots=True)
class Software:
    """Whose kernels on which machine: a library, several operators for one, a profile of the GPU, and how slow the site is."""

    library: str = ""
    eager: bool = False
    profile: str = ""
    site_scalar: float | None = None


def plain(op: str) -> str:
    """An operator as it is called here: tables write `_bwd`."""
    name = op.strip().lower().replace("-", "_")
    return name.removesuffix("_bwd") + "_backward" if name.endswith("_bwd") else name


def time_kernel(asked: Asked, by: Software = Software()) -> dict[str, Any]:
    """The predicted time of a kernel with all that is known about the prediction."""
    dtype = plain(asked.dtype)
    gpu, *_ = in_one_go(
        lambda: kernel_fits.gpu(asked.gpu, by.profile),
        lambda: _known_dtype(dtype),
        lambda: _known_op(asked),
        lambda: known_library(by.library, kernel_fits.shelf()),
    )
    gpu = replace(gpu, site_scalar=by.site_scalar) if by.site_scalar else gpu
    fits = kernel_fits.shelf_for(gpu)
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
    if asked.name not in KNOWN and own_name(asked.name) not in PASSES:
        raise UserError(f"no kernel {asked.op!r}", hint=did_you_mean(asked.name, KNOWN))


def _kernels(asked: Asked, by: Estimator) -> tuple[Estimate, float, float]:
    """The time of what was asked, its flop and the bytes that it moves."""
    as_autograd = by.options.eager and not rowwise.FAMILY.owns(by, f"{own_name(asked.name)}_backward")
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
    return replace(made, seconds=0.0, model=f"{asked.name}: nothing is launched", sigma=0.0, extrapolated=False)


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


def kernels_of(asked: Asked, dtype: str, eager: bool = False) -> list[Shape]:
    """The shapes that were asked for: two of the backward pass of a GEMM, one of everything else."""
    if asked.name in BOTH:
        m, n, k = _given(asked, dict(zip(("-m", "-n", "-k"), asked.sizes, strict=True)))
        return [kernel_of(replace(asked, op=BOTH[asked.name], sizes=each), dtype) for each in ((m, k, n), (k, n, m))]
    if asked.name == ATTENTION_BOTH:
        return [kernel_of(replace(asked, op=op), dtype) for op in ("attention", "attention_backward")]
    return [kernel_of(asked, dtype, eager)]


def kernel_of(asked: Asked, dtype: str, eager: bool = False) -> Shape:
    """The shape that was asked for. Backward, eager PyTorch moves other bytes."""
    op, (m, n, k) = asked.name, asked.sizes
    if op in PRODUCTS:
        m, n, k = _given(asked, {"-m": m, "-n": n, "-k": k})
        return Gemm(m, n, k, WIDTH[dtype], PRODUCTS[op], asked.batch)
    if op == EXPERTS:
        m, n, k, top_k = _given(asked, {"-m": m, "-n": n, "-k": k, "--top-k": asked.top_k})
        if top_k > asked.batch:
            raise UserError(f"--top-k {top_k}: there are {asked.batch} experts", hint="--batch is how many experts there are")
        return Experts(m, n, k, asked.batch, top_k, WIDTH[dtype])
    if op in ATTENTIONS:
        seq, heads = _given(asked, {"--seq": asked.heads[0], "--heads": asked.heads[1]})
        kv_heads, head_dim = asked.heads[2] or heads, asked.heads[3] or HEAD_DIM
        return attention_of((asked.batch, seq, heads, kv_heads, head_dim), asked.causal is not False, dtype, ATTENTIONS[op])
    _known_op(asked)
    name, back = own_name(op), op.endswith("_backward")
    each = bytes_each(name, dtype, backward=back)
    m, n = _given(asked, {"-m": m, "-n": n})
    written_out = autograd(name, WIDTH[dtype]) if eager and back else None
    known, moved = written_out or (name + "_backward" * back, each)
    return Rowwise(known, m * asked.batch, n, 1, moved)


def own_name(op: str) -> str:
    """A memory-bound operator, or its backward pass, as workloads call the operator."""
    base = op.removesuffix("_backward")
    return OTHER.get(base, base)


def attention_of(sizes: tuple[int, int, int, int, int], causal: bool, dtype: str, part: Part) -> Attention:
    """Attention of (batch, seq, heads, kv_heads, head_dim)."""
    batch, seq, heads, kv_heads, head_dim = sizes
    if heads % kv_heads:
        raise UserError(f"{heads} heads cannot share {kv_heads} key heads evenly", hint="--kv-heads divides --heads")
    return Attention(batch, seq, heads, kv_heads, head_dim, causal, max(1, int(WIDTH[dtype])), part)


def bytes_each(name: str, dtype: str, *, backward: bool = False) -> float:
    """Bytes that a memory-bound operator moves for each element of its shape, as one kernel, and as runs have it.

    Adam's moments are in fp32 whatever the weights are in, and so are the gradients and the weights that it adds them to; the
    probabilities of a loss are in fp32 too.
    """
    if backward and name in FORWARD_ONLY:
        raise UserError(f"{name} has no backward pass", hint=f"{name} alone")
    if name == "adam" and dtype not in SINGLE:
        return float(ADAM_BYTES + WIDTH["fp32"])
    if name == "cross_entropy":
        return float(WIDTH[dtype] + WIDTH["fp32"])
    return WIDTH["bf16"] + WIDTH[dtype] if name in NARROWING else float(PASSES[name][backward] * WIDTH[dtype])


def _given(asked: Asked, needed: Mapping[str, int | None]) -> list[int]:
    """The sizes that a kernel needs; all that are missing are named at once."""
    missing = [option for option, value in needed.items() if value is None]
    if missing:
        example = " ".join(f"{option} {EXAMPLE[option] if value is None else value}" for option, value in needed.items())
        verb = "is" if len(missing) == 1 else "are"
        message = f"{', '.join(missing)} {verb} missing"
        raise UserError(message, hint=f"trainsim kernel {asked.op} --gpu {asked.gpu} {example}")
    return [value for value in needed.values() if value is not None]
