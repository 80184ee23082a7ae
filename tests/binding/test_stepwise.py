"""Every message of every algorithm against the closed forms, and what cutting into pieces does to both."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.binding import stepwise
from simulator.binding.uncontended import _longest, _onward
from simulator.collectives import Edges, windows, wire_fraction
from simulator.config.fabric_files import IDEAL, Fabric
from simulator.errors import UserError
from simulator.hardware.cluster import Cluster
from simulator.simulation import estimated_effort
from simulator.study.collective import Timed

from ..collectives.test_algorithms import FORMS, MODULES, NIC_LATENCY, SIZES, S, grid, taken
from ..commandline import trainsim
from ..fabrics.uncontended import BANDWIDTH, LATENCY, many_nodes, one_node, steps
from ..small_scenarios import time_collective

ASKED_AS = {"exchange": "sendrecv"}
ALGORITHMS = [(name, kind) for name, kind in FORMS if (name, kind) != ("point_to_point", "sendrecv")]
PIPELINED = [(name, kind) for name, kind in FORMS if getattr(MODULES[name], "PIPELINED", False)]
NS = 1e-9
LATE = 2 * NS
"""However many messages follow one another: their clock is finer, and only the result is a whole nanosecond."""
RATE = 1e-7
"""The rate of a fluid is rounded down to 2^-24 bytes/ns."""


def time_s(name: str, kind: str, cluster: Cluster, fidelity: str, pieces: int | None = None, size: int = S) -> float:
    """Alone on bare links."""
    bare, asked = replace(cluster, fabric=IDEAL), ASKED_AS.get(kind, kind)
    return time_collective(asked, bare, [size], algorithm=name, fidelity=fidelity, pieces=pieces)[0].time_s


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name, kind", ALGORITHMS)
def test_its_messages_take_what_the_closed_form_says(name: str, kind: str) -> None:
    for n in SIZES:
        if taken(MODULES[name], kind, [0] * n):
            late_s = time_s(name, kind, one_node(n), "stepwise") - FORMS[name, kind](n, LATENCY, S / BANDWIDTH)
            assert -NS <= late_s <= LATE, n


@pytest.mark.slow
@pytest.mark.parametrize("size", [2**20, 2**28])
@pytest.mark.parametrize("name, kind", [("ring", "all_reduce"), ("ring", "all_gather"), ("pairwise", "alltoall")])
def test_many_steps_in_a_row_do_not_add_up_what_they_are_rounded_by(name: str, kind: str, size: int) -> None:
    """One part in a million, or the nanosecond that the result itself is rounded to."""
    for n in range(2, 33):
        bare = replace(one_node(n), fabric=IDEAL)
        found = time_collective(kind, bare, [size], algorithm=name, fidelity="stepwise")[0].time_s
        assert found == pytest.approx(FORMS[name, kind](n, LATENCY, size / BANDWIDTH), rel=1e-6, abs=1.1 * NS), n


def test_a_clock_that_has_no_room_is_as_coarse_as_it_must_be() -> None:
    """Messages of 2^36 bytes leave a single bit, and the time is right all the same."""
    bare = replace(one_node(2), fabric=IDEAL)
    found = time_collective("sendrecv", bare, [2**36], fidelity="stepwise")[0].time_s
    assert found == pytest.approx(LATENCY + 2**36 / BANDWIDTH, rel=1e-6)


LAYERED = [
    (name, kind)
    for name, kind in ALGORITHMS
    if name in ("hierarchical", "hierarchical_pipelined", "nvls", "nvls_tree", "sharp", "tree")
]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("m, k", [(2, 8), (4, 4), (5, 3), (6, 1)])
@pytest.mark.parametrize("name, kind", LAYERED)
def test_over_nodes_too_where_all_messages_of_a_round_are_alike(name: str, kind: str, m: int, k: int) -> None:
    of_one, of_all = time_s(name, kind, grid(m, k), "stepwise"), time_s(name, kind, grid(m, k), "fluid")
    assert -RATE * of_all <= of_one - of_all <= LATE


@pytest.mark.parametrize("m, k", [(2, 8), (4, 4), (5, 2)])
@pytest.mark.parametrize("name, kind", [("direct", "alltoall"), ("direct", "all_reduce"), ("hierarchical", "alltoall")])
def test_bytes_do_not_wait_for_latencies_of_others_nor_get_ahead_of_them(name: str, kind: str, m: int, k: int) -> None:
    """Messages to other rails take a way round: their latency is longer, and the NIC is as busy as with equal ones."""
    of_one, of_all = time_s(name, kind, grid(m, k), "stepwise"), time_s(name, kind, grid(m, k), "fluid")
    assert -RATE * of_all <= of_one - of_all <= LATE


@pytest.mark.parametrize("name", ["pairwise", "bruck"])
def test_where_pairs_of_a_round_differ_the_latencies_are_all_that_differs(name: str) -> None:
    """Near pairs go on while far ones wait; the closed form takes the slowest of every round."""
    cluster = many_nodes(4, 4)
    rounds = steps(MODULES[name].rounds("alltoall", np.repeat(np.arange(4), 4)))
    early_s = time_s(name, "alltoall", cluster, "fluid") - time_s(name, "alltoall", cluster, "stepwise")
    assert -LATE <= early_s <= rounds * 2 * LATENCY


OVER_NODES = [(2, 8), (3, 4), (2, 3), (5, 2), (4, 1)]
RING_KINDS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
FEW = 8
"""Bytes that take no time."""


@pytest.mark.parametrize("m, k", OVER_NODES)
@pytest.mark.parametrize("kind", RING_KINDS)
def test_a_piece_that_goes_round_meets_every_hop_once_each_time(kind: str, m: int, k: int) -> None:
    """So small payloads take the ways round, but for the hops that are left out at the end: of all pieces, the last to come
    is the one that leaves out near ones. The closed form takes the mean hop for those.
    """
    near, far = LATENCY if k > 1 else 0.0, NIC_LATENCY + (LATENCY if k > 1 else 0.0)
    times, hops = 2 if kind == "all_reduce" else 1, [near] * (k - 1) + [far]
    exact = times * m * sum(hops) - sum((hops * 2)[:times])
    found = time_s("ring", kind, grid(m, k), "stepwise", size=FEW)
    assert found == pytest.approx(exact, abs=20 * NS)
    assert abs(found - time_s("ring", kind, grid(m, k), "closed", size=FEW)) <= far - near + LATE


@pytest.mark.slow
@pytest.mark.parametrize("size", [2**20, 2**26, 2**30])
@pytest.mark.parametrize("m, k", OVER_NODES)
@pytest.mark.parametrize("kind", RING_KINDS)
def test_a_ring_over_unequal_hops_is_as_the_closed_form_within_its_latencies(kind: str, m: int, k: int, size: int) -> None:
    """The bytes of its slowest hop bound it as they do the closed form; latencies of other hops may pass meanwhile."""
    closed, stepwise = (time_s("ring", kind, grid(m, k), fidelity, size=size) for fidelity in ("closed", "stepwise"))
    latency_s = time_s("ring", kind, grid(m, k), "closed", size=FEW)
    assert closed - latency_s - NS <= stepwise <= closed + NIC_LATENCY + LATE


CLUSTERS = {"one node": one_node(5), "two nodes": grid(2, 4), "five nodes": grid(5, 3)}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("pieces", [1, 2, 7, 32])
@pytest.mark.parametrize("where", CLUSTERS)
@pytest.mark.parametrize("name, kind", PIPELINED)
def test_the_closed_form_in_pieces_is_that_of_the_messages(name: str, kind: str, where: str, pieces: int) -> None:
    cluster = CLUSTERS[where]
    of_one, of_all = (time_s(name, kind, cluster, fidelity, pieces) for fidelity in ("stepwise", "closed"))
    assert -RATE * of_all <= of_one - of_all <= LATE


@pytest.mark.thinned(4)
@pytest.mark.parametrize("where", CLUSTERS)
@pytest.mark.parametrize("name, kind", PIPELINED)
def test_ever_finer_pieces_come_to_the_limit_as_one_over_their_number(name: str, kind: str, where: str) -> None:
    limit_s = time_s(name, kind, CLUSTERS[where], "closed")
    over_s = [(time_s(name, kind, CLUSTERS[where], "closed", pieces) - limit_s) * pieces for pieces in (64, 512, 4096)]
    assert over_s == pytest.approx([over_s[0]] * 3, abs=5000 * NS)
    assert over_s[0] > -NS, "and never beat what the busiest link needs"


@pytest.mark.parametrize("name, kind", PIPELINED)
def test_every_piece_goes_through_every_round_once(name: str, kind: str) -> None:
    rounds = MODULES[name].rounds(kind, np.repeat(np.arange(3), 4))
    for pieces in (1, 2, 3, 50):
        carried = sum((wire_fraction(together) * ticks for together, ticks in windows(rounds, pieces)), start=0)
        assert carried == wire_fraction(rounds) * pieces
        assert sum(ticks for _, ticks in windows(rounds, pieces)) == steps(rounds) + pieces - 1
    assert list(windows(rounds, None)) == [(tuple(rounds), 1)]
    assert list(windows((), 4)) == []


ON_RAILS = sim.cluster("dgx-h100", nodes=2)


@pytest.mark.parametrize("algorithm", ["auto", "tree", "nvls", "nvls_tree", "hierarchical_pipelined"])
@pytest.mark.parametrize("size", [2**16, 2**30])
def test_on_measured_links_too_fewer_pieces_take_longer(algorithm: str, size: int) -> None:
    def taken_s(pieces: int | None, fabric: Fabric | None = ON_RAILS.fabric) -> float:
        cluster = replace(ON_RAILS, fabric=fabric)
        (row,) = time_collective("all_reduce", cluster, [size], algorithm=algorithm, pieces=pieces)
        assert row.provenance == "theoretical"
        return row.time_s

    times = [taken_s(pieces) for pieces in (1, 2, 8, 64, None)]
    assert all(one > other for one, other in pairwise(times)) or size == 2**16
    assert times == sorted(times, reverse=True)
    assert times[-2] == pytest.approx(times[-1], rel=0.02)
    if size == 2**30 and algorithm != "auto":
        bare = [taken_s(pieces, IDEAL) for pieces in (1, 8)]
        assert times[0] > bare[0] * 1.02, "not what bare links take"
        assert times[2] > bare[1] * 1.02


def test_one_piece_takes_the_rounds_one_after_the_other_on_measured_links_too() -> None:
    size = 2**30
    cut, whole = (
        time_collective("all_reduce", ON_RAILS, [size], algorithm=name, pieces=pieces)[0].time_s
        for name, pieces in (("hierarchical_pipelined", 1), ("hierarchical", None))
    )
    assert cut == pytest.approx(whole, rel=1e-6)


def test_a_measured_time_that_is_cut_is_extrapolated() -> None:
    box = sim.cluster("dgx-h100", nodes=1)

    def in_pieces(algorithm: str) -> list[Timed]:
        return [time_collective("all_reduce", box, [2**26], algorithm=algorithm, pieces=pieces)[0] for pieces in (None, 4)]

    plain, cut = in_pieces("tree")
    assert cut.provenance == plain.provenance == "theoretical", "in a node no library took a tree"
    assert cut.time_s > plain.time_s
    whole, alike = in_pieces("nvls")
    assert whole.provenance == "interpolated"
    assert whole == alike, "one switch does all at once, in however many pieces"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("pieces", [None, 1, 5])
@pytest.mark.parametrize("name, kind", ALGORITHMS)
def test_messages_are_counted_before_they_are_written(
    name: str, kind: str, pieces: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are written, and one too many is refused before the first."""
    if not taken(MODULES[name], kind, [0] * 4 + [1] * 4) or (pieces and (name, kind) not in PIPELINED):
        return
    written: list[int] = []
    passed_on, at_once = stepwise._Messages._add_round, stepwise._Messages._add_simultaneous

    def passing(self: Any, messages: Any, repeats: int, first: Any) -> list[int]:
        written.append(len(messages) * repeats)
        return passed_on(self, messages, repeats, first)

    def sending(self: Any, *what: Any) -> list[int]:
        sent = at_once(self, *what)
        written.append(len(sent))
        return sent

    def take() -> None:
        time_s(name, kind, grid(2, 4), "stepwise", pieces)

    monkeypatch.setattr(stepwise._Messages, "_add_round", passing)
    monkeypatch.setattr(stepwise._Messages, "_add_simultaneous", sending)
    take()
    there = sum(written)
    counted: list[stepwise.Counts] = []
    edges: list[dict[Any, int]] = []
    write = stepwise._Messages.build

    def writing(self: Any) -> Any:
        counted.append(self.counts())
        edges.append(self.edges)
        return write(self)

    monkeypatch.setattr(stepwise._Messages, "build", writing)
    take()
    assert [(counts.messages, counts.edges, counts.collectives) for counts in counted] == [(there, len(edges[0]), 1)]
    monkeypatch.setattr(estimated_effort, "MOST_S", 0)
    monkeypatch.setattr(estimated_effort, "of_collective", lambda *_: estimated_effort.Effort())
    monkeypatch.setattr(estimated_effort, "of_exchange", lambda *_, **__: estimated_effort.Effort())
    monkeypatch.setattr(stepwise._Messages, "_add_task", lambda *_: pytest.fail("wrote a message"))
    with pytest.raises(UserError, match=f"{there:,} messages of stepwise would take about"):
        take()


