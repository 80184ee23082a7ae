"""Shortest times of slots: how long the bodies of a plan occupy a rank, whatever the order of its schedule.

Bodies depend on the degrees that divide them, on the microbatch and on the layers of a stage, and neither on the number of
microbatches nor on the schedule. Plans of a search share most of them, so they are lowered and bound once, without transfers,
reductions and optimizer, which only add to a step. Kernels take what they take at the greatest speed that a rank ever has, and
collectives their uncontended time in the group in which it is shortest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..binding.bind import Site
from ..config import catalog, derived
from ..config.scenario import Scenario
from ..errors import UserError
from ..frozen import replace
from ..kept import Kept
from ..lowering.kept_slots import kept_slots, what_matters
from ..lowering.lower import stages_of, work_of
from ..plan.stage_layers import stage_layers
from ..program.layout import Layout, lay_out, placements_of
from ..program.program import COMPUTE, END, Program, Stage
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Shape, Slot, slots_of
from ..simulation.simulate import bound_of
from .blocks import Rows, each_body_once, rows_of

FUSED, SPLIT = (FORWARD, BACKWARD), (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
MIXED = (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
"""The kinds of slots of a schedule: a microbatch has F and B on every stage, or F, I and W; if mixed, the one or the other."""
PLACES = ("tp", "cp", "ep", "etp")
"""The axes whose groups exchange data within a slot."""
TRIED = Shape(ranks=2, microbatches=4)
"""A small shape, which shows the kinds of slots that a schedule has."""


class SlotTime(NamedTuple):
    """The shortest times of a slot, in ns."""

    through_ns: int
    """From the start of its first kernel to the end of its last one, with the collectives that must finish in between."""
    kernels_ns: int
    """The sum of its kernels."""
    result_ns: int
    """From the moment when all that it waits for is there to its result, which the next stage needs."""
    ends_ns: int
    """From that moment to the end of its last kernel."""
    result_behind_ns: int
    """From the end of its last kernel to its result, less than nothing where the result comes first."""

    @classmethod
    def least(cls, several: Iterable[SlotTime]) -> SlotTime:
        """The least of several times, each by itself."""
        return cls(*map(min, zip(*several, strict=True)))


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """The times of slots that were met, by what they depend on and by the name of their body."""

    known: dict[tuple[object, ...], dict[str, SlotTime]] = field(default_factory=dict)
    kinds: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    """Schedule -> the kinds of its slots."""
    slots: Kept = field(default_factory=lambda: Kept(0))
    """Operations of slots that were lowered."""


@dataclass(frozen=True, slots=True)
class PlanSlots:
    """The slots of a plan without their order: the stages, the number of microbatches of each direction, and the times."""

    instances: tuple[Stage, ...]
    """The stages of one direction after those of the other."""
    microbatches: tuple[int, ...]
    """Direction -> number of microbatches."""
    kinds: tuple[str, ...]
    parts: int
    """Number of parts of a sequence, each with slots of its own."""
    times: Mapping[tuple[str, int, int], SlotTime]
    """(kind, instance, part) -> time."""

    @property
    def stages(self) -> int:
        """Number of stages of a direction."""
        return len(self.instances) // len(self.microbatches)

    def busy_ns(self, instance: int, *, kernels: bool) -> int:
        """The time of all slots of a microbatch on a stage: of their `kernels` alone, or with collectives in between."""
        return sum(self._part_ns(instance, part, kernels=kernels) for part in range(self.parts))

    def _part_ns(self, instance: int, part: int, *, kernels: bool) -> int:
        times = {kind: self.times[kind, instance, part] for kind in self.kinds}
        ns = {kind: time.kernels_ns if kernels else time.through_ns for kind, time in times.items()}
        return min(sum(ns[kind] for kind in kinds) for kinds in (FUSED, SPLIT) if set(kinds) <= set(self.kinds))

    def kernels_ns(self) -> int:
        """The sum of the kernels of a microbatch on all stages, in the direction in which it is shorter."""
        sums = [0] * len(self.microbatches)
        for instance in range(len(self.instances)):
            sums[instance // self.stages] += self.busy_ns(instance, kernels=True)
        return min(sums)


def plan_slots(scenario: Scenario, site: Site, kept: SlotTimes) -> PlanSlots | None:
    """The slots of a scenario that `feasible.check` has passed; None where its schedule cannot say them without an order."""
    kinds = slot_kinds(scenario, kept)
    if kinds is None or scenario.plan.shares_vocabulary:
        return None
    shape = derived.schedule_shape(scenario)
    placements = placements_of(scenario.schedule, shape)
    counts = stage_layers(scenario.plan, scenario.model, scenario.job.sequence_length, len(placements[0]))
    instances = tuple(stages_of(counts, Layout(shape, placements, ())))
    parts, directions = shape.splits, len(placements)
    works = {
        (instance, part): work_of(scenario.model, scenario.plan, scenario.job, stage, part if parts > 1 else -1)
        for instance, stage in enumerate(instances)
        for part in range(parts)
    }
    known = kept.known.setdefault(_key(scenario, instances), {})
    names = {(kind, *place): f"{kind} of {work}" for place, work in works.items() for kind in kinds}
    missing = {place: work for place, work in works.items() if any(f"{kind} of {work}" not in known for kind in kinds)}
    if missing:
        once = {work: place for place, work in missing.items()}
        orders: list[list[Slot]] = [[] for _ in range(shape.ranks)]
        for instance, part in once.values():
            number, direction = instance % len(placements[0]), instance // len(placements[0])
            orders[instances[instance].rank] += [Slot(kind, number, direction * parts + part) for kind in kinds]
        sample = replace(shape, microbatches=directions * parts)
        known |= _times(scenario, site, Layout(sample, placements, tuple(map(tuple, orders))), kept.slots)
    microbatches = shape.microbatches
    of_direction = [0] * directions
    for microbatch in range(microbatches // parts):
        of_direction[microbatch * parts * directions // microbatches] += 1
    return PlanSlots(instances, tuple(of_direction), kinds, parts, {place: known[name] for place, name in names.items()})


def slot_kinds(scenario: Scenario, kept: SlotTimes) -> tuple[str, ...] | None:
    """The kinds of the slots of a schedule of the catalog, which are those of any shape; None for other schedules."""
    name = scenario.plan.schedule
    if not isinstance(name, str) or catalog.is_code(name) or catalog.is_table(name):
        return None
    if name not in kept.kinds:
        splits = scenario.plan.splits
        shape = replace(TRIED, chunks=scenario.plan.chunks, splits=splits, microbatches=TRIED.microbatches * splits)
        kept.kinds[name] = kinds_at(scenario.schedule, shape)
    return kept.kinds[name]


def kinds_at(schedule: Any, shape: Shape) -> tuple[str, ...] | None:
    """The kinds of slots of a schedule at a shape; None where it refuses the shape."""
    if getattr(schedule, "PAIRS", False):
        return MIXED
    try:
        layout = lay_out(schedule, shape)
    except UserError:
        return None
    found = {slot.kind for order in layout.orders for box in order for slot in slots_of(box)}
    return next(kinds for kinds in (FUSED, SPLIT, MIXED) if found <= set(kinds))


def _key(scenario: Scenario, instances: Sequence[Stage]) -> tuple[object, ...]:
    """What the times of slots depend on besides their work: what their bodies depend on, and where their groups are."""
    plan, mesh = derived.placed(scenario), derived.mesh_of(scenario)
    groups = tuple(mesh.groups((axis,)).tobytes() for axis in PLACES if mesh.sizes.get(axis, 1) > 1)
    return *what_matters(plan, instances), scenario.job, scenario.framework, derived.replicas(scenario) == 1, groups


def _times(scenario: Scenario, site: Site, sample: Layout, kept: Kept) -> dict[str, SlotTime]:
    """The times of the bodies of a layout in which each stands once."""
    plan, dp = derived.placed(scenario), derived.replicas(scenario)
    several = kept_slots(scenario.model, plan, scenario.job, sample, dp=dp, framework=scenario.framework, kept=kept)
    of_programs = [_times_of_program(scenario, site, program) for program in several]
    return {name: SlotTime.least(of[name] for of in of_programs) for name in of_programs[0]}


def _times_of_program(scenario: Scenario, site: Site, program: Program) -> dict[str, SlotTime]:
    once = replace(program, orders=tuple(map(each_body_once, program.orders)))
    bound = bound_of(scenario, once, replace(site, host=None, sms=None))
    moves = scenario.fidelity.collectives != "stepwise"
    return {
        name: _time(rows)
        for role, order in enumerate(once.orders)
        if order
        for name, rows in rows_of(once, bound, role, moves=moves, everywhere=True).items()
    }


def _time(rows: Rows) -> SlotTime:
    """The time of a slot from the rows of its body."""
    kernels_ns = sum(ns for ns, own in zip(rows.lasts_ns, rows.own, strict=True) if own)
    compute = [row for row, streams in enumerate(rows.streams) if COMPUTE in streams]
    first, last, end = compute[0], compute[-1], rows.row(END)
    from_begin, from_first = rows.ends_ns(0), rows.ends_ns(first)
    through_ns = max(kernels_ns, from_first[last])
    return SlotTime(
        through_ns,
        kernels_ns,
        max(0, from_begin[end] + rows.tail_ns[end]),
        max(kernels_ns, from_begin[last]),
        from_first[end] - through_ns if from_first[end] >= 0 else -through_ns,
    )
