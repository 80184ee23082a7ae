"""Result of a simulation: the scenario, all intermediate values and the timeline, as one frozen value.

Metrics, costs and network use of a run are computed from the result: nothing is bound or priced again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np

from ..binding.bind import Bound, Site, bind
from ..config import catalog, derived
from ..config.scenario import Scenario
from ..costs.kernels.estimator import PricedKernels
from ..engine.timeline import Timeline
from ..errors import UserError, must_be
from ..memory.account import RankMemory, all_changes, over_time
from ..memory.ledger import changes_by_class
from ..metrics import Array, Observation, bubble, mfu, slowed_s
from ..metrics.idle import BUSY, OPTIMIZER, TimeByCause, imbalance
from ..metrics.idle import measure as time_by_cause
from ..metrics.mfu import CONVENTION
from ..program.holdings import Holding
from ..program.labels import Labels
from ..program.operations import HOST, OFFLOAD
from ..program.program import Program
from ..units import TFLOP, seconds
from .memory_check import fits, host_bytes
from .simulated import Simulated

REPORTED_AXES = ("tp", "pp", "dp", "cp", "ep")


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of a training step. Times are in seconds; the times from `exposed_s` on are means over ranks."""

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
    slowed_s: float
    """The part of `busy_s` that kernels take longer because of communication beside them."""


