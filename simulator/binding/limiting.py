"""Capacities of links as the engine counts them, and the links that can never limit a flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.task import RATE_BITS, Array, Profile
from ..hardware.wiring import Wiring
from ..units import NS_PER_S


def work_per_ns(bytes_per_s: Array) -> Array:
    """Capacities in units of work per ns."""
    rate: Array = np.rint(bytes_per_s / NS_PER_S * (1 << RATE_BITS)).astype(np.int64)
    return rate


def never_limiting(wiring: Wiring, link_profile: Array, profiles: Sequence[Profile]) -> Array:
    """For each link, whether it can never limit a flow.

    A link cannot limit if all its flows also cross one of its covering links, whose capacities add up to at most its own lowest
    one.

    Dropping such a link changes rates by rounding only, and lets more ranks fold. Measured times are scaled for degraded links
    before this, on whole routes.
    """
    least = np.array([min(p.value) for p in profiles], dtype=np.int64)[link_profile]
    most = np.array([max(p.value) for p in profiles], dtype=np.int64)[link_profile]
    link, covering = wiring.covered.T
    total = np.bincount(link, weights=most[covering].astype(float), minlength=wiring.links)
    covered = np.zeros(wiring.links, dtype=bool)
    covered[link] = True
    never: Array = covered & (total <= least)
    return never
