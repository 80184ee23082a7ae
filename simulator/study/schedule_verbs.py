"""Pipeline schedules as users ask for them: one by itself, or several beside one another on equal terms.

In a comparison every rank has the same share of the model, however a schedule cuts it. The durations given are those of a rank's
whole share of one microbatch. A schedule with V chunks per rank runs stages of a V-th of them; one that splits sequences into k
parts runs k times as many units, each a k-th. A crossing between ranks costs its latency whatever passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack, cast

from ..config import catalog
from ..errors import Deadlock, Fault, OutsideDomain, UserError
from ..escape import Summarised
from ..program.slot import Durations, Goal, PerStage, Shape, as_taken, lay_out
from ..simulation import estimated_effort
from .schedule import Evaluation, crossings, evaluate

TOLERANCE = 1e-9
MOST_SLOTS = 4_000_000
LETTERS = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W"}
DEFAULTS: Mapping[str, Any] = {"chunks": 1, "group": None, "splits": 2, "memory_limit": 1.0}
GOALS = ("objective", "memory_count", "time_limit_s")


class Options(TypedDict, total=False):
    """What a schedule may be asked for besides its ranks and microbatches. Durations have no unit."""

    chunks: int
    group: int | None
    splits: int
    memory_limit: float
    forward: PerStage
    backward: PerStage | None
    input_gradient: PerStage
    weight_gradient: PerStage
    pair: float | None
    comm: float
    objective: Literal["makespan", "span"]
    memory_count: Literal["fw", "half"]
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule that takes the shape, evaluated at every latency."""

    name: str
    results: tuple[Evaluation, ...]

    @property
    def chunks(self) -> int:
        """Stages of a rank, of one copy of the model."""
        layout = self.results[0].layout
        return layout.stages // layout.shape.ranks

    @property
    def splits(self) -> int:
        return self.results[0].layout.shape.splits

    @property
    def copies(self) -> int:
        """Copies of the parameters: one for each direction of microbatches."""
        return len(self.results[0].layout.placements)

    @property
    def peak_microbatches(self) -> float:
        """Activations of the fullest rank, in microbatches of its whole share."""
        return max(self.results[-1].peaks["peak"]) / (self.chunks * self.splits)

    def as_dict(self, places: Sequence[int]) -> dict[str, Any]:
        """The row of the table; `places` are the schedule's ranks among the others, at each latency."""
        records = [result.as_dict() for result in self.results]
        at = [
            {"comm": result.durations.comm, "place": place, **{key: record[key] for key in ("makespan", "span", "bubble_ratio")}}
            for result, record, place in zip(self.results, records, places, strict=True)
        ]
        transfers = crossings(self.results[-1].layout)
        sizes = {"chunks": self.chunks, "splits": self.splits, "copies": self.copies}
        return {"schedule": self.name, **sizes, "at": at, "peak_microbatches": self.peak_microbatches, "transfers": transfers}


@dataclass(frozen=True, slots=True)
class Refused:
    """A schedule that does not take the shape, and why."""

    name: str
    reason: str
    nearest: Mapping[str, int]


