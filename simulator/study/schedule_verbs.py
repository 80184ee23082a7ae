"""Evaluation of pipeline schedules as users request it: one schedule, or a comparison of several on equal terms.

In a comparison every rank has the same share of the model, however a schedule cuts it. The given durations are those of a rank's
whole share of one microbatch. A schedule with V chunks per rank has stages of a V-th of this share; a schedule that splits
sequences into k parts has k times as many units, each a k-th. A crossing between ranks costs its latency, whatever the size of
the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, count
from typing import Any, Unpack

from ..config import catalog
from ..errors import Deadlock, Fault, OutsideDomain, UserError, in_one_go, must_be
from ..escape import Summarised
from ..program.layout import as_taken, lay_out
from ..program.slot import Durations, Goal, Shape
from ..simulation import estimated_effort
from . import schedule_options
from .schedule import Evaluation, crossings, evaluate
from .schedule_options import LETTERS, Options

TOLERANCE = 1e-9
MOST_SLOTS = 4_000_000
BOUNDED_SLOT = estimated_effort.Effort(900.0)
"""Effort per stage and microbatch of the analytic bound of a schedule that is searched: 120 to 900 us for 128 to 4,096 of them,
and 2,000 us for 32,768."""
SPLITS = 2
"""Default number of parts of a sequence, for schedules that split sequences."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule that supports the shape, evaluated at every latency."""

    name: str
    results: tuple[Evaluation, ...]

    @property
    def chunks(self) -> int:
        """Stages per rank in one copy of the model."""
        layout = self.results[0].layout
        return layout.stages // layout.shape.ranks

    @property
    def splits(self) -> int:
        return self.results[0].layout.shape.splits

    @property
    def copies(self) -> int:
        """Copies of the parameters: one per direction of microbatches."""
        return len(self.results[0].layout.placements)

    @property
    def peak_microbatches(self) -> float:
        """Activations of the fullest rank, in microbatches of a rank's whole share."""
        return max(self.results[-1].peaks["peak"]) / (self.chunks * self.splits)

    def as_dict(self, places: Sequence[int]) -> dict[str, Any]:
        """A row of the table; `places` are the ranks of the schedule in the order of makespans, one per latency."""
        at = []
        for result, place in zip(self.results, places, strict=True):
            times = {"makespan": result.makespan, "span": max(result.span_per_rank), "bubble_ratio": result.bubble_ratio}
            at.append({"comm": result.durations.comm, "place": place, **times})
        transfers = crossings(self.results[-1].layout)
        sizes = {"chunks": self.chunks, "splits": self.splits, "copies": self.copies}
        return {"schedule": self.name, **sizes, "at": at, "peak_microbatches": self.peak_microbatches, "transfers": transfers}


