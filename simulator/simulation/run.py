"""Run: the result of a simulation that users receive; timeline table, costs, network and summary are computed on demand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import catalog
from ..config.scenario import Scenario
from ..config.step_constants import beside_communication, model_error
from ..config.without_use import unused
from ..errors import UserError
from ..escape import Summarised
from ..memory.account import RankMemory
from ..plan.plan import EVEN
from ..units import counted, seconds, show_bytes, show_count, show_s
from ..workload.framework import Framework
from ..workload.job import Job
from ..workload.optimizer import Optimizer
from .borrowed_attention import borrowed_attention
from .energy import Energy, energy_of
from .memory_check import host_record, host_summary, notes, summary
from .op_costs import (
    STANDARD_ERRORS,
    Kernels,
    OpCost,
    OpCosts,
    collective_costs,
    collective_provenance,
    kernel_costs,
    kernel_provenance,
    kernel_rows,
    provenance_lines,
    step_interval_s,
)
from .result import Result
from .sustained_clocks import sustained_clocks_s
from .time_block import time_lines
from .whole_run import WholeRun, whole_run

if TYPE_CHECKING:
    import pandas as pd

    from .network.link_use import Network

MOST_ROWS = 5_000_000
"""Largest number of timeline rows in one pandas frame."""
MOST_PERTURBED = 4
"""Most perturbations that the summary names."""
SHOWN: Mapping[str, Callable[[float], str]] = {"time": show_s, "fraction": "{:.1%}".format, "rate": "{:,.1f}".format}
"""Text format of a metric, by its `SCALES`: how the metric changes when all times grow."""


@dataclass(frozen=True)
class TimelineTable:
    """The tasks of the measured training steps with their labels; times are counted from the start of these steps."""

    result: Result

    def __len__(self) -> int:
        """Number of rows over the whole cluster: the tasks of every rank, a collective counting once per rank in it."""
        timeline = self.result.engine_timeline
        rows = np.array([int(self.result.observation.counts(labels.iteration).sum()) for labels in self.result.labels])
        return int((rows[timeline.skeleton.program] * timeline.multiplicity).sum())

    def columns_of(self, rank: int) -> dict[str, Any]:
        """The columns of one rank, in the order of its program."""
        timeline, labels = self.result.engine_timeline, self.result.labels[self.result.coordinate(rank)]
        tasks, times, from_ns = timeline.tasks_of(rank), timeline.rank_times(rank), self.result.observation.from_ns
        variant = int(timeline.skeleton.variants[timeline.class_of[rank]])
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
            "start_ns": times.start_ns - from_ns,
            "end_ns": times.end_ns - from_ns,
            "arrival_ns": times.arrival_ns - from_ns,
            "flop": labels.flop_of(variant),
            "payload_bytes": labels.payload_bytes,
            "wire_bytes": timeline.expansion.graph.work[tasks] >> 24,
        }
        measured = self.result.observation.counts(labels.iteration)
        return columns if measured.all() else {name: column[measured] for name, column in columns.items()}

    def to_pandas(self, ranks: Iterable[int] | None = None) -> pd.DataFrame:
        """A row per rank and task, for all ranks or the given ranks, sorted by time; rows of equal times are in rank order."""
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
    """The result of a simulation, with views for users: timeline, network, costs, notes and summary."""

    @property
    def timeline(self) -> TimelineTable:
        """The tasks of every rank with their times and labels."""
        return TimelineTable(self)

    @cached_property
    def network(self) -> Network:
        """The bytes that every link carried in the measured step, and the links that ranks waited for."""
        from .network.link_use import network  # imported here because most runs do not need it

        return network(self)

    @cached_property
    def _kernel_rows(self) -> list[tuple[Kernels, OpCost]]:
        return kernel_rows(self)

    @cached_property
    def kernel_costs(self) -> OpCosts:
        """Every kernel of the step: time, model, provenance and error."""
        return kernel_costs(self, self._kernel_rows)

    @cached_property
    def collective_costs(self) -> OpCosts:
        """Every collective of the step: uncontended time, source and error."""
        return collective_costs(self)

    @cached_property
    def sustained_clocks_s(self) -> float:
        """Seconds that kernels of the model take beyond their times in short bursts of launches, the mean over ranks."""
        return sustained_clocks_s(self)

    @cached_property
    def energy(self) -> Energy | str:
        """The energy of a step, or the reason why it is not known."""
        return energy_of(self)

    @property
    def whole_run(self) -> WholeRun | None:
        """The run of all tokens of the job, where the job says how many."""
        joules = self.energy.joules_per_step if isinstance(self.energy, Energy) else None
        return whole_run(self.scenario, self.gpus, self.metrics.step_time_s, joules)

    @cached_property
    def cost_provenance(self) -> dict[str, float]:
        """Shares of the kernels' time by provenance (measured, transferred, roofline), and the share of extrapolated sizes."""
        return kernel_provenance(self.kernel_costs)

    @cached_property
    def collective_provenance(self) -> dict[str, float]:
        """Shares of the collectives' time by provenance: interpolated, extrapolated, theoretical."""
        return collective_provenance(self.collective_costs)

    @cached_property
    def step_time_interval_s(self) -> tuple[float, float]:
        """The interval of the step time, in seconds, that contains the measured step of nine in ten published runs.

        It extends two log-standard errors to each side: those of kernels and collectives, and the error of the model as a whole.
        """
        metrics = self.metrics
        waits = metrics.exposed_s, self.simulated.program.ranks, metrics.bubble_fraction
        kernels = OpCosts(row for _, row in self._kernel_rows)
        _, high_s = step_interval_s(metrics.step_time_s, kernels, self.collective_costs, *waits)
        of_costs = math.log(high_s / metrics.step_time_s) / STANDARD_ERRORS
        factor = math.exp(STANDARD_ERRORS * math.hypot(of_costs, model_error()))
        return metrics.step_time_s / factor, metrics.step_time_s * factor

    @property
    def notes(self) -> list[str]:
        """Sentences that users should read beside the numbers: nearly full memory, values without an effect."""
        borrowed = borrowed_attention(self.prices.estimator) if self.scenario.framework.attention else []
        return [*notes(self.scenario, self.memory), *unused(self.scenario), *borrowed]

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Labels and values of the summary, the most frequently needed first."""
        low, high = map(show_s, self.step_time_interval_s)
        return [
            *_scenario_lines(self),
            ("step time", f"{show_s(self.metrics.step_time_s)}, 90% interval {low} to {high}"),
            ("measured", self.observation.window.text),
            *provenance_lines(self.cost_provenance, self.collective_provenance),
            *([("calibration", factor)] if (factor := _calibration(self)) else []),
            *_result_lines(self),
            ("energy", self.energy.line if isinstance(self.energy, Energy) else f"not known: {self.energy}"),
            *((one.LABEL, SHOWN[one.SCALES](value)) for one, value in self.labelled_metrics.values()),
            *(self.whole_run.lines if self.whole_run else ()),
            *_memory(self),
            *(("no effect", sentence) for sentence in unused(self.scenario)),
            ("simulated", _engine(self)),
        ]

    def explain(self, *, long: bool = False) -> Any:
        """Why the step takes as long as it does, and what would make it shorter: `sim.explain(run)`, found by its public name
        because it belongs to a higher layer."""
        return sys.modules[__package__.partition(".")[0]].explain(self, long=long)

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim run --json` prints."""
        timeline = self.engine_timeline
        return {
            **asdict(self.metrics),
            **{name: value for name, (_, value) in self.labelled_metrics.items()},
            **({"whole_run": asdict(self.whole_run)} if self.whole_run else {}),
            "step_time_interval_s": list(self.step_time_interval_s),
            "sustained_clocks_s": self.sustained_clocks_s,
            "energy": asdict(self.energy) if isinstance(self.energy, Energy) else {"unknown": self.energy},
            "cost_provenance": self.cost_provenance,
            "collective_provenance": self.collective_provenance,
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory_by_stage": [memory_record(rank) for rank in self.memory],
            **({"host_memory": host_record(self.scenario, self.memory)} if self.host_bytes else {}),
            "fits": self.fits,
            "gpus": self.gpus,
            "tasks": timeline.tasks,
            "tasks_represented": timeline.tasks_unfolded,
            "classes": timeline.skeleton.ranks,
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "measured": self.observation.window.text,
            "wall_s": self.wall_s,
            "scenario": self.scenario.as_dict(),
        }


