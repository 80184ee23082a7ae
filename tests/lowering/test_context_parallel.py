"""Section 15 of the second half of docs/semantics.md: volumes, flop, memory and times of context parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.kernels import Attention, Part, Rowwise, Split
from simulator.plan.mesh import Mesh
from simulator.program.operations import AnyOp, Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import prices_of, program_of
from simulator.workload.framework import Framework

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

HEADS, KV_HEADS, DEPTH, WIDTH = 8, 4, 64, 2
"""Of `small_model`, in bf16."""
KINDS: dict[str, dict[str, Any]] = {
    "ring": {"cp_kind": "ring"},
    "all-gather": {"cp_kind": "all-gather"},
    "ulysses": {"cp_kind": "ulysses"},
    "mixed": {"cp_kind": "mixed", "cp_ulysses": 2},
}


def shared(
    cp: int = 4, kind: str = "ring", *, length: int = 1024, batch: int = 1, microbatches: int = 1, **plan: Any
) -> Scenario:
    """One replica of a model of two layers on sequences that `cp` ranks share."""
    chosen = sim.Plan(cp=cp, dp=1, **(KINDS[kind] if cp > 1 else {}), **plan)
    gpus = chosen.tp * chosen.pp * cp
    cluster = small_cluster(-(-gpus // 4), gpus_per_node=min(4, gpus))
    return scenario(small_model(layers=2), cluster, chosen, sim.Job(length, batch * microbatches, batch))


def ops_of(program: Program) -> list[AnyOp]:
    """All operations of the first pipeline rank, in the order of its steps."""
    return [op for step in program.orders[0] for op in program.bodies[step.body].ops]


def of_attention(of: Scenario, part: Part) -> list[AnyOp]:
    """The operations of attention in the first layer."""
    return [op for op in ops_of(program_of(of)) if op.operator == "0.attention" and op.part is part]


def moved(ops: list[AnyOp], kind: str = "") -> int:
    """Payload of the collectives of the axis cp."""
    found = [op for op in ops if isinstance(op, Collective) and op.communicator.startswith("cp")]
    return sum(op.payload_bytes for op in found if kind in ("", op.kind))


def kernels(ops: list[AnyOp]) -> list[Attention]:
    return [op.kernel for op in ops if isinstance(op, Compute) and isinstance(op.kernel, Attention)]


BOTH = (Part.FORWARD, Part.INPUT_GRADIENT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tp", [1, 2])
def test_t15_1_all_but_attention_is_that_of_a_sequence_of_a_share_of_the_tokens(kind: str, tp: int) -> None:
    """Kernels, collectives of tp, transfers between stages and what is held: with cp 4 as with a quarter of the sequence."""

    def others(of: Scenario) -> list[AnyOp]:
        found = [op for op in ops_of(program_of(of)) if not op.operator.endswith("attention") and op.part is not Part.OPTIMIZER]
        return [replace(op, freed_bytes=0) for op in found]

    whole = shared(4, kind, tp=tp, pp=2, microbatches=2)
    assert others(whole) == others(shared(1, length=256, tp=tp, pp=2, microbatches=2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cp", [4, 8])
@pytest.mark.parametrize("part", BOTH)
def test_t15_2_a_rank_has_an_equal_part_of_the_flop_of_causal_attention(kind: str, cp: int, part: Part) -> None:
    if kind == "ulysses" and cp == 8:
        kind = "mixed"
    found, (alone,) = kernels(of_attention(shared(cp, kind), part)), kernels(of_attention(shared(1), part))
    assert sum(kernel.flop for kernel in found) * cp == alone.flop
    assert sum(kernel.model_flop for kernel in found) * cp == alone.model_flop


def test_t15_2_mfu_counts_the_flop_of_the_model_once() -> None:
    for kind in KINDS:
        metrics = shared(4, kind).simulate().metrics
        assert metrics.hfu == pytest.approx(metrics.mfu)


@pytest.mark.parametrize("cp", [2, 4, 8, 16])
@pytest.mark.parametrize("part", BOTH)
def test_t15_3_the_steps_of_a_ring_have_equal_flop(cp: int, part: Part) -> None:
    steps = kernels(of_attention(shared(cp), part))
    assert len({kernel.flop for kernel in steps}) == 1
    chunk = 512 // cp
    shapes = [(queries * chunk, keys * chunk) for queries, keys, _ in seen_in_steps(cp, cp // 2, 1)]
    assert [(kernel.seq, kernel.keys) for kernel in steps[:: 1 if part is Part.FORWARD else -1]] == shapes
    assert sum(kernel.diagonal for kernel in steps) == 1


def seen_in_steps(cp: int, rank: int, chunk: int) -> list[tuple[int, int, int]]:
    """Queries, keys and scores below the diagonal of each step of a rank in a ring, enumerated token by token."""

    def tokens(of: int) -> list[int]:
        return [c * chunk + i for c in (of, 2 * cp - 1 - of) for i in range(chunk)]

    steps = []
    for step in range(cp):
        scores = [(q, k) for q in tokens(rank) for k in tokens((rank - step) % cp) if k <= q]
        steps.append((len({q for q, _ in scores}), len({k for _, k in scores}), len(scores)))
    return steps


@given(st.integers(2, 6), st.data())
@settings(max_examples=10)
def test_t15_3_chunks_from_both_ends_balance_every_step_of_every_rank(cp: int, data: st.DataObject) -> None:
    rank, chunk = data.draw(st.integers(0, cp - 1)), data.draw(st.integers(1, 5))
    first, *later = seen_in_steps(cp, rank, chunk)
    assert first == (2 * chunk, 2 * chunk, chunk * (2 * chunk + 1))
    all_queries, all_keys = (2 * chunk, chunk, 2 * chunk * chunk), (chunk, 2 * chunk, 2 * chunk * chunk)
    assert later == [all_queries] * rank + [all_keys] * (cp - 1 - rank)


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("batch", [1, 2])
def test_t15_4_a_ring_passes_on_keys_and_values_and_backward_their_gradients(cp: int, tp: int, batch: int) -> None:
    of = shared(cp, tp=tp, batch=batch)
    share_bytes = 2 * batch * (1024 // cp) * KV_HEADS // tp * DEPTH * WIDTH
    assert moved(of_attention(of, Part.FORWARD)) == (cp - 1) * share_bytes
    assert moved(of_attention(of, Part.INPUT_GRADIENT)) == 2 * (cp - 1) * share_bytes
    backward = [op.payload_bytes for op in of_attention(of, Part.INPUT_GRADIENT) if isinstance(op, Collective)]
    assert backward == [share_bytes, *[2 * share_bytes] * (cp - 2), share_bytes]


def rows_of(run: Run, phase: str) -> Any:
    rows = run.timeline.to_pandas(ranks=[0])
    return rows[(rows.phase == phase) & rows.block.str.startswith("layer 0 attention") & ~rows.block.str.contains("_")]


def test_t15_5_an_exchange_runs_beside_its_step_and_the_next_step_waits_for_it() -> None:
    for phase in "FB":
        rows = rows_of(shared(4, length=16384).simulate(steps=1), phase)
        suffix = "" if phase == "F" else ".dgrad"
        at = rows.set_index(rows.block.str.removeprefix(f"layer 0 attention{suffix}"))
        for i in range(3 if phase == "F" else 4):
            step, exchange = at.loc[f".step {i}" if i else ""], at.loc[f".exchange {i}"]
            assert exchange.start_ns <= step.start_ns
            assert exchange.end_ns > step.start_ns
            if i < 3:
                assert at.loc[f".step {i + 1}"].start_ns >= max(exchange.end_ns, step.end_ns)
            if phase == "B" and i:
                assert at.loc[f".step {i}.merge"].start_ns >= exchange.end_ns


def test_t15_5_without_overlap_every_exchange_is_exposed() -> None:
    in_line, beside = (shared(4, length=16384, overlap=sim.Overlap(cp=cp)).simulate(steps=1) for cp in (False, True))
    rows = in_line.timeline.to_pandas(ranks=[0])
    exchanges = rows[rows.kind == "exchange"]
    assert in_line.metrics.exposed_s["cp"] == pytest.approx((exchanges.end_ns - exchanges.start_ns).sum() * 1e-9)
    assert beside.metrics.exposed_s["cp"] < in_line.metrics.exposed_s["cp"] / 4
    assert beside.metrics.step_time_s < in_line.metrics.step_time_s


@pytest.mark.parametrize("part", BOTH)
def test_t15_6_a_merge_reads_two_tensors_and_writes_one(part: Part) -> None:
    ops = of_attention(shared(4), part)
    merges = [op.kernel for op in ops if op.purpose is Purpose.MERGE and isinstance(op, Compute)]
    later = [kernel for kernel in kernels(ops) if not kernel.diagonal]
    later = later if part is Part.FORWARD else kernels(ops)[1:]
    assert len(merges) == 3
    for merge, kernel in zip(merges, later, strict=True):
        elements = kernel.seq * HEADS * DEPTH + (part is not Part.FORWARD) * 2 * kernel.keys * KV_HEADS * DEPTH
        assert isinstance(merge, Rowwise)
        assert merge.traffic_bytes == 3 * WIDTH * elements


@pytest.mark.parametrize("part", BOTH)
def test_t15_6_gradients_of_keys_are_added_once_those_of_earlier_steps_have_arrived(part: Part) -> None:
    """The kernel behind a step waits for the step, and in the backward pass for the exchange beside it."""
    name = "0.attention" if part is Part.FORWARD else "0.attention.dgrad"
    waits = {op.name: op.after for op in of_attention(shared(4), part) if op.name.endswith(".merge")}
    assert waits == {
        f"{name}.step {i}.merge": (f"{name}.step {i}", *((f"{name}.exchange {i}",) if part is not Part.FORWARD else ()))
        for i in (1, 2, 3)
    }


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("tp", [1, 2])
def test_t15_7_all_gather_gathers_in_both_passes_and_scatters_gradients(cp: int, tp: int) -> None:
    of = shared(cp, "all-gather", tp=tp)
    whole_bytes = 2 * 1024 * KV_HEADS // tp * DEPTH * WIDTH
    forward, backward = (of_attention(of, part) for part in BOTH)
    assert (moved(forward, "all_gather"), moved(forward)) == (whole_bytes, whole_bytes)
    assert (moved(backward, "all_gather"), moved(backward, "reduce_scatter")) == (whole_bytes, whole_bytes)
    run = of.simulate(steps=1)
    rows = run.timeline.to_pandas(ranks=[0])
    ours = rows[rows.stream == "cp"]
    assert run.metrics.exposed_s["cp"] == pytest.approx((ours.end_ns - ours.start_ns).sum() * 1e-9)


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (8, 1), (4, 2)])
def test_t15_8_ulysses_exchanges_tokens_for_heads_and_copies_key_heads(cp: int, tp: int) -> None:
    of = shared(cp, "ulysses", tp=tp)
    forward, backward = (of_attention(of, part) for part in BOTH)
    row_bytes = 1024 // cp * DEPTH * WIDTH
    copied = max(KV_HEADS // tp, cp)
    sizes = [HEADS // tp * row_bytes, copied * row_bytes, copied * row_bytes, HEADS // tp * row_bytes]
    assert [op.payload_bytes for op in forward if isinstance(op, Collective)] == sizes
    assert [op.payload_bytes for op in backward if isinstance(op, Collective)] == [sizes[3], *sizes[:3]]
    assert {op.kind for op in (*forward, *backward) if isinstance(op, Collective)} == {"alltoall"}
    (kernel,) = kernels(forward)
    assert (kernel.seq, kernel.heads, kernel.kv_heads) == (1024, HEADS // tp // cp, copied // cp)


@pytest.mark.parametrize("kind", ["sliding", "chunked"])
def test_t15_8_a_window_is_that_of_whole_sequences_with_ulysses(kind: str) -> None:
    """Below, at and above the tokens of a rank (128), and at and above the sequence: flop and words as for a share of heads."""
    lasted = []
    for window in (64, 127, 128, 129, 256, 1023, 1024, 2048, 0):
        model = small_model(layers=2, kv_heads=8, window=window, window_kind=kind if window else "sliding")
        of, whole = (replace(shared(cp, "ulysses"), model=model) for cp in (8, 1))
        for part in BOTH:
            (found,), (alone,) = (kernels(of_attention(one, part)) for one in (of, whole))
            assert found == alone.split(Split.INNER, 8)
            assert 8 * found.flop == alone.flop
            assert found.shape == alone.split(Split.INNER, 8).shape
        lasted.append(of.simulate().metrics.step_time_s)
    assert lasted == sorted(lasted)
    assert lasted[-3] == lasted[-2] == lasted[-1]
    assert lasted[0] < lasted[-1]


def test_t15_8_copies_of_key_heads_are_kept_and_the_result_for_the_heads_of_a_rank() -> None:
    ring, ulysses = (of_attention(shared(8, kind), Part.FORWARD) for kind in ("ring", "ulysses"))
    copies = (8 - KV_HEADS) * 2 * 128 * DEPTH * WIDTH
    kept = [sum(op.held_bytes - op.freed_bytes for op in ops) for ops in (ring, ulysses)]
    result = 128 * HEADS * DEPTH * WIDTH
    assert kept[1] - kept[0] == copies + result


def test_t15_9_mixed_exchanges_heads_among_neighbours_and_rings_across() -> None:
    of = shared(8, "mixed")
    program = program_of(of)
    mesh = Mesh.of({"cp": 8}, "tp-cp-ep-dp-pp")
    heads, ring = (program.communicators[name] for name in ("cp heads", "cp ring"))
    groups = [mesh.groups(c.axes, c.pipeline, c.size, c.stride).tolist() for c in (heads, ring)]
    assert groups == [[[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]]
    forward = of_attention(of, Part.FORWARD)
    share = 128 * DEPTH * WIDTH
    assert moved(forward, "alltoall") == (2 * HEADS + 2 * KV_HEADS) * share
    assert moved(forward, "exchange") == 3 * 2 * KV_HEADS * share
    assert {(kernel.heads, kernel.kv_heads) for kernel in kernels(forward)} == {(4, 2)}


def test_t15_9_neighbours_are_the_ranks_of_a_node_if_not_stated() -> None:
    of = scenario(small_model(layers=2), small_cluster(4), sim.Plan(tp=2, cp=8, cp_kind="mixed"), sim.Job(1024, 1))
    assert program_of(of).communicators["cp heads"].size == 2
    wide = replace(of, plan=sim.Plan(cp=16, cp_kind="mixed"))
    assert program_of(wide).communicators["cp heads"].size == 4
    six = scenario(small_model(layers=2), small_cluster(4, gpus_per_node=6), sim.Plan(cp=8, cp_kind="mixed"), sim.Job(1024, 3))
    assert program_of(six).communicators["cp heads"].size == 2, "ranks 4 to 7 are on two nodes"


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "fsdp"])
def test_t15_10_gradients_are_reduced_and_the_optimizer_divided_over_dp_and_cp(sharding: str) -> None:
    """Two replicas of two ranks are to the gradients what four replicas are."""

    def optimizer(plan: sim.Plan) -> tuple[list[AnyOp], int]:
        of = scenario(small_model(layers=2), small_cluster(1), plan, sim.Job(512, 2 * (plan.dp or 1)))
        found = [op for op in ops_of(program_of(of)) if op.part is Part.OPTIMIZER]
        return found, of.simulate().memory[0].optimizer_bytes

    assert optimizer(sim.Plan(cp=2, dp=2, sharding=sharding)) == optimizer(sim.Plan(cp=1, dp=4, sharding=sharding))


def test_t15_10_the_ranks_of_cp_are_in_the_shard_group_of_their_replica() -> None:
    plan = sim.Plan(cp=2, dp=2, sharding=sim.Sharding("zero1", group=1))
    of = scenario(small_model(layers=2), small_cluster(1), plan, sim.Job(512, 4))
    whole = scenario(small_model(layers=2), small_cluster(1), sim.Plan(dp=4), sim.Job(512, 4)).simulate().memory[0]
    halved = of.simulate().memory[0]
    assert halved.optimizer_bytes == -(-whole.optimizer_bytes // 2)
    shares = [op for op in ops_of(program_of(of)) if isinstance(op, Collective) and op.communicator == "dp replicas"]
    scattered = [op for op in ops_of(program_of(of)) if isinstance(op, Collective) and op.kind == "reduce_scatter"]
    assert [2 * op.payload_bytes for op in shares] == [op.payload_bytes for op in scattered]


@pytest.mark.parametrize("part", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_t15_11_what_arrives_is_held_until_it_has_been_used(kind: str, part: Part) -> None:
    alive = peak = 0
    for op in of_attention(shared(4, kind), part):
        kept = op.held_bytes if isinstance(op, Collective) or part is not Part.FORWARD else 0
        alive += kept
        peak = max(peak, alive)
        alive -= op.freed_bytes
    share_bytes = 2 * 256 * KV_HEADS * DEPTH * WIDTH
    expected = {
        ("ring", Part.FORWARD): 2, ("ring", Part.INPUT_GRADIENT): 4, ("all-gather", Part.FORWARD): 4,
        ("all-gather", Part.INPUT_GRADIENT): 8, ("mixed", Part.FORWARD): 1, ("mixed", Part.INPUT_GRADIENT): 2,
    }  # fmt: skip
    assert peak == expected.get((kind, part), 0) * share_bytes
    assert alive == 0


def in_fp32(cp: int, part: Part, **more: Any) -> list[AnyOp]:
    """The operations of attention in a ring that adds up in fp32."""
    return of_attention(replace(shared(cp, **more), framework=Framework(fp32_rings=True)), part)


def operators(part: Part, kernel: Attention, share: int, *, first: bool, last: bool) -> Iterator[tuple[int, ...]]:
    """The tensors that PyTorch's operators read and write in a step of a ring besides attention: bytes of each tensor."""
    queries, keys = kernel.seq * HEADS * DEPTH, kernel.keys * KV_HEADS * DEPTH
    all_queries, all_keys = share * HEADS * DEPTH, share * KV_HEADS * DEPTH
    if part is Part.FORWARD:
        yield 2 * queries, 4 * queries  # out.to(float32)
        if not first:
            yield 4 * queries, 4 * queries, 4 * queries  # out - block_out
            yield 4 * queries, 4 * queries  # sigmoid of statistics times that
            yield 4 * queries, 4 * queries, 4 * queries  # out less that
        if queries < all_queries:
            yield 4 * all_queries, 4 * all_queries  # torch.cat of the halves
    else:
        for gradient, whole, may_be_half in (
            (queries, all_queries, True),
            (keys, all_keys, not first),
            (keys, all_keys, not first),
        ):
            yield 4 * gradient, 2 * gradient, 4 * gradient  # in place, of a gradient in 16 bits
            if gradient < whole and may_be_half:
                yield 4 * whole, 4 * whole
        yield 2 * 4 * all_keys, 2 * 4 * all_keys  # torch.cat of the gradients of keys and values
        if last:
            yield from ((4 * whole, 2 * whole) for whole in (all_queries, all_keys, all_keys))
    if not last:
        yield 2 * 2 * all_keys, 2 * 2 * all_keys  # torch.cat of keys and values