def test_a_ring_over_a_thousand_is_refused_at_once() -> None:
    """Its 2 x 1,023 steps of 1,024 messages through each of the 8 NICs of a node."""
    with pytest.raises(UserError, match=f"{8 * 2 * 1023 * 1024:,} messages"):
        time_collective("all_reduce", replace(ON_RAILS, nodes=128), [8], algorithm="ring", fidelity="stepwise")


def test_pieces_on_the_command_line() -> None:
    asked = ["collective", "all_reduce", "--cluster", "dgx-h100", "--gpus", "16", "-b", "64M", "-e", "64M", "--algorithm", "tree"]
    fluid, one, few = (
        trainsim(*asked, "--fidelity", "stepwise", *more, "--json").record["rows"][0]["time_us"]
        for more in ([], ["--pieces", "1"], ["--pieces", "16"])
    )
    assert fluid < few < one
    assert trainsim(*asked, "--pieces", "0").code == 2


@pytest.mark.parametrize(("kind", "algorithm"), [("all_reduce", "ring"), ("all_reduce", "hierarchical"), ("alltoall", "auto")])
def test_what_cuts_no_payload_refuses_pieces(kind: str, algorithm: str) -> None:
    asked = ["collective", kind, "--cluster", "dgx-h100", "--gpus", "16", "-b", "1M", "-e", "1M", "--algorithm", algorithm]
    refused = trainsim(*asked, "--pieces", "4")
    assert refused.code == 2
    assert "cuts no payload into pieces" in refused.err
    assert trainsim(*asked).code == 0


