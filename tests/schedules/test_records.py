"""Orders and metrics of public generators, where their records lie beside the checkout.

Every recorded order is evaluated, ours or not, and its metrics compared with those of an independent evaluator. The schedules
that we define too must give the very same orders, or, where a generator only approximates its paper, be no worse.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import OutsideDomain
from simulator.program.layout import Layout, check
from simulator.program.slot import Box, Durations, Pair, Shape, Slot, looped, snaked
from simulator.study.schedule import Evaluation, evaluate

from .bare import layout, plain

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
RECORDS, METRICS = DATA / "schedules.jsonl.gz", DATA / "schedule_metrics.csv"

pytestmark = pytest.mark.skipif(
    not (RECORDS.exists() and METRICS.exists()),
    reason="the recorded orders of the public generators are not beside this checkout",
)

SAME = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "looped_bfs",
    "InterleavedZeroBubble": "interleaved_zb",
    "ZB-H1": "zb_h1",
    "ZB-H2": "zb_h2",
    "Seq1F1B": "seq_1f1b",
    "DualPipe": "dualpipe",
    "DualPipeV": "dualpipe_v",
}
NO_WORSE = {"ZB-H1-light": "zb_h1"}
"""Another order of the same name: it keeps B whole where it can, and delays the gradients that it sends."""


def records(*schedules: str) -> Iterator[dict[str, Any]]:
    """All but torch's "ir" order of 1F1B, which numbers the microbatches of its last rank wrongly."""
    with gzip.open(RECORDS, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            malformed = record["schedule"] == "1F1B" and record.get("origin") == "ir"
            if not malformed and (not schedules or record["schedule"] in schedules):
                yield record


def box(written: list[Any]) -> Box:
    return Pair(Slot(*written[1]), Slot(*written[2])) if written[0] == "FB" else Slot(*written)


def recorded(record: dict[str, Any], durations: Durations) -> Layout:
    """The order of a record as a layout."""
    shape = Shape(record["P"], record["M"], record["V"], durations=durations)
    forth = tuple(range(shape.ranks))
    placements = {"loop": (looped(shape),), "v": (snaked(shape),), "bidirectional": (forth, forth[::-1])}
    of = Layout(shape, placements[record["placement"]], tuple(tuple(map(box, order)) for order in record["ranks"]))
    check(of)
    return of


def ours(record: dict[str, Any], name: str) -> Layout:
    group = record["group"] if "Megatron" in record.get("source", "") else None
    costs = cost(record)
    return layout(
        name, record["P"], record["M"], max(1, record["V"]), group=group, splits=record.get("seq_splits", 1), durations=costs
    )


def cost(record: dict[str, Any]) -> Durations:
    """What the generator was told: F, input gradient, weight gradient and crossing."""
    forward, input_gradient, weight_gradient, comm = record.get("cost_fbwc") or (1, 1, 1, 0)
    return Durations(forward, input_gradient, weight_gradient, comm=comm)


@pytest.mark.parametrize(("schedule", "name"), SAME.items())
def test_orders_and_refusals_are_the_same(schedule: str, name: str) -> None:
    compared = 0
    for record in records(schedule):
        if "ranks" in record:
            assert plain(ours(record, name)) == record["ranks"], record
            compared += 1
        elif name != "1f1b":  # ours takes fewer microbatches than ranks, as Megatron does and torch does not
            with pytest.raises(OutsideDomain):
                ours(record, name)
    assert compared >= 3


@pytest.mark.parametrize(("schedule", "name"), NO_WORSE.items())
def test_orders_that_differ_are_no_worse(schedule: str, name: str) -> None:
    for record in records(schedule):
        for comm in (0.0, 0.1):
            durations = replace(cost(record), comm=comm)
            one, other = (evaluate(replace(of, shape=replace(of.shape, durations=durations))) for of in pair(record, name))
            assert one.makespan <= other.makespan * (1 + 1e-9)
            assert max(one.span_per_rank) <= max(other.span_per_rank) * (1 + 1e-9)
            assert max(one.peaks["peak"]) <= max(other.peaks["peak"])


def pair(record: dict[str, Any], name: str) -> tuple[Layout, Layout]:
    return ours(record, name), recorded(record, cost(record))


def rows() -> dict[tuple[str, ...], list[dict[str, str]]]:
    """The measured rows by what they are of. Points that lie on two grids stand twice."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with METRICS.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(key(row, "mem_limit_PMB"), []).append(row)
    return found


def key(row: dict[str, Any], limit: str) -> tuple[str, ...]:
    fields = [row.get(field) for field in ("schedule", "source", "origin", "P", "V", "M", "group")]
    return (*("" if value is None else str(value) for value in fields), f"{float(row.get(limit) or 0):.6f}")


def metrics(of: Evaluation, parts: int) -> dict[str, float]:
    """The columns of a row without latency, from an evaluation; peaks in microbatches of `parts` chunks."""
    span = max(of.span_per_rank)
    return {
        "makespan": of.makespan,
        "bubble_ratio": of.bubble_ratio,
        "bubble_overhead": of.makespan / max(of.busy) - 1,
        "span_bubble": span - max(of.busy),
        "peak_act_mb": max(of.peaks["peak"]) / parts,
        "peak_act_mb_release_at_I": max(of.peaks["peak_at_I"]) / parts,
        "span": span,
    }


def agree(of: Layout, row: dict[str, str], parts: int) -> None:
    for comm in (0.0, 0.1):
        durations = Durations(1 / parts, 1 / parts, 1 / parts, comm=comm)
        found = evaluate(replace(of, shape=replace(of.shape, durations=durations)))
        for column, value in metrics(found, parts).items():
            written = row.get(f"{column}_c{comm:g}") or (row.get(column) if not comm else None)
            if written:
                assert value == pytest.approx(float(written), abs=1.01e-6), (column, comm, row)
        assert [peak / parts for peak in found.peaks["peak"]] == pytest.approx(
            [float(peak) for peak in row["peak_act_mb_per_rank"].split()], abs=1e-6
        )


def test_every_recorded_order_has_its_metrics() -> None:
    """F = I = W = 1 of a whole rank, split over its chunks and sub-sequences."""
    measured, compared = rows(), 0
    for record in records():
        row = measured.get(key(record, "mem_limit_in_P_MB"), [{}])[0]
        if "ranks" not in record:
            assert row.get("status", "refused") == "refused"
        elif record["schedule"] != "ZB-ILP":  # which have no rows, but a cost of their own: see below
            assert row["status"] == "ok"
            agree(recorded(record, Durations()), row, record["V"] * record.get("seq_splits", 1))
            compared += 1
    assert compared == 249


@pytest.mark.slow
def test_our_orders_have_the_metrics_of_larger_points() -> None:
    """Rows up to P = 8, M = 32, whose orders are not recorded."""
    compared = 0
    for row in (same[0] for same in rows().values()):
        name = SAME.get(row["schedule"])
        if row["status"] == "ok" and name:
            sizes = int(row["P"]), int(row["M"]), int(row["V"])
            group = int(row["group"]) if row["group"] and name == "interleaved" else None
            splits = 2 if name == "seq_1f1b" else 1
            agree(layout(name, *sizes, group=group, splits=splits), row, int(row["V"]) * splits)
            compared += 1
    assert compared > 200


def test_costs_that_generators_report() -> None:
    """The authors' own evaluation of their order: span, and makespan where they give it."""
    compared = 0
    for record in records():
        expected = {name: record.get(name) for name in ("reported_cost", "add_time_max_span", "add_time_makespan")}
        if "ranks" in record and any(expected.values()):
            found = evaluate(recorded(record, cost(record)))
            span = max(found.span_per_rank)
            for name, value in expected.items():
                if value is not None:
                    assert (found.makespan if name == "add_time_makespan" else span) == pytest.approx(value, rel=1e-9), record
                    compared += 1
    assert compared > 80
