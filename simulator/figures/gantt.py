"""The Gantt chart of a run or of a schedule: a row per rank, time to the right.

Forward slots are light, backward slots dark, both tall; weight gradients are lower and hatched; the two slots of an overlapped
pair lie one above the other. The upper part of a slot is pale for the share of its span in which none of its kernels runs.
Communication is a thin line under the slots, one line per axis, with one more for launches that can be waited for, and idle time
is blank. The chart is therefore readable in print and for colour-blind readers. The memory of the ranks is drawn below a
schedule; several schedules share one time axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from textwrap import fill
from typing import Any

import numpy as np

from ..config import catalog
from ..errors import UserError, described, must_be
from ..simulation.run import Run
from ..study.compare import Comparison as RunComparison
from ..study.legal_values import is_number
from ..study.schedule import Evaluation
from ..study.schedule_verbs import Comparison as ScheduleComparison
from ..study.schedule_verbs import brief
from ..units import MS_PER_S
from .bars import KINDS, Bar, Chart, Held, chart_of_evaluation, chart_of_run, merged
from .drawing import INK, Axes, Drawing, Figure, Patch, PolyCollection, ink_on, legible
from .time_axis import set_ticks, unit_of

EXAMPLE = 'gantt({"one": sim.schedule("1f1b", ranks=4, microbatches=8), "other": ...})'
WIDTH_IN = 14.0
NARROW = 3.0
"""Width of the usual bar of a kind, in points, below which its bars have no white edge, and are not moved to whole pixels: else
many bars together would seem to leave gaps."""
MOST_ROWS_IN_ALL = 256
RASTER_ABOVE = 5_000
"""Number of bars above which bars are drawn as pixels, since a vector file would be slow to open."""
DPI = 140
LEAST_PX = 1.2
"""Width below which gaps in communication are not drawn, and to which shorter lines are widened: a pixel, with a margin because
the width of the axes is known only approximately."""
LINES, MOST_LINES, LINE_STEP_PX = 0.14, 0.3, 2.5
"""Fractions of the height of a row: usual and largest height of all lines of communication, and least distance of two lines."""
LINE = 0.8
"""Height of a line beside the distance to the next one."""
SMALLEST, LARGEST = 4.5, 8.0
"""Font sizes of microbatch numbers, in points. A kind of slot that is too small for the smallest font has no numbers."""
DIGIT, MARGIN = 0.62, 1.5
"""Width of a digit as a fraction of the font size, and free space beside a number in points."""
MIDDLE = 0.5
"""Share of waiting from which the number in the middle of a slot stands on its pale part."""
PALE = 0.5
"""Share of white in the colour of the pale part of a slot."""
PANEL_IN, TITLE_IN, NOTE_IN, AROUND_IN = 0.62, 0.3, 0.18, 1.1
"""Heights in inches: of the memory panel, of a title, of a note below it, and of the margins above and below the charts."""
BESIDE = 30
"""Points of the width of a picture that neither charts nor the names of rows take."""
LEAST_WIDTH_IN, LEAST_ROW_IN = 4.0, 0.1
"""Width of a picture, and height of a row, below which text is unreadable."""
POINTS = 72
"""Points of an inch."""
LETTER, NARROW_LETTER, LEGEND, BESIDE_LABEL = 0.58, 0.45, 8, 3.5
"""Width of a letter as a fraction of the font size, at most and in the names of rows; the font size of the legend, and the free
space beside a label as a multiple of it."""
SMALLEST_TITLE, LARGEST_TITLE, LARGEST_LABEL = 7.0, 11.0, 10.0
"""Font sizes of a title and of the label below the time axis, in points; both take several lines if they have to be small."""


def gantt(
    what: Run | Evaluation | Mapping[str, Any] | RunComparison | ScheduleComparison,
    *,
    ranks: Iterable[int] | None = None,
    title: str | None = None,
    size_in: tuple[float, float] | None = None,
    window_s: tuple[float, float] | None = None,
) -> Figure:
    """A matplotlib figure of a run (by default one rank of every kind, or of every pipeline coordinate if there are many kinds)
    or of an evaluated schedule. Several of them by name, or a comparison, are drawn one below another on one time axis.

    `size_in` is its width and height in inches; `window_s` the part of the time axis that is shown, in seconds for a run.
    """
    must_be(title, (str, type(None)), "title", "a text", 'title="a step"')
    size_in, window_s = _two_numbers(size_in, "size_in", "(14, 6)"), _two_numbers(window_s, "window_s", "(0.5, 1.5)")
    if several := _several(what):
        if ranks is not None or title is not None:
            raise UserError("ranks and title are those of one timeline, and there are several", hint="leave them out")
        charts = [_one_of_several(result, name) for name, result in several.items()]
    else:
        charts = [_one(what, ranks, title)]
    end, unit = max(chart.end for chart in charts), charts[0].unit
    if window_s is not None and not 0 <= window_s[0] < min(window_s[1], end):
        hint = f"choose a start before its end, both from 0 to {end:.6g} {unit}".rstrip()
        hint += f" = {end * MS_PER_S:,.0f} ms" if unit == "s" else ""
        raise UserError(f"the window from {window_s[0]:g} to {window_s[1]:g} {unit} shows nothing", hint=hint)
    return draw(*charts, size_in=size_in, window=None if window_s is None else (window_s[0], min(window_s[1], end)))


def _two_numbers(given: Any, name: str, example: str) -> tuple[float, float] | None:
    """An argument that is two numbers, or None."""
    if given is None:
        return None
    found = tuple(given) if isinstance(given, Iterable) else ()
    if len(found) != 2 or not all(is_number(one) and isfinite(one) for one in found):
        raise UserError(f"{name} is {described(given)}, not two numbers", hint=f"{name}={example}")
    return found


def _several(what: Any) -> dict[str, Run | Evaluation]:
    """Runs or evaluated schedules by name; empty for a single one."""
    if isinstance(what, ScheduleComparison):
        return {catalog.called(entry.name): entry.results[-1] for entry in what.entries}
    given = what.runs if isinstance(what, RunComparison) else what if isinstance(what, Mapping) else {}
    kinds = {
        type(must_be(one, (Run, Evaluation), f"what[{name!r}]", "a run or a schedule", EXAMPLE)) for name, one in given.items()
    }
    if len(kinds) > 1:
        raise UserError("runs and schedules have no common time axis", hint="draw them apart")
    return dict(given)


def _one(what: Any, ranks: Iterable[int] | None, title: str | None) -> Chart:
    """The chart of a single timeline."""
    must_be(what, (Run, Evaluation), "what", "a run", "gantt(sim.simulate(model, cluster, plan, job))")
    chart = chart_of_run(what, ranks) if isinstance(what, Run) else chart_of_evaluation(what)
    chart = chart if title is None else replace(chart, title=title)
    return replace(chart, note=f"{chart.note}; others by --gantt-ranks, or ranks= in Python") if chart.note else chart


def _one_of_several(result: Run | Evaluation, name: str) -> Chart:
    """One of several charts, with its name."""
    if isinstance(result, Evaluation):
        return chart_of_evaluation(result, f"{name}: {brief(result)}", with_memory=False)
    chart = chart_of_run(result)
    return replace(chart, title=f"{name}: {chart.title}")


def draw(*charts: Chart, size_in: tuple[float, float] | None = None, window: tuple[float, float] | None = None) -> Figure:
    """Draws charts one below another on one time axis, of which a window may be shown."""
    rows, end = sum(len(chart.rows) for chart in charts), max(chart.end for chart in charts)
    if rows > MOST_ROWS_IN_ALL:
        raise UserError(f"{rows} rows are more than a picture can show", hint=f"at most {MOST_ROWS_IN_ALL} in all its charts")
    titles_in = [TITLE_IN + NOTE_IN * bool(chart.note) for chart in charts]
    besides_in = AROUND_IN + sum(titles_in) + PANEL_IN * sum(bool(chart.held) for chart in charts)
    row_in = 0.52 if rows <= 8 else max(0.2, min(0.34, 10 / rows))
    if size_in is not None:
        row_in = (size_in[1] - besides_in) / rows
        if row_in < LEAST_ROW_IN or size_in[0] < LEAST_WIDTH_IN:
            least = f"{LEAST_WIDTH_IN:g}x{besides_in + LEAST_ROW_IN * rows:.1f}"
            raise UserError(f"{rows} rows do not fit into {size_in[0]:g}x{size_in[1]:g} inches", hint=f"at least {least}")
    heights: list[float] = []
    for chart, title_in in zip(charts, titles_in, strict=True):
        heights += [title_in + row_in * len(chart.rows), *([PANEL_IN] if chart.held else [])]
    shown, size_in = window or (0, end * 1.001), size_in or (WIDTH_IN, AROUND_IN + sum(heights))
    width = size_in[0] * POINTS - LEGEND * NARROW_LETTER * max(len(row.label) for chart in charts for row in chart.rows) - BESIDE
    figure = Drawing(figsize=size_in, layout="constrained", dpi=DPI)
    panels = iter(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for chart in charts:
        _Panel(axes := next(panels), chart, row_in, shown, width / (shown[1] - shown[0])).draw()
        title, size = _fitted(legible(chart.title), width, LARGEST_TITLE)
        axes.set_title("\n".join([title, *([chart.note] if chart.note else [])]), fontsize=size, loc="left")
        if chart.held:
            _draw_held(axes := next(panels), chart.held, chart.end)
    axes.set_xlim(*shown)
    _label_time(axes, charts[0], shown, width)
    _draw_legend(figure, charts)
    return figure


def _label_time(axes: Axes, chart: Chart, shown: tuple[float, float], width: float) -> None:
    """Writes the time axis below the last chart: in seconds, milliseconds or microseconds, or in the unit of a schedule."""
    factor, unit = unit_of(shown[1] - shown[0]) if chart.unit == "s" else (1, chart.unit)
    set_ticks(axes.xaxis, shown, width, factor)
    label = "time" + f" ({unit})" * bool(unit) + f": {chart.since}" * bool(chart.since)
    label, size = _fitted(label, width, LARGEST_LABEL)
    axes.set_xlabel(label, fontsize=size)


class _Panel:
    """One chart on its axes."""

    def __init__(self, axes: Axes, chart: Chart, row_in: float, shown: tuple[float, float], points_per_time: float) -> None:
        self.axes, self.chart, self.shown = axes, chart, shown
        bars = [bar for row in chart.rows for bar in row.bars]
        self.lines = sorted({bar.kind for bar in bars if not KINDS[bar.kind].height})
        row_px = row_in * DPI
        self.band = min(MOST_LINES, max(LINES, LINE_STEP_PX * len(self.lines) / row_px))
        self.low, self.room = (0.04 + self.band, 0.92 - self.band) if self.lines else (0.1, 0.8)
        self.line_px = max(1, int(LINE * row_px * self.band / max(1, len(self.lines))))
        self.rasterized = len(bars) > RASTER_ABOVE
        self.points_per_time = points_per_time
        lengths: dict[tuple[str, str], list[float]] = {}
        for bar in bars:
            lengths.setdefault((bar.kind, bar.half), []).append(bar.end - bar.start)
        self.width = {kind: sorted(found)[len(found) // 2] * self.points_per_time for kind, found in lengths.items()}
        """Width in points of the median bar of every kind."""
        self.font = self._fonts(max((len(bar.text) for bar in bars), default=0), row_in * POINTS)

    def _fonts(self, digits: int, row: float) -> dict[tuple[str, str], float]:
        """Font size in points of the numbers of every kind: about equal, limited by the usual bar of the kind, or none."""
        sizes = {}
        for (kind, half), width in self.width.items():
            if digits and KINDS[kind].height:
                height = row * self.room * (0.5 if half else KINDS[kind].height)
                sizes[kind, half] = min(LARGEST, 0.55 * height, (width - MARGIN) / digits / DIGIT)
        shown = [size for size in sizes.values() if size >= SMALLEST]
        return {kind: min(size, 1.35 * min(shown)) for kind, size in sizes.items() if size >= SMALLEST}

    def draw(self) -> None:
        axes, rows = self.axes, len(self.chart.rows)
        for y, row in enumerate(self.chart.rows):
            self._draw_bars(y, row.bars)
            self._draw_numbers(y, row.bars)
        axes.set_ylim(rows, 0)
        axes.set_yticks([y + 0.5 for y in range(rows)], [r.label for r in self.chart.rows], fontsize=8 if rows <= 32 else 6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.hlines(range(1, rows), *self.shown, colors="#dddddd", linewidths=0.5, zorder=0)

    def _place(self, y: int, kind: str, half: str) -> tuple[float, float]:
        """Upper edge and height of a kind of slot in its row."""
        height = self.room * (0.5 if half else KINDS[kind].height)
        return y + 1 - self.low - (self.room if half == "upper" else height), height

    def _is_narrow(self, kind: str, half: str) -> bool:
        return self.width[kind, half] < NARROW

    def _draw_bars(self, y: int, bars: tuple[Bar, ...]) -> None:
        groups: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
        for bar in bars:
            groups.setdefault((bar.kind, bar.shade, bar.half), []).append((bar.start, bar.end))
        for (kind, shade, half), spans in groups.items():
            if kind in self.lines:
                self._draw_line(y, kind, spans)
                continue
            narrow = self._is_narrow(kind, half)
            edge = {"linewidth": 0.0, "snap": False} if narrow else {"edgecolors": "white", "linewidth": 0.5}
            styles: list[dict[str, Any]] = [{"facecolors": _colour(kind, shade), **edge, "zorder": 2}]
            if hatch := KINDS[kind].hatch:
                styles.append({"facecolors": "none", "edgecolors": hatch[1], "linewidth": 0.0, "hatch": hatch[0], "zorder": 2.5})
            for style in styles:
                widths, place = [(start, end - start) for start, end in spans], self._place(y, kind, half)
                self.axes.broken_barh(widths, place, rasterized=self.rasterized, **style)
        self._draw_waits(y, bars)

    def _draw_line(self, y: int, kind: str, spans: list[tuple[float, float]]) -> None:
        """Draws the communication of an axis: strokes of a whole number of pixels, none of them too short to be seen."""
        least = LEAST_PX * POINTS / DPI / self.points_per_time
        shown = merged(spans, least)
        starts, ends = [start for start, _ in shown], [max(end, start + least) for start, end in shown]
        middle = y + 0.99 - self.band + self.band * (self.lines.index(kind) + LINE / 2) / len(self.lines)
        style: dict[str, Any] = {"linewidth": self.line_px * POINTS / DPI, "capstyle": "butt", "zorder": 2}
        self.axes.hlines([middle] * len(shown), starts, ends, colors=_colour(kind, 0), rasterized=self.rasterized, **style)

    def _draw_waits(self, y: int, bars: tuple[Bar, ...]) -> None:
        """Draws the pale upper part of slots, as high as the share in which they wait."""
        waiting: dict[bool, list[tuple[list[tuple[float, float]], str]]] = {}
        for bar in bars:
            if bar.waits > 0:
                top, height = self._place(y, bar.kind, bar.half)
                low = top + height * bar.waits
                box = [(bar.start, top), (bar.end, top), (bar.end, low), (bar.start, low)]
                waiting.setdefault(self._is_narrow(bar.kind, bar.half), []).append((box, _pale(_colour(bar.kind, bar.shade))))
        style: dict[str, Any] = {"linewidths": 0.0, "zorder": 2.2, "rasterized": self.rasterized}
        for narrow, found in waiting.items():
            boxes, colours = zip(*found, strict=True)
            drawn = PolyCollection(boxes, facecolors=colours, snap=False if narrow else None, **style)
            self.axes.add_collection(drawn, autolim=False)

    def _draw_numbers(self, y: int, bars: tuple[Bar, ...]) -> None:
        """Draws microbatch numbers where they fit, in the middle of what is shown of a slot."""
        for bar in bars:
            size = self.font.get((bar.kind, bar.half), 0.0) if bar.text else 0.0
            start, end = max(bar.start, self.shown[0]), min(bar.end, self.shown[1])
            free = (end - start) * self.points_per_time - size * DIGIT * len(bar.text)
            if not size or free < MARGIN / 2:
                continue
            top, height = self._place(y, bar.kind, bar.half)
            behind = _colour(bar.kind, bar.shade)
            colour = ink_on(behind) if bar.waits < MIDDLE else INK
            style: dict[str, Any] = {"fontsize": size, "ha": "center", "va": "center_baseline", "color": colour}
            if KINDS[bar.kind].hatch:
                style["bbox"] = {"facecolor": behind, "edgecolor": "none", "pad": min(MARGIN, free / 2) - 0.3}
            self.axes.text((start + end) / 2, top + height / 2, bar.text, zorder=3, clip_on=True, **style)


def _colour(kind: str, shade: int) -> str:
    return KINDS[kind].colours[: shade + 1][-1]


def _pale(colour: str) -> str:
    """The colour mixed with white."""
    return "#" + "".join(f"{round(int(colour[i : i + 2], 16) * (1 - PALE) + 255 * PALE):02x}" for i in (1, 3, 5))


def _fitted(text: str, width: float, largest: float) -> tuple[str, float]:
    """A text and the largest font size at which it fits into a width, both in points; in several lines if it has to be small."""
    size = min(largest, max(SMALLEST_TITLE, width / (len(text) or 1) / LETTER))
    return fill(text, int(width / size / LETTER)), size


def _draw_held(axes: Axes, held: Held, end: float) -> None:
    """Draws the memory of the ranks: the maximum over ranks, and in front of it the minimum, which every rank holds."""
    times = [*held.times, max(end, held.times[-1])]
    for values, colour in ((held.most, "#dfe2e9"), (held.fewest, "#a9b1c2")):
        axes.fill_between(times, [*values, values[-1]], step="post", color=colour, linewidth=0, zorder=1)
    axes.step(times, [*held.most, held.most[-1]], where="post", color="#3d4557", linewidth=1.0, zorder=2)
    top = max(held.most)
    axes.set_ylim(0, top * 1.12)
    axes.set_yticks([0, top], ["0", f"{top} chunk{'s' * (top > 1)}"], fontsize=8)
    axes.set_title("activations held: the most of any rank (line), the fewest (dark)", fontsize=8, loc="left", pad=3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(figure: Figure, charts: Sequence[Chart]) -> None:
    kinds = {bar.kind for chart in charts for row in chart.rows for bar in row.bars}
    patches = []
    for kind in (kind for name, kind in KINDS.items() if name in kinds):
        hatch, stroke = kind.hatch or (None, "white")
        label = kind.name if kind.height else f"{kind.name} (line)"
        patches.append(Patch(facecolor=kind.colours[0], edgecolor=stroke, hatch=hatch, label=label))
    if any(bar.waits > 0 for chart in charts for row in chart.rows for bar in row.bars):
        waiting = next(kind for kind in ("B", "I", *KINDS) if kind in kinds)
        pale = _pale(KINDS[waiting].colours[0])
        patches.append(Patch(facecolor=pale, edgecolor="white", label="pale part: waiting inside the slot"))
    patches.append(Patch(facecolor="white", edgecolor="#bbbbbb", label="idle"))
    if darker := list(dict.fromkeys(chart.darker for chart in charts if chart.darker)):
        patches.append(Patch(alpha=0, label=f"(darker: {', or '.join(darker)})"))
    spacing = {"handlelength": 1.2, "columnspacing": 1.2, "borderaxespad": 0.1}
    width, columns = figure.get_size_inches()[0] * POINTS, len(patches)
    while columns > 1 and _width_of_legend([str(patch.get_label()) for patch in patches], columns) > width:
        columns -= 1
    figure.legend(handles=patches, loc="outside lower right", ncols=columns, frameon=False, fontsize=LEGEND, **spacing)


def _width_of_legend(labels: Sequence[str], columns: int) -> float:
    """Approximate width of a legend in `columns` columns, in points."""
    lengths = np.array_split([len(label) for label in labels], columns)
    return float(sum(LEGEND * (LETTER * max(of_column.tolist()) + BESIDE_LABEL) for of_column in lengths))
