"""Changes that make a plan fit: each fits, none is larger than needed, the fastest comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.advise.candidates import candidate
from simulator.advise.remedies import ENOUGH, Remedy, changed, remedies
from simulator.config import feasible, load
from simulator.config.scenario import Scenario

WIDE = {"layers": 4, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn_hidden": 28672, "vocab": 32000, "gated_mlp": True}


def too_large(**plan: Any) -> Scenario:
    """A model of 3.6 billion parameters, whose state and activations no H100 holds."""
    job = {"sequence_length": 8192, "global_batch": 16, "microbatch_size": 2}
    plan = {"sharding": "none", "recompute": "none", **plan}
    found = load.scenario({"model": WIDE, "cluster": {"name": "dgx-h100", "nodes": 1}, "plan": plan, "job": job})
    assert isinstance(found, Scenario)
    return found


SCENARIO = too_large(dp=8)


@pytest.fixture(scope="module")
def found() -> tuple[Remedy, ...]:
    return remedies(SCENARIO)


def test_remedies_fit_and_the_fastest_is_first(found: tuple[Remedy, ...]) -> None:
    planned = candidate(SCENARIO)
    assert planned
    assert not planned.fits
    assert len(found) >= ENOUGH
    times = [one.proposal.step_time_s or 0.0 for one in found]
    assert times == sorted(times)
    for one in found:
        made = one.proposal.candidate
        assert made.fits
        assert made.scenario == feasible.check(changed(SCENARIO, one.change))
        assert one.saved_bytes == planned.memory.total_bytes - made.memory.total_bytes


def test_a_remedy_changes_no_more_than_is_needed(found: tuple[Remedy, ...]) -> None:
    """Where two fields are changed, neither change suffices by itself."""
    for one in found:
        fields = [name for name in one.change if name != "plan.dp"]
        for name in fields if len(fields) > 1 else ():
            rest = candidate(changed(SCENARIO, {key: value for key, value in one.change.items() if key != name}))
            assert not (rest and rest.fits)


def test_what_is_printed_can_be_typed(found: tuple[Remedy, ...], tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    text = ", ".join(f"{name}: {str(value).lower()}" for name, value in WIDE.items())
    file.write_text(
        f"model: {{{text}}}\ncluster: {{name: dgx-h100, nodes: 1}}\nplan: {{dp: 8, sharding: none, recompute: none}}\n"
        "job: {sequence_length: 8192, global_batch: 16, microbatch_size: 2}\n"
    )
    for one in found:
        again = sim.load(file, one.settings.removeprefix("--set ").split(" --set "))
        assert isinstance(again, Scenario)
        assert again.plan == one.proposal.candidate.plan


def test_a_plan_that_fits_needs_none() -> None:
    assert not remedies(too_large(tp=8, sharding="zero1"))
