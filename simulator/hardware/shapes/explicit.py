"""A graph that somebody gives vertex by vertex and link by link; data takes the shortest way.

`vertices` names all of them with their kinds, GPUs in the order of their numbers, and `links` joins them. Shortest is the
least latency, and of equal latencies the fewest links. Where several ways are as short, hashed routing takes one by the
flow's hash, and sprayed routing the one of the earliest links, for it cannot divide a flow here.
"""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ..cluster import Cluster
from ..options import Drawn
from ..wiring import Array, Links, Vertices, Wiring
from ._assembly import flow_hash
from ._paths import Paths

OPTIONS = ("vertices", "links", "routing")


def _drawn(cluster: Cluster) -> Drawn:
    if cluster.options.drawn is None:
        raise UserError(
            f"{cluster.name} has neither vertices nor links", hint="vertices: [{name: gpu0, kind: gpu}], links: [...]"
        )
    return cluster.options.drawn


def wire(cluster: Cluster) -> Wiring:
    drawn = _drawn(cluster)
    kinds = [kind for _, kind in drawn.vertices]
    gpus = kinds.count("gpu")
    if gpus != cluster.gpus:
        message = f"the graph has {gpus} vertices of kind gpu, and {cluster.name} {cluster.nodes} x {cluster.gpus_per_node} GPUs"
        raise UserError(message, hint="nodes times gpus_per_node is the number of GPUs")
    order = [i for kind in _in_order(kinds) for i, k in enumerate(kinds) if k == kind]
    number = np.argsort(np.array(order))
    vertices, first = [], 0
    for kind in _in_order(kinds):
        names = [drawn.vertices[i][0] for i in order[first : first + kinds.count(kind)]]
        vertices.append(Vertices(kind, first, len(names), names.__getitem__))
        first += len(names)
    source, target = (number[np.array(ends, dtype=np.int64)] for ends in zip(*((a, b) for a, b, _ in drawn.links), strict=True))
    capacity, latency_s = (np.array([getattr(spec, x) for *_, spec in drawn.links]) for x in ("bytes_per_s", "latency_s"))
    return Wiring.of(vertices, [Links.between(source, target, capacity, latency_s)], [])


def _in_order(kinds: list[str]) -> list[str]:
    """Every kind once: GPUs first, the others as they come."""
    return ["gpu", *(kind for kind in dict.fromkeys(kinds) if kind != "gpu")]


def route(cluster: Cluster, source: Array, target: Array) -> Array:
    if "paths" not in cluster.memo:
        cluster.memo["paths"] = Paths(cluster.wiring)
    paths: Paths = cluster.memo["paths"]
    routing = cluster.options.routing
    return paths.route(source, target, flow_hash(routing.seed, source, target) if routing.hashed else None)
