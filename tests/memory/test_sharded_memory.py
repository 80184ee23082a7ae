"""Memory of sharded state: closed forms of what a rank holds between passes, and of what it gathers in them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import catalog
from simulator.memory.account import Account, RankMemory
from simulator.program.holdings import Holding
from simulator.simulation.memory_check import memory_of, terms_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.units import GB

from ..small_scenarios import HOST, scenario, small_cluster, small_model

HALF = {"gradients": "bf16"}


def memory(of: Scenario) -> RankMemory:
    return memory_of(of, layout_of(of))[0]


def state_bytes(rank: RankMemory) -> int:
    return rank.parameters_bytes + rank.gradients_bytes + rank.optimizer_bytes


def on_one_node(model: str, sharding: Any, *, dp: int, dtype: str = "bf16", **framework: Any) -> RankMemory:
    cluster = sim.cluster({"gpu": "h100", "gpus_per_node": dp, "nodes": 1, "intra_node": "NVSwitch 450 GB/s"})
    job = sim.Job(2048, dp, 1, dtype=dtype)  # type: ignore[arg-type]
    return memory(
        scenario(sim.model(model), cluster, sim.Plan(dp=dp, sharding=sharding), job, framework=sim.framework(framework))
    )


def head_bytes(model: Any) -> int:
    """Gathered parameters of the head and the last norm, which stay from the forward to the backward pass."""
    return int((model.vocab + 1) * model.hidden * 2)


def test_t13_10_sixteen_bytes_a_parameter_among_eight_ranks() -> None:
    """Llama 7B with Adam: 107.8 GB on one GPU, 13.5 GB on each of eight; fp32 gradients make it 15.2 GB, but not for FSDP."""
    model = sim.model("llama2-7b")
    assert state_bytes(on_one_node("llama2-7b", "none", dp=1, **HALF)) == pytest.approx(107.8 * GB, rel=0.001)
    for kind, framework, expected in (("zero3", HALF, 13.48), ("zero3", {}, 15.16), ("fsdp", {}, 13.48)):
        held = state_bytes(on_one_node("llama2-7b", kind, dp=8, **framework)) - head_bytes(model)
        assert held == pytest.approx(expected * GB, rel=0.001)


def test_t13_10_the_largest_model_in_fp32() -> None:
    """GPT-3: 700 GB of weights, 2,100 with Adam, 2,800 with gradients."""
    rank = on_one_node("gpt3-175b", "none", dp=1, dtype="fp32")
    assert rank.parameters_bytes == pytest.approx(700 * GB, rel=0.01)
    assert rank.parameters_bytes + rank.optimizer_bytes == pytest.approx(2100 * GB, rel=0.01)
    assert state_bytes(rank) == pytest.approx(2800 * GB, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "bytes_per_parameter"),
    [("none", (2, 4, 12)), ("zero1", (2, 4, 12 / 8)), ("zero2", (2, 4 / 8, 12 / 8)), ("zero3", (2 / 8, 4 / 8, 12 / 8)),
     ("fsdp", (4 / 8, 4 / 8, 8 / 8)), ("hsdp", (4 / 4, 4 / 4, 8 / 4))],
)  # fmt: skip
def test_t13_10_state_is_divided_as_the_kind_says(kind: str, bytes_per_parameter: tuple[float, float, float]) -> None:
    sharding = sim.Sharding(kind, group=4 if kind == "hsdp" else None)  # type: ignore[arg-type]
    of = scenario(plan=sim.Plan(dp=8, sharding=sharding))
    rank, parameters = memory(of), of.model.parameters
    kept = head_bytes(of.model) if sharding.gathers else 0
    found = (rank.parameters_bytes - kept, rank.gradients_bytes, rank.optimizer_bytes)
    assert [*found] == pytest.approx([each * parameters for each in bytes_per_parameter], abs=16)


@pytest.mark.parametrize("kind, dp, words", [("fsdp", 2, "fp32 weights"), ("fsdp", 4, "fp32 weights"), ("zero3", 2, "weights")])
def test_t13_10_two_ranks_divide_the_master_copy_as_many_do(kind: str, dp: int, words: str) -> None:
    of = scenario(cluster=small_cluster(1, gpus_per_node=dp), plan=sim.Plan(dp=dp, sharding=kind))
    rank, parameters = memory(of), of.model.parameters
    (weights,) = (item for item in rank.items if item.kind is Holding.PARAMETERS)
    each_bytes = 4 if kind == "fsdp" else 2
    assert (weights.what, weights.size_bytes) == (words, -(-parameters // dp) * each_bytes)
    assert rank.optimizer_bytes == -(-parameters // dp) * (12 - each_bytes * (kind == "fsdp"))


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_t13_10_weights_beside_the_master_copy_are_held_as_with_zero3(kind: Any) -> None:
    """2 + 4 + 8 bytes a parameter, as Megatron-FSDP holds them, and 4 + 8 in FSDP2."""
    sharding = sim.Sharding(kind, group=4 if kind == "hsdp" else None)
    software = sim.framework({"weights_beside_master": True})
    of = scenario(plan=sim.Plan(dp=8, sharding=sharding), framework=software)
    rank, divided = memory(of), of.model.parameters / (sharding.group or 8)
    assert rank.parameters_bytes - head_bytes(of.model) == pytest.approx(2 * divided, abs=16)
    assert rank.optimizer_bytes == pytest.approx(12 * divided, abs=16)
    zero3 = memory(scenario(plan=sim.Plan(dp=8, sharding=sim.Sharding("zero3", group=sharding.group)), framework=software))
    assert state_bytes(rank) == state_bytes(zero3)


def test_t13_10_which_frameworks_keep_weights_beside_the_master_copy() -> None:
    keeping = {
        "megatron-core-2025",
        "megatron-core-2026",
        "megatron-core-moe-2025",
        "megatron-bridge-2025",
        "megatron-bridge-2026",
    }
    assert {name for name in catalog.files("frameworks") if sim.framework(name).weights_beside_master} == keeping | {"nemo-2025"}


def test_t13_10_the_host_keeps_the_master_copy_alone() -> None:
    plan, cluster = sim.Plan(dp=8, sharding="fsdp", offload="parameters"), small_cluster(2, host=HOST)
    plain, beside = (
        scenario(None, cluster, plan, framework=sim.framework({"weights_beside_master": keeps})) for keeps in (False, True)
    )
    assert memory(plain) == memory(beside)


def test_t13_10_with_a_pipeline_parameters_and_gradients_are_held_whole() -> None:
    divided, replicated = (scenario(plan=sim.Plan(pp=2, dp=4, sharding=kind)) for kind in ("fsdp", "none"))
    for rank, whole in zip(*(memory_of(of, layout_of(of)) for of in (divided, replicated)), strict=True):
        assert rank.parameters_bytes == whole.parameters_bytes + whole.gradients_bytes // 4
        assert rank.gradients_bytes == whole.gradients_bytes
        assert rank.optimizer_bytes == whole.optimizer_bytes * 8 // 12 // 4


@given(st.integers(0, 4), st.integers(1, 4) | st.none())
@settings(deadline=None, max_examples=10)
def test_t13_10_gathered_units_are_held_as_far_ahead_as_they_are_gathered(prefetch: int, in_flight: int | None) -> None:
    """Wide layers, one token, counted in layers in bf16: the unit in use, the units gathered ahead of it or the buffer that it is
    copied from, and the fp32 buffer of the reduce-scatter of the unit before.
    """
    model = small_model(layers=8, vocab=128)
    job = sim.Job(sequence_length=1, global_batch=8)
    sharding = sim.Sharding("fsdp", prefetch=prefetch, in_flight=in_flight, reduce="last")
    of = scenario(model, None, sim.Plan(dp=8, sharding=sharding), job)
    layer_bytes = (of.model.parameters - 2 * 128 * 512 - 512) // 8 * 2
    gathered = min(1 + max(1, prefetch), 1 + (in_flight or 99))
    assert memory(of).activations_bytes == pytest.approx((2 + gathered) * layer_bytes, rel=0.05)


@given(
    kind=st.sampled_from(["zero1", "zero2", "zero3", "fsdp"]), group=st.sampled_from([None, 1, 2, 4]),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1"]), tied=st.booleans(), pp=st.sampled_from([1, 2]), beside=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=15)
def test_memory_of_sharded_state_is_known_before_lowering(
    kind: Any, group: int | None, schedule: str, tied: bool, pp: int, beside: bool
) -> None:
    tied, pp = tied and pp == 1, pp if kind in ("zero1", "fsdp") else 1
    plan = sim.Plan(
        pp=pp, dp=8 // pp, sharding=sim.Sharding(kind, group=group), schedule=schedule, overlap=sim.Overlap(dp=beside)
    )
    of = scenario(small_model(layers=6, tied_embeddings=tied), small_cluster(2), plan, sim.Job(128, 32, 1))
    layout = layout_of(of)
    assert memory_of(of, layout) == Account(program_of(of), terms_of(of, layout)).memory()


OF_EXPERTS: dict[str, dict[str, Any]] = {
    "experts of one rank": {"ep": 8, "sharding": "fsdp"},
    "copies of experts": {"ep": 2, "sharding": "fsdp"},
    "experts of one rank in a group": {"ep": 4, "sharding": sim.Sharding("hsdp", group=4)},
    "copies of experts in a group": {"ep": 2, "sharding": sim.Sharding("hsdp", group=4)},
    "only experts gathered": {"tp": 8, "etp": 1, "ep": 2, "sharding": "fsdp"},
    "half layers": {"ep": 8, "sharding": sim.Sharding("fsdp", unit="half-layer")},
    "no reshard": {"ep": 2, "sharding": sim.Sharding("fsdp", reshard=False)},
    "with a pipeline": {"pp": 2, "ep": 4, "sharding": "fsdp"},
}


@pytest.mark.parametrize("software", [("none", "fp8"), ("megatron-core-2025", "mxfp8"), ("torchtitan-2025", "fp8")])
@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep"])
@pytest.mark.parametrize("case", OF_EXPERTS)
def test_t13_10_every_byte_that_a_step_holds_is_freed_once(case: str, dispatcher: Any, software: tuple[str, Any]) -> None:
    """In a narrow format, where casts of weights run before GEMMs that release gathered experts: no operation frees, as buffers
    of a class or as activations, what no operation has taken, and at the end of the step nothing is left."""
    framework, dtype = software
    model = small_model(layers=3, experts=8, experts_per_token=2, expert_ffn_hidden=256)
    job, plan = sim.Job(128, 16, 1, dtype=dtype), sim.Plan(**OF_EXPERTS[case], moe=sim.Moe(dispatcher=dispatcher))
    program = program_of(scenario(model, small_cluster(2), plan, job, framework=sim.framework(framework)))
    for order in program.orders:
        held: Counter[Holding] = Counter()
        for op in (op for step in order for op in program.bodies[step.body].ops):
            taken = Counter({Holding.ACTIVATIONS: op.held_bytes - sum(buffer.held_bytes for buffer in op.buffers)})
            freed = Counter({Holding.ACTIVATIONS: op.freed_bytes - sum(buffer.freed_bytes for buffer in op.buffers)})
            for buffer in op.buffers:
                taken[buffer.kind] += buffer.held_bytes
                freed[buffer.kind] += buffer.freed_bytes
            assert min(taken.values()) >= 0 <= min(freed.values()), op.name
            held.update(taken)
            held.subtract(freed)
            assert min(held.values()) >= 0, op.name
        assert not any(held.values())
