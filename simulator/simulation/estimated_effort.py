"""An estimate of what work takes, made before it begins: seconds of one core and bytes of memory, from nothing but sizes.

Every rate that this rests on stands here. All were measured in one go: processor seconds and resident bytes of single commands
and calls, on a shared x86-64 virtual machine (two cores of an Intel Xeon), CPython 3.11, over grids of sizes that stay below a
minute and 3 GB each (2026-11-22); `benchmarks/effort.py` repeats the small ends of the grids. Other machines differ; within a
factor of three the estimate is meant to hold.

What is estimated to take longer than `MOST_S`, or more memory than `MOST_BYTES`, is refused with the estimate, unless it is
asked for: `--long` on the command line, `long=True` in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import log2
from typing import TYPE_CHECKING

from ..errors import UserError
from ..units import GIB, US_PER_S, show_bytes, show_s

if TYPE_CHECKING:
    from ..binding.stepwise import Counts

ENGINES = ("auto", "des", "replay", "compiled")
"""What may be asked to run a graph of tasks."""
MOST_STEPS = 1000
"""Training steps in a row that may be asked for."""
MOST_S = 10
"""Seconds of work up to which nothing is refused."""
MOST_BYTES = 4 * GIB
FLAG = "--long (in Python long=True) does it all the same"

US_PER_ROW, BYTES_PER_ROW = 2.0, 700
"""A row of a rank's program: lowered and written as a template."""
US_PER_BOUND_GPU, US_PER_FOLDED_GPU, BYTES_PER_GPU = 10.0, 8.0, 1900
"""A GPU of a run: its groups on their links, and its class."""
US_PER_TASK = {"des": 7.7, "compiled": 2.5}
BYTES_PER_TASK = {"des": 400, "compiled": 250}
"""From scenario to result: a step of Llama-3 405B, every rank of 128 and of 1,024 GPUs."""
US_PER_EDGE, BYTES_PER_EDGE = 0.35, 100
"""A message of a round that goes everywhere at once: routed, and its links added up."""
US_PER_ROUND_EDGE, BYTES_PER_ROUND_EDGE = 1.1, 400
"""A message of one of many rounds, each of which is routed by itself."""
US_PER_MESSAGE, BYTES_PER_MESSAGE = 15.0, 700
"""A message of stepwise: written, and run: 7 to 28 us in rings and trees of 64 to 512 GPUs, 60,000 to a million messages."""
US_PER_STEPWISE_EDGE, BYTES_PER_STEPWISE_EDGE = 85.0, 3200
"""A pair of GPUs that any message of stepwise goes between: all-to-alls of 64 to 256 GPUs take 90 to 108 us a message."""
US_PER_STEPWISE_GROUP, BYTES_PER_STEPWISE_GROUP = 60.0, 2000
"""A collective or a transfer that stepwise takes apart: steps of Llama-3 8B on 8 to 32 GPUs, 3,000 to 21,000 of them."""
US_PER_STEP_OF_DIJKSTRA, BYTES_PER_VERTEX_REACHED = 0.33, 32
"""A vertex or a link seen from one source on a graph that somebody drew: no shape knows its routes."""
US_PER_SLOT, BYTES_PER_SLOT = 40.0, 1400
"""A stage and microbatch of a schedule by itself: ordered, run and counted. Schedules that search take up to twice as long."""
US_PER_SEARCHED_SLOT = 320.0
"""The same of a schedule that improves its order step by step, its time limit aside."""
US_PER_WIRED_GPU, BYTES_PER_WIRED_GPU = 25.0, 1300
US_PER_LISTED_GPU, BYTES_PER_LISTED_GPU = 35.0, 7000
"""A GPU of a cluster that is shown: in tables of link classes, or link by link."""
US_PER_MEETING, BYTES_PER_MEETING = 0.022, 0.4
"""A bare flow that starts or ends, for each flow that shares one of its links."""
US_PER_FLOW, BYTES_PER_FLOW = 55.0, 2000
"""A bare flow by itself: 3,000 that follow one another take 0.16 s."""
US_PER_PREDICTION, BYTES_PER_PREDICTION = 180.0, 3000
"""A row of a table of measurements."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long something takes on one core, and how much memory, by estimate."""

    seconds: float = 0.0
    bytes: float = 0.0

    @classmethod
    def of(cls, count: float, us_each: float, bytes_each: float) -> Effort:
        return cls(count * us_each / US_PER_S, count * bytes_each)

    def __add__(self, other: Effort) -> Effort:
        return Effort(self.seconds + other.seconds, self.bytes + other.bytes)

    def __str__(self) -> str:
        time = f"{self.seconds:,.0f} s" if self.seconds >= 1 else show_s(self.seconds)
        return f"about {time} and {show_bytes(int(self.bytes))}"


Expect = Callable[[Effort], None]
"""Called with what work is estimated to take as soon as that is known, so that a progress bar can show how far it is."""


def no_progress(effort: Effort) -> None:
    """Ignores an estimate, where no progress bar is shown."""


