"""Closed forms of every algorithm, twice: by the rule of the docstring, and through binding and the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, log2
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.collectives import Edges, Round, joined
from simulator.config import catalog
from simulator.config.fabric_files import IDEAL
from simulator.costs.collectives.theory import tree_load
from simulator.errors import OutsideDomain, UserError
from simulator.hardware.cluster import Cluster
from simulator.study.collective import spread

from ..commandline import trainsim
from ..fabrics.uncontended import BANDWIDTH, LATENCY, makespan_s, many_nodes, one_node, uncontended_s
from ..small_scenarios import time_collective

MODULES: dict[str, ModuleType] = {name: catalog.module("collectives", name) for name in catalog.files("collectives")}
S = 2**28
"""Bytes of payload."""
TOLERANCE = 1e-6
WEIGHT_TOLERANCE = 2.0**-15
"""Where links are shared, weights count: they are rounded to 2^-16."""
Form = Callable[[int, float, float], float]
"""Seconds of a collective over n ranks, given the latency a of a message and the seconds t that S bytes take on a link."""


def all_reduced_by_halves(n: int, a: float, t: float) -> float:
    whole = 2 ** int(log2(n))
    return 2 * log2(whole) * a + 2 * (whole - 1) / whole * t + (0 if n == whole else 2 * (a + t))


def all_reduced_by_doubling(n: int, a: float, t: float) -> float:
    whole = 2 ** int(log2(n))
    return log2(whole) * (a + t) + (0 if n == whole else 2 * (a + t))


def with_bit(n: int, bit: int) -> int:
    return sum(1 for i in range(n) if i & bit)


FORMS: dict[tuple[str, str], Form] = {
    ("ring", "all_reduce"): lambda n, a, t: 2 * (n - 1) * (a + t / n),
    ("ring", "reduce_scatter"): lambda n, a, t: (n - 1) * (a + t / n),
    ("ring", "all_gather"): lambda n, a, t: (n - 1) * (a + t / n),
    ("ring", "broadcast"): lambda n, a, t: (n - 1) * a + t,
    ("direct", "all_reduce"): lambda n, a, t: 2 * (a + (n - 1) / n * t),
    ("direct", "reduce_scatter"): lambda n, a, t: a + (n - 1) / n * t,
    ("direct", "all_gather"): lambda n, a, t: a + (n - 1) / n * t,
    ("direct", "alltoall"): lambda n, a, t: a + (n - 1) / n * t,
    ("pairwise", "alltoall"): lambda n, a, t: (n - 1) * (a + t / n),
    ("bruck", "alltoall"): lambda n, a, t: sum(a + with_bit(n, 1 << r) / n * t for r in range(ceil(log2(n)))),
    ("bruck", "all_gather"): lambda n, a, t: ceil(log2(n)) * a + (n - 1) / n * t,
    ("halving_doubling", "all_reduce"): all_reduced_by_halves,
    ("halving_doubling", "reduce_scatter"): lambda n, a, t: log2(n) * a + (n - 1) / n * t,
    ("halving_doubling", "all_gather"): lambda n, a, t: log2(n) * a + (n - 1) / n * t,
    ("recursive_doubling", "all_reduce"): all_reduced_by_doubling,
    ("binomial", "broadcast"): lambda n, a, t: ceil(log2(n)) * (a + t),
    ("tree", "all_reduce"): lambda n, a, t: 2 * ceil(log2(n)) * a + {2: 1, 3: 1.5}.get(n, 2) * t,
    ("tree", "broadcast"): lambda n, a, t: (ceil(log2(n - 1)) + 1) * a + t,
    ("hierarchical", "all_reduce"): lambda n, a, t: 2 * (n - 1) * (a + t / n),
    ("hierarchical", "reduce_scatter"): lambda n, a, t: (n - 1) * (a + t / n),
    ("hierarchical", "all_gather"): lambda n, a, t: (n - 1) * (a + t / n),
    ("hierarchical", "alltoall"): lambda n, a, t: a + (n - 1) / n * t,
    ("hierarchical_pipelined", "all_reduce"): lambda n, a, t: 2 * (n - 1) * (a + t / n),
    ("hierarchical_pipelined", "reduce_scatter"): lambda n, a, t: (n - 1) * (a + t / n),
    ("hierarchical_pipelined", "all_gather"): lambda n, a, t: (n - 1) * (a + t / n),
    ("nvls", "all_reduce"): lambda n, a, t: 2 * a + (n + 1) / n * t,
    ("nvls", "reduce_scatter"): lambda n, a, t: a + t,
    ("nvls", "all_gather"): lambda n, a, t: a + t,
    ("nvls_tree", "all_reduce"): lambda n, a, t: 2 * a + (n + 1) / n * t,
    ("sharp", "all_reduce"): lambda n, a, t: 2 * (a + (n - 1) / n * t),
    ("sharp", "reduce_scatter"): lambda n, a, t: a + (n - 1) / n * t,
    ("sharp", "all_gather"): lambda n, a, t: a + (n - 1) / n * t,
    ("point_to_point", "sendrecv"): lambda n, a, t: a + t,
    ("point_to_point", "exchange"): lambda n, a, t: a + t,
}
SIZES = (2, 3, 4, 5, 6, 7, 8, 12, 16, 17)


def taken(module: ModuleType, kind: str, nodes: Sequence[int]) -> bool:
    return bool(module.takes(kind, np.array(nodes))) if hasattr(module, "takes") else True


CASES = [
    pytest.param(name, kind, n, id=f"{name} {kind} of {n}")
    for name, kind in FORMS
    for n in SIZES
    if taken(MODULES[name], kind, [0] * n) and (kind != "sendrecv" or n == 2)
]


def by_the_rule(module: ModuleType, rounds: Sequence[Round], n: int, a: float, t: float) -> float:
    """The docstring's rule where all messages have one latency and every rank one link out and one in."""

    def busiest(parts: Sequence[tuple[Edges, float]]) -> float:
        out, into = np.zeros(n), np.zeros(n)
        for edges, factor in parts:
            np.add.at(out, edges.source, edges.share * factor)
            np.add.at(into, edges.target, edges.share * factor)
        return float(max(out.max(), into.max()))

    latency = sum(r.repeats for r in rounds) * a
    if getattr(module, "PIPELINED", False):
        return latency + busiest([(r.edges, float(r.fraction * r.repeats)) for r in rounds]) * t
    return latency + sum(busiest([(r.edges, float(r.fraction * r.repeats))]) for r in rounds) * t


