"""Sections of the report with one GPU left out, and the picture of stated uncertainty beside error, for model_errors.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

import numpy as np

from simulator.costs.kernels.fit_choice import FitLibrary
from simulator.files import atomic
from simulator.validate.one_left_out import FAMILIES, Judged, groups, judged, left_out, statistics, usable

HEAD = ("family", "rows", "median", "p90", "bias", "inside, %")
SURE = 0.68
BINS = 12
"""Points of the picture for each provenance, with as many rows each."""


def sections(raw: Sequence[Path], fit_library: FitLibrary, picture: Path) -> Iterator[str]:
    """A section per left-out GPU, their means, and the picture."""
    rows = [row for path in raw for row in usable(path)]
    of_kinds = {"one GPU left out": list(left_out(rows, fit_library)), "fitted": list(judged(rows, fit_library))}
    of_groups = groups(of_kinds["one GPU left out"])
    kept = {key: statistics(some) for key, some in of_groups.items()}
    yield "\n## One GPU left out\n\nAs `python benchmarks/left_out.py` prints it: every row of a GPU, predicted from the fits of"
    yield "the others as they would be borrowed. Medians and 90th percentiles of |error|, and the share of rows inside the stated"
    yield "intervals. Rows with weights that nobody filled are not among them."
    for gpu in dict.fromkeys(gpu for gpu, _ in kept):
        yield f"\n### {gpu}\n"
        yield from _table([(key[1], str(len(of_groups[key])), *_cells(kept[key])) for key in kept if key[0] == gpu])
    yield "\n### Means of these groups\n"
    lines = []
    for family in (*FAMILIES, ""):
        some = [each for key, each in kept.items() if family in ("", key[1])]
        lines.append((family or "all", str(len(some)), *_cells(tuple(map(mean, zip(*some, strict=True))))))
    yield from _table(lines)
    inside = [f"{100 * mean(row.inside for row in some):.1f}% of the rows ({name})" for name, some in of_kinds.items()]
    yield f"\nInside their intervals are {' and '.join(inside)}. calibration.png shows stated uncertainty beside error: the"
    yield "relative error that 68% of rows stay below, of rows with about the same stated standard error."
    _draw(picture, of_kinds)


def _cells(found: Sequence[float]) -> tuple[str, ...]:
    middle, p90, bias, inside = found
    return f"{middle:.1f}", f"{p90:.1f}", f"{bias:+.1f}", f"{inside:.0f}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _draw(path: Path, of_kinds: dict[str, list[Judged]]) -> None:
    """Error beside stated uncertainty, on a diagonal where uncertainty is right."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
    for name, rows in of_kinds.items():
        ordered = sorted(rows, key=lambda row: row.sigma)
        parts = [[ordered[i] for i in part] for part in np.array_split(np.arange(len(ordered)), BINS)]
        stated = [float(np.median([row.sigma for row in part])) for part in parts]
        error = [float(np.quantile([abs(np.log1p(row.error)) for row in part], SURE)) for part in parts]
        axis.plot(100 * np.array(stated), 100 * np.array(error), marker="o", markersize=4, label=name)
    axis.plot([1, 100], [1, 100], color="black", linewidth=0.6)
    axis.set(xscale="log", yscale="log", xlim=(2, 100), ylim=(0.5, 100))
    axis.set(xlabel="stated standard error, %", ylabel="error that 68% of rows stay below, %")
    axis.legend()
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=80, format="png", metadata={"Software": None})
    plt.close(figure)
