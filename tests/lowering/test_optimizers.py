"""Optimizers and gradient clipping: bytes of state, bytes and flop of an update, and what waits for the gradient norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.errors import UserError
from simulator.kernels import Gemm, Rowwise
from simulator.lowering.passes.muon import Matrix, newton_schulz_flop
from simulator.program.operations import AnyOp, Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.simulation.steady_state import to_simulate

from ..small_scenarios import scenario, small_cluster, small_model

STATE_BYTES = {"adam": 12, "adam-bf16": 4, "adam-8bit": 2 + 8 / 256, "sgd": 4, "sgd-momentum": 8}
GRADIENT_BYTES = 4
HIDDEN, FFN, QKV, LAYERS = 512, 1408, 512 + 2 * 256, 8
MATRICES = ((HIDDEN, QKV), (HIDDEN, HIDDEN), (HIDDEN, 2 * FFN), (FFN, HIDDEN))
"""The matrices of a layer of the small model."""


def of(optimizer: Any = "adam", plan: sim.Plan | None = None, fused: bool = True, **job: Any) -> Scenario:
    chosen = sim.Job(128, 16, 1, optimizer=optimizer, **job)
    software = sim.framework({"fusion": {"optimizer": fused}})
    return scenario(small_model(LAYERS), small_cluster(1), plan or sim.Plan(), chosen, framework=software)


def steps_of(program: Program, phase: str, rank: int = 0) -> list[AnyOp]:
    return [op for step in program.orders[rank] if step.phase == phase for op in program.bodies[step.body].ops]


def update_of(chosen: Scenario) -> list[AnyOp]:
    """The operations of the first rank's optimizer."""
    return steps_of(program_of(chosen), "optimizer")


def traffic_bytes(ops: Iterable[AnyOp]) -> int:
    return sum(op.kernel.traffic_bytes for op in ops if isinstance(op, Compute) and isinstance(op.kernel, Rowwise))


@pytest.mark.parametrize("kind", STATE_BYTES)
def test_t20_1_bytes_of_state_per_parameter(kind: str) -> None:
    chosen = of(kind)
    parameters = chosen.model.parameters
    assert memory_of(chosen, layout_of(chosen))[0].optimizer_bytes == pytest.approx(STATE_BYTES[kind] * parameters, abs=1)
    shared = of(kind, sim.Plan(sharding="zero1"))
    assert memory_of(shared, layout_of(shared))[0].optimizer_bytes == pytest.approx(STATE_BYTES[kind] * parameters / 4, abs=12)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"),
    [
        (sim.Optimizer("adam", moments="bf16"), 4 + 4),
        (sim.Optimizer("adam", moments="8bit", block=2048), 4 + 2 + 8 / 2048),
        (sim.Optimizer("adam", master="none"), 8),
        (sim.Optimizer("adam-8bit", master="fp32"), 4 + 2 + 8 / 256),
        (sim.Optimizer("sgd-momentum", moments="bf16", master="none"), 2),
    ],
    ids=str,
)
def test_t20_1_formats_of_state_are_free(optimizer: sim.Optimizer, state_bytes: float) -> None:
    chosen = of(optimizer)
    held = memory_of(chosen, layout_of(chosen))[0].optimizer_bytes
    assert held == pytest.approx(state_bytes * chosen.model.parameters, abs=1)


def test_t20_1_single_precision_has_no_master_copy() -> None:
    for kind, state_bytes in (("adam", 8), ("sgd", 0)):
        chosen = of(kind, dtype="fp32")
        assert memory_of(chosen, layout_of(chosen))[0].optimizer_bytes == state_bytes * chosen.model.parameters


@pytest.mark.parametrize("kind", STATE_BYTES)
def test_t20_2_an_update_moves_the_state_twice(kind: str) -> None:
    """Gradient read; state read and written; weight written, and without a master copy read before."""
    weight_bytes = 2 if kind in ("adam", "sgd", "sgd-momentum") else 4
    moved = 2 * STATE_BYTES[kind] + GRADIENT_BYTES + weight_bytes
    (update,) = update_of(of(kind))
    assert isinstance(update, Compute)
    assert update.kernel.traffic_bytes == pytest.approx(moved * of().model.parameters, rel=1e-9)


