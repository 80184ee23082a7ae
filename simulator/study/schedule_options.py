"""Options of a schedule in Python: their names and legal values, which are the same as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from ..program.slot import PerStage
from . import legal_values
from .legal_values import Legal, count, number_to, one_of

LONGEST = 2**40
"""The longest duration, and the largest limit; neither has a unit."""
LETTERS = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W"}
MOST_RANKS, MOST_MICROBATCHES, MOST_PARTS = 4096, 1_000_000, 1024
LEGAL: Mapping[str, Legal] = {
    "ranks": count(MOST_RANKS).or_none,
    "microbatches": count(MOST_MICROBATCHES).or_none,
    "chunks": count(MOST_PARTS),
    "group": count(MOST_MICROBATCHES).or_none,
    "splits": count(MOST_PARTS),
    "memory_limit": number_to(LONGEST, above_zero=True),
    "forward": number_to(LONGEST).or_several,
    "backward": number_to(LONGEST).or_several.or_none,
    "input_gradient": number_to(LONGEST).or_several,
    "weight_gradient": number_to(LONGEST).or_several,
    "pair": number_to(LONGEST).or_none,
    "comm": number_to(LONGEST),
    "objective": one_of("makespan", "span"),
    "memory_count": one_of("fw", "half"),
    "time_limit_s": number_to(LONGEST, above_zero=True),
}


class Options(TypedDict, total=False):
    """Options of a schedule besides its ranks and microbatches. Durations have no unit."""

    chunks: int
    group: int | None
    splits: int
    memory_limit: float
    forward: PerStage
    backward: PerStage | None
    input_gradient: PerStage
    weight_gradient: PerStage
    pair: float | None
    comm: float
    objective: Literal["makespan", "span"]
    memory_count: Literal["fw", "half"]
    time_limit_s: float


def check(options: Mapping[str, Any]) -> None:
    """Raises `UserError` with all options that do not exist, or whose values are not legal."""
    letters = {letter: name for name, letter in {**LETTERS, "pair": "FB"}.items()}
    legal_values.check("a schedule", options, LEGAL, letters)
