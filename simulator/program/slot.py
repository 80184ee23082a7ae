"""Slots, the boxes of a pipeline schedule, and what a schedule is.

A schedule is a module (a file in `simulator/schedules/`, or anybody's) with a pure generator `order(rank, shape)` that
yields the slots of one rank in order, or a pure function `orders(shape)` that gives those of all ranks. It may also define

- `placement(shape)`, the rank of every stage (else stage s is on rank s mod P), or `placements(shape)`, one for each
  direction that microbatches take: with D directions, microbatch m of M takes direction m D // M;
- `refuse(shape)`, which raises `OutsideDomain` where the schedule has no answer;
- `in_flight(rank, shape)`, the most chunks of activations that a rank ever holds;
- `COST_AWARE = True`, if its order depends on the durations in the shape;
- `CHUNKS`, if it runs that many stages per rank and no other number, whatever is asked for;
- `exchanges(rank, shape)`, a pure generator of what a rank sends and receives at once where transfers block, in order (else
  it waits behind every box for what that box sends);
- `OPTIONS`, names of the fields `group`, `splits` and `memory_limit` of the shape that it looks at;
- `WITH_ONE`, the schedule that it comes to with one of the `chunks`, or `splits`, that it is made for: {"chunks": "1f1b"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ..errors import Fault, UserError

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "F", "B", "I", "W"
KINDS = (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


class Slot(NamedTuple):
    """One box: F, B (the whole backward), I (input gradients) or W (weight gradients) of a stage for a microbatch."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Pair(NamedTuple):
    """A forward and a backward slot run together, each hiding the other's communication."""

    forward: Slot
    backward: Slot

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})"


Box = Slot | Pair


def slots_of(box: Box) -> tuple[Slot, ...]:
    return (box.forward, box.backward) if isinstance(box, Pair) else (box,)


class Exchange(NamedTuple):
    """What a rank sends and receives at once where transfers block: its compute waits for all of it."""

    after: Slot | None
    """The slot of the rank behind which it takes place; None for before the first."""
    sends: tuple[Slot, ...] = ()
    """Slots whose results leave then. What does not change ranks is not sent."""
    receives: tuple[Slot, ...] = ()
    """Slots whose inputs have arrived when it is over."""