def memory_record(rank: RankMemory) -> dict[str, Any]:
    """The memory of a pipeline rank as plain data."""
    return {
        "rank": rank.rank,
        "stages": list(rank.stages),
        "parameters_bytes": rank.parameters_bytes,
        "gradients_bytes": rank.gradients_bytes,
        "optimizer_bytes": rank.optimizer_bytes,
        "activations_bytes": rank.activations_bytes,
        "working_bytes": rank.working_bytes,
        "context_bytes": rank.context_bytes,
        "nccl_bytes": rank.nccl_bytes,
        "fragmentation_bytes": rank.fragmentation_bytes,
        **({"host_bytes": rank.host_bytes} if rank.host_bytes else {}),
        "stage": rank.rank,
        "total_bytes": rank.total_bytes,
    }


def _scenario_lines(run: Run) -> list[tuple[str, str]]:
    """Summary lines of the scenario: model, batch, cluster, plan and software."""
    s, plan = run.scenario, run.scenario.plan
    shared = f"cp {plan.cp} ({plan.cp_kind}) x " if plan.cp > 1 else ""
    replicas = run.gpus // (plan.tp * plan.cp * plan.pp)
    ways = f"tp {plan.tp} x {shared}pp {plan.pp} x dp {replicas}, {_schedule(s)}"
    chunks = f" x {plan.chunks} chunks" if plan.chunks > 1 else ""
    splits = f" x {plan.splits} splits" if plan.splits > 1 else ""
    shared = f", ep {plan.ep}" if plan.ep > 1 else ""
    kind, group = plan.full_sharding.kind, plan.full_sharding.group
    sharding = "" if kind == "none" else f", {kind}" + (f" in groups of {group}" if group else "")
    recomputed = f", recompute {plan.recomputation.text}" * bool(plan.recomputation.text)
    recomputed += ", offload " * bool(plan.offloading.words) + ", ".join(plan.offloading.words)
    sequences = f"{s.job.global_batch} sequence{'s' * (s.job.global_batch > 1)} of {s.job.sequence_length}"
    batch = f"{sequences}, {s.job.microbatch_size} at a time, {s.job.dtype}"
    active = f", {show_count(s.model.active_parameters)} of them active" if s.model.experts else ""
    gpu = s.cluster.gpu
    other_gpu = "" if gpu.name in s.cluster.name.split("-") else f" of {gpu.name}"
    software = [("framework", _framework(s))]
    software += [("profile", f"{gpu.profile} ({gpu.profile_hash}) for the kernels of {gpu.name}")] if gpu.profile else []
    software += [("site", f"every kernel takes {gpu.site_scalar:g} times as long")] if gpu.site_scalar != 1 else []
    return [
        ("model", f"{s.model.name}, {show_count(s.model.parameters)} parameters{active}"),
        ("batch", batch),
        *([("learning", words)] if (words := _learning(s.job)) else []),
        ("cluster", f"{counted(run.gpus, 'GPU')}: {s.cluster.nodes:,} x {s.cluster.name}{other_gpu}"),
        ("plan", ways + chunks + splits + shared + sharding + recomputed),
        *([] if plan.layout == EVEN and plan.vocabulary == "baseline" else [("layers", _layers(run))]),
        *software,
        *([("perturbed", _perturbed(s))] if s.perturb else []),
    ]


