"""Sentences 13 and 14 of section 15 of the second half of docs/semantics.md: rings whose ranks have unequal work."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.kernels import Attention, Part
from simulator.program.operations import AnyOp, Collective, Compute, Wait
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

PARTS = (Part.FORWARD, Part.INPUT_GRADIENT)


def ring(cp: int = 4, *, balance: bool = False, length: int = 1024, **plan: Any) -> Scenario:
    """One replica of a model of two layers on sequences that the ranks of a ring share."""
    chosen = sim.Plan(cp=cp, dp=1, cp_balance=balance, **plan)
    cluster = small_cluster(-(-chosen.tp * chosen.pp * cp // 4))
    return scenario(small_model(layers=2), cluster, chosen, sim.Job(length, 2, 1))


def of_attention(of: Scenario, position: int, part: Part) -> list[AnyOp]:
    """The operations of attention in the first layer, of the ranks at a position."""
    program = program_of(of)
    number = next(i for i, role in enumerate(program.roles) if role.coordinates.get("cp", (position,)) == (position,))
    bodies = {step.phase: step.body for step in program.orders[number] if step.phase in "FB"}
    found = [op for name in bodies.values() for op in program.bodies[name].ops]
    return [op for op in found if op.operator == "0.attention" and op.part is part]


def kernels(ops: list[AnyOp]) -> list[Attention]:
    return [op.kernel for op in ops if isinstance(op, Compute) and isinstance(op.kernel, Attention)]


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("part", PARTS)
def test_t15_13_work_is_in_proportion_to_the_place_in_the_sequence(cp: int, part: Part) -> None:
    (whole,) = kernels(of_attention(ring(1, balance=True), 0, part))
    for rank in range(cp):
        found = kernels(of_attention(ring(cp), rank, part))
        assert [kernel.flop * cp**2 for kernel in found[:: 1 if part is Part.FORWARD else -1]] == [
            whole.flop * (2 if i else 1) for i in range(rank + 1)
        ]
        assert sum(kernel.flop for kernel in found) * cp**2 == (2 * rank + 1) * whole.flop
        assert sum(kernel.model_flop for kernel in found) * cp**2 == (2 * rank + 1) * whole.model_flop


@pytest.mark.parametrize("part", PARTS)
def test_t15_13_every_rank_passes_on_and_frees_what_a_balanced_one_does(part: Part) -> None:
    def exchanges(ops: list[AnyOp]) -> list[tuple[str, int]]:
        return [(op.kind, op.payload_bytes) for op in ops if isinstance(op, Collective)]

    balanced = of_attention(ring(balance=True), 0, part)
    for rank in range(4):
        ops = of_attention(ring(), rank, part)
        assert exchanges(ops) == exchanges(balanced)
        assert sum(isinstance(op, Wait) for op in ops) == 3 - rank
        held, freed = (sum(getattr(op, name) for op in ops if not kernels([op])) for name in ("held_bytes", "freed_bytes"))
        assert held == freed


def test_t15_13_a_rank_without_work_waits_for_what_arrives() -> None:
    rows = ring(length=16384).simulate(steps=1).timeline.to_pandas(ranks=[0])
    rows = rows[(rows.phase == "F") & (rows.microbatch == 0)].set_index("block")
    for i in range(3):
        assert rows.loc[f"layer 0 attention.step {i + 1}"].start_ns >= rows.loc[f"layer 0 attention.exchange {i}"].end_ns
    assert rows.loc["layer 0 attention_out"].start_ns >= rows.loc["layer 0 attention.step 3"].end_ns


@pytest.mark.parametrize("plan", [{}, {"tp": 2, "recompute": "full"}, {"pp": 2, "overlap": sim.Overlap(cp=False)}], ids=str)
def test_t15_14_ranks_are_roles_and_wait_for_the_last_one(plan: dict[str, Any]) -> None:
    uneven, even = (ring(balance=balance, length=8192, **plan) for balance in (False, True))
    program = program_of(uneven)
    assert [role.coordinates["cp"] for role in program.roles if role.pipeline == 0] == [(0,), (1,), (2,), (3,)]
    both(*bound_twice(uneven)).assert_equal()
    late, balanced = uneven.simulate().metrics, even.simulate().metrics
    assert late.step_time_s > balanced.step_time_s
    assert late.imbalance_s["cp"] > balanced.imbalance_s["cp"]
    assert late.mfu * late.step_time_s == pytest.approx(balanced.mfu * balanced.step_time_s)


def test_rings_without_balance_are_refused_where_nothing_is_unequal() -> None:
    for plan in ({"cp": 1}, {"cp": 4, "cp_kind": "all-gather"}, {"cp": 4, "cp_kind": "mixed", "cp_ulysses": 2}):
        of = scenario(plan=sim.Plan(cp_balance=False, **plan))  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"cp_balance: only a ring"):
            feasible.check(of)
    drawn = sim.Plan(cp=2, cp_balance=False, ep=2, moe=sim.Moe(routing="drawn"))
    model = small_model(experts=8, experts_per_token=2, expert_ffn_hidden=512)
    with pytest.raises(UserError, match=r"cp_balance: ranks of a ring"):
        feasible.check(scenario(model, plan=drawn))
