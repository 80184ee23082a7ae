"""Groups of experts that extend over ranks of cp, tp and dp, rank by rank, and what they exchange."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import derived
from simulator.kernels import Part
from simulator.program.operations import Compute, Purpose
from simulator.simulation.simulate import program_of

from ..lowering.test_experts import CHOSEN, HIDDEN, LAYERS, SEQ, exchanges, layer_parameters, of, reductions
from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

WIDE: dict[str, dict[str, Any]] = {
    "over cp": {"cp": 4, "ep": 8},
    "over cp, pipeline": {"cp": 2, "pp": 2, "ep": 4, "sharding": "zero1"},
    "over tp": {"tp": 4, "ep": 8, "etp": 1, "sharding": "zero1"},
    "over tp and cp": {"tp": 2, "cp": 4, "ep": 8, "etp": 1, "sharding": "fsdp"},
    "over cp, not tp": {"tp": 2, "cp": 4, "ep": 4},
}
"""Plans of eight GPUs, in which ep exceeds dp."""


def groups(plan: dict[str, Any], axis: str) -> list[list[int]]:
    return derived.mesh_of(of(plan)).groups((axis,)).tolist()


def test_t17_1_groups_of_experts_may_extend_over_context_parallel_ranks() -> None:
    """cp 4 and dp 2: all eight ranks exchange tokens, and experts have one copy; with ep 4 each sequence has its own group."""
    assert groups(WIDE["over cp"], "ep") == [[*range(8)]]
    assert groups({"cp": 4, "ep": 4}, "ep") == [[0, 1, 2, 3], [4, 5, 6, 7]] == groups({"cp": 4, "ep": 4}, "cp")
    assert groups({"cp": 4, "ep": 4}, "edp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups({"cp": 2, "ep": 4}, "ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups({"cp": 2, "ep": 4}, "cp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups(WIDE["over cp, pipeline"], "ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_t17_1_groups_of_experts_may_extend_over_tensor_parallel_ranks() -> None:
    """Whole experts on tensor-parallel ranks; where these divide experts (etp 2), ep extends over the others."""
    assert groups(WIDE["over tp"], "ep") == [[*range(8)]]
    assert (
        groups({"tp": 4, "ep": 4, "etp": 1}, "ep") == [[0, 1, 2, 3], [4, 5, 6, 7]] == groups({"tp": 4, "ep": 4, "etp": 1}, "tp")
    )
    assert groups(WIDE["over cp, not tp"], "ep") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups(WIDE["over cp, not tp"], "etp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups({"tp": 4, "ep": 2, "etp": 2}, "ep") == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", WIDE)
def test_t17_4_wide_groups_exchange_the_tokens_of_a_rank(name: str) -> None:
    """T = b s / (cp tp) tokens each; experts without a copy are not reduced, the others over dp x cp."""
    chosen = of(WIDE[name], batch=2)
    plan = chosen.plan
    payload = SEQ // (plan.cp * plan.tp) * CHOSEN * HIDDEN * 2
    assert (
        set(exchanges(chosen, "alltoall", Part.FORWARD)) == set(exchanges(chosen, "alltoall", Part.INPUT_GRADIENT)) == {payload}
    )
    experts, _ = layer_parameters(chosen.model)
    edp = 8 * plan.tp // (plan.tp * plan.ep * (plan.etp or plan.tp) * plan.pp)
    reduced = {group for group, _, _ in reductions(chosen, Purpose.REDUCE_GRADIENTS)}
    assert reduced == ({"edp"} if edp > 1 else set()) | ({"dp"} if plan.tp < 8 // plan.pp else set())
    share = LAYERS // plan.pp * experts // (plan.ep * (plan.etp or plan.tp))
    program = program_of(chosen)
    forward = next(step.body for step in program.orders[0] if step.phase == "F")
    assert sum(op.parameters for op in program.bodies[forward].ops if isinstance(op, Compute) and op.expert) == share
    both(*bound_twice(chosen)).assert_equal()


@settings(max_examples=12)
@given(
    *(st.sampled_from([1, 2, 4]) for _ in range(3)),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["tp-cp-ep-dp-pp", "cp-tp-ep-dp-pp", "tp-dp-cp-ep-pp"]),
)
def test_t17_1_experts_of_any_extent_have_every_rank_once(tp: int, cp: int, etp: int, ep: int, order: str) -> None:
    model = small_model(experts=8, experts_per_token=2)
    plan = sim.Plan(tp=tp, cp=cp, etp=etp, ep=ep, pp=2, rank_order=order)
    assume(etp * ep <= 16)
    mesh = derived.mesh_of(scenario(model, small_cluster(8), plan, sim.Job(256, 32)))
    for axes in (("ep",), ("edp",), ("etp", "ep"), ("etp", "ep", "edp")):
        assert sorted(mesh.groups(axes).ravel().tolist()) == [*range(32)]
    assert mesh.groups(("pp",)).tolist() == mesh.experts.groups(("pp",)).tolist() if mesh.experts else False
