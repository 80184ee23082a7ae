"""Whose word the times of a run are: shares of the time of its kernels and collectives by how they are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from ...costs.curves import Provenance as OfCollectives
from ...costs.shelf import Provenance as OfKernels
from .kernel_costs import OpCost

BEST = ("measured", "interpolated")
"""What needs no word."""
BEYOND = "extrapolated"
LEAST = 0.01


def of_kernels(costs: Iterable[OpCost]) -> dict[str, float]:
    """The share of the kernels' time that each provenance has, and that of sizes beyond the measured ones, whosever."""
    costs = list(costs)
    return {**_shares(costs, get_args(OfKernels)), BEYOND: _share(costs, [c for c in costs if c.extrapolated])}


def of_collectives(costs: Iterable[OpCost]) -> dict[str, float]:
    """The share of the collectives' time, each alone, that each provenance has."""
    return _shares(list(costs), get_args(OfCollectives))


def _shares(costs: list[OpCost], names: Iterable[str]) -> dict[str, float]:
    return {name: _share(costs, [c for c in costs if c.provenance == name]) for name in names}


def _share(costs: list[OpCost], some: list[OpCost]) -> float:
    return sum(c.seconds for c in some) / (sum(c.seconds for c in costs) or 1.0)


def known_by(kernels: Mapping[str, float], collectives: Mapping[str, float]) -> list[tuple[str, str]]:
    """A line of a summary, if not everything is known at its best."""
    said = []
    for what, shares in (("kernels", kernels), ("collectives", collectives)):
        if any(share for name, share in shares.items() if name not in BEST):
            said += [f"{what} {', '.join(f'{_percent(share)} {name}' for name, share in shares.items() if share)}"]
    return [("provenance", "; ".join(said))] if said else []


def _percent(share: float) -> str:
    """Whole percents; neither nothing nor everything where it is not."""
    return "<1%" if share < LEAST else ">99%" if 1 - LEAST < share < 1 else f"{share:.0%}"
