"""Transfers that block: section 1 of the second half of docs/semantics.md, from its sixth sentence on.

They are compared with a second way to compute when every slot starts, in `blocking.py`, which shares nothing with the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import catalog, user_code
from simulator.engine import des
from simulator.engine.fold import fold, unfolded
from simulator.engine.replay import replay, with_fixed_durations
from simulator.errors import OutsideDomain, UserError
from simulator.plan.plan import Fidelity
from simulator.program.layout import Layout, lay_out
from simulator.program.operations import COMPUTE
from simulator.program.slot import Exchange, Shape, Slot, slots_of
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.workload.framework import Framework, HostTimes

from ..small_scenarios import Both, both, bound, bound_twice, scenario, small_cluster, small_model
from .blocking import Pipeline, by_itself, crossing, does, megatron

NAMES = sorted(catalog.files("schedules"))
GROUPED = ("1f1b", "interleaved")
SLOTS = ("F", "B", "I", "W")
PAIRED = ("dualpipe", "dualpipe-v")
SMALL = Shape(ranks=4, microbatches=8, chunks=2)
SEARCHED = {"optimal": 16}
"""Schedules that are searched for, and the most slots that they are asked for here."""


def of_shape(
    schedule: Any, shape: Shape, *, blocks: bool = True, tp: int = 1, latency: str = "3 us", layout: Any = (), **more: Any
) -> Scenario:
    """A scenario in which a rank has one node's GPU, and each stage one layer, or as many as the layout says. Chunks are those
    that the schedule runs."""
    chunks = getattr(catalog.module("schedules", schedule), "CHUNKS", shape.chunks)
    overlap, layout = sim.Overlap(pp=not blocks), layout or (1,) * (shape.ranks * chunks)
    plan = sim.Plan(
        tp=tp, pp=shape.ranks, dp=1, chunks=chunks, schedule=schedule, group=shape.group, overlap=overlap, layout=layout
    )
    job = sim.Job(sequence_length=512, global_batch=shape.microbatches)
    cluster = small_cluster(1, gpus_per_node=tp * shape.ranks, latency={"nvlink": latency})
    return scenario(small_model(layers=sum(layout)), cluster, plan, job, **more)


def run_of(schedule: Any, shape: Shape, **more: Any) -> Run:
    return of_shape(schedule, shape, fidelity=Fidelity(collectives="closed"), **more).simulate(steps=1)


def taken(name: str, shapes: Sequence[Shape]) -> Iterator[Layout]:
    """The layouts of a schedule on those shapes that it takes."""
    for shape in dict.fromkeys(shapes):
        if shape.stages * shape.microbatches <= SEARCHED.get(name, shape.stages * shape.microbatches):
            try:
                yield lay_out(catalog.module("schedules", name), shape)
            except OutsideDomain:
                continue


def expected(run: Run, layout: Layout, doing: list[list[Any]]) -> dict[Slot, int]:
    rows = run.timeline.to_pandas()
    lasts = {
        (phase, stage): int(of.end_ns.max() - of.start_ns.min())
        for (phase, stage, microbatch), of in rows[(rows.stream == COMPUTE) & rows.phase.isin(SLOTS)].groupby(
            ["phase", "stage", "microbatch"]
        )
        if microbatch == 0
    }
    sent = rows[rows.kind == "send"]
    (crossing_ns,), (tail_ns,) = set(sent.end_ns - sent.start_ns), set(sent.arrival_ns - sent.end_ns)
    assert 0 < crossing_ns < tail_ns
    ranks = dict(enumerate(layout.placement))
    return Pipeline(doing, ranks, layout.stages - 1, int(crossing_ns), int(tail_ns), lasts).run()


def found(run: Run) -> dict[Slot, int]:
    rows = run.timeline.to_pandas()
    rows = rows[(rows.stream == COMPUTE) & rows.phase.isin(SLOTS)]
    starts = rows.groupby(["phase", "stage", "microbatch"]).start_ns.min()
    return {Slot(*key): int(start) for key, start in starts.items()}


ALONE = [name for name in NAMES if name not in (*GROUPED, *PAIRED, "chimera", "seq-1f1b")]
SHAPES = [Shape(r, m, v) for r in (2, 4) for m in (2, 8) for v in (1, 2)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ALONE)
def test_t1_6_behind_every_box_a_rank_waits_for_what_it_sends(name: str) -> None:
    seen = 0
    for layout in taken(name, [SMALL, *SHAPES] if name not in SEARCHED else [Shape(2, 3)]):
        run = run_of(name, layout.shape)
        doing = [by_itself(lay_out_as_run(run), rank) for rank in range(layout.shape.ranks)]
        assert found(run) == expected(run, layout, doing)
        seen += 1
    assert seen


def lay_out_as_run(run: Run) -> Layout:
    """The layout of a run, read off its program: a schedule that depends on durations was given those of the run."""
    slots = ((Slot(s.phase, s.stage, s.microbatch) for s in steps if s.phase in SLOTS) for steps in run.program.orders)
    placement = tuple(stage.rank for stage in run.program.stages)
    return Layout(run_shape(run), (placement,), tuple(map(tuple, slots)))


def test_t1_6_schedules_from_outside_do_so_too(tmp_path: Any) -> None:
    """An order that is Megatron's is exchanged like any other if nobody says that it is."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from simulator.schedules import interleaved\n\ndef order(rank, shape):\n    return interleaved.order(rank, shape)\n"
    )
    interleaved = catalog.module("schedules", "interleaved")
    mine, theirs = SimpleNamespace(order=interleaved.order, __name__="mine"), run_of("interleaved", SMALL)
    layout = lay_out(interleaved, SMALL)
    doing = [by_itself(layout, rank) for rank in range(SMALL.ranks)]
    for schedule in (mine, user_code.imported(f"{file}:order")):
        run = run_of(schedule, SMALL)
        assert found(run) == expected(run, layout, doing) != found(theirs)


