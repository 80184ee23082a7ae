"""The time of a collective alone: laws that hold on every machine, fits that come back, errors on the measured table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from types import ModuleType

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulator.calibrate.fit_fabric import calibrated
from simulator.config import fabric_files
from simulator.config.load import cluster as find
from simulator.costs.collectives import theory
from simulator.costs.collectives.curves import Curve, read, rising, uncontended_time
from simulator.costs.collectives.link_constants import LAWS, Across, Inside
from simulator.costs.collectives.theory import ALGORITHMS, KINDS, Call
from simulator.errors import UserError
from simulator.study.collective import spread
from simulator.units import US_PER_S

from ..commandline import trainsim
from ..project.source import ROOT, study_script
from ..small_scenarios import time_collective
from ..validate.described import links_in, links_on

TABLE = ROOT.parent / "shared" / "data" / "collectives.csv.gz"
COMMIT = re.compile(r"\b[\w.-]+/[\w.-]+@[0-9a-f]{7}\b")
ISSUE = re.compile(r"\b[\w.-]+/[\w.-]+#[0-9]+\b")
YEAR = re.compile(r"\b20[12][0-9]\b")
INSIDE = {name: fabric.inside for name in fabric_files.names() if (fabric := fabric_files.load(name)).inside}
ACROSS = {name: fabric.across for name in fabric_files.names() if (fabric := fabric_files.load(name)).across}
CURVES = [curve for name in fabric_files.names() for curve in fabric_files.load(name).curves]

insides = st.sampled_from(sorted(INSIDE)).map(INSIDE.__getitem__)
networks = st.sampled_from(sorted(ACROSS)).map(ACROSS.__getitem__)
places = st.sampled_from([(2, 1), (3, 1), (8, 1), (72, 1), (2, 2), (16, 2), (40, 5), (8, 8), (512, 64), (4096, 1024)])
sizes = st.floats(0, 37).map(lambda octaves: 2.0**octaves)
kinds = st.sampled_from(KINDS)
algorithms = st.sampled_from(ALGORITHMS)
CHOSEN = ("auto", "plain", "direct", "direct_vllm")
"""Left to a library, or to a framework that hands over to it: where it changes over, the time of an all-reduce may jump."""


def near(inside: Inside | None, across: Across | None) -> list[Curve]:
    """The curves that ship with these links."""
    own = [c for c in CURVES if c.nodes == 1 and c.inside == inside]
    return own + [c for c in CURVES if c.nodes > 1 and c.across == across]


@pytest.mark.parametrize("name", [name for name, inside in INSIDE.items() if inside.nvls_efficiency])
@pytest.mark.parametrize(("ranks", "nodes", "adds_up"), [(2, 1, False), (3, 1, True), (4, 2, False), (5, 2, False), (6, 2, True)])
def test_a_switch_adds_up_for_three_gpus_of_a_node_in_the_theory_too(name: str, ranks: int, nodes: int, *, adds_up: bool) -> None:
    inside, across = INSIDE[name], replace(ACROSS["ndr-ib"], nvls=True) if nodes > 1 else None
    nvls, plain = (theory.seconds(Call("all_reduce", 2**28, ranks, nodes, way), inside, across) for way in ("nvls", "plain"))
    assert (nvls != plain) == adds_up


@given(kinds, algorithms, places, insides, networks, sizes, st.floats(0, 8))
def test_more_bytes_never_take_less_time(
    kind: str, algorithm: str, place: tuple[int, int], inside: Inside, across: Across, size: float, octaves: float
) -> None:
    assume(kind != "all_reduce" or algorithm not in CHOSEN)
    for curves in ([], near(inside, across)):
        small, large = (
            uncontended_time(Call(kind, bytes_, *place, algorithm), inside, across, curves)
            for bytes_ in (size, size * 2**octaves)
        )
        assert small.seconds <= large.seconds * (1 + 1e-9)


@given(kinds, algorithms, places, insides, networks, sizes)
def test_no_jumps(kind: str, algorithm: str, place: tuple[int, int], inside: Inside, across: Across, size: float) -> None:
    """Half a percent more bytes take at most a few percent more time, at knots and at the ends of curves too."""
    assume(kind != "all_reduce" or algorithm not in CHOSEN)
    for curves in ([], near(inside, across)):
        edges = [s for c in curves for s in (c.knots[0][0], c.knots[-1][0])][:4]
        for at in (size, *edges):
            below, above = (
                uncontended_time(Call(kind, at * f, *place, algorithm), inside, across, curves).seconds for f in (0.9975, 1.0025)
            )
            assert above <= below * 1.03


@pytest.mark.slow
@given(kinds, algorithms, places, insides, networks, sizes)
def test_the_wire_is_never_beaten(
    kind: str, algorithm: str, place: tuple[int, int], inside: Inside, across: Across, size: float
) -> None:
    ranks, nodes = place
    call = Call(kind, size, ranks, nodes, algorithm)
    time = uncontended_time(call, inside, across, near(inside, across)).seconds
    assert time >= theory.least(call, inside, across) * (1 - 1e-9)
    if algorithm in ("ring", "plain") and nodes == 1 and kind in ("all_reduce", "all_gather", "reduce_scatter"):
        turns = 2 if kind == "all_reduce" else 1
        assert time >= turns * (ranks - 1) / ranks * size / theory.rate(inside, ranks)


@pytest.mark.parametrize("size", [8.0, 64.0, 2.0**33])
def test_where_only_one_neighbour_was_measured_at_a_size_it_has_its_say_all_the_same(size: float) -> None:
    """Four GPUs from 1 KiB to 1 GiB, as the theory says; eight for less, in 0.7 of it, and for more, in 1.3 of it, too."""
    inside = INSIDE["nvlink4-nvswitch"]
    assert inside

    def measured(ranks: int, at: dict[float, float]) -> Curve:
        calls = {size: Call("all_reduce", size, ranks, 1, "ring") for size in at}
        knots = tuple((size, at[size] * theory.seconds(call, inside)) for size, call in calls.items())
        return Curve("all_reduce", "ring", ranks, 1, knots, 0.01, inside)

    both = dict.fromkeys([2.0**10, 2.0**30], 1.0)
    curves = [measured(4, both), measured(8, {8.0: 0.7, 64.0: 0.7, **both, 2.0**33: 1.3})]
    for ranks in (4, 5, 6, 7, 8):
        call = Call("all_reduce", size, ranks, 1, "ring")
        found = uncontended_time(call, inside, None, curves)
        assert found.seconds / theory.seconds(call, inside) == pytest.approx(
            (0.7 if size < 1024 else 1.3) ** math.log2(ranks / 4), rel=1e-6
        )
        assert (found.provenance == "interpolated") == (ranks == 8)


@pytest.mark.parametrize("size", [8, 64, 512, 2**12, 2**20])
def test_eight_gpus_take_no_less_for_a_few_bytes_than_seven(size: int) -> None:
    times = [
        time_collective("all_reduce", find("dgx-h100"), [size], gpus=np.arange(gpus))[0].time_s for gpus in (2, 3, 4, 5, 6, 7, 8)
    ]
    assert times == sorted(times)


@given(kinds, insides, networks, sizes)
def test_one_rank_alone_waits_for_nobody(kind: str, inside: Inside, across: Across, size: float) -> None:
    assert uncontended_time(Call(kind, size, 1), inside, across, CURVES).seconds == 0


@pytest.mark.parametrize("kind", KINDS)
def test_large_messages_take_the_wire_and_small_ones_latency(kind: str) -> None:
    inside = INSIDE["nvlink4-nvswitch"]
    assert inside
    tiny, small = (theory.seconds(Call(kind, size, 8), inside) for size in (1, 64))
    assert small / tiny < 1.01
    huge = theory.seconds(Call(kind, 2.0**40, 8), inside)
    assert 1 < huge / theory.least(Call(kind, 2.0**40, 8), inside) < 1.6


def test_a_node_is_left_through_as_many_nics_as_it_has_ranks() -> None:
    inside, across = INSIDE["nvlink4-nvswitch"], ACROSS["ndr-ib"]
    assert inside
    assert across
    one, two, four = (theory.seconds(Call("all_reduce", 2.0**33, 10 * g, 10, "ring"), inside, across) for g in (1, 2, 4))
    assert one / two == pytest.approx(2 * (9 / 10) / (19 / 20), rel=0.05)
    assert two / four == pytest.approx(2 * (19 / 20) / (39 / 40), rel=0.08)


def test_small_messages_pay_the_logarithm_of_the_nodes() -> None:
    inside, across = INSIDE["nvlink4-nvswitch"], ACROSS["hdr-ib"]
    times = [theory.seconds(Call("all_reduce", 8, 8 * n, n), inside, across) for n in (4, 8, 16, 32)]
    steps = [b - a for a, b in pairwise(times)]
    assert steps == pytest.approx([steps[0]] * 3, rel=1e-3)


@pytest.mark.parametrize("adaptive", [False, True])
def test_single_flows_collide_where_routes_are_fixed(adaptive: bool) -> None:
    inside, across = INSIDE["nvlink4-nvswitch"], ACROSS["ndr-ib"]
    assert inside
    assert across
    across = replace(across, adaptive=adaptive)
    four, eight, many, more = (theory.seconds(Call("sendrecv", 2.0**34, 8 * n, n), inside, across) for n in (4, 8, 64, 512))
    assert eight / four == pytest.approx(1 if adaptive else 2 ** (2 / 3), rel=0.01)
    assert more == pytest.approx(many)
    ring = [theory.seconds(Call("all_gather", 2.0**38, n, n), inside, across) for n in (8, 64)]
    assert ring[1] / ring[0] == pytest.approx((1 if adaptive else 8**0.04) * (63 / 64) / (7 / 8), rel=0.01)


def test_a_long_ring_hides_its_latency_behind_the_wire() -> None:
    inside, across = INSIDE["nvlink4-nvswitch"], ACROSS["slingshot-11"]
    assert inside
    assert across
    across = replace(across, rendezvous=1.0)
    small, large, both = (
        theory.seconds(Call("all_reduce", size, 2048, 512, "ring"), inside, across) for size in (1, 2.0**40, 2.0**29)
    )
    assert max(small, large / 2**11) < both < 0.8 * (small + large / 2**11)


def test_a_mesh_gives_few_ranks_few_links_and_a_switch_all() -> None:
    mesh = replace(TRUE, mesh=4)
    assert [theory.rate(mesh, n) / theory.rate(TRUE, n) for n in (2, 3, 4, 8)] == pytest.approx([1 / 3, 2 / 3, 1, 1])


@given(st.integers(2, 8), st.floats(0, 37).map(lambda octaves: 2.0**octaves))
def test_one_peer_is_reached_over_one_wire_of_a_mesh(ranks: int, size: float) -> None:
    mesh = replace(TRUE, mesh=8)
    assert theory.seconds(Call("sendrecv", size, ranks), mesh) >= size / (mesh.bytes_per_s / 7)
    thin = replace(mesh, pair_bytes_per_s=mesh.bytes_per_s / 14)
    assert theory.seconds(Call("sendrecv", size, ranks), thin) >= size / (mesh.bytes_per_s / 14)


@given(st.sampled_from([4, 8]), st.integers(2, 8), st.floats(0, 37).map(lambda octaves: 2.0**octaves))
def test_where_all_are_wired_all_to_all_takes_what_each_wire_carries(mesh: int, ranks: int, size: float) -> None:
    wired = replace(TRUE, mesh=mesh)
    wire = wired.bytes_per_s / (mesh - 1)
    if ranks <= mesh:
        least = theory.least(Call("alltoall", size, ranks), wired)
        assert least == pytest.approx(size / ranks / wire)


def test_all_to_all_in_a_cube_mesh_waits_for_its_thinnest_wires() -> None:
    """What the four of a quad have for a GPU of the other goes over its twin's wire, and two of these have 25 GB/s."""
    inside = links_in("V100-SXM2", "nvlink2-mesh", 8).inside
    assert theory.least(Call("alltoall", 2.0**30, 8), inside) == pytest.approx(2.0**30 / 8 * 4 / 25e9)
    assert theory.least(Call("alltoall", 2.0**30, 4), inside) == pytest.approx(2.0**30 / 4 / 25e9)


