"""Keys and values that are copied for every head that shares them, before attention, as by repeat_kv of Llama's code."""

from __future__ import annotations

from collections.abc import Iterator

from ..frozen import replace
from ..kernels import Attention, Rowwise, Split
from ..workload.blocks.dense import BlockOp


def with_repeated_keys(op: BlockOp, few: Attention) -> Iterator[BlockOp]:
    """Attention with keys and values of their own for every head, after the kernels that copy them; the backward pass adds up the
    gradients of the heads that share them. Attention keeps the copies."""
    tokens, width, shares = few.batch * few.seq, few.element_bytes, few.kv_heads / few.heads
    for name, depth in zip(("keys", "values"), few.widths, strict=True):
        copied = Rowwise("repeat", tokens, few.heads * depth, width, (1 + shares) * width)
        yield BlockOp(f"{op.name}_repeated_{name}", copied, Split.INNER, replace(copied, op="sum"))
    back = op.input_gradient
    back = replace(back, kv_heads=few.heads) if isinstance(back, Attention) else back
    more_bytes = tokens * (few.heads - few.kv_heads) * sum(few.widths) * width
    whole = replace(few, kv_heads=few.heads)
    yield replace(op, forward=whole, input_gradient=back, saved_bytes=op.saved_bytes + more_bytes)
