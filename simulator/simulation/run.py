"""A run: the result of a simulation as users hold it, with all that can be asked of it, computed when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.feasible import unused
from ..errors import UserError
from ..escape import Summarised
from ..memory.account import RankMemory
from ..units import seconds, show_s
from .memory_check import notes
from .network.link_use import Network, network
from .op_costs import OpCosts, collective_costs, collective_provenance, kernel_costs, kernel_provenance, step_interval_s
from .result import Result
from .summary import summary

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 5_000_000
"""Rows of a timeline that a frame may hold."""


@dataclass(frozen=True)
class TimelineTable:
    """The measured training steps with their labels, from when they begin."""

    result: Result

    def __len__(self) -> int:
        """Rows of the whole cluster: each rank's own and every turn that it takes in a communicator."""
        timeline = self.result.engine_timeline
        rows = np.array([int(self.result.observation.counts(labels.iteration).sum()) for labels in self.result.labels])
        return int((rows[timeline.expansion.skeleton.program] * timeline.multiplicity).sum())

    def columns_of(self, rank: int) -> dict[str, Any]:
        """The columns of one rank, in the order of its program."""
        timeline, labels = self.result.engine_timeline, self.result.labels[self.result.coordinate(rank)]
        tasks, from_ns = timeline.tasks_of(rank), self.result.observation.from_ns
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
        measured = self.result.observation.counts(labels.iteration)
        return columns if measured.all() else {name: column[measured] for name, column in columns.items()}

    def to_pandas(self, ranks: Iterable[int] | None = None) -> pd.DataFrame:
        """A row per rank and task, for all ranks or for those given, in the order of time; of one instant, by rank."""
        import pandas as pd

        if ranks is None and len(self) > MOST_ROWS:
            raise UserError(f"{len(self):,} rows are more than a frame should hold", hint="to_pandas(ranks=[0, 1])")
        wanted = range(self.result.gpus) if ranks is None else self.result.existing(ranks)
        rows = pd.concat([pd.DataFrame(self.columns_of(rank)) for rank in wanted], ignore_index=True)
        return rows.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        timeline = self.result.engine_timeline
        ranks, ends_s = timeline.ranks, seconds(int(timeline.times.end_ns.max(initial=0)))
        return f"Timeline({len(self):,} rows of {ranks:,} ranks, {show_s(ends_s)}; to_pandas(ranks=[0]) makes a table)"


@dataclass(frozen=True, repr=False)
class Run(Summarised, Result):
    """The result of a simulation, and what can be asked of it."""

    @property
    def timeline(self) -> TimelineTable:
        """Which rank did what and when, with labels."""
        return TimelineTable(self)

    @cached_property
    def network(self) -> Network:
        """What every link carried in the measured step, and which links ranks waited for."""
        return network(self)

    @cached_property
    def kernel_costs(self) -> OpCosts:
        """Every kernel of the step: time, model, provenance and error."""
        return kernel_costs(self)

    @cached_property
    def collective_costs(self) -> OpCosts:
        """Every collective of the step: uncontended time, source and error."""
        return collective_costs(self)

    @cached_property
    def cost_provenance(self) -> dict[str, float]:
        """Shares of the kernels' time by provenance: measured, transferred, roofline; and of sizes beyond the measured."""
        return kernel_provenance(self.kernel_costs)

    @cached_property
    def collective_provenance(self) -> dict[str, float]:
        """Shares of the collectives' time by provenance: interpolated, extrapolated, theoretical."""
        return collective_provenance(self.collective_costs)

    @cached_property
    def step_time_interval_s(self) -> tuple[float, float]:
        """The step time, two standard errors of its kernels and collectives below and above."""
        metrics = self.metrics
        waits = metrics.exposed_s, self.program.ranks, metrics.bubble_fraction
        return step_interval_s(metrics.step_time_s, self.kernel_costs, self.collective_costs, *waits)

    @property
    def notes(self) -> list[str]:
        """What users should know besides the numbers, in sentences: nearly full memory, values without an effect."""
        return [*notes(self.scenario, self.memory), *unused(self.scenario)]

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The numbers that people ask for first, with names."""
        return summary(self, self.step_time_interval_s, self.cost_provenance, self.collective_provenance)

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim run --json` prints."""
        timeline = self.engine_timeline
        return {
            **asdict(self.metrics),
            **{name: value for name, (_, value) in self.labelled_metrics.items()},
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


def memory_record(rank: RankMemory) -> dict[str, Any]:
    """The memory of a pipeline rank as plain data."""
    return {**asdict(rank), "stage": rank.rank, "stages": list(rank.stages), "total_bytes": rank.total_bytes}
