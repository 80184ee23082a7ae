"""Slots of plans that share bodies: equal bodies are lowered only once.

The bodies of a stage depend on the degrees that divide them, on the microbatch, and on the layers and the ends of the stage;
not on the order of a schedule, the number of stages or the number of replicas. So bodies are kept by their work (`work_of`), and
only new works are lowered. Works that differ in the number of equal layers share a work of few layers (`few_layers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..bounded_cache import Cache
from ..errors import InvariantBroken
from ..frozen import replace
from ..plan.plan import EVEN, Plan
from ..plan.stage_layers import stage_layers
from ..program.layout import Layout
from ..program.program import Body, Program, Stage
from ..program.slot import FORWARD, slots_of
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.model import Model
from .build import Called, called_by, stages_of, steps_of, work_of
from .few_layers import FEW, are_alike, are_proven, longer, with_few_layers
from .lower import lower_slots

Programs = tuple[Program, ...]
"""A program for each position in a ring without balance, or one for all ranks."""


def kept_slots(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, kept: Cache) -> Programs:
    """The result of `lower_slots` for a layout of few microbatches. The weight of kept bodies is their number of operations."""
    slots = _slots(model, plan, job, layout, dp=dp, framework=framework, kept=kept)
    return slots.joined(slots.of_work) if slots else lower_slots(model, plan, job, layout, dp=dp, framework=framework)


def short_slots(
    model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, kept: Cache
) -> Programs | None:
    """As `kept_slots` for a plan of many equal layers, but with the operations of `FEW` + 1 layers in every body.

    None if a stage has no more layers than that, or if its layers are not proven to repeat.
    """
    slots = _slots(model, plan, job, layout, dp=dp, framework=framework, kept=kept)
    return slots.joined(slots.short) if slots and all(map(slots.few, slots.calls.values())) else None


@dataclass(frozen=True, slots=True)
class _Slots:
    """The slots of a plan, to be lowered work by work."""

    model: Model
    plan: Plan
    job: Job
    layout: Layout
    dp: int
    framework: Framework
    kept: Cache
    stages: tuple[Stage, ...]
    calls: dict[str, list[Called]]
    """Work -> the slots that call it."""
    common: Hashable
    """The key of everything that all works depend on."""

    def joined(self, programs_of: Callable[[str, Sequence[Called]], Programs]) -> Programs:
        """The programs of the layout from those of each work."""
        works = [programs_of(work, called) for work, called in self.calls.items()]
        work_of_call = {call: work for work, called in self.calls.items() for call in called}
        names = {call: f"{call[0]} of {work_of_call[call]}" for call in called_by(self.layout)}
        return tuple(_joined(self.stages, of, names, self.layout) for of in zip(*works, strict=True))

    def of_work(self, work: str, called: Sequence[Called]) -> Programs:
        """The programs of a work, from the cache or lowered now."""
        key = self.common, work, frozenset(kind for kind, _, _ in called)
        return self.kept.of(key, lambda: self._made(work, called), _operations)

    def few(self, called: Sequence[Called]) -> tuple[Programs, Programs] | None:
        """The programs of a work with `FEW` layers and with one more; None if the second is not a repetition of the first."""
        stage = self.stages[called[0][1]]
        if stage.layers <= FEW + 1 or not are_alike(self.model, self.plan, self.job):
            return None
        key = self.common, stage.embedding, stage.head, frozenset((kind, part) for kind, _, part in called)
        return self.kept.of(key, lambda: self._made_few(called), lambda made: sum(map(_operations, made or ())))

    def short(self, work: str, called: Sequence[Called]) -> Programs:
        """The programs of a work reduced to `FEW` + 1 layers."""
        found = self.few(called)
        if found is None:
            raise InvariantBroken(f"{work}: its layers are not alike")
        return tuple(_by_work(program, work, lambda body: body) for program in found[1])

    def _made(self, work: str, called: Sequence[Called]) -> Programs:
        """Lowers a work; many equal layers are made by repetition."""
        found, layers = self.few(called), self.stages[called[0][1]].layers
        if found is None:
            return self._lowered(self.model, self.plan, called)
        return tuple(_by_work(program, work, lambda body: longer(body, layers)) for program in found[0])

    def _made_few(self, called: Sequence[Called]) -> tuple[Programs, Programs] | None:
        counts = [stage.layers for stage in self.stages[: self.layout.layered]]
        model, plan = self.model, self.plan
        few, more = (self._lowered(*with_few_layers(model, plan, counts, layers), called) for layers in (FEW, FEW + 1))
        return (few, more) if all(map(are_proven, few, more)) else None

    def _lowered(self, model: Model, plan: Plan, called: Sequence[Called]) -> Programs:
        programs = lower_slots(model, plan, self.job, _only(self.layout, called), dp=self.dp, framework=self.framework)
        return tuple(replace(program, stages=(), orders=()) for program in programs)


def _slots(model: Model, plan: Plan, job: Job, layout: Layout, *, dp: int, framework: Framework, kept: Cache) -> _Slots | None:
    """The works of a layout; None if bodies depend on more than their work."""
    if plan.shares_vocabulary or plan.offloading.activations or plan.moe.routing != "balanced":
        return None
    splits = layout.shape.splits
    stages = tuple(stages_of(stage_layers(plan, model, job.sequence_length, layout.layered), layout))
    calls: dict[str, list[Called]] = {}
    for call in called_by(layout):
        calls.setdefault(work_of(model, plan, job, stages[call[1]], call[2] if splits > 1 else -1), []).append(call)
    divided = (dp, plan.full_sharding.group) if job.narrow else (dp == 1, plan.copies_of_experts(dp) == 1)
    of_job, of_replicas = replace(job, global_batch=1), divided
    common = model, *what_matters(plan, stages), of_job, framework, of_replicas, splits
    return _Slots(model, plan, job, layout, dp, framework, kept, stages, calls, common)


def _by_work(program: Program, work: str, change: Callable[[Body], Body]) -> Program:
    """The program of a work from that of the same work with fewer layers."""
    bodies = {f"{name.partition(' of ')[0]} of {work}": change(body) for name, body in program.bodies.items()}
    return replace(program, bodies=bodies)


def what_matters(plan: Plan, stages: Sequence[Stage]) -> tuple[Hashable, ...]:
    """What the bodies of a plan depend on besides their work: the plan without fields that only order and divide bodies, the
    times at which gradients are reduced and parameters released, and whether one rank has both ends of the model.

    Reductions, gathers and transfers are not part of slots, so the sharding of state and its overlap do not matter.
    """
    overlap, sharding = replace(plan.overlap, dp=None, pp=None), plan.full_sharding
    alike = replace(plan, pp=1, dp=None, chunks=1, schedule=FORWARD, layout=EVEN, group=None, memory_limit=1.0, overlap=overlap)
    alike = replace(alike, sharding=None)
    embedded, headed = ({stage.rank for stage in stages if getattr(stage, end)} for end in ("embedding", "head"))
    return alike, sharding.reduce, sharding.regathers, embedded == headed


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
