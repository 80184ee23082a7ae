"""Embedding and head that the pipeline ranks divide: what each holds and computes, volumes, order of slots, memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import catalog, feasible
from simulator.errors import UserError
from simulator.kernels import Gemm, Part, Split
from simulator.plan.stage_layers import stage_layers
from simulator.program.layout import Layout, check, lay_out
from simulator.program.operations import AnyOp, Collective, Compute
from simulator.program.program import Program
from simulator.program.slot import Shape, Slot, slots_of
from simulator.schedules._vocabulary import BARRIERS, with_vocabulary
from simulator.simulation.memory_check import memory_of
from simulator.simulation.run import Run
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import scenario, small_cluster, small_model

SCHEMES = ["vocab-1", "vocab-2", "interlaced"]
MODEL, JOB = small_model(tied_embeddings=False), sim.Job(128, 12)
TOKENS, MICROBATCHES = 128, 12
EMBEDDINGS, HEADS = 4, 8
"""The first stages that are shares of the embedding and of the head."""


def of(scheme: Any, model: Any = MODEL, schedule: str = "1f1b", **plan: Any) -> Any:
    """A scenario of four pipeline ranks and twelve microbatches of a replica."""
    plan = {"tp": 1, "pp": 4, "schedule": schedule, "chunks": 2 if schedule == "v-half" else 1, **plan}
    gpus = plan["tp"] * plan["pp"]
    return scenario(model, small_cluster(max(1, gpus // 4)), sim.Plan(vocabulary=scheme, **plan), JOB)


def ops_of(program: Program, rank: int = 0) -> list[AnyOp]:
    """The operations of a rank in a step, in program order."""
    return [op for step in program.orders[rank] for op in program.bodies[step.body].ops]


def slots(layout: Layout, rank: int) -> list[Slot]:
    return [slot for box in layout.orders[rank] for slot in slots_of(box)]


def alive(layout: Layout, rank: int) -> int:
    """The largest number of chunks of layers whose activations a rank holds."""
    changes = [{"F": 1, "I": 0}.get(slot.kind, -1) for slot in slots(layout, rank) if slot.stage < layout.layered]
    return int(np.cumsum(changes).max())


@pytest.mark.parametrize(("scheme", "tp"), [("vocab-1", 1), ("vocab-2", 2), ("interlaced", 1)])
def test_t18_1_every_rank_holds_as_many_rows_of_both_tables(scheme: str, tp: int) -> None:
    one = of(scheme, tp=tp)
    rows, layers = MODEL.vocab // (4 * tp), 2 * (MODEL.layer_parameters - 2 * MODEL.hidden) // tp + 4 * MODEL.hidden
    held = [memory.parameters_bytes // 2 for memory in memory_of(one, layout_of(one))]
    assert held == [layers + 2 * rows * MODEL.hidden + (MODEL.hidden if rank == 3 else 0) for rank in range(4)]
    assert stage_layers(one.plan, small_model(layers=10), 128, 4) == (3, 3, 2, 2)  # not 2, 3, 3, 2


def test_t18_1_a_vocabulary_that_does_not_divide_is_padded_and_positions_stay_on_the_first_stage() -> None:
    size: dict[str, Any] = {
        "layers": 9,
        "vocab": 4100,
        "positions": "learned",
        "max_sequence_length": 128,
        "tied_embeddings": False,
    }
    program = program_of(of("vocab-2", small_model(**size), pp=3, tp=2, layout="first=2"))
    tables = {op.name: op for rank in range(3) for op in ops_of(program, rank) if isinstance(op, Compute) and op.layer < 0}
    assert (
        tables["embedding"].parameters == tables["logits"].parameters == 4608 // 6 * 512
    )  # the next multiple of 256 that 3 divides
    positions = {rank: sum(op.name == "positions" for op in ops_of(program, rank)) for rank in range(3)}
    assert positions == {0: MICROBATCHES, 1: 0, 2: 0}
    assert tables["positions"].parameters == 128 * 512


@pytest.mark.parametrize("scheme", SCHEMES)
def test_t18_2_no_scheme_changes_the_flop_of_a_step(scheme: str) -> None:
    flop = [
        sum(op.kernel.model_flop for rank in range(4) for op in ops_of(program_of(one), rank) if isinstance(op, Compute))
        for one in (of("baseline"), of(scheme))
    ]
    assert flop[0] == flop[1]


@pytest.mark.parametrize("framework", ["none", "megatron-lm-2021"])
def test_t18_2_every_kernel_of_the_loss_is_divided(framework: str) -> None:
    """Also where a framework runs the loss as several kernels, of which only the last is followed by sums."""
    moved = []
    for scheme in ("baseline", "vocab-1"):
        program = program_of(replace(of(scheme), framework=sim.framework(framework)))
        losses = [
            [op.kernel.traffic_bytes for op in ops_of(program, rank) if isinstance(op, Compute) and "entropy" in op.operator]
            for rank in range(4)
        ]
        moved.append([sum(of_rank) for of_rank in losses])
    plain, shared = moved
    assert plain[:3] == [0, 0, 0]
    assert shared == [plain[3] // 4] * 4


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("scheme", SCHEMES[:2])
def test_t18_2_4_volumes_of_a_step(scheme: str, tp: int) -> None:
    """Payloads of all collectives over pp, by operation and kind, on every rank; tensor-parallel ranks share the tokens."""
    program, rows = program_of(of(scheme, tp=tp)), TOKENS // tp
    fp32, wide = rows * 4, rows * MODEL.hidden * 2
    expected = {
        ("broadcast", Part.FORWARD): rows * MODEL.hidden * 4,
        ("all_reduce", Part.FORWARD): 3 * fp32 + wide,  # sums of the loss, and embedded tokens
        ("all_reduce", Part.INPUT_GRADIENT): wide,
        ("broadcast", Part.WEIGHT_GRADIENT): wide,
    }
    for rank in range(4):
        sent = Counter[tuple[str, Part]]()
        for op in ops_of(program, rank):
            if isinstance(op, Collective) and program.communicators[op.communicator].axis == "pp":
                sent[op.kind, op.part] += op.payload_bytes
        assert sent == {what: MICROBATCHES * payload for what, payload in expected.items()}
    roots = [program.communicators[name].pipeline for name in ("vocabulary output", "embedding gradients")]
    assert roots == [(3, 0, 1, 2), (0, 1, 2, 3)]


@pytest.mark.parametrize(("scheme", "in_s"), [("vocab-1", 0), ("vocab-2", 1), ("interlaced", 0)])
def test_t18_3_the_pass_that_makes_the_gradient_of_the_input(scheme: str, in_s: int) -> None:
    """S and T have together the three products of the head, each of a fourth of the vocabulary."""
    program = program_of(of(scheme))
    for phase, others in (("F", Part.FORWARD), ("B", Part.WEIGHT_GRADIENT)):
        step = next(step for step in program.orders[1] if step.phase == phase and step.stage == HEADS + 1)
        products = [op for op in program.bodies[step.body].ops if isinstance(op, Compute) and op.split is Split.COLUMN]
        has_gradient = bool(in_s) == (phase == "F")
        assert {op.part for op in products} == {others, *([Part.INPUT_GRADIENT] if has_gradient else [])}
        for op in products:
            assert isinstance(op.kernel, Gemm)
            assert op.kernel.flop == 2 * TOKENS * MODEL.hidden * MODEL.vocab // 4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_t18_4_every_slot_waits_for_what_it_needs(scheme: str) -> None:
    """Look-ups of all ranks end before the first stage starts, S and the gradient of the head before the last goes back."""
    run = of(scheme).simulate(steps=1)
    started, ended = spans(run)
    barrier = {"vocab-2": "F"}.get(scheme, "B")
    for m in range(MICROBATCHES):
        assert max(ended["F", EMBEDDINGS + rank, m] for rank in range(4)) <= started["F", 0, m]
        assert ended["F", 3, m] <= min(started["F", HEADS + rank, m] for rank in range(4))
        assert max(ended["F", HEADS + rank, m] for rank in range(4)) <= min(started["B", HEADS + rank, m] for rank in range(4))
        assert max(ended[barrier, HEADS + rank, m] for rank in range(4)) <= started["B", 3, m]
        assert ended["B", 0, m] <= min(started["B", EMBEDDINGS + rank, m] for rank in range(4))


def spans(run: Run) -> tuple[dict[Any, int], dict[Any, int]]:
    """First start and last end of the kernels of every slot: phase, number of the stage, microbatch."""
    started, ended = dict[Any, int](), dict[Any, int]()
    times = run.engine_timeline.times
    for rank in range(4):
        labels, tasks = run.labels[rank], run.engine_timeline.tasks_of(rank)
        for row in np.flatnonzero(labels.is_compute).tolist():
            slot = str(labels.phase[row]), int(labels.stage[row]), int(labels.microbatch[row])
            start, end = int(times.start_ns[tasks[row]]), int(times.end_ns[tasks[row]])
            started[slot], ended[slot] = min(start, started.get(slot, start)), max(end, ended.get(slot, end))
    return started, ended


def beside_ns(run: Run) -> int:
    """Time in which the collectives of shares run beside kernels of the same rank."""
    total_ns, times = 0, run.engine_timeline.times
    for rank in range(4):
        labels, tasks = run.labels[rank], run.engine_timeline.tasks_of(rank)
        kernels, others = (tasks[np.flatnonzero(rows)] for rows in (labels.is_compute, labels.phase == "vocabulary"))
        begins = np.maximum.outer(times.start_ns[kernels], times.start_ns[others])
        total_ns += int((np.minimum.outer(times.end_ns[kernels], times.end_ns[others]) - begins).clip(min=0).sum())
    return total_ns


@pytest.mark.parametrize("scheme", SCHEMES[:2])
def test_t18_5_collectives_of_four_streams_run_beside_compute(scheme: str) -> None:
    run = of(scheme).simulate(steps=1)
    over_all = {name for name, c in run.program.communicators.items() if c.pipeline and len(c.pipeline) == 4}
    streams = {op.streams for op in ops_of(run.program) if isinstance(op, Collective) and op.communicator in over_all}
    assert streams == {(name,) for name in over_all}
    assert len(streams) == 4
    assert beside_ns(run) > 0
    assert run.metrics.imbalance_s["pp"] > 0


def test_t18_8_interlaced_ranks_wait_for_every_collective() -> None:
    run = of("interlaced").simulate(steps=1)
    assert beside_ns(run) == 0
    for order in run.program.orders:
        heads = [step for step in order if step.stage >= HEADS and step.phase in "FB"]
        assert [(s.phase, s.microbatch) for s in heads] == [(phase, m) for m in range(MICROBATCHES) for phase in "FB"]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, str]:
    scheme, name = draw(st.sampled_from([*((s, "1f1b") for s in SCHEMES), ("vocab-1", "v-half"), ("vocab-2", "v-half")]))
    ranks, microbatches = draw(st.integers(2, 9)), draw(st.integers(1, 24))
    shape = Shape(ranks, microbatches, 2 if name == "v-half" else 1, barriers=BARRIERS.get(scheme, 0))
    return with_vocabulary(lay_out(catalog.module("schedules", name), shape), scheme), scheme


@settings(max_examples=20)
@given(layouts())
def test_t18_6_every_order_is_complete_and_nobody_waits_in_a_circle(drawn: tuple[Layout, str]) -> None:
    layout, scheme = drawn
    check(layout)
    ranks = range(layout.shape.ranks)
    shares = [[(slot.stage - rank, *slot[::2]) for slot in slots(layout, rank) if slot.stage >= layout.layered] for rank in ranks]
    if scheme != "interlaced":
        assert all(order == shares[0] for order in shares)
    left, done = [slots(layout, rank)[::-1] for rank in ranks], set[Slot]()
    while any(left):
        ready = [order for order in left if order and needs(order[-1], layout, scheme) <= done]
        assert ready, f"{scheme}: every rank waits"
        done |= {order.pop() for order in ready}


def needs(slot: Slot, layout: Layout, scheme: str) -> set[Slot]:
    """The slots of other ranks whose results a slot needs."""
    kind, stage, m = slot
    first, ranks = layout.layered, range(layout.shape.ranks)
    embeddings, heads = [first + rank for rank in ranks], [first + len(ranks) + rank for rank in ranks]
    back = "B" if layout.shape.chunks == 1 else "I"
    if stage in heads:
        return {Slot("F", first - 1, m)} | ({Slot("F", head, m) for head in heads} if kind == "B" else set())
    if stage in embeddings:
        return {Slot(back, 0, m)} if kind == "B" else set()
    if kind == "W":
        return set()
    if kind == "F":
        return {Slot("F", stage - 1, m)} if stage else {Slot("F", one, m) for one in embeddings}
    return {Slot(kind, stage + 1, m)} if stage < first - 1 else {Slot("F" if scheme == "vocab-2" else "B", h, m) for h in heads}


@pytest.mark.parametrize(("scheme", "name", "most"), [
    ("vocab-1", "1f1b", lambda ranks: ranks + 2), ("vocab-2", "1f1b", lambda ranks: ranks + 1),
    ("vocab-1", "v-half", lambda ranks: 2 * ((ranks + 2) // 2 + 2)),
    ("vocab-2", "v-half", lambda ranks: 2 * ((ranks + 2) // 2 + 1)),
])  # fmt: skip
def test_t18_7_microbatches_alive_on_the_first_rank(scheme: str, name: str, most: Any) -> None:
    for ranks in (2, 4, 5, 8):
        shape = Shape(ranks, 4 * ranks, 2 if name == "v-half" else 1, barriers=BARRIERS.get(scheme, 0))
        layout = with_vocabulary(lay_out(catalog.module("schedules", name), shape), scheme)
        peaks = [alive(layout, rank) for rank in range(ranks)]
        assert max(peaks) == peaks[0] == most(ranks)


@given(st.integers(2, 12), st.integers(1, 40))
def test_t18_8_microbatches_alive_when_interlaced(ranks: int, microbatches: int) -> None:
    layout = with_vocabulary(lay_out(catalog.module("schedules", "1f1b"), Shape(ranks, microbatches)), "interlaced")
    assert alive(layout, 0) == min(3 * ranks // 2, microbatches)
    assert all(alive(layout, rank) <= alive(layout, 0) for rank in range(ranks))


@pytest.mark.parametrize(("scheme", "alive"), [("vocab-1", 6), ("vocab-2", 5), ("interlaced", 6)])
def test_t18_7_memory_of_the_first_rank_is_that_of_its_microbatches_and_one_share(scheme: str, alive: int) -> None:
    plain, shared = (memory_of(one, layout_of(one))[0].activations_bytes for one in (of("baseline"), of(scheme)))
    of_share = TOKENS * (MODEL.hidden * 2 + MODEL.vocab // 4 * 4)  # the input of the head, and its softmax in fp32
    assert shared == plain // 4 * alive + of_share


def test_t18_9_blocking_transfers_wait_for_the_sends_of_every_slot() -> None:
    blocked, free = (of("vocab-1", overlap=sim.Overlap(pp=beside)).simulate(steps=1) for beside in (False, True))
    assert blocked.metrics.step_time_s > free.metrics.step_time_s
    waits = [step.after for step in blocked.program.orders[1] if step.phase == "wait"]
    assert len(waits) == 2 * MICROBATCHES
    assert not any(waits)


def test_learned_positions_norms_of_embeddings_and_split_backward_passes_go_together() -> None:
    both = small_model(tied_embeddings=False, embedding_norm=True, positions="learned", max_sequence_length=128)
    assert of("vocab-1", both, "v-half", pp=2, dp=2).simulate(steps=1).metrics.step_time_s > 0


@pytest.mark.parametrize(("changes", "said"), [
    ({"pp": 1, "tp": 4}, "no pipeline"),
    ({"schedule": "gpipe"}, "vocab-1 is not defined for gpipe"),
    ({"schedule": "zb-v"}, "not defined for zb-v"),
    ({"model": small_model(tied_embeddings=True)}, "share one"),
    ({"model": small_model(tied_embeddings=False, mtp_layers=1)}, "a head for further tokens"),
    ({"sharding": "fsdp"}, "fsdp with a vocabulary"),
    ({"scheme": "interlaced", "tp": 2}, "ranks of tp and pp together"),
    ({"scheme": "interlaced", "schedule": "v-half"}, "interlaced is not defined for v-half"),
    ({"layout": "first=0"}, "no layer in stage 0"),
    ({"layout": [3, 3, 2, 0]}, "no layer in stage 3"),
])  # fmt: skip
def test_what_is_not_defined_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        feasible.check(of(**{"scheme": "vocab-1", **changes}))
    assert said in str(refused.value)
