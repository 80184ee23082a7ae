"""Closed forms and properties of the schedules that have a definition, to 1e-9."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import catalog
from simulator.errors import OutsideDomain
from simulator.program.layout import Layout
from simulator.program.slot import Pair
from simulator.study.schedule import peaks

from .bare import layout, makespan, plain, result

EXACT = pytest.approx
times = st.floats(0.1, 10)
latencies = st.floats(0, 0.02)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_ratio_sampled(name: str) -> None:
    for ranks in (1, 2, 3, 8, 16):
        for microbatches in (1, 2, 5, 16, 64):
            _check_bubble(name, ranks, microbatches)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_ratio_everywhere(name: str) -> None:
    for ranks in range(1, 17):
        for microbatches in range(1, 65):
            _check_bubble(name, ranks, microbatches)


def _check_bubble(name: str, ranks: int, microbatches: int) -> None:
    got = result(name, ranks, microbatches).as_dict()
    expected = (ranks - 1) / (microbatches + ranks - 1)
    assert got["bubble_ratio"] == EXACT(expected, abs=1e-9)
    assert got["bubble_overhead"] == EXACT((ranks - 1) / microbatches, rel=1e-9, abs=1e-9)
    assert got["makespan"] == EXACT((microbatches + ranks - 1) * 3, rel=1e-9)


@given(st.integers(2, 10), st.integers(1, 6), times, times, latencies)
def test_1f1b_with_latency(ranks: int, k: int, forward: float, backward: float, comm: float) -> None:
    """M = kP and a latency small against the slots: c (2(P - 1)(k + 1) - 2) on top."""
    got = result("1f1b", ranks, k * ranks, forward=forward, backward=backward, comm=comm).makespan
    expected = (k * ranks + ranks - 1) * (forward + backward) + comm * (2 * (ranks - 1) * (k + 1) - 2)
    if comm * 4 * ranks < min(forward, backward):
        assert got == EXACT(expected, rel=1e-9)


@given(st.integers(1, 10), st.integers(1, 20), times, times, st.floats(0, 1))
def test_gpipe_with_latency(ranks: int, microbatches: int, forward: float, backward: float, comm: float) -> None:
    got = result("gpipe", ranks, microbatches, forward=forward, backward=backward, comm=comm).makespan
    assert got == EXACT((microbatches + ranks - 1) * (forward + backward) + 2 * (ranks - 1) * comm, rel=1e-9)


@given(st.integers(1, 8), st.integers(1, 10), times, times)
def test_naive_is_serial(ranks: int, microbatches: int, forward: float, backward: float) -> None:
    got = result("naive", ranks, microbatches, forward=forward, backward=backward).makespan
    assert got == EXACT(microbatches * ranks * (forward + backward), rel=1e-9)


@given(st.integers(2, 8), st.integers(1, 4), st.integers(2, 4), times, times)
def test_interleaved(ranks: int, k: int, chunks: int, forward: float, backward: float) -> None:
    """In units of a chunk: M V (F + B) + (P - 1)(F + B)."""
    got = result("interleaved", ranks, k * ranks, chunks, forward=forward, backward=backward)
    assert got.makespan == EXACT((k * ranks * chunks + ranks - 1) * (forward + backward), rel=1e-9)
    warm = 2 * (ranks - 1) + (chunks - 1) * ranks
    assert got.peaks["peak"][0] == min(warm + 1, chunks * k * ranks)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 3))
def test_interleaved_with_latency(ranks: int, k: int, chunks: int) -> None:
    comm = 0.001
    got = result("interleaved", ranks, k * ranks, chunks, comm=comm).makespan
    assert got == EXACT((k * ranks * chunks + ranks - 1) * 3 + 2 * (ranks * chunks - 1) * comm, rel=1e-9)


@given(st.integers(1, 8), st.integers(0, 20), st.integers(1, 4), times, times)
def test_looped_bfs(ranks: int, more: int, chunks: int, forward: float, backward: float) -> None:
    """In units of a chunk: M V (F + B) + (P - 1)(F + B) for M >= P, with everything alive."""
    got = result("looped_bfs", ranks, ranks + more, chunks, forward=forward, backward=backward)
    assert got.makespan == EXACT(((ranks + more) * chunks + ranks - 1) * (forward + backward), rel=1e-9)
    assert got.peaks["peak"] == [(ranks + more) * chunks] * ranks


@given(st.integers(1, 8), st.integers(0, 20), times, times, st.floats(0.1, 1))
def test_zb_h1(ranks: int, more: int, forward: float, input_gradient: float, part: float) -> None:
    """M(F + I + W) + (P - 1)(F + I - W) for M >= P and W no longer than F and I; P microbatches alive on every rank."""
    weight = part * min(forward, input_gradient)
    got = result("zb_h1", ranks, ranks + more, forward=forward, input_gradient=input_gradient, weight_gradient=weight)
    expected = (ranks + more) * (forward + input_gradient + weight) + (ranks - 1) * (forward + input_gradient - weight)
    assert got.makespan == EXACT(expected, rel=1e-9)
    assert got.peaks["peak"] == [ranks] * ranks


@given(st.integers(1, 8), st.integers(0, 20), times, latencies)
def test_zb_h2(ranks: int, more: int, slot: float, latency: float) -> None:
    """F = I = W: no rank idles but for two crossings per neighbour, and the ranks start one after the other."""
    microbatches, comm = 2 * ranks + more, latency * slot
    got = result("zb_h2", ranks, microbatches, forward=slot, input_gradient=slot, weight_gradient=slot, comm=comm)
    assert max(got.span_per_rank) == EXACT(3 * microbatches * slot + 2 * comm * (ranks - 1), rel=1e-9)
    if not comm:
        assert got.makespan == EXACT((3 * microbatches + ranks - 1) * slot, rel=1e-9)
    assert got.peaks["peak"] == [2 * ranks - 1] * ranks


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), times, times, st.floats(0.1, 1))
def test_interleaved_zb(ranks: int, k: int, chunks: int, forward: float, input_gradient: float, part: float) -> None:
    """In units of a chunk: M V (F + I + W) + (P - 1)(F + I - W) where P divides M; P microbatches alive on every rank."""
    weight = part * min(forward, input_gradient)
    both = forward + input_gradient
    got = result(
        "interleaved_zb", ranks, k * ranks, chunks, forward=forward, input_gradient=input_gradient, weight_gradient=weight
    )
    assert got.makespan == EXACT(k * ranks * chunks * (both + weight) + (ranks - 1) * (both - weight), rel=1e-9)
    assert got.peaks["peak"] == [ranks * chunks] * ranks


@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 5), times, times)
def test_seq_1f1b(ranks: int, microbatches: int, splits: int, forward: float, backward: float) -> None:
    """F and B of a sub-sequence: (kM + P - 1)(F + B) where the pipeline fills; P - 1 - r + k sub-sequences alive."""
    units = microbatches * splits
    got = result("seq_1f1b", ranks, units, splits=splits, forward=forward, backward=backward)
    if units >= ranks + splits - 1:
        assert got.makespan == EXACT((units + ranks - 1) * (forward + backward), rel=1e-9)
    assert got.peaks["peak"] == [min(ranks - 1 - rank + splits, units) for rank in range(ranks)]


@given(st.integers(1, 4), st.integers(0, 6), times)
def test_dualpipe(half: int, more: int, slot: float) -> None:
    """F = I = W, FB = F + B: span M(F + B) + (P/2 - 1)(FB + B - 3W); P + 1 microbatches alive on every rank."""
    ranks, microbatches = 2 * half, 4 * half + 2 * more
    got = result("dualpipe", ranks, microbatches, forward=slot, input_gradient=slot, weight_gradient=slot)
    assert max(got.span_per_rank) == EXACT((3 * microbatches + 2 * (half - 1)) * slot, rel=1e-9)
    assert got.peaks["peak"] == [ranks + 1] * ranks


@given(st.integers(1, 6), st.integers(0, 9), times)
def test_dualpipe_v(ranks: int, more: int, slot: float) -> None:
    """The same with 2P for P, in units of a chunk."""
    microbatches = 2 * ranks + more
    got = result("dualpipe_v", ranks, microbatches, forward=slot, input_gradient=slot, weight_gradient=slot)
    assert max(got.span_per_rank) == EXACT((6 * microbatches + 2 * (ranks - 1)) * slot, rel=1e-9)
    assert got.peaks["peak"] == [2 * ranks + 1] * ranks


@given(st.integers(1, 6), st.integers(0, 9))
def test_dualpipe_v_is_dualpipe_cut_in_half(ranks: int, more: int) -> None:
    """The upper ranks of DualPipe with its second direction renumbered."""
    microbatches = 2 * ranks + more
    whole = layout("dualpipe", 2 * ranks, 2 * microbatches).orders[:ranks]
    assert [[_renumbered(box, microbatches) for box in order] for order in whole] == [
        list(order) for order in layout("dualpipe_v", ranks, microbatches).orders
    ]


def _renumbered(box: Any, microbatches: int) -> Any:
    if isinstance(box, Pair):
        return Pair(_renumbered(box.forward, microbatches), _renumbered(box.backward, microbatches))
    return box._replace(microbatch=box.microbatch % microbatches)


def test_a_shorter_pair_is_felt() -> None:
    assert result("dualpipe", 4, 16, pair=2.5).makespan < result("dualpipe", 4, 16).makespan


@given(st.integers(1, 8), st.integers(1, 5), times)
def test_chimera(half: int, k: int, slot: float) -> None:
    """F = B and P divides M: ratio (P - 2) / (2M + P - 2). P microbatches alive at most, for M = P on the middle ranks alone."""
    ranks, microbatches = 2 * half, 2 * half * k
    got = result("chimera", ranks, microbatches, forward=slot, backward=slot)
    assert got.bubble_ratio == EXACT((ranks - 2) / (2 * microbatches + ranks - 2), abs=1e-9)
    assert max(got.peaks["peak"]) == ranks
    if k == 1:
        assert min(got.peaks["peak"]) == half + 1


@given(st.integers(1, 12), times)
def test_chimera_with_long_backward_passes(half: int, slot: float) -> None:
    """B = 2F and M = P: ratio (P - 2) / (1.5M + P - 2)."""
    ranks = 2 * half
    got = result("chimera", ranks, ranks, forward=slot, backward=2 * slot)
    assert got.bubble_ratio == EXACT((ranks - 2) / (2.5 * ranks - 2), abs=1e-9)


@pytest.mark.parametrize("ranks", [4, 6, 8, 12, 16])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_chimera_with_long_backward_passes_and_many_microbatches(ranks: int, k: int) -> None:
    """Without forward doubling the paper's ratio for B = 2F is not met; how far off we are is said here."""
    got = result("chimera", ranks, k * ranks, forward=1, backward=2).bubble_ratio
    expected = (ranks - 2) / (1.5 * k * ranks + ranks - 2)
    assert expected - 1e-9 <= got < expected + 0.055


