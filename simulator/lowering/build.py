"""The program of a pipeline before any other parallelism: stages, bodies of unsplit operators, steps in schedule order."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import UserError
from ..kernels import Part
from ..program.op import COMPUTE, AnyOp, Compute
from ..program.program import ACTIVATION, END, GRADIENT, LAST, LOSS, Body, Key, Program, Stage, Step
from ..program.slot import Layout, Pair, Slot, slots_of
from ..workload.blocks.dense import BlockOp
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from .kernels_of_framework import framework_kernels


def build(model: Model, job: Job, layout: Layout, framework: Framework) -> Program:
    """Each stage's operators, as the framework runs them, as bodies for F, B, I and W, called in the order of the schedule."""
    stages = tuple(split_layers(model.layers, layout))
    shared = shares_table(model, stages)
    bodies: dict[str, Body] = {}
    orders = []
    for boxes in layout.orders:
        steps = []
        for number, box in enumerate(boxes):
            for slot in slots_of(box):
                stage, part = stages[slot.stage], slot.microbatch % layout.shape.splits
                ends = "embedding, " * stage.embedding, ", head" * stage.head
                name = f"{slot.kind} of {ends[0]}{stage.layers} layers{ends[1]}"
                name += f", part {part}" if layout.shape.splits > 1 else ""
                if name not in bodies:
                    operators = _operators(model, job, stage, shared, layout.shape.splits, part)
                    bodies[name] = _body(slot.kind, framework_kernels(operators, framework))
                steps.append(_step(name, slot, layout, number if isinstance(box, Pair) else -1))
        orders.append(tuple(steps))
    return Program(stages, bodies, tuple(orders), {})


def split_layers(layers: int, layout: Layout) -> Iterator[Stage]:
    """Layers divided over the stages, what is left over one each to the first; embedding and head are not counted."""
    if layers < layout.stages:
        raise UserError(f"{layers} layers do not fill {layout.stages} stages", hint=f"pp x chunks can be at most {layers}")
    share, rest = divmod(layers, layout.stages)
    for instance, rank in enumerate(layout.placement):
        number = instance % layout.stages
        first, count = number * share + min(number, rest), share + (number < rest)
        yield Stage(number, rank, layout.chunk(instance), first, count, number == 0, number == layout.stages - 1)


def shares_table(model: Model, stages: tuple[Stage, ...]) -> bool:
    """Whether embedding and head are tied and always on one rank, so that it holds their table once."""
    embedded, headed = {s.rank for s in stages if s.embedding}, {s.rank for s in stages if s.head}
    return model.tied_embeddings and embedded == headed


def _operators(model: Model, job: Job, stage: Stage, shared: bool, splits: int, part: int) -> list[tuple[int, BlockOp]]:
    """(layer within the stage or -1, operator) in forward order, for one of `splits` parts of every sequence."""
    seq = job.sequence_length // splits
    size = {"batch": job.microbatch_size, "seq": seq, "element_bytes": job.element_bytes}
    block = model.block
    before = [(-1, op) for op in block.embedding(model, **size)] if stage.embedding else []
    layer = block.layer(model, **size, prefix=part * seq)
    middle = [(i, op) for i in range(stage.layers) for op in layer]
    after = [(-1, op) for op in block.head(model, **size, owns_table=not shared)] if stage.head else []
    return before + middle + after


def _body(kind: str, operators: list[tuple[int, BlockOp]]) -> Body:
    """F in forward order; B, I and W backwards, with input gradients, weight gradients or (B) both."""
    if kind == "F":
        return Body(tuple(new for layer, op in operators for new in _forward(layer, op)))
    parts = {"I": (Part.INPUT_GRADIENT,), "W": (Part.WEIGHT_GRADIENT,)}.get(kind, (Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT))
    return Body(tuple(new for layer, op in reversed(operators) for part in parts for new in _backward(layer, op, part)))


def _forward(layer: int, op: BlockOp) -> Iterator[AnyOp]:
    if op.forward is not None:
        yield Compute(
            name=op_name(layer, op.name),
            streams=(COMPUTE,),
            layer=layer,
            kernel=op.forward,
            split=op.split,
            parameters=op.parameters,
            whole_parameters=op.whole_parameters,
            held_bytes=op.saved_bytes,
        )


def _backward(layer: int, op: BlockOp, part: Part) -> Iterator[AnyOp]:
    kernel = op.input_gradient if part is Part.INPUT_GRADIENT else op.weight_gradient
    if kernel is not None:
        twin = op_name(layer, op.name)
        yield Compute(
            name=f"{twin}.{'dgrad' if part is Part.INPUT_GRADIENT else 'wgrad'}",
            streams=(COMPUTE,),
            layer=layer,
            part=part,
            twin=twin,
            kernel=kernel,
            split=op.split,
            adds_gradient=part is Part.WEIGHT_GRADIENT or op.fused_weight_gradient,
        )


def op_name(layer: int, name: str) -> str:
    """An operator's name within its body: the layer in front, if it has one."""
    return f"{layer}.{name}" if layer >= 0 else name


def _step(body: str, slot: Slot, layout: Layout, pair: int) -> Step:
    """A slot as a call: what it waits for and what it produces."""
    kind, number, microbatch = slot
    stage, last = layout.instance(number, microbatch), number == layout.stages - 1
    after: tuple[Key, ...] = ()
    outputs: tuple[tuple[str, Key], ...] = ()
    if kind == "F":
        after = ((ACTIVATION, stage, microbatch),) if number else ()
        outputs = ((END, (LOSS, stage, microbatch) if last else (ACTIVATION, stage + 1, microbatch)),)
    elif kind in ("B", "I"):
        after = ((LOSS if last else GRADIENT, stage, microbatch),)
        outputs = ((END, (GRADIENT, stage - 1, microbatch)),) if number else ()
    return Step(body, kind, stage, microbatch, after, (*outputs, (LAST, ("done", kind, stage, microbatch))), pair=pair)
