"""Pictures and traces: what is in them is what was simulated."""

from __future__ import annotations

import ast
import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import same_color, to_rgb

import simulator as sim
from simulator.config import catalog
from simulator.config.load import cluster
from simulator.errors import UserError
from simulator.figures import trace
from simulator.figures.bars import KINDS, chart_of_evaluation, chart_of_run, computing_ns, merged
from simulator.figures.drawing import legible, save
from simulator.figures.gantt import gantt
from simulator.figures.memory_colours import COLOURS
from simulator.figures.pareto import Point, pareto
from simulator.figures.topology_colours import MARK, NAMED, UNLOADED, HeatMap, longest_waits
from simulator.figures.topology_plot import topology_plot
from simulator.figures.vertex_positions import plural
from simulator.figures.waterfall_plot import waterfall_plot
from simulator.hardware.measure import WORDS, switches
from simulator.lowering import lower
from simulator.program import operations
from simulator.program.layout import lay_out
from simulator.program.slot import Durations, Shape
from simulator.report.sections import COLOURS as OF_CAUSES
from simulator.report.sections import OF_MEMORY
from simulator.simulation.run import Run
from simulator.study.schedule import evaluate
from simulator.study.waterfall import waterfall
from simulator.units import GIB

from ..project.source import study_script
from ..small_scenarios import HOST, scenario, small_cluster


@pytest.fixture(scope="module")
def run() -> Run:
    plan = sim.Plan(tp=2, pp=4, dp=2, chunks=2, schedule="interleaved", sharding="zero1")
    return scenario(cluster=small_cluster(4), plan=plan).simulate()


def test_a_row_per_pipeline_rank_and_a_bar_per_slot(run: Run) -> None:
    chart = chart_of_run(run)
    assert [row.label for row in chart.rows] == [
        "rank 0 and 3 others (stages 0, 4)",
        "rank 4 and 3 others (stages 1, 5)",
        "rank 8 and 3 others (stages 2, 6)",
        "rank 12 and 3 others (stages 3, 7)",
    ]
    assert [row.label for row in chart_of_run(run, [0, 1, 4]).rows] == [
        "rank 0 and 2 others (stages 0, 4)",
        "rank 1, like rank 0 (stages 0, 4)",
        "rank 4 and 3 others (stages 1, 5)",
    ]
    for row in chart.rows:
        kinds = Counter(bar.kind for bar in row.bars)
        assert kinds["F"] == kinds["B"] == 8 * 2
        assert kinds["optimizer"] == 1
        slots = sorted((bar.start, bar.end) for bar in row.bars if bar.kind in "FB")
        assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(slots))
    assert chart.end == run.metrics.step_time_s


def test_every_kind_of_bar_has_a_colour_and_a_name(run: Run) -> None:
    kinds = {bar.kind for row in chart_of_run(run).rows for bar in row.bars}
    assert kinds <= set(KINDS)
    assert {"F", "B", "tp", "pp", "dp", "optimizer"} <= kinds


def axes_of_communicators() -> set[str]:
    """The axes of all communicators that the passes of lowering make, read from their source."""
    found = set()
    for file in (Path(lower.__file__).parent).rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Communicator":
                axis = call.args[1]
                found.add(axis.value if isinstance(axis, ast.Constant) else getattr(operations, ast.unparse(axis)))
    return found


def test_every_axis_of_communication_has_a_colour_and_a_name() -> None:
    axes = axes_of_communicators()
    assert {"tp", "pp", "dp", "cp", "ep", operations.OFFLOAD} <= axes
    assert axes | {operations.HOST} <= set(KINDS)