@given(st.integers(1, 8), st.integers(0, 7))
def test_chimera_of_few_microbatches(half: int, fewer: int) -> None:
    """M <= P: the last stage of a direction works without a pause from P - 1 slots after the start to P - 1 before the end."""
    ranks, microbatches = 2 * half, max(2, 2 * half - 2 * fewer)
    got = result("chimera", ranks, microbatches, forward=1, backward=1)
    assert got.makespan == EXACT(2 * (ranks - 1) + microbatches, rel=1e-9)


@given(st.integers(1, 10), st.integers(1, 4), times)
def test_hanayo(ranks: int, waves: int, slot: float) -> None:
    """B = 2F and M = P: ratio (2P - 2) / (3PW + 2P - 2), no more than the paper's; P microbatches alive."""
    got = result("hanayo", ranks, ranks, 2 * waves, forward=slot, backward=2 * slot)
    assert got.bubble_ratio == EXACT((2 * ranks - 2) / (3 * ranks * waves + 2 * ranks - 2), abs=1e-9)
    assert max(got.peaks["peak"]) == 2 * waves * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_hanayo_meets_the_papers_ratio(ranks: int, waves: int, k: int) -> None:
    got = result("hanayo", ranks, k * ranks, 2 * waves, forward=1, backward=2)
    assert got.bubble_ratio <= (2 * ranks - 2) / (3 * ranks * waves + ranks - 1) + 1e-9
    assert max(got.peaks["peak"]) <= 2 * waves * ranks


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 12))
def test_bounds_on_every_rank_are_exact(half: int, waves: int, microbatches: int) -> None:
    """Of both list schedules, not only on the fullest rank."""
    ranks = 2 * half
    cases = [layout("chimera", ranks, 2 * microbatches), layout("hanayo", ranks, min(microbatches, ranks), 2 * waves)]
    for of, name in zip(cases, ("chimera", "hanayo"), strict=True):
        declared = catalog.module("schedules", name).in_flight
        assert peaks(of)["peak"] == [declared(rank, of.shape) for rank in range(ranks)]


