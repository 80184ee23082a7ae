"""The steps of advice on training: what each proposes for models that fit on a GPU, in a node, across nodes, or with experts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.advise.candidates import Proposal, candidate, fastest, with_any_batch, with_plan
from simulator.advise.training_advice import KEPT, PLAIN, cluster_on, usual_global_batch
from simulator.advise.training_steps import (
    Think,
    bubble,
    experts,
    long_inputs,
    one_gpu,
    pipeline,
    sharding,
    tensor,
    tensor_degrees,
    without_nvlink,
)
from simulator.config import load
from simulator.config.scenario import Scenario
from simulator.errors import OutsideDomain
from simulator.simulation.memory_check import least_state_bytes
from simulator.units import show_bytes

WIDE = {"hidden": 16384, "heads": 128, "kv_heads": 8, "ffn_hidden": 53248, "vocab": 32000, "gated_mlp": True}
"""Layers of three billion parameters, so that few of them make a large model."""
IN_A_NODE, ACROSS_NODES = {**WIDE, "layers": 4}, {**WIDE, "layers": 16}
MIXTURE = {"layers": 4, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn_hidden": 28672, "vocab": 32000, "gated_mlp": True,
           "experts": 8, "experts_per_token": 2}  # fmt: skip
SHALLOW = {"layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 32000, "gated_mlp": True}


def base_of(
    model: str | dict[str, Any], gpus: int, sequence_length: int = 8192, cluster: str = "dgx-h100", **job: Any
) -> Scenario:
    """A scenario without a plan."""
    on, count = cluster_on(cluster, gpus)
    batch = usual_global_batch(count, sequence_length)
    data = {"model": model, "cluster": on, "job": {"sequence_length": sequence_length, "global_batch": batch, **job}}
    found = load.scenario(data)
    assert isinstance(found, Scenario)
    return replace(found, plan=PLAIN)


def plans(think: Think, base: Scenario, *found: Proposal) -> list[sim.Plan]:
    thought = think(base, found)
    return [one.plan for one in thought.candidates] if thought else []


def said(think: Think, base: Scenario, *found: Proposal) -> str:
    thought = think(base, found)
    return thought.text if thought else ""


def proposed(scenario: Scenario, step_time_s: float | None = 1.0) -> Proposal:
    found = candidate(scenario)
    assert found
    return Proposal(found, step_time_s, 0.5)


def test_a_billion_parameters_fit_on_one_gpu() -> None:
    base = base_of("llama3.2-1b", 16)
    assert plans(one_gpu, base) == [PLAIN]
    text = said(one_gpu, base)
    assert text.endswith("fits, replicate it")
    parameters = base.model.parameters
    assert f"state take {parameters * (2 + 4 + 12) / 2**30:.1f} GiB" in text
    alone = proposed(base)
    assert said(tensor, base, alone).startswith("not needed")
    assert said(pipeline, base, alone).startswith("not needed")
    assert bubble(base, [alone]) is None
    assert experts(base, [alone]) is None


def test_on_one_gpu_there_is_nothing_to_divide() -> None:
    base = base_of("llama3.2-1b", 1)
    assert base.cluster.gpus == 1
    assert plans(one_gpu, base) == [PLAIN]
    assert [think(base, ()) for think in (tensor, pipeline, sharding, experts)] == [None] * 4


def test_a_batch_that_does_not_divide_is_said() -> None:
    base = base_of("llama3.2-1b", 8, global_batch=4)
    assert not plans(one_gpu, base)
    assert "a global batch of 4 does not divide by dp 8" in said(one_gpu, base)


@pytest.mark.parametrize("model", [IN_A_NODE, pytest.param("llama2-13b", marks=pytest.mark.slow)])
def test_what_a_node_holds_is_divided_in_it_or_sharded(model: str | dict[str, Any]) -> None:
    base = base_of(model, 8, 4096)
    assert not plans(one_gpu, base)
    assert said(one_gpu, base).endswith("does not fit")
    assert plans(tensor, base) == [replace(PLAIN, tp=4)]
    found = plans(sharding, base)
    assert {plan.sharding for plan in found} == {"zero1", "zero2", "fsdp"}
    assert max(plan.tp for plan in found) < 4


def test_what_fsdp_divides_is_told_from_what_stays_gathered() -> None:
    """Adam's state and fp32 parameters of 16 bytes for each parameter, and in 16 bits the parameters of the units that stay."""
    base = base_of(IN_A_NODE, 8, 4096)
    one = candidate(with_any_batch(with_plan(base, sharding="fsdp")))
    assert one is not None
    divided = 16 * base.model.parameters / 8
    assert one.state_bytes == pytest.approx(divided, rel=1e-6)
    assert one.gathered_bytes > 0
    gathered = f"gathers each layer's parameters, of which {show_bytes(one.gathered_bytes)} stay gathered"
    assert f"FSDP divides all of it: {show_bytes(divided)}, and {gathered}" in said(sharding, base)


