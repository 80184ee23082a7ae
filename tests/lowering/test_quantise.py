"""Products in eight and four bits: section 10 of the second half of docs/semantics.md, sentence by sentence."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator
from simulator.errors import UserError
from simulator.kernels import NARROW_BYTES, Attention, Gemm, Rowwise
from simulator.program.operations import Collective, Purpose
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework, LowPrecision

from .. import small_scenarios as small
from .test_frameworks import GPT, LLAMA, computed, scenario

recipes = st.builds(
    LowPrecision,
    scaling=st.sampled_from(["delayed", "current"]),
    shared_scales=st.sampled_from(["none", "tp", "replicas"]),
    **{name: st.sampled_from([(), ("fp8",), ("nvfp4",)]) for name in ("narrow_parameters", "whole_gemms", "late_gathers")},
    **{of.name: st.booleans() for of in fields(LowPrecision) if of.default in (True, False)},
)
plans = st.builds(sim.Plan, tp=st.sampled_from([1, 2]), pp=st.just(2), schedule=st.sampled_from(["1f1b", "zb-h1"]))
NOTHING_FUSED = LowPrecision(norm_casts=False)


def names(recipe: LowPrecision, dtype: str = "fp8", plan: Any = None, **more: Any) -> Counter[str]:
    """What runs in the second layer of the first rank's first forward and backward slot."""
    program = program_of(scenario(dtype=dtype, plan=plan or sim.Plan(pp=2), low_precision=recipe, **more))
    bodies = {step.phase: step.body for step in reversed(program.orders[0])}
    ops = [op for phase in "FB" for op in program.bodies[bodies[phase]].ops]
    return Counter(op.name.partition(".")[2] for op in ops if op.layer == 1)


@given(recipes, plans, st.sampled_from([*NARROW_BYTES]), st.sampled_from([LLAMA, GPT]))
def test_t10_1_linear_layers_are_narrow_and_nothing_else_is(recipe: Any, plan: Any, dtype: str, model: Any) -> None:
    ops = computed(program_of(scenario(model, plan, dtype, low_precision=recipe)))
    usual = computed(program_of(scenario(model, plan)))
    for op in ops:
        if isinstance(op.kernel, Gemm):
            narrow = op.layer >= 0 and (recipe.weight_gradients or not op.name.endswith(".wgrad"))
            assert op.kernel.dtype == (dtype if narrow else "")
    assert sum(op.kernel.model_flop for op in ops) == sum(op.kernel.model_flop for op in usual)
    for kind in (Gemm, Attention):
        assert sum(isinstance(op.kernel, kind) for op in ops) == sum(isinstance(op.kernel, kind) for op in usual)


