"""The factor on arithmetic in a step, which is fitted to published steps: to those that were also predicted without it.

A step grows linearly with the factor, as far as the same kernels stay on its longest path: between the step of kernels alone and
the step with the factor that ships, and a little beyond. The factor is the one with the least mean over sources of the median
error.
"""

from __future__ import annotations

from collections.abc import Sequence

import halves
from published_rows import PublishedRun

from simulator.config.step_constants import StepConstant, arithmetic, step_constants

ALONE = "alone"
"""The variant of a run in which arithmetic takes as long as alone."""
NAME = "arithmetic in a step"
FACTORS = [1 + percent / 100 for percent in range(0, 41, 5)]
"""The factors that are tried, in steps as wide as what halves of the sources ask for. In steps of 1% a sample of 119 runs, eight
of a source, asked for 1.10, and one of 83, five of a source, for 1.11."""
OBTAINED = (
    "results/validation/make.py: the factor with the least mean over sources of the median error, on a sample of {} runs of "
    "tiers A and B, at most {} of a source; interval: {} random halves of the sources, 5% to 95%"
)


def step_s(run: PublishedRun, factor: float) -> float | None:
    """Seconds of a step with another factor; None for a run outside the sample."""
    alone = run.variants.get(ALONE)
    if not alone or not run.predicted_s:
        return None
    return alone + (run.predicted_s - alone) * (factor - 1) / (arithmetic() - 1)


def error(run: PublishedRun, factor: float) -> float | None:
    """The error of a step with another factor."""
    found = step_s(run, factor)
    return found / run.measured_s - 1 if found and run.measured_s else None


def factor(runs: Sequence[PublishedRun]) -> float:
    """The factor with which the sources are predicted best."""
    return min(FACTORS, key=lambda factor: halves.headline(runs, lambda run: error(run, factor)).median)


def constant(runs: Sequence[PublishedRun]) -> StepConstant:
    """The constant that ships; that of the last time where no run was predicted without it."""
    shipped = step_constants()[NAME]
    sample = [run for run in runs if ALONE in run.variants]
    if not sample:
        return shipped
    found = [factor(one) for one, _ in halves.halves(sample)]
    low, high = (halves.quantile(found, outer) for outer in halves.OUTER)
    most = max(sum(run.source == source for run in sample) for source in {run.source for run in sample})
    obtained = OBTAINED.format(len(sample), most, len(found))
    return StepConstant(NAME, factor(sample), (low, high), obtained, shipped.moves)
