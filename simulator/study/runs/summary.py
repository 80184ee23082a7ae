"""A run in a dozen lines: what was asked, what a step takes, where its time goes, whether it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...units import show_bytes, show_count, show_s
from ...workload.framework import Framework
from .. import catalog
from .provenance import known_by

if TYPE_CHECKING:
    from .run import Run


def summary(run: Run) -> list[tuple[str, str]]:
    """Names and values, in the order in which a person asks for them."""
    return [*_asked(run), *_found(run), *_how(run)]


def _asked(run: Run) -> list[tuple[str, str]]:
    s, plan = run.scenario, run.scenario.plan
    ways = f"tp {plan.tp} x pp {plan.pp} x dp {run.gpus // (plan.tp * plan.pp)}, {catalog.called(plan.schedule)}"
    chunks = f" x {plan.chunks} chunks" if plan.chunks > 1 else ""
    sharding = "" if plan.sharding == "none" else f", {plan.sharding}"
    batch = f"{s.job.global_batch} sequences of {s.job.sequence_length}, {s.job.microbatch_size} at a time, {s.job.dtype}"
    gpu = s.cluster.gpu
    whose = "" if gpu.name in s.cluster.name.split("-") else f" of {gpu.name}"
    software = [("framework", s.framework.name)] if s.framework != Framework() else []
    software += [("profile", f"{gpu.profile} ({gpu.profile_hash}) for the kernels of {gpu.name}")] if gpu.profile else []
    software += [("site", f"every kernel takes {gpu.site_scalar:g} times as long")] if gpu.site_scalar != 1 else []
    return [
        ("model", f"{s.model.name}, {show_count(s.model.parameters)} parameters"),
        ("batch", batch),
        ("cluster", f"{run.gpus:,} GPUs: {s.cluster.nodes:,} x {s.cluster.name}{whose}"),
        ("plan", ways + chunks + sharding),
        *software,
    ]


def _found(run: Run) -> list[tuple[str, str]]:
    m = run.metrics
    exposed = ", ".join(f"{axis} {show_s(value)}" for axis, value in m.exposed_s.items() if value)
    have, fits = show_bytes(run.scenario.cluster.gpu.memory_bytes), "" if run.fits else ": DOES NOT FIT"
    return [
        ("step time", f"{show_s(m.step_time_s)}, {_between(run)} by the errors of what it is made of"),
        *known_by(run.cost_provenance, run.collective_provenance),
        ("throughput", f"{m.tokens_per_s:,.0f} tokens/s, {m.tokens_per_s_per_gpu:,.1f} per GPU"),
        ("MFU", f"{m.mfu:.1%}, {m.model_tflop_per_s_per_gpu:.0f} TFLOP/s per GPU (attention counted in {m.flop_convention})"),
        ("busy", f"{m.busy_s / m.step_time_s:.1%} of the step computing, on average"),
        ("bubble", f"{m.bubble_fraction:.1%} of the step waiting for other stages"),
        ("exposed", exposed or "no communication"),
        *([("launches", f"{show_s(m.launch_s)} waiting for the host")] if m.launch_s else []),
        ("optimizer", show_s(m.optimizer_s)),
        ("memory", f"{show_bytes(run.peak_memory_bytes)} of {have} on the fullest GPU{fits}"),
    ]


def _between(run: Run) -> str:
    low, high = run.step_time_interval_s
    return f"{show_s(low)} to {show_s(high)}"


def _how(run: Run) -> list[tuple[str, str]]:
    timeline = run.engine_timeline
    tasks, all_tasks = len(timeline.expansion.graph), timeline.tasks_represented
    ranks = f"{timeline.expansion.ranks} of {run.gpus:,} ranks, {tasks:,} of {all_tasks:,} tasks"
    return [("simulated", f"{ranks}, by {run.engine}")]