def test_copies_to_hosts_are_drawn() -> None:
    plan = sim.Plan(offload=sim.Offload(optimizer=True, activations=0.5))
    run = scenario(cluster=small_cluster(1, host=HOST), plan=plan).simulate()
    assert operations.OFFLOAD in {bar.kind for row in chart_of_run(run).rows for bar in row.bars}
    legend = [text.get_text() for text in gantt(run).legends[0].get_texts()]
    assert "copies to and from hosts (line)" in legend


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", sorted(catalog.files("scenarios")))
def test_timelines_of_all_scenarios_are_drawn(name: str, tmp_path: Path) -> None:
    save(gantt(sim.load(name).simulate()), tmp_path / "timeline.png")


DEFICIENCIES = {
    "none": np.eye(3),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "grey": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}
"""Matrices on linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 15 (6), 2009, severity 1; and luminance."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""CIE XYZ of the primaries of sRGB."""


def linear(colour: Any) -> Any:
    value = np.array(to_rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    """CIE Lab of linear RGB, with the white of sRGB."""
    share = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(share > (6 / 29) ** 3, np.cbrt(share), share / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    ("seen", "least", "least_of_chunk"), [("none", 45, 45), ("deuteranopia", 15, 25), ("protanopia", 20, 25), ("grey", 5, 14)]
)
def test_kinds_of_slots_stay_apart_for_colour_blind_readers_and_in_grey(seen: str, least: float, least_of_chunk: float) -> None:
    """Distances are Euclidean in CIE Lab: between any tints of two kinds, and between those of the same chunk."""
    tints = {kind: [lab(DEFICIENCIES[seen] @ linear(colour)) for colour in KINDS[kind].colours] for kind in "FBIW"}
    for a, b in combinations(tints.values(), 2):
        assert min(float(np.linalg.norm(one - other)) for one in a for other in b) > least
        assert min(float(np.linalg.norm(one - other)) for one, other in zip(a, b, strict=True)) > least_of_chunk


@pytest.mark.parametrize(("seen", "least"), [("none", 14), ("deuteranopia", 14), ("protanopia", 13), ("grey", 7)])
def test_two_chunks_of_forward_slots_are_told_apart(seen: str, least: float) -> None:
    first, second = (lab(DEFICIENCIES[seen] @ linear(colour)) for colour in KINDS["F"].colours[:2])
    assert float(np.linalg.norm(first - second)) > least


@pytest.mark.parametrize(("seen", "least"), [("none", 20), ("deuteranopia", 15), ("protanopia", 6), ("grey", 2.5)])
def test_lines_of_communication_stay_apart_for_colour_blind_readers_and_in_grey(seen: str, least: float) -> None:
    lines = [lab(DEFICIENCIES[seen] @ linear(kind.colours[0])) for kind in KINDS.values() if not kind.height]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(lines, 2)) > least


def test_no_colour_of_memory_is_like_one_of_time_or_like_its_neighbour_in_a_stack() -> None:
    time = [*(kind.colours[0] for kind in KINDS.values()), *OF_CAUSES.values()]
    stacks = [[*COLOURS.values()], [colour for _, colour in OF_MEMORY.values()]]
    for one in COLOURS.values():
        assert min(float(np.linalg.norm(lab(linear(one)) - lab(linear(other)))) for other in time) > 19
    for deficiency, least in (("none", 14), ("deuteranopia", 14), ("protanopia", 14), ("grey", 4)):
        for stack in stacks:
            tints = [lab(DEFICIENCIES[deficiency] @ linear(colour)) for colour in stack]
            assert min(float(np.linalg.norm(one - other)) for one, other in pairwise(tints)) > least
    assert {colour for _, colour in OF_MEMORY.values()} <= set(COLOURS.values()), "the report and the plot have one palette"


