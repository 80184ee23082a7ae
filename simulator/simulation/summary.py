"""A run in a dozen lines: what was asked, what a step takes, where its time goes, whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

from ..config import catalog
from ..config.feasible import unused
from ..config.scenario import Scenario
from ..plan.plan import Plan
from ..units import show_bytes, show_count, show_s
from ..workload.framework import Framework
from .memory_check import LEFT_FRACTION, is_nearly_full
from .op_costs import provenance_lines
from .result import Result

SHOWN: Mapping[str, Callable[[float], str]] = {"time": show_s, "fraction": "{:.1%}".format, "rate": "{:,.1f}".format}
"""How a metric is written, by what it does when all times grow."""


def summary(
    result: Result, interval_s: tuple[float, float], kernels: Mapping[str, float], collectives: Mapping[str, float]
) -> list[tuple[str, str]]:
    """Names and values, in the order in which people ask for them; `kernels` and `collectives` are shares by provenance."""
    m = result.metrics
    low, high = map(show_s, interval_s)
    return [
        *_question(result),
        ("step time", f"{show_s(m.step_time_s)}, {low} to {high} within two standard errors"),
        ("measured", result.observation.window.text),
        *provenance_lines(kernels, collectives),
        *_answer(result),
        *((one.LABEL, SHOWN[one.SCALES](value)) for one, value in result.labelled_metrics.values()),
        *_memory(result),
        *(("no effect", sentence) for sentence in unused(result.scenario)),
        ("simulated", _engine(result)),
    ]


def _question(result: Result) -> list[tuple[str, str]]:
    """What was simulated."""
    s, plan = result.scenario, result.scenario.plan
    ways = f"tp {plan.tp} x pp {plan.pp} x dp {result.gpus // (plan.tp * plan.pp)}, {_schedule(plan)}"
    chunks = f" x {plan.chunks} chunks" if plan.chunks > 1 else ""
    splits = f" x {plan.splits} splits" if plan.splits > 1 else ""
    sharding = "" if plan.sharding == "none" else f", {plan.sharding}"
    batch = f"{s.job.global_batch} sequences of {s.job.sequence_length}, {s.job.microbatch_size} at a time, {s.job.dtype}"
    gpu = s.cluster.gpu
    other_gpu = "" if gpu.name in s.cluster.name.split("-") else f" of {gpu.name}"
    software = [("framework", _framework(s))]
    software += [("profile", f"{gpu.profile} ({gpu.profile_hash}) for the kernels of {gpu.name}")] if gpu.profile else []
    software += [("site", f"every kernel takes {gpu.site_scalar:g} times as long")] if gpu.site_scalar != 1 else []
    return [
        ("model", f"{s.model.name}, {show_count(s.model.parameters)} parameters"),
        ("batch", batch),
        ("cluster", f"{result.gpus:,} GPUs: {s.cluster.nodes:,} x {s.cluster.name}{other_gpu}"),
        ("plan", ways + chunks + splits + sharding),
        *software,
    ]


def _schedule(plan: Plan) -> str:
    """The schedule, and to which other it comes where the plan leaves its number of parts at 1."""
    name = catalog.called(plan.schedule)
    own = not isinstance(plan.schedule, str) or name not in catalog.files("schedules")
    comes_to = {} if own else getattr(catalog.module("schedules", name), "WITH_ONE", {})
    same = [f", which is {other} with plan.{field} 1" for field, other in comes_to.items() if getattr(plan, field) == 1]
    return "".join([name, *same])


def _framework(scenario: Scenario) -> str:
    """The name of a framework; of none, what that means here."""
    framework, bare = scenario.framework, Framework()
    if framework.name != bare.name:
        return framework.name
    changed = [one.name for one in fields(Framework) if getattr(framework, one.name) != getattr(bare, one.name)]
    if changed:
        return f"{bare.name}, but for {', '.join(changed)}"
    overlap = scenario.plan.overlap.over(framework.overlap)
    beside = [axis for axis in ("dp", "tp", "pp") if getattr(overlap, axis)]
    only = "only " if 0 < len(beside) < 3 else ""
    overlapped = f"{only}{', '.join(beside) or 'nothing'} may run beside compute"
    return f"{bare.name}: launches are free, every operator is one kernel, {overlapped}"


def _answer(result: Result) -> list[tuple[str, str]]:
    """What a step does with its time."""
    m = result.metrics

    def of_step(seconds: float) -> str:
        return f"{show_s(seconds)}, {seconds / m.step_time_s:.1%} of the step"

    def by_axis(seconds: Mapping[str, float]) -> str:
        return "; ".join(f"{axis} {of_step(value)}" for axis, value in seconds.items() if value)

    uneven = by_axis(m.imbalance_s)
    return [
        ("throughput", f"{m.tokens_per_s:,.0f} tokens/s, {m.tokens_per_s_per_gpu:,.1f} per GPU"),
        ("MFU", f"{m.mfu:.1%}, {m.model_tflop_per_s_per_gpu:.0f} TFLOP/s per GPU (attention counted in {m.flop_convention})"),
        ("compute", f"{of_step(m.busy_s)}, mean over ranks"),
        ("pipeline bubble", f"{of_step(m.bubble_fraction * m.step_time_s)}, waiting for other stages"),
        ("exposed", by_axis(m.exposed_s) or "no communication"),
        *([("imbalance", f"{uneven}, waiting for slower members of a group")] if uneven else []),
        *([("launch overhead", f"{of_step(m.launch_s)}, waiting for the host")] if m.launch_s else []),
        ("optimizer", of_step(m.optimizer_s)),
    ]


def _memory(result: Result) -> list[tuple[str, str]]:
    """The peak of the fullest GPU, its capacity, and the part of the peak that is not tensors."""
    most, have = max(result.memory, key=lambda rank: rank.total_bytes), show_bytes(result.scenario.cluster.gpu.memory_bytes)
    verdict = "" if result.fits else ": DOES NOT FIT"
    if is_nearly_full(result.scenario, result.memory):
        verdict = f": LESS THAN {LEFT_FRACTION:.0%} LEFT"
    besides = f"{show_bytes(most.overhead_bytes)} of that memory for context, NCCL buffers and fragmentation"
    return [("memory", f"{show_bytes(most.total_bytes)} of {have} on the fullest GPU{verdict}"), ("overhead", besides)]


def _engine(result: Result) -> str:
    timeline = result.engine_timeline
    tasks, all_tasks = len(timeline.expansion.graph), timeline.tasks_represented
    return f"{timeline.expansion.ranks} of {result.gpus:,} ranks, {tasks:,} of {all_tasks:,} tasks, by {result.engine}"
