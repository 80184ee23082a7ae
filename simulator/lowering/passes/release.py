"""Release of activations: the backward pass of a microbatch frees, layer by layer, the bytes that the forward pass holds.

The last kernel of a layer in B, or in W where the backward pass is split, frees the bytes that the operators of the layer hold:
activations for input gradients alone stay until then, as in the frameworks. So do activations that the backward pass recomputed.
The last kernel of the pass frees the activations of a layer without a kernel in this pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...program.program import AnyOp, Body, Compute, Program

Place = tuple[int, bool]
"""(layer within the stage or -1, whether the operation is in a layer or behind the layers)."""


def release_activations(program: Program) -> Program:
    """The program with the bytes that each kernel frees, in every backward body that ends a microbatch on a stage."""
    bodies = dict(program.bodies)
    for order in program.orders:
        calls = {(step.stage, step.microbatch, step.phase): step.body for step in order}
        for step in order:
            if step.phase in ("B", "W") and bodies[step.body] is program.bodies[step.body]:
                phases = "FB" if step.phase == "B" else "FIW"
                names = (calls[step.stage, step.microbatch, phase] for phase in phases)
                bodies[step.body] = _releasing(program.bodies[step.body], *(program.bodies[name] for name in names))
    return replace(program, bodies=bodies)


def _releasing(body: Body, forward: Body, *backward: Body) -> Body:
    """A backward body that frees what all the bodies of its microbatch hold, itself included."""
    held_bytes: dict[Place, int] = {}
    for ops in (forward.ops, *(one.ops[::-1] for one in backward)):
        for place, op in _with_places(ops):
            held_bytes[place] = held_bytes.get(place, 0) + op.held_bytes - op.freed_bytes
    last: dict[Place, str] = {}
    for place, op in _with_places(reversed(body.ops)):
        if isinstance(op, Compute):
            last.setdefault(place, op.name)
    end = next((op.name for op in reversed(body.ops) if isinstance(op, Compute)), body.ops[-1].name)
    freed: dict[str, int] = {}
    for place, held in held_bytes.items():
        name = last.get(place, end)
        freed[name] = freed.get(name, 0) + held
    return Body(tuple(replace(op, freed_bytes=op.freed_bytes + freed[op.name]) if op.name in freed else op for op in body.ops))


def _with_places(ops: Iterable[AnyOp]) -> Iterator[tuple[Place, AnyOp]]:
    """Operations in forward order, each with its place."""
    behind = False
    for op in ops:
        behind = behind or op.layer >= 0
        yield (op.layer, behind), op
