"""A cluster as users look at it: its vertices and links, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..escape import Summarised
from ..hardware.cluster import Cluster
from ..hardware.measure import Way, bisection, diameter, link_classes, switches, ways
from ..simulation import estimated_effort
from ..units import show_rate

MOST_LINKS = 2_000_000


@dataclass(frozen=True, repr=False)
class Topology(Summarised):
    """The vertices and links of a cluster, and what they are worth."""

    cluster: Cluster

    @property
    def vertices(self) -> dict[str, int]:
        """Vertices by kind, in the order of the wiring."""
        runs = self.cluster.wiring.vertices
        return {kind: sum(run.count for run in runs if run.kind == kind) for kind in dict.fromkeys(run.kind for run in runs)}

    @property
    def summary(self) -> list[tuple[str, str]]:
        cut, across = bisection(self.cluster), diameter(self.cluster)
        return [
            ("cluster", f"{self.cluster.name}: {self.cluster.nodes:,} nodes, {self.cluster.gpus:,} {self.cluster.gpu.name}"),
            ("shape", self.cluster.shape_name),
            ("vertices", ", ".join(f"{count:,} {kind}" for kind, count in self.vertices.items())),
            ("links", f"{self.cluster.wiring.links:,}"),
            ("bisection", cut.method if cut.bytes_per_s is None else f"{show_rate(cut.bytes_per_s)} each way ({cut.method})"),
            ("diameter", f"{across.hops} links"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """What `trainsim topology --json` prints: every link too."""
        cluster, wiring = self.cluster, self.cluster.wiring
        if wiring.links > MOST_LINKS:
            raise UserError(f"{wiring.links:,} links are too many to print", hint="show fewer nodes: --nodes 64")
        cut, across = bisection(cluster), diameter(cluster)
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
            "ways": [self._way(way) for way in ways(cluster)],
            "links": [self._link(link) for link in range(wiring.links)],
        }

    def _way(self, way: Way) -> dict[str, Any]:
        wiring = self.cluster.wiring
        return {
            "inside_node": way.inside,
            "classes": list(way.classes),
            "gpus": way.gpus,
            "example": [wiring.vertex_name(0), wiring.vertex_name(way.example)],
            "links": list(way.hops),
            "latency_s": list(way.latency_s),
            "bytes_per_s": list(way.bytes_per_s),
        }

    def _link(self, link: int) -> dict[str, Any]:
        wiring = self.cluster.wiring
        source, target = wiring.vertex_name(int(wiring.source[link])), wiring.vertex_name(int(wiring.target[link]))
        return {
            "name": f"{source}>{target}",
            "source": source,
            "target": target,
            "class": wiring.link_classes[int(wiring.link_class[link])],
            "capacity_bytes_per_s": float(wiring.capacity_bytes_per_s[link]),
            "latency_s": float(wiring.latency_s[link]),
        }


def topology(cluster: Cluster, *, listed: bool = True, long: bool = False) -> Topology:
    """Shows the vertices and links of a cluster; `listed` estimates what listing each of them takes."""
    takes = estimated_effort.of_topology(cluster.gpus, listed=listed)
    estimated_effort.check(takes, f"a cluster of {cluster.gpus:,} GPUs", "show fewer nodes: --nodes 64", long=long)
    return Topology(cluster)