@pytest.mark.parametrize("part", BOTH)
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_t15_15_what_pytorch_adds_up_in_fp32_is_counted_operator_by_operator(cp: int, part: Part) -> None:
    ops = in_fp32(cp, part)
    merges = [op.kernel for op in ops if op.purpose is Purpose.MERGE and isinstance(op, Compute)]
    assert len(merges) == cp == len(kernels(ops))
    for i, (merge, kernel) in enumerate(zip(merges, kernels(ops), strict=True)):
        tensors = operators(part, kernel, 1024 // cp, first=i == 0, last=i == cp - 1)
        assert merge.traffic_bytes == pytest.approx(sum(map(sum, tensors)))
    assert [kernel.model_flop for kernel in kernels(ops)] == [
        kernel.model_flop for kernel in kernels(of_attention(shared(cp), part))
    ]


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("batch", [1, 2])
def test_t15_15_gradients_make_a_hop_more_in_fp32(cp: int, batch: int) -> None:
    share_bytes = 2 * batch * (1024 // cp) * KV_HEADS * DEPTH * WIDTH
    assert moved(in_fp32(cp, Part.FORWARD, batch=batch)) == (cp - 1) * share_bytes
    backward = [op for op in in_fp32(cp, Part.INPUT_GRADIENT, batch=batch) if isinstance(op, Collective)]
    assert sum(op.payload_bytes for op in backward) == (cp - 1) * share_bytes + cp * 2 * share_bytes
    assert (backward[-1].payload_bytes, backward[-1].detached) == (2 * share_bytes, False)


@pytest.mark.parametrize("balance", [True, False])
def test_t15_15_such_a_ring_takes_longer_and_folds(balance: bool) -> None:
    chosen = shared(4, length=4096, cp_balance=balance)
    wide = replace(chosen, framework=Framework(fp32_rings=True))
    assert wide.simulate().metrics.step_time_s > chosen.simulate().metrics.step_time_s
    both(*bound_twice(wide)).assert_equal()


def test_t15_15_only_rings_do_so() -> None:
    for kind in ("all-gather", "ulysses"):
        chosen = shared(4, kind)
        assert program_of(replace(chosen, framework=Framework(fp32_rings=True))) == program_of(chosen)


def left_after(of: Scenario, passes: str) -> int:
    """Bytes that the first microbatch leaves on the first pipeline rank after some passes, such as F and I."""
    program = program_of(of)
    bodies = [program.bodies[step.body] for step in program.orders[0] if step.phase and step.phase in passes]
    return sum(op.held_bytes - op.freed_bytes for body in bodies for op in body.ops)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_t11_1_weight_gradients_need_nothing_that_attention_has_of_other_ranks(kind: str, recompute: str) -> None:
    """A rank that shares sequences leaves as much for W as one with as many tokens of its own, repeated or not."""
    alone, sharing, repeating = (
        left_after(shared(cp, kind, length=256 * cp, schedule="zb-h1", recompute=words), "FI")
        for cp, words in ((1, "none"), (4, "none"), (4, recompute))
    )
    assert alone == sharing == repeating > 0


@pytest.mark.parametrize("recompute", ["none", "selective", "per-op", "full"])
def test_t12_2_both_chunks_of_gathered_attention_keep_what_one_kernel_keeps(recompute: str) -> None:
    gathered, alone = (left_after(shared(cp, "all-gather", length=256 * cp, recompute=recompute), "F") for cp in (4, 1))
    assert gathered == alone > 0


def test_t15_12_waiting_for_an_exchange_is_exposed_and_waiting_for_a_slower_member_imbalance() -> None:
    of = shared(4, length=16384)
    slowed = replace(of, perturb=(sim.Perturb(rank=2, speed=0.5),)).simulate(steps=1).metrics
    assert of.simulate(steps=1).metrics.imbalance_s["cp"] == 0
    assert slowed.imbalance_s["cp"] > 0.1 * slowed.step_time_s
    assert shared(4, "ulysses").simulate(steps=1).metrics.exposed_s["cp"] > 0


COMBINED: dict[str, tuple[dict[str, Any], str, str]] = {
    "durations of slots": ({"schedule": "zb-auto"}, "none", "bf16"),
    "pairs of slots": ({"schedule": "dualpipe"}, "none", "bf16"),
    "copies of stages": ({"schedule": "chimera", "sharding": "zero1", "cp_kind": "ulysses"}, "none", "bf16"),
    "steps that overlap": ({"schedule": "zb-h1", "optimizer": "post-validated", "cp_kind": "all-gather"}, "none", "bf16"),
    "blocking": ({"overlap": sim.Overlap(pp=False, dp=False), "recompute": "none"}, "torchtitan-2024", "bf16"),
    "narrow": ({"schedule": "interleaved", "chunks": 2, "sharding": "zero1"}, "megatron-core-2025", "fp8"),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", COMBINED)
def test_context_parallelism_goes_with_schedules_and_frameworks(name: str) -> None:
    plan, framework, dtype = COMBINED[name]
    chosen = sim.Plan(cp=2, pp=4, dp=1, **plan)
    of = scenario(None, None, chosen, sim.Job(512, 16, dtype=dtype), framework=sim.framework(framework))
    both(*bound_twice(of)).assert_equal()
    metrics = of.simulate().metrics
    assert metrics.hfu == pytest.approx(metrics.mfu)


@pytest.mark.slow
def test_a_million_tokens_are_shared_by_64_ranks() -> None:
    plan = sim.Plan(tp=2, cp=64, sharding="zero1")
    run = sim.simulate(sim.model("llama3-8b"), sim.cluster("dgx-h100", nodes=16), plan, sim.Job(2**20, 1))
    share = 2**20 // 64
    assert run.fits
    assert {(kernel.seq, kernel.keys) for kernel in kernels(ops_of(run.program))} == {
        (share, share), (share, share // 2), (share // 2, share)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cp": 4, "kind": "ring", "length": 1020}, "1020 tokens do not divide into 8 chunks"),
        ({"cp": 4, "kind": "ring", "length": 1032, "tp": 4}, "258 tokens of a context-parallel rank do not divide by tp 4"),
        ({"cp": 16, "kind": "ulysses"}, "plan.cp: 16 does not divide the heads"),
        ({"cp": 2, "kind": "mixed"}, "plan.cp_ulysses: 2 does not divide cp 2"),
    ],
)
def test_what_does_not_divide_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        feasible.check(shared(**changes))


def test_a_step_on_as_many_earlier_keys_takes_what_attention_without_a_mask_takes() -> None:
    cost = prices_of(shared())
    for part in BOTH:
        full = Attention(1, 4096, 8, 4, 64, causal=False, element_bytes=2, part=part)
        step = replace(full, causal=True, prefix=4096, diagonal=False)
        assert (step.flop, step.traffic_bytes, cost(step)) == (full.flop, full.traffic_bytes, cost(full))
        assert step.model_flop == 2 * full.model_flop