def test_the_pale_part_of_a_slot_is_the_share_without_a_kernel(run: Run) -> None:
    """The share is recomputed here from the intervals of the operations, one slot after another."""
    labels, times = run.labels[0], run.engine_timeline.rank_times(0)
    found = computing_ns(labels, times)
    for number in range(len(labels.steps)):
        rows = np.flatnonzero(labels.is_compute & (labels.step == number))
        spans = merged([(int(times.start_ns[row]), int(times.end_ns[row])) for row in rows], 0)
        assert found[number] == sum(end - start for start, end in spans)
    waits = [bar.waits for bar in chart_of_run(run).rows[0].bars if bar.kind in "FB"]
    assert all(0 < share < 1 for share in waits)
    drawn = [of for of in gantt(run, ranks=[0]).axes[0].collections if type(of) is PolyCollection and of.get_zorder() == 2.2]
    boxes = [path.get_extents() for of in drawn for path in of.get_paths()]
    assert sorted(round(box.height / 0.78, 6) for box in boxes) == sorted(round(share, 6) for share in waits)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_figures_are_written_whole_and_the_same_each_time(run: Run, tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    save(gantt(run), first)
    save(gantt(run), second)
    assert first.stat().st_size > 5000
    if suffix == ".png":
        assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]


def test_a_picture_is_neither_blank_nor_one_colour(run: Run, tmp_path: Path) -> None:
    import matplotlib.image

    save(gantt(run), tmp_path / "a.png")
    pixels = matplotlib.image.imread(tmp_path / "a.png")[..., :3]
    assert pixels.shape[1] > 1500
    colours = {tuple(c) for c in np.unique((pixels.reshape(-1, 3) * 255).astype(int), axis=0).tolist()}
    for kind in ("F", "B"):
        colour = KINDS[kind].colours[0]
        assert tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) in colours


def test_other_endings_and_folders_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="picture"):
        save(gantt(run), tmp_path / "a.bmp")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        save(gantt(run), tmp_path / "folder.png")


def test_too_many_rows_and_unknown_ranks_are_refused(run: Run) -> None:
    with pytest.raises(UserError, match="rows"):
        gantt(run, ranks=range(65))
    with pytest.raises(UserError, match="no rank 99"):
        gantt(run, ranks=[99])


def test_schedules_are_drawn_too() -> None:
    result = evaluate(lay_out(catalog.module("schedules", "1f1b"), Shape(4, 8, durations=Durations(comm=0.1))))
    chart = chart_of_evaluation(result, "1f1b")
    assert sum(len(row.bars) for row in chart.rows) == 4 * 8 * 2
    assert gantt(result, title="1f1b").axes[0].get_title(loc="left") == "1f1b"


def test_a_schedule_is_entitled_with_its_name_its_shape_and_its_bubble() -> None:
    result = sim.schedule("1f1b", ranks=4, microbatches=8)
    assert (
        gantt(result).axes[0].get_title(loc="left") == "1f1b, 4 ranks x 1 chunk, 8 microbatches: makespan 33, bubble ratio 27.27%"
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["1f1b"], ""),
        (["zb-v"], "(darker: later chunks)"),
        (["dualpipe"], "(darker: the other direction)"),
        (["1f1b", "zb-v", "chimera"], "(darker: later chunks, or the other direction)"),
    ],
)
def test_the_legend_says_what_darker_slots_are(names: list[str], said: str) -> None:
    results = {name: sim.schedule(name, ranks=4, microbatches=8) for name in names}
    legend = [text.get_text() for text in gantt(results).legends[0].get_texts()]
    assert [text for text in legend if "darker" in text] == [said] * bool(said)


def test_several_timelines_are_drawn_one_below_another(run: Run) -> None:
    pair = {name: sim.schedule(name, ranks=4, microbatches=8) for name in ("1f1b", "zb-h1")}
    compared = sim.compare_schedules(["1f1b", "zb-h1"], ranks=4, microbatches=8)
    for what in (pair, compared):
        titles = [axes.get_title(loc="left") for axes in gantt(what).axes]
        assert sorted(title.partition(", ")[0] for title in titles) == ["1f1b: makespan 33", "zb-h1: makespan 27"]
    runs = {"a": run, "b": run}
    for found in (gantt(runs), gantt(sim.compare(runs)), gantt(runs, size_in=(12, 6), window_s=(0, run.metrics.step_time_s / 2))):
        assert [axes.get_title(loc="left")[:3] for axes in found.axes] == ["a: ", "b: "]
    for wrong in ({"ranks": [0]}, {"title": "both"}, {"window_s": (1e6, 2e6)}):
        with pytest.raises(UserError, match=r"several|window"):
            gantt(runs, **wrong)
    with pytest.raises(UserError, match="no common time axis"):
        gantt({"run": run, **pair})
    with pytest.raises(UserError, match="what is"):
        gantt({})