def test_t10_2_each_operand_is_cast_once_where_nothing_else_writes_it() -> None:
    found = names(NOTHING_FUSED)
    for layer in ("qkv", "attention_out", "mlp_up", "mlp_down"):
        assert (found[f"{layer}.cast"], found[f"{layer}.dgrad.cast"], found[f"{layer}.wgrad.cast"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("recipe", "gone"),
    [
        (LowPrecision(), {"qkv.cast", "mlp_up.cast"}),
        (replace(NOTHING_FUSED, activation_casts=True), {"mlp_down.cast", "mlp_up.dgrad.cast"}),
    ],
    ids=["norms", "activations"],
)
def test_t10_3_what_writes_the_narrow_format_itself_needs_no_cast(recipe: LowPrecision, gone: set[str]) -> None:
    casts = {name for name in names(NOTHING_FUSED) if "cast" in name}
    assert casts - {name for name in names(recipe) if "cast" in name} == gone
    assert {name for name in names(replace(recipe, scaling="current")) if name.endswith("cast")} == casts


READS_FIRST = [
    ("fp8", "current", True),
    ("fp8", "delayed", False),
    ("nvfp4", "delayed", True),
    ("mxfp8", "current", False),
    ("fp8_block", "current", False),
]


@pytest.mark.parametrize(("dtype", "scaling", "reads"), READS_FIRST)
def test_t10_4_a_scale_of_the_tensor_itself_is_looked_for_first(dtype: str, scaling: str, reads: bool) -> None:
    found = names(replace(NOTHING_FUSED, scaling=scaling), dtype)
    assert found["mlp_down.cast scale"] == found["mlp_down.dgrad.cast scale"] == int(reads)


def test_t10_5_weights_are_cast_once_a_step_or_in_every_forward_pass() -> None:
    cached, each = (scenario(dtype="fp8", low_precision=LowPrecision(cached_weights=c)) for c in (True, False))
    once, often = ([op for op in computed(program_of(of)) if op.name.endswith(".weights")] for of in (cached, each))
    assert len(once) == 4 * 4, "layers, products"
    assert len(often) == 4 * 4 * 4, "layers, products, microbatches"
    assert sum(op.kernel.traffic_bytes for op in often) == 4 * sum(op.kernel.traffic_bytes for op in once)


def test_t10_5_a_weight_is_cast_when_it_has_been_gathered_and_before_it_is_multiplied() -> None:
    low = LowPrecision(cached_weights=True)
    run = scenario(plan=sim.Plan(dp=8, sharding="zero1"), dtype="fp8", low_precision=low).simulate()
    rows = run.timeline.to_pandas(ranks=[0])
    for layer in range(1, 4):
        gather, cast, product = (rows[rows.block == f"layer {layer} {name}"] for name in ("parameters", "qkv.weights", "qkv"))
        assert len(gather) == len(cast) == 1
        assert gather.end_ns.max() <= cast.start_ns.min() < cast.end_ns.max() <= product.start_ns.min()


@pytest.mark.parametrize("ep, group, casts", [(4, 4, 1), (4, 2, 1), (2, 4, 4), (8, 8, 1), (4, 8, 4)])
def test_t10_5_experts_that_no_group_divides_are_cast_once_a_step(ep: int, group: int, casts: int) -> None:
    """A group that has one copy of every expert gathers none, so that nothing is cast anew for each of the 4 microbatches."""
    experts, low = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 256}, LowPrecision(cached_weights=True)
    plan = sim.Plan(dp=8, ep=ep, sharding=sim.Sharding("hsdp" if group < 8 else "fsdp", group if group < 8 else None))
    of = scenario(small.small_model(4, **experts), plan, "fp8", low_precision=low)
    of = replace(of, job=replace(of.job, global_batch=32))
    made = [op for op in computed(program_of(of)) if op.name == "1.expert_down.weights"]
    assert len(made) == casts


@pytest.mark.parametrize("cached", [True, False])
def test_t10_5_a_cast_of_weights_takes_and_frees_no_memory(cached: bool) -> None:
    """Its GEMM does, which holds its input, and releases gathered weights if it is the last that needs them."""
    experts, plan = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 256}, sim.Plan(ep=8, sharding="fsdp")
    of = scenario(small.small_model(4, **experts), plan, "fp8", low_precision=LowPrecision(cached_weights=cached))
    ops = [op for body in program_of(of).bodies.values() for op in body.ops]
    casts = [op for op in ops if op.purpose in (Purpose.CAST, Purpose.CAST_WEIGHTS, Purpose.CAST_CACHED_WEIGHTS)]
    assert any(op.purpose is Purpose.CAST_CACHED_WEIGHTS for op in casts) == cached
    assert any(op.freed_bytes for op in ops if op.name == "0.expert_down")
    assert not any(op.held_bytes or op.freed_bytes or op.working_bytes or op.kept_bytes or op.buffers for op in casts)


def test_t10_2_the_bytes_of_a_cast() -> None:
    """Read in 16 bits, written twice in eight; blocks of 32 with a byte of scale each."""
    for dtype, written in (("fp8", 2.0), ("mxfp8", 2 + 2 / 32), ("nvfp4", 1 + 2 / 16)):
        ops = computed(program_of(scenario(plan=sim.Plan(pp=2), dtype=dtype, low_precision=NOTHING_FUSED)))
        cast = next(op.kernel for op in ops if op.name == "1.mlp_down.cast")
        assert isinstance(cast, Rowwise)
        assert cast.traffic_bytes == 1024 * 2816 * (2 + written)


@pytest.mark.parametrize("dtype, copies", [("fp8", 1), ("mxfp8", 2), ("fp8_block", 2), ("nvfp4", 2)])
def test_t10_2_a_cast_before_a_gather_writes_one_copy_where_a_tensor_has_one_scale(dtype: str, copies: int) -> None:
    """The other one is transposed from what was gathered. What is not gathered is always cast into both copies."""
    ops = {op.name: op.kernel for op in computed(program_of(scenario(dtype=dtype, low_precision=NOTHING_FUSED)))}
    cast = {name: ops[f"1.{name}.cast"] for name in ("qkv", "mlp_up", "attention_out", "mlp_down")}
    for name, kernel in cast.items():
        assert isinstance(kernel, Rowwise)
        gathered = name in ("qkv", "mlp_up")
        assert kernel.bytes_per_element == 2 + (copies if gathered else 2) * NARROW_BYTES[dtype]


