"""Input and output of every kind of `validate`: a GPU of one's own, and a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import UserError
from ..measurements.csv_tables import Row


@dataclass(frozen=True, slots=True)
class Own:
    """A GPU of one's own, by name or file, and the file of its profile: both apply to the rows of that GPU."""

    gpu: str = ""
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction, in the kind's unit, and the relative standard error that it admits; 0 if it admits none."""

    value: float
    sigma: float = 0.0
    memory_gb: float | None = None
    provenance: str | None = None
    """A kernel is measured, transferred or roofline; a collective interpolated, extrapolated or theoretical."""
    extrapolated: bool = False
    """Whether nobody measured such a time: the sizes lie beyond those that were measured, or it is physics alone."""


def each(predict: Callable[[Row], Predicted], rows: Sequence[Row]) -> list[Predicted | UserError]:
    """The prediction of each row by itself, or why there is none."""

    def outcome(row: Row) -> Predicted | UserError:
        try:
            return predict(row)
        except UserError as error:
            return error

    return [outcome(row) for row in rows]
