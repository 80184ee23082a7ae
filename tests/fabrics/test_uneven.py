"""All-to-alls in which ranks have more for some than for others: block by block, by closed forms, and on measured links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import simulator as sim
from simulator.binding.mesh_rings import ClusterRounds
from simulator.collectives import Round, joined
from simulator.config.fabric_files import IDEAL
from simulator.costs.collectives import theory
from simulator.errors import UserError
from simulator.fabrics.uneven_alltoall import Exchange, Uneven, read
from simulator.hardware.cluster import Cluster
from simulator.study.collective import Timed, collective

from ..collectives.test_algorithms import MODULES, NIC_BANDWIDTH, NIC_LATENCY, grid
from ..commandline import trainsim
from ..small_scenarios import time_collective
from ..validate.described import links_on
from .uncontended import BANDWIDTH, LATENCY, one_node, steps

Matrix = np.ndarray[Any, Any]
Moves = dict[tuple[int, int], int]
"""(from, to) -> bytes."""
NAMES = sorted(name for name, module in MODULES.items() if "alltoall" in module.KINDS)
GRIDS = ((1, 1), (1, 2), (1, 5), (1, 8), (2, 2), (2, 4), (3, 2), (4, 1), (5, 1), (3, 3))
TOLERANCE = 1e-6
LATE = 2e-9
"""Of stepwise, in seconds: its result is a whole nanosecond."""
B = 2**24
"""A byte of the small matrices below stands for so many."""


def same_edges(rounds: Any, others: Any) -> bool:
    """Whether rounds have the same edges in the same order, however they are written down."""
    columns = ("source", "target", "share")
    return all(
        np.array_equal(getattr(ours.edges, column), getattr(theirs.edges, column))
        for ours, theirs in zip(rounds, others, strict=True)
        for column in columns
    )


def way(name: str, m: int, k: int, i: int, j: int) -> list[tuple[int, int, int]]:
    """How a block gets from rank i to rank j by the word of each algorithm: round, from, to."""
    n = m * k
    if name == "direct":
        return [(0, i, j)]
    if name == "pairwise":
        return [(i ^ j if n & (n - 1) == 0 else (j - i) % n, i, j)]
    if name == "hierarchical":
        handed = i // k * k + j % k
        return [(0, i, handed), (1, handed, j)]
    hops, at = [], i
    for bit in range(n.bit_length()):
        if (j - i) % n >> bit & 1:
            hops.append((bit, at, (at + (1 << bit)) % n))
            at = hops[-1][2]
    assert at == j
    return hops


def by_blocks(name: str, m: int, k: int, matrix: Matrix) -> list[Moves]:
    """What every round carries: blocks one by one, each on its way. Rounds without messages are left out."""
    rounds: dict[int, Moves] = {}
    for i, j in np.argwhere(matrix).tolist():
        for turn, source, target in way(name, m, k, i, j) if i != j else []:
            if source != target:
                moves = rounds.setdefault(turn, {})
                moves[source, target] = moves.get((source, target), 0) + int(matrix[i, j])
    return [rounds[turn] for turn in sorted(rounds)]


def carried(r: Round, payload: float) -> dict[tuple[int, int], float]:
    sent = r.edges.share * float(r.fraction) * payload * r.repeats
    return dict(zip(zip(r.edges.source.tolist(), r.edges.target.tolist(), strict=True), sent.tolist(), strict=True))


def nodes_of(m: int, k: int) -> Matrix:
    return np.repeat(np.arange(m), k)


def rounds_of(name: str, m: int, k: int, matrix: Any) -> tuple[Round, ...]:
    rounds: tuple[Round, ...] = MODULES[name].rounds("alltoall", nodes_of(m, k), matrix)
    return rounds


@st.composite
def matrices(draw: st.DrawFn, shapes: Sequence[tuple[int, int]] = GRIDS) -> tuple[int, int, Matrix]:
    """Nodes, ranks in each, and bytes: some of nothing, and ranks that have nothing, get nothing, or both."""
    m, k = draw(st.sampled_from(shapes))
    n = m * k
    entry = st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 10**9))
    matrix = np.array(draw(st.lists(st.lists(entry, min_size=n, max_size=n), min_size=n, max_size=n)))
    ranks = st.lists(st.integers(0, n - 1), max_size=n)
    matrix[draw(ranks)] = 0
    matrix[:, draw(ranks)] = 0
    return m, k, matrix


def test_every_all_to_all_takes_a_matrix() -> None:
    assert {"bruck", "direct", "hierarchical", "pairwise"} <= set(NAMES)
    for name in NAMES:
        assert rounds_of(name, 2, 2, np.ones((4, 4)))


@pytest.mark.parametrize("name", NAMES)
class TestRounds:
    @given(case=matrices())
    def test_every_message_is_as_large_as_the_blocks_in_it(self, name: str, case: tuple[int, int, Matrix]) -> None:
        m, k, matrix = case
        expected, found = by_blocks(name, m, k, matrix), rounds_of(name, m, k, matrix)
        assert len(found) == len(expected)
        for moves, r in zip(expected, found, strict=True):
            assert carried(r, matrix.sum() / (m * k)) == pytest.approx(moves, rel=1e-12)

    @given(case=matrices())
    def test_bytes_come_from_who_has_them_and_end_where_they_should(self, name: str, case: tuple[int, int, Matrix]) -> None:
        """Whatever the way: nobody passes on more than it holds, and in the end all hold what was for them."""
        m, k, matrix = case
        holds = matrix.sum(axis=1).astype(float)
        for r in rounds_of(name, m, k, matrix):
            sent, came = np.zeros((2, m * k))
            for (source, target), moved in carried(r, matrix.sum() / (m * k)).items():
                sent[source] += moved
                came[target] += moved
            assert (sent <= holds * (1 + 1e-12) + 1e-6).all()
            holds += came - sent
        assert holds == pytest.approx(matrix.sum(axis=0), rel=1e-12, abs=1e-3)

    @given(case=matrices())
    def test_no_part_of_the_group_sends_less_than_it_must(self, name: str, case: tuple[int, int, Matrix]) -> None:
        m, k, matrix = case
        rounds = rounds_of(name, m, k, matrix)
        if not rounds:
            assert (matrix * (1 - np.eye(m * k, dtype=int)) == 0).all()
            return
        edges = joined([(r.edges, float(r.fraction * r.repeats) * matrix.sum() / (m * k)) for r in rounds])
        for inside in parts(m, k):
            leaving = edges.share[inside[edges.source] & ~inside[edges.target]].sum()
            must = matrix[np.ix_(inside, ~inside)].sum()
            assert leaving >= must * (1 - 1e-12)
            if name in ("direct", "pairwise") or (name == "hierarchical" and of_whole_nodes(inside, k)):
                assert leaving == pytest.approx(must), "and not once more where nobody relays"

    @pytest.mark.parametrize("m, k", GRIDS)
    def test_an_even_matrix_is_the_even_exchange(self, name: str, m: int, k: int) -> None:
        n = m * k
        plain = MODULES[name].rounds("alltoall", nodes_of(m, k))
        for matrix in (np.ones((n, n)), np.full((n, n), 7), [[2**40] * n] * n, [[0.3] * n] * n):
            rounds = rounds_of(name, m, k, matrix)
            assert same_edges(rounds, plain)
            assert [r.repeats for r in rounds] == [r.repeats for r in plain]
            exact, found = [r.fraction for r in plain], [r.fraction for r in rounds]
            assert found == (pytest.approx(exact, rel=1e-12) if np.asarray(matrix).dtype == float else exact)

    def test_nothing_for_others_is_free(self, name: str) -> None:
        for matrix in (np.zeros((4, 4)), np.eye(4), np.diag([0, 1, 2, 10**9])):
            assert rounds_of(name, 2, 2, matrix) == ()
            for fidelity in ("fluid", "closed", "stepwise"):
                for cluster in (grid(2, 2), sim.cluster("dgx-h100", nodes=1)):
                    (row,) = time_collective("alltoall", cluster, matrix=matrix, algorithm=name, fidelity=fidelity)
                    assert (row.time_s, row.algorithm_gb_per_s) == (0.0, 0.0)

    @pytest.mark.parametrize(
        "matrix",
        [
            *(np.ones((3, 4)), np.full((4, 4), -1), np.full((4, 4), np.nan), np.full((4, 4), np.inf), np.full((4, 4), 1e308)),
            *(np.ones(4), [[1, 2], [3]], [["much"] * 4] * 4, np.zeros((0, 0))),
        ],
    )
    def test_what_is_no_matrix_of_bytes_is_refused(self, name: str, matrix: Any) -> None:
        with pytest.raises(UserError, match="matrix of 4 x 4"):
            rounds_of(name, 2, 2, matrix)

    def test_only_an_all_to_all_can_be_uneven(self, name: str) -> None:
        for kind in set(MODULES[name].KINDS) - {"alltoall"}:
            with pytest.raises(UserError, match=f"{kind} takes no matrix"):
                MODULES[name].rounds(kind, nodes_of(2, 2), np.ones((4, 4)))


def parts(m: int, k: int) -> Iterator[Matrix]:
    """Single ranks, single nodes, the first few ranks."""
    member = np.arange(m * k)
    yield from (member == rank for rank in member)
    yield from (member // k == node for node in range(m))
    yield from (member < size for size in range(1, m * k))


def of_whole_nodes(inside: Matrix, k: int) -> bool:
    per_node = inside.reshape(-1, k).sum(axis=1)
    return bool(np.isin(per_node, (0, k)).all())


def test_a_group_with_uneven_nodes_is_refused_with_a_matrix_too() -> None:
    with pytest.raises(UserError, match="different numbers"):
        MODULES["hierarchical"].rounds("alltoall", np.array([0, 0, 1]), np.ones((3, 3)))


BY_HAND = np.array([[9, 1, 2, 3], [4, 9, 5, 0], [6, 7, 9, 8], [0, 2, 0, 9]])
HAND_ROUNDS: dict[str, list[Moves]] = {
    "direct": [
        {(0, 1): 1, (0, 2): 2, (0, 3): 3, (1, 0): 4, (1, 2): 5, (2, 0): 6, (2, 1): 7, (2, 3): 8, (3, 1): 2},
    ],
    "pairwise": [
        {(0, 1): 1, (1, 0): 4, (2, 3): 8},
        {(0, 2): 2, (2, 0): 6, (3, 1): 2},
        {(0, 3): 3, (1, 2): 5, (2, 1): 7},
    ],
    "bruck": [
        {(0, 1): 1 + 3, (1, 2): 5 + 4, (2, 3): 8 + 7},
        {(0, 2): 2, (1, 3): 0 + 3, (2, 0): 6 + 4, (3, 1): 2 + 7},
    ],
    "hierarchical": [
        {(0, 1): 1 + 3, (1, 0): 4 + 5, (2, 3): 8 + 7},
        {(0, 2): 2 + 5, (1, 3): 3 + 0, (2, 0): 6 + 0, (3, 1): 7 + 2},
    ],
}
"""Two nodes of two ranks. In Bruck's first round the ways 1 and 3 go one on; in the second 2 and 3 go two on."""
HAND_SECONDS = {
    "direct": LATENCY + 21 * B / BANDWIDTH,
    "pairwise": 3 * LATENCY + (8 + 6 + 7) * B / BANDWIDTH,
    "bruck": 2 * LATENCY + (15 + 10) * B / BANDWIDTH,
    "hierarchical": LATENCY + (15 * B) / BANDWIDTH + NIC_LATENCY + 9 * B / NIC_BANDWIDTH,
}
"""Behind one switch; the last over two nodes. Rank 2 has most to send to others, 6 + 7 + 8."""


