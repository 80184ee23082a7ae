"""Frameworks: profiles as data, what they fuse and split, and what follows for traffic, memory, gradients and launches.

The numbered tests are section 9 of the second half of docs/semantics.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import catalog, feasible
from simulator.config.document import read
from simulator.kernels import Attention, Kernel, Rowwise
from simulator.lowering.kernels_of_framework import Layered, framework_kernels
from simulator.program.operations import Collective, Compute
from simulator.program.program import Program
from simulator.program.slot import Slot
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of, site_of
from simulator.workload.framework import Framework, Fusion, HostTimes, MemoryOverhead
from simulator.workload.job import ELEMENT_BYTES

from .. import small_scenarios
from ..commandline import SMALL, trainsim

PROFILES = catalog.files("frameworks")
LAYER = {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 32000}
LLAMA = sim.model({**LAYER, "kv_heads": 4, "gated_mlp": True, "ffn_hidden": 2816})
GPT = sim.model({**LAYER, "bias": True, "positions": "learned", "max_sequence_length": 1024})
FLAGS = [field.name for field in fields(Fusion)]


def scenario(model: Any = LLAMA, plan: Any = None, dtype: str = "bf16", **software: Any) -> Scenario:
    job = sim.Job(sequence_length=1024, global_batch=8, dtype=dtype)
    return Scenario(model, sim.cluster("dgx-h100", nodes=1), plan or sim.Plan(tp=2, pp=2), job, framework=Framework(**software))


def of_stage(model: Any) -> list[Layered]:
    """The operators of a whole model as blocks describe them."""
    size = {"batch": 2, "seq": 64, "element_bytes": 2}
    block = model.block
    layers = [(i, op) for i in range(model.layers) for op in block.layer(model, **size)]
    return [*((-1, op) for op in block.embedding(model, **size)), *layers, *((-1, op) for op in block.head(model, **size))]


def kernels(ops: Iterable[Layered]) -> list[Kernel]:
    return [k for _, op in ops for k in (op.forward, op.input_gradient, op.weight_gradient) if k is not None]


def traffic_bytes(ops: Iterable[Layered]) -> int:
    return sum(kernel.traffic_bytes for kernel in kernels(ops))


def computed(program: Program) -> list[Compute]:
    """Every kernel of a step, as often as it runs."""
    return [op for order in program.orders for s in order for op in program.bodies[s.body].ops if isinstance(op, Compute)]


models = st.builds(
    lambda gated, norm, bias, positions: sim.model(
        {**LAYER, "ffn_hidden": 2816, "gated_mlp": gated, "norm": norm, "bias": bias, "positions": positions}
    ),
    st.booleans(),
    st.sampled_from(["rmsnorm", "layernorm"]),
    st.booleans(),
    st.sampled_from(["rope", "none"]),
)
fusions = st.builds(Fusion, **{name: st.booleans() for name in FLAGS})
frameworks = st.builds(Framework, attention=st.sampled_from(["", "unfused"]), dropout=st.booleans(), fusion=fusions)


@given(models)
def test_t9_1_without_a_framework_operators_run_as_blocks_describe_them(model: Any) -> None:
    assert framework_kernels(of_stage(model), Framework()) == of_stage(model)


@given(models, frameworks, st.sampled_from(FLAGS))
def test_t9_2_fusing_one_thing_more_never_moves_more_bytes_nor_runs_more_kernels(model: Any, framework: Any, flag: str) -> None:
    apart = framework_kernels(of_stage(model), replace(framework, fusion=replace(framework.fusion, **{flag: False})))
    together = framework_kernels(of_stage(model), replace(framework, fusion=replace(framework.fusion, **{flag: True})))
    assert traffic_bytes(together) <= traffic_bytes(apart)
    assert len(kernels(together)) <= len(kernels(apart))


@given(models, frameworks)
def test_t9_2_fusion_conserves_flop_and_parameters_and_names_are_its_own(model: Any, framework: Framework) -> None:
    before, after = of_stage(model), framework_kernels(of_stage(model), framework)
    assert sum(one.model_flop for one in kernels(after)) == sum(one.model_flop for one in kernels(before))
    assert sum(op.parameters for _, op in after) == sum(op.parameters for _, op in before)
    assert sum(op.whole_parameters for _, op in after) == sum(op.whole_parameters for _, op in before)
    for way in ("forward", "input_gradient", "weight_gradient"):
        named = [(layer, op.name) for layer, op in after if getattr(op, way) is not None]
        assert len(set(named)) == len(named)


@given(models, frameworks)
def test_t9_4_a_compiler_fuses_all_that_is_pointwise(model: Any, framework: Framework) -> None:
    compiled, by_hand = replace(framework, compile=True), replace(framework, fusion=Fusion(residual_norm=True))
    extra = traffic_bytes(framework_kernels(of_stage(model), compiled)) - traffic_bytes(
        framework_kernels(of_stage(model), by_hand)
    )
    rows = sum(op.forward.rows * op.forward.columns for _, op in of_stage(model) if isinstance(op.forward, Rowwise)
               and op.forward.op == "add")  # fmt: skip
    assert extra == (-4 * rows if framework.dropout else 0), "dropout and the sum after it are one kernel, when compiled"


def test_t9_3_what_a_residual_sum_and_the_norm_after_it_move() -> None:
    """Apart 3 + 2 elements forward and 3 + 3 backward, together 4 and 4."""
    joined = {op.name: op for _, op in framework_kernels(of_stage(LLAMA), Framework(fusion=Fusion(residual_norm=True)))}
    norm = joined["add_mlp_norm"]
    assert isinstance(norm.forward, Rowwise)
    assert isinstance(norm.input_gradient, Rowwise)
    assert (norm.forward.bytes_per_element, norm.input_gradient.bytes_per_element) == (4 * 2, 4 * 2)
    assert "attention_residual" not in joined


@pytest.mark.parametrize("sequence", [512, 1024])
def test_t9_5_a_gpt_of_2021_keeps_what_was_published(sequence: int) -> None:
    """sbh (34 + 5as/h) bytes per layer: Korthikanti et al., arXiv 2205.05198, equation 1."""
    software = sim.framework("megatron-lm-2021")
    ops = GPT.block.layer(GPT, batch=2, seq=sequence, element_bytes=2)
    kept = sum(op.saved_bytes for _, op in framework_kernels([(0, op) for op in ops], software))
    assert kept == sequence * 2 * 1024 * 34 + 5 * 16 * sequence**2 * 2


def test_t9_5_unfused_attention_is_products_with_a_softmax_between() -> None:
    ops = computed(program_of(scenario(attention="unfused")))
    assert not [op for op in ops if isinstance(op.kernel, Attention)]
    assert {op.name.partition(".")[2] for op in ops if "attention_" in op.name and "dgrad" not in op.name} >= {
        "attention_scores", "attention_softmax", "attention_context"
    }  # fmt: skip
    moved = [[op.kernel.bytes_per_element for op in made if "softmax" in op.name and isinstance(op.kernel, Rowwise)] for made in (
        ops, computed(program_of(scenario(attention="unfused", fusion=Fusion(softmax=False))))
    )]  # fmt: skip
    assert [set(each) for each in moved] == [{3, 4}, {8, 12}], "half of what is read lies above the diagonal"
    slower, faster = scenario(attention="unfused").simulate(), scenario().simulate()
    assert slower.metrics.step_time_s > faster.metrics.step_time_s
    assert slower.peak_memory_bytes > faster.peak_memory_bytes


@pytest.mark.parametrize(
    ("batch", "tp", "seq", "fused"), [(1, 4, 512, True), (1, 8, 512, False), (2, 8, 512, True), (1, 4, 510, False)]
)
def test_t9_9_a_fused_softmax_takes_scores_by_fours(batch: int, tp: int, seq: int, fused: bool) -> None:
    """16 heads, without dropout: what a score moves forward and backward, and what is kept of it."""
    software = replace(sim.framework("megatron-lm-2021"), dropout=False)
    layer = [(0, op) for op in GPT.block.layer(GPT, batch=batch, seq=seq, element_bytes=2)]
    ops = [op for _, op in framework_kernels(layer, software, tp) if op.name.startswith("attention_")]
    scores, moved, kept = batch * 16 * seq**2, [0, 0], 0
    for op in ops:
        for i, kernel in enumerate((op.forward, op.input_gradient)):
            moved[i] += kernel.bytes_per_element if isinstance(kernel, Rowwise) and kernel.columns == seq else 0
        kept += op.saved_bytes if isinstance(op.forward, Rowwise) and op.forward.columns == seq else 0
    assert moved == ([3, 4] if fused else [36, 40])
    assert kept == scores * (2 if fused else 6)
    compiled = framework_kernels(layer, replace(software, compile=True), tp)
    assert [op.name for _, op in compiled if "softmax" in op.name] == ["attention_softmax"]
    assert not [op for _, op in compiled if op.name == "attention_wide"]


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_where_each_of_its_values_comes_from(name: str) -> None:
    data = read(PROFILES[name]).data
    said = data.pop("sources")
    flat = {f"{k}.{n}" if isinstance(v, dict) else k for k, v in data.items() for n in (v if isinstance(v, dict) else ("",))}
    assert set(said) == ({"all"} if name == "none" else flat)
    assert sim.framework(name).name == name
    assert catalog.headline(PROFILES[name]).endswith(".")


def test_the_profile_none_is_no_framework() -> None:
    assert sim.framework("none") == Framework()
    assert (
        scenario().simulate().metrics == Scenario(**{**vars(scenario()), "framework": sim.framework("none")}).simulate().metrics
    )


@pytest.mark.parametrize(
    ("framework", "overlap", "said"),
    [
        (Framework(), {}, "none: launches are free, every operator is one kernel, only dp, pp may run beside compute"),
        (Framework(), {"tp": True}, "none: launches are free, every operator is one kernel, dp, tp, pp may run beside compute"),
        (Framework(), {"dp": False, "pp": False}, "one kernel, nothing may run beside compute"),
        (replace(Framework(), dropout=True, gradients="bf16"), {}, "none, but for dropout, gradients"),
        (sim.framework("torchtitan-2024"), {}, "torchtitan-2024"),
    ],
)
def test_a_summary_always_says_whose_software_it_is(framework: Framework, overlap: dict[str, bool], said: str) -> None:
    run = replace(scenario(), plan=sim.Plan(tp=2, pp=2, overlap=sim.Overlap(**overlap)), framework=framework).simulate()
    assert dict(run.summary)["framework"].endswith(said)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_every_profile_runs_and_takes_no_less_than_none(name: str, model: Any) -> None:
    base = replace(scenario(model), plan=sim.Plan(tp=2, pp=2, overlap=sim.Overlap(dp=True, tp=False, pp=True)))
    software = sim.framework(name)
    none = replace(Framework(), gradients=software.gradients)
    run, ideal = (replace(base, framework=chosen).simulate() for chosen in (software, none))
    low, high = run.step_time_interval_s
    assert low <= run.metrics.step_time_s <= high
    assert run.metrics.step_time_s >= ideal.metrics.step_time_s * (0.9 if software.compile else 1)


def test_none_is_no_bound_software_that_overlaps_more_is_faster_by_that() -> None:
    """On the scenario of the demo, whose kernels are so long that launches hardly count."""
    free, bare = "fidelity.overlap=free", "framework=none"
    software = sim.load("llama3-70b-64xh100", [free]).simulate().metrics.step_time_s
    none = sim.load("llama3-70b-64xh100", [free, bare]).simulate().metrics.step_time_s
    overlapped = sim.load("llama3-70b-64xh100", [free, bare, "plan.overlap.tp=true"]).simulate().metrics.step_time_s
    assert none > 1.1 * software
    assert overlapped == pytest.approx(software, rel=1e-3)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", PROFILES)
def test_folding_is_exact_with_every_framework(name: str) -> None:
    software = sim.framework(name)
    job = sim.Job(sequence_length=64, global_batch=8, dtype="fp8" if software.low_precision.formats else "bf16")
    small = small_scenarios.scenario(small_scenarios.small_model(4), plan=sim.Plan(tp=2, pp=2), job=job, framework=software)
    small_scenarios.both(*small_scenarios.bound_twice(small)).assert_equal()


def reduced_bytes(of: Scenario) -> int:
    bodies = program_of(of).bodies.values()
    return sum(op.payload_bytes for b in bodies for op in b.ops if isinstance(op, Collective) and "gradients" in op.name)


def test_t9_6_gradients_in_half_the_bytes_are_reduced_and_held_in_half() -> None:
    plan = sim.Plan(tp=2, pp=2, dp=2)
    full, half = (scenario(plan=plan, gradients=dtype) for dtype in ("fp32", "bf16"))
    assert reduced_bytes(full) == 2 * reduced_bytes(half) > 0
    assert [r.gradients_bytes for r in full.simulate().memory] == [2 * r.gradients_bytes for r in half.simulate().memory]


@pytest.mark.parametrize(("dtype", "gradients", "each_bytes"), [("bf16", "fp32", 2), ("bf16", "bf16", 2), ("fp32", "fp32", 4)])
def test_t9_6_gradients_that_are_copied_as_a_whole_are_reduced_in_the_training_dtype(
    dtype: Any, gradients: Any, each_bytes: int
) -> None:
    """As in DeepSpeed's optimizer for bf16, which accumulates in fp32."""
    plan = sim.Plan(dp=4, sharding="zero1")
    plain, whole = (
        scenario(plan=plan, dtype=dtype, gradients=gradients, memory=MemoryOverhead(whole_gradients=copied))
        for copied in (False, True)
    )
    assert reduced_bytes(whole) * ELEMENT_BYTES[gradients] == reduced_bytes(plain) * each_bytes
    explicit = replace(whole, plan=replace(plan, sharding=sim.Sharding("zero1", reduce_dtype="fp32")))
    assert reduced_bytes(explicit) * each_bytes == reduced_bytes(whole) * 4


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [name for name in PROFILES if name.startswith("megatron")])
def test_t9_6_gradients_of_jobs_in_fp16_have_16_bits_in_megatron(name: str) -> None:
    software = sim.framework(name)
    jobs = [sim.Job(64, 8, dtype=dtype) for dtype in ("fp16", "bf16")]  # type: ignore[arg-type]
    half, other = (replace(scenario(), job=job, framework=software) for job in jobs)
    ratio = 2 if software.gradients == "by-dtype" and not software.memory.whole_gradients else 1
    assert reduced_bytes(other) == ratio * reduced_bytes(half) > 0
    if not software.memory.whole_gradients:
        held = [[rank.gradients_bytes for rank in memory_of(of, layout_of(of))] for of in (half, other)]
        assert held[1] == [ratio * size for size in held[0]]
    assert feasible.check(half).framework.gradients == ("bf16" if software.gradients == "bf16" else "fp16")