@pytest.mark.parametrize("dtype", ["fp8_block", "mxfp8"])
def test_t10_3_an_activation_writes_both_halves_of_its_gradient_in_the_narrow_format(dtype: str) -> None:
    """Two copies of one element forward, and of two elements backward, each in place of 16 bits."""
    change = 2 * NARROW_BYTES[dtype] - 2
    assert change > 0
    for recipe, more in ((NOTHING_FUSED, 0.0), (replace(NOTHING_FUSED, activation_casts=True), change)):
        ops = computed(program_of(scenario(plan=sim.Plan(pp=2), dtype=dtype, low_precision=recipe)))
        kernels = {op.name: op.kernel for op in ops if isinstance(op.kernel, Rowwise)}
        forward, backward = kernels["1.gated_activation"], kernels["1.gated_activation.dgrad"]
        assert (forward.bytes_per_element, backward.bytes_per_element) == pytest.approx((6 + more, 10 + 2 * more))


def moved_by(name: str, recipe: LowPrecision, dtype: str = "fp8", **model: Any) -> float:
    """Bytes that a kernel of the first layer moves for each element."""
    of = small.scenario(
        small.small_model(2, **model), job=sim.Job(256, 8, dtype=dtype), framework=Framework(low_precision=recipe)
    )
    kernels = {op.name: op.kernel for op in computed(program_of(of)) if isinstance(op.kernel, Rowwise)}
    return kernels[name].bytes_per_element


LATENT_KEYS = {"kv_lora_rank": 64, "rope_head_dim": 32, "head_dim": 96, "kv_heads": 8}
MIXTURE = {"experts": 4, "experts_per_token": 2, "expert_ffn_hidden": 256}


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block", "mxfp8"])
def test_t10_3_a_norm_writes_16_bits_as_well_where_something_reads_them(dtype: str) -> None:
    """It reads 16 bits and writes two narrow copies: alone before queries, keys and values, beside 16 bits for a router and its
    experts, for the latent of keys, and for an MLP behind the same norm. Without narrow copies for later it writes one."""
    alone = 2 + 2 * NARROW_BYTES[dtype]
    usual, again = LowPrecision(), LowPrecision(keeps_narrow=False)
    assert moved_by("0.attention_norm", usual, dtype) == pytest.approx(alone)
    assert moved_by("0.mlp_norm", usual, dtype) == pytest.approx(alone)
    assert moved_by("0.mlp_norm", usual, dtype, **MIXTURE) == 4, "the router is not narrow"
    assert moved_by("0.mlp_norm", usual, dtype, **MIXTURE, shared_experts=1) == pytest.approx(alone + 2)
    assert moved_by("0.attention_norm", usual, dtype, **LATENT_KEYS) == pytest.approx(alone + 2)
    assert moved_by("0.attention_norm", usual, dtype, parallel_mlp="one_norm") == pytest.approx(alone + 2)
    assert moved_by("0.attention_norm", usual, dtype, parallel_mlp="two_norms") == pytest.approx(alone)
    assert moved_by("0.attention_norm", again, dtype) == pytest.approx(2 + 2 + NARROW_BYTES[dtype])


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8"])
def test_t10_3_an_activation_writes_16_bits_as_well_for_weight_gradients_in_16_bits(dtype: str) -> None:
    """Forward two halves in and one element out, which is kept; backward three in and two out, beside one narrow copy of each."""
    recipe, width = LowPrecision(activation_casts=True, weight_gradients=False), NARROW_BYTES[dtype]
    assert moved_by("0.gated_activation", recipe, dtype) == pytest.approx(3 * 2 + width)
    assert moved_by("0.gated_activation.dgrad", recipe, dtype) == pytest.approx(5 * 2 + 2 * width)


