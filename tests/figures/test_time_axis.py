"""Axes of times, and lines on them that are thinner than a pixel."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.figures.bars import KINDS, Bar, Chart, Row
from simulator.figures.drawing import Drawing
from simulator.figures.gantt import draw, gantt
from simulator.figures.memory_plot import MOST_NAMED
from simulator.figures.time_axis import MOST_TICKS, set_ticks, unit_of
from simulator.simulation.run import Run

from ..small_scenarios import scenario, small_cluster, small_model

STEP_S = 2.0


@pytest.fixture(scope="module")
def run() -> Run:
    return scenario(cluster=small_cluster(1), plan=sim.Plan(pp=4)).simulate()


@pytest.mark.parametrize(
    ("longest_s", "unit"), [(70.0, "s"), (1.0, "s"), (0.999, "ms"), (0.001, "ms"), (0.0004, "us"), (2e-8, "us"), (0.0, "us")]
)
def test_the_unit_is_the_largest_of_which_there_is_one(longest_s: float, unit: str) -> None:
    assert unit_of(longest_s)[1] == unit


@given(st.floats(0, 1e4), st.floats(1e-7, 1e4), st.floats(30, 2000), st.sampled_from([1, 1000, 10**6]))
def test_ticks_are_what_they_say_lie_in_the_span_and_do_not_overlap(low: float, lasts: float, room: float, factor: int) -> None:
    if lasts < 1e-6 * low:
        return
    axis = Drawing().subplots().xaxis
    set_ticks(axis, (low, low + lasts), room, factor)
    places, labels = axis.get_ticklocs(), [label.get_text() for label in axis.get_ticklabels()]
    assert len(set(labels)) == len(labels) <= MOST_TICKS + 1
    for place, label in zip(places, labels, strict=True):
        assert low * (1 - 1e-9) <= place <= (low + lasts) * (1 + 1e-9)
        assert float(label.replace(",", "")) == pytest.approx(place * factor, rel=1e-5, abs=1e-5 * lasts * factor)
        assert "e" not in label
    if len(labels) > 2:
        assert sum(map(len, labels)) * 5 < room


@pytest.mark.parametrize("window_s", [None, (0.001, 0.0011)])
def test_labels_of_a_timeline_do_not_overlap(run: Run, window_s: tuple[float, float] | None) -> None:
    figure = gantt(run, window_s=window_s, size_in=(6.0, 4.0))
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 2
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert figure.axes[0].get_xlabel().startswith("time (us):" if window_s else "time (ms):")


def test_every_short_transfer_is_seen_and_lines_are_equally_thick() -> None:
    """Of a tenth of a pixel each, where none is near another, in rows whose height is no whole number of pixels."""
    count = 64
    starts = (np.arange(count) + 0.37) * STEP_S / count
    bars = tuple(Bar(start, start + STEP_S / 20_000, "pp") for start in starts.tolist())
    figure = draw(Chart("", "s", (Row("a", bars), Row("b", bars), Row("c", bars)), STEP_S, ""))
    data = BytesIO()
    figure.savefig(data, format="png")
    data.seek(0)
    pixels = (matplotlib.image.imread(data)[..., :3] * 255).round().astype(int)
    colour = [int(KINDS["pp"].colours[0][i : i + 2], 16) for i in (1, 3, 5)]
    shown = (pixels == colour).all(axis=2)
    shown[int(figure.axes[0].bbox.y0 * -1 + len(pixels)) :] = False  # the legend
    full = np.flatnonzero(shown.sum(axis=1) >= count)
    rows = np.split(full, np.flatnonzero(np.diff(full) > 1) + 1)
    assert len(rows) == 3
    assert len({len(row) for row in rows}) == 1
    for row in full:
        assert (np.diff(shown[row].astype(int)) == 1).sum() == count


def test_memory_over_time_has_the_unit_of_its_span_and_names_the_last_rank() -> None:
    run = scenario(small_model(20), small_cluster(5), sim.Plan(pp=20), sim.Job(256, 20, 1)).simulate()
    ranks = sim.memory_plot(run).axes[1]
    unit = unit_of(run.metrics.step_time_s)[1]
    assert unit != "s"
    assert ranks.get_xlabel().startswith(f"time ({unit}):")
    named = [text.get_text() for text in ranks.get_legend().get_texts()]
    assert (named[0], named[-1], len(named)) == ("rank 0", "rank 19", MOST_NAMED)