def test_the_legend_of_a_run_says_what_darker_slots_are(run: Run) -> None:
    assert chart_of_run(run).darker == "later chunks"
    pairs = scenario(cluster=small_cluster(4), plan=sim.Plan(tp=2, pp=4, dp=2, schedule="dualpipe")).simulate()
    assert chart_of_run(pairs).darker == "the other direction"


def test_numbers_are_in_the_middle_of_what_a_window_shows_of_their_slots() -> None:
    figure = gantt(sim.schedule("1f1b", ranks=4, microbatches=8), window_s=(10.5, 13.0))
    numbers = {(text.get_text(), int(text.get_position()[1])): text.get_position()[0] for text in figure.axes[0].texts}
    assert numbers["0", 0] == (10.5 + 12) / 2  # the first backward slot of rank 0 is from 10 to 12
    assert all(10.5 < x < 13 for x in numbers.values())


def test_slots_narrower_than_a_few_pixels_are_not_moved_apart() -> None:
    for microbatches, narrow in ((8, False), (400, True)):
        figure = gantt(sim.schedule("1f1b", ranks=4, microbatches=microbatches))
        boxes = [found for found in figure.axes[0].collections if isinstance(found, PolyCollection)]
        assert {(found.get_snap() is False, found.get_linewidth()[0] == 0.0) for found in boxes} == {(narrow, narrow)}


def test_numbers_on_hatched_slots_stand_on_plain_colour() -> None:
    result = evaluate(lay_out(catalog.module("schedules", "zb-h1"), Shape(4, 8)))
    texts = gantt(result).axes[0].texts
    patches = [text.get_bbox_patch() for text in texts]
    assert sum(patch is not None for patch in patches) == len(texts) / 3
    weights = [to_rgb(colour) for colour in KINDS["W"].colours]
    assert all(patch is None or patch.get_facecolor()[:3] in weights for patch in patches)


def test_merged_joins_only_what_is_close() -> None:
    assert merged([(5, 6), (0, 1), (1.05, 2), (0.5, 0.8)], 0.1) == [(0, 2), (5, 6)]


