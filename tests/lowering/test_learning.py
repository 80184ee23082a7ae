"""Frozen layers, adapters of low rank, and packed documents: flop, volumes and memory in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.errors import UserError
from simulator.kernels import Attention, Part
from simulator.memory.account import RankMemory
from simulator.program.operations import Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, prices_of, program_of
from simulator.workload.learning import train_flop_per_token

from ..small_scenarios import scenario, small_cluster, small_model

HIDDEN, FFN, QKV, LAYERS, VOCAB, TOKENS, RANK = 512, 1408, 512 + 2 * 256, 8, 4096, 128, 16
WIDTHS = {"qkv": (HIDDEN, QKV), "attention_out": (HIDDEN, HIDDEN), "mlp_up": (HIDDEN, 2 * FFN), "mlp_down": (FFN, HIDDEN)}
"""Inputs and outputs of the linear layers of the small model."""
LAYER = sum(inputs * outputs for inputs, outputs in WIDTHS.values())
HEAD = VOCAB * HIDDEN
SCORES = 12 * HIDDEN * TOKENS
"""Flop of the scores of a layer per token, forward and backward, with the full matrix."""
ALL = tuple(WIDTHS)


def of(plan: sim.Plan | None = None, model: dict[str, Any] | None = None, software: str = "none", **job: Any) -> Scenario:
    chosen = sim.Job(TOKENS, 8, 1, **job)
    return scenario(
        small_model(LAYERS, **(model or {})), small_cluster(1), plan or sim.Plan(), chosen, framework=sim.framework(software)
    )


def lora(*targets: str, plan: sim.Plan | None = None, **more: Any) -> Scenario:
    return of(plan, lora=sim.Lora(RANK, targets or ALL), **more)


def memory(chosen: Scenario, rank: int = 0) -> RankMemory:
    return memory_of(chosen, layout_of(chosen))[rank]


def flop_of(program: Program, part: Part, rank: int = 0) -> int:
    """Flop of a part of the first microbatch of a rank, by the full convention."""
    bodies = [program.bodies[step.body] for step in program.orders[rank] if step.microbatch == 0]
    return sum(op.kernel.model_flop for body in bodies for op in body.ops if isinstance(op, Compute) and op.part is part)


def collectives(program: Program, purpose: Purpose) -> list[int]:
    """Payloads of the collectives of a purpose in one microbatch of the first rank."""
    steps = {step.phase: step for step in reversed(program.orders[0]) if step.microbatch == 0}
    ops = [op for step in steps.values() for op in program.bodies[step.body].ops if isinstance(op, Collective)]
    return sorted(op.payload_bytes for op in ops if op.purpose is purpose)


@pytest.mark.parametrize("frozen", [1, 5, LAYERS])
def test_t20_6_frozen_layers_have_no_gradients_and_need_none(frozen: int) -> None:
    """Forward all; backward what lies behind the first layer that learns, with twice as many flop."""
    chosen = of(frozen_layers=frozen)
    program, own, whole = program_of(chosen), memory(chosen), memory(of())
    learning = (LAYERS - frozen) * (LAYER + 2 * HIDDEN) + HEAD + HIDDEN  # with norms
    assert (own.parameters_bytes, own.gradients_bytes, own.optimizer_bytes) == (
        whole.parameters_bytes,
        4 * learning,
        12 * learning,
    )
    matrices = (LAYERS - frozen) * LAYER + HEAD
    assert flop_of(program, Part.WEIGHT_GRADIENT) == 2 * TOKENS * matrices
    assert flop_of(program, Part.INPUT_GRADIENT) == TOKENS * (2 * matrices + (LAYERS - frozen) * SCORES * 2 // 3)
    reduced = sum(op.payload_bytes for body in program.bodies.values() for op in body.ops if isinstance(op, Collective))
    assert reduced == 4 * learning


def test_t20_6_a_stage_behind_the_first_computes_the_gradient_of_its_input() -> None:
    """Four stages of two layers, six frozen: the second and the third stage pass gradients on, the first has none."""
    program = program_of(of(sim.Plan(pp=4), frozen_layers=6))
    back = [flop_of(program, Part.INPUT_GRADIENT, rank) for rank in range(4)]
    layers = 2 * TOKENS * (2 * LAYER + SCORES * 2 // 3)
    assert back == [0, layers, layers, layers + 2 * TOKENS * HEAD]
    assert [memory(of(sim.Plan(pp=4), frozen_layers=6), rank).gradients_bytes > 0 for rank in range(4)] == [False] * 3 + [True]


@pytest.mark.parametrize("software", ["none", "megatron-core-2025", "torchtitan-2024", "megatron-lm-2021"])
@pytest.mark.parametrize("plan", [{"pp": 4, "schedule": "zb-h1"}, {"sharding": "fsdp"}, {"recompute": "full", "pp": 2}], ids=str)
@pytest.mark.parametrize("job", [{"frozen_layers": 5}, {"lora": sim.Lora(8)}], ids=str)
def test_t20_6_goes_with_the_rest(software: str, plan: dict[str, Any], job: dict[str, Any]) -> None:
    program = program_of(of(sim.Plan(**plan), software=software, **job))
    for body in program.bodies.values():
        assert len({op.name for op in body.ops}) == len(body.ops)
        assert not [op for op in body.ops if isinstance(op, Compute) and op.frozen and op.part is Part.WEIGHT_GRADIENT]


def test_t20_7_an_adapter_is_two_small_matrices() -> None:
    chosen, adapters = lora(), LAYERS * sum(RANK * (inputs + outputs) for inputs, outputs in WIDTHS.values())
    own, program = memory(chosen), program_of(chosen)
    base = chosen.model.parameters
    assert (own.parameters_bytes, own.gradients_bytes, own.optimizer_bytes) == (
        2 * (base + adapters),
        4 * adapters,
        12 * adapters,
    )
    assert flop_of(program, Part.WEIGHT_GRADIENT) == 2 * TOKENS * adapters
    more = flop_of(program, Part.FORWARD) - flop_of(program_of(of()), Part.FORWARD)
    assert more == 2 * TOKENS * adapters
    reduced = [op.payload_bytes for body in program.bodies.values() for op in body.ops if isinstance(op, Collective)]
    assert sum(reduced) == 4 * adapters


def test_t20_7_frozen_layers_keep_inputs_for_adapters_only() -> None:
    """An adapter keeps the input that its layer no longer keeps, and the narrow tensor. Head and first norm keep nothing.

    The result of attention, which is the input of its projection, is needed for its own gradient in any case.
    """
    narrow, wide = 2 * TOKENS * RANK, 2 * TOKENS * HIDDEN
    whole, every, one = (memory(chosen).activations_bytes for chosen in (of(), lora(), lora("qkv")))
    assert every == whole + LAYERS * 4 * narrow - 2 * wide
    inputs = sum(2 * TOKENS * inputs for name, (inputs, _) in WIDTHS.items() if name not in ("qkv", "attention_out"))
    assert every - one == LAYERS * (inputs + 3 * narrow)


@pytest.mark.parametrize("sequence", [False, True])
def test_t20_8_volumes_of_adapters_with_tensor_parallelism(sequence: bool) -> None:
    """A column layer gathers the narrow tensor, a row layer reduces it and gathers its result; back the narrow one is reduced."""
    plan = sim.Plan(tp=2, sequence_parallel=sequence)
    own, without = program_of(lora("mlp_up", "mlp_down", plan=plan)), program_of(of(plan))
    narrow, wide = 2 * TOKENS * RANK, 2 * TOKENS * HIDDEN
    gathers = LAYERS * [narrow, wide, *([wide] if sequence else [])]
    reduces = LAYERS * [narrow, narrow, narrow, *([] if sequence else [wide])]
    gathered, reduced = (
        sum(collectives(own, purpose)) - sum(collectives(without, purpose)) for purpose in (Purpose.GATHER, Purpose.REDUCE)
    )
    # nothing asks for gradients of the embedding, of the first layer's attention, and of the input of its MLP
    assert gathered == sum(gathers) - (2 * wide if sequence else 0)
    assert reduced == sum(reduces) - (2 if sequence else 3) * wide
    assert not collectives(own, Purpose.REGATHER)


def test_t20_9_flop_of_a_frozen_parameter() -> None:
    """6 N and the scores; 4 for a frozen parameter, 2 before the first adapter; 6 for one of an adapter, 4 for the first."""
    scores, adapter = LAYERS * SCORES, {name: RANK * sum(WIDTHS[name]) for name in WIDTHS}
    assert train_flop_per_token(of().model, of().job) == 6 * (LAYERS * LAYER + HEAD) + scores
    first = 2 * HIDDEN * QKV + 2 * RANK * HIDDEN
    needed = 4 * (LAYERS * LAYER + HEAD) + 6 * LAYERS * sum(adapter.values()) + scores - first
    assert train_flop_per_token(of().model, lora().job) == needed
    frozen = of(frozen_layers=3)
    needed = 6 * (5 * LAYER + HEAD) + 5 * SCORES + 3 * (2 * LAYER + SCORES // 3)
    assert train_flop_per_token(frozen.model, frozen.job) == needed
    for chosen, said in ((lora("qkv"), "adapters of rank 16 of qkv"), (frozen, "not the first 3 layers")):
        run = chosen.simulate()
        assert run.metrics.mfu == run.metrics.hfu
        assert said in repr(run)
    stages = of(sim.Plan(pp=2), frozen_layers=6).simulate().metrics
    assert stages.mfu < stages.hfu, "the second stage passes on a gradient that nobody needs"


def fraction(tokens: int, **packing: Any) -> float:
    return sim.Job(tokens, 8, 1, packing=sim.Packing(**packing)).packed_fraction


def test_t20_10_fractions_of_the_scores() -> None:
    assert fraction(1024, lengths=(512, 256, 256)) == (4 + 1 + 1) / 16
    assert fraction(1024, mean=256) == 1 / 4
    assert fraction(1000, mean=300) == (3 * 300**2 + 100**2) / 1000**2
    squares, lengths = (sum(n**power for n in range(1, 200)) for power in (2, 1))
    assert fraction(1024, mean=100, distribution="uniform") == pytest.approx(squares / lengths / 1024)
    spread = fraction(2**20, mean=1024, distribution="lognormal", sigma=0.5)
    assert spread == pytest.approx(math.exp(0.25) / 1024, rel=1e-6), "E[L^2] / E[L] is mean x exp(sigma^2) if none is cut"
    assert fraction(4096, mean=4096, distribution="lognormal", sigma=0.001) == pytest.approx(1, abs=0.001)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 2000), st.floats(0.1, 3))
def test_t20_10_fractions_are_fractions(lengths: list[int], mean: int, sigma: float) -> None:
    tokens = sum(lengths)
    assert 1 / tokens <= fraction(tokens, lengths=tuple(lengths)) <= 1
    assert 0 < fraction(2000, mean=mean, distribution="lognormal", sigma=sigma) <= 1


def attention(chosen: Scenario) -> list[Attention]:
    bodies = program_of(chosen).bodies.values()
    return [op.kernel for body in bodies for op in body.ops if isinstance(op, Compute) and isinstance(op.kernel, Attention)]


@pytest.mark.parametrize(
    "plan", [{}, {"tp": 2}, {"cp": 2}, {"cp": 2, "cp_kind": "all-gather"}, {"cp": 2, "cp_kind": "ulysses"}], ids=str
)
def test_t20_10_attention_takes_its_share(plan: dict[str, Any]) -> None:
    """Half of the scores: half of the flop of every kernel of attention, and everything else as before."""
    packing = sim.Packing(lengths=(TOKENS // 2, TOKENS // 2))
    packed, whole = attention(of(sim.Plan(**plan), packing=packing)), attention(of(sim.Plan(**plan)))
    assert [kernel.flop * 2 for kernel in packed] == [kernel.flop for kernel in whole]
    assert {kernel.traffic_bytes for kernel in packed} == {kernel.traffic_bytes for kernel in whole}


def test_t20_10_time_follows_the_share_of_the_flop() -> None:
    """At 32,768 tokens the launch is small: half of the scores take half of the time, and a sixteenth about that."""
    chosen = scenario(small_model(1), job=sim.Job(32768, 16, 1))
    prices, whole = prices_of(chosen), Attention(1, 32768, 8, 4, 64, True, 2)
    for share in (1 / 2, 1 / 16):
        assert prices(replace(whole, packed=share)) == pytest.approx(share * prices(whole), rel=0.1)


def test_t20_11_packed_documents_count_like_sequences_of_their_own() -> None:
    """Four documents in a sequence are four sequences of a quarter of the length, in the flop that MFU counts."""
    packed = of(packing=sim.Packing(lengths=(TOKENS // 4,) * 4))
    apart = scenario(packed.model, packed.cluster, packed.plan, sim.Job(TOKENS // 4, 32, 4))
    assert train_flop_per_token(packed.model, packed.job) == train_flop_per_token(apart.model, apart.job)
    assert flop_of(program_of(packed), Part.INPUT_GRADIENT) == flop_of(program_of(apart), Part.INPUT_GRADIENT)
    metrics = packed.simulate().metrics
    assert metrics.mfu == metrics.hfu


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (lambda: of(frozen_layers=9), "job.frozen_layers: inline has 8 layers, fewer than 9"),
        (lambda: of(model={"tied_embeddings": True}, frozen_layers=2), "job.frozen_layers: the embedding"),
        (lambda: lora("qkw"), "job.lora.targets: no adapter of 'qkw'"),
        (lambda: of(sim.Plan(tp=4), lora=sim.Lora(6)), "job.lora.rank: 6 does not divide by tp 4"),
        (lambda: of(lora=sim.Lora(targets=())), "job.lora.targets: is empty"),
        (lambda: of(model={"mtp_layers": 1}, frozen_layers=2), "job.frozen_layers: modules that predict further tokens"),
        (lambda: of(lora=sim.Lora(), frozen_layers=2), "job.frozen_layers: with lora no layer"),
        (
            lambda: lora(dtype="fp8", software="megatron-core-2025"),
            "job.lora: parameters that do not learn are not modelled in fp8",
        ),
        (lambda: lora(plan=sim.Plan(recompute=sim.Recompute(ops=("mlp_norm",)))), "job.lora: recomputation of single"),
        (lambda: lora(plan=sim.Plan(pp=2, vocabulary="redis")), "job.lora: vocabulary redis is modelled only"),
        (lambda: of(packing=sim.Packing()), "job.packing.mean: either the lengths"),
        (lambda: of(packing=sim.Packing(lengths=(64, 32))), "job.packing.lengths: documents of 96 tokens do not fill"),
        (
            lambda: of(packing=sim.Packing(mean=100, distribution="uniform")),
            "job.packing.mean: documents of 199 tokens are longer",
        ),
        (lambda: of(packing=sim.Packing(mean=64, sigma=1.0)), "job.packing.sigma: fixed lengths have none"),
        (lambda: of(packing=sim.Packing(mean=64), software="megatron-lm-2021"), "job.packing: attention in separate kernels"),
        (lambda: of(packing=sim.Packing(mean=64), model={"window": 32}), "job.packing: documents in windows"),
        (
            lambda: of(sim.Plan(pp=2, schedule="seq-1f1b", splits=2), packing=sim.Packing(mean=64)),
            "job.packing: documents in parts",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(chosen: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        chosen().simulate()


@pytest.mark.parametrize("tokens", [1, 2, 16, 64])
def test_what_a_token_needs_of_experts_hardly_depends_on_how_many_there_are(tokens: int) -> None:
    """An expert with a part of a token does a part of the work, and not that of a whole one."""
    model = sim.model("mixtral-8x7b", layers=2)
    job = sim.Job(sequence_length=tokens, global_batch=8, lora=sim.Lora(rank=16))
    long = replace(job, sequence_length=256)
    assert train_flop_per_token(model, job) == pytest.approx(train_flop_per_token(model, long), rel=0.01)


def test_t20_6_a_rank_of_frozen_layers_has_no_update() -> None:
    """It waits for the norm as all ranks do, and launches no kernel of the optimizer."""
    frozen = scenario(small_model(8), small_cluster(1), sim.Plan(pp=4), sim.Job(128, 16, 1, frozen_layers=4))
    program = program_of(frozen)
    updates = [
        [op.name for op in program.bodies[step.body].ops if isinstance(op, Compute)]
        for order in program.orders
        for step in order
        if step.phase == "optimizer"
    ]
    assert updates == [[], [], ["adam"], ["adam"]]