@pytest.mark.parametrize("model", [ACROSS_NODES, pytest.param("llama3-70b", marks=pytest.mark.slow)])
def test_what_no_node_holds_is_divided_across_nodes(model: str | dict[str, Any]) -> None:
    base = base_of(model, 64)
    assert tensor_degrees(base) == [2, 4, 8]
    assert not plans(tensor, base)
    assert "does not fit a node" in said(tensor, base)
    (plan,) = plans(pipeline, base)
    assert plan == replace(PLAIN, tp=8, pp=4 if model == "llama3-70b" else 2)
    assert f"{plan.pp} stages of up to {base.model.layers // plan.pp} of {base.model.layers} layers" in said(pipeline, base)


@pytest.mark.slow
def test_without_nvlink_stages_take_the_place_of_tensor_parallelism() -> None:
    base = base_of("llama3-8b", 16, 2048, "l40s-pcie")
    assert [(plan.tp, plan.pp, plan.sharding) for plan in plans(without_nvlink, base)] == [(1, 2, "zero1")]
    assert said(without_nvlink, base).endswith("2 of them are the fewest that fit without tensor parallelism")
    assert without_nvlink(base_of("llama3-8b", 16, 2048), []) is None
    small = base_of("llama3.2-1b", 16, 2048, "l40s-pcie")
    assert without_nvlink(small, [proposed(small)]) is None, "a replica fits on one GPU"
    assert "do not fit" in said(without_nvlink, base_of("llama3-405b", 16, 2048, "l40s-pcie"))


def test_on_pcie_the_advice_is_a_pipeline() -> None:
    data = {"model": "llama3-8b", "cluster": "l40s-pcie", "job": {"sequence_length": 2048, "global_batch": 64}}
    best = sim.advise(sim.scenario(data)).best.candidate.plan
    assert (best.tp, best.pp) == (1, 2)


def test_405_billion_on_16384_gpus_take_a_node_for_each_stage() -> None:
    base = base_of("llama3-405b", 16384)
    assert base.job.tokens == 16 * 2**20
    advice = sim.advise(base)
    (of_nodes,) = (one.candidate.plan for step in advice.steps if step.name == "pipeline" for one in step.proposals)
    assert of_nodes.tp == 8
    assert of_nodes.pp > 1
    assert advice.best.candidate.plan.tp == 8
    assert advice.best.candidate.plan.pp > 1


@pytest.mark.parametrize("model", [MIXTURE, pytest.param("mixtral-8x7b", marks=pytest.mark.slow)])
def test_experts_go_to_the_gpus_of_a_node(model: str | dict[str, Any]) -> None:
    base = base_of(model, 64)
    found = plans(experts, base)
    assert found
    assert {plan.ep for plan in found} == {8}
    assert {plan.tp for plan in found} == {1}
    assert "% of the parameters are in 8 experts, of which a token uses 2" in said(experts, base)


