"""What the fields of a plan say of themselves."""

from __future__ import annotations

import re

import pytest

import simulator as sim
from simulator.fields import Declared, specs
from simulator.plan.plan import Moe, Overlap, Sharding
from simulator.plan.recomputation import Recompute


@pytest.mark.parametrize("owner", [sim.Plan, Overlap, Sharding, Moe, Recompute, sim.Fidelity, sim.Perturb])
def test_no_text_of_a_field_names_what_a_file_cannot_write(owner: type[Declared]) -> None:
    """In a file the word None is the word none, which turns off what a field left out leaves to the framework."""
    named = [spec.key for spec in specs(owner) if re.search(r"\bNone\b", spec.form.meaning or "")]
    assert not named
