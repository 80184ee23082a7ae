"""Slots of many layers from slots of few: equal layers are lowered once and repeated.

The body of a slot begins and ends with operations that accompany only the first and the last layers of a stage; between
them all layers are alike. A stage of `FEW` layers is lowered, and its middle layer is repeated. This is checked for every body:
the same stage with one more layer, lowered as a whole, must equal the repetition of the stage of `FEW` layers. If it does not, or
if an operation waits for one that the repetition would move away, every layer is lowered.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..frozen import replace
from ..plan.plan import Plan
from ..program.operations import AnyOp
from ..program.program import Body, Program
from ..workload.job import Job
from ..workload.model import Model

FEW = 3
"""Number of layers of a lowered stage, whose middle layer is repeated."""
MIDDLE = 1


def are_alike(model: Model, plan: Plan, job: Job) -> bool:
    """Whether all layers of a model have the same operations and the same recomputation."""
    chosen = plan.recomputation
    apart = chosen.first is not None or chosen.every > 1 or chosen.together > 1
    return len(model.kinds) == 1 and not (apart or job.frozen_layers or plan.moe.layers_differ or plan.offloading.activations)


def with_few_layers(model: Model, plan: Plan, counts: Sequence[int], layers: int) -> tuple[Model, Plan]:
    """The model and the plan whose stages have at most `layers` layers; `counts` has the layers of every stage."""
    fewer = tuple(min(count, layers) for count in counts)
    return replace(model, layers=sum(fewer)), replace(plan, layout=fewer)


def are_proven(few: Program, one_more: Program) -> bool:
    """Whether the bodies of stages of `FEW` layers, with the middle layer repeated, equal those of stages with one more layer."""
    pairs = zip(few.bodies.values(), one_more.bodies.values(), strict=True)
    try:
        return few.communicators == one_more.communicators and all(longer(body, FEW + 1) == more for body, more in pairs)
    except ApartError:
        return False


class ApartError(Exception):
    """The layers of a body do not follow each other, or wait for operations of distant layers."""


def longer(body: Body, layers: int) -> Body:
    """The body of a stage of `layers` layers, from that of a stage of `FEW`. Raises `ApartError` if the middle cannot be
    repeated."""
    middle = [at for at, op in enumerate(body.ops) if op.layer == MIDDLE]
    if body.turns or not middle or middle[-1] - middle[0] + 1 != len(middle) or any(op.unit for op in body.ops):
        raise ApartError
    more, (begin, end) = layers - FEW, (middle[0], middle[-1] + 1)
    before, behind = (tuple(_moved(op, more) for op in ops) for ops in (body.ops[:begin], body.ops[end:]))
    backwards = any(op.layer > MIDDLE for op in before)
    further, repeated = range(more, -1, -1) if backwards else range(more + 1), [_Repeated(op) for op in body.ops[begin:end]]
    return Body((*before, *(op.by(layer) for layer in further for op in repeated), *behind))


class _Repeated:
    """An operation of the middle layer, and its names without the numbers of their layers."""

    def __init__(self, op: AnyOp) -> None:
        self.op = op
        self.name, self.operator = _parts(op.name), _parts(op.operator)
        self.after = None if op.after is None else [_parts(name) for name in op.after]

    def by(self, further: int) -> AnyOp:
        """The operation of a layer that is `further` layers later."""
        if not further:
            return self.op
        after = None if self.after is None else tuple(_joined(name, further) for name in self.after)
        name, operator = _joined(self.name, further), _joined(self.operator, further)
        return replace(self.op, name=name, operator=operator, layer=self.op.layer + further, after=after)


def _moved(op: AnyOp, more: int) -> AnyOp:
    """An operation outside the middle layer, with `more` further layers in the middle."""
    waits = [_parts(name) for name in op.after or ()]
    near = {layer for layer, _ in waits if layer >= 0}
    if op.layer < MIDDLE:
        if (op.layer == 0 and max(near, default=0) > MIDDLE) or (op.layer < 0 and MIDDLE in near):
            raise ApartError
        if op.layer == 0 or not near:
            return op
        return replace(op, after=tuple(_joined(name, more if name[0] > MIDDLE else 0) for name in waits))
    if 0 in near:
        raise ApartError
    after = None if op.after is None else tuple(_joined(name, more) for name in waits)
    name, operator = (_joined(_parts(name), more) for name in (op.name, op.operator))
    return replace(op, name=name, operator=operator, layer=op.layer + more, after=after)


def _parts(name: str) -> tuple[int, str]:
    """The number of the layer before a name, or -1, and the rest of the name."""
    number, dot, rest = name.partition(".")
    return (int(number), rest) if dot and number.isdecimal() else (-1, name)


def _joined(parts: tuple[int, str], further: int) -> str:
    layer, rest = parts
    return f"{layer + further}.{rest}" if layer >= 0 else rest
