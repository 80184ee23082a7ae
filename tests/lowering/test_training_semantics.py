"""The second half of docs/semantics.md, sentence by sentence, read off the timelines of small runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import simulator as sim
from simulator.config.derived import schedule_shape
from simulator.fabrics.policy import policy_on
from simulator.metrics.idle import BUBBLE, BUSY, OPTIMIZER, exposed
from simulator.program.operations import Compute
from simulator.program.slot import Exchange, Shape, Slot
from simulator.simulation.run import Run
from simulator.simulation.simulate import program_of, site_of
from simulator.simulation.slot_durations import slot_durations

from ..small_scenarios import scenario, small_cluster, small_model

TP2PP4 = {"tp": 2, "pp": 4, "dp": 1}


def run_of(plan: dict[str, Any], *, model: Any = None, cluster: Any = None, job: Any = None, steps: int = 1, **more: Any) -> Run:
    chosen = sim.Plan(**plan)
    gpus = chosen.tp * chosen.pp * (chosen.dp or 1)
    return scenario(model, cluster or small_cluster(max(1, gpus // 4)), chosen, job, **more).simulate(steps=steps)


def frame(run: Run, rank: int) -> pd.DataFrame:
    return run.timeline.to_pandas(ranks=[rank])


def slots(rows: pd.DataFrame, phase: str, stage: int | None = None) -> pd.DataFrame:
    """First start and last end of each slot of a phase, by microbatch, communication within the slot included."""
    chosen = rows[(rows.phase == phase) & (rows.stream.isin(["compute", "tp"]))]
    chosen = chosen if stage is None else chosen[chosen.stage == stage]
    return chosen.groupby("microbatch").agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))


def test_t1_1_a_transfer_is_ready_when_its_slot_ends_with_its_collective() -> None:
    run = run_of(TP2PP4)
    rows = frame(run, 0)
    sent = rows[rows.kind == "send"].set_index("microbatch")
    ends = slots(rows, "F").end_ns
    assert (sent.start_ns >= ends[sent.index]).all()
    assert sent.start_ns.iloc[0] == ends[sent.index[0]]
    exposed = run_of({**TP2PP4, "sequence_parallel": False, "overlap": sim.Overlap(tp=True)})
    rows = frame(exposed, 6)
    sent = rows[rows.kind == "send"].set_index("microbatch").start_ns
    summed = rows[rows.block == "layer 6 qkv.dgrad.reduce"].set_index("microbatch").end_ns
    assert (sent > summed[sent.index]).all()


def test_t1_2_a_transfer_does_not_wait_for_the_receiver_and_the_consumer_waits_for_it() -> None:
    run = run_of({"tp": 1, "pp": 2, "dp": 1}, cluster=small_cluster(1, gpus_per_node=2), job=sim.Job(256, 8, 1))
    sender, receiver = frame(run, 0), frame(run, 1)
    arrived = receiver[receiver.kind == "receive"].set_index("microbatch")
    busy = receiver[receiver.stream == "compute"]
    during = [((busy.start_ns < a.start_ns) & (busy.end_ns > a.start_ns)).any() for a in arrived.itertuples()]
    assert any(during), "some transfer starts while the receiver computes"
    assert (slots(receiver, "F").start_ns >= arrived.arrival_ns).all()
    sent = sender[sender.kind == "send"].set_index("microbatch")
    assert (sent.start_ns == arrived.start_ns).all()


def test_t1_3_each_edge_and_kind_is_a_stream_in_the_senders_order() -> None:
    run = run_of({"tp": 1, "pp": 4, "dp": 1, "chunks": 2, "schedule": "interleaved"}, cluster=small_cluster(1))
    rows = frame(run, 1)
    streams = set(rows[rows.kind.isin(["send", "receive"])].stream)
    assert streams == {"activation 0>1", "activation 1>2", "gradient 1>0", "gradient 2>1"}
    for _, sent in rows[rows.kind == "send"].groupby("stream"):
        made = sent.sort_values("start_ns")
        assert made.start_ns.is_monotonic_increasing
        assert list(made.task) == sorted(made.task)


@pytest.mark.parametrize(("sequence_parallel", "share"), [(False, 1), (True, 2)])
def test_t1_4_the_payload_is_bsh_divided_only_with_sequence_parallelism(sequence_parallel: bool, share: int) -> None:
    run = run_of({**TP2PP4, "sequence_parallel": sequence_parallel}, job=sim.Job(256, 16, 2))
    rows = frame(run, 0)
    assert set(rows[rows.kind == "send"].payload_bytes) == {2 * 256 * 512 * 2 // share}


def test_t1_5_bytes_hold_the_edge_and_the_propagation_of_the_links_only_what_waits() -> None:
    """What a small message takes beyond propagation, as NDR InfiniBand is known to, comes before the bytes."""
    plan = {"tp": 1, "pp": 2, "dp": 1, "rank_order": "tp-pp-dp"}
    wire_ns, propagation_ns = -(-256 * 512 * 2 // 450), 2 * 3000
    for fabric in ("ideal", "ndr-ib"):
        cluster = small_cluster(1, gpus_per_node=2, latency={"nvlink": "3 us"}, fabric=fabric)
        run = run_of(plan, cluster=cluster)
        rows = frame(run, 0)
        sent = rows[rows.kind == "send"].iloc[0]
        assert sent.arrival_ns - sent.end_ns == propagation_ns
        if fabric == "ideal":
            assert sent.end_ns - sent.start_ns == wire_ns
        else:
            known = policy_on(cluster).uncontended_time("sendrecv", "point_to_point", np.array([0, 0]), 256 * 512 * 2)
            assert known
            assert sent.arrival_ns - sent.start_ns == pytest.approx(known.seconds * 1e9, abs=2)
            assert run.engine_timeline.expansion.graph.solo_ns[sent.task] > 0


@pytest.mark.parametrize("collectives", ["fluid", "closed", "stepwise"])
def test_t1_5_gpipe_on_two_stages_pays_the_latency_once_each_way(collectives: str) -> None:
    """However many microbatches follow one another on the edge."""
    plan = {"tp": 1, "pp": 2, "dp": 1, "schedule": "gpipe"}
    how = {"job": sim.Job(256, 16, 1), "fidelity": sim.Fidelity(collectives=collectives)}
    near, far = (
        run_of(plan, cluster=small_cluster(1, gpus_per_node=2, latency={"nvlink": latency}), **how).observation.until_ns
        for latency in ("0 us", "5 ms")
    )
    assert far - near == 2 * (2 * 5_000_000)


def test_t2_1_and_2_buckets_are_reduced_when_ready_in_backward_order() -> None:
    run = run_of({"tp": 1, "pp": 2, "dp": 2}, model=small_model(layers=8))
    rows = frame(run, 0)
    reduced = rows[rows.kind == "all_reduce"].sort_values("start_ns")
    assert list(reduced.block) == [*(f"layer {i} gradients" for i in (3, 2, 1, 0)), "embedding gradients"]
    assert set(reduced.stream) == {"dp"}
    model = small_model(layers=8)
    assert set(reduced.payload_bytes) == {model.layer_parameters * 4, model.vocab * model.hidden * 4}
    last = rows[rows.phase == "B"].microbatch.max()
    backward = rows[(rows.phase == "B") & (rows.microbatch == last)]
    for layer in range(4):
        weights = backward[backward.block.str.startswith(f"layer {layer} ") & backward.block.str.endswith("wgrad")]
        bucket = reduced[reduced.block == f"layer {layer} gradients"].iloc[0]
        assert bucket.start_ns >= weights.end_ns.max()
    first = reduced.iloc[0]
    assert first.start_ns == backward[backward.block == "layer 3 attention_norm.dgrad"].end_ns.iloc[0]
    assert first.start_ns < backward.end_ns.max()


def test_t2_3_without_overlap_everything_is_reduced_after_the_last_backward() -> None:
    run = run_of({"tp": 1, "pp": 2, "dp": 2, "overlap": sim.Overlap(dp=False)})
    rows = frame(run, 0)
    reduced = rows[rows.kind == "all_reduce"]
    assert len(reduced) == 1
    assert reduced.start_ns.iloc[0] == rows[rows.phase == "B"].end_ns.max()
    model = small_model()
    assert reduced.payload_bytes.iloc[0] == (4 * model.layer_parameters + model.vocab * model.hidden) * 4


def test_t2_4_zero1_scatters_updates_shares_and_gathers() -> None:
    job = sim.Job(256, 16, 1, "bf16")
    whole, sharded = (
        run_of({"tp": 1, "pp": 1, "dp": 4, "sharding": s}, cluster=small_cluster(1), job=job) for s in ("none", "zero1")
    )
    rows = frame(sharded, 0)
    assert set(rows[rows.stream == "dp"].kind) == {"reduce_scatter", "all_gather"}
    adam = rows[rows.phase == "optimizer"].iloc[0]
    gathers = rows[rows.kind == "all_gather"]
    assert (gathers.start_ns >= adam.end_ns).all()
    assert gathers.payload_bytes.sum() == small_model().parameters * 2
    assert adam.end_ns - adam.start_ns < _adam_ns(whole) / 3
    assert sharded.memory[0].optimizer_bytes * 4 == pytest.approx(whole.memory[0].optimizer_bytes, rel=1e-6)


def _adam_ns(run: Run) -> int:
    adam = frame(run, 0).query("phase == 'optimizer'").iloc[0]
    return int(adam.end_ns - adam.start_ns)


def test_t2_5_tied_embeddings_are_all_reduced_between_the_ends() -> None:
    tied = run_of({"tp": 2, "pp": 2, "dp": 1}, model=small_model(tied_embeddings=True))
    free = run_of({"tp": 2, "pp": 2, "dp": 1})
    for rank in (0, 2):
        rows = frame(tied, rank)
        sync = rows[rows.stream == "embedding"]
        assert list(sync.payload_bytes) == [4096 * 512 * 4 // 2]
        assert (rows[rows.phase == "optimizer"].start_ns >= sync.end_ns.iloc[0]).all()
    assert "embedding" not in set(frame(free, 0).stream)


def zero_bubble(**plan: Any) -> Run:
    """Four stages in the order of ZB-H1, with a table that the first and the last hold."""
    chosen = {"tp": 1, "pp": 4, "dp": 1, "schedule": "zb-h1", "optimizer": "post-validated", **plan}
    return run_of(chosen, model=small_model(tied_embeddings=True), job=sim.Job(256, 8 * chosen["dp"], 1))


def test_t2_8_a_tied_table_is_summed_beside_the_last_weight_gradients() -> None:
    run = zero_bubble()
    summed = [rows[rows.stream == "embedding"].iloc[0] for rows in (frame(run, rank) for rank in (0, 3))]
    assert summed[0].start_ns == summed[1].start_ns
    for rank, head in ((0, "embedding.wgrad"), (3, "logits.wgrad")):
        rows = frame(run, rank)
        after = rows[(rows.phase == "W") & (rows.start_ns >= rows[rows.phase == "I"].end_ns.max())]
        of_layers = after.block.str.startswith("layer")
        table = after[~of_layers]
        assert set(table.microbatch) == set(after.microbatch)
        assert table.end_ns.max() <= after[of_layers].start_ns.min()
        assert table.block.str.contains(head).any()
        assert summed[0].start_ns >= table.end_ns.max()
    first = frame(run, 0)
    assert summed[0].start_ns < first[first.phase == "W"].start_ns.max(), "weight gradients run beside the sum"


def test_t2_8_the_same_kernels_run_in_another_order() -> None:
    early, late = zero_bubble(), zero_bubble(dp=2)
    for rank, twin in ((0, 0), (3, 6)):
        own, other = (rows[(rows.phase == "W") & (rows.stream == "compute")] for rows in (frame(early, rank), frame(late, twin)))
        assert sorted(own.block) == sorted(other.block)
        assert list(own.block) != list(other.block)


def test_t2_8_memory_and_durations_are_those_of_whole_slots() -> None:
    early, late = zero_bubble(), zero_bubble(dp=2)
    assert [of.activations_bytes for of in early.memory] == [of.activations_bytes for of in late.memory]
    scenario = early.scenario
    lasts_s = slot_durations(scenario, scenario.schedule, schedule_shape(scenario), site_of(scenario)).weight_gradient
    assert isinstance(lasts_s, tuple)
    assert lasts_s[1] == lasts_s[2] < min(lasts_s[0], lasts_s[3]), "slots of the ends include the table"


def test_t2_8_an_exchange_behind_one_of_these_slots_is_behind_all_of_it() -> None:
    """Gradients that a schedule of one's own sends after a W leave once, when all weight gradients of that slot have ended."""

    def order(rank: int, shape: Shape) -> Iterator[Slot]:
        passes = [Slot(kind, rank, m) for kind in "FI" for m in range(shape.microbatches)]
        return iter([*passes, *(Slot("W", rank, m) for m in range(shape.microbatches))])

    def exchanges(rank: int, shape: Shape) -> list[Exchange]:
        every = range(shape.microbatches)
        return (
            [Exchange(Slot("F", 0, m), (Slot("F", 0, m),)) for m in every]
            if not rank
            else [Exchange(Slot("W", 1, 1), tuple(Slot("I", 1, m) for m in every))]
        )

    mine = SimpleNamespace(order=order, exchanges=exchanges, __name__="mine")
    run = zero_bubble(tp=2, pp=2, schedule=mine, overlap=sim.Overlap(pp=False))
    last = frame(run, 2)
    sent = last[last.kind == "send"]
    before = last[(last.phase == "W") & (last.microbatch == 1)]
    assert sorted(sent.microbatch) == list(range(8))
    assert (sent.start_ns == before.end_ns.max()).any()
    assert (sent.start_ns >= before.end_ns.max()).all()


