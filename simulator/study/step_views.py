"""Views of a training step: the memory of its ranks, and the load of its network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config.scenario import Scenario
from ..engine.task import Array
from ..errors import must_be
from ..escape import Summarised
from ..simulation import estimated_effort
from ..simulation.memory_check import host_capacity_bytes, host_record, host_summary
from ..simulation.network.link_use import Network
from ..simulation.run import Run, memory_record
from ..simulation.runnable import load_one
from ..simulation.simulate import simulate_scenario
from ..units import GIB, show_bytes
from .memory_explained import MemoryExplained, explained, verdict


@dataclass(frozen=True, repr=False)
class MemoryReport(Summarised):
    """The memory of a GPU of every pipeline rank in a training step, by class and over time."""

    run: Run

    @property
    def capacity_bytes(self) -> float:
        return self.run.scenario.cluster.gpu.memory_bytes

    @property
    def over_gib(self) -> float:
        """Memory of the fullest GPU beyond its capacity, in GiB."""
        return max(0.0, (self.run.peak_memory_bytes - self.capacity_bytes) / GIB)

    @property
    def host_over_gib(self) -> float:
        """Memory of the fullest host beyond its capacity, in GiB."""
        return max(0.0, (self.run.host_bytes - host_capacity_bytes(self.run.scenario)) / GIB)

    @cached_property
    def curves(self) -> tuple[tuple[Array, Array], ...]:
        """For every pipeline rank the times in seconds, and the bytes held from each time on."""
        return tuple(self.run.memory_over_time(rank.rank) for rank in self.run.memory)

    @property
    def verdict(self) -> str:
        """Whether the fullest GPU has enough memory, and by how much."""
        return verdict(self.run.peak_memory_bytes, self.run.scenario.cluster.gpu)

    def explain(self, rank: int | None = None) -> MemoryExplained:
        """Every term of a pipeline rank at its peak, by default of the fullest one."""
        return explained(self.run, rank)

    @property
    def summary(self) -> list[tuple[str, str]]:
        peaks = [
            (
                f"pipeline rank {rank.rank}",
                f"{show_bytes(rank.total_bytes)}, {show_bytes(rank.activations_bytes)} of it activations",
            )
            for rank in self.run.memory
        ]
        of_host = [("host memory", host_summary(self.run.scenario, self.run.memory))] if self.run.host_bytes else []
        return [*peaks, ("capacity", f"{show_bytes(self.capacity_bytes)}: {self.verdict}"), *of_host]

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim memory --json`."""
        curves = zip(self.run.memory, self.curves, strict=True)
        return {
            "peak_memory_bytes": self.run.peak_memory_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.run.fits,
            "over_gib": self.over_gib,
            "memory_by_stage": [memory_record(rank) for rank in self.run.memory],
            **({"host_memory": host_record(self.run.scenario, self.run.memory)} if self.run.host_bytes else {}),
            "over_time": [{"rank": rank.rank, "time_s": times, "bytes": held} for rank, (times, held) in curves],
        }


def memory(
    scenario: Scenario | str | Path, *, long: bool = False, expect: estimated_effort.Expect = estimated_effort.no_progress
) -> MemoryReport:
    """Simulates a training step and shows what every pipeline rank holds, whether it fits or not."""
    return MemoryReport(_simulated(scenario, allow_oom=True, long=long, expect=expect))


def network(
    scenario: Scenario | str | Path,
    *,
    allow_oom: bool = False,
    long: bool = False,
    expect: estimated_effort.Expect = estimated_effort.no_progress,
) -> Network:
    """Simulates a training step and shows which links ranks wait for, and what every link carries."""
    return _simulated(scenario, allow_oom=allow_oom, long=long, expect=expect).network


def _simulated(scenario: Scenario | str | Path, **options: Any) -> Run:
    """The run of a scenario, or of the scenario in a file or under a name."""
    given = must_be(scenario, (Scenario, str, Path), "scenario", "a scenario", 'sim.memory("llama3-70b-64xh100")')
    return simulate_scenario(load_one(given) if isinstance(given, (str, Path)) else given, **options)
