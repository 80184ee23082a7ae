"""The vertices and links of a cluster, and the aggregate rates of the links, as `trainsim topology` shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, must_be
from ..escape import Summarised
from ..hardware.cluster import Cluster
from ..hardware.measure import Diameter, RouteClass, bisection, diameter, link_classes, route_classes, switches
from ..simulation import estimated_effort
from ..units import counted, show_bytes, show_rate, show_stated_s

MOST_LINKS = 2_000_000
IN_NODES = ("gpu", "nic", "cpu", "pcie", "nvswitch")


@dataclass(frozen=True, repr=False)
class Topology(Summarised):
    """The vertices and links of a cluster, and the aggregate rates of the links."""

    cluster: Cluster

    @property
    def vertices(self) -> dict[str, int]:
        """Number of vertices of each kind, in the order of the wiring."""
        runs = self.cluster.wiring.vertices
        return {kind: sum(run.count for run in runs if run.kind == kind) for kind in dict.fromkeys(run.kind for run in runs)}

    @property
    def summary(self) -> list[tuple[str, str]]:
        cluster, gpu, vertices = self.cluster, self.cluster.gpu, self.vertices
        size = f"{counted(cluster.nodes, 'node')} of {cluster.gpus_per_node} {gpu.name}, {counted(cluster.gpus, 'GPU')}"
        cut, across, found, bought = bisection(cluster), diameter(cluster), route_classes(cluster), switches(cluster)
        in_graph = sorted(count for kind, count in vertices.items() if kind not in IN_NODES)
        is_pooled = bought and sorted(bought.values()) != in_graph
        pooled = " (equal switches count as one where traffic is spread evenly)" if is_pooled else ""
        return [
            ("cluster", f"{cluster.name}: {size}"),
            ("shape", _shape(cluster)),
            ("GPU", f"{show_bytes(gpu.memory_bytes)}, {show_rate(gpu.memory_bytes_per_s)}"),
            *([("switches", _counted(bought))] if bought else []),
            ("vertices", _counted(vertices) + pooled),
            ("bisection", cut.method if cut.bytes_per_s is None else f"{show_rate(cut.bytes_per_s)} each way ({cut.method})"),
            ("diameter", _diameter(cluster, across, found)),
            ("in a node", _reach([route_class for route_class in found if route_class.inside])),
            ("across", _reach([route_class for route_class in found if not route_class.inside])),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim topology --json`, which includes every link."""
        cluster, wiring = self.cluster, self.cluster.wiring
        if wiring.links > MOST_LINKS:
            raise UserError(f"{wiring.links:,} links are too many to print", hint="show fewer nodes: --nodes 64")
        cut, across = bisection(cluster), diameter(cluster)
        ends = ([wiring.vertex_name(vertex) for vertex in column.tolist()] for column in (wiring.source, wiring.target))
        columns = (wiring.link_class, wiring.capacity_bytes_per_s, wiring.latency_s)
        return {
            "name": cluster.name,
            "shape": cluster.shape_name,
            "inside": cluster.inside_name,
            "routing": cluster.options.routing.policy,
            "gpu": cluster.gpu.name,
            "gpus": cluster.gpus,
            "nodes": cluster.nodes,
            "switches": switches(cluster),
            "vertices": self.vertices,
            "bisection_bytes_per_s": cut.bytes_per_s,
            "bisection_method": cut.method,
            "diameter_links": across.hops,
            "diameter_exact": across.exact,
            "link_classes": [
                {"name": c.name, "count": c.count, "capacity_bytes_per_s": c.bytes_per_s, "latency_s": c.latency_s}
                for c in link_classes(wiring)
            ],
            "ways": [
                {
                    "inside_node": route_class.inside,
                    "classes": list(route_class.classes),
                    "gpus": route_class.gpus,
                    "example": [wiring.vertex_name(0), wiring.vertex_name(route_class.example)],
                    "links": list(route_class.hops),
                    "latency_s": list(route_class.latency_s),
                    "bytes_per_s": list(route_class.bytes_per_s),
                }
                for route_class in route_classes(cluster)
            ],
            "links": [
                {
                    "name": f"{source}>{target}",
                    "source": source,
                    "target": target,
                    "class": wiring.link_classes[number],
                    "capacity_bytes_per_s": bytes_per_s,
                    "latency_s": latency_s,
                }
                for source, target, number, bytes_per_s, latency_s in zip(*ends, *(c.tolist() for c in columns), strict=True)
            ],
        }


def topology(cluster: Cluster, *, listed: bool = True, long: bool = False) -> Topology:
    """The vertices and links of a cluster. With `listed`, the effort of listing every vertex and link is estimated first."""
    must_be(cluster, Cluster, "cluster", "a cluster", 'sim.cluster("dgx-h100", nodes=8)')
    takes = cluster.gpus * (estimated_effort.LISTED_GPU if listed else estimated_effort.WIRED_GPU)
    estimated_effort.Limits(long=long).check(takes, f"a cluster of {cluster.gpus:,} GPUs", "show fewer nodes: --nodes 64")
    return Topology(cluster)


def _diameter(cluster: Cluster, across: Diameter, routes: Sequence[RouteClass]) -> str:
    """Number of links on the longest of all shortest paths, how it was found, and the number of links on routes of traffic."""
    sampled = "" if across.exact else f", sampled from {across.sources} of {counted(cluster.gpus, 'GPU')}"
    longest = max((route.hops[1] for route in routes), default=0)
    taken = f"; the routes of traffic have up to {longest}" if longest > across.hops else ""
    return f"{counted(across.hops, 'link')} by shortest paths{sampled}{taken}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def _shape(cluster: Cluster) -> str:
    narrow = f", {cluster.oversubscription:g}:1 oversubscribed" if cluster.oversubscription > 1 else ""
    hashed = f", flows hashed (seed {cluster.options.routing.seed})" if cluster.options.routing.hashed else ""
    inside = f" of {cluster.inside_name} nodes" if cluster.inside_name not in (cluster.shape_name, "explicit") else ""
    return f"{cluster.shape_name}{inside}{narrow}{hashed}"


def _reach(found: Sequence[RouteClass]) -> str:
    """Bandwidth and latency from GPU 0 over some classes of routes."""
    if not found:
        return "no other GPU"
    rate = sorted(value for route_class in found for value in route_class.bytes_per_s)
    latency = sorted(value for route_class in found for value in route_class.latency_s)
    return f"{span(show_rate, rate)}, {span(show_stated_s, latency)} from GPU to GPU"


def span(show: Callable[[Any], str], values: Sequence[Any]) -> str:
    """The first and the last of some values, or a single value if both print alike."""
    least, most = show(values[0]), show(values[-1])
    return least if least == most else f"{least} to {most}"
