"""The step times of a sweep over one field, as a line, or over two, as a heat map.

The times of a line start at zero. The colours of a heat map go from the shortest time to the longest, darker in one direction of
lightness, so that they can be told apart in grey too. Points that cannot run are crosses on the line of zero, or hatched fields
with their reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UserError, described, did_you_mean, shown
from ..units import show_digits, show_s
from .drawing import Axes, Drawing, Figure, Line2D, Normalize, ScalarMappable, colormaps, legible
from .time_axis import unit_of

if TYPE_CHECKING:
    import pandas as pd

MOST_FIELDS = 2
EXAMPLE = 'sim.sweep("llama3-70b-64xh100", {"job.global_batch": [32, 64]})'
SIMULATED, OUT_OF_MEMORY = "simulated", "out of memory"
COLOUR, NONE, FRAME = "#31557f", "#b3261e", "#1d2430"
MAP = "cividis_r"
WIDE_IN, TALL_IN = 7.5, 4.5
CELL_IN, CELL_TALL_IN = 0.95, 0.5
LETTER_IN = 0.085
"""Width of a letter of the title and of the labels of an axis, in inches, about."""
TITLE, TITLE_IN = 10, 0.17
"""Font size of the title, in points, and height of a line of it."""
ROOM = 1.08
TOLERANCE = 1e-9
"""Relative difference up to which steps are of equally many tokens."""
LOG_RATIO = 8
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
DARK = 0.55
"""Fraction of the scale of colours from which text on a colour is white."""


def check_fields(fields: int) -> None:
    """Raises `UserError` for a sweep over more fields than a picture shows."""
    if fields > MOST_FIELDS:
        raise UserError(f"a sweep over {fields} fields cannot be drawn", hint="one field is a line, two are a heat map")


def sweep_plot(frame: pd.DataFrame, fields: Sequence[str] | None = None, title: str = "") -> Figure:
    """A matplotlib figure of the step times in the table of a sweep over one or two fields, by default its first columns."""
    columns = [*getattr(frame, "columns", ())]
    if "status" not in columns:
        raise UserError(f"frame is {described(frame)}, not the table of a sweep", hint=f"sweep_plot({EXAMPLE})")
    fields = columns[: columns.index("status")] if fields is None else [*fields]
    check_fields(len(fields))
    if unknown := [field for field in fields if field not in columns]:
        raise UserError(f"the table has no column {shown(unknown[0])}", hint=did_you_mean(unknown[0], columns))
    return _line(frame, fields[0], title) if len(fields) == 1 else _heat_map(frame, fields, title)


def _line(frame: pd.DataFrame, field: str, title: str) -> Figure:
    figure = Drawing(figsize=(WIDE_IN, TALL_IN), layout="constrained", dpi=140)
    axes = figure.subplots()
    values, ran = frame[field].tolist(), (frame.status == SIMULATED).to_numpy()
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    at = np.array(values, dtype=float) if numbers else np.arange(len(values), dtype=float)
    order = np.argsort(at)[ran[np.argsort(at)]]
    times, low, high = (frame[f"step_time{side}_s"].to_numpy(dtype=float)[order] for side in ("", "_low", "_high"))
    per_s, unit = unit_of(np.max(high, initial=0))
    axes.plot(at[order], times * per_s, "o-" if numbers else "o", color=COLOUR, linewidth=1.6, markersize=5, zorder=3)
    axes.vlines(at[order], low * per_s, high * per_s, color=COLOUR, alpha=0.35, linewidth=3, zorder=2)
    axes.set_ylim(0, ROOM * np.max(high, initial=0) * per_s or 1)
    axes.plot(at[~ran], np.zeros((~ran).sum()), "x", color=NONE, markersize=8, markeredgewidth=2, clip_on=False, zorder=4)
    for x, row in zip(at[~ran], frame[~ran].itertuples(), strict=True):
        axes.annotate(_why(row), (x, 0), (0, 8), textcoords="offset points", ha="center", color=NONE, fontsize=7.5, rotation=90)
    if numbers and at.min(initial=1) > 0 and at.max(initial=1) >= LOG_RATIO * at.min(initial=1):
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    words = [legible(str(value)) for value in values]
    axes.set_xticks(at, words, **_turned(words, WIDE_IN / max(1, len(words))))
    axes.set_xlabel(legible(field))
    axes.set_ylabel(f"step time ({unit})")
    best = _Best.of(frame)
    _entitle(figure, title, best.text(frame, [field]) if best else "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e6ea", linewidth=0.6)
    handles = [Line2D([], [], color=COLOUR, marker="o"), Line2D([], [], color=COLOUR, alpha=0.35, linewidth=3)]
    names = ["step time", "90% interval"]
    if not ran.all():
        handles, names = [*handles, Line2D([], [], color=NONE, marker="x", linestyle="")], [*names, "cannot run"]
    axes.legend(handles, names, frameon=False, fontsize=8.5, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(names))
    return figure


class _Best(NamedTuple):
    """The best point of several, and what it is best in."""

    row: int
    name: str
    value: str

    @staticmethod
    def of(frame: pd.DataFrame) -> _Best | None:
        """The shortest step, or the highest throughput where steps are not of equally many tokens; None without a single best."""
        ran = frame[frame.step_time_s.notna()]
        if len(ran) < 2:
            return None
        tokens = ran.tokens_per_s * ran.step_time_s if "tokens_per_s" in ran else ran.step_time_s * 0
        alike = tokens.max() - tokens.min() <= TOLERANCE * tokens.max()
        merit = -ran.step_time_s if alike else ran.tokens_per_s
        best = ran[merit == merit.max()]
        if len(best) > 1:
            return None
        row = int(np.flatnonzero(frame.index == best.index[0])[0])
        if alike:
            return _Best(row, "the shortest step", show_s(float(best.step_time_s.iloc[0])))
        return _Best(row, "the highest throughput", f"{float(best.tokens_per_s.iloc[0]):,.0f} tokens/s")

    def text(self, frame: pd.DataFrame, fields: Sequence[str]) -> str:
        """The best point in words."""
        values = frame.iloc[[self.row]].to_dict("records")[0]
        return f"{self.name}: {self.value} with " + ", ".join(f"{field} = {values[field]}" for field in fields)


def _entitle(figure: Figure, title: str, answer: str) -> None:
    """Writes the title, and below it the answer, in as many lines as needed, and makes the picture taller for each line after the
    first."""
    width_in, height_in = figure.get_size_inches()
    lines = [line for text in (title, answer) for line in wrap(legible(text), int(width_in / LETTER_IN))]
    figure.set_size_inches(width_in, height_in + TITLE_IN * max(0, len(lines) - 1))
    figure.suptitle("\n".join(lines), fontsize=TITLE, x=0.01, ha="left")


def _turned(words: Sequence[str], room_in: float) -> dict[str, Any]:
    """The style of labels that are side by side: at an angle, if one is wider than its space."""
    wide = max(map(len, words), default=0) * LETTER_IN > room_in
    return {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if wide else {}


def _heat_map(frame: pd.DataFrame, fields: list[str], title: str) -> Figure:
    rows, columns = (list(dict.fromkeys(frame[field].map(str))) for field in fields)
    size = (2.6 + CELL_IN * len(columns), 1.7 + CELL_TALL_IN * len(rows))
    figure = Drawing(figsize=(max(size[0], 4.5), max(size[1], 2.5)), layout="constrained", dpi=140)
    axes = figure.subplots()
    times = frame.step_time_s.to_numpy(dtype=float)
    most = float(np.nanmax(times, initial=0)) or 1.0
    per_s, unit = unit_of(most)
    scale, best = Normalize(float(np.nanmin(times, initial=most)) * per_s, most * per_s), _Best.of(frame)
    values = (frame[field].map(str) for field in fields)
    for number, (row, own, other) in enumerate(zip(frame.itertuples(), *values, strict=True)):
        time = row.step_time_s * per_s if row.status == SIMULATED else None
        at = columns.index(other), rows.index(own)
        _draw_cell(axes, at, time, _why(row, between="\n"), scale)
        if best and number == best.row:
            axes.bar(at[0], 1, 1, at[1] - 0.5, fill=False, edgecolor=FRAME, linewidth=2.5, zorder=3)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    words = list(map(legible, columns))
    axes.set_xticks(range(len(columns)), words, **_turned(words, CELL_IN))
    axes.set_yticks(range(len(rows)), list(map(legible, rows)))
    axes.set_xlabel(legible(fields[1]))
    axes.set_ylabel(legible(fields[0]))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    notes = [f"framed: {best.name}"] if best else []
    notes += ["hatched: cannot run"] * bool((frame.status != SIMULATED).any())
    axes.set_title("; ".join(notes), fontsize=8, loc="left")
    _entitle(figure, title, best.text(frame, fields) if best else "")
    bar = figure.colorbar(ScalarMappable(scale, colormaps[MAP]), ax=axes, pad=0.02)
    bar.set_label(f"step time ({unit})")
    return figure


def _draw_cell(axes: Axes, at: tuple[int, int], time: float | None, why: str, scale: Normalize) -> None:
    """A field of the heat map: its colour and the time, or hatching and why it cannot run."""
    (x, y), ran = at, time is not None
    share = float(scale(time)) if time is not None else 0.0
    colour, hatch = (colormaps[MAP](share), None) if ran else ("#f3f3f3", "////")
    axes.bar(x, 1, 1, y - 0.5, color=colour, edgecolor="white" if ran else "#c4c4c4", hatch=hatch, linewidth=1)
    text = why if time is None else show_digits(time)
    box = None if ran else {"facecolor": "#f3f3f3", "edgecolor": "none", "pad": 1}
    axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if share > DARK else "black", bbox=box)


def _why(row: Any, between: str = " ") -> str:
    """Why a point cannot run, in a word or two."""
    return f"lacks{between}{row.over_gib:.3g} GiB" if row.status == OUT_OF_MEMORY else str(row.status)
