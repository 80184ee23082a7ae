"""Measuring a list of kernels: within a time budget, fairly spread over operators, resumable after every row.

Kernels wait in queues by operator, dtype and variant; the queue on which the least time was spent is next. A row is written
as soon as it is measured, and what a table holds already is not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Protocol

from ...errors import UserError
from ...files import atomic
from .grid import queues
from .kernel_words import Probe
from .table import BEFORE_CACHE, COLUMNS, FIT, Measured, append, content, line, mend, rows_of, text
from .timers import Sample
from .torch_operands import Refused

MOST_EFFORT_S, LEAST_EFFORT_S = 0.3, 0.02
"""Of the runs of one kernel."""


class Measures(Protocol):
    """What can time a kernel."""

    name: str
    source: str

    def measure(self, probe: Probe, effort_s: float) -> Sample:
        """The times of some runs. Raises `Refused`."""


@dataclass(slots=True)
class Outcome:
    """How far a survey came."""

    wanted: int
    kept: int
    """Rows that were there before."""
    measured: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Why kernels could not run here, and how many."""

    @property
    def left(self) -> int:
        """Kernels whose turn never came."""
        return self.wanted - self.kept - self.measured - sum(self.refused.values())


Report = Callable[[Outcome, Probe], None]


def run(
    bench: Measures,
    probes: Iterable[Probe],
    path: Path,
    budget_s: float,
    report: Report = lambda outcome, probe: None,
    clock: Callable[[], float] = perf_counter,
) -> Outcome:
    """Measures what a table does not hold yet, until nothing is left or the time is up."""
    wanted = list(dict.fromkeys(probes))
    done = dict.fromkeys(kept(path, bench.name))
    waiting = [probe for probe in wanted if probe not in done]
    outcome = Outcome(len(wanted), len(wanted) - len(waiting))
    lines, spent = queues(waiting), dict[int, float]()
    began = clock()
    while any(lines) and clock() - began < budget_s:
        turn = min((i for i, line in enumerate(lines) if line), key=lambda i: (spent.get(i, 0.0), i))
        probe, started = lines[turn].pop(0), clock()
        report(outcome, probe)
        left_s = budget_s - (started - began)
        effort_s = min(MOST_EFFORT_S, max(LEAST_EFFORT_S, left_s / (1 + sum(map(len, lines))) / 2))
        try:
            sample = bench.measure(probe, effort_s)
        except Refused as error:
            reason = error.faults[0].message
            outcome.refused[reason] = outcome.refused.get(reason, 0) + 1
        else:
            append(path, row_of(bench, probe, sample))
            outcome.measured += 1
        spent[turn] = spent.get(turn, 0.0) + clock() - started
    return outcome


def row_of(bench: Measures, probe: Probe, sample: Sample) -> Measured:
    """A sample as a row, of a kernel whose operands were not in the cache."""
    low_s, high_s = sample.span_s
    seen = (sample.clock_mhz, sample.power_w, sample.throttle, sample.operators, sample.alone_s, True)
    return Measured(bench.name, probe, sample.median_s, low_s, high_s, len(sample.times_s), bench.source, FIT, *seen)


def _with_every_column(path: Path) -> None:
    """Writes anew a table of before there was a column for the cache; its rows are as they were."""
    if content(path).startswith(line(BEFORE_CACHE).encode()):
        mend(path)
        rows = rows_of(path)
        with atomic(path) as temporary:
            temporary.write_text(text(rows), encoding="utf-8")


def kept(path: Path, name: str) -> list[Probe]:
    """The kernels that a table holds, a last row that was cut short taken off. A file that is none of ours is left alone."""
    header = line(COLUMNS).encode()
    _with_every_column(path)
    begins = content(path)[: len(header)]
    if not header.startswith(begins):
        raise UserError(f"{path} is not a table that this command began", hint="--out names another folder")
    mend(path)
    if len(content(path).splitlines()) < 2:
        return []
    rows = rows_of(path)
    others = sorted({row.gpu for row in rows} - {name})
    if others:
        raise UserError(f"{path} holds measurements of {others[0]}, and this is {name}", hint="--out names another folder")
    return [row.probe for row in rows]
