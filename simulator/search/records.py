"""Interface to earlier results of a search and to the storage of new ones: none, or a file that a higher layer writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .plan_checks import Measured, Weighed
from .space import Choice


@dataclass(frozen=True, slots=True)
class Known:
    """The results of a plan: its outcome, the next question, its bound, and the answers so far."""

    status: str
    stage: int
    bound_ns: int
    weighed: Weighed
    measured: Measured | None = None


class Records(Protocol):
    """Earlier results of plans, and storage for new ones. Saved results survive however the search ends."""

    def known(self, choice: Choice) -> Known | None:
        """The results of a plan, or None."""

    def save(self, plans: Sequence[tuple[Choice, Known]]) -> None:
        """Saves the present results of plans."""


class NoRecords:
    """No earlier results, and no storage."""

    def known(self, choice: Choice) -> Known | None:
        return None

    def save(self, plans: Sequence[tuple[Choice, Known]]) -> None:
        pass
