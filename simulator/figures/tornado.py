"""A tornado: what each what-if adds to the step or saves of it, the largest first."""

from __future__ import annotations

from textwrap import fill

from ..errors import must_be
from ..study.what_if import WhatIf
from ..units import show_s
from .drawing import Drawing, Figure, legible

WIDE_IN, BAR_IN, LINE_IN, AROUND_IN = 8.0, 0.38, 0.18, 1.25
MOST_LETTERS = 36
"""Letters of a line of the name of a change."""
SHORTER, LONGER, NONE = "#31557f", "#c8781e", "#6b6b6b"
ROOM = 1.75
"""Width of the axis beside its longest bar, for the text at its end."""
LEAST = 0.01
"""The least width of the axis: a hundredth of the step."""


def tornado(found: WhatIf) -> Figure:
    """A matplotlib figure with a bar for each change that could be simulated; the others are listed below with their reasons."""
    must_be(found, WhatIf, "found", "what-ifs", 'tornado(sim.what_if("llama3-70b-64xh100", ["nic=x2"]))')
    ran = sorted((one for one in found.outcomes if one.fraction is not None), key=lambda one: abs(one.fraction or 0))
    failed = [one for one in found.outcomes if one.fraction is None]
    rows = [*failed, *ran]
    names = [fill(legible(one.change), MOST_LETTERS) for one in rows]
    tall_in = max([BAR_IN, *(LINE_IN * (1 + name.count("\n")) for name in names)])
    figure = Drawing(figsize=(WIDE_IN, AROUND_IN + tall_in * len(rows)), layout="constrained", dpi=140)
    axes = figure.subplots()
    widest = max([LEAST, *(abs(one.fraction or 0) for one in ran)])
    for y, one in enumerate(rows):
        share = one.fraction or 0.0
        axes.barh(y, 100 * share, color=SHORTER if share < 0 else LONGER, height=0.66, zorder=3)
        text = f"{share:+z.2%}, {show_s(one.step_time_s)}" if one.step_time_s is not None else "cannot run"
        text += f"\n{one.note}" if one.note and one.step_time_s is not None else ""
        on_left = share < 0
        axes.annotate(
            text, (100 * share, y), (-5 if on_left else 5, 0), textcoords="offset points", va="center", fontsize=7.5,
            ha="right" if on_left else "left", color="black" if one.step_time_s is not None else NONE,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), names)
    axes.axvline(0, color="black", linewidth=0.8, zorder=4)
    axes.set_xlim(-100 * ROOM * widest, 100 * ROOM * widest)
    axes.set_xlabel("change of the step time, %")
    run = found.run
    name = f"{run.scenario.model.name} on {run.gpus:,} x {run.scenario.cluster.gpu.name}"
    figure.suptitle(
        legible(f"{name}: what if, beside a step of {show_s(run.metrics.step_time_s)}"), fontsize=10, x=0.01, ha="left"
    )
    axes.grid(axis="x", alpha=0.3, zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