@pytest.mark.parametrize(
    ("cluster", "gpu", "fabric", "counts"),
    [
        ("dgx1-v100", "V100-SXM2", "nvlink2-mesh", (2, 4, 8)),
        ("polaris", "A100-SXM4-40GB", "nvlink3-mesh", (2, 4)),
        ("alps-gh200", "GH200", "nvlink4-mesh", (2, 4)),
    ],
)
@pytest.mark.parametrize("size", [2**20, 2**28, 2**33])
def test_links_of_the_graph_never_slow_an_all_to_all_alone(
    cluster: str, gpu: str, fabric: str, counts: tuple[int, ...], size: int
) -> None:
    """What a table in words is told is what the same GPUs take as a cluster, whose routes have no more to give."""
    nodes = find(cluster, nodes=1)
    for gpus in counts:
        (row,) = time_collective("alltoall", nodes, [size], gpus=spread(nodes, gpus))
        found = links_in(gpu, fabric, gpus)
        told = uncontended_time(Call("alltoall", size, gpus), found.inside, None, found.curves)
        assert row.time_s == pytest.approx(told.seconds, rel=1e-4, abs=2e-9), gpus


@pytest.mark.parametrize("kind", ["alltoall", "sendrecv"])
def test_a_node_of_one_gpu_has_no_wires(kind: str) -> None:
    """However they would join it with others."""
    lone = {"gpu": "h100", "gpus_per_node": 1, "nodes": 2, "inter_node": "1x400 Gbit/s"}
    mesh, switch = (find({**lone, "intra_node": f"{how} 100 GB/s"}) for how in ("fully-connected", "NVSwitch"))
    times = [[row.time_s for row in time_collective(kind, cluster, [2**20, 2**30])] for cluster in (mesh, switch)]
    assert times[0] == times[1]