def laid_out(cluster: str, dtype: str, **recipe: bool) -> dict[str, int]:
    """The kernels beside GEMMs, by name, with the bytes that they move."""
    of = scenario(dtype=dtype, low_precision=LowPrecision(norm_casts=False, **recipe))
    ops = computed(program_of(replace(of, cluster=sim.cluster(cluster, nodes=1))))
    return {op.name: op.kernel.traffic_bytes for op in ops if isinstance(op.kernel, Rowwise)}


def test_t10_2_gpus_that_read_any_layout_need_no_transposed_copy() -> None:
    two, one = (laid_out("dgx-b200", "fp8", any_layout=here) for here in (False, True))
    assert {name for name in two if name not in one} == {name for name in two if name.endswith("transpose")} != set()
    written = {name: two[name] - one[name] for name in one if two[name] != one[name]}
    assert written["1.mlp_down.cast"] == 1024 * 2816 // 2, "a byte of every element, on one of two ranks"
    assert {"1.mlp_up.dgrad.cast", "1.mlp_up.weights", "1.attention_out.weights"} < set(written)


@pytest.mark.parametrize("cluster, dtype", [("dgx-h100", "fp8"), ("dgx-b200", "mxfp8")])
def test_t10_2_other_gpus_and_scales_of_blocks_need_both_copies(cluster: str, dtype: str) -> None:
    assert laid_out(cluster, dtype, any_layout=True) == laid_out(cluster, dtype)