def test_groups_that_reach_from_one_rack_into_the_next_are_not_called_those_of_a_node() -> None:
    """Of 16 experts each of 16 of the 144 GPUs could hold one, but 16 does not divide the 72 GPUs of a rack."""
    base = base_of({**MIXTURE, "experts": 16}, 144, cluster="gb200-nvl72")
    assert "; 8 GPUs of a node can hold them" in said(experts, base)
    assert {plan.ep for plan in plans(experts, base)} == {8, 16}
    assert tensor_degrees(base_of(SHALLOW, 288, cluster="gb200-nvl72")) == [2, 4, 8]


@pytest.mark.parametrize("model", [SHALLOW, pytest.param("llama3-8b", marks=pytest.mark.slow)])
def test_a_million_tokens_are_divided(model: str | dict[str, Any]) -> None:
    base = base_of(model, 64, 2**20)
    found = plans(long_inputs, base)
    assert found
    assert all(plan.cp > 1 for plan in found)
    assert re.match(r"attention is 9\d% of the flop at 1,048,576 tokens", said(long_inputs, base))


def test_short_sequences_are_not_divided() -> None:
    base = base_of("llama3.2-1b", 8)
    assert not plans(long_inputs, base, proposed(base))


def test_windows_are_divided_by_heads() -> None:
    base = base_of({**SHALLOW, "window": 1024}, 8, 32768)
    found = plans(long_inputs, base, proposed(with_plan(base, sharding="fsdp")))
    assert {plan.cp_kind for plan in found} == {"ulysses"}


def test_the_bubble_is_that_of_the_fastest_pipeline() -> None:
    base = base_of({**SHALLOW, "layers": 8}, 8)
    piped, slow = proposed(with_plan(base, tp=4, pp=2)), proposed(with_plan(base, tp=2, pp=4), 2.0)
    found = plans(bubble, base, slow, piped)
    assert {(plan.tp, plan.pp, plan.schedule) for plan in found} == {(4, 2, "interleaved")}
    assert {plan.chunks for plan in found} == {2, 4}
    count = base.job.global_batch
    assert f"1/{count} = {1 / count:.0%}" in said(bubble, base, slow, piped)


def test_microbatches_that_make_no_equal_rounds_are_taken_in_groups() -> None:
    """14 microbatches on 4 ranks: torch's interleaved schedule refuses them, and Megatron's takes groups of 5."""
    base = base_of({**SHALLOW, "layers": 8}, 8, global_batch=14)
    piped = proposed(with_plan(base, tp=2, pp=4))
    assert {(plan.schedule, plan.group) for plan in plans(bubble, base, piped)} == {("interleaved", 5)}
    assert "in groups of 5" in bubble(base, [piped]).candidates[0].words  # type: ignore[union-attr]
    with pytest.raises(OutsideDomain, match="14 do not divide into 3") as refused:
        sim.schedule("interleaved", ranks=4, chunks=2, microbatches=14)
    assert refused.value.hint == "nearest legal: microbatches 15, or group 5"


def test_several_stages_that_are_legal_but_do_not_fit_are_said_to() -> None:
    base = base_of(ACROSS_NODES, 8)
    piped = proposed(with_plan(base, tp=4, pp=2))
    assert said(bubble, base, piped).endswith("several stages per GPU do not fit")
    odd = base_of({**SHALLOW, "layers": 3}, 2)
    assert said(bubble, odd, proposed(with_plan(odd, pp=2))).endswith("several stages per GPU are not legal")


def test_the_fastest_has_a_step_time() -> None:
    base = base_of("llama3.2-1b", 8)
    untimed = replace(proposed(base, None), reason="it would take long")
    timed, slower = proposed(base, 2.0), proposed(base, 3.0)
    assert fastest([untimed, slower, timed]) is timed
    assert fastest([untimed]) is untimed
    assert "not simulated (it would take long)" in untimed.text