def test_t1_6_one_that_defines_exchanges_is_taken_at_its_word() -> None:
    interleaved = catalog.module("schedules", "interleaved")
    mine = SimpleNamespace(order=interleaved.order, exchanges=interleaved.exchanges, __name__="mine")
    assert found(run_of(mine, SMALL)) == found(run_of("interleaved", SMALL))
    for change, message in (
        ({"exchanges": lambda rank, shape: [Exchange(None, receives=(Slot("F", 1, 0),))]}, "exchanges of rank 0 name 1F0"),
        ({"exchanges": lambda rank, shape: [("F", 1)]}, "mine exchanges"),
        ({"exchanges": lambda rank, shape: 1 / 0}, "exchanges(rank=0) of mine raised ZeroDivisionError"),
        ({"exchanges": lambda rank, shape: repeat(Exchange(None))}, "mine does not stop"),
    ):
        with pytest.raises(UserError) as error:
            run_of(SimpleNamespace(order=interleaved.order, __name__="mine", **change), SMALL)
        assert message in str(error.value)
    waits = SimpleNamespace(order=catalog.module("schedules", "gpipe").order, CHUNKS=1, __name__="mine")
    waits.exchanges = lambda rank, shape: [Exchange(None, receives=(Slot("B", rank, 0),))]
    with pytest.raises(sim.Deadlock, match="wait for transfers"):
        run_of(waits, Shape(2, 4))