UNLIKE = [
    (nics, per_node, nodes, shape, latency)
    for per_node, nics in ((1, 1), (2, 1), (2, 2), (4, 2), (8, 1), (8, 8))
    for nodes in ((1, 2, 3) if per_node < 8 else (1, 2))
    for shape in ("leaf-spine", "rail-optimized")
    for latency in ("500 ns", "10 us")
    if per_node * nodes > 1 and (nodes > 1 or (nics, shape, latency) == (1, "leaf-spine", "500 ns"))
]
"""NICs of a node and its GPUs, nodes, shape of the network, latency of a NIC: hops that are alike, and hops that are not."""
RING_TOLERANCE = 0.2


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "kind", ["all_reduce", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("all_gather", "broadcast"))]
)
@pytest.mark.parametrize("nics, per_node, nodes, shape, latency", UNLIKE)
def test_t7_9_a_ring_over_unequal_hops_is_as_long_as_its_messages(
    nics: int, per_node: int, nodes: int, shape: str, latency: str, kind: str
) -> None:
    """Small and large payloads, and those between whose bytes take as long as the latencies: within a fifth."""
    cluster = sim.cluster({
        "gpu": "h100", "gpus_per_node": per_node, "nodes": nodes, "intra_node": "NVSwitch 450 GB/s",
        "inter_node": f"{nics}x400 Gbit/s", "shape": shape, "pcie": "500 GB/s", "fabric": "ideal",
        "latency": {"nvlink": "500 ns", "pcie": "0 ns", "nic": latency, "switch": "0 ns"},
    })  # fmt: skip
    for size in (10**3, 10**6, 10**7, 10**8):
        fluid, each = (
            time_collective(kind, cluster, [size], algorithm="ring", fidelity=fidelity)[0].time_s
            for fidelity in ("fluid", "stepwise")
        )
        assert fluid == pytest.approx(each, rel=RING_TOLERANCE), size
        if per_node == 1:
            assert fluid == pytest.approx(each, abs=2e-6, rel=0.01), "no ring beside it: nothing is estimated"


