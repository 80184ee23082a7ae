"""Every message of every algorithm against the closed forms, and what cutting into pieces does to both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.collectives import steps, windows, wire_fraction
from simulator.hardware.cluster import Cluster
from simulator.study.collective import time_collective

from ..commandline import trainsim
from .alone import BANDWIDTH, LATENCY, many_nodes, one_node
from .test_algorithms import FORMS, MODULES, SIZES, S, grid, taken

ASKED_AS = {"exchange": "sendrecv"}
ALGORITHMS = [(name, kind) for name, kind in FORMS if (name, kind) != ("point_to_point", "sendrecv")]
PIPELINED = [(name, kind) for name, kind in FORMS if getattr(MODULES[name], "PIPELINED", False)]
NS = 1e-9
RATE = 1e-7
"""The rate of a fluid is rounded down to 2^-24 bytes/ns."""


def time_s(name: str, kind: str, cluster: Cluster, fidelity: str, pieces: int | None = None) -> float:
    """Alone on bare links."""
    bare, asked = replace(cluster, fabric="ideal"), ASKED_AS.get(kind, kind)
    return time_collective(asked, bare, [S], algorithm=name, fidelity=fidelity, pieces=pieces)[0].time_s


def messages_in_a_row(name: str, kind: str, nodes: list[int], pieces: int = 1) -> int:
    """Each may end up to a nanosecond late: clocks are whole."""
    return steps(MODULES[name].rounds(kind, np.array(nodes))) + pieces


@pytest.mark.parametrize("name, kind", ALGORITHMS)
def test_its_messages_take_what_the_closed_form_says(name: str, kind: str) -> None:
    for n in SIZES:
        if taken(MODULES[name], kind, [0] * n):
            late_s = time_s(name, kind, one_node(n), "stepwise") - FORMS[name, kind](n, LATENCY, S / BANDWIDTH)
            assert -NS <= late_s <= messages_in_a_row(name, kind, [0] * n) * NS, n


LAYERED = [(name, kind) for name, kind in ALGORITHMS if name in ("hierarchical", "nvls", "nvls_tree", "sharp", "tree")]


@pytest.mark.parametrize("m, k", [(2, 8), (4, 4), (5, 3), (6, 1)])
@pytest.mark.parametrize("name, kind", LAYERED)
def test_over_nodes_too_where_all_messages_of_a_round_are_alike(name: str, kind: str, m: int, k: int) -> None:
    of_one, of_all = time_s(name, kind, grid(m, k), "stepwise"), time_s(name, kind, grid(m, k), "fluid")
    assert -RATE * of_all <= of_one - of_all <= messages_in_a_row(name, kind, np.repeat(range(m), k).tolist()) * NS


@pytest.mark.parametrize("name", ["ring", "direct", "pairwise", "bruck"])
def test_where_messages_of_a_round_differ_the_latencies_are_all_that_differs(name: str) -> None:
    """A ring waits for its slowest message in every step, and the closed form takes the mean."""
    cluster, kind = many_nodes(4, 4), "all_gather" if name == "ring" else "alltoall"
    rounds = steps(MODULES[name].rounds(kind, np.repeat(np.arange(4), 4)))
    of_one, of_all = time_s(name, kind, cluster, "stepwise"), time_s(name, kind, cluster, "fluid")
    assert abs(of_one - of_all) <= rounds * 2 * LATENCY


CLUSTERS = {"one node": one_node(5), "two nodes": grid(2, 4), "five nodes": grid(5, 3)}


@pytest.mark.parametrize("pieces", [1, 2, 7, 32])
@pytest.mark.parametrize("where", CLUSTERS)
@pytest.mark.parametrize("name, kind", PIPELINED)
def test_the_closed_form_in_pieces_is_that_of_the_messages(name: str, kind: str, where: str, pieces: int) -> None:
    cluster = CLUSTERS[where]
    of_one, of_all = (time_s(name, kind, cluster, fidelity, pieces) for fidelity in ("stepwise", "closed"))
    nodes = (np.arange(cluster.gpus) // cluster.gpus_per_node).tolist()
    assert -RATE * of_all <= of_one - of_all <= messages_in_a_row(name, kind, nodes, pieces) * NS


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


def test_pieces_on_the_command_line() -> None:
    asked = ["collective", "all_reduce", "--cluster", "dgx-h100", "--gpus", "16", "-b", "64M", "-e", "64M", "--algorithm", "tree"]
    fluid, one, few = (
        trainsim(*asked, "--fidelity", "stepwise", *more, "--json").record["rows"][0]["time_us"]
        for more in ([], ["--pieces", "1"], ["--pieces", "16"])
    )
    assert fluid < few < one
    assert trainsim(*asked, "--pieces", "0").code == 2
