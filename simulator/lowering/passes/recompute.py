"""Recomputation of activations: the backward pass repeats forward operations whose inputs and results were not kept.

A *segment* is a run of forward operations that are repeated together: whole layers, attention between its inputs and its
result, or operators from a list. In the forward pass a segment keeps only its input. The backward pass repeats the segment, with
its collectives and casts, right before the first operation that needs what was not kept. The repeated operations hold what the
original operations would have held, until the backward pass of their layer ends. Reference: Korthikanti et al., arXiv 2205.05198.

In formats of eight or four bits a GEMM keeps its input as cast, where the framework does. The cast between listed operators and
such a GEMM is then repeated with them, and a row of listed operators that begins with a GEMM begins with its kept cast. The same
holds for collectives between listed operators and an operator that keeps the collective's result: gathers of an input that is
kept as gathered, exchanges of tokens for heads, and the way of tokens to experts. Of queries, keys and values, which attention
keeps, only those that listed operators produce are recomputed.

Megatron Core recomputes the first layers of a stage one by one (method `block`) or several together (`uniform`,
transformer_block.py). Of some listed modules it also discards the results, which other modules would keep
(CheckpointWithoutOutput, tensor_parallel/random.py). torchtitan recomputes every k-th layer, beginning with the k-th
(parallelize_llama.py). PyTorch stops early ("Rule 5" in torch/utils/checkpoint.py). Its operators save their inputs before they
run (tools/autograd/gen_variable_type.py), so that an operator whose input is the last tensor needed does not run again.

Per operator torchtitan keeps the results of attention, of reduce-scatters, and of the first, third ... matrix product of a layer,
where queries, keys, values, gate and up are products of their own (`_get_custom_policy` in
torchtitan/distributed/activation_checkpoint.py, pytorch/torchtitan @37e536d; layers without biases, since a product with a bias
is no `aten.mm`). The rest of the layer runs again. PyTorch keeps each of these results, also one that no gradient needs
(`_CachingTorchDispatchMode` in torch/utils/checkpoint.py); compiled code keeps and repeats only what is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ...frozen import replace
from ...kernels import Attention, Gemm
from ...plan.recomputation import Recompute
from ...program.operations import COMPUTE, AnyOp, Collective, Compute, Purpose, Wait
from ...program.program import Body, Program
from ...program.slot import BACKWARD, FORWARD, INPUT_GRADIENT
from ..attention_inputs import plain
from ..segments import Keeping, Segment, made_bytes, segments

_Read = dict[str, tuple[tuple[str, int], ...]]
"""Name of a repeated operation -> the results that it holds for other operators: operator, and bytes."""


@dataclass(frozen=True, slots=True)
class _Result:
    """A linear layer some of whose result columns are kept."""

    columns: int
    of: int
    result_bytes: int

    @property
    def kept_bytes(self) -> int:
        return self.result_bytes * self.columns // self.of

    def rest(self, op: AnyOp) -> AnyOp:
        """An operation of the linear layer, for the columns that are not kept."""
        if not isinstance(op, Compute) or not isinstance(op.kernel, Gemm):
            return op
        return replace(op, kernel=replace(op.kernel, n=op.kernel.n * (self.of - self.columns) // self.of))


def recompute(program: Program, chosen: Recompute, layer_bytes: int, keeping: Keeping) -> Program:
    """The program with forward bodies that hold less, and backward bodies (B, or I) that repeat what is needed.

    `layer_bytes` is the size of the input of a layer on a rank.
    """
    if not chosen.words:
        return program
    bodies = dict(program.bodies)
    for order in program.orders:
        forward = {(step.stage, step.microbatch): step.body for step in order if step.phase == FORWARD}
        for step in order:
            if step.phase in (BACKWARD, INPUT_GRADIENT) and bodies[step.body] is program.bodies[step.body]:
                name = forward[step.stage, step.microbatch]
                passes = program.bodies[name], program.bodies[step.body]
                bodies[name], bodies[step.body] = _recomputed(*passes, chosen, layer_bytes, keeping)
    return replace(program, bodies=bodies)


def _recomputed(forward: Body, backward: Body, chosen: Recompute, layer_bytes: int, keeping: Keeping) -> tuple[Body, Body]:
    """A forward body that holds less, and its backward body with repeated operations."""
    held = {op.name: op.held_bytes for op in forward.ops}
    first = {op.operator: place for place, op in reversed([*enumerate(backward.ops)])}
    repeated: dict[str, list[AnyOp]] = {}
    for segment in segments(forward.ops, chosen, keeping):
        places = [first[operator] for operator in segment.operators if operator in first]
        if not places:
            continue  # a frozen layer without a backward pass needs no recomputation
        before = backward.ops[min(places)].name
        if chosen.scope == "per-op":
            again = _per_op(segment.ops, held, layer_bytes, compiled=keeping.compiled)
        else:
            whole_bytes = layer_bytes if chosen.scope == "full" else 0
            again = _repeated(segment, held, whole_bytes, keeps_casts=keeping.casts, early_stop=bool(chosen.early_stop))
        repeated.setdefault(before, []).extend(again)
    ops = tuple(replace(plain(op), held_bytes=held[op.name]) for op in forward.ops)
    return Body(ops), Body(tuple(new for op in backward.ops for new in (*repeated.get(op.name, ()), op)))


def _repeated(
    segment: Segment, held: dict[str, int], layer_bytes: int, *, keeps_casts: bool, early_stop: bool
) -> Iterator[AnyOp]:
    """The repeated operations of a segment. Subtracts what they hold from the bytes that the forward pass holds (`held`).

    A segment of whole layers (`layer_bytes`) keeps the input of its first layer unchanged, even if a linear layer at its start
    would keep it cast or gathered.
    """
    ops, holds, read = segment.ops, dict[str, int](), _Read()
    first = next((op.name for op in _holders(segment) if op.held_bytes > made_bytes(op)), "")
    temporary_bytes = sum(op.freed_bytes for op in ops)
    for op in ops:
        kept = max(0, held[op.name] - made_bytes(op)) if op.name == first else 0
        narrow = keeps_casts and isinstance(op, Compute) and isinstance(op.kernel, Gemm) and bool(op.kernel.dtype)
        if kept and layer_bytes and (kept != layer_bytes or narrow):
            holds[op.name], held[op.name] = held[op.name], layer_bytes
            continue
        # the result of a collective that a later operation of the segment frees is held both times
        passing = 0 if isinstance(op, Compute) else min(held[op.name], temporary_bytes)
        temporary_bytes -= passing
        holds[op.name], held[op.name] = held[op.name] - kept, kept + passing
    for consumer, taken_bytes in segment.results:
        taken_bytes = min(taken_bytes, held[consumer.name])
        held[consumer.name] -= taken_bytes
        _add(read, ops, consumer.operator, taken_bytes)
    if early_stop and not segment.results:
        ops, result = _until_needed(ops, holds)
        _add(read, ops, *result)
    yield from _again(ops, holds, read)
    yield from _arrival(ops) if segment.results else ()


def _holders(segment: Segment) -> Sequence[AnyOp]:
    """Operations that may hold the input of the segment: the first of them that holds its input does. Later ones hold results."""
    if not segment.results:
        return segment.ops
    return [op for op in segment.ops if isinstance(op, Compute) and op.held_bytes][:1]


def _arrival(ops: Sequence[AnyOp]) -> Iterator[Wait]:
    """A wait for repeated collectives that run beside each other, or beside the operations after them in the forward pass."""
    waited = {name for op in ops for name in op.after or ()}
    loose = [op.name for op in ops if op.detached and op.name not in waited]
    if loose:
        after = tuple(f"{name}.again" for name in (*loose, *[op.name for op in ops if not op.detached][-1:]))
        last, why = ops[-1], Purpose.RECOMPUTE
        yield Wait(
            name=f"{last.name}.arrival", streams=(COMPUTE,), after=after, layer=last.layer, purpose=why, operator=last.operator
        )


def _add(read: _Read, ops: Sequence[AnyOp], operator: str, result_bytes: int) -> None:
    """Lets the last repeated operation hold a result that an operator reads."""
    if ops and result_bytes:
        read[ops[-1].name] = (*read.get(ops[-1].name, ()), (operator, result_bytes))


def _again(ops: Sequence[AnyOp], holds: Mapping[str, int], read: _Read) -> Iterator[AnyOp]:
    """The copies of operations in the backward pass, with the bytes that they hold there for themselves and for others."""
    names = {op.name: f"{op.name}.again" for op in ops}
    for op in ops:
        after = tuple(names[name] for name in op.after or () if name in names) or None
        results = read.get(op.name, ())
        held_bytes = holds[op.name] + sum(size_bytes for _, size_bytes in results)
        new = replace(plain(op), name=names[op.name], purpose=Purpose.RECOMPUTE, after=after, held_bytes=held_bytes)
        new = replace(new, held_results=results)
        yield replace(new, parameters=0, whole_parameters=0) if isinstance(new, Compute) else new


def _per_op(layer: tuple[AnyOp, ...], held: dict[str, int], layer_bytes: int, *, compiled: bool) -> Iterator[AnyOp]:
    """The repeated operations of a layer that keeps single results. Subtracts the bytes that they hold from `held`.

    A kept result, like the input of the layer, replaces the bytes that the next operation holds for its input.
    """
    attention = {op.operator for op in layer if isinstance(op, Compute) and isinstance(op.kernel, Attention)}
    scattered = {op.operator for op in layer if _is_scatter(op)}
    results = dict(_kept_results(layer))
    holds, in_place, unread = dict[str, int](), float(layer_bytes), ("", 0)
    exchanged, read = set[str](), _Read()
    for op in layer:
        made = made_bytes(op)
        if held[op.name] > made:
            stays, in_place, unread = int(min(held[op.name] - made, in_place)), 0, ("", 0)
        else:
            stays = 0
        stays += made if op.operator in attention else 0
        holds[op.name], held[op.name] = held[op.name] - stays, stays
        exchanged |= {op.operator} if _is_scatter(op) else set()
        if op.operator in exchanged or (op.operator in attention and isinstance(op, Compute)):
            in_place = inf
        elif op.operator in results and isinstance(op, Compute) and isinstance(op.kernel, Gemm):
            in_place = results[op.operator].kept_bytes
            unread = op.name, results[op.operator].kept_bytes
    if not compiled and unread[0]:
        held[unread[0]] += unread[1]
    whole = {operator for operator, result in results.items() if result.columns == result.of}
    ops, result = _until_needed(layer, holds)
    again: list[AnyOp] = []
    for op in ops:
        if op.operator in attention | whole or (op.operator in scattered and (compiled or isinstance(op, Collective))):
            _add(read, again, op.operator, holds[op.name])
            held[op.name] += 0 if again else holds[op.name]
        else:
            again.append(results[op.operator].rest(op) if op.operator in results else op)
    _add(read, again, *result)
    yield from _again(again, holds, read)


def _is_scatter(op: AnyOp) -> bool:
    """Whether an operation is the reduce-scatter of a layer's result, or an exchange of its pieces."""
    return isinstance(op, Collective) and op.purpose is Purpose.REDUCE and op.kind != "all_reduce"