DENSE = ({}, {"tp": 2}, {"tp": 4, "pp": 2}, {"pp": 4}, {"sharding": "zero1"}, {"sharding": "zero2"}, {"sharding": "fsdp"},
         {"tp": 2, "sharding": "fsdp"}, {"pp": 4, "sharding": "zero1"}, {"cp": 2, "sharding": "zero1"},
         {"offload": sim.Offload(optimizer=True)}, {"offload": sim.Offload(optimizer=True, optimizer_fraction=0.3)},
         {"sharding": "fsdp", "offload": sim.Offload(optimizer=True, parameters=True)})  # fmt: skip
MIXED = ({}, {"ep": 8}, {"tp": 2, "ep": 4}, {"pp": 4, "ep": 2, "sharding": "zero1"}, {"tp": 8, "etp": 1, "ep": 8})


@pytest.mark.parametrize(("model", "changes"), [(SHALLOW, DENSE), (MIXTURE, MIXED)])
def test_no_account_is_below_the_least_state(model: dict[str, Any], changes: tuple[dict[str, Any], ...]) -> None:
    base = base_of(model, 8, 4096)
    for each in changes:
        found = candidate(with_plan(base, **each))
        assert found, each
        assert 0 < least_state_bytes(found.scenario) <= found.state_bytes, each


@given(gpus=st.integers(1, 4096), length=st.sampled_from([512, 4096, 8192, 2**17]), size=st.sampled_from([1, 2, 4]))
def test_the_usual_batch_divides_by_the_gpus_or_their_odd_part(gpus: int, length: int, size: int) -> None:
    batch = usual_global_batch(gpus, length, size)
    odd = gpus // (gpus & -gpus)
    assert batch % (odd * size) == 0
    most = max(1024 * gpus, min(4 * 2**20, 2 * gpus * length))
    assert batch == odd * size or batch * length <= 1.5 * most


def test_a_part_of_a_node_and_whole_nodes() -> None:
    assert cluster_on("dgx-h100", 4) == ({"name": "dgx-h100", "nodes": 1, "gpus_per_node": 4}, 4)
    assert cluster_on("dgx-h100", 24) == ({"name": "dgx-h100", "nodes": 3}, 24)
    assert cluster_on("dgx-h100")[1] == load.cluster("dgx-h100").gpus
    with pytest.raises(OutsideDomain) as refused:
        cluster_on("dgx-h100", 20)
    assert refused.value.nearest == {"gpus": 16}


def test_the_advice_is_the_fastest_of_what_its_steps_propose() -> None:
    base = replace(base_of(SHALLOW, 4, 2048), plan=sim.Plan())
    advice = sim.advise(base)
    times = [one.step_time_s for one in advice.proposals]
    assert len(times) >= 3
    assert advice.best.step_time_s == min(time for time in times if time is not None)
    assert (
        advice.best.step_time_s
        == sim.simulate(base.model, base.cluster, advice.best.candidate.plan, base.job).metrics.step_time_s
    )
    assert [step.name for step in advice.steps] == ["one GPU", "tensor", "sharding", "long inputs"]
    assert "recommended" in repr(advice)


def test_the_plan_of_a_scenario_is_one_of_the_proposals() -> None:
    base = base_of(SHALLOW, 4, 2048)
    planned = with_plan(base, tp=2, overlap=sim.Overlap(tp=True))
    advice = sim.advise(planned)
    assert advice.steps[0].name == "as planned"
    assert [one.candidate.plan for one in advice.steps[0].proposals] == [planned.plan]
    assert all(one.candidate.plan.overlap == planned.plan.overlap for one in advice.proposals)
    assert "overlap" in KEPT


def test_what_fits_nowhere_is_infeasible() -> None:
    with pytest.raises(sim.Infeasible, match=r"no plan of inline fits on 2 GPUs: .* GiB too much") as refused:
        sim.advise(base_of(IN_A_NODE, 2))
    assert refused.value.over_bytes > 0


def test_what_model_and_cluster_refuse_is_said() -> None:
    with pytest.raises(sim.UserError, match=r"v100-32gb has no bf16 GEMMs"):
        sim.advise(base_of("llama3.2-1b", 8, cluster="dgx1-v100"))
