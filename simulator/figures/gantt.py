"""The Gantt chart of a run or of a schedule: a row per rank, time to the right.

Forward slots are light and tall, backward slots dark and tall, I and W half as tall (W hatched), communication runs as a
thin line under the slots, a line per axis, and idle time is blank. So the chart reads in print and to the colour-blind.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..files import atomic
from ..study.evaluate import Evaluation
from ..study.run import Run
from .bars import Bar, Chart, chart_of_evaluation, chart_of_run, merged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 14.0
FORMATS = (".png", ".svg", ".pdf")
RASTER_ABOVE = 5_000
"""Bars beyond which a vector file would be slow to open: they are drawn as pixels in it."""
PIXEL = 1 / 1600
"""Of the width: communication closer together than this is drawn as one line."""

COLOURS = {
    "F": ("#a8c8f0", "#6fa0dd", "#4a7fc4", "#355f99"),
    "B": ("#d9622b", "#b54a1b", "#8f3813", "#6b290d"),
    "I": ("#e58a56", "#c96a36", "#a95423", "#854017"),
    "W": ("#8fb573", "#6f9a52", "#557c3c", "#3f5f2b"),
    "optimizer": ("#4d4d4d",),
    "tp": ("#7b3fa0",),
    "pp": ("#00897b",),
    "dp": ("#c2185b",),
    "cp": ("#8d6e00",),
    "ep": ("#3949ab",),
}
NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradients",
    "W": "weight gradients",
    "optimizer": "optimizer",
    "tp": "tensor parallel",
    "pp": "pipeline transfers",
    "dp": "data parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
}
SHAPE = {"F": (0.18, 0.78), "B": (0.18, 0.78), "I": (0.18, 0.78), "W": (0.18, 0.52), "optimizer": (0.18, 0.78)}
"""Bottom and height of a kind of slot in its row; communication lies below."""
LIGHT_TEXT = {"B", "optimizer"}


def gantt(what: Run | Evaluation, *, ranks: Iterable[int] | None = None, title: str | None = None) -> Figure:
    """A matplotlib figure of a run (by default one rank of every pipeline coordinate) or of an evaluated schedule."""
    return draw(chart_of_run(what, ranks) if isinstance(what, Run) else chart_of_evaluation(what, title or ""))


def draw(chart: Chart) -> Figure:
    """Paints a chart."""
    from .drawing import Drawing

    rows = len(chart.rows)
    row_in = 0.52 if rows <= 8 else 0.34 if rows <= 16 else 0.2
    figure = Drawing(figsize=(WIDTH_IN, 1.35 + row_in * rows), layout="constrained", dpi=140)
    axes = figure.add_subplot()
    for y, row in enumerate(chart.rows):
        _row(axes, chart, y, row.bars, row_in)
    axes.set_ylim(rows, 0)
    axes.set_xlim(0, chart.end * 1.001)
    axes.set_yticks([y + 0.5 for y in range(rows)], [row.label for row in chart.rows], fontsize=8 if rows <= 32 else 6)
    axes.set_xlabel(f"time ({chart.unit})" if chart.unit else "time")
    axes.set_title(chart.title, fontsize=11, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.hlines(range(1, rows), 0, chart.end, colors="#dddddd", linewidths=0.5, zorder=0)
    _legend(axes, chart)
    return figure


def _row(axes: Axes, chart: Chart, y: int, bars: tuple[Bar, ...], row_in: float) -> None:
    """The slots of a row, then its communication as lines below them."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for bar in bars:
        groups.setdefault((bar.kind, bar.shade), []).append((bar.start, bar.end))
    lines = [kind for kind, _ in groups if kind not in SHAPE]
    total = sum(len(row.bars) for row in chart.rows)
    for (kind, shade), spans in groups.items():
        if kind in SHAPE:
            low, height = SHAPE[kind]
            where = (y + 1 - low - height, height)
        else:
            spans = merged(spans, chart.end * PIXEL)
            where = (y + 0.85 + 0.14 * sorted(set(lines)).index(kind) / len(set(lines)), 0.12 / len(set(lines)))
        shades = COLOURS[kind]
        axes.broken_barh(
            [(start, end - start) for start, end in spans],
            where,
            facecolors=shades[min(shade, len(shades) - 1)],
            edgecolors="white" if kind in SHAPE else "none",
            linewidth=0.4 if kind in SHAPE else 0.0,
            hatch="////" if kind == "W" else "xx" if kind == "optimizer" else None,
            rasterized=total > RASTER_ABOVE,
            zorder=2,
        )
    _numbers(axes, chart, y, bars, row_in)


def _numbers(axes: Axes, chart: Chart, y: int, bars: tuple[Bar, ...], row_in: float) -> None:
    """Microbatch numbers where they fit."""
    size = min(8.0, row_in * 72 * 0.34)
    points_per_time = (WIDTH_IN - 1.2) * 72 / chart.end
    for bar in bars:
        if bar.text and (bar.end - bar.start) * points_per_time > size * 0.62 * len(bar.text) + 1:
            low, height = SHAPE[bar.kind]
            dark = bar.kind in LIGHT_TEXT or bar.shade > 1
            axes.text(
                (bar.start + bar.end) / 2,
                y + 1 - low - height / 2,
                bar.text,
                fontsize=size,
                ha="center",
                va="center_baseline",
                color="white" if dark else "#202020",
                zorder=3,
                clip_on=True,
            )


def _legend(axes: Axes, chart: Chart) -> None:
    from matplotlib.patches import Patch

    kinds = {bar.kind for row in chart.rows for bar in row.bars}
    patches = [
        Patch(
            facecolor=COLOURS[kind][0],
            edgecolor="white",
            hatch="////" if kind == "W" else "xx" if kind == "optimizer" else None,
            label=NAMES[kind] + ("" if kind in SHAPE else " (line)"),
        )
        for kind in NAMES
        if kind in kinds
    ]
    patches.append(Patch(facecolor="white", edgecolor="#bbbbbb", label="idle"))
    axes.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(patches),
        frameon=False,
        fontsize=8,
        handlelength=1.2,
        columnspacing=1.2,
        borderaxespad=0.1,
    )


def save(figure: Figure, path: str | Path) -> None:
    """Writes a figure as PNG, SVG or PDF, by the name's ending."""
    if Path(path).suffix.lower() not in FORMATS:
        raise UserError(f"{str(path)!r} is no kind of picture", hint=f"end the name in {', '.join(FORMATS)}")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix[1:].lower(), metadata=_undated(Path(path).suffix.lower()))


def _undated(suffix: str) -> dict[str, None]:
    """Metadata that leaves out the date and the version, so that equal figures are equal files."""
    return {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None},
        ".pdf": {"CreationDate": None, "Producer": None},
    }[suffix]