def test_t9_7_gradients_that_the_product_does_not_add_are_added_apart() -> None:
    apart = program_of(scenario(fusion=Fusion(accumulation=False)))
    for op in (op for op in computed(apart) if op.name.endswith(".wgrad.sum")):
        assert isinstance(op.kernel, Rowwise)
        assert op.kernel.traffic_bytes == op.kernel.rows * op.kernel.columns * (2 + 4 + 4)
    assert len(computed(apart)) - len(computed(program_of(scenario()))) == 8 // 2 * (4 * 4 + 1), (
        "four products a layer, and logits"
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_t9_14_gradients_of_whole_tables_are_zeroed_and_added(tp: int) -> None:
    plan, apart = sim.Plan(tp=tp, pp=2), Fusion(embedding_gradient=False)
    ops = computed(program_of(scenario(plan=plan, fusion=apart)))
    more = [op for op in ops if op.name.endswith(("embedding.wgrad.zero", "embedding.wgrad.sum"))]
    without = computed(program_of(scenario(plan=plan)))
    assert len(ops) - len(without) == len(more) > 0
    for op in more:
        passes = 2 if op.name.endswith("zero") else 2 + 4 + 4
        assert isinstance(op.kernel, Rowwise)
        assert op.kernel.traffic_bytes == passes * LLAMA.vocab * LLAMA.hidden // tp
    summed = computed(program_of(scenario(plan=plan, fusion=replace(apart, accumulation=False))))
    assert sum(op.name == "embedding.wgrad.sum" for op in summed) == len(more) // 2