def test_two_on_a_wire_exchange_as_a_sendrecv_does() -> None:
    inside = links_in("V100-SXM2", "nvlink2-mesh", 2).inside
    both, one = (theory.seconds(Call(kind, size, 2), inside) for kind, size in (("alltoall", 2.0**33), ("sendrecv", 2.0**32)))
    assert both == pytest.approx(one, rel=0.02)


@pytest.mark.parametrize(("gpu", "fabric", "wire"), [("GH200", "nvlink4-mesh", 150), ("V100", "nvlink2-mesh", 25)])
def test_no_pair_without_a_switch_is_faster_than_its_wire(gpu: str, fabric: str, wire: float) -> None:
    found = links_in(gpu, fabric, 4)
    time = uncontended_time(Call("sendrecv", 2.0**33, 4), found.inside, None, found.curves).seconds
    assert 0.75 * wire < 2.0**33 / time / 1e9 < wire


@pytest.mark.parametrize(("gpu", "fabric", "network"), [("L40S", "pcie4", "hdr-ib"), ("H100-PCIe", "pcie5", "roce")])
def test_two_nodes_of_cards_are_no_faster_than_one(gpu: str, fabric: str, network: str) -> None:
    """What goes to the NICs goes over the GPU's own PCIe link too."""
    for kind in KINDS:
        rates = []
        for nodes in (1, 2):
            found, ranks = links_in(gpu, fabric, 8 * nodes, nodes, network=network), 8 * nodes
            time = uncontended_time(Call(kind, 2.0**33, ranks, nodes), found.inside, found.across).seconds
            rates.append({"sendrecv": 1.0, "broadcast": 1.0}.get(kind, (ranks - 1) / ranks) * 2.0**33 / time)
        assert rates[1] < 1.01 * rates[0], kind
    two = links_in(gpu, fabric, 2, 2, network=network)
    assert theory.least(Call("sendrecv", 2.0**33, 2, 2), two.inside, two.across) >= 2.0**33 / two.inside.bytes_per_s


