"""Predictions without a simulation, and what a factor that is fitted to steps would give: what the simulator is compared with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from halves import headline
from published_rows import PublishedRun

Key = tuple[str, ...]


def implied_mfu(run: PublishedRun) -> float | None:
    """The MFU of the published step, which counts attention in full; None outside the sample of the ablations."""
    mfu = run.variants.get("mfu")
    return mfu * run.predicted_s / run.measured_s if mfu and run.predicted_s and run.measured_s else None


def keys(run: PublishedRun) -> tuple[Key, ...]:
    """What a constant MFU is known for: GPU and dtype, or else the GPU, or else its generation, or else any run."""
    return (run.gpu, run.dtype), (run.gpu,), (run.generation, ""), ()


def constant_mfu(runs: Sequence[PublishedRun]) -> dict[Key, float]:
    """The median MFU of published steps, by what it is known for."""
    found = defaultdict(list)
    for run in runs:
        if mfu := implied_mfu(run):
            for key in keys(run):
                found[key].append(mfu)
    return {key: median(values) for key, values in found.items()}


def mfu_error(run: PublishedRun, known: Mapping[Key, float]) -> float | None:
    """The error of the step that a constant MFU predicts."""
    mfu = implied_mfu(run)
    return mfu / next(known[key] for key in keys(run) if key in known) - 1 if mfu else None


def roofline_error(run: PublishedRun) -> float | None:
    return variant_error(run, "roofline")


def variant_error(run: PublishedRun, name: str) -> float | None:
    """The error of a step that is predicted in another way; None outside the sample of the ablations."""
    step_s = run.variants.get(name)
    return step_s / run.measured_s - 1 if step_s and run.measured_s else None


def factor(runs: Sequence[PublishedRun]) -> float:
    """The median log error: what one factor on all steps would remove."""
    return median(run.log_error for run in runs)


def best_factor(runs: Sequence[PublishedRun]) -> float:
    """The logarithm by which all steps are too long, if judged by the mean over sources of the median error that is left."""
    tried = [-math.log1p(permille / 1000) for permille in range(-100, 101, 5)]
    return min(tried, key=lambda log_factor: headline(runs, lambda run: error_without(run, log_factor)).median)


def error_without(run: PublishedRun, log_factor: float) -> float:
    """The error of a run after such a factor."""
    return math.expm1(run.log_error - log_factor)