def test_t9_14_a_gradient_that_replicas_reduce_at_once_is_only_zeroed() -> None:
    plan = sim.Plan(tp=1, pp=1, dp=2, sharding="fsdp")
    names = {op.name for op in computed(program_of(scenario(plan=plan, fusion=Fusion(embedding_gradient=False))))}
    assert "embedding.wgrad.zero" in names
    assert "embedding.wgrad.sum" not in names


def test_t9_14_a_tied_table_without_a_pipeline_adds_its_gradient_to_that_of_the_head() -> None:
    plan, model = sim.Plan(tp=1, pp=1), replace(LLAMA, tied_embeddings=True)
    ops = computed(program_of(scenario(model, plan, fusion=Fusion(embedding_gradient=False))))
    moved = {op.kernel.traffic_bytes for op in ops if op.name == "embedding.wgrad.sum" and isinstance(op.kernel, Rowwise)}
    assert moved == {3 * 2 * LLAMA.vocab * LLAMA.hidden}


def test_launches_cost_what_the_profile_says() -> None:
    times = HostTimes(kernel_s=10e-6, compiled_kernel_s=5e-6, collective_s=20e-6, graph_s=30e-6)

    def host(**changes: Any) -> Any:
        return site_of(scenario(host=times, **changes)).host

    launches = {"kernel_ns": 10_000, "collective_ns": 20_000, "graph_ns": None, "input_launches": 0}
    assert asdict(host()) == {**launches, "waits_for_transfers": False, "waits": ()}
    waiting = host(host_waits=("loss",), input_launches=5)
    assert (waiting.waits, waiting.input_launches) == (("loss",), 5)
    assert host(p2p_sync=True).waits_for_transfers
    assert host(compile=True).kernel_ns == 5_000
    assert host(cuda_graphs=True).graph_ns == 30_000
    assert site_of(scenario()).host is None