def test_a_switched_node_keeps_what_leaves_it_off_its_links() -> None:
    found = links_in("H100-SXM", "nvlink4-nvswitch", 16, 2, network="ndr-ib")
    assert theory.least(Call("alltoall", 2.0**33, 16, 2), found.inside, found.across) == pytest.approx(2.0**33 / 2 / 50e9)


@pytest.mark.parametrize(
    ("name", "gpu", "fabric", "gpus"),
    [
        ("dgx1-v100", "V100-SXM2", "nvlink2-mesh", 8),
        ("polaris", "A100-SXM4-40GB", "nvlink3-mesh", 4),
        ("alps-gh200", "GH200", "nvlink4-mesh", 4),
    ],
)
def test_a_cluster_and_the_words_for_it_have_the_same_wires(name: str, gpu: str, fabric: str, gpus: int) -> None:
    within = links_on(find(name, nodes=1)).inside
    said = links_in(gpu, fabric, gpus).inside
    assert (within.bytes_per_s, theory.to_one(within, gpus), theory.to_all(within, gpus)) == (
        said.bytes_per_s,
        theory.to_one(said, gpus),
        theory.to_all(said, gpus),
    )


def test_a_cluster_of_cards_launches_at_their_clock() -> None:
    within = links_on(find("l40s-pcie", nodes=1)).inside
    assert within.launch_s == pytest.approx(links_in("L40S", "pcie4", 8).inside.launch_s, rel=0.01)


def test_between_bridged_pairs_it_is_pcie_at_its_one_way_rate() -> None:
    pairs = links_in("A100-PCIe-80", "nvlink-bridge-pairs", 4).inside
    two, four = (theory.seconds(Call("all_gather", 2.0**34, n), pairs) for n in (2, 4))
    assert 2.0**34 * 3 / 4 / four == pytest.approx(0.8 * 31.5e9, rel=0.02)
    assert 2.0**34 / 2 / two > 150e9


