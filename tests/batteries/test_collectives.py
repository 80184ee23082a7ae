"""Every file in collectives: what must move moves, nobody beats the bandwidth bound, and no rank is better than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from simulator.collectives import Edges, joined, steps, wire_fraction
from simulator.study import catalog

MODULES: dict[str, ModuleType] = {name: catalog.module("collectives", name) for name in catalog.files("collectives")}
MOVED: dict[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda n: Fraction(2 * (n - 1)),
    "reduce_scatter": lambda n: Fraction(n - 1),
    "all_gather": lambda n: Fraction(n - 1),
    "alltoall": lambda n: Fraction(n - 1),
    "broadcast": lambda n: Fraction(n - 1),
    "sendrecv": lambda n: Fraction(min(1, n - 1)),
}
"""Payloads that cross an edge, all ranks together, where no switch reduces or copies."""
ROOTED = {"broadcast", "sendrecv"}
"""Kinds in which one rank is not like the others."""
LAYOUTS = {
    "one rank": [0],
    "two in a node": [0, 0],
    "eight in a node": [0] * 8,
    "seven in a node": [0] * 7,
    "one in each of four nodes": [0, 1, 2, 3],
    "four in each of three nodes": [0] * 4 + [1] * 4 + [2] * 4,
    "eight in each of two nodes": [5] * 8 + [9] * 8,
    "two in each of two nodes": [0, 0, 1, 1],
    "uneven": [0, 0, 0, 1, 1, 2],
}

CASES = [
    pytest.param(MODULES[name], kind, LAYOUTS[what], id=f"{name} {kind}, {what}")
    for name in MODULES
    for kind in MODULES[name].KINDS
    for what in LAYOUTS
    if kind != "sendrecv" or len(LAYOUTS[what]) <= 2
]
SYMMETRIC = [
    pytest.param(module, kind, LAYOUTS[what], id=f"{name} {kind}, {what}")
    for name, module in MODULES.items()
    for kind in module.KINDS
    for what in LAYOUTS
    if what != "uneven" and kind not in ROOTED
]


def edges_of(module: ModuleType, kind: str, nodes: list[int]) -> Edges:
    """All edges of all rounds, each with its share of the wire fraction."""
    rounds = module.rounds(kind, np.array(nodes))
    whole = wire_fraction(rounds)
    none = Edges.of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return joined([(r.edges, float(r.fraction * r.repeats / whole)) for r in rounds] or [(none, 1.0)])


def fraction_of(module: ModuleType, kind: str, nodes: list[int]) -> Fraction:
    return wire_fraction(module.rounds(kind, np.array(nodes)))


def sent_and_received(module: ModuleType, kind: str, nodes: list[int]) -> tuple[list[float], list[float]]:
    """Shares that leave and reach each rank."""
    edges, n = edges_of(module, kind, nodes), len(nodes)
    out, into = (np.bincount(ends, weights=edges.share, minlength=n) for ends in (edges.source, edges.target))
    return out.tolist(), into.tolist()


def across(edges: Edges, nodes: list[int]) -> list[tuple[int, float]]:
    """(source node, share) of the edges between nodes."""
    triples = zip(edges.source.tolist(), edges.target.tolist(), edges.share.tolist(), strict=True)
    return [(nodes[s], share) for s, t, share in triples if nodes[s] != nodes[t]]


def test_there_are_collectives_to_test() -> None:
    assert {"ring", "point_to_point"} <= set(MODULES)
    assert {"all_reduce", "reduce_scatter", "all_gather", "sendrecv"} <= {k for m in MODULES.values() for k in m.KINDS}


@pytest.mark.parametrize("module, kind, nodes", CASES)
class TestCollective:
    def test_bytes_are_conserved(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        n = len(nodes)
        total = float(fraction_of(module, kind, nodes)) * sum(edges_of(module, kind, nodes).share)
        assert total == pytest.approx(float(MOVED[kind](n)))

    def test_the_busiest_rank_sends_and_receives_its_part_at_least(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        """The bandwidth bound: 2(n - 1)/n for an all-reduce, (n - 1)/n for its halves."""
        n = len(nodes)
        fraction = float(fraction_of(module, kind, nodes))
        for shares in sent_and_received(module, kind, nodes):
            assert max(shares) * fraction >= float(MOVED[kind](n)) / n * (1 - 1e-12)

    def test_edges_join_different_ranks_of_the_group(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        edges, n = edges_of(module, kind, nodes), len(nodes)
        assert len(edges.source) == len(edges.target) == len(edges.share)
        assert ((edges.source >= 0) & (edges.source < n) & (edges.target >= 0) & (edges.target < n)).all()
        assert n == 1 or (edges.source != edges.target).all()
        assert ((edges.share > 0) & (edges.share <= 1)).all()

    def test_alone_is_free_and_together_is_not(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        assert module.rounds(kind, np.array([0])) == ()
        if len(nodes) > 1:
            assert steps(module.rounds(kind, np.array(nodes))) >= 1
            assert fraction_of(module, kind, nodes) > 0


@pytest.mark.parametrize("module, kind, nodes", SYMMETRIC)
def test_every_rank_is_like_every_other(module: ModuleType, kind: str, nodes: list[int]) -> None:
    """Turned by a whole node (or, within one node, by a rank) the edges are the same."""
    edges, n = edges_of(module, kind, nodes), len(nodes)
    turn = 1 if len(set(nodes)) == 1 else nodes.count(nodes[0])
    triples = list(zip(edges.source.tolist(), edges.target.tolist(), edges.share.round(12).tolist(), strict=True))
    assert Counter(((s + turn) % n, (t + turn) % n, share) for s, t, share in triples) == Counter(triples)
    for shares in sent_and_received(module, kind, nodes):
        assert shares == pytest.approx([shares[0]] * n)


@pytest.mark.parametrize("kind, messages, fraction", [("all_reduce", 14, Fraction(7, 4)), ("all_gather", 7, Fraction(7, 8))])
def test_a_ring_of_eight(kind: str, messages: int, fraction: Fraction) -> None:
    rounds = MODULES["ring"].rounds(kind, np.zeros(8, dtype=int))
    assert (steps(rounds), wire_fraction(rounds)) == (messages, fraction)


@pytest.mark.parametrize("k, nodes", [(2, 2), (4, 3), (8, 2), (8, 5)])
def test_rings_over_nodes_use_every_nic_equally(k: int, nodes: int) -> None:
    """k rings: out of each node k edges, each with a k-th, each from another rank and into another."""
    layout = [node for node in range(nodes) for _ in range(k)]
    edges = edges_of(MODULES["ring"], "all_reduce", layout)
    out = across(edges, layout)
    assert Counter(node for node, _ in out) == dict.fromkeys(range(nodes), k)
    assert [share for _, share in out] == pytest.approx([1 / k] * (k * nodes))
    between = [(s, t) for s, t in zip(edges.source.tolist(), edges.target.tolist(), strict=True) if layout[s] != layout[t]]
    assert len({s for s, _ in between}) == len({t for _, t in between}) == k * nodes


@pytest.mark.parametrize("k, nodes", [(1, 5), (2, 2), (4, 3), (8, 2)])
def test_the_rings_are_rings(k: int, nodes: int) -> None:
    """Each visits every rank once: ring r enters a node at rank r, goes round it, and leaves from the rank before r."""
    layout = [node for node in range(nodes) for _ in range(k)]
    edges, n = edges_of(MODULES["ring"], "all_reduce", layout), k * nodes
    capacity = Counter(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    used: Counter[tuple[int, int]] = Counter()
    for r in range(k):
        order = [node * k + (r + i) % k for node in range(nodes) for i in range(k)]
        used.update(zip(order, [*order[1:], order[0]], strict=True))
    assert set(used) == set(capacity)
    share = dict(zip(zip(edges.source.tolist(), edges.target.tolist(), strict=True), edges.share.tolist(), strict=True))
    assert all(share[edge] == pytest.approx(count / k) for edge, count in used.items())
    assert sum(used.values()) == n * k


def test_uneven_groups_go_round_once() -> None:
    edges = edges_of(MODULES["ring"], "all_reduce", LAYOUTS["uneven"])
    assert edges.source.tolist() == [0, 1, 2, 3, 4, 5]
    assert edges.target.tolist() == [1, 2, 3, 4, 5, 0]
    assert edges.share.tolist() == [1.0] * 6
