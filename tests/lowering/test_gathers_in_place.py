"""Parameters that are used where their gather has written them, and gathers of weights in fp8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.program.operations import Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework, Fusion, LowPrecision, Overlaps

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model
from .test_sharded_state import called, gathers_of, of, rows_of, sent_bytes

LAYERS, HIDDEN, VOCAB, INNER = 8, 512, 4096, 1408
LINEAR = LAYERS * (2 * HIDDEN * 512 + 2 * HIDDEN * 256 + 3 * HIDDEN * INNER)
ALL = LINEAR + LAYERS * 2 * HIDDEN + 2 * VOCAB * HIDDEN + HIDDEN
GATHERING = ("zero3", "fsdp", "hsdp")


def in_place(sharding: Any, **more: Any) -> Scenario:
    return of(sharding, framework=Framework(in_place_gathers=True), **more)


def copies(program: Program) -> list[Any]:
    return [op for op in called(program) if op.purpose is Purpose.COPY and op.name.endswith("parameters copy")]


def linear(dtype: Any, sharding: Any = "fsdp", *, gpu: str = "h100", mixture: bool = False, **recipe: Any) -> Scenario:
    """Two microbatches in a narrow format on 8 ranks."""
    experts = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 704, "ffn_hidden": 704} if mixture else {}
    chosen = sim.Plan(dp=8, ep=4 if mixture else 1, sharding=sharding)
    framework = Framework(low_precision=LowPrecision(**recipe), fusion=Fusion(), in_place_gathers=True)
    job = sim.Job(256, 16, 1, dtype=dtype)
    return scenario(small_model(LAYERS, **experts), small_cluster(2, gpu=gpu), chosen, job, framework=framework)


def weights(program: Program) -> list[Any]:
    """Casts of weights, of a whole step."""
    return [op for op in called(program) if ".weights" in op.name]


@pytest.mark.parametrize("sharding", [sim.Sharding(kind, group=4 if kind == "hsdp" else None) for kind in GATHERING])
def test_t13_14_nothing_is_copied_and_as_much_is_gathered(sharding: sim.Sharding) -> None:
    plain, there = program_of(of(sharding)), program_of(in_place(sharding))
    assert sent_bytes(plain) == sent_bytes(there)
    assert copies(plain)
    assert not copies(there)
    of_gradients = [[op for op in called(program) if op.name.endswith("gradients copy")] for program in (plain, there)]
    assert len(of_gradients[0]) == len(of_gradients[1]) > 0


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_t13_14_a_gather_waits_for_the_operation_before_the_unit_so_many_places_before(prefetch: int) -> None:
    run = in_place(sim.Sharding("fsdp", prefetch=prefetch)).simulate(steps=1)
    rows = rows_of(run)
    for phase in "FB":
        here = rows[(rows.phase == phase) & (rows.microbatch == 1)]
        gathers = [*gathers_of(run, phase, 1).itertuples()]
        compute, first = here[here.stream == "compute"], {}
        for gather in gathers:
            unit = gather.block.removesuffix(" parameters")
            uses = (
                compute[compute.block.str.startswith(f"{unit} ")] if unit.startswith("layer") else compute[compute.block == unit]
            )
            if len(uses):
                first[unit] = uses.iloc[0]
                assert first[unit].start_ns >= gather.end_ns, "a unit is there before it is used"
        layers = [gather for gather in gathers if gather.block.startswith("layer")]
        for k in range(prefetch, len(layers)):
            ahead = first[layers[k - prefetch].block.removesuffix(" parameters")]
            before = compute[compute.end_ns <= ahead.start_ns].end_ns.max()
            busy = rows[(rows.stream == "dp") & (rows.start_ns < layers[k].start_ns)].end_ns.max()
            assert layers[k].start_ns == max(before, busy)


def test_t13_14_no_more_than_two_units_are_in_place_with_a_prefetch_of_one() -> None:
    """Between the first gather of a pass and the end of its last layer."""
    run = in_place(sim.Sharding("fsdp")).simulate(steps=1)
    rows = rows_of(run)
    here = rows[(rows.phase == "F") & (rows.microbatch == 1)]
    events: list[tuple[int, int]] = []
    for layer in range(LAYERS):
        of_layer = here[here.block.str.startswith(f"layer {layer} ")]
        gather = of_layer[of_layer.block.str.endswith("parameters")].iloc[0]
        events += [(gather.start_ns, 1), (of_layer[of_layer.stream == "compute"].end_ns.max(), -1)]
    held = most = 0
    for _, change in sorted(events):
        held += change
        most = max(most, held)
    assert most == 2


@pytest.mark.parametrize("sharding", [sim.Sharding("fsdp"), sim.Sharding("fsdp", reshard=False), sim.Sharding("hsdp", group=4)])
def test_t13_14_a_unit_is_held_once(sharding: sim.Sharding) -> None:
    """Not twice, as while it is copied; and what stays, stays."""
    there, plain = (sharded(sharding).simulate() for sharded in (in_place, of))
    assert there.memory[0].total_bytes <= plain.memory[0].total_bytes
    both(*bound_twice(in_place(sharding))).assert_equal()


def test_t13_14_what_computes_long_enough_hides_every_gather_and_makes_no_copy() -> None:
    """The step is shorter by the copies alone."""
    job = sim.Job(sequence_length=4096, global_batch=8)
    plain, there = (
        scenario(small_model(ffn_hidden=8192), small_cluster(), sim.Plan(dp=8, sharding="fsdp"), job, framework=framework)
        for framework in (Framework(), Framework(in_place_gathers=True))
    )
    copying, direct = plain.simulate(), there.simulate()
    spared_s = sum(cost.seconds for cost in copying.kernel_costs if cost.name.endswith("parameters copy"))
    assert copying.metrics.step_time_s - direct.metrics.step_time_s == pytest.approx(spared_s, rel=0.25)


def test_t13_14_which_frameworks_gather_in_place() -> None:
    """Those with Megatron-FSDP, which also keeps weights beside the master copy."""
    for name in catalog.files("frameworks"):
        framework = sim.framework(name)
        assert framework.in_place_gathers == framework.weights_beside_master, name


@pytest.mark.parametrize(("sharding", "times"), [("zero1", 1), ("zero2", 1), ("zero3", 4), ("fsdp", 4)])
def test_t10_10_weights_in_fp8_are_gathered_in_fp8(sharding: str, times: int) -> None:
    """Two passes of two microbatches gather a unit each, but the head once less; embedding, head and norms have 16 bits."""
    sizes = {}
    for formats in ((), ("fp8",)):
        program = program_of(linear("fp8", sharding, narrow_parameters=formats))
        sizes[formats] = sent_bytes(program)["dp", "all_gather"]
    assert sizes[()] - sizes["fp8",] == times * LINEAR
    if times == 1:
        assert sizes["fp8",] == LINEAR + 2 * (ALL - LINEAR)


@pytest.mark.parametrize(
    ("dtype", "sharding", "times"), [("fp8", "fsdp", 4), ("fp8", "zero3", 4), ("fp8", "zero1", 0), ("mxfp8", "fsdp", 0)]
)
@pytest.mark.parametrize("cached", [True, False])
def test_t10_10_ranks_may_cast_their_share_before_they_gather_it(dtype: str, sharding: str, times: int, cached: bool) -> None:
    """What a rank holds between passes is the same: only what is gathered is narrow."""
    plain, narrow = (linear(dtype, sharding, gpu="b200", fp8_gathers=gathers, cached_weights=cached) for gathers in (False, True))
    spared = [sent_bytes(program_of(one))["dp", "all_gather"] for one in (plain, narrow)]
    assert spared[0] - spared[1] == times * LINEAR
    assert plain.simulate().memory[0].parameters_bytes == narrow.simulate().memory[0].parameters_bytes


def test_t13_4_a_kernel_copies_as_many_bytes_as_are_gathered() -> None:
    for gathers, each_bytes in ((False, 2), (True, 1)):
        framework = Framework(low_precision=LowPrecision(fp8_gathers=gathers))
        program = program_of(replace(linear("fp8"), framework=framework))
        read_and_written = sum(op.kernel.traffic_bytes for op in copies(program))
        gathered = sent_bytes(program)["dp", "all_gather"]
        assert read_and_written == pytest.approx(2 * gathered)
        assert gathered == 2 * 2 * (each_bytes * LINEAR + 2 * (ALL - LINEAR)) - 2 * 2 * (VOCAB * HIDDEN + HIDDEN)


@pytest.mark.parametrize("dtype", ["mxfp8", "nvfp4"])
def test_t10_10_formats_with_scales_of_blocks_are_gathered_and_cast_as_ever(dtype: str) -> None:
    plain, narrow = (program_of(linear(dtype, gpu="b200", narrow_parameters=of)) for of in ((), (dtype,)))
    assert sent_bytes(plain) == sent_bytes(narrow)
    assert [op.kernel for op in weights(plain)] == [op.kernel for op in weights(narrow)]


@pytest.mark.parametrize(("gpu", "any_layout", "moved"), [("h100", True, 2), ("b200", False, 2), ("b200", True, 0)])
@pytest.mark.parametrize(("sharding", "passes"), [("zero1", 1), ("fsdp", 2)])
def test_t10_10_no_pass_casts_them_and_some_gpus_transpose_them(
    gpu: str, any_layout: bool, moved: int, sharding: str, passes: int
) -> None:
    """One byte read and one written, in every forward pass that gathers, or once a step."""
    chosen = linear("fp8", sharding, gpu=gpu, narrow_parameters=("fp8",), any_layout=any_layout, scaling="current")
    found = weights(program_of(chosen))
    assert sum(op.kernel.traffic_bytes for op in found) == moved * passes * LINEAR
    assert {op.kernel.op for op in found} == ({"transpose"} if moved else set())


def test_t10_10_without_sharding_every_rank_casts_all_weights() -> None:
    plain, narrow = (program_of(linear("fp8", "none", narrow_parameters=of)) for of in ((), ("fp8",)))
    assert [op.kernel for op in weights(plain)] == [op.kernel for op in weights(narrow)] != []


def test_t10_10_weights_that_every_pass_casts_exist_in_16_bits() -> None:
    plain, narrow = (program_of(linear("fp8", narrow_parameters=of, cached_weights=False)) for of in ((), ("fp8",)))
    assert sent_bytes(plain) == sent_bytes(narrow)


def test_t10_10_experts_that_exist_once_are_cast_by_their_rank() -> None:
    """Four of eight ranks hold each expert once more; without copies, each rank casts its own."""
    chosen = linear("fp8", "zero1", mixture=True, narrow_parameters=("fp8",))
    alone = replace(chosen, plan=replace(chosen.plan, ep=8))
    divided, whole = ({op.operator for op in weights(program_of(of)) if op.kernel.op == "quantise"} for of in (chosen, alone))
    assert not divided
    assert whole == {op.operator for op in called(program_of(alone)) if isinstance(op, Compute) and op.expert and op.parameters}


def test_t10_11_formats_whose_gemms_stay_whole_overlap_in_backward_passes_only() -> None:
    def step(dtype: Any, recipe: LowPrecision, tp: Any, plan: Any = None) -> Program:
        framework = Framework(low_precision=recipe, overlap=Overlaps(tp=tp))
        chosen = sim.Plan(tp=4, dp=2, overlap=sim.Overlap(tp=plan))
        job = sim.Job(256, 16, 1, dtype=dtype)
        return program_of(scenario(small_model(), small_cluster(2, gpu="b200"), chosen, job, framework=framework))

    listed, plain = LowPrecision(whole_gemms=("nvfp4",)), LowPrecision()
    assert step("nvfp4", listed, "decomposed") == step("nvfp4", plain, True) != step("nvfp4", plain, "decomposed")
    assert step("mxfp8", listed, "decomposed") == step("mxfp8", plain, "decomposed")
    assert step("nvfp4", listed, False) == step("nvfp4", plain, False)
    assert step("nvfp4", listed, False, "decomposed") == step("nvfp4", plain, "decomposed"), "the plan goes first"


def test_t10_11_formats_with_late_gathers_wait_for_all_parameters() -> None:
    def step(dtype: Any, recipe: LowPrecision, *, early: bool) -> Program:
        framework = Framework(low_precision=recipe, overlap=Overlaps(parameter_gather=early))
        return program_of(replace(linear(dtype, "zero1", gpu="b200"), framework=framework), 2)

    listed, plain = LowPrecision(late_gathers=("mxfp8",)), LowPrecision()
    assert step("mxfp8", listed, early=True) == step("mxfp8", plain, early=False) != step("mxfp8", plain, early=True)
    assert step("nvfp4", listed, early=True) == step("nvfp4", plain, early=True)


def test_t10_11_collectives_of_whole_gemms_run_in_one_piece() -> None:
    framework = sim.framework("megatron-bridge-2026")
    pieces = {}
    for dtype in ("nvfp4", "mxfp8"):
        chosen = scenario(small_model(), small_cluster(2, gpu="b200"), sim.Plan(tp=4, dp=2), sim.Job(256, 16, 1, dtype=dtype))
        ops = called(program_of(replace(chosen, framework=framework)))
        pieces[dtype] = sum(isinstance(op, Collective) and op.communicator == "tp" for op in ops)
    assert pieces["nvfp4"] < pieces["mxfp8"]
