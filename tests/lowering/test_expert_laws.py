"""Laws of experts in random small scenarios: what no degree, dispatcher or routing may change, and what never gets shorter.

A scenario is drawn by its seed: degrees of every parallelism, a schedule, a sharding, a dispatcher and a routing, a model with
dense first layers, shared experts or further tokens, nodes with fewer NICs than GPUs. What the simulator refuses is drawn again.
Durations are those of collectives without contention (`closed`), since two flows that meet at another time can shorten a step.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from random import Random
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.advise.candidates import legal
from simulator.config import derived
from simulator.kernels import Gemm, Part
from simulator.lowering.routing import layers_with_experts
from simulator.plan.plan import Moe
from simulator.program.operations import Collective, Compute, Purpose
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of, simulate_scenario

from ..search.test_bound import tightness
from ..search.test_quick_bound import tightness as quick_tightness
from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

SEEDS = range(24)
SEQ, BATCH, HIDDEN, BYTES = 256, 32, 512, 2
EXCHANGES = (Purpose.DISPATCH, Purpose.COMBINE)
PASSING = (Part.FORWARD, Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT)
PIPELINES: tuple[dict[str, Any], ...] = (
    {"pp": 1}, {"pp": 1}, {"pp": 2}, {"pp": 2, "schedule": "interleaved", "chunks": 2}, {"pp": 2, "schedule": "zb-h1"},
    {"pp": 2, "schedule": "dualpipe"}, {"pp": 4, "schedule": "gpipe"},
)  # fmt: skip


def drawn_plan(draw: Random) -> dict[str, Any]:
    """A plan, legal or not."""
    routings = (
        {}, {}, {"routing": "drawn", "concentration": draw.choice([0.5, 5.0]), "ranks": draw.choice(["each", "hottest"])},
        {"capacity": draw.choice([0.5, 1.0, 1.3])}, {"dispatcher": "deepep"},
    )  # fmt: skip
    overlap = {"dp": draw.random() < 0.5, "ep": draw.random() < 0.3, "weight_gradients": draw.random() < 0.3}
    pipeline = draw.choice(PIPELINES)
    kinds = ("none", "zero1", "fsdp") if pipeline["pp"] == 1 else ("none", "zero1")
    return {
        **pipeline,
        "tp": draw.choice([1, 1, 2]),
        "cp": draw.choice([1, 1, 2]),
        "ep": draw.choice([2, 4, 8]),
        "etp": draw.choice([None, 1, 2]),
        "sharding": draw.choice(kinds),
        "recompute": draw.choice(["none", "none", "selective", "full"]),
        "moe": Moe(**draw.choice(routings)),
        "overlap": sim.Overlap(**overlap),
    }


def drawn_model(draw: Random) -> dict[str, Any]:
    return {
        "experts": draw.choice([8, 16]),
        "experts_per_token": draw.choice([1, 2, 4]),
        "expert_ffn_hidden": draw.choice([256, 704]),
        "shared_experts": draw.choice([0, 0, 1]),
        "dense_layers": draw.choice([0, 0, 1, 3]),
        "expert_interval": draw.choice([1, 1, 2]),
        "mtp_layers": draw.choice([0, 0, 0, 1]),
    }


def of_seed(seed: int) -> Scenario:
    """The first legal scenario that a seed draws."""
    draw = Random(seed)
    while True:
        nics = draw.choice(["4x400 Gbit/s", "2x200 Gbit/s", "1x400 Gbit/s"])
        cluster = small_cluster(draw.choice([2, 4]), gpus_per_node=draw.choice([4, 8]), inter_node=nics)
        chosen = scenario(
            small_model(**drawn_model(draw)), cluster, sim.Plan(**drawn_plan(draw)), sim.Job(SEQ, BATCH, 1),
            fidelity=sim.Fidelity(collectives="closed"),
        )  # fmt: skip
        if legal(chosen):
            return chosen


def with_model(of: Scenario, **changes: Any) -> Scenario:
    return replace(of, model=replace(of.model, **changes))


def with_moe(of: Scenario, **changes: Any) -> Scenario:
    """The scenario with another routing or dispatcher, from their defaults."""
    return replace(of, plan=replace(of.plan, moe=Moe(**changes)))


def step_s(of: Scenario) -> float:
    return simulate_scenario(of, allow_oom=True).metrics.step_time_s


def tokens_of(of: Scenario) -> int:
    """Tokens of a microbatch on a rank."""
    return SEQ // (of.plan.tp * of.plan.cp)


def bodies_in_order(of: Scenario) -> list[list[Any]]:
    """The operations of every slot and step of a training step, on one rank of each stage."""
    program = program_of(of)
    return [list(program.bodies[step.body].ops) for order in program.orders for step in order]


def exchanges(ops: list[Any]) -> list[Collective]:
    return [op for op in ops if isinstance(op, Collective) and op.purpose in EXCHANGES and op.kind == "alltoall"]


def experts_flop(of: Scenario) -> Fraction:
    """The flop of the GEMMs of experts in the whole cluster: with even loads all ranks of a stage are alike."""
    ops = [op for body in bodies_in_order(of) for op in body if isinstance(op, Compute) and op.expert and op.part in PASSING]
    done = sum(op.kernel.flop for op in ops if isinstance(op.kernel, Gemm))
    return Fraction(done * of.cluster.gpus, of.plan.pp)


@pytest.mark.parametrize("seed", SEEDS)
def test_t17_4_every_exchange_carries_every_copy_of_a_token_once(seed: int) -> None:
    """k T rows of each rank, or with a capacity c E ceil(c k T / E); and what went to a rank comes back from there."""
    of = of_seed(seed)
    of = of if of.plan.moe.dispatcher == "alltoall" else with_moe(of)
    moe, model, row_bytes = of.plan.moe, of.model, HIDDEN * BYTES
    copies = tokens_of(of) * model.experts_per_token
    rows = copies if moe.capacity == "dropless" else model.experts * ceil(moe.capacity * copies / model.experts)
    bodies = bodies_in_order(of)
    assert {op.payload_bytes for ops in bodies for op in exchanges(ops)} == {rows * row_bytes}
    for ops in bodies:
        ways: dict[int, set[bytes]] = {}
        for op in exchanges(ops):
            assert bool(op.matrix_bytes) == (moe.routing != "balanced")
            matrix = np.array(op.matrix_bytes or [[0]])
            matrix = matrix if op.purpose is Purpose.DISPATCH else matrix.T
            assert moe.routing == "balanced" or moe.ranks == "hottest" or (matrix.sum(axis=1) == rows * row_bytes).all()
            ways.setdefault(op.layer, set()).add(matrix.tobytes())
        assert all(len(each) == 1 for each in ways.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_t17_10_deepep_never_sends_more_than_every_copy(seed: int) -> None:
    """At most a row for each copy, one for each node or rank of a group, and one row if a token has one expert."""
    of = of_seed(seed)
    of = with_moe(replace(of, plan=replace(of.plan, etp=1)), dispatcher="deepep")
    if not legal(of):
        pytest.skip("experts of other degrees")
    chosen, node = of.model.experts_per_token, derived.placed(of).moe.node or of.plan.ep
    most = {"ep inside": of.plan.ep, "ep across": of.plan.ep // node}
    found = {(op.communicator, op.payload_bytes) for ops in bodies_in_order(of) for op in exchanges(ops)}
    assert found
    for way, payload in found:
        rows = Fraction(payload, tokens_of(of) * HIDDEN * BYTES)
        assert 1 <= rows <= min(chosen, most[way])


@pytest.mark.parametrize("seed", SEEDS)
def test_t17_3_no_degree_changes_the_flop_of_experts(seed: int) -> None:
    """6 k h f for each weight matrix, token and layer with experts, whatever the degrees, where rows divide."""
    of = of_seed(seed)
    of = with_moe(replace(of, plan=replace(of.plan, recompute="none")))
    model = of.model
    matrices = 3 * model.hidden * model.expert_ffn_hidden * model.experts_per_token
    wanted = 6 * matrices * SEQ * BATCH * len(layers_with_experts(model))
    assert experts_flop(of) == wanted
    for changes in ({"ep": 2}, {"ep": 4, "etp": 1}, {"ep": 1, "etp": of.plan.tp}):
        other = replace(of, plan=replace(of.plan, **{**changes, "overlap": sim.Overlap()}))
        assert not legal(other) or experts_flop(other) == wanted


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_more_work_for_experts_never_shortens_a_step(seed: int) -> None:
    """Twice as many experts for a token, twice as wide ones, one more shared; a capacity cuts less and less."""
    of = of_seed(seed)
    of, model = (of if of.plan.moe.routing == "balanced" else with_moe(of)), of.model
    before_s = step_s(of)
    for changes in (
        {"experts_per_token": min(2 * model.experts_per_token, model.experts)},
        {"expert_ffn_hidden": 2 * model.expert_ffn_hidden},
        {"shared_experts": model.shared_experts + 1},
    ):
        assert step_s(with_model(of, **changes)) >= before_s
    if of.plan.moe.dispatcher == "alltoall":
        steps = [step_s(with_moe(of, capacity=capacity)) for capacity in (0.25, 0.5, 1.0, 1.5)]
        assert steps == sorted(steps)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_uneven_experts_take_longer_than_even_ones(seed: int) -> None:
    """Given shares, all ranks' own rows and those of the hottest rank. With a capacity of one every rank has an even load again.

    Drawn loads may keep a few more rows on their ranks by chance, so that an exchange is shorter: they are compared as a mean.
    """
    of = of_seed(seed)
    of = with_moe(replace(of, plan=replace(of.plan, etp=1)))
    if not legal(of):
        pytest.skip("experts of other degrees")
    even_s, experts, chosen = step_s(of), of.model.experts, of.model.experts_per_token
    shares = tuple(range(2 * experts, experts, -1)) if chosen > 1 else tuple(range(experts, 0, -1))
    one_s, hottest_s = (step_s(with_moe(of, routing=shares, ranks=ranks)) for ranks in ("each", "hottest"))
    assert even_s <= min(one_s, hottest_s)
    assert hottest_s == pytest.approx(one_s, rel=0.05)
    drawn_s = [step_s(with_moe(of, routing="drawn", concentration=2.0, seed=number)) for number in range(3)]
    assert sum(drawn_s) / len(drawn_s) > even_s
    assert step_s(with_moe(of, capacity=1.0)) <= even_s


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_engines_agree_and_no_bound_exceeds_a_step_with_experts(seed: int) -> None:
    """Under contention: every row of every rank, the step by each engine, and both lower bounds."""
    of = replace(of_seed(seed), fidelity=sim.Fidelity(overlap="free"))
    both(*bound_twice(of)).assert_equal()
    steps = {engine: of.simulate(engine=engine, allow_oom=True).metrics.step_time_s for engine in ("auto", "des")}
    assert len(set(steps.values())) == 1
    assert of.simulate(allow_oom=True).metrics == of.simulate(allow_oom=True).metrics
    assert 0 < tightness(of) <= 1
    assert 0 <= quick_tightness(of) <= 1