def test_a_small_model_is_bound_by_launches_and_graphs_free_it() -> None:
    small = replace(scenario(plan=sim.Plan(dp=8)), job=sim.Job(sequence_length=64, global_batch=128, microbatch_size=1))
    software = sim.framework("megatron-core-2025")
    small = replace(small, fidelity=sim.Fidelity(calibration="kernels"))
    eager, graphs = (replace(small, framework=replace(software, cuda_graphs=on)).simulate().metrics for on in (False, True))
    assert eager.launch_s > 0.3 * eager.step_time_s
    assert graphs.step_time_s < 0.7 * eager.step_time_s


def test_t9_8_overlap_is_the_plans_and_else_the_frameworks() -> None:
    base = replace(scenario(), framework=sim.framework("megatron-lm-2021"))
    said = replace(base, plan=replace(base.plan, overlap=sim.Overlap(dp=True)))

    def used(chosen: Scenario) -> dict[str, bool]:
        return {axis: beside for axis, beside in chosen.as_dict()["plan"]["overlap"].items() if axis != "weight_gradients"}

    assert used(base) == {"dp": False, "tp": False, "pp": False, "ep": False, "cp": True}
    assert used(said) == {"dp": True, "tp": False, "pp": False, "ep": False, "cp": True}
    assert used(scenario()) == {"dp": True, "tp": False, "pp": True, "ep": False, "cp": True}


