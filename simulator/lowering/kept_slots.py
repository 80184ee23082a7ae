"""Slots of plans that share bodies: what was lowered before is not lowered again.

The bodies of a stage depend on the degrees that divide them, on the microbatch, and on the layers and the ends of the stage;
neither on the order of a schedule, nor on the number of stages, nor on how many replicas there are. So bodies are kept by their
work (`work_of`), and only works that were not met are lowered.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial

from ..frozen import replace
from ..kept import Kept
from ..plan.plan import EVEN, Plan
from ..plan.stage_layers import stage_layers
from ..program.layout import Layout
from ..program.program import Program, Stage
from ..program.slot import FORWARD, slots_of
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from .lower import Called, called_by, lower_slots, stages_of, steps_of, work_of

Programs = tuple[Program, ...]
"""A program for each position in a ring without balance, or one for all ranks."""


def kept_slots(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, kept: Kept) -> Programs:
    """What `lower_slots` makes of a layout of few microbatches. Kept bodies weigh as much as they have operations."""
    if plan.shares_vocabulary or plan.offloading.activations or plan.moe.routing != "balanced":
        return lower_slots(model, plan, job, layout, dp=dp, framework=framework)
    splits = layout.shape.splits
    stages = tuple(stages_of(stage_layers(plan, model, job.sequence_length, layout.layered), layout))
    calls: dict[str, list[Called]] = {}
    for call in called_by(layout):
        calls.setdefault(work_of(model, plan, job, stages[call[1]], call[2] if splits > 1 else -1), []).append(call)
    of_job, of_replicas = replace(job, global_batch=1), dp if job.narrow else dp == 1
    common = model, *what_matters(plan, stages), of_job, framework, of_replicas, splits

    def lowered(called: Collection[Called]) -> Programs:
        few = _only(layout, called)
        programs = lower_slots(model, plan, job, few, dp=dp, framework=framework)
        return tuple(replace(program, stages=(), orders=()) for program in programs)

    works = [
        kept.of((common, work, frozenset(kind for kind, _, _ in called)), partial(lowered, called), _operations)
        for work, called in calls.items()
    ]
    work_of_call = {call: work for work, called in calls.items() for call in called}
    names = {call: f"{call[0]} of {work_of_call[call]}" for call in called_by(layout)}
    return tuple(_joined(stages, of, names, layout) for of in zip(*works, strict=True))


def what_matters(plan: Plan, stages: Sequence[Stage]) -> tuple[Hashable, ...]:
    """What the bodies of a plan depend on besides their work: all of the plan but what only orders and divides them, and whether
    one rank has both ends of the model.

    Reductions and transfers are no part of slots, so that it does not matter what runs beside these.
    """
    overlap = replace(plan.overlap, dp=None, pp=None)
    alike = replace(plan, pp=1, dp=None, chunks=1, schedule=FORWARD, layout=EVEN, group=None, memory_limit=1.0, overlap=overlap)
    embedded, headed = ({stage.rank for stage in stages if getattr(stage, end)} for end in ("embedding", "head"))
    return alike, plan.full_sharding, embedded == headed


def _only(layout: Layout, called: Collection[Called]) -> Layout:
    """The layout with one of the stages that have the same bodies."""
    kinds: dict[tuple[int, int], frozenset[str]] = {}
    for kind, stage, part in called:
        kinds[stage, part] = kinds.get((stage, part), frozenset()) | {kind}
    chosen = {of: place for place, of in reversed(kinds.items())}.values()
    splits = layout.shape.splits
    orders = (
        tuple(slot for box in order for slot in slots_of(box) if (slot.stage, slot.microbatch % splits) in chosen)
        for order in layout.orders
    )
    return replace(layout, orders=tuple(orders), defined_exchanges=())


def _operations(programs: Programs) -> int:
    """The number of operations of programs."""
    return sum(len(body.ops) for program in programs for body in program.bodies.values())


def _joined(stages: tuple[Stage, ...], works: Sequence[Program], names: Mapping[Called, str], layout: Layout) -> Program:
    """The program of several works, with its bodies in the order of their first calls."""
    bodies = {name: body for program in works for name, body in program.bodies.items()}
    communicators = {name: of for program in works for name, of in program.communicators.items()}
    called = {name: bodies[name] for name in names.values()}
    return replace(works[0], stages=stages, bodies=called, orders=steps_of(layout, names), communicators=communicators)
