"""Measuring a list of kernels within a time budget that is spread evenly over operators; a survey can resume after every row.

Kernels wait in queues by operator, dtype and variant. The next kernel comes from the queue on which the least time was spent. A
row is written as soon as it is measured, and rows that a table already has are not measured again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from ...errors import UserError
from ...files import make_folder
from ...measurements.kernel_table import COLUMNS, append, content, line, repair_last_line, rows_of
from ...measurements.kernel_words import Probe
from .. import survey_folder
from .kernel_grid import queues
from .torch_bench import TorchBench
from .torch_kernels import Refused

MOST_EFFORT_S, LEAST_EFFORT_S = 0.3, 0.02
"""Most and least time spent on the runs of one kernel, in seconds."""


@dataclass(slots=True)
class Outcome:
    """Progress of a survey, in kernels."""

    wanted: int
    kept: int
    """Rows that the table had before this run."""
    measured: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Kernels that this machine could not run, by reason."""

    @property
    def left(self) -> int:
        """Number of kernels that were not measured for lack of time."""
        return self.wanted - self.kept - self.measured - sum(self.refused.values())


def measure_all(
    bench: TorchBench,
    probes: Iterable[Probe],
    path: Path,
    budget_s: float,
    report: Callable[[Outcome, Probe], None] = lambda outcome, probe: None,
    clock: Callable[[], float] = perf_counter,
) -> Outcome:
    """Measures the kernels that a table lacks, until all are measured or the time budget is spent."""
    wanted = list(dict.fromkeys(probes))
    done = dict.fromkeys(measured_before(path, bench.name))
    waiting = [probe for probe in wanted if probe not in done]
    outcome = Outcome(len(wanted), len(wanted) - len(waiting))
    lines, began = queues(waiting), clock()
    spent = [0.0] * len(lines)
    while any(lines) and clock() - began < budget_s:
        turn = min((i for i, line in enumerate(lines) if line), key=lambda i: spent[i])
        probe, started = lines[turn].pop(0), clock()
        report(outcome, probe)
        left_s = budget_s - (started - began)
        effort_s = min(MOST_EFFORT_S, max(LEAST_EFFORT_S, left_s / (1 + sum(map(len, lines))) / 2))
        try:
            row = bench.measure(probe, effort_s)
        except Refused as error:
            outcome.refused[error.faults[0].message] += 1
        else:
            append(path, row)
            outcome.measured += 1
        spent[turn] += clock() - started
    return outcome


def begin(where: Path, gpu: str, facts: dict[str, Any], date: str) -> None:
    """Writes the facts of a machine, with all days of measuring. Raises `UserError` for a folder of another GPU."""
    measured_before(make_folder(where) / survey_folder.RAW, gpu)
    before = survey_folder.facts(where).get("measured", [])
    days = [*before, date] if isinstance(before, list) else [date]
    survey_folder.write_facts(where, {**facts, "measured": list(dict.fromkeys(days))})


def measured_before(path: Path, name: str) -> list[Probe]:
    """The kernels in a table, after an incomplete last row was removed. Raises `UserError` for a file that is no such table."""
    header = line(COLUMNS).encode()
    begins = content(path)[: len(header)]
    if not header.startswith(begins):
        raise UserError(f"{path} is not a table that this command began", hint="--out names another folder")
    repair_last_line(path)
    if len(content(path).splitlines()) < 2:
        return []
    rows = rows_of(path)
    others = sorted({row.gpu for row in rows} - {name})
    if others:
        raise UserError(f"{path} holds measurements of {others[0]}, and this is {name}", hint="--out names another folder")
    return [row.probe for row in rows]
