"""Routes as lists, and the pairs of GPUs that tell shapes apart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from simulator.hardware.cluster import Cluster

Pairs = list[tuple[int, int]]


def pairs_of(cluster: Cluster, most: int = 400) -> Pairs:
    """All pairs of different GPUs, or `most` of them drawn with a fixed seed."""
    n = cluster.gpus
    if n * (n - 1) <= most:
        return [(s, t) for s in range(n) for t in range(n) if s != t]
    rng = np.random.default_rng(0)
    source = rng.integers(0, n, most)
    target = (source + rng.integers(1, n, most)) % n
    return list(zip(source.tolist(), target.tolist(), strict=True))


def routes(cluster: Cluster, pairs: Pairs) -> list[list[int]]:
    """The links of each pair in travelling order, without the padding."""
    source, target = np.array(pairs).T
    return [[link for link in row if link >= 0] for row in cluster.route(source, target).tolist()]


def assert_leads(cluster: Cluster, links: list[int], source: int, target: int) -> None:
    """Each link begins where the one before ends, from the source GPU to the target GPU."""
    wiring = cluster.wiring
    stations = [source, *(int(wiring.target[link]) for link in links)]
    assert [int(wiring.source[link]) for link in links] == stations[:-1]
    assert stations[-1] == target
    assert len(set(stations)) == len(stations), "no vertex twice"


def names(cluster: Cluster, links: list[int]) -> list[str]:
    """The vertices on the way."""
    wiring = cluster.wiring
    ends = [wiring.link_name(link).split(">") for link in links]
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    return [ends[0][0], *(end for _, end in ends)]


def route_names(cluster: Cluster, source: int, target: int) -> list[str]:
    return names(cluster, routes(cluster, [(source, target)])[0])


def attributes(cluster: Cluster, a: str, b: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.graph.edges[a, b]
    return found
