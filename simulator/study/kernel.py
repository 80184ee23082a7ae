"""One kernel by itself: from what a person asks to a shape, and from a shape to a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..costs.measured import Estimator, Options, together
from ..costs.shelf import SLOWER, UNFUSED, known_library
from ..errors import UserError, did_you_mean
from ..kernels import Attention, Gemm, Kernel, Part, Rowwise
from ..units import GB, TFLOP, US_PER_S
from . import kernel_fits

WIDTH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 0.5625, "mxfp4": 0.53125}
"""Bytes of an element, with what scales it: a byte for 16 or 32 of four bits."""
PRODUCTS = {"gemm": Part.FORWARD, "gemm_dgrad": Part.INPUT_GRADIENT, "gemm_wgrad": Part.WEIGHT_GRADIENT, "bmm": Part.FORWARD}
PRODUCTS |= {"grouped_gemm": Part.FORWARD}
ATTENTIONS = {"attention": Part.FORWARD, "attention_fwd": Part.FORWARD}
ATTENTIONS |= {"attention_backward": Part.INPUT_GRADIENT}
BOTH = {"gemm_backward": "gemm", "bmm_backward": "bmm", "grouped_gemm_backward": "grouped_gemm"}
"""Backward passes of products, as tables time them: the products of both operands, neither added to a gradient."""
HEAD_DIM = 128
PASSES = {
    "add": (3, 3), "mul": (3, 3), "dropout": (2, 3), "residual": (3, 3), "embedding": (2, 3), "copy": (2, 2), "cast": (2, 2),
    "gelu": (2, 3), "silu": (2, 3), "relu": (2, 3), "silu_gated": (3, 5), "gelu_gated": (3, 5), "rope": (2, 2),
    "layernorm": (2, 3), "rmsnorm": (2, 3), "softmax": (2, 3), "cross_entropy": (3, 3), "adam": (17, 17), "quantise": (2, 2),
}  # fmt: skip
"""Elements that an operator moves for each of its shape, forward and backward; adam in 16 bits: 34 bytes for a parameter."""
OTHER = {
    "elementwise": "add",
    "swiglu": "silu_gated",
    "geglu": "gelu_gated",
    "rms_norm": "rmsnorm",
    "layer_norm": "layernorm",
    "quantize": "quantise",
}


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

    @property
    def name(self) -> str:
        """The operator as it is called here: tables write `_bwd`."""
        plain = self.op.strip().lower().replace("-", "_")
        return plain.removesuffix("_bwd") + "_backward" if plain.endswith("_bwd") else plain


def time_kernel(asked: Asked, *, library: str = "", eager: bool = False, site_scalar: float | None = None) -> dict[str, Any]:
    """The predicted time of a kernel with all that is known about the prediction."""
    gpu = kernel_fits.gpu(asked.gpu)
    gpu = replace(gpu, site_scalar=site_scalar) if site_scalar else gpu
    shelf, dtype = kernel_fits.shelf_for(gpu), asked.dtype.strip().lower().replace("-", "_")
    estimator = Estimator(gpu, dtype, shelf, Options(known_library(library, shelf), eager, tensor_cores=dtype != "fp32"))
    gpu.peak(estimator.peak_dtype)
    if dtype not in WIDTH:
        raise UserError(f"no kernels in {dtype}", hint=did_you_mean(dtype, WIDTH))
    kernels = kernels_of(asked, WIDTH[dtype])
    _apply(asked, kernels[0], estimator)
    parts = [estimator.product(one, WIDTH[dtype]) if isinstance(one, Gemm) else estimator.estimate(one) for one in kernels]
    made = parts[0] if len(parts) == 1 else together(parts[0].model, parts)
    narrow = WIDTH[dtype] if isinstance(kernels[0], Gemm) else 1.0
    return {
        "op": asked.op,
        "gpu": gpu.name,
        "dtype": dtype,
        "time_us": made.seconds * US_PER_S,
        "model": made.model,
        "provenance": made.provenance,
        "sigma": made.sigma,
        "extrapolated": made.extrapolated,
        "tflop_per_s": sum(one.flop for one in kernels) / made.seconds / TFLOP,
        "gb_per_s": sum(one.traffic_bytes for one in kernels) * narrow / made.seconds / GB,
        **({"site_scalar": gpu.site_scalar} if gpu.site_scalar != 1 else {}),
    }


def _apply(asked: Asked, kernel: Kernel, by: Estimator) -> None:
    """Refuses options that say nothing about a kernel, and libraries that have no such one."""
    seq, heads, kv_heads, head_dim = asked.heads
    product, attention = isinstance(kernel, Gemm), isinstance(kernel, Attention)
    library, unfused = by.options.library, by.options.library == UNFUSED
    whose = {
        **dict.fromkeys(("-m", "-n"), not attention), "-k": product,
        **dict.fromkeys(("--seq", "--heads", "--kv-heads", "--head-dim", "--causal/--full"), attention),
        "--library": product or attention, "--eager": not product and (not attention or unfused),
    }  # fmt: skip
    values = (*asked.sizes, seq, heads, kv_heads, head_dim, asked.causal, library or None, by.options.eager or None)
    wrong = [option for (option, fits), value in zip(whose.items(), values, strict=True) if value is not None and not fits]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: says nothing about {asked.op}", hint="leave it out")
    known = by.shelf.libraries("gemm") if product else (*by.shelf.libraries("attention"), *SLOWER, UNFUSED)
    if library and library not in known:
        raise UserError(f"{library} has no {asked.op} that was measured", hint=did_you_mean(library, known))


def kernels_of(asked: Asked, width: float) -> list[Kernel]:
    """The shapes that were asked for: two of the backward pass of a product, one of everything else."""
    if asked.name in BOTH:
        m, n, k = asked.sizes
        m, n, k = _given(m, "-m"), _given(n, "-n"), _given(k, "-k")
        return [kernel_of(replace(asked, op=BOTH[asked.name], sizes=each), width) for each in ((m, k, n), (k, n, m))]
    if asked.name == "attention_fwd_backward":
        return [kernel_of(replace(asked, op=op), width) for op in ("attention", "attention_backward")]
    return [kernel_of(asked, width)]


def kernel_of(asked: Asked, width: float) -> Kernel:
    """The shape that was asked for; of a product with elements of a byte."""
    op = asked.name
    m, n, k = asked.sizes
    if op in PRODUCTS:
        return Gemm(_given(m, "-m"), _given(n, "-n"), _given(k, "-k"), 1, PRODUCTS[op], asked.batch)
    if op in ATTENTIONS:
        seq, heads = _given(asked.heads[0], "--seq"), _given(asked.heads[1], "--heads")
        kv_heads = asked.heads[2] or heads
        if heads % kv_heads:
            raise UserError(f"{heads} heads cannot share {kv_heads} key heads evenly", hint="--kv-heads divides --heads")
        head_dim, causal = asked.heads[3] or HEAD_DIM, asked.causal is not False
        return Attention(asked.batch, seq, heads, kv_heads, head_dim, causal, max(1, int(width)), ATTENTIONS[op])
    base = op.removesuffix("_backward")
    name = OTHER.get(base, base)
    if name not in PASSES:
        known = (*PRODUCTS, *ATTENTIONS, *BOTH, *PASSES, *OTHER)
        raise UserError(f"no kernel {asked.op!r}", hint=did_you_mean(op, known))
    passes = PASSES[name][op.endswith("_backward")]
    rows, columns = _given(m, "-m") * asked.batch, _given(n, "-n")
    return Rowwise(name + "_backward" * op.endswith("_backward"), rows, columns, 1, max(1, round(passes * width)))


def _given(value: int | None, option: str) -> int:
    if value is None:
        raise UserError(f"{option} is missing", hint="trainsim kernel gemm --gpu h100 -m 8192 -n 8192 -k 8192")
    return value
