"""Every file in collectives: what must move moves, nobody beats the bandwidth bound, all that is needed can be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator.collectives import Array, Edges, Round, joined, wire_fraction
from simulator.config import catalog
from simulator.errors import UserError
from simulator.testing import GROUPS, SENT, check_collective

MODULES: dict[str, ModuleType] = {name: catalog.module("collectives", name) for name in catalog.files("collectives")}
MOVED: dict[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda n: Fraction(2 * (n - 1)),
    "reduce_scatter": lambda n: Fraction(n - 1),
    "all_gather": lambda n: Fraction(n - 1),
    "alltoall": lambda n: Fraction(n - 1),
    "broadcast": lambda n: Fraction(n - 1),
    "sendrecv": lambda n: Fraction(min(1, n - 1)),
    "exchange": lambda n: Fraction(n if n > 1 else 0),
}
"""Payloads that cross an edge, all ranks together, at least, where no switch reduces or copies."""
CUT: dict[str, Callable[[Array], float]] = {
    "all_reduce": lambda inside: 1.0,
    "reduce_scatter": lambda inside: float((~inside).mean()),
    "all_gather": lambda inside: float(inside.mean()),
    "alltoall": lambda inside: float(inside.sum() * (~inside).mean()),
    "broadcast": lambda inside: float(inside[0]),
    "sendrecv": lambda inside: float(inside[0] and not inside[1]),
    "exchange": lambda inside: float((inside & ~np.roll(inside, -1)).sum()),
}
"""Payloads that must leave a part of a group for the rest of it, whatever the algorithm and whoever reduces."""
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
    "three in each of five nodes": [node for node in range(5) for _ in range(3)],
}


def taken(module: ModuleType, kind: str, nodes: list[int]) -> bool:
    return bool(module.takes(kind, np.array(nodes))) if hasattr(module, "takes") else True


def alike(module: ModuleType, kind: str, nodes: list[int]) -> bool:
    return kind not in ROOTED and (bool(module.alike(kind, np.array(nodes))) if hasattr(module, "alike") else True)


CASES = [
    pytest.param(MODULES[name], kind, LAYOUTS[what], id=f"{name} {kind}, {what}")
    for name in MODULES
    for kind in MODULES[name].KINDS
    for what in LAYOUTS
    if (kind != "sendrecv" or len(LAYOUTS[what]) <= 2) and taken(MODULES[name], kind, LAYOUTS[what])
]


def edges_of(module: ModuleType, kind: str, nodes: list[int]) -> Edges:
    """All edges of all rounds, each with the payloads that it carries."""
    rounds = module.rounds(kind, np.array(nodes))
    none = Edges.of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return joined([(r.edges, float(r.fraction * r.repeats)) for r in rounds] or [(none, 1.0)])


def parts(nodes: list[int]) -> Iterator[Array]:
    """Single ranks, single nodes, and the first few ranks of a group, all but the whole."""
    n, node = len(nodes), np.array(nodes)
    yield from (np.arange(n) == rank for rank in range(n))
    yield from (node == one for one in sorted(set(nodes)) if (node != one).any())
    yield from (np.arange(n) < size for size in range(1, n))


def known(module: ModuleType, kind: str, nodes: list[int]) -> Array:
    """known[j, i]: whether something of rank i can have reached rank j when all rounds are over."""
    knows = np.eye(len(nodes), dtype=bool)
    for r in module.rounds(kind, np.array(nodes)):
        for _ in range(r.repeats):
            before = knows.copy()
            np.logical_or.at(knows, r.edges.target, before[r.edges.source])
    return knows


def test_there_are_collectives_to_test() -> None:
    assert {"ring", "tree", "halving_doubling", "hierarchical", "nvls", "sharp", "direct", "point_to_point"} <= set(MODULES)
    assert {k for m in MODULES.values() for k in m.KINDS} == set(MOVED)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("module, kind, nodes", CASES)
class TestCollective:
    def test_its_lanes_are_together_its_rounds(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        """Lane by lane as many steps, and in all the same bytes on every edge."""
        rounds = module.rounds(kind, np.array(nodes))
        lanes = module.lanes(kind, np.array(nodes)) if hasattr(module, "lanes") else (rounds,)
        for at, r in enumerate(rounds):
            assert {lane[at].repeats for lane in lanes} == {r.repeats}
            whole, parts = (joined([(x.edges, float(x.fraction)) for x in some]) for some in ([r], [lane[at] for lane in lanes]))
            for name in ("source", "target", "share"):
                np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-12)

    def test_what_must_move_moves(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        if not getattr(module, "IN_NETWORK", False):
            assert edges_of(module, kind, nodes).share.sum() >= float(MOVED[kind](len(nodes))) * (1 - 1e-12)

    def test_no_part_of_the_group_sends_or_receives_less_than_it_must(
        self, module: ModuleType, kind: str, nodes: list[int]
    ) -> None:
        """The bandwidth bounds of ranks, of nodes and their NICs, and of halves of the fabric."""
        edges = edges_of(module, kind, nodes)
        for inside in parts(nodes):
            leaving = edges.share[inside[edges.source] & ~inside[edges.target]].sum() if len(nodes) > 1 else 0.0
            assert len(nodes) == 1 or leaving >= CUT[kind](inside) * (1 - 1e-12)

    def test_the_busiest_rank_sends_and_receives_its_part_at_least(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        """2(n - 1)/n for an all-reduce, or 1 where switches reduce; (n - 1)/n for its halves."""
        edges, n = edges_of(module, kind, nodes), len(nodes)
        least = min(float(MOVED[kind](n)) / n, 1.0 if getattr(module, "IN_NETWORK", False) else 2.0)
        for end in (edges.source, edges.target):
            assert np.bincount(end, weights=edges.share, minlength=n).max() >= least * (1 - 1e-12)

    def test_everybody_can_know_what_it_must_in_the_end(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        """Messages of a round carry only what their senders had before: nobody is told too early."""
        if getattr(module, "IN_NETWORK", False):
            return
        knows = known(module, kind, nodes)
        if kind == "exchange":
            assert all(knows[(i + 1) % len(nodes), i] for i in range(len(nodes)))
        else:
            assert (knows[:, 0] if kind in ROOTED else knows).all()

    def test_edges_join_different_ranks_of_the_group(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        n = len(nodes)
        for edges in (r.edges for r in module.rounds(kind, np.array(nodes))):
            assert len(edges.source) == len(edges.target) == len(edges.share) > 0
            assert ((edges.source >= 0) & (edges.source < n) & (edges.target >= 0) & (edges.target < n)).all()
            assert (edges.source != edges.target).all()
            assert ((edges.share > 0) & (edges.share <= 1)).all()
            assert len(set(zip(edges.source.tolist(), edges.target.tolist(), strict=True))) == len(edges.source)

    def test_alone_is_free_and_together_is_not(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        assert module.rounds(kind, np.array([0])) == ()
        if len(nodes) > 1:
            assert sum(r.repeats for r in module.rounds(kind, np.array(nodes))) >= 1
            assert wire_fraction(module.rounds(kind, np.array(nodes))) > 0

    def test_every_rank_has_as_much_to_do_as_every_other(self, module: ModuleType, kind: str, nodes: list[int]) -> None:
        """Unless the algorithm says that they are not alike."""
        if alike(module, kind, nodes):
            edges, n = edges_of(module, kind, nodes), len(nodes)
            for end in (edges.source, edges.target):
                work = np.bincount(end, weights=edges.share, minlength=n)
                assert work.tolist() == pytest.approx([work[0]] * n)


def test_every_group_is_served() -> None:
    """Whatever the group, some algorithm serves every kind."""
    for kind in sorted(set(MOVED) - {"sendrecv"}):
        for nodes in LAYOUTS.values():
            able = [name for name, module in MODULES.items() if kind in module.KINDS and taken(module, kind, nodes)]
            assert able, f"{kind} {nodes}"


def wrong(change: Callable[[Round], Round]) -> Any:
    """A ring that somebody has spoiled."""
    ring = MODULES["ring"]
    return SimpleNamespace(KINDS=ring.KINDS, rounds=lambda kind, nodes: tuple(map(change, ring.rounds(kind, nodes))))


SPOILED = {
    "a step too few": lambda r: Round(r.edges, r.fraction, r.repeats - 1),
    "less in every step": lambda r: Round(r.edges, r.fraction * Fraction(9, 10), r.repeats),
    "one rank left out": lambda r: Round(Edges(r.edges.source[1:], r.edges.target[1:], r.edges.share[1:]), r.fraction, r.repeats),
    "all in one step": lambda r: Round(r.edges, r.fraction * r.repeats),
}


@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_a_spoiled_ring_is_caught(what: str, kind: str) -> None:
    checks = [getattr(TestCollective(), name) for name in vars(TestCollective) if name.startswith("test_")]
    assert any(_fails(check, wrong(SPOILED[what]), kind, LAYOUTS["eight in a node"]) for check in checks)


@pytest.mark.parametrize("name", MODULES)
def test_the_public_check_passes_every_algorithm(name: str) -> None:
    if set(MODULES[name].KINDS) & set(SENT):
        assert check_collective(name) == check_collective(MODULES[name]) > 1


@pytest.mark.parametrize("what", SPOILED)
def test_the_public_check_catches_a_spoiled_ring(what: str) -> None:
    with pytest.raises(UserError, match=r"payloads to the others|reaches rank"):
        check_collective(wrong(SPOILED[what]), [[0] * 8])


def test_the_public_check_says_what_is_wrong() -> None:
    def star(missing: int) -> Any:
        """All ranks send to the first, which sends the sum to all but `missing` of them."""

        def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
            first, others = np.zeros(len(nodes) - 1, dtype=np.int64), np.arange(1, len(nodes))
            there, back = Edges.of(others, first), Edges.of(first[missing:], others[missing:])
            return (Round(there, Fraction(1)), Round(back, Fraction(1))) if len(nodes) > 1 else ()

        return SimpleNamespace(KINDS=("all_reduce",), rounds=rounds)

    assert check_collective(star(0)) == len(GROUPS)
    with pytest.raises(UserError, match=r"all_reduce among ranks on nodes \[0, 0, 0\]: nothing of rank 0 reaches rank 1"):
        check_collective(star(1), [[0, 0, 0]])
    alone = SimpleNamespace(KINDS=("all_reduce",), rounds=lambda kind, nodes: MODULES["ring"].rounds(kind, np.array([0, 0])))
    with pytest.raises(UserError, match="a rank alone needs no rounds"):
        check_collective(alone)
    with pytest.raises(UserError, match="two of the ranks 0 to 1"):
        check_collective(
            SimpleNamespace(KINDS=("all_reduce",), rounds=lambda kind, nodes: MODULES["ring"].rounds(kind, np.array([0] * 3))),
            [[0, 0]],
        )


def _fails(check: Callable[..., None], *case: Any) -> bool:
    try:
        check(*case)
    except AssertionError:
        return True
    return False