def test_t9_8_sharding_and_recomputation_are_the_plans_and_else_the_frameworks() -> None:
    base = replace(scenario(), framework=sim.framework("torchtitan-2025"))

    def taken(**plan: Any) -> tuple[Any, Any]:
        found = replace(base, plan=sim.Plan(**plan)).simulate().scenario.plan
        return found.full_sharding.kind, found.recomputation

    assert taken(dp=8) == ("fsdp", sim.Recompute("full", every=2, early_stop=True))
    assert taken(dp=8, sharding="zero1", recompute="none") == ("zero1", sim.Recompute())
    assert taken(dp=8, recompute="full") == ("fsdp", sim.Recompute("full", early_stop=True))
    whole = sim.Recompute("full", early_stop=False)
    assert taken(dp=8, recompute=whole) == ("fsdp", whole)
    assert taken(tp=8) == ("none", sim.Recompute("full", every=2, early_stop=True))
    record = replace(base, plan=sim.Plan(dp=8)).simulate().as_dict()["scenario"]["plan"]
    assert (record["sharding"], record["recompute"]["scope"]) == ("fsdp", "full")
    assert scenario().simulate().scenario.plan.full_sharding.kind == "none"


def test_t9_8_both_directions_of_a_schedule_divide_the_optimizer_of_the_stages_that_each_has_a_copy_of() -> None:
    """A single replica, in which two pipeline ranks hold every stage. No schedule of two directions gathers parameters."""

    def run(framework: str, schedule: str, **plan: Any) -> Any:
        chosen = scenario(plan=sim.Plan(tp=2, pp=4, schedule=schedule, **plan))
        return replace(chosen, framework=sim.framework(framework)).simulate()

    for schedule in ("dualpipe", "chimera"):
        usual, divided = run("nemo-2025", schedule), run("nemo-2025", schedule, sharding="zero1")
        assert usual.scenario.plan.full_sharding.kind == "zero1"
        assert usual.memory == divided.memory
        assert usual.metrics == divided.metrics
        assert run("torchtitan-2025", schedule, recompute="none").scenario.plan.full_sharding.kind == "none"
    assert run("nemo-2025", "1f1b").scenario.plan.full_sharding.kind == "none"


