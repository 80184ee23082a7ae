"""Head in chunks: projection to the vocabulary and loss, some tokens at a time, so that the logits of all tokens never exist.

The logits of a chunk need about as many bytes as all hidden states. The kernel of the loss overwrites the logits with their
gradients. The gradient of the projection is a sum over chunks: each adds its own, cast to fp32, in separate kernels. Reference:
fused_linear_cross_entropy_forward in src/liger_kernel/ops/fused_linear_cross_entropy.py of linkedin/Liger-Kernel @ead96b6, which
makes the gradients in the forward pass and keeps them. Here the backward pass makes them, with the same kernels: a step without a
pipeline takes as long, and the last stage of a pipeline has a shorter forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import InvariantBroken
from ..frozen import replace
from ..kernels import FP32_BYTES, Gemm, Rowwise
from ..plan.plan import Plan
from ..workload.blocks.dense import BlockOp
from ..workload.framework import Framework
from ..workload.learning import Layered

LOSS = "cross_entropy"
LOSS_MOVES = 3
"""Elements that the kernel of the loss moves per logit: it reads each twice and writes its gradient once."""


def chunks_head(plan: Plan, framework: Framework) -> bool:
    """Whether a framework runs the head of a plan in chunks: only where one rank has the whole vocabulary."""
    return framework.fusion.linear_cross_entropy and plan.tp == 1 and not plan.shares_vocabulary


def in_chunks(ops: Sequence[Layered]) -> Iterator[Layered]:
    """Operators in forward order, with every projection that is followed by a loss divided into chunks with its loss."""
    before: Layered | None = None
    for layer, op in ops:
        is_loss = isinstance(op.forward, Rowwise) and op.forward.op == LOSS
        if before and is_loss:
            yield from ((layer, new) for new in _chunks(before[1], op))
            before = None
            continue
        if before:
            yield before
        before = layer, op
    if before:
        yield before


def _chunks(project: BlockOp, loss: BlockOp) -> Iterator[BlockOp]:
    """The chunks of a projection and its loss; the first has the parameters."""
    whole, of_input, of_weights, logits = project.forward, project.input_gradient, project.weight_gradient, loss.forward
    if not (isinstance(whole, Gemm) and isinstance(logits, Rowwise)):
        raise InvariantBroken(f"{project.name} is not a projection before a loss")
    tokens, size = whole.m, tokens_of_chunk(whole.m, whole.n, whole.k)
    moved = LOSS_MOVES * logits.element_bytes
    for number, begin in enumerate(range(0, tokens, size)):
        rows = min(size, tokens - begin)
        made = replace(
            project,
            name=f"{project.name}#{number}",
            forward=replace(whole, m=rows),
            input_gradient=replace(of_input, m=rows) if isinstance(of_input, Gemm) else None,
            weight_gradient=replace(of_weights, k=rows) if isinstance(of_weights, Gemm) else None,
            saved_bytes=project.saved_bytes * rows // tokens,
        )
        yield made if not number else replace(made, parameters=0, whole_parameters=0, matmul_parameters=0)
        kernel = replace(logits, rows=rows, bytes_per_element=moved)
        yield replace(loss, name=f"{loss.name}#{number}", forward=kernel, input_gradient=None, saved_bytes=0)


def tokens_of_chunk(tokens: int, vocab: int, hidden: int) -> int:
    """Number of tokens of a chunk: a power of two."""
    chunks = -(-vocab // hidden)
    return 1 << (-(-tokens // chunks) - 1).bit_length()


def sums_of_chunks(kernel: Gemm) -> Iterator[Rowwise]:
    """The kernels that add the gradient of a chunk to the sum, which is kept in the job's format: a cast to fp32, unless the
    gradient is in fp32, and the addition.
    """
    width = int(kernel.element_bytes)
    for name, moved in (("cast", width + FP32_BYTES), ("add", FP32_BYTES + 2 * width)):
        if name != "cast" or width < FP32_BYTES:
            yield Rowwise(name, kernel.m * kernel.batch, kernel.n, width, moved)