@given(st.sampled_from(theory.KINDS), st.integers(2, 8), st.floats(1, 2.0**34))
def test_words_with_flags_take_longer_where_messages_are_small(kind: str, ranks: int, size: float) -> None:
    """On PCIe: as many times longer as words are with their flags, at most, and no more than that of one message of 256 KiB."""
    plain = replace(TRUE, fill_s=0.0, nvls_efficiency=0.0)
    without, flagged = (theory.seconds(Call(kind, size, ranks), replace(plain, flags=flags)) for flags in (1.0, 3.0))
    limit = theory.seconds(Call(kind, 2.0 * 256 * 1024, ranks, algorithm="ring"), replace(plain, launch_s=0.0, step_s=0.0))
    assert without < flagged <= 3 * without * (1 + 1e-9)
    assert flagged - without <= limit * (1 + 1e-6)


def test_nothing_is_flagged_on_a_bridge() -> None:
    bridged = replace(TRUE, island=2, beyond_bytes_per_s=3e10, flags=3.0)
    times = [[theory.seconds(Call("all_gather", 2.0**12, n), i) for i in (bridged, replace(bridged, flags=1.0))] for n in (2, 4)]
    assert times[0][0] == times[0][1]
    assert times[1][0] > times[1][1]


def test_cards_launch_in_as_many_cycles_as_one_another() -> None:
    launches = [links_in(gpu, "pcie4", 2).inside.launch_s * ghz for gpu, ghz in (("L40S", 2.52), ("A100-PCIe", 1.41))]
    assert launches[0] == pytest.approx(launches[1])


def test_no_nvls_where_the_transport_is_run_without() -> None:
    inside, across = INSIDE["nvlink4-nvswitch"], ACROSS["tcpxo"]
    assert inside
    assert across
    call = Call("all_reduce", 2.0**34, 16, 2)
    assert theory.seconds(call, inside, across) == theory.seconds(replace(call, algorithm="plain"), inside, across)
    assert theory.seconds(call, inside, replace(across, nvls=True)) < theory.seconds(call, inside, across)


def test_what_the_switch_adds_up_is_faster_only_when_it_can() -> None:
    inside = INSIDE["nvlink4-nvswitch"]
    assert inside
    big = Call("all_reduce", 2.0**32, 8)
    assert theory.seconds(big, inside) < theory.seconds(replace(big, algorithm="plain"), inside)
    assert theory.seconds(big, replace(inside, nvls_efficiency=0.0)) == theory.seconds(replace(big, algorithm="plain"), inside)


def test_where_it_was_measured_it_is_the_measurement() -> None:
    for curve in CURVES:
        for size, seconds in rising(curve.knots):
            call = Call(curve.kind, size, curve.ranks, curve.nodes, curve.algorithm)
            found = uncontended_time(call, curve.inside, curve.across, [curve])
            assert found.seconds == pytest.approx(seconds, rel=1e-6)
            assert (found.provenance, found.source) == ("interpolated", curve.source)


def test_far_from_measurements_the_theory_speaks() -> None:
    curve = next(c for c in CURVES if c.nodes > 1)
    far = Call(curve.kind, 2.0**20, curve.ranks * 16, curve.nodes * 16)
    found = uncontended_time(far, curve.inside, curve.across, [curve])
    assert found.provenance == "theoretical"
    assert found.seconds == theory.seconds(far, curve.inside, curve.across)
    beyond = uncontended_time(replace(far, ranks=curve.ranks * 2, nodes=curve.nodes * 2), curve.inside, curve.across, [curve])
    assert beyond.provenance == "extrapolated"
    assert beyond.uncertainty > curve.error


def test_beyond_the_ends_the_ratio_to_the_theory_stays() -> None:
    curve = next(c for c in CURVES if c.nodes == 1 and c.kind == "all_gather")
    last, seconds = curve.knots[-1]
    call = Call(curve.kind, last * 64, curve.ranks)
    ratio = seconds / theory.seconds(replace(call, payload_bytes=last), curve.inside)
    found = uncontended_time(call, curve.inside, None, [curve])
    assert found.seconds == pytest.approx(ratio * theory.seconds(call, curve.inside), rel=1e-6)
    assert found.provenance == "extrapolated"


def test_between_measured_ranks_the_ratio_is_between() -> None:
    inside = INSIDE["nvlink3-nvswitch"]
    assert inside
    four, six, eight = (
        uncontended_time(
            Call("all_gather", 2.0**24, n), inside, None, [c for c in CURVES if c.nodes == 1 and c.inside == inside]
        ).seconds
        for n in (4, 6, 8)
    )
    assert min(four, eight) <= six <= max(four, eight)


def test_reading_knots() -> None:
    knots = rising([(8.0, 1.0), (2.0, 2.0), (32.0, 4.0)])
    assert knots == ((2.0, 2.0), (8.0, 2.0), (32.0, 4.0))
    assert [read(knots, s) for s in (1, 2, 16, 32, 64)] == pytest.approx([2, 2, math.sqrt(8), 4, 4])


