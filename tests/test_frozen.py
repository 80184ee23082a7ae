"""Copies of frozen values."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.frozen import replace
from simulator.program.operations import COMPUTE, Compute, Wait
from simulator.workload.blocks.dense import BlockOp

OP = Wait(name="a", streams=(COMPUTE,), layer=2)


@given(
    st.fixed_dictionaries(
        {}, optional={"name": st.text(), "layer": st.integers(), "after": st.none(), "held_bytes": st.integers()}
    )
)
def test_a_copy_is_that_of_dataclasses(changes: dict[str, object]) -> None:
    copy = replace(OP, **changes)  # type: ignore[arg-type]
    assert copy == dataclasses.replace(OP, **changes)  # type: ignore[arg-type]
    assert hash(copy) == hash(dataclasses.replace(OP, **changes))  # type: ignore[arg-type]
    assert Wait(name="a", streams=(COMPUTE,), layer=2) == OP


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="fields names"):
        replace(OP, names="b")  # type: ignore[call-arg]


def test_a_copy_is_frozen_too() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        replace(OP, layer=3).layer = 4  # type: ignore[misc]


@pytest.mark.parametrize("of", [Compute, Wait, BlockOp])
def test_what_is_copied_field_by_field_computes_nothing_when_it_is_made(of: type) -> None:
    assert not hasattr(of, "__post_init__")
    assert not [name for name, value in vars(of).items() if type(value).__name__ == "cached_property"]


def test_other_values_are_copied_by_dataclasses() -> None:
    assert replace(sliced := Slotted(1), value=2) == Slotted(2) != sliced


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: int