@pytest.mark.parametrize(("kind", "moments"), [("adam", 2), ("sgd", 0), ("sgd-momentum", 1), ("muon", 2)])
@pytest.mark.parametrize("fused", [True, False])
def test_t20_2_in_fp32_there_is_no_weight_of_16_bits_to_write(kind: str, moments: int, fused: bool) -> None:
    """Of one kernel: gradient read, moments and weight read and written. No kernel casts, and the matrices of Muon move 2 bytes
    less."""
    update, in_bf16 = (update_of(of(kind, fused=fused, dtype=dtype)) for dtype in ("fp32", "bf16"))
    assert not [op for op in update if op.name == "cast"]
    saved = 2 if fused else 4 + 2
    matrices = LAYERS * sum(rows * columns for rows, columns in MATRICES) if kind == "muon" else 0
    others = of().model.parameters - matrices
    assert traffic_bytes(in_bf16) - traffic_bytes(update) == saved * others + 2 * matrices
    if fused and not matrices:
        assert traffic_bytes(update) == (GRADIENT_BYTES + 2 * 4 * (1 + moments)) * others


@pytest.mark.parametrize(
    ("kind", "kernels", "moved"), [("adam", 9, 86), ("sgd", 3, 4 + 8 + 8 + 4 + 6), ("adam-8bit", 1, 12.0625)]
)
def test_t20_2_operators_of_pytorch_move_more(kind: str, kernels: int, moved: float) -> None:
    """Adam: 78 bytes and two reads of the gradient; moments in 8 bits are always updated by one kernel."""
    update = update_of(of(kind, fused=False))
    assert len(update) == kernels
    assert traffic_bytes(update) == pytest.approx(moved * of().model.parameters, rel=1e-9)


@given(st.integers(1, 64), st.integers(1, 64))
def test_t20_3_flop_of_an_iteration(rows: int, columns: int) -> None:
    """X X', A A, B X on the shorter side."""
    small, large = min(rows, columns), max(rows, columns)
    gemms = Gemm(small, small, large, 2), Gemm(small, small, small, 2), Gemm(small, large, small, 2)
    assert newton_schulz_flop(Matrix(rows, columns, None, False)) == sum(gemm.flop for gemm in gemms)


def flop_of(ops: Iterable[AnyOp]) -> int:
    return sum(op.kernel.flop for op in ops if isinstance(op, Compute))


def test_t20_3_muon_orthogonalises_the_matrices_of_layers_and_adam_does_the_rest() -> None:
    update, model = update_of(of("muon")), of().model
    matrices = LAYERS * sum(rows * columns for rows, columns in MATRICES)
    assert flop_of(update) == 5 * LAYERS * sum(newton_schulz_flop(Matrix(*shape, None, False)) for shape in MATRICES)
    gemms = [op for op in update if isinstance(op, Compute) and isinstance(op.kernel, Gemm)]
    assert len(gemms) == 5 * 3 * LAYERS * len(MATRICES)
    others = model.parameters - matrices
    assert traffic_bytes(update) == (26 + GRADIENT_BYTES) * others + (12 + 10 + 20 + GRADIENT_BYTES) * matrices
    assert memory_of(of("muon"), layout_of(of("muon")))[0].optimizer_bytes == 12 * others + 8 * matrices
    three = flop_of(update_of(of(sim.Optimizer("muon", newton_schulz_steps=3))))
    assert three * 5 == flop_of(update) * 3
    in_pieces = [op.name for op in update_of(of("muon", fused=False))]
    assert len(set(in_pieces)) == len(in_pieces)


def test_t20_4_a_sharded_optimizer_gives_each_rank_whole_matrices() -> None:
    """32 matrices on four ranks: two pairs of layers' largest each, and so on down; volumes stay those of ZeRO-1."""
    chosen = of("muon", sim.Plan(sharding="zero1"))
    update, whole = update_of(chosen), update_of(of("muon"))
    assert flop_of(update) * 4 == flop_of(whole)
    adam = program_of(of("adam", sim.Plan(sharding="zero1")))
    moved = {
        name: sorted(op.payload_bytes for body in program.bodies.values() for op in body.ops if isinstance(op, Collective))
        for name, program in (("muon", program_of(chosen)), ("adam", adam))
    }
    assert moved["muon"] == moved["adam"]
    # with more ranks than matrices of the largest kind, one rank's matrix decides
    odd = scenario(small_model(1), small_cluster(2), sim.Plan(sharding="zero1"), sim.Job(128, 16, 1, optimizer="muon"))
    assert flop_of(update_of(odd)) == 5 * max(newton_schulz_flop(Matrix(*shape, None, False)) for shape in MATRICES)


