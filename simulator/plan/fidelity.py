"""The accuracy dial, recorded in every result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..fields import Declared, documented

Collectives = Literal["closed", "fluid", "stepwise"]
Granularity = Literal["op"]


@documented
@dataclass(frozen=True, slots=True)
class Fidelity(Declared):
    """How finely a run is simulated."""

    collectives: Annotated[
        Collectives, "fluid: transfers share links fairly; closed: none slows another; stepwise: every round is simulated"
    ] = "fluid"
    granularity: Annotated[Granularity, "op: every kernel and collective is simulated"] = "op"
