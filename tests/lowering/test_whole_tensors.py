"""ZeRO-1 whose ranks own whole tensors: what they reduce, update and broadcast."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simulator as sim
from simulator.errors import UserError
from simulator.program.operations import Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.runnable import RunnableScenario
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework, Overlaps, UsualPlan

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

OWNERS = Framework(name="owners", whole_tensors=True, overlap=Overlaps(parameter_gather=False))


def of(dp: int, group: int | None = None, pp: int = 1, **model: object) -> RunnableScenario:
    plan = sim.Plan(dp=dp, pp=pp, sharding=sim.Sharding("zero1", group=group))
    job = sim.Job(sequence_length=64, global_batch=2 * dp * pp)
    return scenario(small_model(4, **model), small_cluster(max(1, dp * pp // 4)), plan, job, framework=OWNERS)


def collectives(program: Program, purpose: Purpose, rank: int = 0) -> list[Collective]:
    ops = (op for step in program.orders[rank] for op in program.bodies[step.body].ops)
    return [op for op in ops if isinstance(op, Collective) and op.purpose is purpose]


def tensors(program: Program) -> list[int]:
    body = next(step.body for step in program.orders[0] if step.phase == "F")
    return sorted(op.parameters for op in program.bodies[body].ops if isinstance(op, Compute) and op.parameters)


@pytest.mark.parametrize("dp, group", [(2, None), (8, None), (64, None), (8, 4)])
def test_t13_12_owners_broadcast_all_parameters_once(dp: int, group: int | None) -> None:
    program = program_of(of(dp, group))
    sent, owned = [op.payload_bytes for op in collectives(program, Purpose.GATHER_PARAMETERS)], tensors(program)
    assert sum(sent) == 2 * sum(owned)
    assert len(sent) == min(group or dp, len(owned))
    assert max(sent) < 2 * (sum(owned) / len(sent) + max(owned))
    assert {op.kind for op in collectives(program, Purpose.GATHER_PARAMETERS)} == {"broadcast"}


def test_t13_12_a_single_replica_broadcasts_nothing() -> None:
    program = program_of(of(1))
    assert not collectives(program, Purpose.GATHER_PARAMETERS)


@pytest.mark.parametrize("group", [None, 4])
def test_t13_12_all_ranks_sum_all_gradients(group: int | None) -> None:
    program = program_of(of(8, group))
    sums = collectives(program, Purpose.REDUCE_GRADIENTS)
    assert {(op.kind, op.communicator) for op in sums} == {("all_reduce", "dp")}
    assert sum(op.payload_bytes for op in sums) == 4 * sum(tensors(program))


def test_t13_12_the_largest_owner_updates_longest() -> None:
    program = program_of(of(64))
    update = next(step for step in program.orders[0] if step.phase == "optimizer")
    kernels = [op.kernel for op in program.bodies[update.body].ops if isinstance(op, Compute)]
    assert {getattr(kernel, "rows", 0) for kernel in kernels} == {max(tensors(program))}


def test_t13_12_broadcasts_follow_one_another_before_the_next_step() -> None:
    rows = of(4).simulate().timeline.to_pandas(ranks=[0])
    sent = rows[rows.kind == "broadcast"].sort_values("start_ns")
    assert (sent.start_ns.to_numpy()[1:] >= sent.end_ns.to_numpy()[:-1]).all()
    assert rows[rows.phase == "F"].start_ns.min() >= sent.end_ns.max()


@pytest.mark.parametrize("pp", [1, 2])
def test_folded_or_not_times_are_the_same(pp: int) -> None:
    both(*bound_twice(of(4, 2, pp))).assert_equal()


def test_what_is_not_modelled_is_refused() -> None:
    with pytest.raises(UserError, match=r"whole_tensors.*experts"):
        of(4, experts=8, experts_per_token=2).simulate()
    assert [name for name, *_ in Framework(whole_tensors=True).contradictions()] == ["whole_tensors"]


@pytest.mark.parametrize(("dp", "usual", "group"), [(4, 4, None), (8, 4, 4), (16, 8, 8), (12, 8, None)])
def test_t13_8_a_framework_may_choose_the_groups_of_zero1(dp: int, usual: int, group: int | None) -> None:
    """If dp is a larger multiple of them; what the plan states goes first, also if that is all ranks."""
    chosen = replace(of(dp), framework=replace(OWNERS, plan=UsualPlan(group=usual)))
    assert chosen.simulate().metrics == of(dp, group).simulate().metrics
    stated = of(dp, dp)
    assert (
        replace(stated, framework=chosen.framework).simulate().metrics == stated.simulate().metrics == of(dp).simulate().metrics
    )


def test_t13_8_other_kinds_have_no_groups_of_the_framework() -> None:
    for kind in ("none", "zero2", "fsdp"):
        plain = scenario(plan=sim.Plan(dp=8, sharding=kind), job=sim.Job(64, 16))
        grouped = replace(plain, framework=Framework(plan=UsualPlan(group=4)))
        assert grouped.simulate().metrics == plain.simulate().metrics