PerStage = float | tuple[float, ...]
"""One duration for every stage, or one for each."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Unitless durations of a slot of each kind (one chunk), of an overlapped pair, and of a crossing between ranks."""

    forward: PerStage = 1.0
    input_gradient: PerStage = 1.0
    weight_gradient: PerStage = 1.0
    backward: PerStage | None = None
    """The whole backward; by default input and weight gradient together."""
    pair: float | None = None
    """An overlapped forward and backward; by default one after the other."""
    comm: float = 0.0

    def of(self, box: Box) -> float:
        """How long a box lasts."""
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
    """What a schedule that is searched for makes short, how it counts memory, and how long it may search."""

    objective: Literal["makespan", "span"] = "makespan"
    """makespan: from the first start to the last end; span: the longest that one rank takes from its own first to its last."""
    memory_count: Literal["fw", "half"] = "fw"
    """fw: an activation is held from the start of F to the end of W; half: I frees one half of it and W the other."""
    time_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule may depend on. Stages are numbered in forward order; each rank holds `chunks` of them."""

    ranks: int
    microbatches: int
    """Of a schedule that splits sequences: sub-sequences, numbered microbatch x splits + part."""
    chunks: int = 1
    group: int | None = None
    """Microbatches per round of an interleaved schedule; None for the schedule's own choice."""
    splits: int = 1
    """Parts that every sequence is cut into, by a schedule that does so."""
    memory_limit: float = 1.0
    """Activations that a rank may hold, in multiples of P microbatches, for schedules that are built under a limit."""
    durations: Durations = Durations()
    goal: Goal = Goal()
    """Of a schedule that is searched for."""

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
    asked: tuple[tuple[Exchange, ...], ...] = ()
    """Rank -> the exchanges that the schedule defines; nothing if it defines none."""

    @property
    def stages(self) -> int:
        return len(self.placements[0])

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of every instance of a stage."""
        return tuple(rank for placement in self.placements for rank in placement)

    def instance(self, stage: int, microbatch: int) -> int:
        """The instance of a stage that a microbatch passes."""
        return microbatch * len(self.placements) // self.shape.microbatches * self.stages + stage

    def exchanges(self, rank: int) -> tuple[Exchange, ...]:
        """What the rank sends and receives at once where transfers block: as the schedule defines it, else box by box."""
        if self.asked:
            return self.asked[rank]
        boxes = (slots_of(box) for box in self.orders[rank])
        return tuple(Exchange(slots[-1], tuple(s for s in slots if s.kind != WEIGHT_GRADIENT)) for slots in boxes)

    def chunk(self, instance: int) -> int:
        """Which of its rank's stages this is, in forward order."""
        return self.placement[:instance].count(self.placement[instance])

    def sampled(self) -> Layout:
        """The same with a single microbatch for each direction, which has every slot that any of its direction has."""
        directions, splits = len(self.placements), self.shape.splits
        number = [m * directions // self.shape.microbatches * splits + m % splits for m in range(self.shape.microbatches)]
        orders = tuple(
            tuple(dict.fromkeys(slot._replace(microbatch=number[slot.microbatch]) for slot in _flat(order)))
            for order in self.orders
        )
        return Layout(replace(self.shape, microbatches=directions * splits), self.placements, orders)


def lay_out(schedule: Any, shape: Shape) -> Layout:
    """Applies a schedule to a shape and checks the result. Raises `OutsideDomain` or `UserError` with every fault."""
    shape = as_taken(schedule, shape)
    if hasattr(schedule, "refuse"):
        schedule.refuse(shape)
    if hasattr(schedule, "placements"):
        placements = tuple(tuple(placement) for placement in schedule.placements(shape))
    else:
        placements = (tuple(schedule.placement(shape)) if hasattr(schedule, "placement") else looped(shape),)
    if hasattr(schedule, "orders"):
        orders = tuple(tuple(order) for order in schedule.orders(shape))
    else:
        orders = tuple(tuple(schedule.order(rank, shape)) for rank in range(shape.ranks))
    ranks = range(shape.ranks) if hasattr(schedule, "exchanges") else ()
    asked = tuple(tuple(schedule.exchanges(rank, shape)) for rank in ranks)
    layout = Layout(shape, placements, orders, asked)
    check(layout)
    return layout


def as_taken(schedule: Any, shape: Shape) -> Shape:
    """The shape with the number of chunks that the schedule runs, if it runs no other."""
    return replace(shape, chunks=getattr(schedule, "CHUNKS", shape.chunks))


def looped(shape: Shape) -> tuple[int, ...]:
    """Stage s on rank s mod P: the placement of 1F1B and of interleaved schedules."""
    return tuple(stage % shape.ranks for stage in range(shape.stages))


def snaked(shape: Shape) -> tuple[int, ...]:
    """Forth through the ranks, back, and forth again: with two chunks the V of the zero-bubble papers."""
    forth = tuple(range(shape.ranks))
    return tuple(rank for chunk in range(shape.chunks) for rank in (forth[::-1] if chunk % 2 else forth))


def check(layout: Layout) -> None:
    """Every F, B (or I and W) of every stage and microbatch once, on the stage's rank, F before B (or I) before W."""
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
        faults += _foreign(rank, boxes, layout)
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
    """A stage's F comes before its B or I, and its I before its W."""
    position = {slot: i for i, slot in enumerate(_flat(boxes))}
    before = {BACKWARD: FORWARD, INPUT_GRADIENT: FORWARD, WEIGHT_GRADIENT: INPUT_GRADIENT}
    return [
        Fault(f"rank {rank} runs {slot} before {slot._replace(kind=before[slot.kind])}")
        for slot, at in position.items()
        if slot.kind in before and position.get(slot._replace(kind=before[slot.kind]), -1) > at
    ]


def _foreign(rank: int, boxes: Sequence[Box], layout: Layout) -> list[Fault]:
    """Exchanges of slots that the rank does not run."""
    own = set(_flat(boxes))
    named = [
        slot
        for after, sends, receives in (layout.asked[rank] if layout.asked else ())
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
