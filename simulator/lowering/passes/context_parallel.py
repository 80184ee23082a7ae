"""Context parallelism: ranks share every sequence, and only attention uses the tokens of other ranks.

A sequence is cut into 2n chunks, and rank r of n holds chunks r and 2n - 1 - r, so that all ranks have the same work under a
causal mask. The sizes of kernels differ a little from rank to rank; every rank is simulated as rank n // 2.

- Ring: n steps, each with 1/n of the causal flop. In a step a rank passes its keys and values on, and meanwhile computes
  attention of its own queries on them. The first step is causal attention on the rank's own chunks. Later steps have no mask:
  either the earlier half of the keys counts for all queries, or all keys count for the later half of the queries. The backward
  pass takes the steps in reverse order; the gradients of keys and values follow one step behind them, and are back on their
  rank after n - 1 hops. Reference: Liu et al., arXiv 2310.01889.
- All-gather: keys and values of all tokens are gathered, forward and again backward, and each chunk of queries sees them up to
  its own end. Their gradients are reduce-scattered. Reference: Grattafiori et al., arXiv 2407.21783, section 3.3.2.
- Ulysses: all-to-alls of queries, keys and values exchange tokens for heads, and another one exchanges the result back. The
  backward pass mirrors them. Ranks without a key head of their own get a copy. Reference: Jacobs et al., arXiv 2309.14509.
- Mixed: all-to-alls among neighbours, and a ring of such groups. Reference: Fang and Zhao, arXiv 2405.07719.

Without load balancing rank r of a ring holds the r-th share of the sequence. It attends to the earlier shares as a whole, to its
own causally, and to later shares not at all: it only waits for them and passes them on. Ranks are simulated by their position.
PyTorch's ring without load balancing works like this.

Steps and collectives are those of NVIDIA/TransformerEngine (d0067d0d, dot_product_attention/context_parallel.py). In PyTorch
(torch/distributed/tensor/experimental/_context_parallel/_attention.py, v2.13) the gradients make n hops, and all is added up in
fp32 by the kernels of single operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...frozen import replace
from ...kernels import Attention, Part, Rowwise, Split
from ...program.operations import COMPUTE, AnyOp, Communicator, Compute, Purpose, Wait, collective_for
from ...program.program import Program
from ...workload.blocks.dense import KEYS, QUERIES, VALUES
from ..segments import made_bytes
from .data_parallel import FP32_BYTES

CP = Communicator("cp", "cp", ("cp",))
RESULT = "result"


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """The values of a plan that the pass needs."""

    cp: int
    divides_heads_by: int = 1
    """Number of neighbouring ranks that exchange tokens for heads."""
    gathers: bool = False
    """Whether ranks gather keys and values instead of passing them round a ring."""
    overlaps: bool = True
    position: int | None = None
    """The position of the rank in a ring without load balancing; None if all ranks have the same work."""
    fp32: bool = False
    """Whether rings add up in fp32, operator by operator, and pass gradients on in fp32."""

    @property
    def steps(self) -> int:
        """Number of shares of the keys that a rank sees one after the other."""
        return self.cp // self.divides_heads_by

    @property
    def heads_group(self) -> Communicator:
        """The ranks that exchange tokens for heads."""
        return CP if self.steps == 1 else replace(CP, name="cp heads", size=self.divides_heads_by)

    @property
    def keys_group(self) -> Communicator:
        """The ranks that exchange keys and values."""
        mixed = self.divides_heads_by > 1
        return replace(CP, name="cp ring", size=self.steps, stride=self.divides_heads_by) if mixed else CP


def context_parallel(program: Program, plan: ContextParallel) -> Program:
    """The program of a rank with a share of every sequence, with attention on the whole sequences."""
    if plan.cp == 1:
        return program
    used = [plan.heads_group] * (plan.divides_heads_by > 1) + [plan.keys_group] * (plan.steps > 1)

    def shared(op: AnyOp) -> Iterator[AnyOp]:
        if isinstance(op, Compute) and isinstance(op.kernel, Attention):
            yield from _divided_by_heads(op, op.kernel, plan)
        else:
            yield op

    return program.with_communicators(*used).with_bodies(lambda body: (new for op in body.ops for new in shared(op)))


def _divided_by_heads(op: Compute, local: Attention, plan: ContextParallel) -> Iterator[AnyOp]:
    """Attention on the tokens of several ranks with a share of the heads, between all-to-alls."""
    forward, parts = op.part is Part.FORWARD, plan.divides_heads_by
    kernel = replace(local.split(Split.INNER, parts), seq=local.seq * parts)
    inputs, result = (QUERIES, KEYS, VALUES), (RESULT,)

    def exchanged(names: tuple[str, ...]) -> Iterator[AnyOp]:
        for name in names if parts > 1 else ():
            yield collective_for(
                op, plan.heads_group, Purpose.EXCHANGE, "alltoall", _tensor_bytes(kernel, name), f"all-to-all of {name}"
            )

    # copies of key heads are kept for the backward pass, as every input of attention is
    copies_bytes = _tensor_bytes(kernel, KEYS, VALUES) - _tensor_bytes(local, KEYS, VALUES)
    whole = replace(op, kernel=kernel, held_bytes=op.held_bytes + forward * copies_bytes)
    yield from exchanged(inputs if forward else result)
    if plan.steps == 1:
        yield whole
    elif plan.gathers:
        yield from _gathered(whole, kernel, plan)
    else:
        ring = _ring(whole, kernel, plan, _steps(kernel, plan))
        yield from ring if plan.overlaps else (replace(new, after=None, detached=False) for new in ring)
    yield from exchanged(result if forward else inputs)


def _steps(own: Attention, plan: ContextParallel) -> list[Attention | None]:
    """The attention of every step of a ring, in the order of the forward pass; None if a rank attends to no key of a share."""
    if plan.position is not None:
        whole_share = replace(own, prefix=own.seq, diagonal=False)
        return [own, *[whole_share] * plan.position, *[None] * (plan.steps - 1 - plan.position)]
    middle = plan.steps // 2
    half_of_keys = replace(own, prefix=own.seq // 2, diagonal=False)
    half_of_queries = replace(own, seq=own.seq // 2, prefix=own.seq, diagonal=False)
    return [own, *[half_of_keys] * middle, *[half_of_queries] * (plan.steps - 1 - middle)]


def _ring(op: Compute, own: Attention, plan: ContextParallel, kernels: Sequence[Attention | None]) -> Iterator[AnyOp]:
    """The steps of a ring, each with an exchange beside it. Received tensors are held until the end of the next step."""
    forward, last_step = op.part is Part.FORWARD, plan.steps - 1
    share_bytes = _tensor_bytes(own, KEYS, VALUES)
    gradient_bytes = share_bytes * FP32_BYTES // int(own.element_bytes) if plan.fp32 else share_bytes
    step: Compute | Wait = op
    last: Compute | Wait = op
    arrived, held_bytes = "", 0
    for i, kernel in enumerate(kernels if forward else reversed(kernels)):
        # keys and values leave during their step, their gradients one step later
        sent_bytes = share_bytes * (i < last_step) + gradient_bytes * (i > 0 and not forward)
        exchange = collective_for(op, plan.keys_group, Purpose.EXCHANGE, "exchange", sent_bytes, f"exchange {i}")
        if sent_bytes:
            yield replace(exchange, detached=True, after=(step.name,) if forward and i else None, held_bytes=sent_bytes)
        name, after = (f"{op.name}.step {i}", (last.name, arrived)) if i else (op.name, None)
        freed_bytes = (held_bytes + sent_bytes * (i == last_step)) * (i > 0)
        if kernel is None:
            step = last = _skipped(op, name, after, freed_bytes)
            yield step
        elif i == 0:
            step = last = replace(op, kernel=kernel)
            yield step
            if plan.fp32:
                last = _merge(step, kernel, (), 0, _single_kernels_bytes(kernel, own, first=True, last=False))
                yield last
        else:
            step = replace(op, name=name, kernel=kernel, after=after, held_bytes=0)
            moved_bytes = _single_kernels_bytes(kernel, own, first=False, last=i == last_step) if plan.fp32 else None
            last = _merge(step, kernel, () if forward else (exchange.name,), freed_bytes, moved_bytes)
            yield from (step, last)
        arrived, held_bytes = exchange.name, sent_bytes
    if plan.fp32 and not forward:  # one more hop, to the rank that the gradients belong to
        yield collective_for(op, plan.keys_group, Purpose.EXCHANGE, "exchange", gradient_bytes, f"exchange {plan.steps}")


def _gathered(op: Compute, own: Attention, plan: ContextParallel) -> Iterator[AnyOp]:
    """Attention of the two chunks of a rank on gathered keys and values; backward a reduce-scatter of their gradients."""
    forward, chunk, middle = op.part is Part.FORWARD, own.seq // 2, plan.steps // 2
    early, late = (replace(own, seq=chunk, prefix=at * chunk) for at in (middle, 2 * plan.steps - 1 - middle))
    whole_bytes = {name: plan.steps * _tensor_bytes(own, name) for name in (KEYS, VALUES)}
    both_bytes = sum(whole_bytes.values())
    for name, payload_bytes in whole_bytes.items():
        gather = collective_for(op, plan.keys_group, Purpose.EXCHANGE, "all_gather", payload_bytes, f"gather {name}")
        yield replace(gather, held_bytes=payload_bytes)
    # forward, each chunk holds what it makes itself; backward, gradients of all keys and values are held beside them
    made = made_bytes(replace(op, kernel=late)) if forward else 0
    yield replace(op, kernel=early, held_bytes=op.held_bytes - made + (0 if forward else both_bytes))
    yield replace(op, name=f"{op.name}.chunk 1", kernel=late, held_bytes=made, freed_bytes=both_bytes)
    for name, payload_bytes in () if forward else whole_bytes.items():
        scatter = collective_for(op, plan.keys_group, Purpose.EXCHANGE, "reduce_scatter", payload_bytes, f"scatter {name}")
        yield replace(scatter, freed_bytes=payload_bytes)


def _skipped(op: Compute, name: str, after: tuple[str, ...] | None, freed_bytes: int) -> Wait:
    """A step of a ring in which a rank computes nothing, and only waits for the previous exchange."""
    return Wait(
        name=name, streams=(COMPUTE,), after=after, layer=op.layer, part=op.part, operator=op.operator, freed_bytes=freed_bytes
    )


def _merge(
    step: Compute, kernel: Attention, after: tuple[str, ...], freed_bytes: int, moved_bytes: float | None = None
) -> Compute:
    """The kernel that adds the partial result of a step, or its partial gradients, to the results of earlier steps. It counts for
    several kernels, if they move `moved_bytes` of a sequence."""
    (depth, value_depth), width = kernel.widths, kernel.element_bytes
    of_queries, of_keys = kernel.seq * kernel.heads, kernel.keys * kernel.kv_heads
    forward = kernel.part is Part.FORWARD
    elements = of_queries * value_depth if forward else of_queries * depth + of_keys * (depth + value_depth)
    return replace(
        step,
        name=f"{step.name}.merge",
        purpose=Purpose.MERGE,
        kernel=Rowwise("add", kernel.batch, elements, width, 3 * width if moved_bytes is None else moved_bytes / elements),
        after=(step.name, *after),
        held_bytes=0,
        freed_bytes=freed_bytes,
    )


def _single_kernels_bytes(kernel: Attention, own: Attention, *, first: bool, last: bool) -> float:
    """Bytes of a sequence that PyTorch reads and writes in a step besides attention, operator by operator (_SDPAMerger,
    _partial_update and _templated_ring_attention_backward in _attention.py): to cast and add up in fp32, to put halves that have
    changed in their place, and to join keys and values, or their gradients, in one buffer before they are sent.
    """
    (depth, value_depth), width = kernel.widths, kernel.element_bytes
    keys, all_keys = (of.keys * of.kv_heads * (depth + value_depth) for of in (kernel, own))
    joined_bytes = 0 if last else 2 * width * all_keys
    if kernel.part is Part.FORWARD:
        results, all_results = (of.seq * of.heads * value_depth for of in (kernel, own))
        cast_bytes, in_place_bytes = (width + FP32_BYTES) * results, 2 * FP32_BYTES * all_results * (results < all_results)
        # out - sigmoid(lse' - lse) * (out - out') is three kernels: of three tensors, of two, and of three
        added_bytes = 0 if first else 8 * FP32_BYTES * results
        return cast_bytes + added_bytes + in_place_bytes + joined_bytes
    queries, all_queries = (of.seq * of.heads * depth for of in (kernel, own))
    added_bytes = (width + 2 * FP32_BYTES) * (queries + keys)
    halves = all_queries * (queries < all_queries) + all_keys * (keys < all_keys and not first)
    cast_bytes = (width + FP32_BYTES) * (all_queries + all_keys) * last
    return added_bytes + 2 * FP32_BYTES * (halves + all_keys) + joined_bytes + cast_bytes


def _tensor_bytes(kernel: Attention, *names: str) -> int:
    """Bytes of queries, keys, values or results on the tokens of a kernel."""
    depth, value_depth = kernel.widths
    of_token = {
        QUERIES: kernel.heads * depth,
        KEYS: kernel.kv_heads * depth,
        VALUES: kernel.kv_heads * value_depth,
        RESULT: kernel.heads * value_depth,
    }
    return kernel.batch * kernel.seq * sum(of_token[name] for name in names) * kernel.element_bytes