def _perturbed(scenario: Scenario) -> str:
    """The changes of speed and capacity that are simulated, in words; of many the first."""
    texts = [one.text_with(scenario.plan.placement) for one in scenario.perturb]
    more = len(texts) - MOST_PERTURBED
    return "; ".join([*texts[:MOST_PERTURBED], *([f"and {more:,} more"] if more > 0 else [])])


def _learning(job: Job) -> str:
    """Trained parameters, optimizer and packing, where they differ from all parameters, Adam and one document per sequence."""
    optimizer, lora, packing = job.full_optimizer, job.lora, job.packing
    formats = f" with moments in {optimizer.moments}, master copy: {optimizer.master}" if optimizer.kind == "adam" else ""
    words = [optimizer.kind + formats] if optimizer != Optimizer().full else []
    words += [f"adapters of rank {lora.rank} of {', '.join(lora.targets)}"] if lora else []
    words += [f"not the first {job.frozen_layers} layers"] if job.frozen_layers else []
    words += (
        ["gradients are clipped" if job.gradient_clipping else "no gradient norm"] if job.gradient_clipping is not None else []
    )
    words += [f"packed: {job.packed_fraction:.1%} of the scores"] if packing else []
    return "; ".join(words)


def _layers(run: Run) -> str:
    """The layers of every stage in pipeline order, such as `7, 14 x 8, 7`."""
    counts = {stage.number: stage.layers for stage in run.program.stages if not stage.share}.values()
    runs = [(layers, len(list(stages))) for layers, stages in groupby(counts)]
    return ", ".join(f"{stages} x {layers}" if stages > 1 else f"{layers}" for layers, stages in runs) + " per stage"


