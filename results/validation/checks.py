"""Relative results that users decide by: speed-ups of schedules, the ranking of layouts, scaling with GPUs, each with its bar."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import pandas as pd
from published_rows import PublishedRun

Runs = Sequence[PublishedRun]
PLAIN_SCHEDULE = "1f1b"
POINTS = 100
SPEED_UP_POINTS, SCALING_POINTS, SIZE_PERCENT, RANK, BIAS, MEMORY = 3, 2, 4, 0.93, 0.06, 0.06
"""Bars of the lines below."""


def checks(runs: Runs) -> list[str]:
    """Lines of a table: what is compared, the number of values, the bar, what was found, and whether the bar is met."""
    lines = []
    if points := speed_ups(of(runs, "zero-bubble")):
        lines.append(each("Zero Bubble, Table 4: speed-ups over 1F1B, points", points, SPEED_UP_POINTS))
    if points := scaling(of(runs, "dgxc-llama31")):
        lines.append(each("DGX Cloud, Llama 3.1: speed per GPU, that of the smallest run being 100", points, SCALING_POINTS))
    if sizes := [(run.error or 0.0) * POINTS for run in of(runs, "megatron-sc21")]:
        lines.append(each("Megatron-LM, SC'21: errors of the ten sizes, percent", sizes, SIZE_PERCENT))
    if len(layouts := of(runs, "bloom-prequel")) > 1:
        found = ranking(layouts)
        lines.append(
            line("BLOOM: rank correlation of TFLOP/s per GPU", len(layouts), f">= {RANK}", f"{found:.2f}", found >= RANK)
        )
    if errors := [run.error for run in runs if run.gpu.endswith("500w") and run.error is not None]:
        lines.append(middle("H100 of 500 W: median error", errors, BIAS))
    if errors := [abs(run.memory_gb / run.measured_memory_gb - 1) for run in runs if run.memory_gb and run.measured_memory_gb]:
        lines.append(middle("memory: median error, either way", errors, MEMORY))
    return lines


def of(runs: Runs, name: str) -> list[PublishedRun]:
    """The compared runs whose ids begin with a name, in the table and among the runs that ship."""
    return [run for run in runs if run.id.startswith(name) and run.error is not None]


def speed_ups(runs: Runs) -> list[float]:
    """Predicted less published speed-ups over 1F1B, in points."""
    groups = grouped(runs, lambda run: (run.model, run.gpus, run.tflop))
    bases = {id(own): run for own in groups for run in own if run.schedule == PLAIN_SCHEDULE}
    return [difference(bases[id(own)], run) for own in groups if id(own) in bases for run in own if run is not bases[id(own)]]


def scaling(runs: Runs) -> list[float]:
    """Predicted less published speed per GPU, relative to the smallest run of the same model and format, in points."""
    groups = grouped(runs, lambda run: (run.model, run.dtype))
    return [difference(own[0], run) for own in (sorted(own, key=lambda run: run.gpus) for own in groups) for run in own[1:]]


def grouped(runs: Runs, key: Callable[[PublishedRun], object]) -> list[list[PublishedRun]]:
    groups = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return list(groups.values())


def difference(base: PublishedRun, run: PublishedRun) -> float:
    """The predicted less the published speed of a run relative to another, in points."""
    published, predicted = (speed(run, name) / speed(base, name) for name in ("measured_s", "predicted_s"))
    return (predicted - published) * POINTS


def speed(run: PublishedRun, name: str) -> float:
    """Model TFLOP/s per GPU by the published or the predicted step."""
    return float(run.tflop / getattr(run, name))


def ranking(runs: Runs) -> float:
    """Spearman's correlation of published and predicted TFLOP/s per GPU."""
    published, predicted = (pd.Series([speed(run, name) for run in runs]).rank() for name in ("measured_s", "predicted_s"))
    return float(published.corr(predicted))


def each(what: str, values: Sequence[float], bar: float) -> str:
    """A line for values that all have to stay within a bar."""
    sizes = sorted(map(abs, values))
    inside = sum(size <= bar for size in sizes)
    found = f"median {median(sizes):.1f}, largest {sizes[-1]:.1f}; {inside} of {len(sizes)} within"
    return line(what, len(sizes), f"each within {bar}", found, inside == len(sizes))


def middle(what: str, errors: Sequence[float], bar: float) -> str:
    """A line for errors whose median has to stay within a bar."""
    return line(what, len(errors), f"within {bar:.0%}", f"{median(errors):+.1%}", abs(median(errors)) <= bar)


def line(what: str, values: int, bar: str, found: str, met: bool) -> str:
    return f"{what} | {values} | {bar} | {found} | {'yes' if met else 'no'}"