def gpipe(rank: int, shape: Any) -> Any:
    """All forward passes, then all backward passes."""
    yield from (Slot(kind, rank, microbatch) for kind in "FB" for microbatch in range(shape.microbatches))


gpipe.placements = lambda shape: [range(shape.ranks)]  # type: ignore[attr-defined]


def test_a_single_placement_is_no_copy_to_divide_the_state_with() -> None:
    chosen = scenario(plan=sim.Plan(tp=2, pp=4, schedule=gpipe))
    run = replace(chosen, framework=sim.framework("nemo-2025")).simulate()
    assert run.scenario.plan.full_sharding.kind == "none"


def test_a_scenario_names_a_framework_and_changes_its_fields(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SMALL + "framework: {name: torchtitan-2024, host: {kernel: 7 us}}\n")
    found = sim.load(file, ["framework.cuda_graphs=true", "framework.fusion.rope=true"]).framework
    wanted = sim.framework("torchtitan-2024")
    changed = {"cuda_graphs": True, "fusion": replace(wanted.fusion, rope=True), "host": replace(wanted.host, kernel_s=7e-6)}
    assert found == replace(wanted, **changed)
    record = trainsim("run", file, "--json").record["scenario"]["framework"]
    assert (record["name"], record["host"]["kernel_s"], record["compile"]) == ("torchtitan-2024", 7e-6, True)


def test_a_framework_of_ones_own_is_a_file_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# Mine.\nattention: unfused\ncompile: true\n")
    file = tmp_path / "scenario.yaml"
    file.write_text(SMALL + "framework: ./mine.yaml\n")
    assert sim.load(file).framework == Framework(name="mine", attention="unfused", compile=True)
    assert sim.framework(tmp_path / "mine.yaml", compile=False).compile is False
    (tmp_path / "mine.yaml").write_text("dropot: true\n")
    said = trainsim("run", file)
    assert said.code == 2
    assert "mine.yaml:1:1" in said.err
    assert "did you mean 'dropout'?" in said.err


def test_jobs_that_share_a_cluster_share_the_framework() -> None:
    jobs = [{"name": "a", "model": dict(LAYER), "plan": {"tp": 2}, "job": {"sequence_length": 128, "global_batch": 8}, "gpus": 8}]
    data = {"cluster": {"name": "dgx-h100", "nodes": 1}, "framework": "megatron-core-2025", "jobs": jobs}
    found: Any = sim.scenario(data)
    assert found.tenants[0].scenario.framework == sim.framework("megatron-core-2025")
