"""How collectives are done: which algorithms there are to choose from, and what one takes alone where that was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from ..engine.task import Array
from ..errors import UserError, did_you_mean

AUTO = "auto"
BARRIER = "barrier"

Measured = Callable[[str, str, Array, int], float | None]
"""Seconds of a collective alone, by kind, algorithm, the nodes of its members and payload bytes; None if nobody knows."""


def unknown(kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> float | None:
    """The knowledge of somebody who has measured nothing."""
    return None


@dataclass(frozen=True)
class Conduct:
    """Algorithms by name, those that `auto` chooses from by kind of collective, and measured times."""

    algorithms: Mapping[str, ModuleType]
    choices: Mapping[str, Sequence[str]]
    algorithm: str = AUTO
    """The one that is wanted; `auto` takes the fastest of the choices."""
    measured: Measured = field(default=unknown, compare=False)

    def candidates(self, kind: str, nodes: Array) -> dict[str, ModuleType]:
        """The algorithms that may serve a kind for a group whose members sit in these nodes. Raises if there is none."""
        able = {name: module for name, module in self.algorithms.items() if kind in module.KINDS and _takes(module, kind, nodes)}
        wanted = [self.algorithm] if self.algorithm in able else self.choices.get(kind, ())
        chosen = {name: able[name] for name in wanted if name in able}
        if not chosen:
            raise UserError(f"no algorithm for {kind} over {len(nodes)} ranks", hint=did_you_mean(self.algorithm, able))
        return chosen


def _takes(module: ModuleType, kind: str, nodes: Array) -> bool:
    return bool(module.takes(kind, nodes)) if hasattr(module, "takes") else True
