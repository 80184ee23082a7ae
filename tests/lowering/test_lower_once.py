"""The slots of a scenario are lowered once: its memory and its program share their operations (semantics, section 3)."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.simulation.memory_check import memory_of, slots_of
from simulator.simulation.simulate import layout_of, program_of

from .test_names import SCENARIOS, of

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    **SCENARIOS,
    "sequences in parts": ({}, {"pp": 4, "schedule": "seq-1f1b", "splits": 2}, {}, "none"),
    "a ring without balance": ({}, {"cp": 2, "pp": 2, "cp_balance": False}, {}, "none"),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", CASES)
def test_slots_that_were_lowered_before_make_the_same_program_and_memory(name: str) -> None:
    """Also where passes change steps (offloaded activations, a divided vocabulary), whose slots are lowered anew."""
    chosen = of(*CASES[name])
    layout = layout_of(chosen)
    slots = slots_of(chosen, layout)
    anew, shared = (program_of(chosen, None if chosen.plan.waits_for_norm(False) else 2, layout, of) for of in ((), slots))
    assert shared == anew
    assert [*shared.bodies] == [*anew.bodies]
    assert [*shared.communicators] == [*anew.communicators]
    assert memory_of(chosen, layout, lambda: slots) == memory_of(chosen, layout)


def test_slots_of_a_microbatch_serve_any_number_of_them() -> None:
    few, many = (of({}, {"pp": 4, "schedule": "interleaved", "chunks": 2, "dp": dp}, {}, "none") for dp in (4, 1))
    assert [program.bodies for program in slots_of(few, layout_of(few))] == [
        program.bodies for program in slots_of(few, layout_of(many))
    ]
