"""What the scenarios that ship say of themselves, in numbers, is what they come to."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.config import catalog
from simulator.simulation.run import Run
from simulator.simulation.runnable import load_one
from simulator.units import GIB

LONGER = "{longer:.0%} longer"


def header(name: str) -> str:
    """The comment at the head of a scenario."""
    lines = catalog.files("scenarios")[name].read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def run(name: str, *settings: str) -> Run:
    return load_one(name, settings).simulate(allow_oom=True)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("fsdp-units-llama3-8b-64xh100", ["plan.sharding.unit=1"], f"unit: 1 takes {LONGER}"),
        ("per-op-llama3-8b-8xh100", ["plan.recompute=full"], f"full takes {LONGER}"),
        ("per-op-llama3-8b-8xh100", ["plan.recompute=none"], "none needs {gib:.0f} GiB"),
        ("fsdp-llama3-8b-64xh100", ["plan.sharding=zero1"], "ZeRO-1 needs {gib:.0f} GiB"),
        ("dualpipe-qwen3-30b-64xh100", ["plan.overlap.ep=false"], f"the step takes {LONGER}"),
    ],
)
def test_what_a_scenario_says_of_another_plan_is_so(name: str, settings: list[str], says: str) -> None:
    given, other = run(name), run(name, *settings)
    found: dict[str, Any] = {
        "longer": other.metrics.step_time_s / given.metrics.step_time_s - 1,
        "gib": other.peak_memory_bytes / GIB,
    }
    assert says.format(**found) in header(name)


def test_a_limit_of_power_does_what_its_scenario_says() -> None:
    name = "capped-llama3-8b-8xh100"
    given, free = run(name), run(name, "cluster.gpu.tdp=700 W")
    longer = given.metrics.step_time_s / free.metrics.step_time_s - 1
    less = 1 - given.as_dict()["energy"]["mean_w"] / free.as_dict()["energy"]["mean_w"]
    assert f"A step takes {longer:.0%} longer and draws {less:.0%} less" in header(name)


def test_tensor_parallelism_in_pieces_hides_four_times_as_much() -> None:
    name = "async-tp-llama3-8b-16xh100"
    pieces, whole, nothing = (
        run(name, f"plan.overlap.tp={how}").metrics.exposed_s["tp"] for how in ("decomposed", "true", "false")
    )
    assert "overlap.tp: true hides a quarter" in header(name)
    assert (nothing - whole) / (nothing - pieces) == pytest.approx(1 / 4, abs=0.03)
