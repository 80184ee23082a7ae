"""A run: what was simulated, what came out, and how it shows itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import escape
from ...engine.timeline import Timeline
from ...errors import UserError, must_be
from ...memory.account import RankMemory, over_time
from ...metrics import Array, Observation, Window, bubble, mfu
from ...metrics.idle import BUSY, OPTIMIZER, Spent, imbalance
from ...metrics.mfu import CONVENTION
from ...program.labels import Labels
from ...program.op import HOST
from ...program.program import Program
from ...units import TFLOP, seconds, show_s
from ..scenarios.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from ..network.network import Network
    from .kernel_costs import OpCost

REPORTED_AXES = ("tp", "pp", "dp", "cp", "ep")
MOST_ROWS = 5_000_000


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a step costs. Times are seconds; those from `exposed_s` on are means over ranks."""

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    samples_per_s: float
    model_tflop_per_s_per_gpu: float
    mfu: float
    hfu: float
    flop_convention: str
    bubble_fraction: float
    exposed_s: dict[str, float]
    imbalance_s: dict[str, float]
    launch_s: float
    optimizer_s: float
    busy_s: float


@dataclass(frozen=True)
class Run:
    """The result of a simulation."""

    scenario: Scenario
    program: Program
    engine_timeline: Timeline
    labels: tuple[Labels, ...]
    memory: tuple[RankMemory, ...]
    engine: str
    engine_reason: str
    wall_s: float
    measured: Window | None = None
    """What of the simulated training steps the numbers are of; None: all of it."""

    @cached_property
    def observation(self) -> Observation:
        job = self.scenario.job
        flop = self.scenario.model.train_flop_per_token(job.sequence_length, causal=False) * job.tokens
        peak = self.scenario.cluster.gpu.matmul_peak(job.dtype)
        return Observation(self.engine_timeline, self.labels, flop, peak, self.measured)

    @cached_property
    def spent(self) -> Spent:
        return self.observation.spent

    def calls(self, rank: int) -> dict[str, float]:
        """How often a pipeline rank runs each body in a training step of those that are measured."""
        window = self.observation.window
        calls = Counter(step.body for step in self.program.orders[rank] if step.iteration in window.iterations)
        return {body: times / window.steps for body, times in calls.items()}

    def chosen(self, ranks: Iterable[int]) -> list[int]:
        """Ranks that somebody asks for; all of them exist."""
        must_be(ranks, Iterable, "ranks", "several ranks", "ranks=[0, 1]")
        found = list(ranks)
        for rank in found:
            self.coordinate(rank)
        return found

    def coordinate(self, rank: int) -> int:
        """The pipeline coordinate of a rank."""
        timeline = self.engine_timeline
        must_be(rank, (int, np.integer), "rank", "a whole number", f"ranks are 0 to {timeline.ranks - 1}")
        if not 0 <= rank < timeline.ranks:
            raise UserError(f"no rank {rank}", hint=f"ranks are 0 to {timeline.ranks - 1}")
        return int(timeline.expansion.skeleton.program[timeline.class_of[rank]])

    @property
    def timeline(self) -> RunTimeline:
        """Who did what when, with names."""
        return RunTimeline(self)

    @property
    def gpus(self) -> int:
        return self.engine_timeline.ranks

    @property
    def peak_memory_bytes(self) -> int:
        return max(rank.total_bytes for rank in self.memory)

    @property
    def fits(self) -> bool:
        return self.peak_memory_bytes <= self.scenario.cluster.gpu.memory_bytes

    @cached_property
    def metrics(self) -> Metrics:
        seen, job, use = self.observation, self.scenario.job, mfu.measure(self.observation)
        tokens_per_s = job.tokens / seen.step_s
        return Metrics(
            step_time_s=seen.step_s,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / self.gpus,
            samples_per_s=job.global_batch / seen.step_s,
            model_tflop_per_s_per_gpu=use.model_flop_per_s_per_gpu / TFLOP,
            mfu=use.mfu,
            hfu=use.hfu,
            flop_convention=CONVENTION,
            bubble_fraction=bubble.measure(seen),
            exposed_s={axis: seen.mean_s(self.spent.of(axis)) for axis in REPORTED_AXES},
            imbalance_s={axis: seen.mean_s(self.spent.of(imbalance(axis))) for axis in REPORTED_AXES},
            launch_s=seen.mean_s(self.spent.of(HOST)),
            optimizer_s=seen.mean_s(self.spent.of(OPTIMIZER)),
            busy_s=seen.mean_s(self.spent.of(BUSY)),
        )

    @cached_property
    def network(self) -> Network:
        """What every link carried in the measured step."""
        from ..network.network import network

        return network(self)

    @cached_property
    def kernel_costs(self) -> list[OpCost]:
        """Every kernel of the step: time, model, provenance and error."""
        from .kernel_costs import kernel_costs

        return kernel_costs(self)

    @cached_property
    def collective_costs(self) -> list[OpCost]:
        """Every collective of the step: time alone, source and error."""
        from .collective_costs import collective_costs

        return collective_costs(self)

    @cached_property
    def cost_provenance(self) -> dict[str, float]:
        """Shares of the kernels' time by whose word it is: measured, transferred, roofline; and of sizes beyond the measured."""
        from .provenance import of_kernels

        return of_kernels(self.kernel_costs)

    @cached_property
    def collective_provenance(self) -> dict[str, float]:
        """The same of the collectives: interpolated, extrapolated, theoretical."""
        from .provenance import of_collectives

        return of_collectives(self.collective_costs)

    @property
    def step_time_interval_s(self) -> tuple[float, float]:
        """The step time, two standard errors of its kernels and collectives below and above."""
        from .band import band_s

        metrics = self.metrics
        waits = metrics.exposed_s, self.program.ranks, metrics.bubble_fraction
        return band_s(metrics.step_time_s, self.kernel_costs, self.collective_costs, *waits)

    def memory_over_time(self, rank: int) -> tuple[Array, Array]:
        """Seconds since the measured steps begin, and the bytes that a rank of this pipeline coordinate holds from then on."""
        seen, static_bytes = self.observation, self.memory[rank].static_bytes
        iterations = seen.window.iterations
        ns, held = over_time(rank, static_bytes, seen.timeline, self.labels[rank], iterations)
        return (ns - seen.from_ns).clip(0) * seconds(1), held

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim run --json` prints."""
        timeline = self.engine_timeline
        return {
            **asdict(self.metrics),
            "step_time_interval_s": list(self.step_time_interval_s),
            "cost_provenance": self.cost_provenance,
            "collective_provenance": self.collective_provenance,
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory_by_stage": [memory_record(rank) for rank in self.memory],
            "fits": self.fits,
            "gpus": self.gpus,
            "tasks": len(timeline.expansion.graph),
            "tasks_represented": timeline.tasks_represented,
            "classes": timeline.expansion.ranks,
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "measured": self.observation.window.text,
            "wall_s": self.wall_s,
            "scenario": self.scenario.as_dict(),
        }

    @property
    def notes(self) -> list[str]:
        """What somebody should know besides the numbers, in sentences: nearly full memory, values without an effect."""
        from .notes import notes

        return notes(self.scenario, self.memory)

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The numbers that a person asks for first, in words."""
        from .summary import summary

        return summary(self)

    def __repr__(self) -> str:
        return "\n".join(["Run", *(f"  {name:<11} {escape.terminal(text)}" for name, text in self.summary)])

    def _repr_html_(self) -> str:
        told = [(name, escape.html(text)) for name, text in self.summary]
        rows = "".join(f"<tr><th>{name}</th><td style='text-align:left'>{text}</td></tr>" for name, text in told)
        return f"<table>{rows}</table>"


def memory_record(rank: RankMemory) -> dict[str, Any]:
    """The memory of a pipeline rank as plain data."""
    return {**asdict(rank), "stage": rank.rank, "stages": list(rank.stages), "total_bytes": rank.total_bytes}


@dataclass(frozen=True)
class RunTimeline:
    """The measured training steps with their labels, from when they begin: rows per rank and task, made only when asked for."""

    run: Run

    def __len__(self) -> int:
        """Rows of the whole cluster: each rank's own and every turn that it takes in a communicator."""
        timeline = self.run.engine_timeline
        rows = np.array([int(self.run.observation.counts(labels.iteration).sum()) for labels in self.run.labels])
        return int((rows[timeline.expansion.skeleton.program] * timeline.multiplicity).sum())

    def columns_of(self, rank: int) -> dict[str, Any]:
        """The columns of one rank, in the order of its program."""
        timeline, labels = self.run.engine_timeline, self.run.labels[self.run.coordinate(rank)]
        tasks, from_ns = timeline.tasks_of(rank), self.run.observation.from_ns
        columns = {
            "task": tasks,
            "rank": np.full(len(tasks), rank),
            "stream": labels.stream,
            "kind": labels.kind,
            "phase": labels.phase,
            "stage": labels.stage,
            "chunk": labels.chunk,
            "microbatch": labels.microbatch,
            "block": np.array(labels.blocks, dtype=object),
            "start_ns": timeline.times.start_ns[tasks] - from_ns,
            "end_ns": timeline.times.end_ns[tasks] - from_ns,
            "arrival_ns": timeline.times.arrival_ns[tasks] - from_ns,
            "flop": labels.flop,
            "payload_bytes": labels.payload_bytes,
            "wire_bytes": timeline.expansion.graph.work[tasks] >> 24,
        }
        measured = self.run.observation.counts(labels.iteration)
        return columns if measured.all() else {name: column[measured] for name, column in columns.items()}

    def to_pandas(self, ranks: Iterable[int] | None = None) -> pd.DataFrame:
        """A row per rank and task, for all ranks or for those given, in the order of time; of one instant, by rank."""
        import pandas as pd

        if ranks is None and len(self) > MOST_ROWS:
            raise UserError(f"{len(self):,} rows are more than a frame should hold", hint="to_pandas(ranks=[0, 1])")
        wanted = range(self.run.gpus) if ranks is None else self.run.chosen(ranks)
        rows = pd.concat([pd.DataFrame(self.columns_of(rank)) for rank in wanted], ignore_index=True)
        return rows.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        ranks, ends_s = self.run.engine_timeline.ranks, seconds(int(self.run.engine_timeline.times.end_ns.max(initial=0)))
        return f"Timeline({len(self):,} rows of {ranks:,} ranks, {show_s(ends_s)}; to_pandas(ranks=[0]) makes a table)"
