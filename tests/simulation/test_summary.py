"""What the summary of a run says of its software: which communication may run beside compute, of all that the plan has."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim

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
