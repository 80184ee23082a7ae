"""Shortest times of slots: the time that the bodies of a plan occupy a rank, for any order of its schedule.

Bodies depend on the degrees that divide them, on the microbatch and on the layers of a stage, but not on the number of
microbatches or the schedule. Plans of a search share most of them, so they are lowered and bound once, without transfers,
reductions and optimizer, which only add to a step. Kernels take their time at the greatest speed that a rank ever has, and
collectives their uncontended time in the group in which it is shortest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from ..binding.bind import Site
from ..config import catalog, derived
from ..config.scenario import Scenario
from ..errors import UserError
from ..frozen import replace
from ..lowering.build import stages_of, work_of
from ..lowering.kept_slots import what_matters
from ..plan.stage_layers import stage_layers
from ..program.layout import Layout, lay_out, placements_of
from ..program.operations import COMPUTE
from ..program.program import END, Stage
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Shape, slots_of
from .blocks import Rows, through_pair_ns
from .slot_rows import KeptRows, RowsByName, Sample

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
    """From the moment when all its inputs are available to its result, which the next stage needs."""
    ends_ns: int
    """From that moment to the end of its last kernel."""
    result_behind_ns: int
    """From the end of its last kernel to its result; negative if the result comes first."""

    @classmethod
    def least(cls, several: Iterable[SlotTime]) -> SlotTime:
        """The least of several times, each by itself."""
        return cls(*map(min, zip(*several, strict=True)))


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """Cached times of bodies, by their names."""

    slots: dict[str, SlotTime] = field(default_factory=dict)
    pairs_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of a forward body and a backward body that run together."""


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Cached times of slots, by everything that they depend on."""

    known: dict[Hashable, KnownTimes] = field(default_factory=dict)
    kinds: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    """Schedule -> the kinds of its slots."""
    rows: KeptRows = field(default_factory=KeptRows)


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
    pairs_ns: Mapping[tuple[int, int], int]
    """In a schedule with pairs of slots, (instance of the forward slot, of the backward slot) -> the shortest time from their
    first kernel to their last, where they run together on a rank. Empty in other schedules."""

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
    """The slots of a scenario that `feasible.check` has passed; None if its schedule does not determine them without an order."""
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
    key = _key(scenario, instances)
    known = kept.known.setdefault(key, KnownTimes())
    sample = Sample(scenario, site, replace(shape, microbatches=directions * parts), placements, instances, kinds)
    names = {(kind, *place): f"{kind} of {work}" for place, work in works.items() for kind in kinds}
    missing = {work: place for place, work in works.items() if any(f"{kind} of {work}" not in known.slots for kind in kinds)}
    pairs = _pairs(names, instances) if parts == 1 and _alternates(scenario) else {}
    new_pairs = set(pairs.values()) - known.pairs_ns.keys()
    if missing or new_pairs:
        asked = {work: place for place, work in works.items()} if new_pairs else missing
        wanted = {name for name in names.values() if new_pairs or name not in known.slots}
        rows = sample.rows(asked, wanted, kept.rows, key)
        known.slots.update(_least(rows))
        known.pairs_ns.update({pair: _pair_ns(pair, rows) for pair in new_pairs})
    microbatches = shape.microbatches
    of_direction = [0] * directions
    for microbatch in range(microbatches // parts):
        of_direction[microbatch * parts * directions // microbatches] += 1
    times = {place: known.slots[name] for place, name in names.items()}
    pairs_ns = {places: known.pairs_ns[pair] for places, pair in pairs.items()}
    return PlanSlots(instances, tuple(of_direction), kinds, parts, times, pairs_ns)


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
    """The kinds of slots of a schedule at a shape; None if it does not support the shape."""
    if getattr(schedule, "PAIRS", False):
        return MIXED
    try:
        layout = lay_out(schedule, shape)
    except UserError:
        return None
    found = {slot.kind for order in layout.orders for box in order for slot in slots_of(box)}
    return next(kinds for kinds in (FUSED, SPLIT, MIXED) if found <= set(kinds))


def _key(scenario: Scenario, instances: Sequence[Stage]) -> tuple[object, ...]:
    """The key of the times of slots besides their work: the dependencies of their bodies, and the places of their groups."""
    plan, mesh = derived.placed(scenario), derived.mesh_of(scenario)
    groups = tuple(mesh.groups((axis,)).tobytes() for axis in PLACES if mesh.sizes.get(axis, 1) > 1)
    others = plan.full_sharding, scenario.job, scenario.framework, derived.alone(scenario), groups
    return *what_matters(plan, instances), *others


def _alternates(scenario: Scenario) -> bool:
    """Whether the schedule has pairs of slots, whose operations alternate evenly."""
    beside = scenario.plan.exchanges_beside_compute(scenario.framework.overlap)
    return getattr(scenario.schedule, "PAIRS", False) and not beside


def _pairs(names: Mapping[tuple[str, int, int], str], instances: Sequence[Stage]) -> dict[tuple[int, int], tuple[str, str]]:
    """The names of the bodies of a forward and a backward slot, for all two instances of stages of a rank."""
    numbers = range(len(instances))
    return {
        (one, other): (names[FORWARD, one, 0], names[BACKWARD, other, 0])
        for one, other in product(numbers, numbers)
        if instances[one].rank == instances[other].rank
    }


def _pair_ns(pair: tuple[str, str], several: Sequence[RowsByName]) -> int:
    return min(through_pair_ns(*(rows[name] for name in pair)) for rows in several)


def _least(several: Sequence[RowsByName]) -> dict[str, SlotTime]:
    """The least times of bodies with these rows in each of several programs."""
    of_programs = [{name: _time(rows) for name, rows in of.items()} for of in several]
    return {name: SlotTime.least(of[name] for of in of_programs) for name in of_programs[0]}


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