def test_there_is_a_form_for_every_algorithm() -> None:
    assert set(FORMS) == {(name, kind) for name, module in MODULES.items() for kind in module.KINDS}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name, kind, n", CASES)
def test_closed_form_by_the_rule(name: str, kind: str, n: int) -> None:
    rounds = MODULES[name].rounds(kind, np.zeros(n, dtype=int))
    a, t = LATENCY, S / BANDWIDTH
    assert by_the_rule(MODULES[name], rounds, n, a, t) == pytest.approx(FORMS[name, kind](n, a, t), rel=1e-12)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name, kind, n", CASES)
def test_closed_form_through_the_engine(name: str, kind: str, n: int) -> None:
    expected = FORMS[name, kind](n, LATENCY, S / BANDWIDTH)
    assert uncontended_s(MODULES[name], kind, S, one_node(n)) == pytest.approx(expected, rel=TOLERANCE)


NIC_LATENCY, NIC_BANDWIDTH = 10e-6, BANDWIDTH / 20
GRIDS = ((2, 8), (4, 4), (8, 2), (5, 3), (6, 1))
T, T_NIC = S / BANDWIDTH, S / NIC_BANDWIDTH


def in_two_layers(m: int, k: int) -> float:
    """A scatter, or a gather, inside nodes and along rails."""
    return (k - 1) * (LATENCY + T / k) + (m - 1) * (NIC_LATENCY + T_NIC / (k * m))


def layers_at_once(m: int, k: int) -> float:
    """The same, both layers at once."""
    return (k - 1) * LATENCY + (m - 1) * NIC_LATENCY + max((k - 1) / k * T, (m - 1) / (k * m) * T_NIC)


