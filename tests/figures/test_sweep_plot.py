"""Pictures of sweeps: their unit of time, their colours, and what they say of points that cannot run."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.colors import Normalize

import simulator as sim
from simulator.errors import UserError
from simulator.figures.sweep_plot import sweep_plot
from simulator.figures.tornado import tornado

SCENARIO = {
    "model": "llama3.2-1b",
    "cluster": {"name": "dgx-h100", "nodes": 2},
    "job": {"sequence_length": 1024, "global_batch": 16},
}
FIELDS = ["plan.tp", "job.microbatch_size"]


def table(times_s: list[float | None]) -> pd.DataFrame:
    """Two by two points; those without a time lack memory."""
    rows = []
    for at, time_s in enumerate(times_s):
        ran = time_s is not None
        rows.append(
            {"plan.tp": 1 + at // 2, "job.microbatch_size": 1 + at % 2, "status": "simulated" if ran else "out of memory",
             "over_gib": None if ran else 48.4, "step_time_s": time_s, "step_time_low_s": time_s, "step_time_high_s": time_s}
        )  # fmt: skip
    return pd.DataFrame(rows).astype(dict.fromkeys(("step_time_s", "step_time_low_s", "step_time_high_s", "over_gib"), float))


@pytest.mark.parametrize(("scale", "unit"), [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")])
def test_times_have_the_unit_that_suits_them(scale: float, unit: str) -> None:
    frame = table([5.4 * scale, 6.2 * scale, 7.1 * scale, None])
    figure = sweep_plot(frame, FIELDS, "a scenario")
    assert [text.get_text() for text in figure.axes[0].texts] == ["5.400", "6.200", "7.100", "lacks\n48.4 GiB"]
    assert figure.axes[1].get_ylabel() == f"step time ({unit})"
    answer = f"the shortest step: 5.400 {unit} with plan.tp = 1, job.microbatch_size = 1"
    first, *more = figure.get_suptitle().splitlines()
    assert (first, " ".join(more)) == ("a scenario", answer)
    line = sweep_plot(frame[:2], FIELDS[1:], "a scenario").axes[0]
    assert line.get_ylabel() == f"step time ({unit})"
    assert line.lines[0].get_ydata().tolist() == pytest.approx([5.4, 6.2])


def test_colours_go_from_the_shortest_time_to_the_longest() -> None:
    norm = sweep_plot(table([5.4, 6.2, 6.0, None]), FIELDS).axes[1]._colorbar.norm
    assert isinstance(norm, Normalize)
    assert (norm.vmin, norm.vmax) == (5.4, 6.2)


def test_the_fields_of_a_table_are_its_first_columns() -> None:
    frame = sim.sweep(SCENARIO, {"job.microbatch_size": [1, 2]})
    axes = sim.sweep_plot(frame).axes[0]
    assert axes.get_xlabel() == "job.microbatch_size"
    with pytest.raises(UserError, match="the table has no column"):
        sim.sweep_plot(table([5.4] * 4), ["plan.pt"])
    for wrong in (frame.drop(columns="status"), 5):
        with pytest.raises(UserError, match="not the table of a sweep"):
            sim.sweep_plot(wrong)


def test_steps_of_unequal_batches_are_compared_by_throughput() -> None:
    """The step of the smallest batch is the shortest, which says nothing."""
    frame = table([1.0, 1.5, 2.5, None]).assign(tokens_per_s=[100.0, 130.0, 120.0, None])
    figure = sweep_plot(frame, FIELDS, "a scenario")
    said = " ".join(figure.get_suptitle().split())
    assert said == "a scenario the highest throughput: 130 tokens/s with plan.tp = 1, job.microbatch_size = 2"
    assert figure.axes[0].get_title(loc="left") == "framed: the highest throughput; hatched: cannot run"
    alike = frame.assign(tokens_per_s=100 / frame.step_time_s)
    assert "the shortest step: 1.000 s" in sweep_plot(alike, FIELDS).get_suptitle()


def test_the_shortest_step_is_framed_unless_several_are_as_short() -> None:
    def framed(times_s: list[float | None]) -> list[tuple[float, float]]:
        axes = sweep_plot(table(times_s), FIELDS).axes[0]
        said = "framed" in axes.get_title(loc="left")
        found = [box.get_xy() for bars in axes.containers for box in bars if not box.get_fill()]
        assert said == bool(found)
        return found

    assert framed([6.2, 5.4, 6.0, None]) == [(0.5, -0.5)]
    assert framed([5.4, 5.4, 6.0, None]) == []
    assert framed([None, 5.4, None, None]) == []


def test_a_picture_without_a_time_is_drawn_and_says_what_is_lacking() -> None:
    assert {text.get_text() for text in sweep_plot(table([None] * 4), FIELDS).axes[0].texts} == {"lacks\n48.4 GiB"}
    figure = sweep_plot(table([None] * 2), FIELDS[1:])
    assert {text.get_text() for text in figure.axes[0].texts} == {"lacks 48.4 GiB"}
    figure.draw_without_rendering()
    sweep_plot(table([2.0] * 4), FIELDS).draw_without_rendering()


@pytest.mark.filterwarnings("error")
def test_long_titles_and_changes_take_several_lines() -> None:
    """Pictures of settings that are longer than a line leave room for what they show."""
    for fields, frame in ((FIELDS, table([5.4, 6.2, 6.0, None])), (FIELDS[1:], table([5.4, 6.2, 6.0, None])[:2])):
        figure = sweep_plot(frame, fields, "a scenario with " + "job.dtype=bf16, " * 12)
        figure.draw_without_rendering()
        assert figure.get_suptitle().count("\n") >= 2
    change = "plan={tp: 2, sharding: {kind: fsdp, reshard: true, prefetch: 1}, recompute: {scope: full, every: 2}}"
    figure = tornado(sim.what_if(SCENARIO, ["nic=x2", change]))
    figure.draw_without_rendering()
    assert any("\n" in label.get_text() for label in figure.axes[0].get_yticklabels())
