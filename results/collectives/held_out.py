"""Rows that were left out of the fits, beside their predictions: errors, and how many lie inside the stated intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np

from simulator.costs.collectives.curves import UncontendedTime
from simulator.costs.collectives.theory import Call
from simulator.files import atomic

matplotlib.use("Agg")

FEW_ROWS = 20
"""Groups with fewer rows do not count in means."""
INTERVAL_SIGMAS = 2.0
"""Half the width of a stated interval, in standard errors."""
MOST_SIGMAS = 6.0


@dataclass(frozen=True)
class Judged:
    """A row that was left out, and its predicted time."""

    system: str
    call: Call
    measured_s: float
    time: UncontendedTime
    wire_s: float
    """Time on the wire at nominal rates."""
    log: str
    """The log that the row is from: its source and version of the library."""

    @property
    def error(self) -> float:
        return self.time.seconds / self.measured_s - 1

    @property
    def sigmas(self) -> float:
        """How many of its standard errors a prediction is off."""
        return abs(math.log(self.time.seconds / self.measured_s)) / self.time.uncertainty

    @property
    def place(self) -> str:
        return "across" if self.call.nodes > 1 else "inside"


@dataclass(frozen=True)
class Score:
    """Errors of a group of rows."""

    rows: int
    median: float
    p90: float
    bias: float
    covered: float
    """Share of rows inside the stated interval."""


def score(rows: Sequence[Judged]) -> Score:
    errors = np.array([row.error for row in rows])
    middle, p90 = np.quantile(np.abs(errors), (0.5, 0.9))
    covered = fmean(row.sigmas <= INTERVAL_SIGMAS for row in rows)
    return Score(len(rows), float(middle), float(p90), float(np.median(errors)), covered)


def scores(rows: Sequence[Judged], by: Callable[[Judged], str]) -> dict[str, Score]:
    """The scores of groups of rows, in the order of their names."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return {name: score(own) for name, own in sorted(groups.items())}


def means(found: dict[str, Score]) -> tuple[float, float]:
    """The means of medians and of 90th percentiles over groups with enough rows."""
    kept = [one for one in found.values() if one.rows >= FEW_ROWS]
    return fmean(one.median for one in kept), fmean(one.p90 for one in kept)


def lines(found: dict[str, Score], head: str) -> list[str]:
    """Scores as a table in Markdown."""
    heads = f"| {head} | rows | median | p90 | bias | in interval |"
    table = [heads, "|---" * (heads.count("|") - 1) + "|"]
    for name, one in found.items():
        table.append(f"| {name} | {one.rows} | {one.median:.1%} | {one.p90:.1%} | {one.bias:+.1%} | {one.covered:.0%} |")
    return [*table, ""]


def calibration_plot(series: dict[str, Sequence[Judged]], path: Path) -> None:
    """Writes a picture: which share of rows is off by at most so many of its standard errors, by provenance."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(series), figsize=(5 * len(series), 4), sharey=True, squeeze=False)
    for axis, (title, rows) in zip(axes[0], series.items(), strict=True):
        for name in ("interpolated", "extrapolated", "theoretical"):
            own: Any = np.sort([row.sigmas for row in rows if row.time.provenance == name])
            if len(own):
                axis.plot(own, np.arange(1, len(own) + 1) / len(own), label=f"{name}, {len(own):,} rows")
        axis.axvline(INTERVAL_SIGMAS, color="0.6", linewidth=1)
        axis.axhspan(0.88, 0.94, color="0.9")
        axis.set(title=title, xlim=(0, MOST_SIGMAS), ylim=(0, 1), xlabel="off by so many standard errors at most")
        axis.legend(loc="lower right")
    axes[0][0].set_ylabel("share of rows")
    figure.tight_layout()
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=80, format="png", metadata={"Software": None})
    plt.close(figure)
