"""The accuracy dial, recorded in every result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Collectives = Literal["closed", "fluid", "stepwise"]
Granularity = Literal["op"]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """`collectives`: `fluid` shares links fairly, `closed` gives every transfer what it would have alone.
    `granularity`: `op` simulates every kernel and collective."""

    collectives: str = "fluid"
    granularity: str = "op"