def _schedule(scenario: Scenario) -> str:
    """The name of the schedule, and the schedule that it equals where the plan leaves its number of parts at 1."""
    plan, comes_to = scenario.plan, getattr(scenario.schedule, "WITH_ONE", {})
    same = [f", which is {other} with plan.{field} 1" for field, other in comes_to.items() if getattr(plan, field) == 1]
    return "".join([catalog.called(plan.schedule), *same])


def _framework(scenario: Scenario) -> str:
    """The name of a framework; without a framework, a description of the defaults."""
    framework, bare = scenario.framework, Framework()
    if framework.name != bare.name:
        return framework.name
    changed = [one.name for one in fields(Framework) if getattr(framework, one.name) != getattr(bare, one.name)]
    if changed:
        return f"{bare.name}, but for {', '.join(changed)}"
    plan, overlap = scenario.plan, scenario.plan.overlap.over(framework.overlap)
    overlaps = {axis: bool(getattr(overlap, axis)) for axis in ("dp", "tp", "pp")}
    overlaps |= {"cp": plan.overlap.cp and plan.cp_kind in ("ring", "mixed")} if plan.cp > 1 else {}
    overlaps |= {"ep": overlap.ep} if plan.ep > 1 else {}
    beside = [axis for axis, is_beside in overlaps.items() if is_beside]
    only = "only " if 0 < len(beside) < len(overlaps) else ""
    overlapped = f"{only}{', '.join(beside) or 'nothing'} may run beside compute"
    return f"{bare.name}: launches are free, every operator is one kernel, {overlapped}"


def _result_lines(run: Run) -> list[tuple[str, str]]:
    """Summary lines of the step: throughput, MFU, and the time by cause."""
    m, sustained = run.metrics, run.scenario.fidelity.power == "sustained"
    return [
        ("throughput", f"{m.tokens_per_s:,.0f} tokens/s, {m.tokens_per_s_per_gpu:,.1f} per GPU"),
        ("MFU", f"{m.mfu:.1%}, {m.model_tflop_per_s_per_gpu:.0f} TFLOP/s per GPU (attention counted in {m.flop_convention})"),
        *time_lines(m, run.sustained_clocks_s if sustained else None, run.prices.estimator.options.boards),
    ]


def _calibration(run: Run) -> str:
    """The factors that were fitted to measured steps, where they apply."""
    fidelity, longer = run.scenario.fidelity, run.prices.estimator.options.arithmetic - 1
    alone = f"{longer:+.1%} on arithmetic, by steps of single GPUs" if longer else ""
    if fidelity.calibration != "steps" or fidelity.overlap != "slowed" or not run.metrics.slowed_s:
        return alone
    return f"{alone}; beside communication it loses {beside_communication():g} times the SMs held, by published steps"


def _memory(run: Run) -> list[tuple[str, str]]:
    """Summary lines of the memory: the peak of the fullest GPU, its capacity, and the overhead that is not tensors."""
    most = max(run.memory, key=lambda rank: rank.total_bytes)
    besides = f"{show_bytes(most.overhead_bytes)} of that memory for context, NCCL buffers and fragmentation"
    lines = [("memory", summary(run.scenario, run.memory)), ("overhead", besides)]
    return [*lines, *([("host memory", host_summary(run.scenario, run.memory))] if run.scenario.plan.offloading.copies else [])]


def _engine(run: Run) -> str:
    timeline = run.engine_timeline
    tasks, all_tasks = timeline.tasks, timeline.tasks_unfolded
    return f"{timeline.skeleton.ranks} of {counted(run.gpus, 'rank')}, {tasks:,} of {counted(all_tasks, 'task')}, by {run.engine}"