def bare_s(matrix: Any, cluster: Cluster, name: str, fidelity: str = "fluid") -> float:
    """Alone on links at their face value."""
    (row,) = time_collective("alltoall", replace(cluster, fabric=IDEAL), matrix=matrix, algorithm=name, fidelity=fidelity)
    return row.time_s


class TestByHand:
    @pytest.mark.parametrize("name", HAND_ROUNDS)
    def test_rounds(self, name: str) -> None:
        rounds = rounds_of(name, 2, 2, BY_HAND)
        assert [carried(r, BY_HAND.sum() / 4) for r in rounds] == [pytest.approx(moves) for moves in HAND_ROUNDS[name]]

    @pytest.mark.parametrize("fidelity", ["closed", "fluid"])
    @pytest.mark.parametrize("name", HAND_SECONDS)
    def test_seconds(self, name: str, fidelity: str) -> None:
        cluster = grid(2, 2) if name == "hierarchical" else one_node(4)
        assert bare_s(BY_HAND * B, cluster, name, fidelity) == pytest.approx(HAND_SECONDS[name], rel=TOLERANCE)

    def test_stepwise(self) -> None:
        """Each pair of a round goes on when both its ends may: rank 2 is in all of the slowest ones, of 8, then 6, then 7."""
        stepwise = {name: bare_s(BY_HAND * B, one_node(4), name, "stepwise") for name in ("direct", "pairwise", "bruck")}
        assert stepwise["pairwise"] == pytest.approx(HAND_SECONDS["pairwise"], abs=LATE)
        assert stepwise["bruck"] <= HAND_SECONDS["bruck"] + LATE
        assert stepwise["direct"] >= HAND_SECONDS["direct"] - LATE


