"""Where a hot or a slow rank appears, bytes of exchanges under other parallelism, and drawn routing with one hot rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.lowering.passes.expert_parallel import touched
from simulator.lowering.routing import drawn, with_one_hot_rank
from simulator.metrics.idle import imbalance
from simulator.program.operations import Collective, Purpose
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of

from ..small_scenarios import scenario, small_cluster, small_model

LAYERS, HIDDEN, EXPERTS, CHOSEN, SEQ, BYTES = 2, 512, 8, 2, 256, 2
MIXTURE = {"experts": EXPERTS, "experts_per_token": CHOSEN, "expert_ffn_hidden": 704}


def of(plan: dict[str, Any], batch: int = 16, nodes: int = 2, seq: int = SEQ, **more: Any) -> Scenario:
    model = small_model(layers=LAYERS, **{**MIXTURE, **more.pop("model", {})})
    chosen = scenario(model, small_cluster(nodes), sim.Plan(**plan), sim.Job(seq, batch, 1), **more)
    feasible.check(chosen)
    return chosen


def waited(run: Run, cause: str) -> np.ndarray:
    """Nanoseconds of every rank."""
    each: np.ndarray = run.time_by_cause.of(cause)[run.engine_timeline.class_of]
    return each


@pytest.mark.parametrize(("tp", "cp", "ep", "etp"), [(2, 1, 4, 2), (2, 1, 4, 1), (1, 2, 4, 1), (2, 2, 2, 2)])
def test_t17_4_payloads_of_a_step(tp: int, cp: int, ep: int, etp: int) -> None:
    """k T h elements four times per layer and microbatch, where the tokens of a sequence are divided by tp and cp too.

    With etp, the rows of etp ranks are gathered and scattered as often.
    """
    rows = of({"tp": tp, "cp": cp, "ep": ep, "etp": etp}).simulate(steps=1).timeline.to_pandas(ranks=[0])
    rows = rows[rows.block.str.contains("dispatch|combine", regex=True)]
    microbatches = 16 * tp * cp // 8
    copies = SEQ // (tp * cp) * CHOSEN * HIDDEN * BYTES
    found = rows.groupby("stream").payload_bytes.sum().to_dict()
    times = 4 * LAYERS * microbatches
    assert found == {"ep": times * copies, **({"etp": times * copies * etp} if etp > 1 else {})}


def test_t17_4_bytes_on_a_link() -> None:
    """Of each payload (ep - 1) / ep leave the GPU: four exchanges for each layer of four more microbatches."""

    def left(batch: int) -> float:
        chosen = of({"ep": 4, "moe": sim.Moe(capacity=1)}, batch=batch, nodes=1)
        link = chosen.cluster.link_named("node0/gpu0>node0/nvswitch")
        return float(chosen.simulate().network.bytes[link])

    payload = SEQ * CHOSEN * HIDDEN * BYTES
    assert left(32) - left(16) == pytest.approx(4 * 4 * LAYERS * payload * 3 / 4, rel=1e-9)


def test_t17_10_bytes_of_deepep_under_context_parallelism() -> None:
    """The expected numbers of nodes and of GPUs that a token touches, for the tokens of a context-parallel rank."""
    chosen = of({"cp": 2, "ep": 8, "moe": sim.Moe(dispatcher="deepep")}, model={"experts": 32})
    ops = (op for body in program_of(chosen).bodies.values() for op in body.ops if isinstance(op, Collective))
    found = {op.communicator: op.payload_bytes for op in ops}
    token_bytes = SEQ // 2 * HIDDEN * BYTES
    assert found["ep across"] == -(-touched(2, 16, 2) * token_bytes // 1)
    assert found["ep inside"] == -(-touched(8, 4, 2) * token_bytes // 1)


def test_t2_6_experts_of_two_directions_are_reduced_where_they_have_no_other_copies() -> None:
    chosen = of({"pp": 2, "ep": 4, "schedule": "dualpipe"})
    program = program_of(chosen)
    reduced = [op for body in program.bodies.values() for op in body.ops if op.purpose is Purpose.REDUCE_GRADIENTS]
    groups = {op.communicator for op in reduced if isinstance(op, Collective)}
    assert {f"copies of experts of stage {stage}" for stage in (0, 1)} < groups <= set(program.communicators)
    assert chosen.simulate().metrics.exposed_s["ep"] > 0


def test_t17_3_with_equal_tokens_the_ranks_of_a_stage_are_one_class() -> None:
    run = of({"pp": 2, "ep": 4}).simulate()
    assert run.engine_reason.startswith("2 classes of 8 ranks")
    assert (waited(run, imbalance("ep")) == 0).all()


def test_t17_11_ranks_wait_for_the_hot_rank_of_their_group() -> None:
    """The rank with most rows waits least, and every other rank waits for its experts: one draw, given to all layers."""
    drawing = of({"ep": 4, "moe": sim.Moe("drawn", concentration=2.0)}, seq=1024)
    shares = np.random.default_rng([0, 0]).dirichlet(np.full(EXPERTS, 2.0))
    hot = int(drawn(drawing.model, drawing.plan, 1024, 0).sum(axis=0).argmax())
    ns = waited(of({"ep": 4, "moe": sim.Moe(tuple(shares.tolist()))}, seq=1024).simulate(), imbalance("ep"))
    for group in (ns[:4], ns[4:]):
        assert group.argmin() == hot
        assert (np.delete(group, hot) > 10 * group[hot]).all()


def test_t17_4_ranks_wait_for_a_slow_gpu_with_experts() -> None:
    """Its group waits for it in imbalance of ep; the other groups wait for the gradients of all, in imbalance of dp."""
    run = of({"ep": 4}, seq=1024, perturb=(sim.Perturb(rank=2, speed=0.5),)).simulate()
    of_ep, of_dp = (waited(run, imbalance(axis)) for axis in ("ep", "dp"))
    assert of_ep[2] == 0
    assert (np.delete(of_ep[:4], 2) > 0.3 * waited(run, "busy")[0]).all()
    assert (of_ep[4:] == 0).all()
    assert (of_dp[4:] > of_ep[0]).all()
    assert of_dp[:4].max() < of_ep[0]


@settings(max_examples=10)
@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_t17_14_all_but_the_hottest_rank_are_alike(ranks: int, seed: int) -> None:
    """Sums change by rounding only: up, by less than a row for each pair of ranks."""
    before = np.random.default_rng(seed).integers(0, 100, (ranks, ranks))
    hottest, hot = int(before.sum(axis=0).argmax()), seed % ranks
    after = with_one_hot_rank(before, hot)
    assert 0 <= after[:, hot].sum() - before[:, hottest].sum() < ranks
    assert 0 <= after.sum() - before.sum() < ranks * ranks
    others = np.delete(np.arange(ranks), hot)
    assert len(set(after[np.ix_(others, others)].ravel().tolist())) == 1
    assert len(set(after[others, hot].tolist())) == len(set(after[hot, others].tolist())) == 1
    assert after[hot, hot] == before[hottest, hottest]


def test_t17_14_one_hot_rank_takes_about_as_long_as_all() -> None:
    """The most loaded rank decides; the links that the other ranks fill differ a little."""
    chosen = of({"pp": 2, "ep": 4, "moe": sim.Moe("drawn")}, batch=8)
    fewer = replace(chosen, plan=replace(chosen.plan, moe=sim.Moe("drawn", ranks="hottest")))
    assert [len(program_of(one).variants) for one in (chosen, fewer)] == [4, 2]
    one, other = chosen.simulate().metrics, fewer.simulate().metrics
    assert other.step_time_s == pytest.approx(one.step_time_s, rel=0.02)
    assert other.imbalance_s["ep"] > 0


@pytest.mark.slow
def test_t17_14_loads_of_many_ranks_are_estimated_before_they_are_lowered() -> None:
    """DeepSeek-V3 on 2,048 GPUs, 64 loads for each of 16 stages: twice the microbatches of the report are refused in a moment,
    and the hint names the field that takes fewer. A quarter of the microbatches shows the waiting of every rank.
    """
    moe = sim.Moe("drawn", concentration=100.0)
    plan = sim.Plan(pp=16, ep=64, schedule="dualpipe", sharding="zero1", recompute="full", moe=moe)
    chosen = Scenario(
        sim.model("deepseek-v3"), sim.cluster("dgx-h100", nodes=256), plan, sim.Job(4096, 15360, 1, "fp8_block"),
        framework=sim.framework("megatron-core-2025"),
    )  # fmt: skip
    with pytest.raises(UserError, match="this run on 2,048 GPUs would take about") as caught:
        replace(chosen, job=replace(chosen.job, global_batch=2 * 15360)).simulate()
    assert caught.value.hint
    assert "plan.moe.ranks: hottest" in caught.value.hint
    one_hot = replace(chosen, plan=replace(plan, moe=replace(moe, ranks="hottest"))).simulate()
    assert one_hot.engine_reason.startswith("64 classes of 2048 ranks")
    assert one_hot.metrics.imbalance_s["ep"] > 0
    each = replace(chosen, job=replace(chosen.job, global_batch=4096)).simulate(long=True)
    assert each.engine_reason.startswith("1024 classes of 2048 ranks")
    assert len(each.engine_timeline.expansion.graph) < 2_000_000
    assert len(set(waited(each, imbalance("ep")).tolist())) > 500