@pytest.mark.parametrize("kind, turns", [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)])
def test_t7_9_the_hops_of_a_piece_follow_its_own_rail(kind: str, turns: int) -> None:
    """A ring on every rail crosses to the other site and back in a turn; eight rails beside one another do not add up."""
    cluster = sim.cluster("two-sites-h100", nodes=8)
    fluid, each = (
        time_collective(kind, cluster, [10**6], algorithm="hierarchical", fidelity=fidelity)[0].time_s
        for fidelity in ("fluid", "stepwise")
    )
    assert fluid == pytest.approx(each, rel=0.01)
    assert fluid == pytest.approx(turns * 10e-3, rel=0.01)


@pytest.mark.parametrize("repeats, most", [(1, 8), (2, 12), (3, 14), (4, 15), (7, 29), (9, 38)])
def test_consecutive_hops_are_those_that_follow_one_another(repeats: int, most: int) -> None:
    """A ring of hops of 1, 2, 4 and 8, the last of which is followed by the first, and an open chain of 8 and 4, mixed up."""
    source, target = np.array([0, 4, 1, 5, 2, 3]), np.array([1, 5, 2, 6, 3, 0])
    hops = np.array([[1.0, 8.0, 2.0, 4.0, 4.0, 8.0]])
    assert _longest(hops, _onward(Edges.of(source, target)), repeats).tolist() == [most]