def test_t1_7_what_is_sent_is_waited_for_on_its_edge_and_what_is_received_as_a_predecessor() -> None:
    """So the sender goes on when its edge is free, and the receiver when the data is there."""
    for schedule in ("gpipe", "interleaved"):
        of = of_shape(schedule, SMALL)
        bound_of = bound(of)
        for template, labels in zip(bound_of.skeleton.templates, bound_of.labels, strict=True):
            lanes = [set(template.lanes.row(lane).tolist()) for lane in range(len(template.lanes))]
            edges = [lane for lane, name in enumerate(labels.lanes) if name.partition(" ")[0] in ("activation", "gradient")]
            waits = np.flatnonzero(labels.is_wait).tolist()
            for row in waits:
                assert row in lanes[labels.lanes.index(COMPUTE)]
                assert set(labels.kind[template.preds.row(row)]) <= {"receive"}
            sent = np.flatnonzero(labels.kind == "send").tolist()
            for row in sent:
                (edge,) = (lane for lane in edges if row in lanes[lane])
                order = template.lanes.row(edge).tolist()
                assert order[order.index(row) + 1] in waits
            if schedule == "gpipe":
                assert not set(template.preds.idx[np.isin(template.preds.row_of, waits)].tolist())


def test_t1_7_a_long_wire_delays_the_receiver_and_not_the_sender() -> None:
    shape = Shape(2, 6)
    near, far = (found(run_of("gpipe", shape, latency=latency)) for latency in ("0 us", "2 ms"))
    forward = [slot for slot in near if slot.kind == "F"]
    assert all(far[slot] == near[slot] for slot in forward if slot.stage == 0)
    assert {far[slot] - near[slot] for slot in forward if slot.stage == 1} == {2 * 2_000_000}


# Megatron's exchanges


MEGATRON = [
    Shape(ranks, microbatches, chunks, group)
    for ranks in (2, 3, 4, 8)
    for chunks in (1, 2, 3)
    for microbatches in (1, 2, 3, 4, 5, 8, 9, 16, 24)
    for group in ((None,) if chunks == 1 else tuple(g for g in (ranks, ranks + 1, microbatches) if g <= microbatches))
]


@pytest.mark.parametrize("name", GROUPED)
def test_t1_8_1f1b_and_interleaved_exchange_what_megatron_does(name: str) -> None:
    seen = 0
    for layout in taken(name, [shape for shape in MEGATRON if shape.chunks == 1 or name == "interleaved"]):
        shape = layout.shape
        for rank in range(shape.ranks):
            group = shape.group or shape.ranks
            theirs = megatron(rank, shape.ranks, shape.microbatches, shape.chunks, group)
            assert crossing(does(layout, rank), layout) == crossing(theirs, layout)
        seen += 1
    assert seen > 30


@pytest.mark.parametrize("name", GROUPED)
def test_t1_8_and_wait_for_a_whole_exchange_whose_sends_leave_together(name: str) -> None:
    chunks = 3 if name == "interleaved" else 1
    for shape in (Shape(4, 8, chunks), Shape(2, 3, 1), Shape(4, 2, 1), Shape(8, 8, chunks), Shape(3, 6)):
        layout = lay_out(catalog.module("schedules", name), shape)
        doing = [
            [thing if isinstance(thing, Slot) else Exchange(None, *map(tuple, thing)) for thing in does(layout, rank)]
            for rank in range(shape.ranks)
        ]
        run = run_of(name, shape)
        assert found(run) == expected(run, layout, doing)


def test_t1_8_schedules_of_one_chunk_are_one_whatever_their_name() -> None:
    for shape in (Shape(4, 8), Shape(3, 2)):
        assert found(run_of("interleaved", shape)) == found(run_of("1f1b", shape))


def test_t1_9_what_a_pair_sends_leaves_when_both_slots_have_ended() -> None:
    """Also where the forward slot of a pair is the longer one, as where its stage has more layers."""
    uneven = (1, 3, 1, 1)
    for name, shape, layout in (
        ("dualpipe-v", Shape(2, 8, 2), ()),
        ("dualpipe-v", Shape(2, 8, 2), uneven),
        ("dualpipe", Shape(4, 8), ()),
        ("dualpipe", Shape(4, 8), uneven),
    ):
        run = run_of(name, shape, layout=layout)
        rows, number = run.timeline.to_pandas(), [stage.number for stage in run.program.stages]
        kernels = rows[rows.phase.isin(SLOTS)].groupby(["rank", "phase", "stage", "microbatch"]).end_ns.max()
        sent = rows[rows.kind == "send"].set_index(["rank", "stream", "stage", "microbatch"]).start_ns
        leaving = 0
        for rank, steps in enumerate(run.program.orders):
            for pair in {step.pair for step in steps} - {-1}:
                slots = [(s.phase, number[s.stage], s.microbatch) for s in steps if s.pair == pair]
                ended = max(kernels.loc[(rank, *slot)] for slot in slots)
                for phase, stage, microbatch in slots:
                    kind = "activation" if phase == "F" else "gradient"
                    for (r, stream, of, m), start in sent.items():
                        if (r, of, m) == (rank, stage, microbatch) and stream.startswith(kind):
                            assert start == ended
                            leaving += 1
        assert leaving > 4


