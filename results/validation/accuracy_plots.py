"""Pictures of predicted beside measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from published_rows import PublishedRun, by_source

from simulator.figures.drawing import Axes, Drawing, Line2D, Patch, save

MARKS = {"Ampere": ("#4a7fc4", "o"), "Hopper": ("#f0a23c", "s"), "Blackwell": ("#1c1c1c", "^"), "other": ("#777777", "D")}
"""Colour and marker of each generation, apart in lightness and in shape for colour-blind readers and in grey."""
BAND, HALF = 0.10, 0.5
SHADE = "#e3e3e3"
WIDEST, TENTHS = 0.6, range(-6, 7, 2)
"""Largest error that the axes of errors show, and their ticks in tenths."""
LINES, SPREAD = 7, 0.06
"""Lines of points in a box, and their distance."""


def scatter(runs: Sequence[PublishedRun], path: Path) -> None:
    """Predicted over published steps, log-log, with a band of 10%, and the errors below, marked by generation of the GPU."""
    figure = Drawing(figsize=(7, 7.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 1))
    times = [time for run in runs for time in (run.measured_s, run.predicted_s) if time]
    span = min(times) / 1.3, max(times) * 1.3
    above.fill_between(span, [time * (1 - BAND) for time in span], [time * (1 + BAND) for time in span], color=SHADE, linewidth=0)
    above.plot(span, span, color="black", linewidth=0.8)
    below.axhspan(-BAND, BAND, color=SHADE, linewidth=0)
    below.axhline(0, color="black", linewidth=0.8)
    for name, (colour, marker) in MARKS.items():
        own = [run for run in runs if run.generation == name]
        style = {"s": 14, "color": colour, "marker": marker, "alpha": 0.7, "linewidths": 0, "label": f"{name}, {len(own):,} runs"}
        if own:
            above.scatter([run.measured_s for run in own], [run.predicted_s for run in own], **style)
            below.scatter([run.measured_s for run in own], list(map(shown_error, own)), **style)
    handles, labels = above.get_legend_handles_labels()
    above.legend([*handles, Patch(color=SHADE)], [*labels, "within 10%"], loc="upper left", frameon=False)
    above.set(xscale="log", yscale="log", xlim=span, ylim=span, ylabel="predicted step time, s")
    below.set(ylim=(-WIDEST, WIDEST), xlabel="published step time, s", ylabel="predicted / published - 1")
    below.set_yticks([x / 10 for x in TENTHS], [percent(x / 10) for x in TENTHS])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def shown_error(run: PublishedRun) -> float:
    """The error of a run; errors beyond an axis stand at its edge."""
    return max(-WIDEST, min(WIDEST, run.error or 0.0))


def percent(value: float) -> str:
    return f"{value:+.0%}" if value else "0%"


def sources(runs: Sequence[PublishedRun], path: Path) -> None:
    """The errors of each source as a box from quarter to quarter, whiskers from 5 to 95%, and all runs."""
    groups = {f"{name} ({len(own)})": own for name, own in by_source(runs).items()}
    figure = Drawing(figsize=(8.4, 0.3 * len(groups) + 1.2), layout="constrained")
    boxes(figure.subplots(), groups)
    save(figure, path)


def mechanisms(groups: Mapping[str, Mapping[str, Sequence[PublishedRun]]], path: Path) -> None:
    """The errors by what a run uses, one block for each property of a run."""
    named = {f"{name} ({len(own)})": own for of in groups.values() for name, own in of.items()}
    figure = Drawing(figsize=(8.4, 0.3 * len(named) + 1.2), layout="constrained")
    axes = figure.subplots()
    boxes(axes, named)
    line = 0.0
    for title, of in groups.items():
        axes.axhline(line + HALF, color="#cccccc", linewidth=0.8)
        axes.text(
            1.01, line + len(of) / 2 + HALF, title, transform=axes.get_yaxis_transform(), va="center", color="#555555", fontsize=9
        )
        line += len(of)
    save(figure, path)


def boxes(axes: Axes, groups: Mapping[str, Sequence[PublishedRun]]) -> None:
    """Boxes of errors, the first group at the top."""
    axes.axvspan(-BAND, BAND, color=SHADE, linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    errors = [list(map(shown_error, own)) for own in groups.values()]
    axes.boxplot(
        errors,
        orientation="horizontal",
        whis=(5, 95),
        widths=0.6,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": "#ffffff", "edgecolor": "#444444"},
        medianprops={"color": "black", "linewidth": 1.6},
    )
    for line, own in enumerate(groups.values(), 1):
        heights = [line + (i % LINES - LINES // 2) * SPREAD for i in range(len(own))]
        for name, (colour, marker) in MARKS.items():
            at = [i for i, run in enumerate(own) if run.generation == name]
            points = [errors[line - 1][i] for i in at], [heights[i] for i in at]
            axes.scatter(*points, s=12, color=colour, marker=marker, alpha=0.7, linewidths=0, zorder=3)
    axes.set_yticks(range(1, len(groups) + 1), list(groups))
    axes.set_ylim(len(groups) + 0.7, 0.3)
    axes.set_xlim(-WIDEST - 0.02, WIDEST + 0.02)
    axes.set_xticks([x / 10 for x in TENTHS], [percent(x / 10) for x in TENTHS])
    axes.set_xlabel("predicted / published step time - 1 (negative: too fast)")
    axes.spines[["top", "right"]].set_visible(False)
    used = {run.generation for own in groups.values() for run in own}
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=name)
        for name, (colour, marker) in MARKS.items()
        if name in used
    ]
    axes.legend(handles=handles, loc="lower right", frameon=False, fontsize=8)


def ablations(scores: Mapping[str, tuple[float, float]], path: Path) -> None:
    """Bars of medians and 90th percentiles, the simulator first."""
    figure = Drawing(figsize=(9.6, 0.34 * len(scores) + 1.1), layout="constrained")
    axes = figure.subplots()
    for line, (middle, p90) in enumerate(scores.values()):
        axes.barh(line, p90, color="#c9d6ea", height=0.7)
        axes.barh(line, middle, color="#4a7fc4" if line else "#355f99", height=0.7)
        axes.text(p90 + 0.004, line, f"{middle:.1%} / {p90:.1%}", va="center", fontsize=8)
    first = next(iter(scores.values()))
    for value in first:
        axes.axvline(value, color="black", linewidth=0.7, linestyle=":")
    axes.set_yticks(range(len(scores)), list(scores))
    axes.set_ylim(len(scores) - 0.4, -0.6)
    most = max(p90 for _, p90 in scores.values())
    axes.set_xlim(0, most * 1.17)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("mean over sources: median |error| (dark) and p90 (light)")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
