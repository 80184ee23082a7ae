"""Operators that produce the queries, keys and values of attention, for the recomputation of some of them.

Attention keeps all three. An operator in a plan's list may produce only some: the projection of queries of latent attention, or a
norm of queries and keys. The tensors of the other operators are still kept.
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
    """A kernel of the forward pass; a listed kernel is marked with the inputs of attention that it produces."""
    return InputMaker(**vars(op), makes=makes) if makes and op.listed and op.part is Part.FORWARD else op


def plain(op: AnyOp) -> AnyOp:
    """An operation without this mark, for later passes."""
    if not isinstance(op, InputMaker):
        return op
    return Compute(**{name: value for name, value in vars(op).items() if name != "makes"})


def made_by(op: AnyOp) -> tuple[str, ...]:
    """The inputs of attention that an operation is marked to produce."""
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
