"""What a search knows about plans from before, and where it puts what it learns: nowhere, or a file that someone else writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .space import Choice
from .weigh import Measured, Weighed


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a plan: what became of it, the question that comes next, its bound, and the answers."""

    status: str
    stage: int
    bound_ns: int
    weighed: Weighed
    measured: Measured | None = None


class Records(Protocol):
    """What was known about plans before this search, and what it learns. What is saved is done, however the search ends."""

    def known(self, choice: Choice) -> Known | None:
        """What is known about a plan, or None."""

    def save(self, plans: Sequence[tuple[Choice, Known]]) -> None:
        """Keeps what is known about plans now."""


class NoRecords:
    """Nothing is known before, and nothing is kept."""

    def known(self, choice: Choice) -> Known | None:
        return None

    def save(self, plans: Sequence[tuple[Choice, Known]]) -> None:
        pass
