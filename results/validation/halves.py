"""Scores of predicted runs, and random halves of the sources: fitted on one half, reported on the other, both ways.

What is fitted can be anything: nothing, constants of a baseline, or the width of an interval. Sources are never divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median
from typing import TypeVar

from published_rows import PublishedRun, by_source

from simulator.config.step_constants import StepConstant
from simulator.simulation.op_costs import STANDARD_ERRORS

Fitted = TypeVar("Fitted")
SPLITS = 20
NINE_IN_TEN = 0.9
OUTER = (0.05, 0.95)
"""Quantiles over the halves that are stated as the interval of a constant."""
NAME = "model error"
OBTAINED = (
    "results/validation/make.py: the least value with which {} of all published runs of tiers A and B lie in their intervals, "
    "the share with which nine in ten runs do of the sources it was not calibrated on; interval: {} random halves, 5% to 95%"
)
SHARES = [share / 100 for share in range(90, 100)]
"""Shares of a half that a model error may be calibrated to cover."""
MOVES = "the interval of a step time, and nothing else; it holds whatever the predictions leave out, their bias included"


@dataclass(frozen=True)
class Score:
    """Errors of some runs."""

    n: int
    median: float
    p90: float
    bias: float


def p90(values: Sequence[float], share: float = NINE_IN_TEN) -> float:
    """The smallest value that nine in ten, or another share, do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def score(errors: Sequence[float]) -> Score:
    """Median and 90th percentile of |error|, and the median error."""
    sizes = [abs(error) for error in errors]
    return Score(len(errors), median(sizes), p90(sizes), median(errors))


def headline(runs: Sequence[PublishedRun], error: Callable[[PublishedRun], float | None]) -> Score:
    """The means over sources of their medians, 90th percentiles and biases."""
    found = [score(own) for of in by_source(runs).values() if (own := [e for run in of if (e := error(run)) is not None])]
    return Score(sum(s.n for s in found), *(fmean(getattr(s, name) for s in found) for name in ("median", "p90", "bias")))


def halves(runs: Sequence[PublishedRun]) -> Iterator[tuple[list[PublishedRun], list[PublishedRun]]]:
    """The runs of one random half of the sources and those of the other, both ways, for `SPLITS` splits."""
    sources = list(by_source(runs))
    for seed in range(SPLITS):
        drawn = set(Random(seed).sample(sources, len(sources) // 2))
        one, other = ([run for run in runs if (run.source in drawn) is inside] for inside in (True, False))
        yield one, other
        yield other, one


def two_way(
    runs: Sequence[PublishedRun],
    fit: Callable[[Sequence[PublishedRun]], Fitted],
    error: Callable[[PublishedRun, Fitted], float | None],
) -> Score:
    """The mean headline of the halves that were not used, with what was fitted to the others."""
    found = []
    for fitted_to, reported in halves(runs):
        fitted = fit(fitted_to)
        found.append(headline(reported, lambda run, fitted=fitted: error(run, fitted)))
    return Score(found[0].n + found[1].n, *(fmean(getattr(s, name) for s in found) for name in ("median", "p90", "bias")))


# Intervals ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """Shares of the runs whose measured step lies in its interval, and the median half-width of the intervals."""

    rows: float
    sources: float
    """Mean over sources."""
    width: float


def needed(run: PublishedRun, bias: float = 0.0) -> float:
    """The model error with which the interval of a run just holds the measured step."""
    return math.sqrt(max(0.0, ((run.log_error - bias) / STANDARD_ERRORS) ** 2 - run.sigma**2))


def calibrated(runs: Sequence[PublishedRun], share: float = NINE_IN_TEN, *, centred: bool = False) -> float:
    """The least model error with which a share of the runs lie in their intervals; `centred`: after removing the median error."""
    bias = median(run.log_error for run in runs) if centred else 0.0
    return p90([needed(run, bias) for run in runs], share)


def coverage(runs: Sequence[PublishedRun], error: float) -> Coverage:
    """How many runs lie in their intervals with some model error."""
    inside = {name: fmean(needed(run) <= error for run in own) for name, own in by_source(runs).items()}
    widths = [math.expm1(STANDARD_ERRORS * math.hypot(run.sigma, error)) for run in runs]
    return Coverage(fmean(needed(run) <= error for run in runs), fmean(inside.values()), median(widths))


def unused_halves(runs: Sequence[PublishedRun], share: float) -> list[tuple[float, Coverage]]:
    """For each half: the model error with which a share of it is covered, and the coverage of the other half."""
    return [(made := calibrated(one, share), coverage(other, made)) for one, other in halves(runs)]


def share_to_cover(runs: Sequence[PublishedRun]) -> float:
    """The least share of a half that must be covered for nine in ten runs of the other half to be covered, in the mean."""
    return next(s for s in SHARES if s == SHARES[-1] or fmean(c.rows for _, c in unused_halves(runs, s)) >= NINE_IN_TEN)


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def model_error_constant(runs: Sequence[PublishedRun]) -> StepConstant:
    """The constant that ships."""
    share = share_to_cover(runs)
    errors = [made for made, _ in unused_halves(runs, share)]
    low, high = (round(quantile(errors, outer), 4) for outer in OUTER)
    return StepConstant(NAME, round(calibrated(runs, share), 4), (low, high), OBTAINED.format(f"{share:.0%}", len(errors)), MOVES)
