"""Memory: closed forms of activations in flight, shares of state, and the verdict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.errors import Infeasible, UserError
from simulator.memory.account import Account, RankMemory
from simulator.simulation.memory_check import memory_of, terms_of
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.units import GIB, MIB
from simulator.workload.framework import Framework, MemoryOverhead

from ..commandline import SMALL, trainsim
from ..small_scenarios import scenario, small_cluster, small_model

CONNECTION_BYTES = 12 * MIB
"""10 MiB to receive through (4 MiB, 512 KiB and 4.7 MiB in pages of 2 MiB) and 2 MiB to send through: NVIDIA/nccl#1685."""
CHANNELS = MemoryOverhead().nccl_channels


def run_of(schedule: str, microbatches: int, *, pp: int = 4, chunks: int = 1, **plan: object) -> Run:
    job = sim.Job(128, microbatches, 1)
    chosen = sim.Plan(pp=pp, schedule=schedule, chunks=chunks, **plan)  # type: ignore[arg-type]
    return scenario(small_model(layers=8), small_cluster(1), chosen, job).simulate()


def per_microbatch(run: Run, stage: int) -> int:
    """Activations of one microbatch on a stage: those of a run that never holds more than one."""
    return run_of("naive", 1, pp=run.scenario.plan.pp).memory[stage].activations_bytes


@pytest.mark.thinned(2)
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_activations_in_flight(microbatches: int) -> None:
    for schedule, held in (
        ("gpipe", lambda r: microbatches),
        ("1f1b", lambda r: min(4 - r, microbatches)),
        ("naive", lambda r: 1),
    ):
        run = run_of(schedule, microbatches)
        for rank in range(4):
            assert run.memory[rank].activations_bytes == held(rank) * per_microbatch(run, rank)


def test_the_curve_peaks_at_the_peak_and_ends_where_it_began() -> None:
    run = run_of("interleaved", 8, chunks=2)
    for rank in run.memory:
        seconds, held = run.memory_over_time(rank.rank)
        assert held.max() == rank.total_bytes
        assert held[0] == held[-1] == rank.static_bytes
        assert (seconds[1:] >= seconds[:-1]).all()
        assert seconds[-1] <= run.metrics.step_time_s


def test_t11_1_gradients_wait_for_weight_gradients_that_add_them_apart() -> None:
    """With the sum in a kernel of its own, W reads the same gradients of results as without."""
    held = []
    for fused in (True, False):
        software = sim.framework({"fusion": {"accumulation": fused}})
        chosen = scenario(plan=sim.Plan(tp=2, pp=4, dp=1, schedule="zb-h1"), framework=software)
        held.append([rank.activations_bytes for rank in chosen.simulate(allow_oom=True).memory])
    assert held[0] == held[1]


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2"])
def test_t11_1_weight_gradients_need_less_than_input_gradients(schedule: str) -> None:
    """Counted by hand from the timeline: up by the end of each F, down by the end of each I to what W reads, by W to nothing.

    W reads the inputs of linear layers and the gradients of their results; of the head also those of the logits.
    """
    run = run_of(schedule, 8)
    inputs, gradients, head = 3 * 512 + 1408, 1024 + 512 + 2816 + 512, 512 + 4096
    for rank in range(4):
        kept, passed = per_microbatch(run, rank), 128 * 2 * (2 * (inputs + gradients) + head * (rank == 3))
        rows = run.timeline.to_pandas(ranks=[rank])
        rows = rows[(rows.stream == "compute") & rows.phase.isin(["F", "I", "W"])].groupby(["phase", "microbatch"])
        began, kept_from, ends = rows.start_ns.min()["F"], rows.end_ns.max()["F"], rows.end_ns.max()
        alive = [
            int((began < ns).sum() - (ends["I"] < ns).sum()) * kept
            + int((ends["I"] < ns).sum() - (ends["W"] < ns).sum()) * passed
            for ns in kept_from
        ]
        # a slot I holds the first gradient before it frees anything
        assert max(alive) <= run.memory[rank].activations_bytes <= max(alive) + passed
        times, held = run.memory_over_time(rank)
        for ns, of_then in zip(kept_from, alive, strict=True):
            at = (times < ns * 1e-9 - 1e-12).nonzero()[0][-1]
            assert held[at] == run.memory[rank].static_bytes + of_then