@pytest.mark.parametrize("layout", [(), (1, 3, 1, 1)])
def test_t1_9_an_exchange_behind_either_slot_of_a_pair_stands_behind_both(layout: Any) -> None:
    """A schedule of one's own may name the first slot of a pair too: nothing deadlocks."""
    theirs = catalog.module("schedules", "dualpipe-v")

    def exchanges(rank: int, shape: Shape) -> Iterator[Exchange]:
        slots = (slot for box in theirs.order(rank, shape) for slot in slots_of(box))
        return (Exchange(slot, (slot,)) for slot in slots if slot.kind != "W")

    names = {name: getattr(theirs, name) for name in ("CHUNKS", "PAIRS", "placement", "order")}
    mine = SimpleNamespace(**names, exchanges=exchanges, __name__="mine")
    shape = Shape(2, 8, 2)
    assert found(run_of(mine, shape, layout=layout)) == found(run_of("dualpipe-v", shape, layout=layout))


# Laws over all schedules


@cache
def grid(name: str, *, wide: bool) -> tuple[Shape, ...]:
    """Shapes that the schedule takes, once each as it takes them: few and many microbatches, one chunk and several."""
    counts = (1, 2, 4, 5, 7, 12, 16) if wide else (1, 3, 8, 12)
    shapes = [Shape(r, m, v) for r in (2, 3, 4, 8) for m in counts for v in ((1, 2, 3) if wide else (1, 2))]
    if name == "interleaved":
        shapes += [Shape(r, m, 2, g) for r in (2, 4) for m, g in ((8, 6), (9, 5), (8, 8), (12, 5))]
    return tuple(dict.fromkeys(layout.shape for layout in taken(name, shapes)))


def assert_none_waits_for_ever(name: str, shape: Shape, **more: Any) -> None:
    """The event loop ends, and replay and folding give its integers."""
    whole, folded = bound_twice(of_shape(name, shape, **more))
    each, alike = unfolded(whole), fold(folded)
    every, some = (with_fixed_durations(of.graph, every=True) for of in (each, alike))
    Both(each, alike, replay(every), des.simulate(some)).assert_equal()
    Both(each, alike, replay(every), replay(some)).assert_equal()


SYNCED = Framework(host=HostTimes(kernel_s=2e-6, collective_s=5e-6), p2p_sync=True)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("blocks", [True, False], ids=["blocking", "overlapped"])
def test_t1_10_no_schedule_waits_in_a_circle(name: str, blocks: bool) -> None:
    """Every second shape; the wide grid has them all, and takes long."""
    for shape in grid(name, wide=False)[::2]:
        assert_none_waits_for_ever(name, shape, blocks=blocks)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", NAMES)
def test_t1_10_nor_where_the_host_waits_too(name: str) -> None:
    for shape in grid(name, wide=False)[::3]:
        assert_none_waits_for_ever(name, shape, framework=SYNCED)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [{}, {"blocks": False}, {"framework": SYNCED}], ids=["blocking", "overlapped", "host"])
def test_t1_10_on_a_wide_grid(name: str, more: dict[str, Any]) -> None:
    for shape in grid(name, wide=True):
        assert_none_waits_for_ever(name, shape, **more)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", NAMES)