def test_t2_8_replicas_reduce_the_table_before() -> None:
    run = zero_bubble(dp=2)
    rows = frame(run, 6)
    assert rows[rows.stream == "embedding"].start_ns.min() >= rows[rows.phase == "W"].end_ns.max()


def test_t3_1_every_optimizer_waits_for_all_reductions() -> None:
    run = run_of({"tp": 2, "pp": 2, "dp": 2})
    everything = run.timeline.to_pandas()
    reductions = everything[everything.phase.isin(["B"]) | everything.block.str.endswith("gradients")]
    starts = everything[everything.phase == "optimizer"].start_ns
    assert set(starts) == {reductions.end_ns.max()}


PLANS: list[dict[str, Any]] = [
    {"tp": 2, "pp": 4, "dp": 1},
    {"tp": 2, "pp": 2, "dp": 2, "sharding": "zero1"},
    {"tp": 1, "pp": 4, "dp": 2, "chunks": 2, "schedule": "interleaved"},
    {"tp": 1, "pp": 4, "dp": 2, "overlap": sim.Overlap(pp=False, dp=False)},
    {"tp": 4, "pp": 1, "dp": 2, "overlap": sim.Overlap(tp=True)},
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("steps", [1, 2])
def test_t4_4_busy_exposed_bubble_and_optimizer_are_the_step(plan: dict[str, Any], steps: int) -> None:
    run = run_of(plan, steps=steps, perturb=(sim.Perturb(rank=1, speed=0.8),))
    assert (run.time_by_cause.ns >= 0).all()
    assert (run.time_by_cause.ns.sum(axis=1) == run.observation.window_ns).all()


def test_t4_1_to_3_idle_time_has_the_cause_that_it_has() -> None:
    """One replica, no tensor parallelism, free links: all idle time is bubble, and it is (P - 1)/(M + P - 1)."""
    fast = small_cluster(1, intra_node="NVSwitch 10 TB/s", latency={"nvlink": "0.0001 ns"})
    model = small_model(layers=4, vocab=128, hidden=2048, heads=16, kv_heads=16, ffn_hidden=8192)
    run = run_of({"tp": 1, "pp": 4, "dp": 1}, model=model, cluster=fast, job=sim.Job(512, 8, 1))
    spent = run.time_by_cause
    assert run.metrics.exposed_s["pp"] < 1e-5
    assert run.metrics.bubble_fraction == pytest.approx(3 / 11, rel=0.1)
    assert (spent.of(BUSY) + spent.of(BUBBLE) + spent.of(OPTIMIZER) + spent.of("pp") == run.observation.window_ns).all()


def test_t4_1_a_transfer_on_its_way_outlasts_what_ended_after_its_bytes() -> None:
    """Half the speed before it lets the second stage wait between microbatches, for bytes that left while it still computed."""
    cluster, perturb = small_cluster(1, gpus_per_node=2, latency={"nvlink": "5 ms"}), (sim.Perturb(rank=0, speed=0.5),)
    how = {"cluster": cluster, "job": sim.Job(256, 8, 1), "perturb": perturb}
    run = run_of({"tp": 1, "pp": 2, "dp": 1, "schedule": "gpipe"}, **how)
    pieces, _ = exposed(run.observation)
    waited = {(a, b) for which, a, b in zip(pieces.which, pieces.from_ns, pieces.until_ns, strict=True) if which == 1}
    forward = slots(frame(run, 1), "F")
    gaps = list(zip(forward.end_ns[:-1], forward.start_ns[1:], strict=True))
    assert all(begin < end for begin, end in gaps)
    assert waited >= set(gaps)


def test_t4_2_slow_links_are_exposed_and_not_bubble() -> None:
    fast = run_of({"tp": 1, "pp": 1, "dp": 4}, cluster=small_cluster(1))
    slow = run_of({"tp": 1, "pp": 1, "dp": 4}, cluster=small_cluster(1, intra_node="NVSwitch 1 GB/s"))
    assert slow.metrics.exposed_s["dp"] > 10 * fast.metrics.exposed_s["dp"]
    assert slow.metrics.bubble_fraction == fast.metrics.bubble_fraction == 0
    longer = slow.metrics.step_time_s - fast.metrics.step_time_s
    assert slow.metrics.exposed_s["dp"] - fast.metrics.exposed_s["dp"] == pytest.approx(longer, rel=1e-9)


def test_t4_2_a_transfer_is_in_progress_until_it_has_arrived() -> None:
    """Bytes over both NVLinks take hardly any time here, their propagation 0.2 ms."""
    cluster = small_cluster(1, gpus_per_node=2, latency={"nvlink": "100 us"})
    seen = run_of({"tp": 1, "pp": 2, "dp": 1}, cluster=cluster, job=sim.Job(256, 8, 1)).observation
    pieces, _ = exposed(seen)
    times = seen.timeline.times
    first = np.flatnonzero(pieces.which == 1)[0]
    task = pieces.task[first]
    assert pieces.from_ns[first] == times.start_ns[task]
    assert pieces.until_ns[first] == times.arrival_ns[task] == times.end_ns[task] + 200_000
    assert seen.until_ns == times.makespan_ns


def test_t4_3_waiting_for_a_slow_stage_is_bubble() -> None:
    even = run_of({"tp": 1, "pp": 2, "dp": 1}, cluster=small_cluster(1, gpus_per_node=2))
    uneven = run_of(
        {"tp": 1, "pp": 2, "dp": 1}, cluster=small_cluster(1, gpus_per_node=2), perturb=(sim.Perturb(rank=1, speed=0.5),)
    )
    assert uneven.metrics.bubble_fraction > even.metrics.bubble_fraction
    assert uneven.time_by_cause.of(BUBBLE)[0] > uneven.time_by_cause.of(BUBBLE)[1]


@pytest.mark.parametrize(("layers", "pp", "chunks", "shares"), [
    (8, 4, 1, [2, 2, 2, 2]),
    (9, 4, 1, [3, 2, 2, 2]),
    (11, 2, 2, [3, 3, 3, 2]),
    (10, 4, 1, [2, 3, 3, 2]),
    (126, 16, 1, [7, *[8] * 14, 7]),
    (126, 16, 4, [1, *[2] * 62, 1]),
])  # fmt: skip
def test_t5_1_layers_left_over_go_to_the_first_stages_or_embedding_and_head_count_as_layers(
    layers: int, pp: int, chunks: int, shares: list[int]
) -> None:
    schedule = "interleaved" if chunks > 1 else "1f1b"
    of = scenario(small_model(layers=layers), small_cluster(max(1, pp // 4), **({"gpus_per_node": pp} if pp < 4 else {})),
                  sim.Plan(pp=pp, chunks=chunks, schedule=schedule), sim.Job(64, pp, 1))  # fmt: skip
    stages = of.simulate().program.stages
    assert [stage.layers for stage in stages] == shares
    assert [stage.first_layer for stage in stages] == np.cumsum([0, *shares[:-1]]).tolist()
    assert [stage.embedding for stage in stages] == [True] + [False] * (len(shares) - 1)
    assert [stage.head for stage in stages] == [False] * (len(shares) - 1) + [True]


def test_t5_2_naive_is_serial() -> None:
    run = run_of({"tp": 1, "pp": 4, "dp": 1, "schedule": "naive"}, cluster=small_cluster(1))
    everything = run.timeline.to_pandas().query("stream == 'compute' and phase in ['F', 'B']").sort_values("start_ns")
    assert (everything.start_ns.iloc[1:].to_numpy() >= everything.end_ns.iloc[:-1].to_numpy()).all()


def test_t5_3_slots_run_in_the_order_of_the_schedule() -> None:
    run = run_of({"tp": 1, "pp": 4, "dp": 1}, cluster=small_cluster(1))
    rows = frame(run, 2).query("stream == 'compute' and phase in ['F', 'B']").sort_values("start_ns")
    order = [f"{phase}{m}" for phase, m in dict.fromkeys(zip(rows.phase, rows.microbatch, strict=True))]
    assert order[:6] == ["F0", "F1", "B0", "F2", "B1", "F3"]


def collectives(rows: pd.DataFrame, phase: str, layer: str = "layer 1 ") -> list[tuple[str, str]]:
    """(kind, block) of one layer's tensor-parallel collectives in one slot, in order."""
    chosen = rows[(rows.stream == "tp") & (rows.phase == phase) & (rows.microbatch == 0) & rows.block.str.startswith(layer)]
    return [(r.kind, r.block.removeprefix(layer)) for r in chosen.sort_values(["start_ns", "task"]).itertuples()]


def test_t6_1_all_reduces_stand_where_megatron_has_them() -> None:
    rows = frame(run_of({"tp": 4, "pp": 1, "dp": 1, "sequence_parallel": False}, cluster=small_cluster(1)), 0)
    assert collectives(rows, "F") == [("all_reduce", "attention_out.reduce"), ("all_reduce", "mlp_down.reduce")]
    assert collectives(rows, "B") == [("all_reduce", "mlp_up.dgrad.reduce"), ("all_reduce", "qkv.dgrad.reduce")]


def test_t6_2_embedding_and_loss_have_their_own() -> None:
    rows = frame(run_of({"tp": 4, "pp": 1, "dp": 1, "sequence_parallel": False}, cluster=small_cluster(1)), 0)
    first = rows[(rows.stream == "tp") & (rows.microbatch == 0) & (rows.phase == "F")]
    assert "embedding.reduce" in set(first.block)
    loss = first[first.block.str.startswith("cross_entropy")]
    assert list(loss.payload_bytes) == [256 * 4] * 3


def test_t6_3_sequence_parallelism_scatters_and_gathers() -> None:
    rows = frame(run_of({"tp": 4, "pp": 1, "dp": 1}, cluster=small_cluster(1)), 0)
    assert collectives(rows, "F") == [
        ("all_gather", "qkv.gather"), ("reduce_scatter", "attention_out.reduce"),
        ("all_gather", "mlp_up.gather"), ("reduce_scatter", "mlp_down.reduce"),
    ]  # fmt: skip
    assert collectives(rows, "B") == [
        ("all_gather", "mlp_down.dgrad.gather"), ("all_gather", "mlp_up.dgrad.regather"),
        ("reduce_scatter", "mlp_up.dgrad.reduce"), ("all_gather", "attention_out.dgrad.gather"),
        ("all_gather", "qkv.dgrad.regather"), ("reduce_scatter", "qkv.dgrad.reduce"),
    ]  # fmt: skip
    assert set(rows[rows.stream == "tp"].payload_bytes) == {256 * 512 * 2, 256 * 4}


def test_t6_3_a_framework_that_keeps_the_gathered_input_gathers_nothing_again() -> None:
    plan, software = {"tp": 4, "pp": 1, "dp": 1}, sim.framework({"gathered_inputs": True})
    kept, shared = (run_of(plan, cluster=small_cluster(1), **more) for more in ({"framework": software}, {}))
    assert collectives(frame(kept, 0), "F") == collectives(frame(shared, 0), "F")
    again = [one for one in collectives(frame(shared, 0), "B") if not one[1].endswith("regather")]
    assert collectives(frame(kept, 0), "B") == again
    gathered = 256 * 512 * 2  # the inputs of qkv and mlp_up of eight layers, and of the head
    assert kept.memory[0].activations_bytes - shared.memory[0].activations_bytes == 17 * gathered * 3 // 4


def test_t6_3_branches_that_gather_the_same_input_keep_what_each_has_gathered() -> None:
    model = small_model(parallel_mlp="one_norm")
    plan, software = {"tp": 4, "pp": 1, "dp": 1}, sim.framework({"gathered_inputs": True})
    rows, held = frame(run_of(plan, model=model, cluster=small_cluster(1), framework=software), 0), {}
    program = program_of(scenario(model, small_cluster(1), sim.Plan(**plan), framework=software))
    for op in next(program.bodies[step.body].ops for step in program.orders[0] if step.phase == "F"):
        held[op.operator.partition(".")[2]] = max(op.held_bytes, held.get(op.operator.partition(".")[2], 0))
    gathers = [name for _, name in collectives(rows, "F") if name.endswith(".gather")]
    assert sorted(gathers) == ["mlp_up.gather", "qkv.gather"]
    assert held["qkv"] == held["mlp_up"] == 256 * 512 * 2


def test_t20_6_frozen_layers_keep_no_gathered_input() -> None:
    job, software = sim.Job(256, 16, 1, frozen_layers=8), sim.framework({"gathered_inputs": True})
    program = program_of(scenario(small_model(), small_cluster(1), sim.Plan(tp=4, pp=1, dp=1), job, framework=software))
    ops = next(program.bodies[step.body].ops for step in program.orders[0] if step.phase == "F")
    columns = [op for op in ops if op.operator.endswith((".qkv", ".mlp_up")) and isinstance(op, Compute)]
    assert len(columns) == 2 * 8
    assert not any(op.held_bytes for op in columns)


def test_t6_4_overlap_hides_the_sum_behind_the_weight_gradient() -> None:
    exposed = run_of({"tp": 4, "pp": 1, "dp": 1}, cluster=small_cluster(1))
    hidden = run_of({"tp": 4, "pp": 1, "dp": 1, "overlap": sim.Overlap(tp=True)}, cluster=small_cluster(1))
    assert hidden.metrics.exposed_s["tp"] < exposed.metrics.exposed_s["tp"]
    assert hidden.metrics.busy_s == pytest.approx(exposed.metrics.busy_s)
    rows = frame(exposed, 0)
    kernels, comm = rows[rows.stream == "compute"], rows[rows.stream == "tp"]
    for c in comm.itertuples():
        assert not ((kernels.start_ns < c.end_ns) & (kernels.end_ns > c.start_ns)).any()
    rows = frame(hidden, 0).set_index("block")
    one = rows[(rows.phase == "B") & (rows.microbatch == 0)]
    assert one.loc["layer 1 mlp_up.wgrad"].start_ns == one.loc["layer 1 mlp_up.dgrad"].end_ns
    assert one.loc["layer 1 mlp_up.dgrad.reduce"].start_ns == one.loc["layer 1 mlp_up.dgrad"].end_ns
    assert one.loc["layer 1 mlp_norm.dgrad"].start_ns >= one.loc["layer 1 mlp_up.dgrad.reduce"].end_ns
    assert one.loc["layer 1 mlp_up.dgrad.regather"].start_ns <= one.loc["layer 1 mlp_up.dgrad"].start_ns


def test_t6_4_the_weight_gradient_waits_for_the_gather_of_its_kept_input() -> None:
    """On slow links the gather ends long after the input gradient beside it."""
    slow = small_cluster(1, intra_node="NVSwitch 5 GB/s")
    rows = frame(run_of({"tp": 4, "pp": 1, "dp": 1, "overlap": sim.Overlap(tp=True)}, cluster=slow), 0).set_index("block")
    one = rows[(rows.phase == "B") & (rows.microbatch == 0)]
    for layer in range(8):
        for product in ("qkv", "mlp_up"):
            name = f"layer {layer} {product}"
            gathered, computed = one.loc[f"{name}.dgrad.regather"].end_ns, one.loc[f"{name}.dgrad"].end_ns
            assert computed < gathered <= one.loc[f"{name}.wgrad"].start_ns


def test_t6_4_a_split_weight_gradient_waits_for_the_gather_of_its_kept_input() -> None:
    """Without an input gradient beside it the gather is exposed, with overlap or without."""
    slow = small_cluster(2, gpus_per_node=2, intra_node="NVSwitch 5 GB/s")
    plan = {"tp": 2, "pp": 2, "dp": 1, "schedule": "zb-h1", "sequence_parallel": True, "overlap": sim.Overlap(tp=True)}
    rows = frame(run_of(plan, cluster=slow), 0)
    split = rows[rows.phase == "W"].set_index(["microbatch", "block"])
    gathers = [(microbatch, name) for microbatch, name in split.index if name.endswith(".regather")]
    assert gathers
    for microbatch, name in gathers:
        gathered = split.loc[(microbatch, name)].end_ns
        assert gathered <= split.loc[(microbatch, name.removesuffix(".regather"))].start_ns