# Files ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", fabric_files.names())
def test_a_fabric_comes_back_from_its_text(name: str, tmp_path: Path) -> None:
    fabric = fabric_files.load(name)
    file = tmp_path / f"{name}.yaml"
    file.write_text(fabric_files.text(replace(fabric, curves=tuple(bare(c) for c in fabric.curves))), encoding="utf-8")
    again = fabric_files.load(str(file))
    assert (again.inside, again.across, again.provenance) == (fabric.inside, fabric.across, fabric.provenance)
    assert [c.knots for c in again.curves] == [c.knots for c in fabric.curves]


def bare(curve: Curve) -> Curve:
    """The curve with its source as the file had it."""
    return replace(curve, source=curve.source.partition(": ")[2])


@pytest.mark.parametrize("name", fabric_files.names())
def test_every_fabric_says_how_it_is_known(name: str) -> None:
    fabric = fabric_files.load(name)
    assert fabric.source
    assert fabric.provenance == "measured" or not fabric.curves
    assert fabric.provenance != "measured" or (COMMIT.search(fabric.source) and YEAR.search(fabric.source))
    for curve in fabric.curves:
        assert "points of" in curve.source
        named = set(COMMIT.findall(curve.source))
        assert named, "whose measurement it is"
        assert named <= set(COMMIT.findall(fabric.source)), "when that was read"
        assert len(curve.knots) <= 9
        assert 0 <= curve.error < 0.3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("about: x\nprovenance: measured\nsource: y\n", "neither links"),
        ("about: x\nprovenance: guessed\nsource: y\n", "guessed"),
        ("about: x\nprovenance: theoretical\nsource: y\ninside: {rate: 450}\n", "bare number"),
    ],
)
def test_a_broken_fabric_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said) as caught:
        fabric_files.load(str(file))
    assert str(file) in str(caught.value)


# Calibration ----------------------------------------------------------------------------------------------------------------

TRUE = Inside("true", 450e9, 6e-6, 1.2e-6, 0.7, 2e-5, 1.0)
TRUE_ACROSS = Across("true", 50e9, 8, 1.5e-5, 0.85)


def printed(kind: str, ranks: int, nodes: int, *, noise: float = 0.0) -> str:
    """What nccl-tests would print on a machine whose links are known."""
    lines = [f"# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703\n# Collective test starting: {kind}_perf"]
    lines += ["# nThread 1 nGpus 1 minBytes 1024 maxBytes 4294967296 step: 4(factor)", "#", "# Using devices"]
    per_node = ranks // nodes
    for rank in range(ranks):
        host, device = f"host{rank // per_node}", rank % per_node
        lines.append(f"#  Rank {rank:2} Group  0 Pid {rank:6} on {host:>10} device {device:2} [0000:{rank:02x}:00] NVIDIA H100")
    lines += [
        "#",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw",
    ]
    for i, octave in enumerate(range(10, 33, 2)):
        size = 2**octave
        time_us = theory.seconds(Call(kind, size, ranks, nodes), TRUE, TRUE_ACROSS if nodes > 1 else None) * US_PER_S
        time_us *= 1 + noise * (-1) ** i
        one = f"{time_us:9.2f}  {size / time_us / 1000:6.2f}  {1.5 * size / time_us / 1000:6.2f}       0"
        lines.append(f"{size:12}  {size // 4:12}     float     sum      -1  {one}  {one}")
    return "\n".join(
        [
            *lines,
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 118.7",
            "#",
            f"# Collective test concluded: {kind}_perf",
            "",
        ]
    )


def reported(kind: str, ranks: int, nodes: int) -> str:
    """The same as the JSON of nccl-tests."""
    rows = [line.split() for line in printed(kind, ranks, nodes).splitlines() if line[:1] == " "]
    devices = [{"rank": r, "hostname": f"host{r * nodes // ranks}", "device": r} for r in range(ranks)]
    results = [
        {"size": int(w[0]), "type": "float", "root": "-1", "out_of_place": {"time": float(w[5]), "nwrong": 0.0}, "in_place": None}
        for w in rows
    ]
    config = {"nthreads": 1, "ngpus": 1, "devices": devices}
    args = [f"./build/{kind}_perf", "-b", "1K"]
    return json.dumps({"version": 2, "args": args, "nccl_version": 22703, "config": config, "results": results})


RUNS = (("all_reduce", 8, 1), ("all_gather", 8, 1), ("all_gather", 4, 1), ("all_reduce", 32, 4), ("reduce_scatter", 16, 2))


