"""Slots: the boxes of a pipeline schedule, and the interface of a schedule (`layout.py` applies it to a shape).

A schedule is a module (a file in `simulator/schedules/`, or any other file) with a pure generator `order(rank, shape)` that
yields the slots of one rank in order, or a pure function `orders(shape)` that returns the slots of all ranks. Optional names are

- `placement(shape)`, the rank of every stage (else stage s is on rank s mod P), or `placements(shape)`, one for each
  direction that microbatches take: with D directions, microbatch m of M takes direction m D // M;
- `refuse(shape)`, which raises `OutsideDomain` for a shape that the schedule does not support;
- `in_flight(rank, shape)`, the largest number of chunks of activations that a rank ever holds;
- `COST_AWARE = True`, if the order depends on the durations in the shape;
- `CHUNKS`, if the schedule always runs this number of stages per rank, whatever number the user asks for;
- `exchanges(rank, shape)`, a pure generator of the exchanges of a rank where transfers block, in order (else the rank waits
  after every box for the sends of the box);
- `PAIRS = True`, if the orders have pairs of slots that run together; `ALTERNATES = True`, if neighbouring forward and backward
  slots may run as such pairs to hide exchanges of experts (`overlap.ep`);
- `OPTIONS`, the names among `group`, `splits` and `memory_limit` of the fields of the shape that the schedule reads;
- `VOCABULARY`, the schemes in which the ranks can share embedding and head under this schedule (schedules/_vocabulary.py);
- `WITH_ONE`, the equivalent schedule for a value of 1 of the `chunks`, or `splits`, of the schedule: {"chunks": "1f1b"}.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, NamedTuple

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


def several(kind: str, stages: Iterable[int], microbatches: Iterable[int]) -> list[Slot]:
    """Slots of one kind: `Slot(kind, stage, microbatch)` for each, in half the time."""
    return list(map(tuple.__new__, repeat(Slot), zip(repeat(kind), stages, microbatches, strict=False)))


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
    memory_count: Literal["fw", "half"] = "half"
    """half: I frees one half of an activation and W the other, as in zb-auto; fw: the whole is held from start of F to end of
    W."""
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


def looped(shape: Shape) -> tuple[int, ...]:
    """Stage s on rank s mod P: the placement of 1F1B and of interleaved schedules."""
    return tuple(stage % shape.ranks for stage in range(shape.stages))


def snaked(shape: Shape) -> tuple[int, ...]:
    """Stages through the ranks in ascending, then descending order, and so on: for two chunks the V of the zero-bubble papers."""
    forth = tuple(range(shape.ranks))
    return tuple(rank for chunk in range(shape.chunks) for rank in (forth[::-1] if chunk % 2 else forth))