@given(st.integers(1, 10), st.integers(1, 24))
def test_what_schedules_become_at_the_edge(ranks: int, microbatches: int) -> None:
    assert plain(layout("seq_1f1b", ranks, microbatches)) == plain(layout("1f1b", ranks, microbatches))
    if microbatches % ranks == 0:
        assert plain(layout("interleaved_zb", ranks, microbatches)) == plain(layout("zb_h1", ranks, microbatches))
    bfs, gpipe = layout("looped_bfs", ranks, microbatches), layout("gpipe", ranks, microbatches)
    assert makespan(bfs) == makespan(gpipe)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "options", "nearest"),
    [
        ("zb_h2", 4, 7, {}, {"microbatches": 8}),
        ("interleaved_zb", 4, 9, {"chunks": 2}, {"microbatches": 8}),
        ("seq_1f1b", 4, 7, {"splits": 3}, {"microbatches": 6}),
        ("seq_1f1b", 4, 8, {"splits": 3}, {"microbatches": 9}),
        ("seq_1f1b", 4, 1, {"splits": 3}, {"microbatches": 3}),
        ("dualpipe", 3, 9, {}, {"ranks": 4, "microbatches": 10}),
        ("dualpipe", 4, 6, {}, {"ranks": 4, "microbatches": 8}),
        ("dualpipe_v", 4, 7, {}, {"microbatches": 8}),
        ("chimera", 3, 5, {}, {"ranks": 4, "microbatches": 6}),
        ("hanayo", 4, 4, {"chunks": 3}, {"chunks": 4}),
    ],
)
def test_refusals(name: str, ranks: int, microbatches: int, options: dict[str, int], nearest: dict[str, int]) -> None:
    with pytest.raises(OutsideDomain) as refused:
        layout(name, ranks, microbatches, **options)
    assert refused.value.nearest == nearest
    sizes = {"ranks": ranks, "microbatches": microbatches, **options, **nearest}
    layout(name, **sizes)