def busiest(moves: Moves, n: int) -> float:
    """Bytes of the rank that sends or receives most."""
    out, into = np.zeros((2, n))
    for (source, target), moved in moves.items():
        out[source] += moved
        into[target] += moved
    return float(max(out.max(), into.max()))


def closed_s(name: str, m: int, k: int, matrix: Matrix, bandwidth: float = BANDWIDTH, latency_s: float = LATENCY) -> float:
    """Behind one switch: round after round, the latency and the busiest rank, by blocks."""
    return sum(latency_s + busiest(moves, m * k) / bandwidth for moves in by_blocks(name, m, k, matrix))


def drawn(n: int, seed: int) -> Matrix:
    """Zeros, and numbers whose mean is no whole number."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 2**26, (n, n)) * draw.integers(0, 2, (n, n))


class TestClosedForms:
    @pytest.mark.thinned(4)
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("n", [2, 3, 5, 8, 12])
    @pytest.mark.parametrize("name", NAMES)
    def test_behind_one_switch_the_busiest_rank_of_every_round_decides(self, name: str, n: int, seed: int) -> None:
        matrix = drawn(n, seed)
        expected = closed_s(name, 1, n, matrix)
        for fidelity in ("fluid", "closed"):
            assert bare_s(matrix, one_node(n), name, fidelity) == pytest.approx(expected, rel=TOLERANCE, abs=LATE)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("m, k", [(2, 4), (3, 2), (4, 1)])
    def test_hierarchical_over_nodes_by_the_busiest_inside_and_the_busiest_nic(self, m: int, k: int, seed: int) -> None:
        matrix = drawn(m * k, seed)
        expected = 0.0
        for moves in by_blocks("hierarchical", m, k, matrix):
            is_inside = all(i // k == j // k for i, j in moves)
            latency_s, bandwidth = (LATENCY, BANDWIDTH) if is_inside else (NIC_LATENCY, NIC_BANDWIDTH)
            expected += latency_s + busiest(moves, m * k) / bandwidth
        assert bare_s(matrix, grid(m, k), "hierarchical") == pytest.approx(expected, rel=TOLERANCE)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("name", ["direct", "pairwise", "bruck"])
    def test_with_one_rank_in_each_node_nics_take_the_place_of_links(self, name: str, seed: int) -> None:
        matrix = drawn(6, seed)
        expected = closed_s(name, 6, 1, matrix, NIC_BANDWIDTH, NIC_LATENCY)
        assert bare_s(matrix, grid(6, 1), name) == pytest.approx(expected, rel=TOLERANCE)

    @pytest.mark.parametrize("n", [3, 4, 6, 8])
    @pytest.mark.parametrize("name", ["direct", "pairwise", "bruck", "hierarchical"])
    def test_where_messages_of_a_round_are_alike_stepwise_is_the_closed_form(self, name: str, n: int) -> None:
        """All have as much for who is so far away; in pairwise swaps distance is the bits that differ. Messages that go at once
        share equal links equally, end one after the other, and leave no link idle.
        """
        for_way = np.array([5, 1, 9, 0, 3, 7, 2, 4])[:n] * B + np.arange(n)
        i, j = np.indices((n, n))
        matrix = for_way[i ^ j if name == "pairwise" and n in (4, 8) else (j - i) % n]
        assert bare_s(matrix, one_node(n), name, "stepwise") == pytest.approx(closed_s(name, 1, n, matrix), abs=LATE)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("n", [4, 5, 8])
    @pytest.mark.parametrize("name", ["pairwise", "bruck"])
    def test_where_they_are_not_ranks_need_not_wait_for_the_slowest(self, name: str, n: int, seed: int) -> None:
        """Never later than the closed form, in which all wait for the busiest, nor before the busiest has sent its bytes."""
        matrix = drawn(n, seed)
        all_rounds: Moves = {}
        for moves in by_blocks(name, 1, n, matrix):
            all_rounds = {edge: all_rounds.get(edge, 0) + moves.get(edge, 0) for edge in {**all_rounds, **moves}}
        found = bare_s(matrix, one_node(n), name, "stepwise")
        assert LATENCY + busiest(all_rounds, n) / BANDWIDTH - LATE <= found <= closed_s(name, 1, n, matrix) + LATE

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("m, k", [(1, 8), (2, 4), (5, 1)])
    def test_direct_messages_one_by_one_end_with_the_fluid_or_up_to_as_much_later(self, m: int, k: int, seed: int) -> None:
        """As one fluid all end at once, when the busiest link is done. One by one and fair to each, short ones end first and may
        leave links idle; but as long as the last is on its way a link of its way is full, where it leaves or where it arrives.
        """
        matrix = drawn(m * k, seed)
        cluster = one_node(k) if m == 1 else grid(m, k)
        stepwise, fluid = (bare_s(matrix, cluster, "direct", fidelity) for fidelity in ("stepwise", "fluid"))
        assert fluid - LATENCY - LATE <= stepwise <= 2 * fluid


class TestPhysics:
    @pytest.mark.parametrize("fidelity", ["fluid", "closed", "stepwise"])
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("m, k", [(2, 4), (4, 2), (5, 1)])
    def test_one_hot_receiver_takes_as_long_as_its_nic(self, name: str, m: int, k: int, fidelity: str) -> None:
        """On links at face value and on measured ones alike, whoever else is idle."""
        n = m * k
        matrix = np.zeros((n, n))
        matrix[:, 1] = 2**26
        least_s = (n - k) * 2**26 / NIC_BANDWIDTH + NIC_LATENCY
        found = bare_s(matrix, grid(m, k), name, fidelity)
        assert found >= least_s * (1 - 1e-6)
        if name != "direct" or k == 1:
            return
        assert found <= least_s + 2 * LATENCY, "and no longer: the others' bytes come in over NVLink meanwhile"

    @pytest.mark.parametrize("name", NAMES)
    def test_all_for_one_takes_as_long_as_its_link_to_take_it_in(self, name: str) -> None:
        """Whatever the ways: in Bruck's rounds 1, 2 and 4 of the seven messages reach it, and nobody takes in more before."""
        matrix = np.zeros((8, 8))
        matrix[:, 3] = B
        expected = {"direct": 7, "pairwise": 7, "hierarchical": 7, "bruck": 1 + 2 + 4}[name] * B / BANDWIDTH
        found = bare_s(matrix, one_node(8), name)
        assert found == pytest.approx(expected + steps(rounds_of(name, 1, 8, matrix)) * LATENCY, rel=TOLERANCE)

    @pytest.mark.thinned(4)
    @pytest.mark.parametrize("name", NAMES)
    @example(case=(2, 2, np.array([[0] * 4, [0] * 4, [0] * 4, [73696, 73700, 0, 0]])))
    @example(case=(2, 2, np.array([[0] * 4, [0] * 4, [0] * 4, [10**9, 10**9, 0, 0]])))
    @given(case=matrices([(1, 4), (1, 6), (2, 2)]))
    def test_never_faster_than_any_rank_or_the_nics_of_any_node(self, name: str, case: tuple[int, int, Matrix]) -> None:
        """What a rank has for other nodes may leave by all NICs of its node, handed over to the rails of its receivers."""
        m, k, matrix = case
        sent = matrix * ~np.eye(m * k, dtype=bool)
        if m > 1:
            sent = matrix.reshape(m, k, m, k).sum(axis=(1, 3)) * ~np.eye(m, dtype=bool)
        least_s = max(float(sent.sum(axis=axis).max()) for axis in (0, 1)) / (k * NIC_BANDWIDTH if m > 1 else BANDWIDTH)
        assert bare_s(matrix, one_node(k) if m == 1 else grid(m, k), name) >= least_s * (1 - TOLERANCE) - LATE


