"""The memory of a rank over time: its largest value is the peak that the account gives, whatever runs beside compute."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.simulation.run import Run
from simulator.simulation.runnable import RunnableScenario as Scenario

from ..equality.test_plans import scenarios
from ..small_scenarios import HOST, scenario, small_cluster, small_model
from .test_memory import PLANS, RECOMPUTE

BESIDE = sim.Overlap(ep=True)
"""Exchanges of experts beside compute."""
MIXTURE = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 704}
DIVIDED: list[dict[str, Any]] = [
    {}, {"dp": 2}, {"dp": 4, "sharding": "zero1"}, {"dp": 4, "sharding": "zero2"}, {"dp": 4, "sharding": "zero3"},
    {"dp": 4, "sharding": "fsdp"}, {"dp": 4, "sharding": sim.Sharding("hsdp", group=2, prefetch=2)},
    {"dp": 2, "cp": 2, "sharding": sim.Sharding("fsdp", prefetch=0)}, {"cp": 2, "tp": 2}, {"cp": 4, "cp_kind": "all-gather"},
    {"dp": 4, "sharding": sim.Sharding("fsdp", unit="half-layer", reduce="last")}, {"cp": 4, "cp_balance": False},
    {"cp": 4, "cp_kind": "mixed", "cp_ulysses": 2},
]  # fmt: skip
WITH_EXPERTS: list[dict[str, Any]] = [
    {"dp": 4, "ep": 4}, {"dp": 4, "ep": 2, "sharding": "fsdp"}, {"dp": 4, "ep": 2, "sharding": "zero2"},
    {"dp": 4, "ep": 4, "moe": sim.Moe("drawn")}, {"dp": 4, "ep": 4, "overlap": BESIDE},
    {"dp": 4, "ep": 2, "sharding": "fsdp", "overlap": BESIDE},
]  # fmt: skip
OFFLOAD = st.sampled_from(["none", "none", sim.Offload(0.5), sim.Offload(0.3, optimizer=True), "optimizer"])
LAYERS = 9
FAST, SLOW = "4x400 Gbit/s", "4x10 Gbit/s"
"""Networks on which gathers, exchanges and copies end earlier or later than the kernels beside them."""


def assert_the_curve_reaches_the_peak(run: Run) -> None:
    for rank in run.memory:
        times, held = run.memory_over_time(rank.rank)
        assert (held.max(), held[0], held[-1]) == (rank.total_bytes, rank.static_bytes, rank.static_bytes)
        assert (times[1:] >= times[:-1]).all()
        at, by_class = run.memory_by_class(rank.rank)
        assert (at[1:] >= at[:-1]).all()
        assert sum(by_class.values()).max() == rank.total_bytes


def of(plan: dict[str, Any], spread: dict[str, Any], offload: Any, recompute: Any, network: str) -> Scenario:
    chosen = sim.Plan(**{**plan, **spread, "offload": offload, "recompute": recompute})
    model = small_model(layers=LAYERS, **(MIXTURE if spread in WITH_EXPERTS else {}))
    cluster = small_cluster(max(1, chosen.tp * chosen.cp * chosen.pp * (chosen.dp or 1) // 4), host=HOST, inter_node=network)
    return scenario(model, cluster, chosen, sim.Job(128, 32, 1))


@example({"schedule": "dualpipe", "pp": 4}, {"cp": 4, "cp_kind": "all-gather"}, "none", "none", SLOW)
@example({"schedule": "naive", "tp": 4}, {"dp": 4, "sharding": "zero3"}, "none", "none", SLOW)
@example({"schedule": "naive", "tp": 4}, {"dp": 4, "ep": 2, "sharding": "fsdp"}, "none", "full", SLOW)
@example({}, {"dp": 4, "ep": 2, "sharding": "fsdp", "overlap": BESIDE}, "none", "none", FAST)
@given(
    plan=PLANS | st.just({}), spread=st.sampled_from([*DIVIDED, *WITH_EXPERTS]), offload=OFFLOAD, recompute=RECOMPUTE,
    network=st.sampled_from([FAST, SLOW]),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_t11_12_the_largest_value_over_time_is_the_peak(
    plan: dict[str, Any], spread: dict[str, Any], offload: Any, recompute: Any, network: str
) -> None:
    chosen = of(plan, spread, offload, recompute, network)
    try:
        feasible.check(chosen)
    except UserError:
        return
    assert_the_curve_reaches_the_peak(chosen.simulate())


@given(scenarios())
@settings(deadline=None, max_examples=15)
def test_t11_12_the_largest_value_over_time_is_the_peak_in_random_scenarios(chosen: Scenario) -> None:
    """Of any plan, learning task and cluster, with slow GPUs and links too."""
    try:
        feasible.check(chosen)
        run = chosen.simulate()
    except UserError:
        return
    assert_the_curve_reaches_the_peak(run)