def events_of(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        data = json.load(file)
    assert data["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_trace_holds_every_task_of_the_ranks_that_it_shows(run: Run, tmp_path: Path, name: str) -> None:
    written = sim.trace(run, tmp_path / name)
    events = events_of(tmp_path / name)
    assert len(events) == written
    for rank in (0, 4):
        rows = run.timeline.to_pandas(ranks=[rank]).query("end_ns > start_ns")
        drawn = [e for e in events if e["ph"] == "X" and e["pid"] == rank and e["cat"] != "slot"]
        assert len(drawn) == len(rows)
        assert sum(e["dur"] for e in drawn) == pytest.approx((rows.end_ns - rows.start_ns).sum() / 1000)
        names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["pid"] == rank and e["name"] == "thread_name"]
        assert names[0] == "compute"
        assert set(rows.stream) <= set(names)


@pytest.fixture(scope="module")
def without_norm() -> Run:
    """Overlapping steps: the first gather of a step ends before its first kernel begins, and launches come before it."""
    plan, job = sim.Plan(dp=4, sharding="fsdp"), sim.Job(sequence_length=1024, global_batch=8, gradient_clipping=False)
    return scenario(cluster=small_cluster(1), plan=plan, job=job, framework=sim.framework("pytorch-2024")).simulate()


def test_a_trace_begins_with_what_precedes_the_first_kernel_of_its_steps(without_norm: Run, tmp_path: Path) -> None:
    """Perfetto drops events before time zero."""
    first_ns = {on: int(of.start_ns.min()) for on, of in without_norm.timeline.to_pandas(ranks=[0]).groupby("stream")}
    assert first_ns["dp"] < 0
    assert first_ns["host"] < 0
    sim.trace(without_norm, tmp_path / "t.json")
    at_us = [event["ts"] for event in events_of(tmp_path / "t.json") if "ts" in event]
    assert min(at_us) == 0
    about = json.loads((tmp_path / "t.json").read_text())["otherData"]
    assert about["steps_begin_us"] == -min(first_ns.values()) / 1000
    kernels = [e for e in events_of(tmp_path / "t.json") if e["ph"] == "X" and e["tid"] == 0 and e["cat"] != "slot"]
    assert min(event["ts"] for event in kernels) == pytest.approx(about["steps_begin_us"] + first_ns["compute"] / 1000)
    memory = [event["ts"] for event in events_of(tmp_path / "t.json") if event["ph"] == "C"]
    assert min(memory) == about["steps_begin_us"]


def test_slices_of_a_thread_nest(run: Run, tmp_path: Path) -> None:
    sim.trace(run, tmp_path / "t.json")
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events_of(tmp_path / "t.json"):
        if e["ph"] == "X":
            threads.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for slices in threads.values():
        open_: list[float] = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_ and open_[-1] <= begin + 1e-6:
                open_.pop()
            assert not open_ or end <= open_[-1] + 1e-6
            open_.append(end)


def test_arrows_join_both_ends_of_a_transfer_and_memory_is_counted(run: Run, tmp_path: Path) -> None:
    sim.trace(run, tmp_path / "t.json", ranks=[0, 4])
    events = events_of(tmp_path / "t.json")
    starts, ends = ({e["id"] for e in events if e["ph"] == ph} for ph in "sf")
    assert starts == ends
    assert starts
    counters = [e for e in events if e["ph"] == "C" and e["pid"] == 0]
    assert max(e["args"]["bytes"] for e in counters) == run.memory[0].total_bytes
    assert counters[-1]["args"]["bytes"] == run.memory[0].static_bytes


@pytest.mark.parametrize(("most", "full"), [(0.0, 0.01), (0.004, 0.01), (0.02, 0.02), (0.09, 0.1), (0.41, 0.5), (1.0000004, 1.0)])
def test_the_scale_of_a_heat_map_ends_where_no_link_exceeds_it(most: float, full: float) -> None:
    assert HeatMap(np.array([most, 0.0, np.nan])).full == full
    assert HeatMap(np.array([most])).scaled(np.array([most]))[0] == pytest.approx(min(1, most / full))


def test_a_heat_map_grows_darker_from_0_to_the_end_of_its_scale() -> None:
    heat = HeatMap(np.array([0.0, 0.19, 0.5, 0.8, 1.0, 1.0000004, np.nan]))
    assert heat.scaled(heat.load).tolist() == [0.0, 0.19, 0.5, 0.8, 1.0, 1.0, 0.0]
    *used, unknown = heat.colours(heat.load)
    assert unknown == UNLOADED
    for deficiency in DEFICIENCIES.values():
        lightness = [float(lab(deficiency @ linear(colour[:3]))[0]) for colour in used[:5]]
        assert all(a - b > 10 for a, b in pairwise(lightness))


def test_a_heat_map_says_its_scale_and_what_is_marked() -> None:
    for shown in (small_cluster(2), small_cluster(64)):
        here = np.full(shown.wiring.links, 0.04)
        here[7] = 0.17
        figure = topology_plot(shown, here, marked={"one link, 3 ms": np.array([7])})
        assert figure.axes[1].get_xlabel() == "utilisation of a link (%), at most 17%"
        assert [float(text.get_text()) for text in figure.axes[1].get_xticklabels()][-1] == 20
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one link, 3 ms"]
        assert halos(figure) == 1
        assert halos(topology_plot(shown, here)) == 0


def halos(figure: Any) -> int:
    """Broader lines below others, in the colour of what is marked."""
    lines = figure.axes[0].lines
    drawn = [colour for of in figure.axes[0].collections if isinstance(of, LineCollection) for colour in _each(of)]
    return sum(same_color(line.get_color(), MARK) for line in lines) + sum(same_color(colour, MARK) for colour in drawn)


def _each(lines: LineCollection) -> list[Any]:
    """A colour for every line."""
    colours = lines.get_colors()
    return [colours[i % len(colours)] for i in range(len(lines.get_segments()))]


def test_a_slow_link_is_seen_among_thousands() -> None:
    """Its group has its colour, and the label tells it beside the mean."""
    cluster = small_cluster(512)
    load = np.full(cluster.wiring.links, 0.02)
    load[cluster.link_named("node99/nic2>leaf198")] = 0.9
    figure = topology_plot(cluster, load)
    said = [text.get_text() for text in figure.axes[0].texts if "% used" in text.get_text()]
    assert [text.split("us, ")[-1] for text in said if " nic," in text] == ["2% used, at most 90%"]
    assert all(text.endswith(", 2% used") for text in said if " nic," not in text)
    assert sum(same_color(line.get_color(), HeatMap(load).colours(np.array([0.9]))[0]) for line in figure.axes[0].lines) == 1


@pytest.mark.parametrize(("shape", "nodes"), [("leaf-spine", 64), ("fat-tree", 64), ("fat-tree", 8)])
def test_pictures_count_switches_as_one_buys_them(shape: str, nodes: int) -> None:
    cluster = small_cluster(nodes, shape=shape)
    bought = switches(cluster)
    drawn = Counter(run.kind for run in cluster.wiring.vertices for _ in range(run.count))
    texts = [text.get_text() for text in topology_plot(cluster).axes[0].texts]
    pooled = [kind for kind in drawn if bought.get(WORDS.get(kind, kind), drawn[kind]) != drawn[kind]]
    assert pooled
    for kind in pooled:
        count = bought[WORDS.get(kind, kind)]
        assert any(text.startswith(f"{count:,} {plural(kind, count)}") for text in texts)


def test_a_timeline_has_the_size_the_window_and_the_title_that_were_asked_for(run: Run) -> None:
    figure = gantt(run, ranks=[4], title="one rank", size_in=(9.0, 3.0), window_s=(0.001, 0.002))
    assert figure.get_size_inches().tolist() == [9.0, 3.0]
    assert figure.axes[0].get_title(loc="left") == "one rank"
    assert figure.axes[0].get_xlim() == (0.001, 0.002)
    for window_s in ((0.002, 0.001), (-1.0, 1.0), (1e6, 2e6)):
        with pytest.raises(UserError, match="window"):
            gantt(run, window_s=window_s)


@pytest.mark.parametrize("name", sorted(catalog.files("clusters")))
def test_titles_of_clusters_are_inside_their_pictures(name: str) -> None:
    for title in (None, "vocabulary-llama3-8b on 8 GPUs of a cluster: use of links in a step of 446.9 ms"):
        figure = topology_plot(cluster(name, nodes=2), title=title) if title else topology_plot(cluster(name))
        figure.draw_without_rendering()
        box = (figure._suptitle or figure.axes[0]._left_title).get_window_extent()  # type: ignore[attr-defined]
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_each_rate_of_a_class_of_links_is_in_the_legend_with_its_width() -> None:
    legend = topology_plot(cluster("dgx1-v100")).legends[0]
    lines = {text.get_text(): line.get_linewidth() for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    assert [name for name in lines if name.startswith("nvlink")] == ["nvlink, 50 GB/s", "nvlink, 25 GB/s"]
    assert lines["nvlink, 50 GB/s"] > lines["nvlink, 25 GB/s"]


def test_numbers_of_plans_on_a_front_do_not_stand_on_each_other() -> None:
    front = [Point(1 + 0.1 * (i // 2) + 0.005 * (i % 2), GIB * (80 - (i // 2) * 9), f"plan {i}") for i in range(12)]
    figure = pareto(front, front, "memory")
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
    assert ", ".join(boxes) == "1, 3, 4, 6, 7, 9, 10, 12", "the ends of the front, and plans between them"
    assert len(boxes) < 8
    assert not [pair for pair in combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]


def test_a_front_says_of_what_it_is_and_what_its_grey_points_are() -> None:
    front = [Point(0.001 * i, GIB * (90 - i), f"plan {i}") for i in range(1, 12)]
    figure = pareto([*front, Point(0.2, GIB * 90, "slow")], front, "memory", "a scenario")
    said = "a scenario: step time against memory of the fullest GPU, 11 of 12 simulated plans on the front"
    assert figure.get_suptitle() == said
    axes = figure.axes[0]
    lines = axes.get_title(loc="left").splitlines()
    assert (lines[0], lines[-2], lines[-1]) == ("1 plan 1", "11 plan 11", "and 3 plans between them")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "other simulated plans",
        "front: none is better in both",
    ]
    assert axes.get_ylabel() == "step time, ms"


def test_links_that_are_waited_for_nearly_as_long_as_any_are_marked() -> None:
    network = scenario(cluster=small_cluster(4), plan=sim.Plan(tp=4, pp=2, dp=2)).simulate().network
    groups = network.waited_links(network.cluster.wiring.links)
    near = [one for one in groups if one.waited_s >= 0.9 * groups[0].waited_s]
    marked = longest_waits(network)
    assert sum(map(len, marked.values())) == sum(one.alike for one in near)
    assert len(marked) == min(len(near), NAMED + 1)


def test_of_many_links_that_are_waited_for_alike_a_few_are_named_and_all_are_marked() -> None:
    cluster = small_cluster(2)
    names = [cluster.wiring.link_name(link) for link in range(9)]
    waits = [SimpleNamespace(name=name, alike=1, waited_s=1.0 - 0.015 * i) for i, name in enumerate(names)]
    network: Any = SimpleNamespace(
        cluster=cluster, waited_links=lambda count: waits[:count], links_like=lambda link: np.array([link])
    )
    marked = longest_waits(network)
    assert np.concatenate([*marked.values()]).tolist() == list(range(7))
    assert list(marked)[3:] == ["4 other links, 910.0 ms or more"]


def test_the_capacity_in_the_study_of_parallelism_is_written_beside_no_bar(run: Run) -> None:
    made, capacity_gib = study_script("parallelism"), run.scenario.cluster.gpu.memory_bytes / GIB

    def row(memory_gib: float) -> Any:
        memory = dict.fromkeys(made.CLASSES, 0.0) | {"activations": memory_gib}
        return SimpleNamespace(name="a plan", run=run, memory_gib=memory, times_ms=dict.fromkeys(made.CAUSES, 1.0))

    figure = made.picture([row(capacity_gib + 20), row(capacity_gib - 20), row(capacity_gib + 5)])
    assert [text.get_position()[1] for text in figure.axes[1].texts] == [1]


def test_characters_that_the_font_lacks_are_escaped(run: Run, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert legible("模型 é µ €") == r"\u6a21\u578b é µ €"
    assert legible("_a") == "\u200b_a"
    figure = gantt(run, title="模型 $x$")
    assert figure.axes[0].get_title(loc="left") == r"\u6a21\u578b \$x\$"
    for suffix in ("png", "svg", "pdf"):
        save(figure, tmp_path / f"a.{suffix}")
    assert not recwarn.list


def test_several_racks_are_a_summary_and_one_rack_shows_every_gpu() -> None:
    several, one = (topology_plot(cluster("gb200-nvl72", nodes=nodes)).axes[0].texts for nodes in (4, 1))
    assert "4 nodes x 72 GPUs" in [text.get_text() for text in several]
    assert {str(number) for number in range(72)} <= {text.get_text() for text in one}


def test_something_else_is_no_waterfall(run: Run) -> None:
    with pytest.raises(UserError, match="shown is 3, not a waterfall"):
        waterfall_plot(run, 3)  # type: ignore[arg-type]


def test_the_waterfall_goes_from_the_step_to_its_flop_at_peak_without_a_gap(run: Run) -> None:
    """Each bar begins where the one before ends."""
    shown = waterfall(run)
    axes = waterfall_plot(run, shown).axes[0]
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert spans[0] == (0, pytest.approx(100))
    assert spans[-1] == (0, pytest.approx(100 * run.metrics.mfu))
    for (low, _), (_, high) in pairwise([(100, 100), *spans[1:-1]]):
        assert high == pytest.approx(low, abs=0.2), "but for causes that are too small to draw"
    assert axes.get_yticklabels()[0].get_text() == "step"


def test_a_cause_whose_removal_makes_the_rest_longer_has_a_sign_and_is_explained(run: Run) -> None:
    whole = waterfall(run)
    first, second, *others = whole.bars
    bars = replace(first, seconds=0.3 * whole.step_s), replace(second, seconds=-0.1 * whole.step_s), *others
    for shown, gains in ((whole, min(bar.seconds for bar in whole.bars) < 0), (replace(whole, bars=bars), True)):
        axes = waterfall_plot(run, shown).axes[0]
        assert any(text.get_text().startswith("-10.0%, -") for text in axes.texts) == (shown is not whole)
        assert ("grey" in axes.get_xlabel()) == gains


def test_equal_runs_give_equal_files(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(gantt(run), tmp_path / f"{name}.svg")
        sim.trace(run, tmp_path / f"{name}.json.gz", ranks=[0])
    for ending in ("svg", "json.gz"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_pictures_of_any_size_hold_their_legend_and_title(run: Run) -> None:
    """Or are refused, with the least size."""
    for size_in in (None, (14.0, 6.0), (6.0, 4.0), (4.5, 3.0)):
        figure = gantt(run, size_in=size_in, title="a title that is too long for a single line of a small picture " * 2)
        figure.draw_without_rendering()
        whole = figure.bbox
        for artist in (figure.legends[0], figure.axes[0]._left_title, figure.axes[0].xaxis.label):
            box = artist.get_window_extent()
            assert whole.x0 <= box.x0 < box.x1 <= whole.x1
            assert whole.y0 <= box.y0 < box.y1 <= whole.y1
    with pytest.raises(UserError, match=r"do not fit into 3x2 inches") as refused:
        gantt(run, size_in=(3.0, 2.0))
    least = refused.value.faults[0].hint.removeprefix("at least ").split("x")
    assert gantt(run, size_in=(float(least[0]), float(least[1]) + 0.1))


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe-v", "zb-v"])
def test_slices_of_a_thread_are_inside_one_another_or_apart(schedule: str) -> None:
    """Also those of slots that run side by side, as the exchanges of experts of one pass beside compute of another do."""
    model = {"layers": 8, "hidden": 1024, "heads": 8, "ffn_hidden": 2048, "vocab": 32000, "gated_mlp": True,
             "experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 704}  # fmt: skip
    plan = {"pp": 4, "ep": 2, "schedule": schedule, "overlap": {"ep": schedule != "zb-v"}}
    job = {"sequence_length": 1024, "global_batch": 32}
    run = sim.scenario({"model": model, "cluster": {"name": "dgx-h100", "nodes": 1}, "plan": plan, "job": job}).simulate()
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    named = set()
    for rank in (0, 2):
        for event in trace.events_of(run, rank, set(), 0):
            if event["ph"] == "X":
                begin, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
                threads.setdefault((event["pid"], event["tid"]), []).append((begin, -end))
            elif event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
    assert threads.keys() <= named
    for slices in threads.values():
        open_ends: list[int] = []
        for begin, end in sorted(slices):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or -end <= open_ends[-1]
            open_ends.append(-end)
