"""Slots: the boxes of a pipeline schedule, the interface of a schedule, and the layout of a schedule for a shape.

A schedule is a module (a file in `simulator/schedules/`, or any other file) with a pure generator `order(rank, shape)` that
yields the slots of one rank in order, or a pure function `orders(shape)` that returns the slots of all ranks. Optional names are

- `placement(shape)`, the rank of every stage (else stage s is on rank s mod P), or `placements(shape)`, one for each
  direction that microbatches take: with D directions, microbatch m of M takes direction m D // M;
- `refuse(shape)`, which raises `OutsideDomain` for a shape that the schedule does not support;
- `in_flight(rank, shape)`, the largest number of chunks of activations that a rank ever holds;
- `COST_AWARE = True`, if the order depends on the durations in the shape;
- `CHUNKS`, if the schedule always runs this number of stages per rank, whatever number the user asks for;
- `exchanges(rank, shape)`, a pure generator of the exchanges of a rank where transfers block, in order (else the rank waits
  behind every box for the sends of the box);
- `PAIRS = True`, if the orders have pairs of slots that run together; `ALTERNATES = True`, if neighbouring forward and backward
  slots may run as such pairs to hide exchanges of experts (`overlap.ep`);
- `OPTIONS`, the names among `group`, `splits` and `memory_limit` of the fields of the shape that the schedule reads;
- `VOCABULARY`, the schemes in which the ranks can share embedding and head under this schedule (schedules/_vocabulary.py);
- `WITH_ONE`, the equivalent schedule for a value of 1 of the `chunks`, or `splits`, of the schedule: {"chunks": "1f1b"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ..errors import Fault, UserError

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "F", "B", "I", "W"
KINDS = (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
PRECEDED_BY = {BACKWARD: FORWARD, INPUT_GRADIENT: FORWARD, WEIGHT_GRADIENT: INPUT_GRADIENT}
"""Kinds of slots, each with the kind that must precede it for the same stage and microbatch."""


class Slot(NamedTuple):
    """One box: F, B (the whole backward), I (input gradients) or W (weight gradients) of a stage for a microbatch."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Pair(NamedTuple):
    """A forward and a backward slot that run together and hide each other's communication."""

    forward: Slot
    backward: Slot

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})"


Box = Slot | Pair


def slots_of(box: Box) -> tuple[Slot, ...]:
    return (box.forward, box.backward) if isinstance(box, Pair) else (box,)


class Exchange(NamedTuple):
    """Sends and receives of a rank at one point where transfers block: the compute of the rank waits for all transfers."""

    after: Slot | None
    """The slot of the rank after which the exchange takes place; None for an exchange before the first slot."""
    sends: tuple[Slot, ...] = ()
    """Slots whose results leave in the exchange. A result that stays on its rank is not sent."""
    receives: tuple[Slot, ...] = ()
    """Slots whose inputs have arrived at the end of the exchange."""


PerStage = float | tuple[float, ...]
"""One duration for all stages, or a duration per stage."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Unitless durations of a slot of each kind (one chunk), of an overlapped pair, and of a crossing between ranks."""

    forward: PerStage = 1.0
    input_gradient: PerStage = 1.0
    weight_gradient: PerStage = 1.0
    backward: PerStage | None = None
    """Duration of the whole backward; by default the sum of input and weight gradient."""
    pair: float | None = None
    """Duration of an overlapped forward and backward; by default the sum of both."""
    comm: float = 0.0

    def of(self, box: Box) -> float:
        """The duration of a box."""
        if isinstance(box, Pair):
            return self.of(box.forward) + self.of(box.backward) if self.pair is None else self.pair
        if box.kind == FORWARD:
            return _at(self.forward, box.stage)
        if box.kind == BACKWARD and self.backward is not None:
            return _at(self.backward, box.stage)
        input_gradient, weight_gradient = _at(self.input_gradient, box.stage), _at(self.weight_gradient, box.stage)
        return {BACKWARD: input_gradient + weight_gradient, INPUT_GRADIENT: input_gradient}.get(box.kind, weight_gradient)


def _at(duration: PerStage, stage: int) -> float:
    return duration[stage] if isinstance(duration, tuple) else duration