def ring_over_nodes(m: int, k: int) -> float:
    """Twice around, but for two hops: at each, the latency and what it carries; or all bytes of the busiest link and a latency.

    Of the k rings a GPU sends k - 1 to its neighbour and hands one over to its rail, each with 1/k of the bytes of a step; away
    from the busiest link a ring is taken to have half of what the others leave it.
    """
    near_s, far_s = LATENCY * (k > 1), NIC_LATENCY + LATENCY * (k > 1)
    busiest = max(T * (k > 1), T_NIC / k)
    near, far = ((x if x == busiest else (x + alone) / 2) for x, alone in ((T, T / k), (max(T * (k > 1), T_NIC / k), T_NIC / k)))
    hops = [(near_s, near)] * (k - 1) + [(far_s, far)]
    left_out = (hops * 2)[:2]
    around_s = 2 * m * sum(s for s, _ in hops) - sum(s for s, _ in left_out)
    carried = 2 * m * sum(b for _, b in hops) - sum(b for _, b in left_out)
    return max(around_s + carried / (m * k), 2 * (m * k - 1) / (m * k) * busiest + far_s)


OVER_NODES: dict[tuple[str, str], Callable[[int, int], float]] = {
    ("hierarchical", "all_reduce"): lambda m, k: 2 * in_two_layers(m, k),
    ("hierarchical", "reduce_scatter"): in_two_layers,
    ("hierarchical", "all_gather"): in_two_layers,
    ("hierarchical", "alltoall"): lambda m, k: (LATENCY if k > 1 else 0) + (k - 1) / k * T + NIC_LATENCY + (m - 1) / m * T_NIC,
    ("hierarchical_pipelined", "all_reduce"): lambda m, k: 2 * layers_at_once(m, k),
    ("hierarchical_pipelined", "reduce_scatter"): layers_at_once,
    ("hierarchical_pipelined", "all_gather"): layers_at_once,
    ("direct", "alltoall"): lambda m, k: NIC_LATENCY + (LATENCY if k > 1 else 0) + (m - 1) / m * T_NIC,
    ("ring", "all_reduce"): ring_over_nodes,
    ("nvls", "all_reduce"): lambda m, k: (
        2 * (k > 1) * LATENCY + 2 * (m - 1) * NIC_LATENCY + max((k > 1) * (k + 1) / k * T, 2 * (m - 1) / (m * k) * T_NIC)
    ),
    ("nvls", "all_gather"): lambda m, k: (k > 1) * LATENCY + (m - 1) * NIC_LATENCY + max((k > 1) * T, (m - 1) / (m * k) * T_NIC),
    ("nvls_tree", "all_reduce"): lambda m, k: (
        2 * (k > 1) * LATENCY + 2 * ceil(log2(m)) * NIC_LATENCY + max((k > 1) * (k + 1) / k * T, tree_load(m) / k * T_NIC)
    ),
    ("tree", "all_reduce"): lambda m, k: (
        2 * (k - 1) * LATENCY + 2 * ceil(log2(m)) * NIC_LATENCY + max(2 * (k - 1) / k * T, tree_load(m) / k * T_NIC)
    ),
    ("tree", "broadcast"): lambda m, k: (
        2 * (k - 1) * LATENCY + (ceil(log2(m - 1)) + 1) * NIC_LATENCY + max((k > 1) * T, T_NIC / k)
    ),
    ("sharp", "all_reduce"): lambda m, k: 2 * (k > 1) * LATENCY + NIC_LATENCY + max(2 * (k - 1) / k * T, T_NIC / k),
}
"""Seconds over m nodes of k ranks, each rank with a NIC; relays over NVLink where the target sits on another rail."""


def grid(m: int, k: int) -> Cluster:
    return many_nodes(m, k, NIC_LATENCY, NIC_BANDWIDTH)


@pytest.mark.parametrize("m, k", GRIDS, ids=str)
@pytest.mark.parametrize("name, kind", OVER_NODES)
def test_closed_form_over_nodes(name: str, kind: str, m: int, k: int) -> None:
    assert uncontended_s(MODULES[name], kind, S, grid(m, k)) == pytest.approx(OVER_NODES[name, kind](m, k), rel=TOLERANCE)


