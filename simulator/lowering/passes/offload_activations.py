"""Offload of activations: the first layers of every stage keep them in the memory of the host, with copies beside compute.

A stage of L layers copies the activations of its first n. The copy of layer i starts when the forward pass of the layer ends,
and layer i + L - n waits for it. The copy back starts when the backward pass reaches layer i + L - n - 1, and layer i waits for
it. So a microbatch never holds the activations of more than L - n layers. Reference: Transformer Engine d0067d0d,
pytorch/cpu_offload.py (DefaultOffloadSynchronizer), which Megatron Core calls for its `cpu_offloading_num_layers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...frozen import replace
from ...kernels import Part
from ...plan.offload import Offload
from ...program.operations import COPY_IN, COPY_OUT, OFFLOAD, PAGEABLE_IN, PAGEABLE_OUT, AnyOp, Collective, Communicator, Purpose
from ...program.program import Body, Program, Step
from ...program.slot import BACKWARD, FORWARD, INPUT_GRADIENT
from .zero3 import chain_before

KINDS = {
    "copies out": COPY_OUT, "copies in": COPY_IN, "pageable copies out": PAGEABLE_OUT, "pageable copies in": PAGEABLE_IN
}  # fmt: skip
"""Kinds of copies by the name of their communicator."""
OUT, IN, OUT_BY_CORE, IN_BY_CORE = (Communicator(name, OFFLOAD, ()) for name in KINDS)


def offload_activations(program: Program, chosen: Offload) -> Program:
    """The program in which the first layers of every stage keep their activations in the host's memory."""
    if not chosen.activations:
        return program
    bodies, orders = dict(program.bodies), []
    for order in program.orders:
        forward = {(step.stage, step.microbatch): step.body for step in order if step.phase == FORWARD}
        orders.append(tuple(_copying(step, forward, program, bodies, chosen) for step in order))
    return replace(program, bodies=bodies, orders=tuple(orders)).with_communicators(OUT, IN)


def _copying(
    step: Step, forward: Mapping[tuple[int, int], str], program: Program, bodies: dict[str, Body], chosen: Offload
) -> Step:
    """A step whose body copies activations out (F) or in (B, or I)."""
    layers, body = program.stages[step.stage].layers, program.bodies[step.body]
    window = layers - chosen.layers(layers)
    held = _held_bytes(program.bodies[forward[step.stage, step.microbatch]], layers - window)
    if not held or step.phase not in (FORWARD, BACKWARD, INPUT_GRADIENT):
        return step
    key = OFFLOAD, step.stage, step.microbatch
    copies = dict((_copies_out if step.phase == FORWARD else _copies_in)(body, held, window))
    bodies[step.body] = changed = Body(tuple(_with(body, copies, window if step.phase == FORWARD else 0)))
    *_, last = copies.values()
    if step.phase == FORWARD:
        return step._replace(outputs=(*step.outputs, (last.name, key)))
    first = next(iter(copies.values()))
    # the first operation of a body waits for the input of the step: after a copy, the former first one must wait too
    begins = () if changed.ops[0].name == body.ops[0].name else tuple((body.ops[0].name, before) for before in step.after)
    return step._replace(waits=(*step.waits, *begins, (first.name, key)))


def _held_bytes(forward: Body, layers: int) -> dict[int, int]:
    """Layer -> bytes that it holds until the backward pass, for the first layers of a stage."""
    held: dict[int, int] = {}
    for op in forward.ops:
        if 0 <= op.layer < layers:
            held[op.layer] = held.get(op.layer, 0) + op.held_bytes - op.freed_bytes
    return {layer: size_bytes for layer, size_bytes in held.items() if size_bytes}


def _copies_out(body: Body, held: Mapping[int, int], window: int) -> Iterator[tuple[tuple[int, int], Collective]]:
    """The copy of each layer with its position in a forward body and its layer."""
    first, last = _first(body), {op.layer: op.name for op in body.ops if not op.detached}
    for layer, size_bytes in held.items():
        copy = copied(f"{layer}.copy out", OUT, size_bytes, layer=layer, after=(last[layer],))
        yield (first[layer + window], layer), replace(copy, freed_bytes=size_bytes)


def _copies_in(body: Body, held: Mapping[int, int], window: int) -> Iterator[tuple[tuple[int, int], Collective]]:
    """The copy of each layer with its position in a backward body and its layer.

    Where several layers are recomputed together, the first of them is needed before the gradients of the last.
    """
    first, chain = _first(body), chain_before(body)
    for layer in sorted(held, reverse=True):
        at = min(first[layer], first[layer + window - 1])
        copy = copied(f"{layer}.copy in", IN, held[layer], layer=layer, after=chain[at], part=Part.INPUT_GRADIENT)
        yield (at, layer), replace(copy, held_bytes=held[layer])


def _with(body: Body, copies: Mapping[tuple[int, int], Collective], later: int) -> Iterator[AnyOp]:
    """The operations of a body with copies at their positions; the layer `later` layers after the one of a copy waits for it."""
    first, chain = _first(body), chain_before(body)
    waits = {first[layer + later]: copy.name for (_, layer), copy in copies.items()}
    for at, op in enumerate(body.ops):
        yield from (copy for (position, _), copy in copies.items() if position == at)
        yield replace(op, after=(*(chain[at] if op.after is None else op.after), waits[at])) if at in waits else op


def _first(body: Body) -> dict[int, int]:
    """Layer -> the position of its first operation."""
    first: dict[int, int] = {}
    for at, op in enumerate(body.ops):
        first.setdefault(op.layer, at)
    return first


def copied(
    name: str,
    way: Communicator,
    size_bytes: int,
    *,
    layer: int = -1,
    after: tuple[str, ...] | None = None,
    part: Part = Part.FORWARD,
) -> Collective:
    """A copy to or from the memory of the host, whose kind its communicator has."""
    return Collective(
        name=name,
        streams=(way.name,),
        after=after,
        detached=True,
        layer=layer,
        purpose=Purpose.OFFLOAD,
        part=part,
        communicator=way.name,
        kind=KINDS[way.name],
        payload_bytes=size_bytes,
    )
