"""The waterfall of a step: from the step down to the time of its flop at peak, a bar for each cause that is removed."""

from __future__ import annotations

from ..errors import must_be
from ..simulation.run import Run
from ..study.waterfall import Waterfall, waterfall
from ..units import show_s
from .drawing import Drawing, Figure, legible

WIDE_IN, BAR_IN, AROUND_IN = 9.0, 0.34, 1.2
WHOLE, LOSS, GAIN = "#31557f", "#c8781e", "#8d939c"
"""Colours of the step and its flop at peak, of the time that a cause adds, and of a cause whose removal makes the rest longer."""
LEAST = 0.0005
"""The smallest fraction of a step that has a bar."""
ROOM = 1.16
"""Width of the axis beside the step, for the text at the end of a bar."""


def waterfall_plot(run: Run, shown: Waterfall | None = None) -> Figure:
    """A matplotlib figure of the waterfall of a run, which is computed unless it is given."""
    must_be(run, Run, "run", "a run", "waterfall_plot(sim.simulate(model, cluster, plan, job))")
    must_be(shown, (Waterfall, type(None)), "shown", "a waterfall", "waterfall_plot(run), or that of explain(run)")
    found = shown or waterfall(run)
    *causes, peak = found.bars
    bars = [bar for bar in causes if abs(found.fraction(bar)) >= LEAST]
    rows = len(bars) + 2
    figure = Drawing(figsize=(WIDE_IN, AROUND_IN + BAR_IN * rows), layout="constrained", dpi=140)
    axes = figure.subplots()
    left_s = found.step_s
    spans = [("step", 0.0, found.step_s, WHOLE)]
    for bar in bars:
        spans.append((bar.cause, left_s - bar.seconds, left_s, LOSS if bar.seconds > 0 else GAIN))
        left_s -= bar.seconds
    spans.append((peak.cause, 0.0, peak.seconds, WHOLE))
    for y, (_, low_s, high_s, colour) in enumerate(spans):
        share, sign = 100 * (high_s - low_s) / found.step_s, "-" if high_s < low_s else ""
        axes.barh(y, share, left=100 * low_s / found.step_s, color=colour, height=0.66, zorder=3)
        text, end = f"{share:.1f}%, {sign}{show_s(abs(high_s - low_s))}", 100 * max(low_s, high_s) / found.step_s
        axes.annotate(text, (end, y), (5, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_yticks(range(rows), [name for name, *_ in spans], fontsize=8.5)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, 100 * ROOM)
    gains = any(bar.seconds < 0 for bar in bars)
    axes.set_xlabel("part of the step, %" + "; grey: a cause whose removal makes the rest of the step longer" * gains)
    name = legible(run.scenario.model.name)
    title = f"{name} on {run.gpus:,} GPUs: what a step of {show_s(found.step_s)} is lost to, MFU {run.metrics.mfu:.1%}"
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(axis="x", alpha=0.3, zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