def measured(matrix: Any = None, size: int = 0, *, nodes: int = 1, **how: Any) -> Timed:
    """On a cluster whose all-to-alls were measured inside a node."""
    cluster = sim.cluster("dgx-h100", nodes=nodes)
    (row,) = time_collective("alltoall", cluster, [size] if size else [], matrix=matrix, **how)
    return row


class TestOnMeasuredLinks:
    @pytest.mark.parametrize("nodes", [1, 2])
    @pytest.mark.parametrize("name", ["auto", *NAMES])
    def test_an_even_matrix_is_the_even_exchange_in_time_and_in_how_it_is_known(self, name: str, nodes: int) -> None:
        """Also where nobody says what ranks keep for themselves."""
        n = 8 * nodes
        plain = measured(size=n * 2**18, nodes=nodes, algorithm=name)
        assert measured(np.full((n, n), 2**18), nodes=nodes, algorithm=name) == plain
        bare = measured((1 - np.eye(n)) * 2**18, nodes=nodes, algorithm=name)
        assert (bare.time_s, bare.provenance) == (plain.time_s, plain.provenance)
        assert bare.size_bytes == (n - 1) * 2**18
        assert plain.provenance == ("interpolated" if name in ("auto", "direct") and nodes == 1 else "theoretical")

    @pytest.mark.parametrize("size", [2**10, 2**16, 2**20, 2**26])
    def test_t7_6_one_hot_receiver_takes_what_is_known_of_the_even_exchange_of_as_much(self, size: int) -> None:
        """Its link carries 7 messages of this size, and so does every link of an even exchange of such messages."""
        matrix = np.ones((8, 8))
        matrix[:, 5] = size
        hot, even = measured(matrix), measured(size=8 * size)
        assert hot.time_s == pytest.approx(even.time_s, rel=1e-6)
        assert (hot.provenance, even.provenance) == ("extrapolated", "interpolated")

    @pytest.mark.thinned(4)
    @pytest.mark.parametrize("name", ["auto", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)])
    @pytest.mark.parametrize("nodes", [1, 2])
    @given(case=st.data())
    def test_nothing_is_faster_than_on_links_at_their_face_value(self, name: str, nodes: int, case: st.DataObject) -> None:
        _, _, matrix = case.draw(matrices([(nodes, 8)] if nodes == 1 else [(2, 2)]))
        gpus = np.arange(8) if nodes == 1 else np.array([0, 1, 8, 9])
        cluster = sim.cluster("dgx-h100", nodes=nodes)
        times = [
            time_collective("alltoall", replace(cluster, fabric=fabric), matrix=matrix, gpus=gpus, algorithm=name)[0].time_s
            for fabric in (cluster.fabric, IDEAL)
        ]
        assert times[0] >= times[1]

    def test_t7_6_who_has_nothing_for_most_does_not_pay_for_all_peers(self) -> None:
        """A ring of messages over 16 nodes: no more than half of what 127 peers each would cost, and at least one message."""
        n, size = 128, 2**16
        ring = np.roll(np.eye(n), 1, axis=1) * size
        sparse, dense = measured(ring, nodes=16), measured(np.full((n, n), size / n), nodes=16)
        assert 0 < sparse.time_s < dense.time_s / 2
        (exchange,) = time_collective("sendrecv", sim.cluster("dgx-h100", nodes=16), [size])
        assert sparse.time_s == pytest.approx(exchange.time_s, rel=0.5)

    @pytest.mark.parametrize("nodes", [1, 2])
    def test_ten_times_the_bytes_take_longer_and_at_most_ten_times(self, nodes: int) -> None:
        matrix = drawn(8 * nodes, 7) // 64
        for name in ("auto", *NAMES):
            times = [measured(matrix * factor, nodes=nodes, algorithm=name).time_s for factor in (1, 10)]
            assert times[0] < times[1] <= 10 * times[0]

    @pytest.mark.parametrize("cluster", ["dgx-h100", "aws-p4d"])
    def test_a_hot_sender_uses_the_nics_that_its_messages_leave_by(self, cluster: str) -> None:
        """On rails all NICs of its node, where NVLink hands them over; else its own. What comes for one rank has one NIC anyway;
        measured links take at most a third longer than bare ones, at the share of the wire that an all-to-all reaches.
        """
        found = sim.cluster(cluster, nodes=2)
        fan = np.zeros((16, 16))
        fan[0, 8:] = 10**8
        out, into = (time_collective("alltoall", found, matrix=matrix)[0].time_s for matrix in (fan, fan.T))
        nics = 8 if found.shape_name == "rail-optimized" else 1
        share = theory.share_of_exchange(links_on(found).across, 8)
        assert out / into == pytest.approx(1 / nics, rel=0.2)
        for matrix, seconds in ((fan, out), (fan.T, into)):
            assert 1.0 < seconds / bare_s(matrix, found, "direct", "stepwise") * share < 4 / 3

    @given(senders=st.lists(st.integers(1, 40), min_size=16, max_size=16), receivers=st.booleans())
    def test_whoever_is_hot_measured_links_are_so_much_slower_than_bare_ones(self, senders: list[int], receivers: bool) -> None:
        """As with the even exchange: 1.18 times what its messages need."""
        matrix = np.repeat(np.array(senders)[:, None], 16, axis=1) * float(2**24)
        matrix = matrix.T if receivers else matrix
        assert 1.05 < measured(matrix, nodes=2).time_s / bare_s(matrix, sim.cluster("dgx-h100", nodes=2), "direct") < 1.45

    def test_two_hot_senders_that_share_a_nic_take_twice_as_long_as_on_two(self) -> None:
        found = sim.cluster("aws-p4d", nodes=2)
        assert found.rails == 4
        seconds = []
        for hot in ([0, 1], [0, 2]):
            matrix = np.zeros((16, 16))
            matrix[hot, 8:] = 10**8
            seconds.append(time_collective("alltoall", found, matrix=matrix)[0].time_s)
        assert seconds[0] / seconds[1] == pytest.approx(2, rel=0.05)

    def test_algorithms_rank_as_their_messages_do(self) -> None:
        """A sender in each node that has half as much again does not make a step inside worth while."""
        matrix = np.repeat(np.tile([1.5, *[0.9] * 7], 4)[:, None], 32, axis=1) * 2**23
        by_name = {name: measured(matrix, nodes=4, algorithm=name).time_s for name in ("direct", "hierarchical")}
        bare = {name: bare_s(matrix, sim.cluster("dgx-h100", nodes=4), name) for name in by_name}
        assert bare["direct"] < bare["hierarchical"]
        assert by_name["direct"] < by_name["hierarchical"]

    @pytest.mark.parametrize("name", ["dgx1-v100", "polaris", "alps-gh200"])
    @pytest.mark.parametrize("hot", ["sender", "receiver", "pair"])
    def test_without_a_switch_it_waits_for_the_busiest_wire(self, name: str, hot: str) -> None:
        """It takes what the even exchange does that keeps bare links busy for as long: in a cube mesh, four times one of these
        sizes if a GPU has eight times as much, for there the even one fills a few wires and no GPU.
        """
        found = sim.cluster(name, nodes=1)
        even = np.full((found.gpus, found.gpus), float(B))
        matrix = even.copy()
        matrix[{"sender": np.s_[0], "receiver": np.s_[:, 0], "pair": np.s_[0, 1]}[hot]] *= 8
        skew = bare_s(matrix, found, "direct", "stepwise") / bare_s(even, found, "direct", "stepwise")
        hot_s, as_long_s = (time_collective("alltoall", found, matrix=held)[0].time_s for held in (matrix, even * skew))
        assert hot_s == pytest.approx(as_long_s, rel=0.02)

    def test_on_a_cube_mesh_no_rank_takes_the_place_of_another(self) -> None:
        """Rings share out among several orders of the ranks what all ranks have alike; here they have not."""
        cluster = sim.cluster("dgx1-v100", nodes=2)
        gpus, module = np.arange(16), MODULES["hierarchical"]
        for matrix in (np.full((16, 16), B), np.roll(np.eye(16), 1, axis=1) * B):
            exchange: Any = Uneven(module, Exchange.of(matrix))
            plain = module.rounds("alltoall", gpus // 8, matrix)
            for rounds in (
                ClusterRounds(cluster).rounds(exchange, "alltoall", gpus),
                *ClusterRounds(cluster).lanes(exchange, "alltoall", gpus),
            ):
                assert same_edges(rounds, plain)
                assert [r.fraction for r in rounds] == [r.fraction for r in plain]
        for fidelity in ("fluid", "closed", "stepwise"):
            bare = replace(cluster, fabric=IDEAL)
            (even,) = time_collective("alltoall", bare, [16 * B], algorithm="hierarchical", fidelity=fidelity)
            found_s = bare_s(np.full((16, 16), B), bare, "hierarchical", fidelity)
            assert found_s == pytest.approx(even.time_s, rel=TOLERANCE, abs=LATE)


class TestInPython:
    def test_the_size_is_the_mean_rounded_up_and_no_byte_is_lost(self) -> None:
        matrix = np.array([[0, 10**9 + 1, 3], [0, 0, 5], [0, 0, 7]])
        exchange = Exchange.of(matrix)
        assert exchange.payload_bytes == -(-int(matrix.sum()) // 3)
        (r,) = Uneven(MODULES["direct"], exchange).rounds("alltoall", np.zeros(3, dtype=int))
        assert r.fraction * exchange.payload_bytes == Fraction(10**9 + 1)
        assert exchange.spans == ((0.0, 10**9 + 4), (0.0, 10**9 + 1))
        assert Exchange.of([[0, 0.25], [0, 0]]).payload_bytes == 1

    def test_a_matrix_takes_the_first_gpus_or_those_given(self) -> None:
        cluster, matrix = sim.cluster("dgx-h100", nodes=2), np.full((8, 8), B)
        (inside,) = time_collective("alltoall", cluster, matrix=matrix)
        (across,) = time_collective("alltoall", cluster, matrix=matrix, gpus=np.array([0, 1, 2, 3, 8, 9, 10, 11]))
        assert inside.ranks == across.ranks == 8
        assert inside.time_s < across.time_s

    @pytest.mark.parametrize(
        "kind, how, message",
        [
            ("all_reduce", {}, "all_reduce takes no matrix"),
            ("alltoall", {"sizes_bytes": [8]}, "already determines the size"),
            ("alltoall", {"gpus": np.arange(4)}, "matrix of 8 ranks for 4 GPUs"),
            ("alltoall", {"gpus": np.arange(16)}, "matrix of 8 ranks for 16 GPUs"),
            ("alltoall", {"matrix": np.ones((32, 32))}, "matrix of 32 ranks for 16 GPUs"),
            ("alltoall", {"matrix": [[1, 2]]}, "1 x 1"),
            ("alltoall", {"matrix": []}, "none negative"),
            ("alltoall", {"matrix": 5}, "1 x 1"),
            ("alltoall", {"algorithm": "tree"}, "tree does no alltoall"),
        ],
    )
    def test_what_cannot_be_is_refused(self, kind: str, how: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            time_collective(kind, sim.cluster("dgx-h100", nodes=2), **{"matrix": np.ones((8, 8)), **how})


ASKED = ("collective", "alltoall", "--cluster", "dgx-h100")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


class TestOnTheCommandLine:
    def test_one_row(self, tmp_path: Path) -> None:
        matrix = np.arange(256).reshape(16, 16) * 2**12
        table = written(tmp_path / "m.csv", "".join(",".join(map(str, row)) + "\n" for row in matrix.tolist()))
        for algorithm in ("auto", *NAMES):
            for fidelity in ("fluid", "closed", "stepwise"):
                how = {"algorithm": algorithm, "fidelity": fidelity}
                record = trainsim(*ASKED, "--matrix", table, *(x for k, v in how.items() for x in (f"--{k}", v)), "--json").record
                (row,) = record.pop("rows")
                (same,) = time_collective("alltoall", sim.cluster("dgx-h100", nodes=2), matrix=matrix, **how)
                assert row == same.as_dict()
                assert row["size_bytes"] == matrix.sum() / 16
                off = matrix - np.diag(np.diag(matrix))
                assert record == {
                    "kind": "alltoall",
                    "cluster": "dgx-h100",
                    "gpus": 16,
                    "nodes": 2,
                    "fidelity": fidelity,
                    "most_sent_bytes": off.sum(axis=1).max(),
                    "most_received_bytes": off.sum(axis=0).max(),
                }
        printed = trainsim(*ASKED, "--matrix", table).out
        assert f"{off.sum(axis=1).min():,} to {off.sum(axis=1).max():,} B to others" in printed
        assert trainsim(*ASKED, "--matrix", table, "--nodes", 4, "--json").record["nodes"] == 4

    def test_rows_say_whether_they_were_extrapolated(self) -> None:
        rows = trainsim(*ASKED, "--nodes", 1, "-b", "8", "-e", "64G", "-f", "8", "--json").record["rows"]
        assert {(row["provenance"], row["extrapolated"]) for row in rows} == {("interpolated", False), ("extrapolated", True)}
        rows = trainsim(*ASKED, "--nodes", 1, "-b", "1M", "-e", "1M", "--fidelity", "stepwise", "--json").record["rows"]
        assert [row["extrapolated"] for row in rows] == [True]

    @pytest.mark.parametrize(
        "text, faults",
        [
            ("1,2\n3,x\n", [(2, "cell 2: 'x'")]),
            ("1,-2\n3,1MB\n", [(1, "cell 2: '-2'"), (2, "cell 2: '1MB'")]),
            ("1,2\n\n3,nan\n", [(3, "cell 2: 'nan'")]),
            ("1,2\n3,\n", [(2, "cell 2: nothing")]),
            ("1,2\n3,1_000\n", [(2, "cell 2: '1_000'")]),
            ("1,2\n3,1e15\n", [(2, "cell 2: '1e15'")]),
            ("1,2\n,\n", [(2, "cell 1: nothing"), (2, "cell 2: nothing")]),
            ("x,2\n3\n", [(1, "cell 1: 'x'"), (2, "1 number in this row, where 2")]),
            ("1,2,3\n4,5,6\n", [(1, "2 rows of 3 numbers")]),
            ("1,2,3\n4,5\n7,8,9\n", [(2, "2 numbers in this row, where 3 should be")]),
            ("a,b\n1,2\n3,4\n", [(1, "'a' ...: a header")]),
            ("a,b\n1,2\n3,4,5\n", [(1, "a header"), (3, "3 numbers in this row, where 2")]),
            ("1 2\n3 4\n", [(1, "2 rows of 1 number"), (1, "'1 2'"), (2, "'3 4'")]),
            ("\n \n", [(0, "no matrix")]),
            ("", [(0, "no matrix")]),
        ],
    )
    def test_all_faults_of_a_file_with_their_lines(self, tmp_path: Path, text: str, faults: list[tuple[int, str]]) -> None:
        table = written(tmp_path / "m.csv", text)
        ran = trainsim(*ASKED, "--matrix", table, "--json")
        assert ran.code == 2
        told = ran.record["faults"]
        assert [fault["where"] for fault in told] == [f"{table}:{line}" if line else str(table) for line, _ in faults]
        assert all(message in fault["message"] and fault["hint"] for (_, message), fault in zip(faults, told, strict=True))

    def test_numbers_are_read_as_people_write_them(self, tmp_path: Path) -> None:
        table = written(tmp_path / "m.csv", '\ufeff 1.5e3 , +2\r\n"0.25",.5E1\r\n\r\n')
        assert read(table).tolist() == [[1500.0, 2.0], [0.25, 5.0]]

    def test_a_file_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "b.csv").write_bytes(b"1,2\n\xff\xfe\x00,3\n")
        for name, message in ((".", "Is a directory"), ("no.csv", "no file"), ("b.csv", "b.csv:2: not a text")):
            ran = trainsim(*ASKED, "--matrix", tmp_path / name)
            assert ran.code == 2
            assert message in ran.err

    def test_what_contradicts_a_matrix_is_refused_all_at_once(self, tmp_path: Path) -> None:
        table = written(tmp_path / "m.csv", "1,2\n3,x\n")
        ran = trainsim("collective", "all-gather", *ASKED[2:], "--matrix", table, "-b", "8", "-f", "2")
        assert ran.code == 2
        for part in ("3 faults", "-b, -f: no sizes beside --matrix", "all_gather takes no matrix of bytes", f"{table}:2: cell 2"):
            assert part in ran.err
        table = written(tmp_path / "m.csv", "1,2\n3,4\n")
        for more, message in (
            (["--gpus", 4], "2 rows, and --gpus 4"),
            (["-e", "8G"], "-e: no sizes"),
            (["--algorithm", "ring"], "ring does no alltoall"),
        ):
            ran = trainsim(*ASKED, "--matrix", table, *more)
            assert (ran.code, message in ran.err) == (2, True)
        assert trainsim(*ASKED, "--matrix", table, "--gpus", 2, "--json").record["gpus"] == 2

    def test_ranks_that_do_not_spread_are_told_where_they_do(self, tmp_path: Path) -> None:
        table = written(tmp_path / "m.csv", "\n".join([",".join(["1"] * 9)] * 9))
        ran = trainsim(*ASKED, "--matrix", table)
        assert "9 GPUs do over 3 nodes" in ran.err
        assert trainsim(*ASKED, "--matrix", table, "--nodes", 3, "--json").record["nodes"] == 3


@pytest.mark.parametrize("name", ["l40s-pcie", "dgx-h100"])
def test_an_exchange_takes_no_longer_where_fewer_ranks_send(name: str) -> None:
    """Each sender sends as much as before, and every receiver gets less."""
    cluster = replace(sim.cluster(name), nodes=1)
    for size_bytes in (1 << 12, 1 << 17, 1 << 20, 1 << 24):
        times = []
        for silent in range(0, 8, 2):
            matrix = np.full((8, 8), float(size_bytes))
            matrix[:silent] = 0
            times.append(collective("alltoall", cluster, gpus=8, matrix=matrix).rows[0].time_s)
        assert all(less <= more * (1 + 1e-9) for more, less in pairwise(times)), size_bytes