@dataclass(frozen=True, repr=False)
class Comparison(Summarised):
    """Schedules beside one another, the fastest first, and those that do not take the shape."""

    shape: Shape
    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...]

    @property
    def places(self) -> list[list[int]]:
        """The place of every entry at each latency, from 1."""
        return places(self.entries)

    @property
    def summary(self) -> list[tuple[str, str]]:
        """A line for each schedule."""
        found = [(catalog.called(entry.name), brief(entry.results[-1])) for entry in self.entries]
        return [*found, *((catalog.called(item.name), f"refused: {item.reason}") for item in self.refused)]

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim schedule --compare --json` prints."""
        rows = [entry.as_dict(place) for entry, place in zip(self.entries, self.places, strict=True)]
        sizes = {"ranks": self.shape.ranks, "microbatches": self.shape.microbatches}
        refused = [{"schedule": item.name, "refused": item.reason, "nearest": dict(item.nearest)} for item in self.refused]
        return {"shape": sizes, "schedules": rows, "refused": refused}


def schedule(
    name: Any, *, ranks: int | None = None, microbatches: int | None = None, long: bool = False, **options: Unpack[Options]
) -> Evaluation:
    """Evaluates a pipeline schedule by itself: its order, makespan, bubble and memory.

    `name` is a schedule of the catalog, `module:function`, a table FILE.csv that knows its own sizes, or an object with an
    order. Durations (`forward`, `backward`, `input_gradient`, `weight_gradient`: one number, or one for each stage) are those
    of one chunk; `comm` is the latency of a crossing between ranks.
    """
    schedules = _found([name])
    ((label, found),) = schedules.items()
    shape = _shape(schedules, ranks, microbatches, options)
    _must_be_short(schedules, shape, long=long)
    shape = as_taken(found, shape)
    _check_durations(shape, shape.stages, "stages")
    certificate = found.certificate if hasattr(found, "certificate") else None
    return evaluate(lay_out(found, shape), label, certificate(shape) if certificate else None)


def compare_schedules(
    names: Sequence[Any], *, ranks: int | None = None, microbatches: int | None = None, long: bool = False,
    **options: Unpack[Options],
) -> Comparison:  # fmt: skip
    """Puts pipeline schedules beside one another on equal terms: every rank has the same share of the model.

    Durations are those of a rank's whole share of a microbatch, or of each of P equal parts of the model.
    """
    found = _found(names)
    shape = _shape(found, ranks, microbatches, options)
    _must_be_short(found, shape, long=long)
    _check_durations(shape, shape.ranks, "ranks")
    for each in found.values():
        _must_be_small(cut(each, shape))
    entries, refused = compare(found, shape)
    return Comparison(shape, tuple(entries), tuple(refused))


def brief(result: Evaluation) -> str:
    """Makespan and bubble in a line."""
    latency = f" with c = {result.durations.comm:g}" if result.durations.comm else ""
    return f"makespan {result.makespan:.6g}, bubble ratio {result.bubble_ratio:.2%}{latency}"


def _found(names: Sequence[Any]) -> dict[str, Any]:
    """The schedules of names; all faults at once."""
    if not names:
        raise UserError("no schedule is named", hint="`trainsim catalog schedules` lists them")
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for name in names:
        try:
            found[name if isinstance(name, str) else catalog.called(name)] = catalog.typed("schedules", name)
        except UserError as error:
            faults += error.faults
    if faults:
        raise UserError(faults=faults)
    return found


def _shape(schedules: Mapping[str, Any], ranks: int | None, microbatches: int | None, options: Options) -> Shape:
    """The shape that was asked for; the sizes that are left open are those of the first file."""
    table = next((schedule.shape for schedule in schedules.values() if hasattr(schedule, "shape")), None)
    asked = {"ranks": ranks, "microbatches": microbatches}
    sizes: dict[str, Any] = {size: value or getattr(table, size, None) for size, value in asked.items()}
    if missing := [f"--{size}" for size, value in sizes.items() if value is None]:
        message = f"{', '.join(schedules)}: {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
        raise UserError(message, hint="for example --ranks 4 --microbatches 8; only a FILE.csv has its own")
    given = cast("dict[str, Any]", options)
    fields = {field: given.get(field, default) for field, default in DEFAULTS.items()}
    goal = Goal(**{field: given[field] for field in GOALS if field in given})
    durations = {field: given[field] for field in (*LETTERS, "pair", "comm") if field in given}
    durations = {field: tuple(value) if isinstance(value, list) else value for field, value in durations.items()}
    return Shape(**sizes, **fields, durations=Durations(**durations), goal=goal)


def _check_durations(shape: Shape, count: int, what: str) -> None:
    """Raises `UserError` if there are several durations and not as many as stages or ranks."""
    faults = []
    for field, letter in LETTERS.items():
        value = getattr(shape.durations, field)
        if isinstance(value, tuple) and len(value) != count:
            faults.append(Fault(f"--{letter} has {len(value)} durations for {count} {what}", "give one, or one for each"))
    if faults:
        raise UserError(faults=faults)


def _must_be_short(schedules: Mapping[str, Any], shape: Shape, *, long: bool) -> None:
    """Raises `UserError` if the schedules together would take longer than goes without saying."""
    takes = estimated_effort.Effort()
    for found in schedules.values():
        taken = as_taken(found, shape)
        _must_be_small(taken)
        slot = estimated_effort.SEARCHED_SLOT if hasattr(found, "certificate") else estimated_effort.SLOT
        takes += taken.stages * taken.microbatches * slot
    what, limits = f"{', '.join(schedules)} of {shape.ranks:,} ranks", estimated_effort.Limits(long=long)
    limits.check(takes, what, "fewer ranks or microbatches")


def _must_be_small(shape: Shape) -> None:
    """Raises `OutsideDomain` if the shape is too large to evaluate."""
    slots = shape.stages * shape.microbatches
    if slots > MOST_SLOTS:
        reason = f"{slots:,} slots are more than one evaluation takes: at most {MOST_SLOTS:,}"
        nearest = {"microbatches": max(1, MOST_SLOTS // shape.stages)}
        raise OutsideDomain(reason, nearest=nearest if shape.stages <= MOST_SLOTS else {"chunks": MOST_SLOTS // shape.ranks})


def compare(schedules: Mapping[str, Any], shape: Shape) -> tuple[list[Entry], list[Refused]]:
    """Evaluates schedules by name, without latency and with that of the shape; the fastest first.

    The shape's durations are those of a rank's share: one number, or one for each of P equal parts of the model in forward
    order.
    """
    entries: list[Entry] = []
    refused: list[Refused] = []
    for name, schedule in schedules.items():
        try:
            entries.append(Entry(name, _evaluated(schedule, shape)))
        except OutsideDomain as refusal:
            refused.append(Refused(name, refusal.reason, refusal.nearest))
        except Deadlock as deadlock:
            refused.append(Refused(name, f"deadlock: {str(deadlock).splitlines()[0]}", {}))
    return sorted(entries, key=lambda entry: entry.results[-1].makespan), refused


def cut(schedule: Any, shape: Shape) -> Shape:
    """The shape that a schedule makes of ranks, whole microbatches, and the durations of a rank's share."""
    splits = shape.splits if "splits" in getattr(schedule, "OPTIONS", ()) else 1
    taken = as_taken(schedule, shape)
    durations = of_a_stage(shape.durations, taken.chunks, splits)
    return replace(taken, splits=splits, microbatches=shape.microbatches * splits, durations=durations)


def _evaluated(schedule: Any, shape: Shape) -> tuple[Evaluation, ...]:
    of_stages = cut(schedule, shape)
    latencies = dict.fromkeys((0.0, shape.durations.comm))
    shapes = (replace(of_stages, durations=replace(of_stages.durations, comm=comm)) for comm in latencies)
    return tuple(evaluate(lay_out(schedule, each)) for each in shapes)


def of_a_stage(durations: Durations, chunks: int, splits: int) -> Durations:
    """Durations of a rank's share cut into those of one chunk of one part of a sequence."""
    parts = chunks * splits

    def part(duration: Any) -> Any:
        if isinstance(duration, tuple):
            return tuple(value / parts for value in duration for _ in range(chunks))
        return None if duration is None else duration / parts

    return replace(durations, **{name: part(getattr(durations, name)) for name in (*LETTERS, "pair")})


def places(entries: Sequence[Entry]) -> list[list[int]]:
    """Of every entry its place at each latency, from 1; those that are equally fast share one."""
    spans = [[result.makespan for result in entry.results] for entry in entries]
    return [[1 + sum(other[i] < own * (1 - TOLERANCE) for other in spans) for i, own in enumerate(mine)] for mine in spans]
