"""Notes on a run besides its numbers: memory that is nearly full, values without an effect."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.scenario import Scenario
from ..config.unused_fields import unused
from ..memory.account import RankMemory
from ..units import show_bytes

CLOSE_FRACTION = 0.05
"""Of a GPU's memory: what leaves less than that free is said to be nearly full."""


def is_nearly_full(scenario: Scenario, memory: Sequence[RankMemory]) -> bool:
    """Whether a plan fits, with less than `CLOSE_FRACTION` of the memory left on the fullest GPU."""
    peak, have = max(rank.total_bytes for rank in memory), scenario.cluster.gpu.memory_bytes
    return (1 - CLOSE_FRACTION) * have < peak <= have


def notes(scenario: Scenario, memory: Sequence[RankMemory]) -> list[str]:
    """Sentences for stderr."""
    return [*of_memory(scenario, memory), *unused(scenario)]


def of_memory(scenario: Scenario, memory: Sequence[RankMemory]) -> list[str]:
    """A sentence if the memory is nearly full."""
    if not is_nearly_full(scenario, memory):
        return []
    have = scenario.cluster.gpu.memory_bytes
    left = show_bytes(have - max(rank.total_bytes for rank in memory))
    return [f"memory is nearly full: {left} of {show_bytes(have)} left on the fullest GPU, less than {CLOSE_FRACTION:.0%}"]