def check(effort: Effort, what: str, hint: str, *, long: bool, expect: Expect = no_progress) -> None:
    """Reports what work is estimated to take; raises `UserError` for more than the limits, unless `long` allows it."""
    if not long and (effort.seconds > MOST_S or effort.bytes > MOST_BYTES):
        most = f"{MOST_S} s and {show_bytes(MOST_BYTES)}"
        raise UserError(f"{what} would take {effort}; more than {most} is done only when asked for", hint=f"{hint}; {FLAG}")
    expect(effort)


def of_run(rows_of_rank: Sequence[int], gpus: int, *, folding: bool, by: str) -> Effort:
    """A training step, by what is known before folding: with folding it takes at least this."""
    rows = sum(rows_of_rank)
    once = Effort.of(rows, US_PER_ROW, BYTES_PER_ROW) + Effort.of(gpus, US_PER_BOUND_GPU, BYTES_PER_GPU)
    if folding:
        return once + Effort.of(gpus, US_PER_FOLDED_GPU, 0) + of_tasks(rows, by)
    return once + of_tasks(rows * gpus // max(1, len(rows_of_rank)), by)


def of_tasks(tasks: int, by: str) -> Effort:
    """So many tasks through an engine."""
    return Effort.of(tasks, US_PER_TASK[by], BYTES_PER_TASK[by])


def of_messages(messages: int, edges: int, collectives: int, tasks: int) -> Effort:
    """So many messages of stepwise, on so many edges, of so many collectives and transfers in a graph of so many tasks."""
    written = Effort.of(messages, US_PER_MESSAGE, BYTES_PER_MESSAGE) + Effort.of(
        edges, US_PER_STEPWISE_EDGE, BYTES_PER_STEPWISE_EDGE
    )
    return written + Effort.of(collectives, US_PER_STEPWISE_GROUP, BYTES_PER_STEPWISE_GROUP) + of_tasks(tasks, "des")


def of_routes(sources: int, vertices: int, links: int) -> Effort:
    """Shortest ways from so many sources over a graph that somebody drew."""
    seen = Effort.of(sources * (vertices + links), US_PER_STEP_OF_DIJKSTRA, 0)
    return seen + Effort.of(sources * vertices, 0, BYTES_PER_VERTEX_REACHED)


def of_exchange(gpus: int, *, in_rounds: bool = False) -> Effort:
    """Every GPU sends to every other, at once or in as many rounds."""
    each = (US_PER_ROUND_EDGE, BYTES_PER_ROUND_EDGE) if in_rounds else (US_PER_EDGE, BYTES_PER_EDGE)
    return Effort.of(gpus * (gpus - 1), *each)


def of_collective(gpus: int) -> Effort:
    """A collective in which every GPU sends to a few others."""
    return Effort.of(gpus * (1 + log2(max(1, gpus)) / 4), US_PER_BOUND_GPU / 4, BYTES_PER_GPU)


def of_schedule(stages: int, microbatches: int, *, searched: bool = False) -> Effort:
    """A schedule by itself."""
    return Effort.of(stages * microbatches, US_PER_SEARCHED_SLOT if searched else US_PER_SLOT, BYTES_PER_SLOT)


def of_topology(gpus: int, *, listed: bool) -> Effort:
    """A cluster, built and measured; `listed` link by link."""
    each = (US_PER_LISTED_GPU, BYTES_PER_LISTED_GPU) if listed else (US_PER_WIRED_GPU, BYTES_PER_WIRED_GPU)
    return Effort.of(gpus, *each)


def of_flows(routes: Sequence[int], links: int, at_once: int) -> Effort:
    """Bare flows, by how many links each crosses, so many of which are under way at once: each start and end is felt by the
    flows that share a link with it."""
    sharing = sum(routes) / max(1, min(links, sum(routes)))
    meetings = len(routes) * at_once * sharing
    return Effort.of(len(routes), US_PER_FLOW, BYTES_PER_FLOW) + Effort.of(meetings, US_PER_MEETING, BYTES_PER_MEETING)


def of_table(rows: int) -> Effort:
    """The predictions of a table's rows."""
    return Effort.of(rows, US_PER_PREDICTION, BYTES_PER_PREDICTION)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take: by which engine, and whether that may be long."""

    engine: str = "auto"
    long: bool = False
    expect: Expect = no_progress

    @property
    def quickest(self) -> str:
        """The engine that would run many tasks."""
        return "compiled" if self.engine in ("auto", "compiled") and find_spec("numba") is not None else "des"

    def must_end(self, tasks: int) -> None:
        """Raises `UserError` for more tasks than anybody would wait for unasked."""
        more = "" if self.quickest == "compiled" else "; the compiled engine, with the extra 'fast', takes a third of the time"
        what, hint = f"{tasks:,} tasks, because too few ranks behave alike,", "fewer GPUs or microbatches, or fewer disturbances"
        self.check(of_tasks(tasks, self.quickest), what, hint + more)

    def must_send(self, counts: Counts) -> None:
        """Raises `UserError` for more messages of stepwise than anybody would wait for unasked."""
        hint = "fidelity fluid, or fewer GPUs and microbatches"
        self.check(of_messages(*counts), f"{counts.messages:,} messages of stepwise", hint)

    def check(self, takes: Effort, what: str, hint: str) -> None:
        """Raises `UserError` for work that takes longer than goes without saying, unless it was asked for."""
        check(takes, what, hint, long=self.long, expect=self.expect)
