"""Sweep: simulation of every point of a grid of scenarios, in this process or in several.

A point that cannot run is a row too: with the reason, and with the missing memory if it does not fit. Workers get the document of
a scenario and return plain numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.document import Document
from ..config.named_parts import Trust
from ..config.scenario import from_document
from ..errors import Infeasible, UserError
from ..simulation.estimated_effort import TooLong
from ..simulation.run import Run
from ..simulation.simulate import simulate_scenario
from ..units import GIB
from .common_steps import common_steps
from .grid import Grid, grid
from .pool import Workers, opened

if TYPE_CHECKING:
    import pandas as pd

SIMULATED, OUT_OF_MEMORY, INFEASIBLE, TOO_LONG = "simulated", "out of memory", "infeasible", "too long"
AHEAD = 4
"""Points per worker that are handed out before the first of them is done."""
HINT = "memory may have run out: try fewer --workers; with a table in SQLite, --resume continues the sweep"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a point. Without a simulation only the first three fields have values."""

    status: str
    """simulated, out of memory, infeasible, or too long: work that needs `long`."""
    reason: str | None = None
    over_gib: float | None = None
    """Memory that the fullest GPU, or node, lacks."""
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    """The interval of the step time that nine in ten published runs lie in."""
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    bubble_fraction: float | None = None
    peak_memory_bytes: int | None = None
    gpus: int | None = None


NUMBERS = {"int | None": "Int64", "float | None": "float64"}
"""Types of columns in a table, of which whole numbers may be missing."""
COLUMNS = tuple(one.name for one in fields(Outcome))


@dataclass(frozen=True, slots=True)
class Effort:
    """How points are simulated: whether files may name code, whether long work is done, and for which number of steps."""

    trust: bool = False
    long: bool = False
    steps: int | None = None
    """As in `simulate`; of all points the same (`common_steps`)."""


def sweep(
    scenario: str | Path | Mapping[str, Any],
    over: Iterable[str] | Mapping[str, Sequence[Any]],
    settings: Iterable[str] = (),
    *,
    trust: bool = False,
    long: bool = False,
    workers: int = 1,
    executor: Executor | str | None = None,
) -> pd.DataFrame:
    """Simulates every combination of the values of some fields of a scenario: a row for each, with a column for each field.

    The scenario is a name, a file or a mapping, and `over` has values by field: {"plan.tp": [1, 2, 4], "job.microbatch_size":
    [1, 2]}. Rows that could not run have their reason, and `over_gib` where memory lacks. If a disturbance begins or ends at some
    points only, all step times are those of a first step, from a standing start. With more than one worker the points are
    simulated by as many processes. An `executor` of `concurrent.futures`, or the address of a Dask scheduler such as
    "dask://localhost:8786", simulates them elsewhere; such an address is trusted like code.
    """
    found = grid(scenario, over, settings, trust=trust)
    given = ((number, found.document(point)) for number, point in enumerate(found.points()))
    effort = Effort(trust, long, common_steps(found.base, found.axes))
    results = dict(outcomes(given, effort, Workers(workers, executor)))
    return table(found, range(len(found)), results.__getitem__)


def table(found: Grid, numbers: Iterable[int], result: Callable[[int], Outcome]) -> pd.DataFrame:
    """Rows of a grid with the outcomes of their points, which have numbers in the order of the grid."""
    import pandas as pd

    names = (*(axis.name for axis in found.axes), *COLUMNS)
    types = {one.name: NUMBERS[str(one.type)] for one in fields(Outcome) if str(one.type) in NUMBERS}
    columns: dict[str, Any] = {name: array("d") if types.get(name) == "float64" else [] for name in names}
    texts: dict[str, str] = {}
    for number in numbers:
        for name, value in {**found.fields(found.point(number)), **asdict(result(number))}.items():
            if isinstance(value, str):
                value = texts.setdefault(value, value)
            columns[name].append(nan if value is None and types.get(name) == "float64" else value)
    return pd.DataFrame({name: pd.Series(columns.pop(name), dtype=types.get(name)) for name in names})


def outcomes(points: Iterator[tuple[int, Document]], effort: Effort, workers: Workers) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of points with the numbers of the points, as they come; a few points are submitted ahead."""
    tasks = ((number, (outcome, (document, effort))) for number, document in points)
    with opened(workers, HINT) as pool:
        yield from pool.answers(tasks, AHEAD)


def outcome(document: Document, effort: Effort) -> Outcome:
    """Simulates a scenario, or says why it cannot run."""
    try:
        scenario = from_document(document, Trust(effort.trust))
        return _of_run(simulate_scenario(scenario, steps=effort.steps, long=effort.long))
    except Infeasible as error:
        over_gib = error.over_bytes / GIB
        return Outcome(OUT_OF_MEMORY if over_gib else INFEASIBLE, _line(str(error)), over_gib or None)
    except UserError as error:
        reason = "; ".join(fault.message for fault in error.faults)
        return Outcome(TOO_LONG if isinstance(error, TooLong) else INFEASIBLE, _line(reason))


def _line(text: str) -> str:
    return " ".join(text.split())


def _of_run(run: Run) -> Outcome:
    metrics, (low, high) = run.metrics, run.step_time_interval_s
    return Outcome(
        SIMULATED,
        step_time_s=metrics.step_time_s,
        step_time_low_s=low,
        step_time_high_s=high,
        tokens_per_s=metrics.tokens_per_s,
        tokens_per_s_per_gpu=metrics.tokens_per_s_per_gpu,
        mfu=metrics.mfu,
        bubble_fraction=metrics.bubble_fraction,
        peak_memory_bytes=run.peak_memory_bytes,
        gpus=run.gpus,
    )