@pytest.mark.parametrize("name", sorted(set(catalog.files("schedules")) - {"optimal"}))
def test_all_that_a_refusal_proposes_is_legal(name: str) -> None:
    """The nearest values, and those of another field with everything else as asked."""
    for ranks, microbatches, chunks, group in product((1, 2, 3, 4, 8), (1, 2, 3, 7, 9, 13), (1, 2, 3), (None, 1, 4, 9)):
        asked = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks, "group": group}
        for proposed in proposals(name, asked):
            layout(name, **{**asked, **proposed})


def proposals(name: str, asked: dict[str, Any]) -> list[dict[str, int]]:
    """What the refusal of a shape proposes in its place; nothing for a legal shape."""
    try:
        layout(name, **asked)
    except OutsideDomain as refused:
        return [refused.nearest, *([refused.other] if refused.other else [])]
    return []


def test_1f1b_holds_what_it_declares() -> None:
    assert result("1f1b", 8, 32).peaks["peak"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert result("gpipe", 4, 32).peaks["peak"] == [32] * 4


def test_durations_scale_everything() -> None:
    once, larger = (
        result("1f1b", 4, 8).as_dict(),
        result("1f1b", 4, 8, forward=1000.0, input_gradient=1000.0, weight_gradient=1000.0).as_dict(),
    )
    assert larger["makespan"] == EXACT(1000 * once["makespan"], rel=1e-12)
    assert larger["bubble_ratio"] == EXACT(once["bubble_ratio"], abs=1e-12)


NAMES = sorted(catalog.files("schedules"))


def layouts(name: str, ranks: range, microbatches: range) -> Iterator[Layout]:
    """Every legal layout of a grid, each once."""
    fixed = getattr(catalog.module("schedules", name), "CHUNKS", None)
    splits = (1, 2, 3) if name == "seq_1f1b" else (1,)
    for p in ranks:
        for v in [fixed] if fixed else range(1, 5):
            for m in microbatches:
                for k in splits:
                    try:
                        yield layout(name, p, m, v, splits=k)
                    except OutsideDomain:
                        continue


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NAMES)
def test_two_evaluations_agree(name: str) -> None:
    tried = 0
    for of in layouts(name, range(1, 6), range(1, 13, 3 if name != "chimera" else 1)):
        shape = of.shape
        again = result(name, shape.ranks, shape.microbatches, shape.chunks, splits=shape.splits)
        assert again.makespan == EXACT(makespan(of), rel=1e-9)
        tried += 1
    assert tried


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_deadlock_anywhere(name: str) -> None:
    schedule = catalog.module("schedules", name)
    """On up to 16 ranks: with up to 20 microbatches, and then with some numbers of them up to 64."""
    for of in chain(layouts(name, range(2, 17), range(1, 21)), layouts(name, range(2, 17), (24, 33, 48, 64))):
        assert makespan(of) is not None, of.shape
        for rank, peak in enumerate(peaks(of)["peak"]):
            assert peak <= schedule.in_flight(rank, of.shape), of.shape
