"""A run: the result of a simulation as users hold it, with all that can be asked of it, computed when it is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ..config.unused_fields import unused
from ..escape import Summarised
from ..memory.account import RankMemory
from .memory_check import notes
from .network.link_use import Network, network
from .op_costs import OpCosts, collective_costs, collective_provenance, kernel_costs, kernel_provenance, step_interval_s
from .result import Result
from .summary import summary
from .timeline_table import TimelineTable


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