def test_calibration_finds_the_links_that_made_the_times(tmp_path: Path) -> None:
    file = tmp_path / "runs.txt"
    file.write_text("".join(printed(*run, noise=0.02) for run in RUNS), encoding="utf-8")
    out = tmp_path / "own.yaml"
    said = trainsim("calibrate", "links", file, "--out", out, "--inside", "nvlink3-nvswitch", "--json")
    assert said.code == 0, said.out + said.err
    assert [(c["kind"], c["ranks"], c["nodes"]) for c in said.record["curves"]] == list(RUNS)
    made = fabric_files.load(str(out))
    assert made.inside
    assert made.across
    for (kind, ranks, nodes), tolerance in (*((run, 0.1) for run in RUNS), (("all_reduce", 64, 8), 0.2)):
        for octave in (12, 20, 28, 33):
            call = Call(kind, 2.0**octave, ranks, nodes)
            across = made.across if nodes > 1 else None
            true = theory.seconds(call, TRUE, TRUE_ACROSS if nodes > 1 else None)
            assert uncontended_time(call, made.inside, across, made.curves).seconds == pytest.approx(true, rel=tolerance)


def test_text_and_json_calibrate_alike(tmp_path: Path) -> None:
    text, record = tmp_path / "a.txt", tmp_path / "a.json"
    text.write_text("".join(printed(*run) for run in RUNS[:2]), encoding="utf-8")
    record.write_text("[" + ", ".join(reported(*run) for run in RUNS[:2]) + "]", encoding="utf-8")
    one, other = (fabric_files.text(calibrated([file], "own")) for file in (text, record))
    assert one == other
    assert "NCCL 2.27.3; 12 points of 12 sizes" in one


