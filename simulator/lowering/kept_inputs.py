"""Tensors that two operators need for their backward passes, if a single copy does not serve both.

Fused attention needs its result again, which is the input of the projection after it; a router and a projection to a latent need
the input that the shared experts or the projection of queries keep. One copy serves both if it is kept unchanged. If the
projection keeps its input in fewer bits, or as a share of other tokens, or not at all because it is frozen, both keep their own:
`out` and `input` of Transformer Engine (context_parallel.py, module/linear.py). Megatron Core then lets the projection keep the
original and cast it again (`set_save_original_input` in megatron/core/transformer/attention.py and moe/shared_experts.py,
core_v0.14.0 and later), unless scales are delayed: one copy serves both again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..frozen import replace
from ..kernels import Attention, Gemm, Split
from ..workload.blocks.dense import BlockOp
from ..workload.learning import Layered

SHARED_BY_ROUTER = "shared_up"
"""The operator whose input the router of a layer needs too."""
WIDE_LATENT, OTHER_LATENT = "q_down", "kv_down"
"""A projection to a latent, whose input is kept in 16 bits in any case, also for the projection to the other latent."""


def keep_inputs(operators: Sequence[Layered], *, narrow: bool, original: bool, by_heads: bool) -> list[Layered]:
    """The operators of a stage, in forward order, each with the bytes that it keeps itself.

    `narrow`: linear layers keep their inputs in fewer bits, or with `original` unchanged if another operator needs them;
    `by_heads`: attention has its result for other tokens and fewer heads.
    """
    apart = narrow and not original
    return [*_kept(operators, apart=apart, narrow=narrow, by_heads=by_heads)]


def _kept(operators: Sequence[Layered], *, apart: bool, narrow: bool, by_heads: bool) -> Iterator[Layered]:
    of_router = {layer for layer, op in operators if _shares(op)}
    of_latents = {layer for layer, op in operators if op.name == WIDE_LATENT}
    after_attention = False
    for at, (layer, op) in enumerate(operators):
        latent_alone = narrow and layer not in of_latents
        if isinstance(op.forward, Attention) and op.input_gradient is not None:
            behind = [one for of, one in operators[at + 1 :] if of == layer]
            if by_heads or apart or not _is_kept(behind):
                op = replace(op, saved_bytes=op.saved_bytes + op.forward.result_bytes, keeps_result=True)
            after_attention = True
        elif isinstance(op.forward, Gemm) and after_attention:
            op, after_attention = replace(op, input_kept=narrow), False
        elif isinstance(op.forward, Gemm) and _shares(op) and (latent_alone if op.name == OTHER_LATENT else apart):
            op = replace(op, saved_bytes=int(op.forward.m * op.forward.k * op.forward.element_bytes))
        elif narrow and op.name == SHARED_BY_ROUTER and layer in of_router:
            op = replace(op, input_kept=True)
        yield layer, op


def _shares(op: BlockOp) -> bool:
    """Whether a linear layer that stays in 16 bits computes its weight gradient from an input that another one keeps."""
    learns = op.split is Split.SEQUENCE and op.weight_gradient is not None and not op.adapter
    return learns and isinstance(op.forward, Gemm) and not op.saved_bytes


def _is_kept(behind: Sequence[BlockOp]) -> bool:
    """Whether the projection after attention, or its adapter, keeps its input."""
    projection = next((op for op in behind if isinstance(op.forward, Gemm)), None)
    if projection is None or projection.saved_bytes:
        return projection is not None
    return any(op.adapter == "in" and op.name.startswith(f"{projection.name}_") and op.saved_bytes for op in behind)
