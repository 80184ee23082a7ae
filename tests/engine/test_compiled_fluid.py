"""The rates of the compiled engine, instant by instant: those of `fill`, which sees only the flows and links there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.compiled import fluid_rates
from simulator.engine.compiled.fluid_rates import UNCHANGED, Fluid, fluid_of
from simulator.engine.compiled.integer_records import records
from simulator.engine.compiled.machine_code import INSTALLED, jitted
from simulator.engine.task import RATE_BITS, UNCAPPED, WEIGHT_BITS

from .make import ONE, Build, steady
from .progressive_filling import fill

pytestmark = pytest.mark.skipif(not INSTALLED, reason="numba, the extra 'fast', is not installed")
Route = list[tuple[int, int]]
STREAMS = 24
if INSTALLED:
    join, leave, resize, solve = map(jitted, (fluid_rates.join, fluid_rates.leave, fluid_rates.resize, fluid_rates.solve))


class Network:
    """Flows that come and go on links, one on a stream at a time, as the engine has them."""

    def __init__(self, capacity: list[int], most_links: int) -> None:
        build = Build(links=steady(*capacity))
        for stream in range(STREAMS):
            build.task(0, on=stream, work=1, route=list(range(most_links)))
        self.fluid: Fluid = fluid_of(build.graph())
        self.flows: dict[int, tuple[Route, int]] = {}
        self.room = {link: value << WEIGHT_BITS for link, value in enumerate(capacity)}

    def change(self, stream: int, route: Route, cap: int) -> None:
        """The flow of a stream ends, or another one begins there; none ends in the instant in which it began."""
        if stream in self.flows and self.fluid.flows[stream]["before"] == UNCHANGED:
            leave(self.fluid, stream)
            del self.flows[stream]
        elif stream not in self.flows:
            self.fluid.flows[stream]["cap"] = cap
            links, weights = (np.array(column) for column in zip(*route, strict=True))
            join(self.fluid, stream, records(len(route), link=links, weight=weights))
            self.flows[stream] = route, cap

    def resize(self, link: int, capacity: int) -> None:
        self.room[link] = capacity << WEIGHT_BITS
        resize(self.fluid, link, self.room[link])

    def solve(self) -> dict[int, int]:
        """The rates, and the end of the instant."""
        solve(self.fluid)
        self.fluid.flows["before"] = UNCHANGED
        self.fluid.scratch[0]["changed"] = 0
        effort, crossings = self.fluid.effort[0], sum(len(route) for route, _ in self.flows.values())
        assert (effort["crossings"], effort["capped"]) == (crossings, sum(cap < UNCAPPED for _, cap in self.flows.values()))
        return {stream: int(self.fluid.flows[stream]["rate"]) for stream in self.flows}


def random_network(rng: np.random.Generator, n_links: int, most: int) -> tuple[Network, list[tuple[Route, int]]]:
    """A network without flows, and what may flow there: with ties, remainders, caps, light and heavy weights."""
    network = Network(rng.integers(0, most + 1, n_links).tolist(), min(n_links, 4))
    kinds = []
    for _ in range(3 * STREAMS):
        links = rng.choice(n_links, int(rng.integers(1, min(n_links, 4) + 1)), replace=False).tolist()
        cap = UNCAPPED if rng.random() < 0.7 else int(rng.integers(0, most + 1))
        kinds.append(([(link, int(rng.choice([ONE // 64, ONE, ONE, 3 * ONE]))) for link in sorted(links)], cap))
    return network, kinds


seeds, sizes = st.integers(0, 2**32), st.sampled_from([3, 60, 1 << 30, 900 << RATE_BITS])


@settings(deadline=None)
@given(seeds, st.integers(1, 30), sizes, st.integers(1, STREAMS), st.sampled_from([0.0, 0.3, 1.0]))
def test_every_instant_has_the_rates_of_filling(seed: int, links: int, most: int, n: int, filled: float) -> None:
    """As up to `n` flows begin or end at once, several of them on one stream, and links change; in a part of the instants rates
    are filled anew at once, and in the others what changes is followed first."""
    rng = np.random.default_rng(seed)
    network, kinds = random_network(rng, links, most)
    for _ in range(20):
        for stream in rng.integers(0, STREAMS, int(rng.integers(1, n + 1))).tolist():
            network.change(stream, *kinds[int(rng.integers(0, len(kinds)))])
        if rng.random() < 0.2:
            network.resize(int(rng.integers(0, links)), int(rng.integers(0, most + 1)))
        network.fluid.effort[0]["fillings"] = rng.random() < filled
        assert network.solve() == fill(dict(network.flows), dict(network.room))
