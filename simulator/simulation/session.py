"""Session: what simulations of many similar scenarios share, such as the plans of a search or the points of a sweep.

A session keeps the times of kernels by GPU, software and format, the choice of algorithms by cluster, the routes of groups by
cluster and members, the order of slots by schedule and shape, the operations of slots and accounts of their memory, and the last
steps of few microbatches, which stand for steps of any number. Results are the same with a session and without one. What
it keeps is bounded (`MOST_...`); the least recently used is dropped first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from ..binding.collective_policy import CollectivePolicy
from ..bounded_cache import Cache
from ..costs.kernels.estimator import PricedKernels
from ..program.layout import Layout

T = TypeVar("T")
MOST_SITES = 32
"""Largest number of clusters, and of sets of kernel times."""
MOST_KERNELS = 20_000
"""Number of kernels at which a set is emptied and started again."""
MOST_ROUTED_GPUS = 1 << 21
"""Largest number of members of all groups of a cluster whose routes are kept, which takes about 100 bytes for each."""
MOST_SHORT_RUNS = 4
"""Largest number of steps of few microbatches, which may stand for steps of any number of them; some MB each."""
MOST_LAYOUTS = 256
"""Largest number of orders of slots."""
MOST_ACCOUNTS = 16
"""Largest number of accounts of memory, which keep the operations of their slots."""
MOST_OPERATIONS = 1 << 16
"""Largest number of operations of all slots that are kept, about 1 kB each."""


class Session:
    """What simulations share; to be passed to `simulate` or `simulate_scenario`, by one thread at a time."""

    def __init__(self) -> None:
        self._numbers = count()
        self._known: dict[str, list[tuple[Any, int]]] = {}
        self._prices, self._policies, self._routes = (Cache(MOST_SITES) for _ in range(3))
        self._layouts, self._short_runs = Cache(MOST_LAYOUTS), Cache(MOST_SHORT_RUNS)
        self.accounts = Cache(MOST_ACCOUNTS)
        """Accounts of memory, of the same slots in any order."""
        self.slots = Cache(MOST_OPERATIONS)
        """The operations of slots."""

    def __repr__(self) -> str:
        return f"Session({len(self._policies)} clusters, {len(self._layouts)} orders of slots)"

    def known(self, kind: str, value: T) -> T:
        """The first value of a kind that was equal to this one, which may hold cached properties already."""
        return self._met(kind, value)[0]

    def _number(self, kind: str, value: Any) -> int:
        """A number for a value of a kind, the same for equal values as long as they are kept."""
        return self._met(kind, value)[1]

    def _met(self, kind: str, value: T) -> tuple[T, int]:
        """The first value of a kind that was equal to this one, and its number."""
        known = self._known.setdefault(kind, [])
        for at, (other, _) in enumerate(known):
            if other is value or _are_the_same(other, value):
                known.insert(0, known.pop(at))
                return known[0]
        known.insert(0, (value, next(self._numbers)))
        del known[MOST_SITES:]
        return known[0]

    def prices(self, gpu: Any, options: tuple[Any, ...], make: Callable[[], PricedKernels]) -> PricedKernels:
        """The times of kernels on a GPU with some software."""
        key = self._number("gpu", gpu), options
        found = self._prices.of(key, make)
        if len(found.estimates) > MOST_KERNELS:
            found.estimates.clear()
        return found

    def policy(self, cluster: Any, make: Callable[[], CollectivePolicy]) -> CollectivePolicy:
        """The choice of algorithms on a cluster."""
        return self._policies.of(self._number("cluster", cluster), make)

    def routes(self, cluster: Any) -> Cache:
        """The routes of groups on a cluster."""
        return self._routes.of(self._number("cluster", cluster), lambda: Cache(MOST_ROUTED_GPUS))

    def short_run(self, scenario: Any, options: tuple[Any, ...], make: Callable[[], T]) -> T:
        """The simulated step of a scenario of few microbatches, and how it was simulated."""
        cluster = self._number("cluster", scenario.cluster)
        others = scenario.model, scenario.plan, scenario.job, scenario.fidelity, scenario.perturb, scenario.framework
        return self._short_runs.of((cluster, options, *others), make)

    def layout(self, key: tuple[Any, ...], make: Callable[[], Layout]) -> Layout:
        """The order of slots of a schedule for a shape."""
        return self._layouts.of(key, make)


def _are_the_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; two clusters also need the same modules for wiring, which `==` does not compare."""
    return bool(one == other) and all(getattr(one, name, None) is getattr(other, name, None) for name in ("shape", "inside"))
