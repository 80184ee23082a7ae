"""When a bucket of gradients is reduced: not before everything that adds to it, and not later."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest

import simulator as sim
from simulator.simulation.run import Run

from ..small_scenarios import scenario, small_cluster, small_model

ADDS = re.compile(r"wgrad|_norm\.dgrad|norm \d sum\.dgrad")
"""What a block of the backward pass is called that adds to a gradient: products, look-ups, biases and their sums; norms in one
kernel, and the sum over tokens where a norm is written in several."""


def run_of(plan: sim.Plan, framework: str = "none", model: dict[str, object] | None = None) -> Run:
    gpus = plan.tp * plan.pp * (plan.dp or 1)
    none = sim.framework("none")
    free = {"host": none.host, "p2p_sync": False, "host_waits": (), "input_launches": 0}
    software = replace(sim.framework(framework), plan=none.plan, **free)
    return scenario(small_model(**(model or {})), small_cluster(max(1, gpus // 4)), plan, framework=software).simulate(steps=1)


def late_bucket_ns(run: Run, rank: int) -> dict[str, int]:
    """Of every bucket of layers, how long after the last kernel that adds to its gradients it is reduced."""
    rows = run.timeline.to_pandas(ranks=[rank])
    backward = rows[rows.phase.isin(["B", "I", "W"]) & (rows.stream == "compute")]
    last = backward[backward.microbatch == backward.microbatch.max()]
    found = {}
    for bucket in rows[rows.block.str.fullmatch(r"layer \d+ gradients")].itertuples():
        layer = bucket.block.removesuffix("gradients")
        adds = last[last.block.str.startswith(layer) & last.block.map(lambda name: bool(ADDS.search(name)))]
        norms = adds[adds.block.str.contains("norm")]
        first_sum = norms[norms.block.str.contains("sum")].groupby(norms.block.str.extract(r"(\w+_norm)")[0]).start_ns.min()
        unwanted = norms.block.str.contains("sum") & ~norms.start_ns.isin(first_sum)
        ready = adds.drop(norms[unwanted].index).end_ns.max()
        found[bucket.block] = int(bucket.start_ns - ready)
    return found


LAYERNORM = {"norm": "layernorm", "bias": True, "gated_mlp": False, "activation": "gelu"}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("framework", ["none", "megatron-core-2025", "megatron-lm-2021", "torchtitan-2024"])
@pytest.mark.parametrize("model", [{}, LAYERNORM], ids=["rmsnorm", "layernorm"])
@pytest.mark.parametrize(
    "plan",
    [
        sim.Plan(tp=1, pp=1, dp=4),
        sim.Plan(tp=2, pp=2, dp=2, overlap=sim.Overlap(tp=True, dp=True)),
        sim.Plan(tp=2, pp=2, dp=2, schedule="zb-h1", overlap=sim.Overlap(dp=True)),
    ],
    ids=["dp", "tp beside", "split"],
)
def test_t2_2_no_bucket_leaves_before_what_adds_to_it(framework: str, model: dict[str, object], plan: sim.Plan) -> None:
    plan = replace(plan, overlap=replace(plan.overlap, dp=True, tp=bool(plan.overlap.tp)))
    run = run_of(plan, framework, model)
    late = {rank: late_bucket_ns(run, rank) for rank in (0, run.gpus - 1)}
    assert all(late.values())
    assert all(ns >= 0 for of_rank in late.values() for ns in of_rank.values())
    assert 0 in late[run.gpus - 1].values(), "the first to be ready goes at once"


def test_t2_2_kernels_that_add_up_products_are_waited_for() -> None:
    run = run_of(sim.Plan(tp=1, pp=1, dp=4), "torchtitan-2024")
    rows: pd.DataFrame = run.timeline.to_pandas(ranks=[0])
    last = rows[(rows.phase == "B") & (rows.microbatch == rows.microbatch.max())]
    assert last.block.str.endswith("wgrad.sum").any()
    reduced = rows[rows.block == "layer 7 gradients"].start_ns.iloc[0]
    sums = last[last.block.str.startswith("layer 7 ") & last.block.str.endswith("wgrad.sum")]
    assert reduced >= sums.end_ns.max()


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_t2_5_the_whole_tied_table_is_reduced_once_after_the_data_parallel_reduction(sharding: str) -> None:
    plan = sim.Plan(tp=2, pp=2, dp=2, sharding=sharding)
    run = run_of(plan, model={"tied_embeddings": True})
    for rank in (0, run.gpus - 1):
        rows = run.timeline.to_pandas(ranks=[rank])
        tied = rows[rows.stream == "embedding"]
        assert list(tied.payload_bytes) == [4096 * 512 * 4 // 2]
        reduced = rows[rows.block.str.endswith("gradients") & (rows.stream == "dp")]
        assert tied.start_ns.iloc[0] >= reduced.end_ns.max()
        assert rows[rows.phase == "optimizer"].start_ns.min() >= tied.end_ns.iloc[0]