def test_t20_4_tensor_parallel_ranks_take_blocks_or_gather() -> None:
    blockwise, duplicated = (
        update_of(of(sim.Optimizer("muon", tensor_parallel=how), sim.Plan(tp=2)))  # type: ignore[arg-type]
        for how in ("blockwise", "duplicated")
    )
    halves = ((HIDDEN, QKV // 2), (HIDDEN // 2, HIDDEN), (HIDDEN, FFN), (FFN // 2, HIDDEN))
    assert flop_of(blockwise) == 5 * LAYERS * sum(newton_schulz_flop(Matrix(*shape, None, False)) for shape in halves)
    assert not [op for op in blockwise if isinstance(op, Collective)]
    gathers = [op for op in duplicated if isinstance(op, Collective)]
    assert flop_of(duplicated) == flop_of(update_of(of("muon")))
    assert sorted(op.payload_bytes for op in gathers) == sorted(4 * rows * columns for rows, columns in MATRICES * LAYERS)


def test_t20_4_experts_of_a_rank_are_a_batch() -> None:
    model = small_model(2, experts=8, experts_per_token=2, ffn_hidden=704)
    chosen = scenario(model, small_cluster(1), sim.Plan(ep=4), sim.Job(128, 16, 1, optimizer="muon"))
    batches = [op.kernel.batch for op in update_of(chosen) if isinstance(op, Compute) and isinstance(op.kernel, Gemm)]
    assert set(batches) == {1, 2 * 8 // 4}, "two layers of two experts"
    assert batches.count(4) == 2 * 5 * 3, "two matrices of an expert, five iterations, three GEMMs"


def test_t20_5_clipping_reads_the_gradients_for_the_norm_and_scales_them() -> None:
    plain, clipped = program_of(of()), program_of(of(gradient_clipping=True))
    share = program_of(of("adam", sim.Plan(sharding="zero1"), gradient_clipping=True))
    parameters = of().model.parameters
    assert [step.phase for step in clipped.orders[0]][-3:] == ["local norm", "norm", "optimizer"]
    between = [step.phase for step in program_of(of(gradient_clipping=True), None).orders[0]]
    assert (between[0], *between[-2:]) == ("optimizer", "local norm", "norm")
    assert traffic_bytes(steps_of(clipped, "local norm")) == GRADIENT_BYTES * parameters
    assert traffic_bytes(steps_of(share, "local norm")) == GRADIENT_BYTES * -(-parameters // 4)
    more = traffic_bytes(steps_of(clipped, "optimizer")) - traffic_bytes(steps_of(plain, "optimizer"))
    assert more == 2 * GRADIENT_BYTES * parameters
    assert steps_of(clipped, "optimizer")[0].purpose is Purpose.CLIP


def test_t20_5_without_clipping_no_rank_waits_for_the_norm() -> None:
    """The same program as with a post-validated optimizer, which waits for the reductions of its own rank only."""
    unclipped = of(plan=sim.Plan(pp=4), gradient_clipping=False)
    validated = of(plan=sim.Plan(pp=4, optimizer="post-validated"))
    assert program_of(unclipped) == program_of(validated) != program_of(of(plan=sim.Plan(pp=4)))
    assert to_simulate(unclipped, None) == to_simulate(validated, None) != to_simulate(of(), None)


@pytest.mark.parametrize(
    ("optimizer", "plan", "job", "says"),
    [
        ("muon", {"sharding": "fsdp"}, {}, "job.optimizer: muon needs whole matrices, which fsdp divides"),
        ("muon", {}, {"dtype": "fp16"}, "muon is not combined with fp16"),
        (sim.Optimizer("muon", tensor_parallel="blockwise"), {}, {}, "there is no tensor-parallel group that divides matrices"),
        ("muon", {}, {"lora": sim.Lora()}, "muon is not modelled for adapters"),
        ("adam", {"pp": 2, "optimizer": "post-validated"}, {"gradient_clipping": True}, "job.gradient_clipping: the passes"),
        (sim.Optimizer("sgd", moments="bf16"), {}, {}, "job.optimizer.moments: sgd has no moments"),
        (sim.Optimizer("adam", block=128), {}, {}, "job.optimizer.block: only moments in 8 bits"),
        (sim.Optimizer("muon", moments="bf16"), {}, {}, "muon with bf16 is not modelled"),
        (sim.Optimizer("adam", newton_schulz_steps=4), {}, {}, "adam has no use for it"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(optimizer: Any, plan: dict[str, Any], job: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        of(optimizer, sim.Plan(**plan), **job).simulate()
