"""Experts with sharded state, sentence by sentence: units, volumes, groups, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import derived
from simulator.program.operations import Collective, Purpose
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.workload.framework import Framework

from ..small_scenarios import both, bound_twice
from .test_experts import HIDDEN, LAYERS, called, layer_parameters, of
from .test_sharded_state import G_BYTES, P_BYTES, rows_of, sent_bytes

MICROBATCHES = 2


def counts(chosen: Scenario) -> tuple[int, int, int]:
    """Parameters of all experts on a rank, of the rest of the model, and of the head with its norm."""
    experts, rest = layer_parameters(chosen.model)
    head = (chosen.model.vocab + 1) * HIDDEN
    return LAYERS * experts // chosen.plan.ep, LAYERS * rest + chosen.model.vocab * HIDDEN + head, head


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.sampled_from(["fsdp", "zero2"]))
def test_t17_15_experts_are_divided_over_their_copies(ep: int, kind: str) -> None:
    """FSDP: m P_e (2 p + g) / ep over edp, m P (2 p + g) over dp; ZeRO-2: P (m g + p) of each."""
    chosen = of({"ep": ep, "sharding": kind})
    experts, rest, head = counts(chosen)
    m, passes = MICROBATCHES, 2 * MICROBATCHES if kind == "fsdp" else 1
    assert sent_bytes(program_of(chosen)) == {
        ("edp", "all_gather"): passes * experts * P_BYTES,
        ("edp", "reduce_scatter"): m * experts * G_BYTES,
        ("dp", "all_gather"): (passes * rest - (m * head if kind == "fsdp" else 0)) * P_BYTES,
        ("dp", "reduce_scatter"): m * rest * G_BYTES,
    }


def test_t17_15_experts_that_one_rank_holds_alone_are_not_gathered() -> None:
    assert {group for group, _ in sent_bytes(program_of(of({"ep": 8, "sharding": "fsdp"})))} == {"dp"}
    only_experts = of({"tp": 8, "etp": 1, "ep": 2, "sharding": "fsdp"}, batch=2)
    assert {group for group, _ in sent_bytes(program_of(only_experts))} == {"edp"}


def copies(chosen: Scenario) -> dict[str, tuple[int, float]]:
    """By unit, how often a rank copies its parameters in a step, and the bytes that a copy moves for each parameter."""
    found: dict[str, tuple[int, float]] = {}
    for op in called(chosen):
        if op.name.endswith("parameters copy"):
            unit = op.name.removesuffix("parameters copy").rstrip(" .")
            found[unit] = (found.get(unit, (0, 0))[0] + 1, op.kernel.bytes_per_element)
    return found


@pytest.mark.parametrize("kind", ["fsdp", sim.Sharding("hsdp", group=4)])
def test_t17_15_every_pass_casts_what_a_rank_holds_alone_in_fp32_where_the_rest_is_divided(kind: Any) -> None:
    """From fp32 to 16 bits, and a copy of the result: 4 + 2 and 2 + 2 bytes, forward and backward."""
    passes, copied, cast = 2 * MICROBATCHES, 2 * P_BYTES, 4 + P_BYTES + 2 * P_BYTES
    found = copies(of({"ep": 8 if kind == "fsdp" else 4, "sharding": kind}))
    assert (found["0"], found["0.experts"], found["head"]) == ((passes, copied), (passes, cast), (MICROBATCHES, copied))
    only_experts = {"tp": 8, "etp": 1, "ep": 2}
    found = copies(of({**only_experts, "sharding": "fsdp"}, batch=MICROBATCHES))
    assert (found["0"], found["0.experts"], found["head"]) == ((passes, cast), (passes, copied), (MICROBATCHES, cast))
    found = copies(of({"tp": 2, "etp": 1, "ep": 4, "sharding": "fsdp"}, nodes=1, batch=2 * MICROBATCHES))
    assert (found["0"], found["0.experts"]) == ((passes, copied), (passes, cast)), "also where only two ranks divide the rest"
    of_one_replica = of({"tp": 8, "etp": 8, "sharding": "fsdp"}, batch=MICROBATCHES)
    with_16_bits = of({"ep": 8, "sharding": "fsdp"})
    with_16_bits = replace(with_16_bits, job=replace(with_16_bits.job, optimizer="adam-bf16"))
    assert not copies(of_one_replica)
    assert not copies(of({"ep": 8, "sharding": "zero2"}))
    assert copies(with_16_bits)["0.experts"] == (passes, copied)
    frozen = of({"ep": 8, "sharding": "fsdp"})
    found = copies(replace(frozen, job=replace(frozen.job, frozen_layers=1)))
    assert (found["0.experts"][1], found["1.experts"][1]) == (copied, cast)


BESIDE = Framework(weights_beside_master=True)


@pytest.mark.parametrize("kind", ["fsdp", sim.Sharding("hsdp", group=4)])
def test_t17_15_megatron_fsdp_casts_nothing_that_a_rank_holds_alone_and_keeps_both_formats(kind: Any) -> None:
    plain = of({"ep": 8 if kind == "fsdp" else 4, "sharding": kind})
    chosen = replace(plain, framework=BESIDE)
    experts, rest, _ = counts(chosen)
    assert "0.experts" not in copies(chosen)
    assert copies(chosen) == {unit: found for unit, found in copies(plain).items() if not unit.endswith("experts")}
    assert sent_bytes(program_of(chosen)) == sent_bytes(program_of(plain))
    (fp32_only,), (both_formats,) = (memory_of(each, layout_of(each)) for each in (plain, chosen))
    state = [rank.parameters_bytes + rank.optimizer_bytes for rank in (fp32_only, both_formats)]
    shards = 8 if kind == "fsdp" else 4
    assert state[1] - state[0] == pytest.approx(P_BYTES * (experts + rest / shards), abs=64)


def test_t17_15_what_is_cast_is_held_beside_the_master_copy() -> None:
    """In 16 bits: in a pass from the cast to the last operation of the experts, and with a pipeline throughout."""
    chosen = of({"ep": 8, "sharding": "fsdp"})
    experts, rest, head = counts(chosen)
    cast = next(op for op in called(chosen) if op.name == "0.experts parameters copy")
    assert cast.held_bytes - cast.freed_bytes == experts // LAYERS * P_BYTES
    memory = chosen.simulate().memory[0]
    assert memory.parameters_bytes == (experts + rest // 8) * 4 + head * P_BYTES
    assert memory.optimizer_bytes == (experts + rest // 8) * 8
    piped = of({"pp": 2, "ep": 4, "sharding": "fsdp"})
    held = [item for item in piped.simulate().memory[1].items if item.what == "units that stay"]
    _, of_layer = layer_parameters(piped.model)
    assert sum(item.size_bytes for item in held) == (LAYERS // 2 * (of_layer + experts // LAYERS * 2) + head) * P_BYTES


def test_t17_15_with_a_pipeline_experts_are_gathered_and_reduced_once() -> None:
    chosen = of({"pp": 2, "ep": 2, "sharding": "fsdp"})
    experts, _, _ = counts(chosen)
    sent = sent_bytes(program_of(chosen))
    assert sent["edp", "all_gather"] == experts // 2 * P_BYTES
    assert sent["edp", "reduce_scatter"] == experts // 2 * G_BYTES


def added(chosen: Scenario) -> set[bool]:
    """Whether the operations that kernels add gradients of are those of experts, of the rest, or of both."""
    return {op.expert for op in called(chosen) if getattr(op, "purpose", None) is Purpose.ACCUMULATE}


def test_t13_4_gradients_that_no_pass_reduces_are_added_those_of_experts_too() -> None:
    """Experts that one rank holds alone, and the rest where experts alone have replicas."""
    framework = sim.framework("torchtitan-2024")
    for plan, of_experts in (({"ep": 8}, True), ({"tp": 8, "etp": 1, "ep": 2}, False)):
        whole, sharded = (replace(of({**plan, "sharding": kind}, batch=16), framework=framework) for kind in ("none", "fsdp"))
        assert added(whole) == {True, False}
        assert added(sharded) == {of_experts}
        buffers = [op.working_bytes for op in called(sharded) if getattr(op, "purpose", None) is Purpose.ACCUMULATE]
        assert all(buffers)


def test_sharding_of_the_framework_holds_where_experts_alone_have_replicas() -> None:
    plan = {"tp": 8, "etp": 1, "ep": 2}
    chosen, other = (replace(of(plan, batch=2), framework=sim.framework(name)) for name in ("nemo-moe-2024", "torchtitan-2024"))
    assert derived.with_usual_plan(chosen).plan.full_sharding.kind == "zero1"
    assert derived.with_usual_plan(other).plan.full_sharding.kind == "fsdp"
    alone = replace(chosen, plan=replace(chosen.plan, ep=8))
    assert derived.with_usual_plan(alone).plan.full_sharding.kind == "none"
    assert derived.with_usual_plan(of({"tp": 8, "etp": 8}, batch=2)).plan.full_sharding.kind == "none"


def test_t17_15_weights_of_experts_that_are_gathered_anew_are_cast_anew() -> None:
    framework = sim.framework("megatron-core-2025")
    for plan, of_experts, of_the_rest in (
        ({"tp": 8, "etp": 1, "ep": 2}, MICROBATCHES, 1),
        ({"ep": 8}, 1, MICROBATCHES),
        ({"ep": 2}, MICROBATCHES, MICROBATCHES),
    ):
        chosen = of({**plan, "sharding": "fsdp"}, batch=MICROBATCHES * (1 if "tp" in plan else 8))
        gpu = replace(chosen.cluster, gpu=sim.cluster("dgx-h100", nodes=1).gpu)
        chosen = replace(chosen, framework=framework, cluster=gpu, job=replace(chosen.job, dtype="fp8"))
        casts = [op.name for op in called(chosen) if op.name.endswith("weights")]
        assert casts.count("0.expert_up.weights") == of_experts
        assert casts.count("0.qkv.weights") == of_the_rest


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["zero1", "zero2", "hsdp"])
def test_t17_15_groups_divide_experts_too(kind: Any) -> None:
    """Two groups of four GPUs, in which two ranks hold the same experts; shares are reduced across the groups."""
    chosen = of({"ep": 2, "sharding": sim.Sharding(kind, group=4)})
    mesh = derived.mesh_of(chosen)
    assert mesh.groups(("edp",)).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups(("edp", "replicas")).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert mesh.groups(("replicas",)).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    experts, rest, _ = counts(chosen)
    sent, times = sent_bytes(program_of(chosen)), 1 if kind == "zero1" else MICROBATCHES
    assert sent["edp shards", "reduce_scatter"] == times * experts * G_BYTES
    assert sent["dp replicas", "all_reduce"] == times * (experts // 2 + rest // 4) * G_BYTES


def of_layers(rows: Any, block: str) -> Any:
    """The operations of a name, one for each layer, in the order of their starts."""
    return [*rows[rows.block.str.fullmatch(rf"layer \d+ {block}")].itertuples()]


def test_t17_16_the_experts_of_a_layer_are_a_unit_behind_their_layer() -> None:
    """Forward both gathers wait for the copy of the experts two layers before, backward for that of the layer before."""
    rows = rows_of(of({"ep": 2, "sharding": "fsdp"}).simulate(steps=1))
    for phase, behind, awaited in (("F", 2, "experts parameters copy"), ("B", 1, "parameters copy")):
        here = rows[(rows.phase == phase) & (rows.microbatch == 1)]
        layers, experts = of_layers(here, "parameters"), of_layers(here, "experts parameters")
        copies, before = of_layers(here, "parameters copy"), of_layers(here, awaited)
        assert len(layers) == len(experts) == LAYERS
        for at, (of_layer, of_experts) in enumerate(zip(layers, experts, strict=True)):
            assert of_layer.end_ns <= of_experts.start_ns, "they take turns"
            if at >= behind:
                assert before[at - behind].end_ns <= of_layer.start_ns
            if at > 0:
                assert of_experts.start_ns < copies[at].start_ns, "ahead of the layer itself"


def test_t17_16_experts_count_as_one_unit_with_their_layer() -> None:
    """With one unit in flight a layer and its experts are gathered when the layer before has ended."""
    rows = rows_of(of({"ep": 2, "sharding": sim.Sharding("fsdp", prefetch=3, in_flight=1)}).simulate(steps=1))
    here = rows[(rows.phase == "F") & (rows.microbatch == 1)]
    ends = [last.end_ns for last in of_layers(here, "mlp_residual")]
    for block in ("parameters", "experts parameters"):
        assert all(gather.start_ns >= end for gather, end in zip(of_layers(here, block)[1:], ends, strict=False))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind, group", [("fsdp", None), ("hsdp", 4), ("zero2", None), ("zero2", 4), ("zero3", None)])
def test_t17_15_memory_holds_shares_of_experts(kind: Any, group: int | None) -> None:
    ep = 1 if kind == "zero3" else 2
    chosen = of({"ep": ep, "sharding": sim.Sharding(kind, group=group)})
    experts, rest, _ = counts(chosen)
    ranks, edp = group or 8, (group or 8) // ep
    share = experts / edp + rest / ranks
    memory = chosen.simulate().memory[0]
    whole = kind == "zero2"
    master = kind in ("fsdp", "hsdp")
    stays = 0 if whole else (chosen.model.vocab + 1) * HIDDEN * 2
    assert memory.parameters_bytes == pytest.approx(
        (experts + rest) * 2 if whole else share * (4 if master else 2) + stays, abs=16
    )
    assert memory.gradients_bytes == pytest.approx(4 * share, abs=16)
    assert memory.optimizer_bytes == pytest.approx((8 if master else 12) * share, abs=48)


GRID: dict[str, dict[str, Any]] = {
    "fsdp": {"ep": 4, "sharding": "fsdp"},
    "whole experts, no reshard": {"tp": 2, "ep": 4, "etp": 1, "sharding": sim.Sharding("fsdp", reshard=False)},
    "hsdp with a pipeline": {"pp": 2, "ep": 2, "sharding": sim.Sharding("hsdp", group=2)},
    "whole in a group": {"ep": 4, "sharding": sim.Sharding("zero2", group=4)},
    "context parallel, no overlap": {
        "cp": 2, "ep": 4, "sharding": sim.Sharding("hsdp", group=2), "overlap": sim.Overlap(dp=False), "recompute": "full",
    },
    "copies of stages": {"pp": 2, "ep": 2, "schedule": "dualpipe", "sharding": sim.Sharding("zero1", group=2)},
    "drawn": {"ep": 4, "sharding": sim.Sharding("fsdp", prefetch=2, in_flight=2), "moe": sim.Moe("drawn")},
}  # fmt: skip


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", GRID)
def test_folded_equals_unfolded_for_sharded_experts(name: str) -> None:
    chosen = of(GRID[name], dense_layers=1, shared_experts=1)
    both(*bound_twice(chosen)).assert_equal()
    run = chosen.simulate()
    assert run.memory_over_time(0)[1].max() == run.memory[0].total_bytes
    reduced = [op for op in called(chosen) if isinstance(op, Collective) and op.purpose is Purpose.REDUCE_GRADIENTS]
    assert reduced


@pytest.mark.parametrize(("plan", "alone"), [({"sharding": sim.Sharding("zero1", group=1)}, {"dp shards", "edp shards"}),
                                             ({"ep": 2, "sharding": sim.Sharding("hsdp", group=2)}, {"edp shards"})])  # fmt: skip
def test_a_shard_group_of_one_rank_scatters_nothing(plan: dict[str, Any], alone: set[str]) -> None:
    """The replicas reduce all of the gradients, once, and every rank holds its whole state."""
    sent = sent_bytes(program_of(of(plan)))
    assert not alone & {group for group, _ in sent}
    experts, rest, _ = counts(of(plan))
    passes = MICROBATCHES if plan["sharding"].kind == "hsdp" else 1
    across = passes * (experts if "ep" in plan else experts + rest) * G_BYTES
    scattered = passes * rest // 2 * G_BYTES if "ep" in plan else 0
    assert sent["dp replicas", "all_reduce"] == across + scattered
