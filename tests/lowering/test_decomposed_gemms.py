"""Sentences 5 to 7 of section 6 of the second half of docs/semantics.md: GEMMs and their collectives in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.kernels import Gemm, Part, Rowwise
from simulator.program.operations import AnyOp, Collective, Compute, Purpose
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import scenario, small_cluster, small_model

TOKENS, HIDDEN, FFN, WIDTH = 2048, 512, 1408, 2
"""Of one microbatch of `small_model`, in bf16."""


def cut(
    tp: int = 4, how: bool | str = "decomposed", *, framework: str = "none", dtype: str = "bf16", frozen: int = 0, **plan: Any
) -> Scenario:
    chosen = sim.Plan(tp=tp, dp=1, overlap=sim.Overlap(tp=how), **plan)  # type: ignore[arg-type]
    cluster, job = (
        small_cluster(max(1, tp * chosen.pp // 4), gpus_per_node=min(4, tp * chosen.pp)),
        sim.Job(TOKENS, 2 * chosen.pp, 1, dtype=dtype, frozen_layers=frozen),
    )
    return scenario(small_model(layers=2), cluster, chosen, job, framework=sim.framework(framework))


def ops_of(of: Scenario, phases: str = "FBIW") -> list[AnyOp]:
    """The operations of the first pipeline rank in one microbatch."""
    program = program_of(of)
    names = {step.body: None for step in program.orders[0] if step.phase in phases and "casting" not in step.body}
    return [op for name in names for op in program.bodies[name].ops]


def of_operator(ops: Iterable[AnyOp], operator: str, part: Part) -> list[AnyOp]:
    return [op for op in ops if op.operator == f"0.{operator}" and op.part is part]


def gemms(ops: Iterable[AnyOp]) -> list[Gemm]:
    return [op.kernel for op in ops if isinstance(op, Compute) and isinstance(op.kernel, Gemm)]


def sent_bytes(ops: Iterable[AnyOp], tp: int) -> int:
    """Bytes that a rank sends in exchanges, gathers and reduce-scatters of the group."""
    group = [op for op in ops if isinstance(op, Collective) and op.communicator == "tp" and op.kind != "all_reduce"]
    return sum(op.payload_bytes if op.kind == "exchange" else op.payload_bytes * (tp - 1) // tp for op in group)


def times(of: Scenario, phase: str) -> Any:
    rows = of.simulate(steps=1).timeline.to_pandas(ranks=[0])
    rows = rows[(rows.phase == phase) & (rows.microbatch == 0) & rows.block.str.startswith("layer 0")]
    return rows.set_index(rows.block.str.removeprefix("layer 0 "))


@pytest.mark.parametrize("tp", [2, 4])
def test_t6_5_a_gather_arrives_in_pieces_beside_pieces_of_its_gemm(tp: int) -> None:
    ops = ops_of(cut(tp))
    for operator, part, inner in (("mlp_up", Part.FORWARD, 2 * FFN), ("mlp_down", Part.INPUT_GRADIENT, FFN)):
        own = of_operator(ops, operator, part)
        assert [(g.m, g.n, g.k) for g in gemms(own)] == [(TOKENS // tp, inner // tp, HIDDEN)] * tp
        exchanges = [op for op in own if isinstance(op, Collective)]
        assert [(op.kind, op.payload_bytes) for op in exchanges] == [("exchange", TOKENS // tp * HIDDEN * WIDTH)] * (tp - 1)


@pytest.mark.parametrize(("phase", "suffix"), [("F", ""), ("B", ".dgrad")])
def test_t6_5_a_piece_waits_for_its_exchange_and_an_exchange_for_none(phase: str, suffix: str) -> None:
    """On slow links the pieces wait for their exchanges, and the exchanges follow each other."""
    slow = cut()
    slow = scenario(slow.model, small_cluster(1, intra_node="NVSwitch 20 GB/s"), slow.plan, slow.job)
    for of, is_slow in ((cut(), False), (slow, True)):
        at = times(of, phase)
        name = ("mlp_up" if phase == "F" else "mlp_down") + suffix
        pieces = [at.loc[f"{name}{f'.piece {i}' if i else ''}"] for i in range(4)]
        exchanges = [at.loc[f"{name}.gather {i}"] for i in range(3)]
        assert exchanges[0].start_ns == pieces[0].start_ns
        for i in range(3):
            assert pieces[i + 1].start_ns == max(pieces[i].end_ns, exchanges[i].end_ns)
        assert [exchanges[i + 1].start_ns == exchanges[i].end_ns for i in range(2)] == [True, True]
        assert (exchanges[2].end_ns > pieces[2].end_ns) == is_slow


@pytest.mark.parametrize("tp", [2, 4])
def test_t6_6_a_scatter_leaves_in_pieces_and_a_kernel_adds_what_arrives(tp: int) -> None:
    own = of_operator(ops_of(cut(tp)), "mlp_down", Part.FORWARD)
    assert [(g.m, g.n, g.k) for g in gemms(own)] == [(TOKENS // tp, HIDDEN, FFN // tp)] * tp
    exchanges = [op for op in own if isinstance(op, Collective)]
    assert [(op.kind, op.payload_bytes) for op in exchanges] == [("exchange", TOKENS // tp * HIDDEN * WIDTH)] * (tp - 1)
    (merge,) = (op.kernel for op in own if op.purpose is Purpose.MERGE and isinstance(op, Compute))
    assert isinstance(merge, Rowwise)
    assert merge.traffic_bytes == (tp + 1) * TOKENS // tp * HIDDEN * WIDTH


def test_t6_6_each_piece_leaves_when_it_ends_and_the_sum_waits_for_all() -> None:
    at = times(cut(), "F")
    pieces = [at.loc[f"mlp_down{f'.piece {i}' if i else ''}"] for i in range(4)]
    exchanges = [at.loc[f"mlp_down.reduce {i}"] for i in range(3)]
    for i in range(3):
        assert exchanges[i].start_ns >= pieces[i].end_ns
        assert pieces[i + 1].start_ns == pieces[i].end_ns
    assert exchanges[0].start_ns == pieces[0].end_ns
    assert at.loc["mlp_down.merge"].start_ns == max(pieces[3].end_ns, exchanges[2].end_ns)
    assert at.loc["mlp_residual"].start_ns == at.loc["mlp_down.merge"].end_ns


PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two ranks": {"tp": 2},
    "split backward": {"tp": 2, "pp": 2, "schedule": "zb-h1"},
    "frozen layers": {"frozen": 1},
    "recomputed layers": {"recompute": "full"},
    "recomputed operators": {"recompute": sim.Recompute(ops=("mlp_norm", "mlp_up"))},
    "stopped early": {"recompute": sim.Recompute("full", early_stop=True)},
    "fp8": {"framework": "megatron-core-2025", "dtype": "fp8", "sharding": "zero1"},
    "fp8, cast in every pass": {"framework": "torchtitan-2024", "dtype": "fp8"},
}


@pytest.mark.parametrize("name", PLANS)
def test_t6_7_flop_bytes_and_what_is_held_stay_the_same(name: str) -> None:
    whole, pieces = (cut(how=how, **PLANS[name]) for how in (True, "decomposed"))
    tp = whole.plan.tp
    before, after = ops_of(whole), ops_of(pieces)
    assert sum(g.flop for g in gemms(after)) == sum(g.flop for g in gemms(before))
    assert sent_bytes(after, tp) == sent_bytes(before, tp)
    assert sum(op.purpose is Purpose.CAST for op in after) == sum(op.purpose is Purpose.CAST for op in before)
    assert sum(op.held_bytes for op in after) == sum(op.held_bytes for op in before)
    for one, other in zip(*(memory_of(of, layout_of(of)) for of in (pieces, whole)), strict=True):
        assert one.items == other.items
        assert one.total_bytes <= other.total_bytes
    for of in (whole, pieces):
        for body in program_of(of).bodies.values():
            assert len({op.name for op in body.ops}) == len(body.ops)
            cast_once = [op.operator for op in body.ops if op.purpose is Purpose.CAST_CACHED_WEIGHTS]
            assert len(set(cast_once)) == len(cast_once)


def test_t6_7_reductions_of_input_gradients_stay_whole_beside_weight_gradients() -> None:
    of = cut()
    kinds = {op.kind for op in of_operator(ops_of(of), "mlp_up", Part.INPUT_GRADIENT) if isinstance(op, Collective)}
    assert kinds == {"all_gather", "reduce_scatter"}
    at = times(of, "B")
    assert at.loc["mlp_up.dgrad.reduce"].start_ns == at.loc["mlp_up.wgrad"].start_ns
    split = of_operator(ops_of(cut(2, pp=2, schedule="zb-h1"), "I"), "mlp_up", Part.INPUT_GRADIENT)
    assert {op.kind for op in split if isinstance(op, Collective)} == {"exchange"}


def test_t6_7_only_gemms_of_layers_are_cut() -> None:
    cut_ones = {op.operator for op in ops_of(cut()) if isinstance(op, Collective) and op.kind == "exchange"}
    assert cut_ones == {f"{i}.{name}" for i in range(2) for name in ("qkv", "attention_out", "mlp_up", "mlp_down")}
    model = small_model(layers=2, parallel_mlp="one_norm")
    parallel = scenario(model, small_cluster(1), cut().plan, sim.Job(TOKENS, 2, 1))
    cut_ones = {op.operator for op in ops_of(parallel) if isinstance(op, Collective) and op.kind == "exchange"}
    assert cut_ones == {f"{i}.{name}" for i in range(2) for name in ("qkv", "mlp_up")}


def test_t6_7_pieces_are_slower_than_the_whole_and_less_is_exposed() -> None:
    none, backward, pieces = (cut(how=how).simulate().metrics for how in (False, True, "decomposed"))
    assert pieces.exposed_s["tp"] < backward.exposed_s["tp"] < none.exposed_s["tp"]
    assert pieces.busy_s > backward.busy_s
    assert pieces.hfu * pieces.step_time_s == pytest.approx(backward.hfu * backward.step_time_s)


def test_a_framework_that_decomposes_does_so_where_tokens_are_shared() -> None:
    framework = sim.framework("none", overlap={"tp": "decomposed"})
    with_it, without = (
        scenario(small_model(2), small_cluster(1), sim.Plan(tp=4, sequence_parallel=shared), framework=framework)
        for shared in (True, False)
    )
    assert any(op.kind == "exchange" for op in ops_of(with_it) if isinstance(op, Collective))
    assert not any(op.kind == "exchange" for op in ops_of(without) if isinstance(op, Collective))
    assert any(op.detached for op in ops_of(without) if op.part is Part.WEIGHT_GRADIENT)
    adapted = replace(with_it, job=replace(with_it.job, lora=sim.Lora()))
    assert not any(op.kind == "exchange" for op in ops_of(adapted) if isinstance(op, Collective))
    with pytest.raises(UserError, match=r"overlap.tp: adapters take whole tensors"):
        feasible.check(replace(adapted, plan=cut().plan))