@pytest.mark.parametrize("norms", ["before", "after", "both"])
@pytest.mark.parametrize("shared_tokens", [True, False])
def test_t11_1_input_gradients_free_what_a_norm_reads_of_a_repeated_reduction(norms: str, shared_tokens: bool) -> None:
    """A layer that ends in a norm repeats the reduction before it: early or not, W needs nothing of its result."""
    held = []
    for early_stop in (False, True):
        again = sim.Recompute("full", early_stop=early_stop)
        plan = sim.Plan(tp=2, pp=4, dp=1, schedule="zb-h1", sequence_parallel=shared_tokens, recompute=again)
        chosen = scenario(small_model(layers=8, norms=norms), plan=plan)
        held.append([rank.activations_bytes for rank in memory_of(chosen, layout_of(chosen))])
    assert held[0] == held[1]


def test_state_is_counted_per_parameter_and_sharded_by_zero1() -> None:
    model = small_model(layers=8)
    whole = scenario(model, small_cluster(1), sim.Plan(dp=4)).simulate().memory[0]
    shared = scenario(model, small_cluster(1), sim.Plan(dp=4, sharding="zero1")).simulate().memory[0]
    assert whole.parameters_bytes == 2 * model.parameters
    assert whole.gradients_bytes == 4 * model.parameters
    assert whole.optimizer_bytes == 12 * model.parameters
    assert shared.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 4, abs=12)
    single = scenario(model, small_cluster(1), sim.Plan(dp=4), sim.Job(256, 16, 1, "fp32")).simulate().memory[0]
    assert (single.parameters_bytes, single.optimizer_bytes) == (4 * model.parameters, 8 * model.parameters)


def test_stages_hold_their_share_and_tied_tables_stand_on_both_ends() -> None:
    for tied in (False, True):
        model = small_model(layers=8, tied_embeddings=tied)
        run = scenario(model, small_cluster(1), sim.Plan(pp=4), sim.Job(128, 4, 1)).simulate()
        total = sum(rank.parameters_bytes for rank in run.memory) // 2
        copies = model.vocab * model.hidden if tied else 0
        assert total == model.parameters + copies
    alone = scenario(small_model(layers=8, tied_embeddings=True), small_cluster(1), sim.Plan(dp=4)).simulate()
    assert alone.memory[0].parameters_bytes == 2 * alone.scenario.model.parameters


def test_tensor_and_sequence_parallelism_divide_what_they_divide() -> None:
    def held(**plan: object) -> int:
        chosen = sim.Plan(**plan)  # type: ignore[arg-type]
        return scenario(small_model(), small_cluster(1), chosen, sim.Job(128, 4, 1)).simulate().memory[0].activations_bytes

    alone, tensor, sequence = held(dp=4), held(tp=4, sequence_parallel=False), held(tp=4)
    assert sequence == pytest.approx(alone / 4, rel=1e-3)
    assert alone / 4 < tensor < alone


def test_t11_2_a_vocabulary_that_tp_does_not_divide_is_padded_as_megatron_pads_it() -> None:
    """50,257 rows over 4 ranks are 50,688, a multiple of 128 x 4; 50,256 divide as they are."""

    def of(vocab: int) -> Run:
        model = small_model(layers=2, hidden=256, vocab=vocab, tied_embeddings=True)
        return scenario(model, small_cluster(2), sim.Plan(tp=4, dp=2), sim.Job(128, 4, 1)).simulate()

    whole, odd, padded = of(50256), of(50257), of(50688)
    more = (odd.memory[0].parameters_bytes - whole.memory[0].parameters_bytes) // 2
    assert more == (50688 - 50256) // 4 * 256
    assert odd.memory == padded.memory
    assert odd.timeline.to_pandas().equals(padded.timeline.to_pandas()), "kernels and volumes too"


