"""Programs: rewriting of bodies, roles and their orders; labels join rows with what they stand for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.kernels import Gemm, Rowwise
from simulator.program.labels import Labels
from simulator.program.operations import COMPUTE, HOST, AnyOp, Collective, Communicator, Compute, Transfer, Wait
from simulator.program.program import Body, Program, Role, Stage, Step, first_forward  # fmt: skip

OPS: tuple[AnyOp, ...] = (
    Compute(name="0.qkv", streams=(COMPUTE,), layer=0, kernel=Gemm(2, 3, 5, 2)),
    Compute(name="norm", streams=(COMPUTE,), kernel=Rowwise("rmsnorm", 2, 3, 2, 4)),
    Collective(name="sum", streams=("tp",), communicator="tp", kind="all_reduce", payload_bytes=12),
    Transfer(name="send", streams=("0>1",), communicator="0>1", payload_bytes=34, sends=True),
    Transfer(name="receive", streams=("0>1",), communicator="0>1", payload_bytes=34, sends=False),
    Wait(name="wait", streams=(COMPUTE, "0>1")),
)
KINDS = ("gemm", "rmsnorm", "all_reduce", "send", "receive", "wait")
AXES = ("", "", "tp", "pp", "pp", HOST)
STAGES = (Stage(0, 0, 0, 0, 2, True, False), Stage(1, 1, 0, 2, 2, False, True))
drawn = st.tuples(st.sampled_from("ab"), st.sampled_from("FBIW"), st.integers(-1, 1), st.integers(0, 9))
steps = drawn.map(lambda fields: Step(*fields))
orders = st.lists(st.lists(steps, max_size=8).map(tuple), min_size=1, max_size=4).map(tuple)


def program(of: tuple[tuple[Step, ...], ...], roles: tuple[Role, ...] = ()) -> Program:
    return Program(STAGES, {"a": Body(OPS), "b": Body(OPS[:1])}, of, {}, roles)


@given(st.sets(st.sampled_from([op.name for op in OPS])))
def test_every_body_gets_the_operations_that_are_made_of_its_own(kept: set[str]) -> None:
    changed = program(()).with_bodies(lambda body: (op for op in body.ops if op.name in kept))
    assert [op.name for op in changed.bodies["a"].ops] == [op.name for op in OPS if op.name in kept]
    assert len(changed.bodies["b"].ops) == (OPS[0].name in kept)


def test_a_communicator_of_the_same_name_is_replaced_in_its_place() -> None:
    one, other, again = Communicator("x", "tp", ("tp",)), Communicator("y", "dp", ("dp",)), Communicator("x", "pp", ("pp",))
    assert [*program(()).with_communicators(one, other).with_communicators(again).communicators.values()] == [again, other]


@given(orders, st.data())
def test_orders_belong_to_the_pipeline_coordinate_of_their_role(of: tuple[tuple[Step, ...], ...], data: st.DataObject) -> None:
    plain = program(of)
    assert plain.ranks == len(of)
    assert all(plain.orders_of(rank) == (order,) for rank, order in enumerate(of))
    pipeline = data.draw(st.lists(st.integers(0, 2), min_size=len(of), max_size=len(of)))
    divided = program(of, tuple(Role(at, {"tp": (i,)}) for i, at in enumerate(pipeline)))
    assert divided.ranks == 1 + max(pipeline)
    for rank in range(divided.ranks):
        assert divided.orders_of(rank) == tuple(order for at, order in zip(pipeline, of, strict=True) if at == rank)


@given(st.lists(steps, max_size=20))
def test_the_first_forward_step_of_each_stage_is_found_where_it_stands(of: list[Step]) -> None:
    found = first_forward(of)
    assert [*found.values()] == sorted(found.values())
    assert found.keys() == {step.stage for step in of if step.phase == "F"}
    for stage, at in found.items():
        assert of[at].stage == stage
        assert not any(step.phase == "F" and step.stage == stage for step in of[:at])


@given(st.lists(steps, min_size=1, max_size=5), st.data())
def test_labels_say_of_each_row_what_its_step_and_its_operation_say(of: list[Step], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(0, len(of) - 1), st.integers(0, len(OPS) - 1)), min_size=1, max_size=20))
    step, op = (np.array(column) for column in zip(*rows, strict=True))
    labels = Labels(tuple(s._replace(iteration=3) for s in of), OPS, step, op, (COMPUTE,), AXES, STAGES)
    for row, (s, o) in enumerate(rows):
        stage = STAGES[of[s].stage] if of[s].stage >= 0 else None
        assert (labels.phase[row], labels.microbatch[row], labels.iteration[row]) == (of[s].phase, of[s].microbatch, 3)
        assert (labels.stage[row], labels.chunk[row]) == ((stage.number, stage.chunk) if stage else (-1, -1))
        assert (labels.kind[row], labels.axis[row], labels.stream[row]) == (KINDS[o], AXES[o], OPS[o].streams[0])
        assert [column[row] for column in (labels.is_compute, labels.is_transfer, labels.is_wait, labels.is_launch)] == [
            o < 2, o in (3, 4), o == 5, o == 5
        ]  # fmt: skip
        assert labels.flop_of()[row] == (60 if o == 0 else 0)
        assert labels.payload_bytes[row] == (0, 0, 12, 34, 34, 0)[o]
        named = f"layer {stage.first_layer} qkv" if o == 0 and stage else OPS[o].name
        assert labels.blocks[row] == labels.block(row) == named