def test_t10_6_gathers_carry_what_was_cast() -> None:
    def gathered(dtype: str, **recipe: bool) -> dict[str, int]:
        program = program_of(scenario(dtype=dtype, low_precision=LowPrecision(**recipe)))
        ops = [op for body in program.bodies.values() for op in body.ops]
        return {
            op.name: op.payload_bytes for op in ops if isinstance(op, Collective) and op.name.endswith("gather") and op.layer >= 0
        }

    wide, narrow = gathered("bf16"), gathered("fp8")
    assert narrow == {name: payload // 2 for name, payload in wide.items()} != {}
    assert gathered("fp8", narrow_gathers=False) == wide
    both = {"attention_out.dgrad.gather", "mlp_down.dgrad.gather"}
    for dtype in ("fp8_block", "mxfp8", "nvfp4"):
        copies = {name: 1 + (name.partition(".")[2] in both) for name in wide}
        assert sum(copies.values()) == len(wide) * 4 // 3
        found = gathered(dtype)
        assert found == {name: int(payload * copies[name] * NARROW_BYTES[dtype] / 2) for name, payload in wide.items()}
        alone = gathered(dtype, weight_gradients=False)
        assert all(alone[name] < found[name] for name in wide if copies[name] == 2)


def test_t10_7_less_is_kept_in_eight_bits() -> None:
    wide, narrow = scenario().simulate(), scenario(dtype="fp8").simulate()
    again = scenario(dtype="fp8", low_precision=LowPrecision(keeps_narrow=False)).simulate()
    assert narrow.memory[0].activations_bytes < again.memory[0].activations_bytes == wide.memory[0].activations_bytes
    # besides the copies of weights, which tests of memory count
    rest = ((of.static_bytes - of.working_bytes - of.parameters_bytes) for of in (narrow.memory[0], wide.memory[0]))
    assert len({*rest}) == 1


def kept(dtype: str, model: Any = None, *, framework: Any = None, **plan: Any) -> dict[str, int]:
    """Bytes per token and layer that operators of the second layer hold from forward to backward."""
    chosen = sim.Plan(**{"dp": 1, "pp": 1, **plan})
    of = small.scenario(
        model or small.small_model(4), small.small_cluster(1, gpus_per_node=chosen.cp), chosen,
        sim.Job(sequence_length=256, global_batch=4, dtype=dtype), framework=framework or sim.framework({}),
    )  # fmt: skip
    program = program_of(of)
    body = next(program.bodies[step.body] for step in program.orders[0] if step.phase == "F")
    ops = [op for op in body.ops if op.layer == 1]
    return {op.operator.partition(".")[2]: op.held_bytes * chosen.cp // 256 for op in ops if op.held_bytes and op.operator}


def test_t10_7_attention_keeps_its_result_where_the_projection_keeps_it_cast() -> None:
    """Its backward pass reads it in 16 bits; in 16 bits one copy serves both. 8 heads of 64 channels."""
    wide, narrow = kept("bf16"), kept("fp8")
    assert (wide["attention_out"], narrow["attention_out"]) == (1024, 512)
    assert narrow["attention"] == wide["attention"] + 1024
    unfused = sim.framework({"attention": "unfused"})
    assert kept("fp8", framework=unfused)["attention_scores"] == kept("bf16", framework=unfused)["attention_scores"]
    original = {"keeps_original": True}
    for dtype, scaling, like in (("fp8", "delayed", narrow), ("fp8", "current", wide), ("mxfp8", "delayed", wide)):
        found = kept(dtype, framework=sim.framework({"low_precision": {**original, "scaling": scaling}}))
        assert (found["attention_out"], found["attention"]) == (like["attention_out"], like["attention"])
    again = kept("mxfp8", framework=sim.framework({"low_precision": original}), recompute="selective")
    assert again["attention_out"] == 1024, "the original, though attention runs again"


def test_t10_7_a_projection_without_a_narrow_copy_casts_once_more() -> None:
    def casts(**recipe: Any) -> Counter[str]:
        return names(LowPrecision(scaling="current", norm_casts=False, **recipe), "mxfp8")

    usual, original = casts(), casts(keeps_original=True)
    assert original - usual == Counter(["attention_out.wgrad.cast"])
    assert not usual - original


def test_t10_7_a_router_keeps_its_input_beside_shared_experts_in_narrow_formats() -> None:
    experts = {"experts": 4, "experts_per_token": 2, "expert_ffn_hidden": 256, "shared_experts": 1}
    wide, narrow = (kept(dtype, small.small_model(4, **experts)) for dtype in ("bf16", "fp8"))
    assert "router" not in wide
    assert (wide["shared_up"], narrow["shared_up"], narrow["router"]) == (1024, 512, 1024)
    original = kept(
        "mxfp8", small.small_model(4, **experts), framework=sim.framework({"low_precision": {"keeps_original": True}})
    )
    assert (original["shared_up"], original.get("router", 0)) == (1024, 0)


def test_t10_7_latent_attention_keeps_one_copy_of_the_input_of_both_latents() -> None:
    latents = {"q_lora_rank": 64, "kv_lora_rank": 64, "rope_head_dim": 32, "head_dim": 96, "value_head_dim": 64, "kv_heads": 8}
    wide, narrow = (kept(dtype, small.small_model(4, **latents)) for dtype in ("bf16", "fp8"))
    assert (wide["q_down"], narrow["q_down"]) == (1024, 1024)
    assert "kv_down" not in {**wide, **narrow}
    without = kept("fp8", small.small_model(4, **{**latents, "q_lora_rank": 0}))
    assert (without["q"], without["kv_down"]) == (512, 1024)
    software = sim.framework({"low_precision": {"keeps_original": True}})
    original = kept("mxfp8", small.small_model(4, **{**latents, "q_lora_rank": 0}), framework=software)
    assert original["kv_down"] == 1024, "nobody else keeps it in 16 bits"


def test_t10_7_inputs_gathered_in_eight_bits_are_kept_so() -> None:
    """As a Float8Tensor of torchao: nothing of them is cast again, and where scales are of tensors it is transposed."""
    plan, recipe = sim.Plan(tp=2, pp=2), LowPrecision(scaling="current", keeps_narrow=False)
    kept_so, apart = (
        program_of(replace(scenario(dtype="fp8", plan=plan, low_precision=recipe), framework=software))
        for software in (
            Framework(gathered_inputs=True, low_precision=recipe), Framework(low_precision=recipe),
        )
    )  # fmt: skip
    casts = [
        Counter(op.name.partition(".")[2] for op in computed(program) if ".wgrad." in op.name and op.layer == 1)
        for program in (kept_so, apart)
    ]
    assert all(casts[1][f"{name}.wgrad.cast"] for name in ("qkv", "mlp_up", "attention_out", "mlp_down"))
    assert not any(casts[0][f"{name}.wgrad.cast"] for name in ("qkv", "mlp_up"))
    assert all(casts[0][f"{name}.wgrad.transpose"] for name in ("qkv", "mlp_up"))
    held = {op.name: op.held_bytes for op in computed(kept_so) if op.layer == 1}
    assert held["1.qkv"] == held["1.mlp_up"] == 1024 * 1024


def test_t10_6_a_frozen_row_layer_gathers_one_copy() -> None:
    job = sim.Job(sequence_length=256, global_batch=4, dtype="mxfp8", lora=sim.Lora(targets=("qkv",)))
    of = small.scenario(small.small_model(4), small.small_cluster(1), sim.Plan(tp=2, dp=2), job, framework=sim.framework({}))
    ops = [op for body in program_of(of).bodies.values() for op in body.ops]
    found = {op.payload_bytes for op in ops if isinstance(op, Collective) and op.name.endswith("attention_out.dgrad.gather")}
    assert found == {int(256 * 512 * NARROW_BYTES["mxfp8"])}


def test_t10_7_attention_repeated_in_the_backward_pass_keeps_no_result() -> None:
    """What it makes is made again; the projection keeps the cast result that its weight gradient needs."""
    narrow, again = kept("fp8"), kept("fp8", recompute="selective")
    assert again["attention_out"] == narrow["attention_out"]
    assert narrow["attention"] - again["attention"] == 1024 + 8 * 4, "the result, and a number of fp32 for every head"


def test_t10_9_the_reduction_of_scales_leaves_what_each_place_frees_as_it_is() -> None:
    """On a rank with embedding and head, what the head holds is freed before the backward pass of the last layer."""
    freed = {}
    for over in ("none", "replicas"):
        program = program_of(scenario(plan=sim.Plan(tp=2), dtype="fp8", low_precision=LowPrecision(shared_scales=over)))
        ops = next(program.bodies[step.body].ops for step in program.orders[0] if step.phase == "B")
        freed[over] = {op.name: op.freed_bytes for op in ops if op.freed_bytes}
    assert freed["replicas"] == freed["none"]
    assert freed["none"]["final_norm.dgrad"] > 0


def test_t10_8_a_large_model_is_faster_in_eight_bits_and_its_mfu_is_of_their_peak() -> None:
    """Linear layers alone in FP8 bring 1.2 to 1.5 (the performance guide of Megatron Bridge)."""
    base: Any = sim.load("llama3-70b-64xh100", ["framework=megatron-core-2025", "job.global_batch=8"])
    wide, narrow = (replace(base, job=replace(base.job, dtype=dtype)).simulate() for dtype in ("bf16", "fp8"))
    assert 1.2 < wide.metrics.step_time_s / narrow.metrics.step_time_s < 1.5
    assert narrow.metrics.mfu == pytest.approx(
        wide.metrics.mfu * wide.metrics.step_time_s / narrow.metrics.step_time_s * 989.4 / 1978.9, rel=1e-6
    )
    low, high = narrow.step_time_interval_s
    assert low < narrow.metrics.step_time_s < high


def test_one_estimator_costs_a_mixed_program() -> None:
    by = Estimator(shipped_fits.gpu("h100"), "bf16", shipped_fits.shipped())
    wide, narrow = by.estimate(Gemm(8192, 8192, 8192, 2)), by.estimate(Gemm(8192, 8192, 8192, 2, dtype="fp8"))
    assert "bf16" in wide.model
    assert "fp8" in narrow.model
    assert 1.3 < wide.seconds / narrow.seconds < 2


@pytest.mark.parametrize(("gpu", "dtypes"), [("a100-80gb", set()), ("h100", {"fp8", "fp8_block"}), ("b200", {*NARROW_BYTES})])
def test_a_gpu_without_the_format_is_refused_with_those_that_it_has(gpu: str, dtypes: set[str]) -> None:
    assert {dtype for dtype in NARROW_BYTES if shipped_fits.gpu(gpu).runs(dtype)} == dtypes
    for dtype in {*NARROW_BYTES} - dtypes:
        wanted = replace(scenario(dtype=dtype), cluster=sim.cluster("dgx-h100", nodes=1, gpu=gpu))
        with pytest.raises(UserError, match=f"{gpu} has no {dtype} GEMMs") as refused:
            wanted.simulate()
        assert "bf16" in refused.value.hint


def test_software_without_the_format_is_refused_with_those_that_it_has() -> None:
    wanted = replace(scenario(dtype="fp8"), framework=sim.framework("megatron-lm-2021"))
    with pytest.raises(UserError, match="megatron-lm-2021 has no fp8 GEMMs") as refused:
        wanted.simulate()
    assert refused.value.hint == "it has fp32, bf16, fp16"
    with pytest.raises(UserError, match="'fp9' is no format of eight"):
        sim.framework("none", low_precision={"formats": ["fp9"]})