def test_a_ring_with_one_nic_a_node() -> None:
    """Bytes on the slow hop pass while latencies elsewhere do: 78.75 and 746 us were their sum."""
    bare = {"nvlink": "500 ns", "pcie": "0 ns", "nic": "2 us", "switch": "0 ns"}
    slow = {"gpu": "h100", "gpus_per_node": 8, "intra_node": "NVSwitch 450 GB/s", "inter_node": "1x400 Gbit/s", "latency": bare}
    for nodes, size, each_us in ((2, 10**6, 48.6), (16, 10**7, 407.6)):
        cluster = sim.cluster({**slow, "nodes": nodes, "shape": "leaf-spine", "pcie": "500 GB/s", "fabric": "ideal"})
        found = time_collective("all_reduce", cluster, [size], algorithm="ring")[0].time_s
        assert found == pytest.approx(each_us * 1e-6, rel=0.04)


def test_the_command_says_that_stepwise_knows_nothing_measured() -> None:
    asked = ["collective", "all_reduce", "--cluster", "dgx-h100", "--gpus", "8", "-b", "1M", "-e", "1M", "--json"]
    told, silent = trainsim(*asked, "--fidelity", "stepwise"), trainsim(*asked)
    assert "nominal bandwidths and latencies" in told.err
    assert told.record["rows"]
    assert silent.err == ""
