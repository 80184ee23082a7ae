"""Links that several jobs use, and what each sends over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...engine.task import Array
from ...hardware.wiring import Wiring
from .traffic import ratio


@dataclass(frozen=True, slots=True)
class Share:
    """What a job sends over a link in one of its steps."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that several jobs use."""

    name: str
    capacity_bytes_per_s: float
    """Mean over the time that all jobs run."""
    utilisation: float
    """By all jobs together, step after step."""
    jobs: tuple[Share, ...]


def shared_links(
    wiring: Wiring, capacity_bytes_per_s: Array, users: Sequence[tuple[str, float, Array]], count: int
) -> list[SharedLink]:
    """The fullest of the links that several users share; of each user its name, seconds per step and bytes on every link."""
    rate = sum((carried / step_s for _, step_s, carried in users if step_s), np.zeros(wiring.links))
    used = ratio(rate, capacity_bytes_per_s)
    several = np.sum([carried > 0 for _, _, carried in users], axis=0) > 1
    order = np.argsort(-np.round(used, 12), kind="stable")
    return [
        SharedLink(
            wiring.link_name(link),
            float(capacity_bytes_per_s[link]),
            float(used[link]),
            tuple(Share(name, float(carried[link])) for name, _, carried in users if carried[link] > 0),
        )
        for link in order[several[order]][:count].tolist()
    ]