def loads(name: str, kind: str, nodes: Sequence[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Payloads that each rank sends to, and receives from, ranks of other nodes."""
    rounds = MODULES[name].rounds(kind, np.array(nodes))
    edges = joined([(r.edges, float(r.fraction * r.repeats)) for r in rounds])
    node = np.array(nodes)
    away = node[edges.source] != node[edges.target]
    out, into = (np.bincount(end[away], edges.share[away], len(nodes)) for end in (edges.source, edges.target))
    return out, into


class TestBytes:
    """What algorithms spend, where the battery only says what they must."""

    @pytest.mark.parametrize("n", SIZES)
    @pytest.mark.parametrize(
        "name, kind, payloads",
        [
            *((name, "all_reduce", 2) for name in ("ring", "direct", "tree", "halving_doubling", "hierarchical")),
            *((name, kind, 1) for name in ("ring", "direct", "hierarchical") for kind in ("reduce_scatter", "all_gather")),
            *((name, "alltoall", 1) for name in ("direct", "pairwise", "hierarchical")),
            *((name, "broadcast", 1) for name in ("ring", "tree", "binomial")),
            ("bruck", "all_gather", 1),
        ],
    )
    def test_none_is_wasted(self, name: str, kind: str, payloads: int, n: int) -> None:
        """Each is sent n - 1 times, all ranks together, and not once more; twice that for an all-reduce."""
        out, _ = loads(name, kind, range(n))
        assert out.sum() == pytest.approx(payloads * (n - 1))

    @pytest.mark.parametrize("m, k", [(2, 8), (4, 4), (3, 5), (1, 6)])
    @pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
    def test_trees_over_nodes_waste_nothing(self, kind: str, m: int, k: int) -> None:
        rounds = MODULES["tree"].rounds(kind, np.repeat(np.arange(m), k))
        total = sum(float(r.fraction * r.repeats) * r.edges.share.sum() for r in rounds)
        assert total == pytest.approx((2 if kind == "all_reduce" else 1) * (m * k - 1))

    @pytest.mark.parametrize("n", [*range(2, 40), 1024, 1000])
    def test_no_rank_is_between_others_in_both_trees(self, n: int) -> None:
        """So the busiest sends what closed forms say for an all-reduce, and no more than the payload for a broadcast."""
        for kind, most in (("all_reduce", tree_load(n)), ("broadcast", 1.0)):
            out, into = loads("tree", kind, range(n))
            assert max(out.max(), into.max()) == pytest.approx(most)
            assert len(MODULES["tree"].rounds(kind, np.arange(n))) <= 2 * ceil(log2(n)) + (n == 2)

    def test_bruck_sends_each_byte_as_often_as_its_way_has_ones(self) -> None:
        for n in SIZES:
            out, _ = loads("bruck", "alltoall", range(n))
            assert out == pytest.approx([sum(bin(way).count("1") for way in range(n)) / n] * n)

    @pytest.mark.parametrize("name", ["ring", "direct", "bruck", "hierarchical", "nvls", "sharp"])
    def test_turned_by_a_node_everything_is_as_it_was(self, name: str) -> None:
        module, nodes, k = MODULES[name], np.repeat(np.arange(4), 2), 2
        for kind in set(module.KINDS) - {"broadcast"}:
            for r in module.rounds(kind, nodes):
                triples = [*zip(r.edges.source.tolist(), r.edges.target.tolist(), r.edges.share.tolist(), strict=True)]
                assert sorted(((s + k) % 8, (t + k) % 8, share) for s, t, share in triples) == sorted(triples)


class TestPhysics:
    """What no network can do, and what a good algorithm does on one."""

    @pytest.mark.parametrize("name", [name for name, module in MODULES.items() if "alltoall" in module.KINDS])
    @pytest.mark.parametrize("m, k", [(2, 8), (4, 4), (8, 2), (6, 1)])
    def test_no_all_to_all_beats_the_nics(self, name: str, m: int, k: int) -> None:
        """Of what a rank holds, (m - 1)/m is for other nodes, and each NIC has one rank's worth to carry."""
        assert uncontended_s(MODULES[name], "alltoall", S, grid(m, k)) >= (m - 1) / m * T_NIC + NIC_LATENCY

    @pytest.mark.parametrize("pieces", [1, 2, 8, 64])
    @pytest.mark.parametrize("name, kind", [("ring", "all_reduce"), ("tree", "all_reduce"), ("direct", "alltoall")])
    def test_no_chunking_beats_the_bandwidth(self, name: str, kind: str, pieces: int) -> None:
        """In a row or all at once, pieces take together what the bytes take; latency is paid in a row for every piece."""
        module, cluster, n = MODULES[name], one_node(8), 8
        bytes_s = FORMS[name, kind](n, 0.0, 64 * T)
        latency_s = FORMS[name, kind](n, LATENCY, 0.0)
        in_a_row = makespan_s(module, kind, cluster, [[64 * S // pieces] * pieces])
        at_once = makespan_s(module, kind, cluster, [[64 * S // pieces]] * pieces)
        assert in_a_row == pytest.approx(bytes_s + pieces * latency_s, rel=TOLERANCE)
        assert at_once == pytest.approx(bytes_s + latency_s, rel=WEIGHT_TOLERANCE)

    def test_two_collectives_at_once_take_as_long_as_one_after_the_other_but_for_latency(self) -> None:
        for name, kind in FORMS:
            if kind != "sendrecv":
                both = makespan_s(MODULES[name], kind, one_node(4), [[S], [S]])
                assert both >= 2 * FORMS[name, kind](4, 0.0, T) * busy_fraction(name, kind, 4) * (1 - TOLERANCE), name

    def test_a_message_is_cut_through(self) -> None:
        """Over any number of hops, latencies add up and the bytes are paid once, on the slowest link."""
        module = MODULES["point_to_point"]
        assert uncontended_s(module, "sendrecv", S, one_node(2)) == pytest.approx(LATENCY + T, rel=TOLERANCE)
        assert uncontended_s(module, "sendrecv", S, grid(2, 1)) == pytest.approx(NIC_LATENCY + T_NIC, rel=TOLERANCE)

    @pytest.mark.parametrize("m, k", [(2, 8), (4, 8), (8, 4)])
    def test_a_hierarchical_all_reduce_sends_less_through_nics_than_flat_rings(self, m: int, k: int) -> None:
        """Per NIC 2(m - 1)/(mk) of the payload instead of 2(n - 1)/(nk): with TP 16 over two nodes of eight 1/8, not 15/64.

        A single ring through one NIC of each node would put 2(n - 1)/n on it, k times as much.
        """
        n, nodes = m * k, np.repeat(np.arange(m), k)
        flat, layered = loads("ring", "all_reduce", nodes)[0], loads("hierarchical", "all_reduce", nodes)[0]
        assert layered == pytest.approx([2 * (m - 1) / (m * k)] * n)
        assert flat == pytest.approx([2 * (n - 1) / (n * k)] * n)
        assert (layered < flat).all()
        if (m, k) == (2, 8):
            assert (layered[0], flat[0]) == pytest.approx((1 / 8, 15 / 64))
        times = [uncontended_s(MODULES[name], "all_reduce", S, many_nodes(m, k, LATENCY, BANDWIDTH / 1000)) for name in BOTH]
        assert times[1] < times[0] * (m - 1) / m * n / (n - 1) * 1.02, "where NICs bind it is faster by as much"

    def test_sharp_takes_as_long_on_many_nodes_as_on_few(self) -> None:
        times = [uncontended_s(MODULES["sharp"], "all_reduce", S, grid(m, 4)) for m in (2, 4, 16)]
        assert times == pytest.approx([times[0]] * 3, rel=TOLERANCE)
        assert times[2] < uncontended_s(MODULES["tree"], "all_reduce", S, grid(16, 4)) * 0.55

    def test_nvls_spends_nine_eighths_where_a_ring_of_eight_spends_fourteen(self) -> None:
        ring, nvls = (uncontended_s(MODULES[name], "all_reduce", 64 * S, one_node(8)) for name in ("ring", "nvls"))
        assert ring / nvls == pytest.approx(14 / 9, rel=1e-3)

    def test_small_payloads_want_few_steps_and_large_ones_few_bytes(self) -> None:
        def fastest(kind: str, size: int, names: tuple[str, ...]) -> str:
            return min(names, key=lambda name: uncontended_s(MODULES[name], kind, size, one_node(16)))

        sums = ("ring", "recursive_doubling", "halving_doubling")
        assert [fastest("all_reduce", size, sums) for size in (64, 2**28)] == ["recursive_doubling", "halving_doubling"]
        swaps = ("pairwise", "bruck")
        assert [fastest("alltoall", size, swaps) for size in (64, 2**28)] == ["bruck", "pairwise"]
        equal = LATENCY * (15 - 4) / ((4 / 2 - 15 / 16) / BANDWIDTH)
        assert [fastest("alltoall", round(equal * x), swaps) for x in (0.99, 1.01)] == ["bruck", "pairwise"]

    def test_hierarchical_all_to_all_sends_as_many_bytes_in_fewer_messages(self) -> None:
        nodes = np.repeat(np.arange(4), 8)
        assert loads("hierarchical", "alltoall", nodes)[0] == pytest.approx(loads("direct", "alltoall", nodes)[0])
        messages = [
            sum(int((nodes[r.edges.source] != nodes[r.edges.target]).sum()) for r in MODULES[name].rounds("alltoall", nodes))
            for name in ("hierarchical", "direct")
        ]
        assert messages == [32 * 3, 32 * 24]


BOTH = ("ring", "hierarchical")


def busy_fraction(name: str, kind: str, n: int) -> float:
    """Of the time that the bytes of a collective take alone, how long its busiest link is busy."""
    module = MODULES[name]
    edges = joined([(r.edges, float(r.fraction * r.repeats)) for r in module.rounds(kind, np.zeros(n, dtype=int))])
    busiest = max(np.bincount(end, edges.share, n).max() for end in (edges.source, edges.target))
    return float(busiest) / FORMS[name, kind](n, 0.0, 1.0)


def test_a_group_with_uneven_nodes_is_refused_in_words() -> None:
    for name in ("hierarchical", "nvls", "nvls_tree", "sharp"):
        assert not taken(MODULES[name], "all_reduce", [0, 0, 1])
        with pytest.raises(UserError, match="different numbers"):
            MODULES[name].rounds("all_reduce", np.array([0, 0, 1]))


@pytest.mark.parametrize("nodes", [[0, 1, 0, 1], [0, 1, 0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 0, 0]])
def test_ranks_of_a_node_that_are_not_side_by_side_are_no_grid(nodes: list[int]) -> None:
    """As a placement may have it. Every edge is between ranks of the group, whatever the algorithm."""
    group, served = np.array(nodes), set()
    for (name, module), kind in product(MODULES.items(), ("all_reduce", "all_gather", "reduce_scatter", "alltoall")):
        if kind in module.KINDS and (not hasattr(module, "takes") or module.takes(kind, group)):
            edges = [r.edges for r in module.rounds(kind, group)]
            assert max(int(max(of.source.max(), of.target.max())) for of in edges) == len(nodes) - 1
            served.add((name, kind))
    assert {("ring", "all_reduce"), ("ring", "all_gather"), ("tree", "all_reduce"), ("direct", "alltoall")} <= served
    assert ("hierarchical", "all_reduce") not in served


def test_halves_need_a_power_of_two() -> None:
    module = MODULES["halving_doubling"]
    assert [taken(module, kind, [0] * 6) for kind in module.KINDS] == [True, False, False]
    assert all(taken(module, kind, [0] * 8) for kind in module.KINDS)


class TestRefusals:
    """An algorithm that was asked for is the one that runs, or none is."""

    @pytest.mark.parametrize(
        "kind, name, gpus, hint",
        [
            ("alltoall", "tree", 8, "bruck, direct, hierarchical, pairwise"),
            ("reduce_scatter", "halving-doubling", 12, "--gpus 8"),
            ("all_gather", "halving_doubling", 12, "ring"),
            ("broadcast", "nvls", 8, "binomial, ring, tree"),
            ("sendrecv", "ring", 8, "point_to_point"),
            ("sendrecv", "ring", 8, "ring does no sendrecv"),
        ],
    )
    def test_what_cannot_serve_a_kind_is_refused(self, kind: str, name: str, gpus: int, hint: str) -> None:
        nodes = 2 if gpus > 8 else 1
        ran = trainsim("collective", kind, "--cluster", "dgx-h100", "--gpus", gpus, "--nodes", nodes, "--algorithm", name)
        assert ran.code == 2
        assert hint in ran.err
        assert name.replace("-", "_") in ran.err

    @pytest.mark.parametrize(
        "cluster, name, nodes, hint",
        [
            ("dgx-a100", "nvls", 1, "those of aws-p5"),
            ("dgx-a100", "nvls-tree", 2, "fabric: ideal"),
            ("dgx1-v100", "nvls", 2, "nvls_efficiency under inside:"),
            ("polaris", "nvls", 1, "nvls_efficiency under inside:"),
            ("l40s-pcie", "sharp", 1, "nvls_efficiency under inside:"),
            ("gcp-a3-mega", "nvls", 2, "dgx-h100"),
            ("aws-p5", "sharp", 2, "sharp: true under across:"),
        ],
    )
    def test_switches_that_do_not_add_up_are_not_asked_to(self, cluster: str, name: str, nodes: int, hint: str) -> None:
        ran = trainsim("collective", "all_reduce", "--cluster", cluster, "--nodes", nodes, "--algorithm", name)
        assert ran.code == 2
        assert hint in ran.err
        assert f"{cluster} is not known to have them for {nodes} node" in ran.err

    @pytest.mark.parametrize(
        "cluster, name, nodes",
        [("dgx-h100", "nvls", 4), ("gcp-a3-mega", "nvls", 1), ("gb200-nvl72", "nvls_tree", 2), ("dgx-h100", "sharp", 2)],
    )
    def test_switches_that_do_are(self, cluster: str, name: str, nodes: int) -> None:
        (row,) = time_collective("all_reduce", sim.cluster(cluster, nodes=nodes), [S], algorithm=name)
        assert row.algorithm == name

    @pytest.mark.parametrize(
        "cluster, name, gpus, nodes, nearest",
        [
            ("dgx-h100", "nvls", 2, 1, 3),
            ("dgx-h100", "sharp", 2, 1, 3),
            ("dgx-h100", "nvls", 4, 2, 6),
            ("dgx-h100", "nvls_tree", 4, 2, 6),
            ("gb200-nvl72", "nvls", 2, 1, 3),
        ],
    )
    def test_nor_for_fewer_gpus_than_a_library_lets(self, cluster: str, name: str, gpus: int, nodes: int, nearest: int) -> None:
        """What would be printed is a ring's time."""
        asked = ["collective", "all_reduce", "--cluster", cluster, "--nodes", nodes, "--algorithm", name, "-b", 8, "-e", 8]
        ran = trainsim(*asked, "--gpus", gpus)
        assert ran.code == 2
        who = "within one node sharp is nvls, which" if name == "sharp" else name
        assert f"{who} needs 3 GPUs of a node at least" in ran.err
        assert f"--gpus {nearest}" in ran.err
        assert trainsim(*asked, "--gpus", nearest).code == 0
        bare = replace(sim.cluster(cluster, nodes=nodes), fabric=IDEAL)
        members = spread(bare, gpus, nodes)
        assert time_collective("all_reduce", bare, [S], gpus=members, algorithm=name)[0].algorithm == name

    def test_links_at_their_face_value_are_asked_whatever_was_measured_but_not_where_there_is_no_switch(self) -> None:
        for cluster, able in (("dgx-a100", True), ("polaris", False)):
            found = sim.cluster(cluster, nodes=1, fabric="ideal")
            if able:
                assert time_collective("all_reduce", found, [S], algorithm="nvls")[0].algorithm == "nvls"
                continue
            with pytest.raises(OutsideDomain) as caught:
                time_collective("all_reduce", found, [S], algorithm="nvls")
            assert "fabric: ideal" not in str(caught.value.hint)

    def test_a_network_of_which_nobody_says_that_it_is_set_up_for_sharp_is_noted(self) -> None:
        asked = ["collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", 2, "-b", "1M", "-e", "1M", "--json"]
        assert "assumed to be set up for sharp" in trainsim(*asked, "--algorithm", "sharp").err
        assert trainsim(*asked, "--algorithm", "nvls").err == ""

    def test_a_kind_is_called_what_it_is_called_whoever_writes_it(self) -> None:
        ran = trainsim("collective", "All-Gather", "--cluster", "dgx-h100", "--gpus", 8, "-b", "1M", "-e", "1M", "--json")
        assert ran.record["kind"] == "all_gather"

    def test_a_number_of_ranks_that_it_can_serve_is_named(self) -> None:
        with pytest.raises(OutsideDomain) as caught:
            time_collective("all_gather", one_node(12), [S], algorithm="halving_doubling")
        assert caught.value.nearest == {"gpus": 8}
        assert time_collective("all_gather", one_node(8), [S], algorithm="halving_doubling")[0].algorithm == "halving_doubling"
        assert time_collective("all_reduce", one_node(12), [S], algorithm="halving_doubling")[0].algorithm == "halving_doubling"
