"""Who is waited for: a slower member of a group, another stage, or nobody; of each idle instant one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.engine.task import Csr
from simulator.metrics.idle import BUBBLE, _latest, imbalance
from simulator.simulation.result import REPORTED_AXES
from simulator.simulation.run import Run

from ..small_scenarios import scenario, small_cluster, small_model

FREE: dict[str, Any] = {"intra_node": "NVSwitch 10 TB/s", "latency": {"nvlink": "0.0001 ns"}}
"""Links that take no time to speak of."""


def run_of(plan: dict[str, Any], *slow: sim.Perturb, cluster: dict[str, Any] | None = None, **options: Any) -> Run:
    chosen = sim.Plan(**plan)
    gpus = chosen.tp * chosen.pp * (chosen.dp or 1)
    job = sim.Job(sequence_length=128, global_batch=16)
    model = small_model(layers=4)
    of = scenario(
        model, small_cluster(max(1, gpus // 4), **(cluster or {})), chosen, job, perturb=slow, **options.pop("more", {})
    )
    return of.simulate(**options)


def causes_add_up(run: Run) -> None:
    """On every rank to the nanosecond, and in the printed means."""
    assert (run.time_by_cause.ns >= 0).all()
    assert (run.time_by_cause.ns.sum(axis=1) == run.observation.window_ns).all()
    m = run.metrics
    idle_s = sum(m.exposed_s.values()) + sum(m.imbalance_s.values()) + m.launch_s + m.bubble_fraction * m.step_time_s
    assert m.busy_s + m.optimizer_s + idle_s == pytest.approx(m.step_time_s, rel=1e-9)


@given(st.data())
def test_t4_9_without_a_pipeline_there_is_no_bubble(data: st.DataObject) -> None:
    """Over plans with stragglers, from a standing start or not, with launches or not: and all causes are the step."""
    tp = data.draw(st.sampled_from([1, 2, 4]))
    pp = data.draw(st.sampled_from([1, 1, 2]))
    dp = 8 // tp // pp
    plan = {
        "tp": tp, "pp": pp, "dp": dp,
        "sharding": data.draw(st.sampled_from(["none", "zero1"])),
        "optimizer": data.draw(st.sampled_from(["synchronised", "post-validated"])),
        "overlap": sim.Overlap(dp=data.draw(st.booleans()), tp=data.draw(st.booleans())),
    }  # fmt: skip
    slow = [
        sim.Perturb(rank=rank, speed=data.draw(st.sampled_from([0.25, 0.5, 0.9])))
        for rank in data.draw(st.lists(st.integers(0, 7), max_size=3, unique=True))
    ]
    framework = sim.framework(data.draw(st.sampled_from(["none", "megatron-core-2025"])))
    steps = data.draw(st.sampled_from([None, 1, 2]))
    run = run_of(plan, *slow, more={"framework": framework}, steps=steps)
    causes_add_up(run)
    if pp == 1:
        assert not run.time_by_cause.of(BUBBLE).any()
        assert run.metrics.bubble_fraction == 0
        if slow and framework.name == "none":
            assert sum(run.metrics.imbalance_s.values()) > 0, "where launches are free somebody waits for a straggler"


def test_t4_3_a_slower_member_of_a_tensor_group_is_imbalance_of_tp() -> None:
    """Two ranks, one at half speed, free links: the other waits as long as it computes."""
    run = run_of({"tp": 2, "pp": 1, "dp": 1}, sim.Perturb(rank=1, speed=0.5), cluster={**FREE, "gpus_per_node": 2})
    fast, slow = (run.engine_timeline.class_of[rank] for rank in (0, 1))
    waited = run.time_by_cause.of(imbalance("tp"))
    assert waited[slow] == 0
    assert waited[fast] == pytest.approx(later_ns(run, slow, fast), rel=1e-3)
    causes_add_up(run)


def later_ns(run: Run, slow: int, fast: int) -> int:
    """How much longer one class of ranks computes than another, optimizer included."""
    at_work = run.time_by_cause.of("busy") + run.time_by_cause.of("optimizer")
    return int(at_work[slow] - at_work[fast])


@pytest.mark.parametrize("optimizer", ["synchronised", "post-validated"])
def test_t4_8_a_slower_replica_is_imbalance_of_dp(optimizer: str) -> None:
    plan = {"tp": 1, "pp": 1, "dp": 4, "optimizer": optimizer}
    run = run_of(plan, sim.Perturb(rank=0, speed=0.5), cluster=FREE)
    fast, slow = (run.engine_timeline.class_of[rank] for rank in (1, 0))
    waited = run.time_by_cause.of(imbalance("dp"))
    assert waited[slow] == 0
    assert waited[fast] == pytest.approx(later_ns(run, slow, fast), rel=1e-3)
    assert run.metrics.imbalance_s["dp"] > 0.3 * run.metrics.step_time_s
    assert run.metrics.bubble_fraction == 0
    assert "imbalance dp" in dict(run.summary)
    assert set(run.as_dict()["imbalance_s"]) == set(REPORTED_AXES)
    causes_add_up(run)


def test_t4_8_at_the_norm_another_stage_is_bubble_and_a_replica_imbalance() -> None:
    """Without reductions, with free links: the ranks of the last stage wait at the norm for the first; those of a replica, beside
    a slower one of their own stage, for that.
    """
    even = run_of({"tp": 1, "pp": 2, "dp": 1}, cluster={**FREE, "gpus_per_node": 2})
    assert even.metrics.imbalance_s == dict.fromkeys(REPORTED_AXES, 0.0)
    last = even.engine_timeline.class_of[1]
    rows = even.timeline.to_pandas()
    ended = rows[(rows["rank"] == 1) & (rows.stream == "compute")].end_ns.max()
    until = rows[(rows["rank"] == 0) & (rows.stream == "compute")].end_ns.max()
    assert even.time_by_cause.of(BUBBLE)[last] >= until - ended > 0
    slow = [sim.Perturb(rank=rank, speed=0.5) for rank in (0, 2)]  # one replica of two, both its stages
    plan = {"tp": 1, "pp": 2, "dp": 2, "rank_order": "tp-cp-ep-dp-pp"}
    uneven = run_of(plan, *slow, cluster=FREE)
    causes_add_up(uneven)
    fast = uneven.engine_timeline.class_of[1]
    assert uneven.time_by_cause.of(imbalance("dp"))[fast] > 0.3 * uneven.observation.window_ns[fast]


def test_t4_3_a_slow_stage_is_bubble_whatever_collectives_its_kernels_are_behind() -> None:
    """Slots of a stage end with a tensor collective: who waits for the stage waits for another stage all the same."""
    slow = [sim.Perturb(rank=rank, speed=0.5) for rank in (2, 3)]
    run = run_of({"tp": 2, "pp": 2, "dp": 1}, *slow, cluster=FREE)
    first = run.engine_timeline.class_of[0]
    assert run.time_by_cause.of(BUBBLE)[first] > 0.3 * run.observation.window_ns[first]
    assert sum(run.metrics.imbalance_s.values()) < 0.01 * run.metrics.step_time_s


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(["kernel", "moves", "launch"])), min_size=1))
def test_t4_10_of_predecessors_that_end_together_communication_is_waited_for_and_no_launch(
    before: list[tuple[int, int, str]],
) -> None:
    """A task waits for several that end, and arrive, at a few moments: kernels, communication and launches, in any order."""
    n = len(before)
    ends, tails, kinds = (np.array(column) for column in zip(*before, strict=True))
    graph = SimpleGraph(np.append(np.where(kinds == "kernel", 0, -1), 0), Csr.from_lists([[]] * n + [list(range(n))]), tails)
    tasks = SimpleNamespace(
        expansion=SimpleNamespace(graph=graph),
        times=SimpleNamespace(end_ns=np.append(ends, 9)),
        number=np.arange(n + 1),
        communicates=graph.speed < 0,
    )
    latest = _latest(tasks, np.append(kinds == "launch", False))
    assert (latest[:n] == -1).all()
    arrives = ends + tails
    together = set(kinds[arrives == arrives.max()])
    assert arrives[latest[n]] == arrives.max()
    assert kinds[latest[n]] == next(kind for kind in ("moves", "kernel", "launch") if kind in together)


class SimpleGraph:
    """What `_latest` needs of a task graph."""

    def __init__(self, speed: Any, before: Csr, tail_ns: Any) -> None:
        self.speed, self.before, self.tail_ns = speed, before, tail_ns

    def __len__(self) -> int:
        return len(self.speed)

    def all_preds(self) -> tuple[Csr, Any]:
        return self.before, self.tail_ns


def test_t4_10_a_collective_that_ends_with_a_kernel_is_what_is_waited_for() -> None:
    """Two equal ranks: their kernels end together, and what follows is exposed time of the collective, no imbalance."""
    run = run_of({"tp": 2, "pp": 1, "dp": 1}, cluster={"gpus_per_node": 2})
    assert run.metrics.exposed_s["tp"] > 0
    assert run.metrics.imbalance_s == dict.fromkeys(REPORTED_AXES, 0.0)


def test_bubble_and_executed_flop_are_means_over_ranks_not_over_classes() -> None:
    """One rank of eight is slow, so that classes differ in size; folded or not, and by hand from every rank's own timeline."""
    plan = {"tp": 1, "pp": 2, "dp": 4, "rank_order": "tp-cp-ep-pp-dp"}
    slow = sim.Perturb(rank=1, speed=0.5)
    folded, whole = (run_of(plan, slow, folding=folding) for folding in (True, False))
    assert folded.engine_timeline.expansion.skeleton.ranks < whole.engine_timeline.expansion.skeleton.ranks == 8
    assert len(set(folded.engine_timeline.multiplicity.tolist())) > 1
    for run in (folded, whole):
        m, seen = run.metrics, run.observation
        classes = run.engine_timeline.class_of
        bubble_ns = [int(run.time_by_cause.of(BUBBLE)[which]) for which in classes]
        assert m.bubble_fraction == pytest.approx(sum(bubble_ns) / 8 / seen.window_ns[0], rel=1e-12)
        flop = run.timeline.to_pandas().flop.sum()
        assert m.hfu == pytest.approx(flop / 8 / m.step_time_s / seen.peak_flop_per_s, rel=1e-12)
        assert len({round(b) for b in bubble_ns}) > 1
    assert folded.metrics.bubble_fraction == pytest.approx(whole.metrics.bubble_fraction, rel=1e-12)
    assert folded.metrics.hfu == pytest.approx(whole.metrics.hfu, rel=1e-12)
    uneven = run_of({"tp": 2, "pp": 2, "dp": 2}, sim.Perturb(rank=1, speed=0.5))
    assert uneven.metrics.hfu == pytest.approx(
        uneven.timeline.to_pandas().flop.sum() / 8 / uneven.metrics.step_time_s / uneven.observation.peak_flop_per_s, rel=1e-12
    )
