"""Estimated effort of a simulation before it starts: seconds of one core and bytes of memory, computed from sizes alone.

This module holds every rate that the estimate uses. All rates were measured in one session: processor seconds and resident bytes
of single commands and calls, on a shared x86-64 virtual machine (two cores of an Intel Xeon), CPython 3.11, over grids of sizes
that stay below a minute and 3 GB each (2026-11-22); `benchmarks/effort.py` repeats the small ends of the grids. The rates of
other machines differ; the estimate is meant to hold within a factor of three.

Work that is estimated to take longer than `MOST_S`, or more memory than `MOST_BYTES`, is refused with the estimate, unless the
user allows long work: `--long` on the command line, `long=True` in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import log2
from typing import TYPE_CHECKING

from ..errors import UserError
from ..units import GIB, US_PER_S, counted, show_bytes, show_s

if TYPE_CHECKING:
    from ..binding.stepwise import Counts
    from ..hardware.cluster import Cluster
    from ..program.program import Program

MOST_S = 30
"""Seconds of estimated work above which a simulation is refused without `long`."""
MOST_BYTES = 4 * GIB
FLAG = "--long (in Python long=True) allows it"


class TooLong(UserError):
    """A simulation whose estimated effort is above the limits, and which runs only with `long`."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Estimated microseconds on one core and bytes of memory: for one item, or for a number of items."""

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
"""Effort per row of a rank's program: lowering the row and writing it as a template."""
BOUND_GPU, FOLDED_GPU = Effort(10.0, 1900), Effort(8.0)
"""Effort per GPU of a run: binding its groups to links, and assigning the GPU to a class of ranks."""
TASK = {"des": Effort(7.7, 400), "heap": Effort(7.7, 500), "compiled": Effort(2.5, 250)}
"""Effort per task by engine, from scenario to result: Llama-3 405B with every rank of 128 and of 1,024 GPUs; heap was
measured with every rank of 128 GPUs and kernels that may be slowed; without such kernels it takes half as long."""
ROW_OF_VARIANT, ROWS_OF_TASK = Effort(0.08, 14), 10
"""Effort of the duration of a row, per variant of ranks that have loads of their own; and about the number of rows of a rank that
are merged into a task: a step of DeepSeek-V3 on 2,048 GPUs, with 64 variants, has 805,386 rows and 5,172,223 tasks."""
EDGE = Effort(0.35, 100)
"""Effort per message of a single round in which all pairs exchange: routing the message and adding its load to the links."""
ROUND_EDGE = Effort(1.1, 400)
"""Effort per message where there are many rounds and each round is routed separately."""
MESSAGE = Effort(15.0, 700)
"""Effort per message of fidelity stepwise, written and run: 7 to 28 us in rings and trees of 64 to 512 GPUs with 60,000 to a
million messages."""
STEPWISE_EDGE = Effort(85.0, 3200)
"""Effort per pair of GPUs that exchange messages of stepwise: all-to-alls of 64 to 256 GPUs take 90 to 108 us per message."""
STEPWISE_GROUP = Effort(60.0, 2000)
"""Effort per collective or transfer that stepwise splits: steps of Llama-3 8B on 8 to 32 GPUs have 3,000 to 21,000."""
STEP_OF_DIJKSTRA, VERTEX_REACHED = Effort(0.33), Effort(bytes=32)
"""Effort per vertex or link and source on an explicit graph, which has no routing rule of a shape."""
SLOT = Effort(40.0, 1400)
"""Effort per stage and microbatch of a bare schedule: order, run and count. Schedules that search take up to twice as long."""
SEARCHED_SLOT = Effort(320.0, 1400)
"""Effort per stage and microbatch of a schedule that improves its order iteratively, apart from its time limit."""
WIRED_GPU, LISTED_GPU = Effort(25.0, 1300), Effort(35.0, 7000)
"""Effort per GPU of a cluster that is shown: in tables of link classes, or link by link."""
MEETING = Effort(0.022, 0.4)
"""Effort per start or end of a bare flow and per flow that shares a link with that flow."""
COMPILED_MEETING, MOST_MEETINGS = Effort(0.001), 70
"""The same by the compiled engine, where more than `MOST_MEETINGS` flows that share a link cost no more: 20,000 flows of four
links take 11 s over 2,000 links, and 21 to 25 s over 500 and 128, on an idle machine."""
FLOW = Effort(55.0, 2000)
"""Effort per bare flow without contention: 3,000 consecutive flows take 0.16 s."""
PREDICTION = Effort(180.0, 3000)
"""Effort per row of a table of measurements."""
TRAINING_ROW = Effort(300_000.0, 3000)
"""Effort per row of a table of training runs on two cores, where each row is a run: the mean over 1,077 published runs."""

Expect = Callable[[Effort], None]
"""Callback that receives the estimated effort as soon as the estimate is known, so that a progress bar can show progress."""


def no_progress(effort: Effort) -> None:
    """Ignores an estimate; used where no progress bar is shown."""