@dataclass(frozen=True)
class Result:
    """The result of a simulation, with every value from which the result was computed."""

    scenario: Scenario
    site: Site
    """The cluster with the times of kernels and collectives on the cluster."""
    prices: PricedKernels
    """The estimates of all kernels of the program."""
    memory: tuple[RankMemory, ...]
    simulated: Simulated
    """The simulation that metrics are measured on: the step, or one of fewer microbatches in which a part stands for several."""
    wall_s: float
    whole_step: Callable[[], Simulated] | None = None
    """Simulates all microbatches, where fewer were simulated."""
    given: Scenario | None = None
    """The scenario before its framework chose what its plan leaves open."""
    steps: int | None = None
    """The requested number of training steps, from a standing start."""

    @property
    def as_given(self) -> Scenario:
        """The scenario before its framework chose what its plan leaves open; other plans are derived from this one."""
        return self.given or self.scenario

    @cached_property
    def whole(self) -> Simulated:
        """The step with all of its microbatches."""
        return self.whole_step() if self.whole_step else self.simulated

    @property
    def program(self) -> Program:
        return self.whole.program

    @property
    def bound(self) -> Bound:
        return self.whole.bound

    @property
    def engine_timeline(self) -> Timeline:
        return self.whole.timeline

    @property
    def engine(self) -> str:
        return self.simulated.engine

    @property
    def engine_reason(self) -> str:
        return self.simulated.engine_reason

    @property
    def labels(self) -> tuple[Labels, ...]:
        """Labels of the rows of each role's program."""
        return self.bound.labels

    @cached_property
    def bound_rank_by_rank(self) -> Bound:
        """The program bound to all GPUs, also where one block of replicas was simulated for all."""
        if not self.bound.copies:
            return self.bound
        return bind(self.program, self.bound.mesh, self.site)

    @property
    def gpus(self) -> int:
        return self.simulated.timeline.ranks

    @property
    def peak_memory_bytes(self) -> int:
        return max(rank.total_bytes for rank in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every GPU, and every host, has the memory that the plan needs."""
        return fits(self.scenario, self.memory)

    @property
    def host_bytes(self) -> int:
        """Bytes of offloaded data that the host of a node holds, for the node that holds most."""
        return host_bytes(self.scenario, self.memory)

    @cached_property
    def observation(self) -> Observation:
        """The observation of the measured steps with all of their microbatches."""
        return self.whole.observed(*self._flop) if self.whole_step else self.observed

    @cached_property
    def observed(self) -> Observation:
        """The observation that the metrics are measured on."""
        return self.simulated.observed(*self._flop)

    @property
    def _flop(self) -> tuple[float, float]:
        return derived.flop_of_step(self.scenario), derived.peak_flop_per_s(self.scenario)

    @cached_property
    def time_by_cause(self) -> TimeByCause:
        """The time of every class of ranks by cause: busy, or idle for exactly one cause at each instant."""
        return time_by_cause(self.observed)

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of a measured step."""
        causes, observed, job, gpus = self.time_by_cause, self.observed, self.scenario.job, self.gpus
        utilisation, step_s = mfu.measure(observed), observed.step_s
        reported = (*REPORTED_AXES, *((OFFLOAD,) if OFFLOAD in observed.axes else ()))
        return Metrics(
            step_time_s=step_s,
            tokens_per_s=job.tokens / step_s,
            tokens_per_s_per_gpu=job.tokens / step_s / gpus,
            samples_per_s=job.global_batch / step_s,
            model_tflop_per_s_per_gpu=utilisation.model_flop_per_s_per_gpu / TFLOP,
            mfu=utilisation.mfu,
            hfu=utilisation.hfu,
            flop_convention=CONVENTION,
            bubble_fraction=bubble.measure(observed, causes),
            exposed_s={axis: observed.mean_s(causes.of(axis)) for axis in reported},
            imbalance_s={axis: observed.mean_s(causes.of(imbalance(axis))) for axis in REPORTED_AXES},
            launch_s=observed.mean_s(causes.of(HOST)),
            optimizer_s=observed.mean_s(causes.of(OPTIMIZER)),
            busy_s=observed.mean_s(causes.of(BUSY)),
            slowed_s=slowed_s.measure(observed),
        )

    @cached_property
    def labelled_metrics(self) -> dict[str, tuple[ModuleType, float]]:
        """The metrics that have a `LABEL`, by the names of their files, with their values."""
        found = {name: one for name, one in catalog.modules("simulator.metrics").items() if hasattr(one, "LABEL")}
        return {name: (one, one.measure(self.observation)) for name, one in found.items()}

    def existing(self, ranks: Iterable[int]) -> list[int]:
        """The given ranks as a list; raises `UserError` unless all of these ranks exist."""
        must_be(ranks, Iterable, "ranks", "several ranks", "ranks=[0, 1]")
        found = list(ranks)
        for rank in found:
            self.coordinate(rank)
        return found

    def coordinate(self, rank: int) -> int:
        """The role of a rank, which is its pipeline coordinate where roles are not divided."""
        timeline = self.engine_timeline
        must_be(rank, (int, np.integer), "rank", "a whole number", f"ranks are 0 to {timeline.ranks - 1}")
        if not 0 <= rank < timeline.ranks:
            raise UserError(f"no rank {rank}", hint=f"ranks are 0 to {timeline.ranks - 1}")
        return int(timeline.skeleton.program[timeline.class_of[rank]])

    def memory_over_time(self, rank: int) -> tuple[Array, Array]:
        """Seconds since the start of the measured steps, and bytes that a rank of a pipeline coordinate holds from each time.

        Where the ranks of a coordinate have several roles, that of the largest peak counts.
        """
        return self.role_memory_over_time(self._fullest_role(rank))

    def role_memory_over_time(self, role: int) -> tuple[Array, Array]:
        """Seconds since the start of the measured steps, and bytes that a rank of a role holds from each time on."""
        labels = self.labels[role]
        times, held = self._over_time(role, np.array([self.memory[labels.pipeline].static_bytes]), all_changes(labels))
        return times, held[:, 0]

    def memory_by_class(self, rank: int) -> tuple[Array, dict[Holding, Array]]:
        """As `memory_over_time`, with the bytes of each class of memory apart."""
        role = self._fullest_role(rank)
        kinds, changes = changes_by_class(self.program, self.labels[role])
        throughout = {kind: self.memory[rank].bytes_of(kind) for kind in Holding}
        times, held = self._over_time(role, np.array([throughout[kind] for kind in kinds]), changes)
        over_time = dict(zip(kinds, held.T, strict=True))
        every = {kind: over_time.get(kind, np.full(len(times), throughout[kind])) for kind in Holding}
        return times, {kind: of_kind for kind, of_kind in every.items() if of_kind.any()}

    def _fullest_role(self, rank: int) -> int:
        """The role of a pipeline coordinate with the largest peak."""
        roles = [number for number, role in enumerate(self.program.roles) if role.pipeline == rank]
        return max(roles, key=lambda role: int(self.role_memory_over_time(role)[1].max())) if len(roles) > 1 else roles[0]

    def _over_time(self, role: int, static_bytes: Array, changes: Array) -> tuple[Array, Array]:
        """Seconds since the start of the measured steps, and the bytes of each of several classes from each time on."""
        observed = self.observation
        ns, held = over_time(role, static_bytes, changes, observed.timeline, self.labels[role], observed.window.iterations)
        return (ns - observed.from_ns).clip(0) * seconds(1), held
