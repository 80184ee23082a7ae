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
    from ..hardware.cluster import Cluster
    from ..program.program import Program

ENGINES = ("auto", "des", "replay", "compiled")
"""What may be asked to run a graph of tasks."""
MOST_STEPS = 1000
"""Training steps in a row that may be asked for."""
MOST_S = 10
"""Seconds of work up to which nothing is refused."""
MOST_BYTES = 4 * GIB
FLAG = "--long (in Python long=True) does it all the same"


@dataclass(frozen=True, slots=True)
class Effort:
    """Microseconds on one core and bytes of memory, by estimate: of one thing, or times a count of it."""

    us: float = 0.0
    bytes: float = 0.0

    @property
    def seconds(self) -> float:
        return self.us / US_PER_S

    def __rmul__(self, count: float) -> Effort:
        return Effort(count * self.us, count * self.bytes)

    def __add__(self, other: Effort) -> Effort:
        return Effort(self.us + other.us, self.bytes + other.bytes)

    def __str__(self) -> str:
        time = f"{self.seconds:,.0f} s" if self.seconds >= 1 else show_s(self.seconds)
        return f"about {time} and {show_bytes(int(self.bytes))}"


ROW = Effort(2.0, 700)
"""A row of a rank's program: lowered and written as a template."""
BOUND_GPU, FOLDED_GPU = Effort(10.0, 1900), Effort(8.0)
"""A GPU of a run: its groups on their links, and its class."""
TASK = {"des": Effort(7.7, 400), "compiled": Effort(2.5, 250)}
"""By engine, from scenario to result: a step of Llama-3 405B, every rank of 128 and of 1,024 GPUs."""
EDGE = Effort(0.35, 100)
"""A message of a round that goes everywhere at once: routed, and its links added up."""
ROUND_EDGE = Effort(1.1, 400)
"""A message of one of many rounds, each of which is routed by itself."""
MESSAGE = Effort(15.0, 700)
"""A message of stepwise: written, and run: 7 to 28 us in rings and trees of 64 to 512 GPUs, 60,000 to a million messages."""
STEPWISE_EDGE = Effort(85.0, 3200)
"""A pair of GPUs that any message of stepwise goes between: all-to-alls of 64 to 256 GPUs take 90 to 108 us a message."""
STEPWISE_GROUP = Effort(60.0, 2000)
"""A collective or a transfer that stepwise takes apart: steps of Llama-3 8B on 8 to 32 GPUs, 3,000 to 21,000 of them."""
STEP_OF_DIJKSTRA, VERTEX_REACHED = Effort(0.33), Effort(bytes=32)
"""A vertex or a link seen from one source on an explicit graph, whose routes no shape knows."""
SLOT = Effort(40.0, 1400)
"""A stage and microbatch of a schedule by itself: ordered, run and counted. Schedules that search take up to twice as long."""
SEARCHED_SLOT = Effort(320.0, 1400)
"""The same of a schedule that improves its order step by step, its time limit aside."""
WIRED_GPU, LISTED_GPU = Effort(25.0, 1300), Effort(35.0, 7000)
"""A GPU of a cluster that is shown: in tables of link classes, or link by link."""
MEETING = Effort(0.022, 0.4)
"""A bare flow that starts or ends, for each flow that shares one of its links."""
FLOW = Effort(55.0, 2000)
"""A bare flow by itself: 3,000 that follow one another take 0.16 s."""
PREDICTION = Effort(180.0, 3000)
"""A row of a table of measurements."""

Expect = Callable[[Effort], None]
"""Called with what work is estimated to take as soon as that is known, so that a progress bar can show how far it is."""


def no_progress(effort: Effort) -> None:
    """Ignores an estimate, where no progress bar is shown."""


def of_run(rows_of_rank: Sequence[int], gpus: int, *, folding: bool, by: str) -> Effort:
    """A training step, by what is known before folding: with folding it takes at least this."""
    rows = sum(rows_of_rank)
    once = rows * ROW + gpus * BOUND_GPU
    if folding:
        return once + gpus * FOLDED_GPU + rows * TASK[by]
    return once + rows * gpus // max(1, len(rows_of_rank)) * TASK[by]


def of_routes(cluster: Cluster, sources: int) -> Effort:
    """Shortest routes from `sources` GPUs on an explicit graph; other shapes know their routes."""
    if cluster.shape_name != "explicit":
        return Effort()
    vertices = sum(run.count for run in cluster.wiring.vertices)
    return sources * (vertices + cluster.wiring.links) * STEP_OF_DIJKSTRA + sources * vertices * VERTEX_REACHED


def of_exchange(gpus: int, *, in_rounds: bool = False) -> Effort:
    """Every GPU sends to every other, at once or in as many rounds."""
    return gpus * (gpus - 1) * (ROUND_EDGE if in_rounds else EDGE)


def of_collective(gpus: int) -> Effort:
    """A collective in which every GPU sends to a few others."""
    return gpus * (1 + log2(max(1, gpus)) / 4) * Effort(BOUND_GPU.us / 4, BOUND_GPU.bytes)


def of_flows(routes: Sequence[int], links: int, at_once: int) -> Effort:
    """Bare flows, by how many links each crosses, so many of which are under way at once: each start and end is felt by the
    flows that share a link with it."""
    sharing = sum(routes) / max(1, min(links, sum(routes)))
    return len(routes) * FLOW + len(routes) * at_once * sharing * MEETING


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

    def must_begin(self, program: Program, cluster: Cluster, *, folding: bool) -> None:
        """Raises `UserError` for a run that takes longer than anybody would wait for unasked, before it is bound to GPUs."""
        rows = [sum(len(program.bodies[step.body].ops) for step in steps) for steps in program.orders]
        takes = of_run(rows, cluster.gpus, folding=folding, by=self.quickest) + of_routes(cluster, cluster.gpus)
        hint = "fewer GPUs or microbatches" if folding else "fewer GPUs or microbatches, or folding"
        self.check(takes, f"this run on {cluster.gpus:,} GPUs", hint)

    def must_end(self, tasks: int) -> None:
        """Raises `UserError` for more tasks than anybody would wait for unasked."""
        more = "" if self.quickest == "compiled" else "; the compiled engine, with the extra 'fast', takes a third of the time"
        what, hint = f"{tasks:,} tasks, because too few ranks behave alike,", "fewer GPUs or microbatches, or fewer disturbances"
        self.check(tasks * TASK[self.quickest], what, hint + more)

    def must_send(self, counts: Counts) -> None:
        """Raises `UserError` for more messages of stepwise than anybody would wait for unasked."""
        messages, edges, collectives, tasks = counts
        takes = messages * MESSAGE + edges * STEPWISE_EDGE + collectives * STEPWISE_GROUP + tasks * TASK["des"]
        self.check(takes, f"{messages:,} messages of stepwise", "fidelity fluid, or fewer GPUs and microbatches")

    def check(self, takes: Effort, what: str, hint: str) -> None:
        """Reports what work is estimated to take; raises `UserError` for more than the limits, unless `long` allows it."""
        if not self.long and (takes.seconds > MOST_S or takes.bytes > MOST_BYTES):
            most = f"{MOST_S} s and {show_bytes(MOST_BYTES)}"
            raise UserError(f"{what} would take {takes}; more than {most} is done only when asked for", hint=f"{hint}; {FLAG}")
        self.expect(takes)