def only(rank: RankMemory) -> tuple[int, int, int]:
    return rank.context_bytes, rank.nccl_bytes, rank.fragmentation_bytes


def test_t11_3_besides_tensors_are_context_buffers_and_fragmentation() -> None:
    """By hand: on one GPU no communicator; tp, dp and the norm have two neighbours each where groups are larger than two."""
    model, job = small_model(), sim.Job(128, 16, 1)
    gpu = small_cluster().gpu
    context = int(0.4 * GIB + gpu.reserved_bytes) + 1
    alone = scenario(model, sim.cluster({"gpu": "h100", "gpus_per_node": 1, "intra_node": "NVSwitch 450 GB/s"}), job=job)
    assert only(alone.simulate().memory[0]) == (context, 0, 0)
    pairs = scenario(model, small_cluster(1), sim.Plan(tp=2, dp=2), job).simulate().memory[0]
    assert pairs.nccl_bytes == (1 + 1 + 2) * CHANNELS * CONNECTION_BYTES
    quads = scenario(model, small_cluster(4), sim.Plan(tp=4, dp=4), job).simulate().memory[0]
    assert quads.nccl_bytes == (2 + 2 + 2) * CHANNELS * CONNECTION_BYTES
    stages = scenario(model, small_cluster(1), sim.Plan(pp=4), job).simulate().memory
    assert [rank.nccl_bytes for rank in stages] == [(2 + ends) * CHANNELS * CONNECTION_BYTES for ends in (1, 2, 2, 1)]
    taken = Framework(memory=MemoryOverhead(2.0 * GIB, 8.0 * MIB, 3, 0.25))
    own = scenario(model, small_cluster(1), sim.Plan(tp=2, dp=2), job, framework=taken).simulate().memory[0]
    received = 14 * MIB  # 8 and 512 KiB and 4.7 MiB, in pages of 2 MiB
    small = Framework(memory=MemoryOverhead(nccl_buffer_bytes=1.0 * MIB, nccl_channels=3))
    least = scenario(model, small_cluster(1), sim.Plan(tp=2, dp=2), job, framework=small).simulate().memory[0]
    assert least.nccl_bytes == 4 * 3 * (8 * MIB + 2 * MIB), "1 MiB, 512 KiB and 4.7 MiB in pages of 2 MiB"
    assert own.context_bytes == 2 * GIB + gpu.reserved_bytes
    assert own.nccl_bytes == 4 * 3 * (received + 2 * MIB)
    assert own.fragmentation_bytes == -(-(own.activations_bytes + own.working_bytes) // 4)
    assert own.total_bytes == own.static_bytes + own.activations_bytes
    tensors = own.parameters_bytes + own.gradients_bytes + own.optimizer_bytes + own.working_bytes
    assert own.static_bytes == tensors + sum(only(own))


PLANS = st.sampled_from([
    {"schedule": "1f1b", "pp": 4}, {"schedule": "interleaved", "pp": 4, "chunks": 2}, {"schedule": "zb-h1", "pp": 2, "tp": 2},
    {"schedule": "zb-v", "pp": 2, "chunks": 2}, {"schedule": "dualpipe", "pp": 4}, {"schedule": "gpipe", "pp": 2},
    {"schedule": "seq-1f1b", "pp": 2, "splits": 2}, {"schedule": "chimera", "pp": 4}, {"schedule": "naive", "tp": 4},
    {"schedule": "dualpipe-v", "pp": 2, "chunks": 2}, {"schedule": "hanayo", "pp": 2, "chunks": 4},
])  # fmt: skip


RECOMPUTE = st.sampled_from(
    ["none", "selective", "full", sim.Recompute("full", every=2), sim.Recompute(ops=("mlp_norm", "mlp_up"))]
)


def of_plan(plan: dict[str, Any], **more: Any) -> Scenario:
    return scenario(small_model(layers=9), small_cluster(2), sim.Plan(**plan), sim.Job(256, 32, 1), **more)


@given(plan=PLANS, framework=st.sampled_from(["none", "megatron-lm-2021", "torchtitan-2024"]))
@settings(deadline=None, max_examples=10)
def test_the_backward_pass_of_a_microbatch_frees_what_its_forward_pass_holds(plan: dict[str, Any], framework: str) -> None:
    program = program_of(of_plan(plan, framework=sim.framework(framework)))
    for order in program.orders:
        left: dict[tuple[int, int], int] = {}
        for step in order:
            ops, key = program.bodies[step.body].ops, (step.stage, step.microbatch)
            left[key] = left.get(key, 0) + sum(op.held_bytes - op.freed_bytes for op in ops)
            assert left[key] >= 0
            assert step.phase != "F" or left[key] > 0
        assert not any(left.values())


@given(plan=PLANS, recompute=RECOMPUTE)
@example(plan={"schedule": "dualpipe", "pp": 4}, recompute="selective")
@settings(deadline=None, max_examples=8)
def test_the_curve_follows_every_operation_up_to_the_peak(plan: dict[str, Any], recompute: Any) -> None:
    """It rises within a forward pass and falls, layer by layer, within the backward pass that ends it."""
    run = of_plan({**plan, "recompute": recompute}).simulate()
    for rank, steps in zip(run.memory, run.program.orders, strict=True):
        _, held = run.memory_over_time(rank.rank)
        assert (held.max(), held[0], held[-1]) == (rank.total_bytes, rank.static_bytes, rank.static_bytes)
        change = held[1:] - held[:-1]
        layers = {
            phase: sum(run.program.stages[step.stage].layers for step in steps if step.phase in phase) for phase in ("F", "BW")
        }
        assert (change > 0).sum() > layers["F"]
        assert (change < 0).sum() >= layers["BW"]


@pytest.mark.parametrize("cp_kind", ["all-gather", "ring"])
def test_the_curve_of_pairs_counts_what_a_pass_holds_for_itself_once(cp_kind: str) -> None:
    """Exchanged keys and values are freed within the forward pass that holds them; the rest of it counts from the start of its
    pair."""
    run = of_plan({"schedule": "dualpipe", "pp": 2, "cp": 2, "cp_kind": cp_kind}).simulate()
    for rank in run.memory:
        _, held = run.memory_over_time(rank.rank)
        assert (held.max(), held[0], held[-1]) == (rank.total_bytes, rank.static_bytes, rank.static_bytes)
        assert held.min() >= rank.static_bytes


@given(
    plan=PLANS, blocking=st.booleans(), sharding=st.sampled_from(["none", "zero1"]), tied=st.booleans(), rounds=st.integers(1, 4),
    recompute=RECOMPUTE,
)  # fmt: skip
@settings(deadline=None, max_examples=20)
def test_memory_is_known_before_lowering(
    plan: dict[str, Any], blocking: bool, sharding: str, tied: bool, rounds: int, recompute: Any
) -> None:
    """What one lowered microbatch and the order of slots say is what the whole program says, to the byte."""
    chosen = sim.Plan(**plan, sharding=sharding, overlap=sim.Overlap(pp=not blocking), recompute=recompute)
    of = scenario(small_model(layers=9, tied_embeddings=tied), small_cluster(2), chosen, sim.Job(256, 16 * rounds, 1))
    try:
        feasible.check(of)
    except UserError:
        return
    layout = layout_of(of)
    assert memory_of(of, layout) == Account(program_of(of), terms_of(of, layout)).memory()


def test_t11_4_a_refusal_lowers_one_microbatch_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[Any] = []
    of = tight(0.9)
    monkeypatch.setattr("simulator.simulation.simulate.program_of", lambda *args: lowered.append(args))
    with pytest.raises(Infeasible, match="GiB more than"):
        of.simulate()
    assert not lowered


def tight(times: float) -> Scenario:
    """A scenario on a GPU with so many times the memory that it needs."""

    def on(memory: str) -> Scenario:
        gpu = {"name": "l40s", "memory": memory, "reserved": "0 B"}
        shape = {"gpu": gpu, "gpus_per_node": 4, "nodes": 1, "intra_node": "NVSwitch 10 GB/s"}
        return scenario(small_model(), sim.cluster(shape), sim.Plan(dp=4))

    return on(f"{round(on('10 GiB').simulate().peak_memory_bytes * times)} B")


@pytest.mark.parametrize(("times", "said"), [(1.2, False), (1.06, False), (1.04, True), (1.0, True)])
def test_t11_4_a_plan_that_leaves_less_than_a_twentieth_is_noted(times: float, said: bool) -> None:
    run = tight(times).simulate()
    assert run.fits
    assert any("nearly full" in note for note in run.notes) == said
    assert ("LESS THAN 5% LEFT" in repr(run)) == said


def test_the_note_is_on_stderr_and_the_table_has_every_class(tmp_path: Any) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    peak = trainsim("memory", file, "--json").record["peak_memory_bytes"]
    gpu = f"cluster.gpu={{name: h100, memory: {round(1.01 * peak)} B}}"
    for command in ("run", "memory"):
        said = trainsim(command, file, "--json", "--set", gpu)
        assert said.code == 0
        assert said.record["peak_memory_bytes"] == peak
        assert "note: memory is nearly full" in said.err
        assert "nearly full" not in said.out
    said = trainsim("memory", file)
    assert said.err == ""
    for header in ("context", "NCCL", "fragmentation"):
        assert header in said.out.splitlines()[1]
    for rank in trainsim("run", file, "--json").record["memory_by_stage"]:
        assert min(rank["context_bytes"], rank["nccl_bytes"]) > 0 == rank["fragmentation_bytes"]
        state = rank["parameters_bytes"] + rank["gradients_bytes"] + rank["optimizer_bytes"] + rank["activations_bytes"]
        besides = rank["working_bytes"] + rank["context_bytes"] + rank["nccl_bytes"] + rank["fragmentation_bytes"]
        assert rank["total_bytes"] == state + besides


def test_what_fits_by_its_tensors_alone_is_refused_if_the_rest_does_not() -> None:
    """76.9 of 79.6 GiB without context, NCCL and fragmentation, as it was counted before: they make it too much."""
    small = tight(1.0)
    tensors = small.simulate().memory[0]
    gpu = {"name": "l40s", "memory": f"{tensors.total_bytes - tensors.overhead_bytes + 1} B", "reserved": "0 B"}
    shape = {"gpu": gpu, "gpus_per_node": 4, "nodes": 1, "intra_node": "NVSwitch 10 GB/s"}
    with pytest.raises(Infeasible, match="context, NCCL buffers and fragmentation"):
        scenario(small_model(), sim.cluster(shape), sim.Plan(dp=4)).simulate()


def test_what_does_not_fit_is_refused_with_how_much() -> None:
    tiny = sim.cluster({
        "gpu": {"name": "l40s", "memory": "0.2 GiB"}, "gpus_per_node": 4, "nodes": 1, "intra_node": "NVSwitch 10 GB/s",
    })  # fmt: skip
    of = scenario(small_model(), tiny, sim.Plan(dp=4))
    with pytest.raises(Infeasible, match="GiB more than") as caught:
        of.simulate()
    run = of.simulate(allow_oom=True)
    assert not run.fits
    assert caught.value.over_bytes == run.peak_memory_bytes - tiny.gpu.memory_bytes
