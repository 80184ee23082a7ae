"""What the summary of a run says of its software, such as which communication may run beside compute, and of perturbations."""

from __future__ import annotations

import re
from typing import Any

import pytest

import simulator as sim
from simulator.simulation.energy import Energy

from ..small_scenarios import scenario, small_cluster, small_model


@pytest.mark.parametrize(
    ("plan", "overlap", "said"),
    [
        ({"tp": 2, "pp": 2}, {}, "only dp, pp may run beside compute"),
        ({"tp": 2, "pp": 2}, {"tp": True}, "one kernel, dp, tp, pp may run beside compute"),
        ({"tp": 2, "cp": 2}, {}, "only dp, pp, cp may run beside compute"),
        ({"tp": 2, "cp": 2}, {"cp": False}, "only dp, pp may run beside compute"),
        ({"tp": 2, "cp": 2}, {"tp": True}, "one kernel, dp, tp, pp, cp may run beside compute"),
        ({"cp": 2, "cp_kind": "all-gather"}, {}, "only dp, pp may run beside compute"),
        ({"ep": 2}, {"tp": True}, "only dp, tp, pp may run beside compute"),
        ({"tp": 2, "cp": 2}, {"dp": False, "pp": False, "cp": False}, "nothing may run beside compute"),
    ],
)
def test_the_line_of_no_framework_names_what_may_overlap(plan: dict[str, Any], overlap: dict[str, bool], said: str) -> None:
    model = small_model(experts=4, experts_per_token=2, expert_ffn_hidden=256) if "ep" in plan else small_model()
    run = scenario(model, small_cluster(2), sim.Plan(**plan, overlap=sim.Overlap(**overlap))).simulate()
    assert dict(run.summary)["framework"].endswith(said)


def test_the_summary_says_what_is_perturbed() -> None:
    slow, late = sim.Perturb(rank=3, speed=0.6), sim.Perturb(rank=1, speed=0.5, until_s=3.0)
    assert "perturbed" not in dict(scenario().simulate().summary)
    assert dict(scenario(perturb=(slow,)).simulate().summary)["perturbed"] == "rank 3 at 0.6 of its speed"
    both = dict(scenario(perturb=(slow, late)).simulate().summary)["perturbed"]
    assert both == "rank 3 at 0.6 of its speed; rank 1 at 0.5 of its speed, until 3.000 s"
    many = tuple(sim.Perturb(rank=rank, speed=0.6) for rank in range(6))
    assert dict(scenario(perturb=many).simulate().summary)["perturbed"].endswith("; and 2 more")


def test_a_perturbed_link_is_named_with_its_capacity() -> None:
    weak = sim.Perturb(link="node0/nic3>leaf3", capacity=0.25, from_s=1.0, until_s=2.0)
    assert weak.text == "node0/nic3>leaf3 at 0.25 of its capacity, from 1.000 s until 2.000 s"


def test_the_parts_of_memory_that_is_lacking_add_up() -> None:
    """Rounded to a tenth of a GiB each."""
    with pytest.raises(sim.Infeasible, match="out of memory") as lacking:
        sim.simulate(sim.model("llama3-70b"), small_cluster(2), sim.Plan(tp=4, pp=2), sim.Job(sequence_length=8192))
    total, *_ = re.findall(r"needs ([\d.]+) GiB", str(lacking.value))
    parts = re.findall(r"([\d.]+) (GiB|MiB) (?:parameters|activations|working set|context)", str(lacking.value))
    assert len(parts) == 4
    assert sum(float(size) * {"GiB": 1, "MiB": 1 / 1024}[unit] for size, unit in parts) == pytest.approx(float(total), abs=0.2)


def test_the_energy_of_a_small_step_has_digits() -> None:
    assert Energy(0.2453, 0.000479, 211.0).line == "0.2453 J per step, 0.000479 J per token, 211 W per GPU"
    assert Energy(28_324.4, 0.108, 397.0).line.startswith("28,324 J per step")
