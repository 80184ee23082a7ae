"""Bytes of a checkpoint: every parameter once, wherever there are copies of the table of the embedding."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.config import feasible
from simulator.memory.saved_state import saved_bytes
from simulator.simulation.memory_check import terms_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of

from ..small_scenarios import scenario, small_cluster, small_model

BYTES_EACH = 14
"""Bytes of a parameter in a checkpoint: a weight in 16 bits, a master copy and two moments in 32."""


def saved(of: Scenario) -> int:
    """Bytes of a checkpoint of a plan whose ranks divide no layer."""
    feasible.check(of)
    layout = layout_of(of)
    return saved_bytes(program_of(of), terms_of(of, layout), 1, 1, len(layout.placements), tied=of.model.tied_embeddings)


PLANS: dict[str, dict[str, Any]] = {
    "no pipeline": {"pp": 1},
    "1f1b": {"pp": 2},
    "both ends on a rank": {"pp": 2, "schedule": "zb-v", "chunks": 2},
    "two copies": {"pp": 2, "schedule": "dualpipe"},
}


@pytest.mark.parametrize("chunked", [False, True], ids=["whole head", "head in chunks"])
@pytest.mark.parametrize("mtp_layers", [0, 2])
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_checkpoint_holds_every_parameter_once(plan: str, tied: bool, mtp_layers: int, chunked: bool) -> None:
    """Also where ranks have copies of the table, for the head or for further tokens, and whether or not the head is in chunks."""
    model = small_model(layers=8, tied_embeddings=tied, mtp_layers=mtp_layers)
    framework = sim.framework("none", fusion={"linear_cross_entropy": chunked})
    of = scenario(model, small_cluster(1), sim.Plan(**PLANS[plan]), sim.Job(128, 16, 1), framework=framework)
    names = [op.name for body in program_of(of).bodies.values() for op in body.ops]
    assert ("logits#1" in names) == chunked
    assert saved(of) == BYTES_EACH * model.parameters


@pytest.mark.parametrize("chunked", [False, True], ids=["whole head", "head in chunks"])
def test_the_checkpoint_of_llama_3_2_1b(chunked: bool) -> None:
    """1,235,814,400 parameters; each of the two pipeline ranks has the table, of which the second is a copy."""
    job, framework = sim.Job(2048, 32, 1), sim.framework("deepspeed-2026", fusion={"linear_cross_entropy": chunked})
    of = scenario(sim.model("llama3.2-1b"), sim.cluster("dgx-h100", nodes=1), sim.Plan(pp=2), job, framework=framework)
    assert saved(of) == 17_301_401_600 == BYTES_EACH * 1_235_814_400
