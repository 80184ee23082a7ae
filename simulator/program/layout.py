"""Layout: a schedule applied to a shape, checked: the rank of every stage, and the boxes of every rank in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, repeat, starmap
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Fault, UserError
from .slot import KINDS, PRECEDED_BY, WEIGHT_GRADIENT, Box, Exchange, Pair, Shape, Slot, looped, slots_of

NUMBER_OF_KIND = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(frozen=True, eq=False, slots=True)
class SlotColumns:
    """The slots of a rank in their order, those of a pair one after the other, as columns of whole numbers."""

    kind: NDArray[Any]
    """The place of its kind in `KINDS`; -1 for something else."""
    stage: NDArray[Any]
    microbatch: NDArray[Any]
    place: NDArray[Any]
    """0, or 1 and 2 for the slots of a pair."""

    @classmethod
    def of(cls, boxes: Sequence[Box]) -> SlotColumns:
        """The columns of some boxes."""
        paired = Pair in set(map(type, boxes))
        slots: Sequence[Any] = _flat(boxes) if paired else boxes
        place = (at for box in boxes for at in ((1, 2) if isinstance(box, Pair) else (0,))) if paired else repeat(0)
        kinds, stages, microbatches = (map(itemgetter(at), slots) for at in range(3))
        numbers = map(NUMBER_OF_KIND.get, kinds, repeat(-1))
        return cls(*(np.fromiter(column, np.int64, len(slots)) for column in (numbers, stages, microbatches, place)))

    def __len__(self) -> int:
        """Number of slots."""
        return len(self.kind)

    def part(self, begin: int, end: int) -> SlotColumns:
        """Some of the slots that follow each other."""
        return SlotColumns(*(column[begin:end] for column in (self.kind, self.stage, self.microbatch, self.place)))


@dataclass(frozen=True)
class Layout:
    """A schedule applied to a shape: the rank of every stage, and every rank's boxes in order.

    Where microbatches take several directions, each has its own copy of the model: an *instance* of a stage is that stage
    in one direction, numbered direction x stages + stage.
    """

    shape: Shape
    placements: tuple[tuple[int, ...], ...]
    """Direction -> stage -> rank."""
    orders: tuple[tuple[Box, ...], ...]
    defined_exchanges: tuple[tuple[Exchange, ...], ...] = ()
    """Rank -> the exchanges that the schedule defines; empty if the schedule defines no exchanges."""
    shares: int = 0
    """Number of stages, the last ones, that hold shares of the vocabulary instead of layers."""

    @cached_property
    def slots(self) -> SlotColumns:
        """The slots of all ranks as columns, rank by rank."""
        return SlotColumns.of([box for order in self.orders for box in order])

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """The place in `slots` of the first slot of every rank, and the number of all slots."""
        return (0, *accumulate(len(order) + [*map(type, order)].count(Pair) for order in self.orders))

    @cached_property
    def columns(self) -> tuple[SlotColumns, ...]:
        """The slots of every rank as columns."""
        return tuple(starmap(self.slots.part, pairwise(self.begins)))

    @property
    def stages(self) -> int:
        return len(self.placements[0])

    @property
    def layered(self) -> int:
        """Number of stages that hold layers."""
        return self.stages - self.shares

    @cached_property
    def placement(self) -> tuple[int, ...]:
        """The rank of every instance of a stage."""
        return tuple(rank for placement in self.placements for rank in placement)

    def instance(self, stage: int, microbatch: int) -> int:
        """The instance of a stage through which a microbatch passes."""
        return microbatch * len(self.placements) // self.shape.microbatches * self.stages + stage

    def exchanges(self, rank: int) -> tuple[Exchange, ...]:
        """The exchanges of a rank where transfers block: as the schedule defines them, else one exchange per box."""
        if self.defined_exchanges:
            return self.defined_exchanges[rank]
        boxes = (slots_of(box) for box in self.orders[rank])
        return tuple(Exchange(slots[-1], tuple(s for s in slots if s.kind != WEIGHT_GRADIENT)) for slots in boxes)

    def chunk(self, instance: int) -> int:
        """The index of an instance among the stages of its rank, in forward order."""
        return self.placement[:instance].count(self.placement[instance])

    @cached_property
    def sampled(self) -> Layout:
        """The layout with a single microbatch per direction, which has every slot of any microbatch of the direction."""
        directions, splits, of = len(self.placements), self.shape.splits, self.slots
        number = of.microbatch * directions // self.shape.microbatches * splits + of.microbatch % splits
        rank = np.repeat(np.arange(len(self.orders)), np.diff(self.begins))
        names = ((rank * len(KINDS) + of.kind) * self.stages + of.stage) * directions * splits + number
        first = np.sort(np.unique(names, return_index=True)[1])
        columns = (column[first].tolist() for column in (rank, of.kind, of.stage, number))
        orders: list[list[Slot]] = [[] for _ in self.orders]
        for on, kind, stage, at in zip(*columns, strict=True):
            orders[on].append(Slot(KINDS[kind], stage, at))
        shape = replace(self.shape, microbatches=directions * splits)
        return Layout(shape, self.placements, tuple(map(tuple, orders)), shares=self.shares)


def lay_out(schedule: Any, shape: Shape, *, exchanges: bool = True) -> Layout:
    """Applies a schedule to a shape and checks the result. Raises `OutsideDomain` or `UserError` with every fault.

    Exchanges may be left out: they matter only where transfers block.
    """
    shape = as_taken(schedule, shape)
    if hasattr(schedule, "refuse"):
        schedule.refuse(shape)
    placements = placements_of(schedule, shape)
    if hasattr(schedule, "orders"):
        orders = tuple(tuple(order) for order in schedule.orders(shape))
    else:
        orders = tuple(tuple(schedule.order(rank, shape)) for rank in range(shape.ranks))
    ranks = range(shape.ranks) if exchanges and hasattr(schedule, "exchanges") else ()
    defined_exchanges = tuple(tuple(schedule.exchanges(rank, shape)) for rank in ranks)
    layout = Layout(shape, placements, orders, defined_exchanges)
    check(layout)
    return layout


def placements_of(schedule: Any, shape: Shape) -> tuple[tuple[int, ...], ...]:
    """Direction -> stage -> rank, as a schedule places the stages of a shape."""
    if hasattr(schedule, "placements"):
        return tuple(tuple(placement) for placement in schedule.placements(shape))
    return (tuple(schedule.placement(shape)) if hasattr(schedule, "placement") else looped(shape),)


def as_taken(schedule: Any, shape: Shape) -> Shape:
    """The shape with the number of chunks that the schedule requires, if the schedule has a fixed number."""
    return replace(shape, chunks=getattr(schedule, "CHUNKS", shape.chunks))


def check(layout: Layout) -> None:
    """Checks that F and B (or F, I and W) of each stage and microbatch occur once, on the stage's rank and in this order.

    Copies of a stage must be on different ranks, and exchanges must send each result of the rank once.
    """
    faults = list(_copies_on_one_rank(layout))
    for rank, boxes in enumerate(layout.orders if layout.defined_exchanges else ()):
        faults += _of_exchanges(rank, boxes, layout)
    if not _is_sound(layout):
        faults = [*_faults_of_slots(layout), *faults]
    if faults:
        raise UserError(faults=[Fault(fault.message, fault.hint, "schedule") for fault in faults])


def _faults_of_slots(layout: Layout) -> list[Fault]:
    faults: list[Fault] = []
    seen: dict[Slot, int] = {}
    placement = layout.placement
    for rank, boxes in enumerate(layout.orders):
        for slot in _flat(boxes):
            faults += _misplaced(slot, rank, layout, placement)
            if slot in seen:
                faults.append(Fault(f"{slot} occurs twice: on rank {seen[slot]} and on rank {rank}"))
            seen.setdefault(slot, rank)
        faults += _out_of_order(rank, boxes)
    return faults + _missing(seen, layout)


def _is_sound(layout: Layout) -> bool:
    """Whether the slots have no fault, which is faster than a search for the faults."""
    stages, microbatches, of = layout.stages, layout.shape.microbatches, layout.slots
    inside = (of.kind >= 0) & (of.stage >= 0) & (of.stage < stages) & (of.microbatch >= 0) & (of.microbatch < microbatches)
    if not inside.all():
        return False
    instance = of.microbatch * len(layout.placements) // microbatches * stages + of.stage
    if (np.array(layout.placement)[instance] != np.repeat(np.arange(len(layout.orders)), np.diff(layout.begins))).any():
        return False
    at = np.full((len(KINDS), stages, microbatches), -1)
    at[of.kind, of.stage, of.microbatch] = np.arange(len(of))
    forward, backward, inputs, weights = at
    fused = (forward >= 0) & (backward > forward) & (inputs < 0) & (weights < 0)
    split = (forward >= 0) & (backward < 0) & (inputs > forward) & (weights > inputs)
    once = int((at >= 0).sum()) == len(of)
    return once and bool((fused | split).all())


def _flat(boxes: Iterable[Box]) -> list[Slot]:
    return [slot for box in boxes for slot in slots_of(box)]


def _misplaced(slot: Slot, rank: int, layout: Layout, placement: Sequence[int]) -> list[Fault]:
    if slot.kind not in KINDS:
        return [Fault(f"{slot.kind!r} is not a kind of slot", hint=f"one of {', '.join(KINDS)}")]
    if not (0 <= slot.stage < layout.stages and 0 <= slot.microbatch < layout.shape.microbatches):
        return [Fault(f"{slot} is outside {layout.stages} stages and {layout.shape.microbatches} microbatches")]
    placed = placement[layout.instance(slot.stage, slot.microbatch)]
    if placed != rank:
        return [Fault(f"{slot} is on rank {rank}, but stage {slot.stage} is placed on rank {placed}")]
    return []


def _out_of_order(rank: int, boxes: Sequence[Box]) -> list[Fault]:
    """Faults of slots in the wrong order: F must precede B or I of a stage and microbatch, and I must precede W."""
    position = {slot: i for i, slot in enumerate(_flat(boxes))}
    return [
        Fault(f"rank {rank} runs {slot} before {needed}")
        for slot, at in position.items()
        if position.get(needed := slot._replace(kind=PRECEDED_BY.get(slot.kind, "")), -1) > at
    ]


def _copies_on_one_rank(layout: Layout) -> Iterator[Fault]:
    """Faults of stages that a rank holds in more than one direction: two copies of its weights, which no reduction keeps
    equal."""
    for stage, ranks in enumerate(zip(*layout.placements, strict=True)):
        for rank in sorted({rank for rank in ranks if ranks.count(rank) > 1}):
            hint = "placements in which every direction has the stage on another rank, such as opposite ones on an even number"
            yield Fault(f"stage {stage} stands on rank {rank} in two directions", f"{hint} of ranks")


def _of_exchanges(rank: int, boxes: Sequence[Box], layout: Layout) -> Iterator[Fault]:
    """Faults of exchanges: slots that the rank does not run, and results that leave twice or before their slot has ended."""
    position = {slot: at for at, slot in enumerate(_flat(boxes))}
    sent: set[Slot] = set()
    for after, sends, receives in layout.defined_exchanges[rank]:
        for slot in (*sends, *receives, *([after] if after else [])):
            if slot not in position:
                yield Fault(f"exchanges of rank {rank} name {slot}, which it does not run")
        begins = position.get(after, len(position)) if after else -1
        for slot in sends:
            if slot in sent:
                yield Fault(f"exchanges of rank {rank} send {slot} twice", "send each result in one exchange")
            elif position.get(slot, -1) > begins:
                when = f"behind {after}" if after else "before the first slot"
                hint = f"send it after {slot}, or after a later slot"
                yield Fault(f"exchanges of rank {rank} send {slot} {when}, when it has not run", hint)
            sent.add(slot)


def _missing(seen: dict[Slot, int], layout: Layout) -> list[Fault]:
    faults = []
    for stage in range(layout.stages):
        for microbatch in range(layout.shape.microbatches):
            has = {kind for kind in KINDS if Slot(kind, stage, microbatch) in seen}
            if has not in ({"F", "B"}, {"F", "I", "W"}):
                found = ", ".join(kind for kind in KINDS if kind in has) or "nothing"
                faults.append(Fault(f"stage {stage}, microbatch {microbatch} has {found}: it needs F and B, or F, I and W"))
    return faults
