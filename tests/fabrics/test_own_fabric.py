"""A fabric of one's own: calibrated, named by a cluster, and its measured times come back."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from simulator.calibrate.fit_fabric import calibrated
from simulator.config import fabric_files
from simulator.config.load import cluster as find
from simulator.costs.collectives import theory
from simulator.costs.collectives.curves import Curve, uncontended_time
from simulator.costs.collectives.link_constants import LAWS
from simulator.costs.collectives.theory import Call
from simulator.errors import UserError
from simulator.measurements.nccl_tests import read
from simulator.units import GB, US_PER_S

from ..commandline import trainsim
from ..small_scenarios import time_collective
from ..validate.described import links_on

FACTORS = {"all_reduce": 2.0, "sendrecv": 0.0, "broadcast": 0.0}
SIZES = tuple(2**octave for octave in range(12, 33, 2))


def run(kind: str, ranks: int, nodes: int, gb_per_s: float, *, names: bool = True, redop: str = "sum", tag: str = "") -> str:
    """What nccl-tests prints where every message takes 30 us and its bytes at a rate, counted as algorithm bandwidth."""
    head = [f"# nccl-tests version 2.17.1 nccl-library=22703\n# Collective test starting: {kind}_perf"] if names else []
    hosts = [f"#  Rank {r:2} Group  0 Pid {r} on host{r * nodes // ranks} device {r} [0000:00] NVIDIA H100" for r in range(ranks)]
    share = FACTORS.get(kind, 1.0)
    bus = share * (ranks - 1) / ranks if share else 1.0
    rows = []
    for size in SIZES:
        time_us = time_s(size, gb_per_s) * US_PER_S
        rate = size / time_us / 1000
        one = f"{time_us:.2f} {rate:.4f} {rate * bus:.4f} 0"
        rows.append(f"  {size} {size // 4} float {redop} -1 {one} {one}")
    return "".join(f"{tag}{line}\n" for text in (*head, "# nThread 1 nGpus 1", *hosts, *rows) for line in text.split("\n"))


def time_s(size: float, gb_per_s: float) -> float:
    return 30e-6 + size / (gb_per_s * GB)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# Named by a cluster ---------------------------------------------------------------------------------------------------------

CLUSTER = """gpu: h100
gpus_per_node: 8
nodes: 2
intra_node: NVSwitch 450 GB/s
inter_node: 8x400 Gbit/s
fabric: {fabric}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a calibrated fabric."""
    runs = run("all_reduce", 8, 1, 200) + run("all_gather", 16, 2, 90)
    logs = written(tmp_path / "runs.txt", runs)
    assert trainsim("calibrate", "links", logs, "--out", tmp_path / "mine.yaml").code == 0
    return tmp_path


@pytest.mark.parametrize("name", ["mine.yaml", "./mine.yaml", "{folder}/mine.yaml"])
def test_the_measured_times_come_back(name: str, own: Path) -> None:
    """The path is looked for beside the file that names it."""
    path = written(own / "ours.yaml", CLUSTER.format(fabric=name.format(folder=own)))
    for kind, gpus, gb_per_s in (("all_reduce", 8, 200), ("all_gather", 16, 90)):
        said = trainsim("collective", kind, "--cluster", path, "--gpus", gpus, "-b", "4K", "-e", "4G", "-f", 4, "--json")
        assert said.code == 0, said.err
        for row in said.record["rows"]:
            assert row["provenance"] == "interpolated"
            assert row["time_us"] == pytest.approx(time_s(row["size_bytes"], gb_per_s) * US_PER_S, rel=0.06)


def test_a_slow_all_reduce_in_a_node_is_slow_for_other_numbers_of_gpus_too(tmp_path: Path) -> None:
    """At a third of the rate of the nearest fabric; what switches that add up carry is fitted, and is theirs across nodes too."""
    logs = written(tmp_path / "runs.txt", run("all_reduce", 8, 1, 85))
    assert trainsim("calibrate", "links", logs, "--out", tmp_path / "slow.yaml").code == 0
    path = written(tmp_path / "ours.yaml", CLUSTER.format(fabric="slow.yaml"))
    took_s = {}
    for gpus in (4, 8, 16):
        said = trainsim("collective", "all_reduce", "--cluster", path, "--gpus", gpus, "-b", "1G", "-e", "1G", "--json")
        took_s[gpus] = said.record["rows"][0]["time_us"] / US_PER_S
    assert took_s[8] == pytest.approx(time_s(2**30, 85), rel=0.06)
    assert 0.7 * took_s[8] < took_s[4] < 1.3 * took_s[8]
    assert took_s[16] > 0.7 * took_s[8]


def test_a_run_takes_it_by_set(own: Path) -> None:
    scenario = "model: llama3-8b\ncluster: {name: hgx-h100, nodes: 1}\nplan: {tp: 8}\n"
    path = written(own / "scenario.yaml", scenario + "job: {sequence_length: 128, global_batch: 8}\n")
    said = [trainsim("run", path, *more, "--json") for more in ((), ("--set", f"cluster.fabric={own / 'mine.yaml'}"))]
    assert [s.code for s in said] == [0, 0], said[1].err
    usual, mine = (s.record["step_time_s"] for s in said)
    assert mine != usual


def test_one_that_is_not_there_is_refused_with_the_place_of_its_name(own: Path) -> None:
    path = written(own / "ours.yaml", CLUSTER.format(fabric="none.yaml"))
    said = trainsim("collective", "all_reduce", "--cluster", path)
    assert said.code == 2
    assert f"{path}:6:" in said.err
    assert "cluster.fabric: no file" in said.err
    assert "holds mine.yaml" in said.err
    written(own / "bad.yaml", "about: x\nprovenance: guessed\nsource: y\ninside: {}\n")
    said = trainsim("collective", "all_reduce", "--cluster", written(path, CLUSTER.format(fabric="bad.yaml")))
    assert said.code == 2
    assert f"{own / 'bad.yaml'}:" in said.err


def test_a_file_is_read_once_and_the_cluster_holds_what_it_says(own: Path) -> None:
    made = find("dgx-h100", nodes=2, fabric=str(own / "mine.yaml"))
    expected = fabric_files.load(str(own / "mine.yaml"))
    (own / "mine.yaml").unlink()
    assert made.fabric == expected
    assert links_on(made).inside.bytes_per_s == expected.inside.bytes_per_s  # type: ignore[union-attr]


def test_the_name_of_a_fabric_in_place_of_the_fabric_is_refused() -> None:
    with pytest.raises(UserError, match="'ideal' is a name"):
        replace(find("hgx-h100"), fabric="ideal")


def test_a_file_brings_its_rates_and_a_name_takes_the_clusters(own: Path) -> None:
    mine = str(own / "mine.yaml")
    cluster = find("hgx-h100", nodes=2)
    links = links_on(replace(cluster, nvlink=replace(cluster.nvlink, bytes_per_s=1e9), fabric=fabric_files.load(mine)))
    fabric = fabric_files.load(mine)
    assert (replace(links.inside, generation=""), links.across, links.curves) == (fabric.inside, fabric.across, fabric.curves)
    shipped = links_on(replace(cluster, fabric=fabric_files.load("nvlink3-nvswitch"))).inside
    assert (shipped.name, shipped.bytes_per_s) == ("nvlink3-nvswitch", cluster.nvlink.bytes_per_s)


def test_amd_gpus_and_switches_of_old_find_their_links() -> None:
    amd = find("hgx-h100", nodes=1, gpu="mi300x", intra_node="fully-connected 448 GB/s", shape="fully-connected")
    assert (links_on(amd).inside.name, links_on(amd).inside.mesh) == ("xgmi-mi300", 8)
    dgx2 = find("hgx-h100", nodes=1, gpu="v100-32gb", intra_node="NVSwitch 150 GB/s")
    assert (links_on(dgx2).inside.name, links_on(dgx2).inside.mesh) == ("nvlink2-mesh", 0)


# How it is known ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "provenance"), [(1.0, "interpolated"), (1.005, "interpolated"), (1.05, "extrapolated")])
def test_on_links_that_were_not_measured_a_curve_extrapolates(factor: float, provenance: str) -> None:
    fabric = fabric_files.load("nvlink4-nvswitch")
    assert fabric.inside
    call = Call("all_gather", 2.0**24, 8)
    here = uncontended_time(call, fabric.inside, None, fabric.curves)
    there = uncontended_time(call, replace(fabric.inside, bytes_per_s=factor * fabric.inside.bytes_per_s), None, fabric.curves)
    assert there.provenance == provenance
    assert (there.uncertainty > here.uncertainty) == (provenance == "extrapolated")


@pytest.mark.parametrize(("factor", "provenance"), [(1, "interpolated"), (0.5, "extrapolated")])
def test_so_it_does_on_another_network(factor: float, provenance: str) -> None:
    curve = next(c for c in fabric_files.load("hdr-ib").curves if c.nodes > 1)
    call = Call(curve.kind, curve.knots[0][0], curve.ranks, curve.nodes, curve.algorithm)
    assert curve.across
    across = replace(curve.across, nic_bytes_per_s=factor * curve.across.nic_bytes_per_s)
    assert uncontended_time(call, curve.inside, across, [curve]).provenance == provenance


# A switch for a rack --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["nvls", "sharp"])
def test_a_switch_that_adds_up_takes_no_longer_for_more_gpus_than_were_measured(algorithm: str) -> None:
    """Two steps more for every GPU up to 8, as measured; then none, for a switch is as deep for a rack."""
    inside = fabric_files.load("nvlink5-nvswitch").inside
    assert inside
    small = [theory.seconds(Call("all_reduce", 8, n, 1, algorithm), inside) for n in (4, 6, 8, 9, 16, 72)]
    steps = [(b - a) / inside.step_s for a, b in pairwise(small)]
    assert steps == pytest.approx([4, 4, 0, 0, 0], abs=1e-2)


@pytest.mark.parametrize("name", ["gb200-nvl72"])
def test_a_rack_sums_a_few_bytes_as_fast_as_a_box(name: str) -> None:
    """To a tenth, and in the hands of the switch: a ring of 72 would take 142 steps."""
    rack, box = find(name), find("dgx-b200")
    (few,) = time_collective("all_reduce", replace(rack, nodes=1), [8])
    (eight,) = time_collective("all_reduce", replace(box, nodes=1), [8])
    assert few.algorithm == "nvls"
    assert few.ranks == 72
    assert few.time_s == pytest.approx(eight.time_s, rel=0.1)
    assert few.provenance == "theoretical"


# Calibration ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "start"),
    [
        ([("all_gather", 8, 1, 1500)], ("pcie3", None)),
        ([("all_gather", 16, 2, 900)], ("nvlink4-nvswitch", "edr-ib")),
        ([("all_reduce", 8, 1, 900), ("all_reduce", 16, 2, 500), ("sendrecv", 16, 2, 70)], ("pcie4", "tcp")),
    ],
)
def test_no_measurement_beats_the_wire_of_a_calibrated_fabric(
    runs: list[tuple[str, int, int, float]], start: tuple[str, str | None], tmp_path: Path
) -> None:
    logs = written(tmp_path / "runs.txt", "".join(run(*one) for one in runs))
    out = tmp_path / "own.yaml"
    out.write_text(fabric_files.text(calibrated([logs], "own", *start)), encoding="utf-8")
    made = fabric_files.load(str(out))
    assert made.inside
    for kind, ranks, nodes, gb_per_s in runs:
        for size in SIZES:
            call = Call(kind, size, ranks, nodes)
            assert theory.least(call, made.inside, made.across) <= time_s(size, gb_per_s) * 1.001


def test_what_is_written_can_be_read_whatever_the_runs_leave_open(tmp_path: Path) -> None:
    """A run whose large messages are relatively quick would have a handshake that saves time."""
    size, quick = 8, []
    while size <= 2**30:
        us = 30 + size / 60e3 if size < 2**20 else 20 + size / 300e3
        one = f"{us:.2f} {size / us / 1000:.4f} {size / us / 1000 * 30 / 16:.4f} 0"
        quick.append(f"  {size} {size // 4} float sum -1 {one} {one}")
        size *= 4
    text = run("all_reduce", 16, 2, 10)
    lines = [line for line in text.splitlines() if not line.strip()[:1].isdigit()]
    file = written(tmp_path / "runs.txt", "\n".join([*lines, *quick]))
    fabric = calibrated([file], "own", None, "ndr-ib")
    assert fabric.across
    assert fabric.across.rendezvous >= 1
    assert "ndr-ib" in fabric.source
    out = tmp_path / "own.yaml"
    out.write_text(fabric_files.text(fabric), encoding="utf-8")
    assert fabric_files.load(str(out)).across


@pytest.mark.parametrize(
    ("gpu", "nodes", "start", "adds_up"),
    [
        ("NVIDIA A100-SXM4-40GB", 2, "nvlink3-nvswitch", False),
        ("NVIDIA H100 80GB HBM3", 2, "nvlink4-nvswitch", True),
        ("Tesla V100-SXM2-32GB", 2, "nvlink2-mesh", False),
        ("NVIDIA A100 80GB PCIe", 2, "pcie4", False),
        ("NVIDIA L40S", 1, "pcie4", False),
    ],
)
def test_the_gpus_of_a_run_say_what_joins_them(gpu: str, nodes: int, start: str, adds_up: bool, tmp_path: Path) -> None:
    """Whatever the rate was: only a run inside a node of PCIe tells which PCIe."""
    text = run("all_reduce", 8 * nodes, nodes, 10).replace("NVIDIA H100", gpu)
    inside, like = calibrated([written(tmp_path / "runs.txt", text)], "own").inside, fabric_files.load(start).inside
    assert inside
    assert like
    assert (inside.bytes_per_s, inside.nvls_efficiency > 0) == (like.bytes_per_s, adds_up)


def test_measurements_whose_results_were_wrong_count_for_nothing(tmp_path: Path) -> None:
    """Neither in the curve nor in the constants; the file says which they are."""
    lines = run("all_reduce", 8, 1, 200).splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith("  ")][3]
    size, _, _, _, _, time, *_ = lines[at].split()
    spoiled = re.sub(rf" {time} (\S+ \S+) 0 ", r" 1.00 \1 7 ", lines[at], count=1)
    assert spoiled != lines[at]
    logs = {
        name: written(tmp_path / f"{name}.txt", "\n".join([*lines[:at], *line, *lines[at + 1 :]]))
        for name, line in (("spoiled", [spoiled]), ("without", []), ("unchecked", [lines[at].replace(" 0 ", " N/A ")]))
    }
    made = {name: calibrated([file], "own") for name, file in logs.items()}
    assert (made["spoiled"].inside, made["spoiled"].curves) == (made["without"].inside, made["without"].curves)
    assert made["unchecked"].curves != made["without"].curves, "not checked is not wrong"
    assert f"left out, as their results were wrong: {logs['spoiled']}:{at + 1}" in made["spoiled"].source
    assert "left out" not in made["without"].source + made["unchecked"].source
    assert f"{logs['spoiled']}:{at + 1}" in trainsim("calibrate", "links", logs["spoiled"]).out
    assert float(size) not in {knot for curve in made["spoiled"].curves for knot, _ in curve.knots}


def test_the_errors_of_older_tables_are_no_counts_of_wrong_results(tmp_path: Path) -> None:
    texts = (run("all_reduce", 8, 1, 200), checked_as("5e-07"))
    new, older = (calibrated([written(tmp_path / f"{i}.txt", text)], "own") for i, text in enumerate(texts))
    assert new == older


def checked_as(column: str) -> str:
    """A run with something else in its columns of wrong results."""
    lines = run("all_reduce", 8, 1, 200).splitlines()
    return "\n".join(re.sub(r" 0( |$)", rf" {column}\1", line) if line.startswith("  ") else line for line in lines)


def test_a_run_whose_results_are_all_wrong_is_refused(tmp_path: Path) -> None:
    logs = written(tmp_path / "runs.txt", checked_as("3"))
    said = trainsim("calibrate", "links", logs)
    assert said.code == 2
    assert f"{logs}:" in said.err
    assert "every result is wrong" in said.err


def test_a_run_of_empty_messages_is_refused(tmp_path: Path) -> None:
    text = re.sub(r"^ +\d+", "  0", run("all_reduce", 8, 1, 200), flags=re.MULTILINE)
    said = trainsim("calibrate", "links", written(tmp_path / "runs.txt", text))
    assert (said.code, "results hold no measurement" in said.err) == (2, True)


def test_gpus_that_are_not_known_or_not_named_may_be_joined_by_anything(tmp_path: Path) -> None:
    text = run("all_reduce", 8, 1, 200)
    known = calibrated([written(tmp_path / "a.txt", text)], "own").inside
    for other in ("NVIDIA X9000", ""):
        assert calibrated([written(tmp_path / "b.txt", text.replace("NVIDIA H100", other))], "own").inside == known


def test_links_that_are_fast_enough_keep_their_rates(tmp_path: Path) -> None:
    logs = written(tmp_path / "runs.txt", run("all_reduce", 8, 1, 200))
    inside = calibrated([logs], "own", "nvlink4-nvswitch").inside
    assert inside
    assert inside.bytes_per_s == 450 * GB


def test_the_error_of_a_curve_is_that_of_its_predictions(own: Path) -> None:
    made = fabric_files.load(str(own / "mine.yaml"))
    for curve, gb_per_s in zip(made.curves, (200, 90), strict=True):
        assert curve.error == pytest.approx(error(curve, gb_per_s), abs=2e-3)


def error(curve: Curve, gb_per_s: float) -> float:
    calls = [Call(curve.kind, size, curve.ranks, curve.nodes) for size in SIZES]
    times = [uncontended_time(call, curve.inside, curve.across, [curve]).seconds for call in calls]
    return median(abs(t / time_s(size, gb_per_s) - 1) for t, size in zip(times, SIZES, strict=True))


@pytest.mark.parametrize(
    ("file", "kind", "redop", "option"),
    [
        ("alltoall_perf_8gpus.log", "alltoall", "none", ""),
        ("all-gather.txt", "all_gather", "none", ""),
        ("log.txt", "all_reduce", "sum", ""),
        ("log.txt", "reduce_scatter", "sum", ""),
        ("log.txt", "alltoall", "none", "alltoall"),
        ("all_gather.txt", "alltoall", "none", "alltoall"),
    ],
)
def test_a_log_without_its_program_is_told_by_file_operation_or_option(
    file: str, kind: str, redop: str, option: str, tmp_path: Path
) -> None:
    logs = written(tmp_path / file, run(kind, 8, 1, 100, names=False, redop=redop))
    more = ("--kind", option) if option else ()
    said = trainsim("calibrate", "links", logs, *more, "--out", tmp_path / "own.yaml", "--json")
    assert said.code == 0, said.err
    assert [curve["kind"] for curve in said.record["curves"]] == [kind]


def test_a_log_that_could_be_of_two_is_refused_with_the_way_out(tmp_path: Path) -> None:
    logs = written(tmp_path / "log.txt", run("alltoall", 8, 1, 100, names=False, redop="none"))
    said = trainsim("calibrate", "links", logs)
    assert said.code == 2
    assert "--kind" in said.err
    wrong = trainsim("calibrate", "links", logs, "--kind", "all_reduce")
    assert wrong.code == 2
    assert "busbw is 0.875 times algbw" in wrong.err
    assert trainsim("calibrate", "links", logs, "--kind", "all_redoce").code == 2


@pytest.mark.parametrize("program", ["reduce", "gather", "scatter", "hypercube"])
def test_a_program_whose_collective_is_not_modelled_is_not_taken_for_what_the_file_says(program: str, tmp_path: Path) -> None:
    text = run("all_gather", 8, 1, 100, redop="none").replace("all_gather_perf", f"{program}_perf")
    assert f"{program}_perf" in text
    said = trainsim("calibrate", "links", written(tmp_path / "all_gather.txt", text))
    assert said.code == 2
    assert f"{program}_perf measures no collective that is modelled" in said.err


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "0: ", "2025-03-01T10:00:00.000000000Z ", "2025-03-01T10:00:00+01:00 0: "])
def test_what_launchers_write_before_each_line_is_taken_off(tag: str, tmp_path: Path) -> None:
    plain, tagged = (
        read(written(tmp_path / f"{i}.txt", run("all_gather", 8, 1, 100, tag=t)))[0] for i, t in enumerate(("", tag))
    )
    assert plain == tagged


def test_an_address_at_the_start_of_a_line_is_no_measurement(tmp_path: Path) -> None:
    text = "10.0.0.1 slots=8\n" + run("all_gather", 8, 1, 100)
    assert read(written(tmp_path / "a.txt", text))[0].ranks == 8
    with pytest.raises(UserError, match="columns"):
        read(written(tmp_path / "b.txt", text + "  4096 1024 float\n"))


def test_every_node_that_is_reached_at_once_is_paid_for() -> None:
    """By layers an all-to-all reaches one GPU of each other node, by itself all of them: an eighth as many."""

    def took_us(nodes: int, algorithm: str) -> float:
        said = trainsim("collective", "alltoall", "--cluster", "dgx-h100", "--gpus", 8 * nodes, "-b", 8, "-e", 8,
            "--algorithm", algorithm, "--json")  # fmt: skip
        time_us: float = said.record["rows"][0]["time_us"]
        return time_us

    for nodes in (16, 64):
        layers, few = took_us(nodes, "hierarchical"), took_us(2, "hierarchical")
        assert layers - few == pytest.approx((nodes - 2) * LAWS.peer_s * US_PER_S, rel=0.05)
        assert layers < took_us(nodes, "direct") / 5


def test_sizes_that_a_run_repeats_all_count_whatever_their_order(tmp_path: Path) -> None:
    """As with --run_cycles of nccl-tests: the curve is that of the same lines in two runs."""
    text = run("all_reduce", 8, 1, 100)
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(r"\s*\d+ ", line))
    body = [line for line in lines[first:] if re.match(r"\s*\d+ ", line)]
    slow = run("all_reduce", 8, 1, 100 / 3).splitlines()[first : first + len(body)]
    head, tail = lines[:first], lines[first + len(body) :]
    made = [
        calibrated([written(tmp_path / f"{i}.txt", "\n".join([*head, *more, *tail]))], "own").curves[0]
        for i, more in enumerate(([*body, *slow], [*slow, *body]))
    ]
    apart = calibrated([written(tmp_path / "a.txt", text), written(tmp_path / "b.txt", "\n".join([*head, *slow, *tail]))], "own")
    assert made[0] == made[1]
    assert [*map(list, made[0].knots)] == [pytest.approx(knot) for knot in apart.curves[0].knots]
    assert f"{2 * len(body)} points of {len(body)} sizes" in made[0].source
    assert made[0].error > 0.2


@pytest.mark.parametrize("moved", [1, 3])
def test_a_run_that_does_not_sit_evenly_on_its_nodes_is_refused(moved: int, tmp_path: Path) -> None:
    text = run("all_reduce", 8, 1, 100)
    for rank in range(moved):
        text = re.sub(rf"(Rank +{rank} .* on )host0", r"\1another", text)
    said = trainsim("calibrate", "links", written(tmp_path / "a.txt", text))
    assert said.code == 2
    assert f"does not sit evenly on its 2 nodes: {8 - moved} on host0, and {moved} on another" in said.err


def test_small_messages_whose_bandwidths_are_rounded_are_what_kind_says(tmp_path: Path) -> None:
    lines = ["   8 2 float sum -1 20.0 0.00 0.00 0 20.0 0.00 0.00 0", "1024 256 float sum -1 17.2 0.06 0.11 0 17.2 0.06 0.11 0"]
    hosts = [f"#  Rank {r} Group 0 Pid {r} on host0 device {r} [0000:00] NVIDIA H100" for r in range(8)]
    large = "16777216 4194304 float sum -1 100.0 167.77 293.60 0 100.0 167.77 293.60 0"
    small = written(tmp_path / "a.txt", "\n".join([*hosts, *lines]))
    assert trainsim("calibrate", "links", small, "--kind", "all_reduce", "--out", tmp_path / "a.yaml").code == 0
    assert trainsim("calibrate", "links", small, "--kind", "alltoall").code == 2
    falling = written(tmp_path / "b.txt", "\n".join([*hosts, large, *lines[::-1]]))
    assert trainsim("calibrate", "links", falling, "--out", tmp_path / "b.yaml").code == 0, "told by the largest size"