@dataclass(frozen=True, slots=True)
class Goal:
    """Settings of a schedule found by search: the objective, the count of memory, and the time limit of the search."""

    objective: Literal["makespan", "span"] = "makespan"
    """makespan: time from the first start to the last end; span: the longest such time of a single rank."""
    memory_count: Literal["fw", "half"] = "fw"
    """fw: an activation is held from the start of F to the end of W; half: I frees one half of it and W the other."""
    time_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The inputs of a schedule. Stages are numbered in forward order; each rank holds `chunks` stages."""

    ranks: int
    microbatches: int
    """Number of microbatches; with split sequences the number of sub-sequences, numbered microbatch x splits + part."""
    chunks: int = 1
    group: int | None = None
    """Number of microbatches per round of an interleaved schedule; None for the choice of the schedule."""
    splits: int = 1
    """Number of parts of every sequence, for a schedule that splits sequences."""
    memory_limit: float = 1.0
    """Activations that a rank may hold, in multiples of P microbatches, for schedules that are built under a limit."""
    durations: Durations = Durations()
    goal: Goal = Goal()
    """Settings of the search, for a schedule found by search."""
    barriers: int = 0
    """Number of microbatches for which the last stage waits between F and its backward pass, for schedules with `VOCABULARY`."""

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks


@dataclass(frozen=True, slots=True)
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

    @property
    def stages(self) -> int:
        return len(self.placements[0])

    @property
    def layered(self) -> int:
        """Number of stages that hold layers."""
        return self.stages - self.shares

    @property
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

    def sampled(self) -> Layout:
        """The layout with a single microbatch per direction, which has every slot of any microbatch of the direction."""
        directions, splits = len(self.placements), self.shape.splits
        number = [m * directions // self.shape.microbatches * splits + m % splits for m in range(self.shape.microbatches)]
        kept = (dict.fromkeys((kind, stage, number[m]) for kind, stage, m in _flat(order)) for order in self.orders)
        orders = tuple(tuple(Slot(*slot) for slot in slots) for slots in kept)
        return Layout(replace(self.shape, microbatches=directions * splits), self.placements, orders, shares=self.shares)


def lay_out(schedule: Any, shape: Shape) -> Layout:
    """Applies a schedule to a shape and checks the result. Raises `OutsideDomain` or `UserError` with every fault."""
    shape = as_taken(schedule, shape)
    if hasattr(schedule, "refuse"):
        schedule.refuse(shape)
    placements = placements_of(schedule, shape)
    if hasattr(schedule, "orders"):
        orders = tuple(tuple(order) for order in schedule.orders(shape))
    else:
        orders = tuple(tuple(schedule.order(rank, shape)) for rank in range(shape.ranks))
    ranks = range(shape.ranks) if hasattr(schedule, "exchanges") else ()
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


def looped(shape: Shape) -> tuple[int, ...]:
    """Stage s on rank s mod P: the placement of 1F1B and of interleaved schedules."""
    return tuple(stage % shape.ranks for stage in range(shape.stages))


def snaked(shape: Shape) -> tuple[int, ...]:
    """Stages through the ranks in ascending, then descending order, and so on: for two chunks the V of the zero-bubble papers."""
    forth = tuple(range(shape.ranks))
    return tuple(rank for chunk in range(shape.chunks) for rank in (forth[::-1] if chunk % 2 else forth))


def check(layout: Layout) -> None:
    """Checks that F and B (or F, I and W) of each stage and microbatch occur once, on the stage's rank and in this order."""
    faults: list[Fault] = []
    seen: dict[Slot, int] = {}
    placement = layout.placement
    for rank, boxes in enumerate(layout.orders):
        for slot in _flat(boxes):
            faults += _misplaced(slot, rank, layout, placement)
            if slot in seen:
                faults.append(Fault(f"{slot} stands twice: on rank {seen[slot]} and on rank {rank}"))
            seen.setdefault(slot, rank)
        faults += _out_of_order(rank, boxes)
        faults += _foreign_exchanges(rank, boxes, layout)
    faults += _missing(seen, layout)
    if faults:
        shown = faults if len(faults) <= 8 else [*faults[:8], Fault(f"... and {len(faults) - 8} faults more")]
        raise UserError("not a schedule", faults=[Fault(f.message, f.hint, "schedule") for f in shown])


def _flat(boxes: Iterable[Box]) -> list[Slot]:
    return [slot for box in boxes for slot in slots_of(box)]


def _misplaced(slot: Slot, rank: int, layout: Layout, placement: Sequence[int]) -> list[Fault]:
    if slot.kind not in KINDS:
        return [Fault(f"{slot.kind!r} is no kind of slot", hint=f"one of {', '.join(KINDS)}")]
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


def _foreign_exchanges(rank: int, boxes: Sequence[Box], layout: Layout) -> list[Fault]:
    """Faults of exchanges with slots that the rank does not run."""
    own = set(_flat(boxes))
    named = [
        slot
        for after, sends, receives in (layout.defined_exchanges[rank] if layout.defined_exchanges else ())
        for slot in (*sends, *receives, *([after] if after else []))
    ]
    return [Fault(f"exchanges of rank {rank} name {slot}, which it does not run") for slot in named if slot not in own]


def _missing(seen: dict[Slot, int], layout: Layout) -> list[Fault]:
    faults = []
    for stage in range(layout.stages):
        for microbatch in range(layout.shape.microbatches):
            has = {kind for kind in KINDS if Slot(kind, stage, microbatch) in seen}
            if has not in ({"F", "B"}, {"F", "I", "W"}):
                found = ", ".join(kind for kind in KINDS if kind in has) or "nothing"
                faults.append(Fault(f"stage {stage}, microbatch {microbatch} has {found}: it needs F and B, or F, I and W"))
    return faults