def test_t1_10_under_contention_folding_is_exact(name: str) -> None:
    shape = grid(name, wide=False)[-1]
    both(*bound_twice(of_shape(name, shape, tp=2))).assert_equal()


@settings(max_examples=10)
@given(st.sampled_from(NAMES), st.data())
def test_t1_11_blocking_moves_the_same_and_starts_nothing_earlier(name: str, data: st.DataObject) -> None:
    """Where transfers have fixed durations. Under contention one that is later may meet less traffic, and end earlier."""
    shape = data.draw(st.sampled_from(grid(name, wide=False)))
    speed = data.draw(st.sampled_from([0.5, 1.0, 1.7]))
    slow = (sim.Perturb(rank=data.draw(st.integers(0, shape.ranks - 1)), speed=speed),)
    free, held = (run_of(name, shape, blocks=blocks, perturb=slow).timeline.to_pandas() for blocks in (False, True))
    held = held[held.kind != "wait"]
    assert len(held) == len(free)
    edges = ["rank", "stream", "kind", "stage", "microbatch", "payload_bytes", "wire_bytes"]
    for (one, mine), (other, theirs) in zip(carried(free), carried(held), strict=True):
        assert one == other
        assert mine[edges].to_numpy().tolist() == theirs[edges].to_numpy().tolist()
    what = ["rank", "kind", "phase", "stage", "microbatch", "block", "stream"]
    before, after = (rows.set_index(what).sort_index() for rows in (free, held))
    assert before.index.is_unique
    assert (after.start_ns >= before.loc[after.index].start_ns).all()
    assert (after.arrival_ns >= before.loc[after.index].arrival_ns).all()


def carried(rows: Any) -> Any:
    """Both ends of what every edge carries, in its order."""
    ends = rows[rows.kind.isin(["send", "receive"])].sort_values(["start_ns", "end_ns"], kind="stable")
    return ends.groupby(["rank", "stream"])


@pytest.mark.parametrize("name", ["gpipe", "zb-h1"])
def test_t1_12_waiting_for_a_transfer_in_progress_is_exposed_time_of_pp(name: str) -> None:
    """Of two ranks: whatever moves while one of them idles is what that waits for, a sender until its edge is free."""
    for latency in ("0 us", "3 us"):
        run = run_of(name, Shape(2, 6), latency=latency)
        rows, exposed = run.timeline.to_pandas(), run.time_by_cause.of("pp")[run.engine_timeline.class_of]
        for rank in range(2):
            mine = rows[rows["rank"] == rank]
            sent, received = (mine[mine.kind == kind] for kind in ("send", "receive"))
            idle = ~during(mine[mine.stream == COMPUTE], "end_ns", run)
            least = idle & (during(sent, "end_ns", run) | during(received, "arrival_ns", run))
            most = idle & (during(sent, "arrival_ns", run) | during(received, "arrival_ns", run))
            assert 0 < least.sum() <= exposed[rank] <= most.sum()
            assert least.sum() == most.sum() or latency != "0 us"


def during(rows: Any, until: str, run: Run) -> Any:
    """For each nanosecond of the step, whether one of some operations is in progress."""
    marks = np.zeros(int(run.observation.window_ns.max()), dtype=bool)
    for start, end in zip(rows.start_ns, rows[until], strict=True):
        marks[start:end] = True
    return marks


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", NAMES)
def test_t1_12_blocking_exposes_more_and_adds_up_to_the_step(name: str) -> None:
    shape = grid(name, wide=False)[-1]
    free, held = (run_of(name, shape, blocks=blocks) for blocks in (False, True))
    assert (held.time_by_cause.ns.sum(axis=1) == held.observation.window_ns).all()
    assert held.metrics.exposed_s["pp"] >= free.metrics.exposed_s["pp"] > 0
    assert held.metrics.exposed_s["pp"] > free.metrics.exposed_s["pp"] or name == "naive"


def run_shape(run: Run) -> Shape:
    plan = run.scenario.plan
    return Shape(plan.pp, run.scenario.job.global_batch, plan.chunks)
