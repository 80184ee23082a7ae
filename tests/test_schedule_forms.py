"""Closed forms of the schedules, to 1e-9, and the orders of the public generators where their records are at hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import OutsideDomain
from simulator.program.slot import Durations, Shape, lay_out
from simulator.study import catalog
from simulator.study.evaluate import Evaluation, evaluate

RECORDS = Path(__file__).resolve().parents[2] / "shared" / "data" / "schedules.jsonl.gz"
EXACT = pytest.approx


def result(name: str, ranks: int, microbatches: int, chunks: int = 1, group: int | None = None, **durations: float) -> Evaluation:
    schedule = catalog.module("schedules", name)
    return evaluate(lay_out(schedule, Shape(ranks, microbatches, chunks, group, durations=Durations(**durations))))


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


times = st.floats(0.1, 10)


@given(st.integers(2, 10), st.integers(1, 6), times, times, st.floats(0, 0.02))
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


@pytest.mark.skipif(not RECORDS.exists(), reason="the recorded orders of the public generators are not beside this checkout")
@pytest.mark.parametrize(("recorded", "name"), [("GPipe", "gpipe"), ("1F1B", "1f1b"), ("Interleaved1F1B", "interleaved")])
def test_orders_are_those_of_the_public_generators(recorded: str, name: str) -> None:
    compared = 0
    for line in gzip.open(RECORDS, "rt", encoding="utf-8"):
        record = json.loads(line)
        if record.get("schedule") != recorded or (record.get("origin") == "ir" and name == "1f1b"):
            continue
        group = record.get("group") if "Megatron" in record["source"] else None
        shape = Shape(record["P"], record["M"], max(1, record["V"]), group)
        if "ranks" not in record:
            if name == "interleaved":
                with pytest.raises(OutsideDomain):
                    lay_out(catalog.module("schedules", name), shape)
            continue
        layout = lay_out(catalog.module("schedules", name), shape)
        assert [[list(slot) for slot in order] for order in layout.orders] == record["ranks"]
        compared += 1
    assert compared > 20