@dataclass(frozen=True, repr=False)
class Comparison(Summarised):
    """A comparison of schedules, the fastest first, and by name the refusals of schedules that do not support the shape."""

    shape: Shape
    entries: tuple[Entry, ...]
    refused: Mapping[str, OutsideDomain]

    @property
    def places(self) -> list[list[int]]:
        """The place of every entry at each latency, counted from 1; equally fast entries have the same place."""
        spans = [[result.makespan for result in entry.results] for entry in self.entries]
        return [[1 + sum(other[i] < own * (1 - TOLERANCE) for other in spans) for i, own in enumerate(mine)] for mine in spans]

    @property
    def summary(self) -> list[tuple[str, str]]:
        """A line for each schedule."""
        found = [(catalog.called(entry.name), brief(entry.results[-1])) for entry in self.entries]
        return [*found, *((catalog.called(name), f"refused: {refusal.reason}") for name, refusal in self.refused.items())]

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim schedule --compare --json`."""
        rows = [entry.as_dict(place) for entry, place in zip(self.entries, self.places, strict=True)]
        sizes = {"ranks": self.shape.ranks, "microbatches": self.shape.microbatches}
        refused = [{"schedule": name, "refused": error.reason, "nearest": error.nearest} for name, error in self.refused.items()]
        return {"shape": sizes, "schedules": rows, "refused": refused}


def schedule(
    name: Any, *, ranks: int | None = None, microbatches: int | None = None, long: bool = False, **options: Unpack[Options]
) -> Evaluation:
    """Evaluates a pipeline schedule by itself: its order, makespan, bubble and memory.

    `name` is a schedule of the catalog, `module:function`, a table FILE.csv that knows its own sizes, or an object with an
    order. Durations (`forward`, `backward`, `input_gradient`, `weight_gradient`: one number, or one for each stage) are those
    of one chunk; `comm` is the latency of a crossing between ranks.
    """
    schedules, shape = _asked([name], ranks, microbatches, options, long=long)
    ((label, found),) = schedules.items()
    shape = as_taken(found, shape)
    _check_durations(shape, shape.stages, "stages")
    certificate = found.certificate(shape) if hasattr(found, "certificate") else None
    return evaluate(lay_out(found, shape), label, certificate)


def compare_schedules(
    names: Sequence[Any], *, ranks: int | None = None, microbatches: int | None = None, long: bool = False,
    **options: Unpack[Options],
) -> Comparison:  # fmt: skip
    """Puts pipeline schedules beside one another on equal terms: every rank has the same share of the model.

    Durations are those of a rank's whole share of a microbatch, or of each of P equal parts of the model.
    """
    must_be(names, (list, tuple), "names", "a list of schedules", '["1f1b", "zb-h1"]')
    schedules, shape = _asked(names, ranks, microbatches, options, long=long)
    _check_durations(shape, shape.ranks, "ranks")
    shares = {name: share_of(found, shape) for name, found in schedules.items()}
    for share in shares.values():
        _check_slots(share)
    entries: list[Entry] = []
    refused: dict[str, OutsideDomain] = {}
    for name, share in shares.items():
        latencies = dict.fromkeys((0.0, shape.durations.comm))
        shapes = [replace(share, durations=replace(share.durations, comm=comm)) for comm in latencies]
        try:
            entries.append(Entry(name, tuple(evaluate(lay_out(schedules[name], each)) for each in shapes)))
        except OutsideDomain as refusal:
            refused[name] = refusal
        except Deadlock as deadlock:
            refused[name] = OutsideDomain(str(deadlock).splitlines()[0])
    return Comparison(shape, tuple(sorted(entries, key=lambda entry: entry.results[-1].makespan)), refused)


def brief(result: Evaluation) -> str:
    """Makespan and bubble in one line."""
    latency = f" with c = {result.durations.comm:g}" if result.durations.comm else ""
    return f"makespan {result.makespan:.6g}, bubble ratio {result.bubble_ratio:.2%}{latency}"


def _asked(
    names: Sequence[Any], ranks: int | None, microbatches: int | None, options: Options, *, long: bool
) -> tuple[dict[str, Any], Shape]:
    """The schedules with these names, and the requested shape; missing sizes are those of the first file.

    Raises `UserError` with all unknown names, for missing sizes, and for shapes that take too long without `long`.
    """
    schedule_options.check({"ranks": ranks, "microbatches": microbatches, **options})
    if not names:
        raise UserError("no schedule is named", hint="`trainsim catalog schedules` lists them")
    found = in_one_go(*(partial(catalog.typed, "schedules", name) for name in names))
    schedules = _labelled(names, found)
    shape = _shape(schedules, {"ranks": ranks, "microbatches": microbatches}, options)
    needed = estimated_effort.Effort()
    for one in schedules.values():
        taken = as_taken(one, shape)
        _check_slots(taken)
        slot = estimated_effort.SEARCHED_SLOT + BOUNDED_SLOT if hasattr(one, "certificate") else estimated_effort.SLOT
        needed += taken.stages * taken.microbatches * slot
    what, limits = f"{', '.join(schedules)} of {shape.ranks:,} ranks", estimated_effort.Limits(long=long)
    limits.check(needed, what, "fewer ranks or microbatches")
    return schedules, shape


def _labelled(names: Sequence[Any], found: Sequence[Any]) -> dict[str, Any]:
    """The schedules by their names. A name that was typed twice counts once; objects of the same name are numbered."""
    schedules: dict[str, Any] = {}
    for i, (name, one) in enumerate(zip(names, found, strict=True)):
        typed = isinstance(name, str)
        if typed and any(isinstance(other, str) and other == name for other in names[:i]):
            continue
        called = name if typed else catalog.called(name)
        labels = chain([called], (f"{called} ({number})" for number in count(2)))
        schedules[next(label for label in labels if label not in schedules)] = one
    return schedules


def _shape(schedules: Mapping[str, Any], asked: Mapping[str, int | None], options: Options) -> Shape:
    """The shape with the requested sizes and options; missing sizes are those of the first file."""
    table = next((schedule.shape for schedule in schedules.values() if hasattr(schedule, "shape")), None)
    sizes = {size: value or getattr(table, size, None) for size, value in asked.items()}
    if missing := [f"--{size}" for size, value in sizes.items() if value is None]:
        message = f"{', '.join(schedules)}: {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
        raise UserError(message, hint="for example --ranks 4 --microbatches 8; only a FILE.csv has its own")
    given: dict[str, Any] = {
        "splits": SPLITS,
        **sizes,
        **{name: tuple(v) if isinstance(v, list) else v for name, v in options.items()},
    }
    own, durations, goal = (
        {field.name: given[field.name] for field in fields(kind) if field.name in given} for kind in (Shape, Durations, Goal)
    )
    return Shape(**own, durations=Durations(**durations), goal=Goal(**goal))


def _check_durations(shape: Shape, wanted: int, what: str) -> None:
    """Raises `UserError` for several durations whose number is not that of stages or ranks."""
    given = {letter: getattr(shape.durations, field) for field, letter in LETTERS.items()}
    wrong = {letter: value for letter, value in given.items() if isinstance(value, tuple) and len(value) != wanted}
    if wrong:
        hint = "give one, or one for each"
        faults = [Fault(f"--{letter} has {len(value)} durations for {wanted} {what}", hint) for letter, value in wrong.items()]
        raise UserError(faults=faults)


def _check_slots(shape: Shape) -> None:
    """Raises `OutsideDomain` if the shape is too large to evaluate."""
    slots = shape.stages * shape.microbatches
    if slots > MOST_SLOTS:
        reason = f"{slots:,} slots are more than one evaluation takes: at most {MOST_SLOTS:,}"
        nearest = {"microbatches": max(1, MOST_SLOTS // shape.stages)}
        raise OutsideDomain(reason, nearest=nearest if shape.stages <= MOST_SLOTS else {"chunks": MOST_SLOTS // shape.ranks})


def share_of(schedule: Any, shape: Shape) -> Shape:
    """The shape of a schedule for a number of ranks and whole microbatches: the durations of a rank's share are divided into
    durations of one chunk of one part of a sequence."""
    taken, splits = as_taken(schedule, shape), shape.splits if "splits" in getattr(schedule, "OPTIONS", ()) else 1
    parts = taken.chunks * splits

    def part(duration: Any) -> Any:
        if isinstance(duration, tuple):
            return tuple(value / parts for value in duration for _ in range(taken.chunks))
        return None if duration is None else duration / parts

    durations = replace(shape.durations, **{name: part(getattr(shape.durations, name)) for name in (*LETTERS, "pair")})
    return replace(taken, splits=splits, microbatches=shape.microbatches * splits, durations=durations)