def _kept_results(layer: Sequence[AnyOp]) -> Iterator[tuple[str, _Result]]:
    """The kept results of linear layers without biases: those of every second matrix product, beginning with the first."""
    count = 0
    for op in layer:
        if isinstance(op, Compute) and isinstance(op.kernel, Gemm) and op.parameters == op.kernel.k * op.kernel.n:
            outputs = op.matrices or (1,)
            pieces = (one.kernel for one in layer if one.operator == op.operator and isinstance(one, Compute))
            result_bytes = sum(kernel.result_bytes for kernel in pieces if isinstance(kernel, Gemm))
            yield op.operator, _Result(sum(outputs[count % 2 :: 2]), sum(outputs), result_bytes)
            count += len(outputs)


def _until_needed(ops: tuple[AnyOp, ...], holds: dict[str, int]) -> tuple[tuple[AnyOp, ...], tuple[str, int]]:
    """The operations up to the last one whose result is needed; the operator that reads it, and its bytes if a later operation
    holds it."""
    needed = [i for i, op in enumerate(ops) if holds[op.name]]
    of_experts = [i for i, op in enumerate(ops) if isinstance(op, Compute) and op.expert]
    if not any(holds[ops[i].name] for i in of_experts):
        needed += of_experts  # a rank without rows takes part in the same collectives as those with rows
    last = max(needed, default=0)
    if made_bytes(ops[last]):
        end = max(i for i, op in enumerate(ops) if op.operator == ops[last].operator)
        return ops[: end + 1], ("", 0)
    return ops[:last], (ops[last].operator, holds[ops[last].name])
