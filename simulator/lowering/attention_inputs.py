"""Which operators make the queries, keys and values of attention, for the recomputation of some of them.

Attention keeps all three. An operator of a plan's list may make only some: the projection of queries of latent attention, or a
norm of queries and keys. What the others make is still kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels import Attention, Gemm, Kernel, Part, Split
from ..program.operations import AnyOp, Compute
from ..workload.blocks.dense import KEYS, QUERIES, VALUES


@dataclass(frozen=True, kw_only=True)
class InputMaker(Compute):
    """A listed kernel that makes inputs of attention, until recomputation has been lowered."""

    makes: tuple[str, ...] = ()


def making(op: Compute, makes: tuple[str, ...]) -> Compute:
    """A kernel of the forward pass; one that is listed says which inputs of attention it makes."""
    return InputMaker(**vars(op), makes=makes) if makes and op.listed and op.part is Part.FORWARD else op


def plain(op: AnyOp) -> AnyOp:
    """An operation for later passes, which need not know what it makes."""
    if not isinstance(op, InputMaker):
        return op
    return Compute(**{name: value for name, value in vars(op).items() if name != "makes"})


def made_by(op: AnyOp) -> tuple[str, ...]:
    """The inputs of attention that an operation is known to make."""
    return op.makes if isinstance(op, InputMaker) else ()


def takes_inputs(op: AnyOp) -> bool:
    """Whether an operation is the kernel that keeps queries, keys and values."""
    return isinstance(op, Compute) and (isinstance(op.kernel, Attention) or _has_scores(op.kernel, op.split))


def share_bytes(op: Compute, inputs_bytes: int, made: set[str]) -> int:
    """Bytes of some of queries, keys and values, which take `inputs_bytes` together."""
    kernel, widths = op.kernel, {QUERIES: 1, KEYS: 1, VALUES: 1}
    if isinstance(kernel, Attention):
        depth, value_depth = kernel.widths
        widths = {QUERIES: kernel.heads * depth, KEYS: kernel.kv_heads * depth, VALUES: kernel.kv_heads * value_depth}
    elif isinstance(kernel, Gemm):
        # values are as wide as keys, or come with them from the same latent
        queries_bytes = int(kernel.batch * kernel.m * kernel.k * kernel.element_bytes)
        others_bytes = inputs_bytes - queries_bytes
        widths = {QUERIES: 2 * queries_bytes, KEYS: others_bytes, VALUES: others_bytes}
    return inputs_bytes * sum(widths[name] for name in made) // sum(widths.values())


def _has_scores(kernel: Kernel, split: Split) -> bool:
    return isinstance(kernel, Gemm) and split is Split.HEADS