def test_json_says_which_results_were_wrong(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    record = json.loads(reported("all_reduce", 8, 1))
    held = record["results"][4]["out_of_place"]
    record["results"][4]["out_of_place"] = {**held, "time": held["time"] / 50, "nwrong": 7.0}
    record["results"][5]["out_of_place"]["nwrong"] = None
    file.write_text(json.dumps(record), encoding="utf-8")
    made = calibrated([file], "own")
    assert "wrong: " + f"{file}: results[4]" in made.source
    assert "11 points of 11 sizes" in made.curves[0].source
    for result in record["results"]:
        result["out_of_place"]["nwrong"] = 1.0
    file.write_text(json.dumps(record), encoding="utf-8")
    assert "every result is wrong" in trainsim("calibrate", "links", file).err


def test_older_tables_have_fewer_columns(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    lines = printed("all_gather", 8, 1).splitlines()
    file.write_text("\n".join(line.replace("  sum      -1", "") for line in lines), encoding="utf-8")
    assert calibrated([file], "own").curves[0].kind == "all_gather"


def malformed() -> Iterator[tuple[str, str, str]]:
    good = printed("all_reduce", 8, 1)
    row = next(i for i, line in enumerate(good.splitlines()) if line[:1] == " ")
    lines = good.splitlines()
    yield (
        "\n".join([*lines[:row], lines[row].replace("float", "float extra"), *lines[row + 1 :]]),
        f":{row + 1}:",
        "a word too many",
    )
    yield "\n".join([*lines[:row], "        1024  256  float", *lines[row + 1 :]]), f":{row + 1}:", "cut off"
    yield good.replace("Rank", "rnk"), f":{row + 1}:", "no ranks"
    yield "hello\nworld\n", ":1:", "no table"
    yield '{"args": ["all_reduce_perf"],', ":1:", "JSON cut off"
    yield reported("all_reduce", 8, 1).replace('"time": ', '"tme": '), "results[0]", "no time"
    yield "", ":1:", "empty"


@pytest.mark.parametrize(("text", "where"), [case[:2] for case in malformed()], ids=[case[2] for case in malformed()])
def test_malformed_output_is_refused_with_its_place(text: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.txt"
    file.write_text(text, encoding="utf-8")
    said = trainsim("calibrate", "links", file)
    assert said.code == 2
    assert f"{file}" in said.err
    assert where in said.err


# Accuracy -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """results/collectives/make.py, if there is what it reads."""
    if not TABLE.exists():
        pytest.skip("needs the table of measured collectives, ../shared/data/collectives.csv.gz")
    return study_script("collectives")


def overall(errors: dict[tuple[str, str], list[float]], where: str) -> float:
    return median(abs(e) for (_, place), values in errors.items() if place == where for e in values)


@pytest.mark.slow
def test_what_ships_is_what_the_table_gives(make: ModuleType) -> None:
    built = make.build([row for row in make.measured(TABLE) if row.role == "fit"], laws=False)
    for name, fabric in built.fabrics.items():
        assert (fabric_files.folder() / f"{name}.yaml").read_text(encoding="utf-8") == fabric_files.text(fabric), name


@pytest.mark.slow
def test_a_size_that_was_left_out_is_predicted(make: ModuleType) -> None:
    rows = [row for row in make.measured(TABLE) if row.role == "fit"]
    some = sorted({row.call.payload_bytes for row in rows})[1::5]
    errors: dict[tuple[str, str], list[float]] = {}
    for size in some:
        built = make.build([row for row in rows if row.call.payload_bytes != size], laws=False)
        for key, values in make.own_curve_errors(built, [row for row in rows if row.call.payload_bytes == size]).items():
            errors.setdefault(key, []).extend(values)
    assert overall(errors, "inside") <= 0.06
    assert overall(errors, "across") <= 0.10


@pytest.mark.slow
def test_a_system_that_was_left_out_is_predicted(make: ModuleType) -> None:
    judged = make.systems_left_out([row for row in make.measured(TABLE) if row.role == "fit"])
    errors: dict[tuple[str, str], list[float]] = {}
    for row in judged:
        errors.setdefault((row.system, row.place), []).append(row.error)
    medians = {key: median(map(abs, values)) for key, values in errors.items()}
    inside = [value for (_, where), value in medians.items() if where == "inside"]
    assert sum(inside) / len(inside) <= 0.12
    assert overall(errors, "inside") <= 0.15
    assert overall(errors, "across") <= 0.125
    assert 0.88 <= mean(row.sigmas <= 2 for row in judged) <= 0.94
    assert medians.pop(("H100 cluster00", "across")) < 0.75, "sends at a quarter of its NICs: words do not tell, known to fail"
    assert medians["HGX H100", "inside"] <= 0.125, "p5 shares its links, and tells of no pipeline"
    assert max(medians.values()) <= 0.19


def test_published_summaries_name_their_sources() -> None:
    for fact in study_script("collectives", "published").FACTS:
        assert COMMIT.search(fact.source) or ISSUE.search(fact.source), fact
        assert YEAR.search(fact.source.rpartition(",")[2]), fact


@pytest.mark.slow
def test_the_report_lists_every_source_that_a_fabric_names() -> None:
    """And every row that is used has a line there: the rows of the table add up."""
    text = (ROOT / "results/collectives/report.md").read_text(encoding="utf-8")
    section = text.partition("## Sources")[2].partition("\n## ")[0]
    named = {
        commit
        for name in fabric_files.names()
        for curve in fabric_files.load(name).curves
        for commit in COMMIT.findall(curve.source)
    }
    assert len(named) >= 4
    assert named <= set(COMMIT.findall(section))
    fitted = sum(int(row.split("|")[-3]) for row in section.splitlines() if row.endswith("| fitted |"))
    shipped = [curve.source for name in fabric_files.names() for curve in fabric_files.load(name).curves]
    assert fitted == sum(int(re.search(r"(\d+) points of", source)[1]) for source in shipped)  # type: ignore[index]


@pytest.mark.slow
def test_published_summaries_are_met() -> None:
    published = study_script("collectives", "published")
    errors = [abs(published.predicted(f, fabric_files.load, LAWS) / f.published - 1) for f in published.FACTS]
    free = [error for error, fact in zip(errors, published.FACTS, strict=True) if not fact.used]
    assert median(errors) <= 0.10
    assert median(free) <= 0.15
    assert max(errors) <= 0.45


@pytest.mark.parametrize(
    ("name", "inside", "across"),
    [
        ("dgx-a100", "nvlink3-nvswitch", "hdr-ib"),
        ("dgx-h100", "nvlink4-nvswitch", "ndr-ib"),
        ("dgx-b200", "nvlink5-nvswitch", "ndr-ib"),
    ],
)
def test_a_cluster_finds_its_fabrics(name: str, inside: str, across: str) -> None:
    cluster = find(name, nodes=4)
    links = links_on(cluster)
    within, between = links.inside, links.across
    assert between
    assert (within.name, between.name) == (inside, across)
    assert (within.bytes_per_s, between.nic_bytes_per_s) == (cluster.nvlink.bytes_per_s, cluster.rail_bytes_per_s)
    assert links.curves
    assert links_on(replace(cluster, fabric=fabric_files.load("efa"))).across.name == "efa"  # type: ignore[union-attr]
    assert links_on(find(name, nodes=1)).across is None


@pytest.mark.parametrize("name", fabric_files.names())
def test_an_outline_is_the_fabric_without_its_curves(name: str) -> None:
    assert fabric_files.outline(name) == replace(fabric_files.load(name), curves=())
