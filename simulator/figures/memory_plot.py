"""The memory of a run over time: by class on the fullest rank, and the sum on every pipeline rank, below the capacity of a GPU.

Memory that a rank holds throughout is at the bottom; temporary memory is above it.
"""

from __future__ import annotations

import numpy as np

from ..errors import must_be
from ..metrics import Array
from ..simulation.run import Run
from ..units import GIB, MS_PER_S, show_bytes
from .drawing import Axes, Drawing, Figure, Line2D, Patch, colormaps, legible
from .memory_colours import COLOURS as COLOURS
from .shown_ranks import spread
from .time_axis import set_ticks, unit_of

CAPACITY = "#b3261e"
MOST_POINTS = 4000
"""Largest number of times in a curve. Each shows the largest sum of its interval."""
MOST_NAMED = 18
"""Largest number of ranks that the legend names."""
WIDTH_IN, LEGEND_IN, TALL_IN, LOW_IN = 12.0, 2.5, 4.2, 2.4
POINTS = 72
"""Points of an inch."""
ROOM = 1.06
"""Height of the axes over the capacity, or over the peak where it is higher."""


def memory_plot(run: Run) -> Figure:
    """A matplotlib figure of the memory of a run over the measured step."""
    must_be(run, Run, "run", "a run", "memory_plot(sim.simulate(model, cluster, plan, job))")
    several, capacity_bytes = len(run.memory) > 1, run.scenario.cluster.gpu.memory_bytes
    heights = [TALL_IN, LOW_IN] if several else [TALL_IN]
    figure = Drawing(figsize=(WIDTH_IN, 0.5 + sum(heights)), layout="constrained", dpi=140)
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    end_ms = run.metrics.step_time_s * MS_PER_S
    _draw_classes(panels[0], run, end_ms)
    if several:
        _draw_ranks(panels[1], run, end_ms)
    for axes in panels:
        axes.axhline(capacity_bytes / GIB, color=CAPACITY, linewidth=1.4, zorder=5)
        axes.set_ylim(0, ROOM * max(capacity_bytes, run.peak_memory_bytes) / GIB)
        axes.set_ylabel("memory (GiB)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e6ea", linewidth=0.6)
        axes.set_axisbelow(True)
    panels[-1].set_xlim(0, end_ms)
    per_s, unit = unit_of(run.metrics.step_time_s)
    set_ticks(panels[-1].xaxis, (0, end_ms), POINTS * (WIDTH_IN - LEGEND_IN), per_s / MS_PER_S)
    panels[-1].set_xlabel(f"time ({unit}): {run.observation.window.text}")
    return figure


def _draw_classes(axes: Axes, run: Run, end_ms: float) -> None:
    """Stacks the classes of the fullest rank."""
    fullest = max(run.memory, key=lambda rank: rank.total_bytes)
    times, held = run.memory_by_class(fullest.rank)
    kinds = [kind for kind in COLOURS if kind in held]
    at_ms, values = _thinned(times, np.stack([held[kind] for kind in kinds]), end_ms)
    tops = np.vstack([np.zeros(len(at_ms)), np.cumsum(values, axis=0)])
    for kind, low, high in zip(kinds, tops, tops[1:], strict=False):
        axes.fill_between(at_ms, low, high, step="post", facecolor=COLOURS[kind], edgecolor="white", linewidth=0.5, zorder=2)
    axes.step(at_ms, tops[-1], where="post", color="#2b2f36", linewidth=0.7, zorder=3)
    where = int(tops[-1].argmax())
    axes.plot(at_ms[where], tops[-1][where], "o", color="#2b2f36", markersize=4, zorder=6)
    name = legible(run.scenario.model.name)
    title = f"{name}: a GPU of pipeline rank {fullest.rank}, peak {show_bytes(fullest.total_bytes)}"
    axes.set_title(title, fontsize=11, loc="left")
    capacity = f"capacity, {show_bytes(run.scenario.cluster.gpu.memory_bytes)}"
    patches: list[Line2D | Patch] = [Line2D([], [], color=CAPACITY, linewidth=1.4, label=capacity)]
    patches += [Patch(facecolor=COLOURS[kind], label=kind.value) for kind in reversed(kinds)]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=8.5)


def _draw_ranks(axes: Axes, run: Run, end_ms: float) -> None:
    """Draws the sum of every pipeline rank as a line, darker for later ranks."""
    colours = colormaps["viridis_r"](np.linspace(0.15, 1.0, len(run.memory)))
    named = spread([rank.rank for rank in run.memory], MOST_NAMED)
    for rank, colour in zip(run.memory, colours, strict=True):
        times, held = run.memory_over_time(rank.rank)
        at_ms, values = _thinned(times, held[None], end_ms)
        label = f"rank {rank.rank}" if rank.rank in named else None
        axes.step(at_ms, values[0], where="post", color=colour, linewidth=1.1, label=label, zorder=3)
    axes.set_title("every pipeline rank", fontsize=10, loc="left")
    columns = 2 if len(run.memory) > MOST_NAMED // 2 else 1
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=8.5, ncols=columns)


def _thinned(times: Array, held: Array, end_ms: float) -> tuple[Array, Array]:
    """Times in milliseconds up to the end of the step, and GiB of each class; of times too close to be distinguished, only the
    one with the largest sum."""
    at_ms, values = np.append(times * MS_PER_S, end_ms), np.append(held, held[:, -1:], axis=1) / GIB
    if len(at_ms) <= MOST_POINTS:
        return at_ms, values
    column = np.minimum((at_ms / end_ms * MOST_POINTS).astype(int), MOST_POINTS)
    order = np.lexsort((values.sum(axis=0), column))
    last = np.append(column[order][1:] != column[order][:-1], True)
    kept = np.sort(order[last])
    return at_ms[kept], values[:, kept]