def of_run(rows_of_rank: Sequence[int], gpus: int, *, folding: bool, by: str, variants: int = 1) -> Effort:
    """Effort of a training step, from what is known before folding: with folding the estimate is a lower bound.

    With several `variants` of ranks in each pipeline coordinate, rows are merged.
    """
    rows, merged = sum(rows_of_rank), ROWS_OF_TASK if variants > 1 else 1
    once = rows * ROW + gpus * BOUND_GPU + (variants * rows if variants > 1 else 0) * ROW_OF_VARIANT
    if folding:
        return once + gpus * FOLDED_GPU + max(rows, rows * variants // merged) * TASK[by]
    return once + rows * gpus // max(1, len(rows_of_rank)) // merged * TASK[by]


def of_routes(cluster: Cluster, sources: int) -> Effort:
    """Effort of the shortest routes from `sources` GPUs on an explicit graph; zero for shapes with a routing rule."""
    if cluster.shape_name != "explicit":
        return Effort()
    vertices = sum(run.count for run in cluster.wiring.vertices)
    return sources * (vertices + cluster.wiring.links) * STEP_OF_DIJKSTRA + sources * vertices * VERTEX_REACHED


def of_exchange(gpus: int, *, in_rounds: bool = False) -> Effort:
    """Effort of an exchange in which every GPU sends to every other GPU: in one round, or (`in_rounds`) in many rounds."""
    return gpus * (gpus - 1) * (ROUND_EDGE if in_rounds else EDGE)


def of_messages(messages: int) -> Effort:
    """Effort of an exchange of which this many messages are routed, one batch at a time, in place of all."""
    return messages * Effort(EDGE.us)


def of_collective(gpus: int) -> Effort:
    """Effort of a collective in which every GPU sends to a few other GPUs."""
    return gpus * (1 + log2(max(1, gpus)) / 4) * Effort(BOUND_GPU.us / 4, BOUND_GPU.bytes)


def of_flows(routes: Sequence[int], links: int, at_once: int, *, rounded: bool = False) -> Effort:
    """Effort of bare flows, given the number of links of each route and the number of flows that are active `at_once`: the start
    and the end of a flow change the rates of all flows that share a link with it. `rounded`: by the compiled engine."""
    sharing = sum(routes) / max(1, min(links, sum(routes)))
    if rounded:
        return len(routes) * FLOW + len(routes) * at_once * min(sharing, MOST_MEETINGS) * COMPILED_MEETING
    return len(routes) * FLOW + len(routes) * at_once * sharing * MEETING


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the effort of a run: the engine, whether a long run is allowed, and the callback for the estimate."""

    engine: str = "auto"
    long: bool = False
    expect: Expect = no_progress

    @property
    def quickest(self) -> str:
        """The fastest engine that is available for a graph of many tasks."""
        if self.engine in ("auto", "compiled") and find_spec("numba") is not None:
            return "compiled"
        return "heap" if self.engine in ("auto", "heap") else "des"

    def must_begin(self, program: Program, cluster: Cluster, gpus: int, *, folding: bool) -> None:
        """Raises `UserError` for a run above the limits, before the program is bound to so many GPUs."""
        rows, variants = [sum(len(program.bodies[step.body].ops) for step in steps) for steps in program.orders], program.variants
        takes = of_run(rows, gpus, folding=folding, by=self.quickest, variants=len(variants) or 1)
        takes += of_routes(cluster, gpus)
        hint = "fewer GPUs or microbatches" if folding else "fewer GPUs or microbatches, or folding"
        hint += ", or plan.moe.ranks: hottest" if len(variants) > 2 else ""
        self.check(takes, f"this run on {counted(cluster.gpus, 'GPU')}", hint)

    def must_end(self, tasks: int) -> None:
        """Raises `UserError` for a number of tasks above the limits."""
        more = "" if self.quickest == "compiled" else "; the compiled engine, with the extra 'fast', takes a third of the time"
        what, hint = f"{tasks:,} tasks, because too few ranks behave alike,", "fewer GPUs or microbatches, or fewer disturbances"
        self.check(tasks * TASK[self.quickest], what, hint + more)

    def must_send(self, counts: Counts) -> None:
        """Raises `UserError` for a number of stepwise messages above the limits."""
        messages, edges, collectives, tasks = counts
        takes = messages * MESSAGE + edges * STEPWISE_EDGE + collectives * STEPWISE_GROUP + tasks * TASK["des"]
        self.check(takes, f"{messages:,} messages of stepwise", "fidelity fluid, or fewer GPUs and microbatches")

    def holds(self, takes: Effort) -> bool:
        """Whether this effort is within the limits of a run without `long`."""
        return takes.seconds <= MOST_S and takes.bytes <= MOST_BYTES

    def check(self, takes: Effort, what: str, hint: str) -> None:
        """Reports the estimated effort; raises `TooLong` for an effort above the limits, unless `long` allows a long run."""
        if not self.long and not self.holds(takes):
            most = f"{MOST_S} s or {show_bytes(MOST_BYTES)}"
            raise TooLong(f"{what} would take {takes}; more than {most} is done only on request", hint=f"{hint}; {FLAG}")
        self.expect(takes)
