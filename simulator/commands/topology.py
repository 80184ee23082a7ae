"""`trainsim topology`: the vertices and links of a cluster, their rates, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ._show import Count, json_option, long_option, picture_path, print_json, print_pairs, print_table, trust_option

if TYPE_CHECKING:
    from ..hardware.cluster import Cluster
    from ..hardware.measure import Way
    from ..study.cluster_facts import Topology

PICTURES = (".png", ".svg", ".pdf")


@click.command("topology", short_help="Show the vertices and links of a cluster.")
@click.argument("cluster")
@click.option("--nodes", type=Count(1), help="Number of nodes.  [default: as in the file]")
@click.option("--plot", metavar="FILE", callback=picture_path, help="Draw the cluster as PNG, SVG or PDF.")
@trust_option
@long_option
@json_option
def command(cluster: str, nodes: int | None, plot: str | None, trust: bool, long: bool, as_json: bool) -> None:
    """Show the vertices, links and rates of CLUSTER, a YAML file or a name that `trainsim catalog clusters` lists.

    The bisection bandwidth is the largest rate at which one half of the nodes can send to the other half. The diameter is the
    number of links on the longest of all shortest routes between two GPUs.
    """
    from ..config.by_name import cluster as find
    from ..study.cluster_facts import topology

    found = find(cluster, trust=trust, **({"nodes": nodes} if nodes else {}))
    shown = topology(found, listed=as_json, long=long)
    if plot is not None:
        from ..figures.gantt import save
        from ..figures.topology_plot import draw

        save(draw(found), plot)
    print_json(shown.as_dict()) if as_json else _print_tables(shown, plot)


def _print_tables(shown: Topology, plot: str | None) -> None:
    from ..hardware.measure import bisection, diameter, link_classes, switches, ways
    from ..units import show_bytes, show_rate, show_s

    cluster, gpu, wiring = shown.cluster, shown.cluster.gpu, shown.cluster.wiring
    size = f"{cluster.nodes:,} nodes of {cluster.gpus_per_node} {gpu.name}, {cluster.gpus:,} GPUs"
    cut, across, found = bisection(cluster), diameter(cluster), ways(cluster)
    bought, vertices = switches(cluster), shown.vertices
    pooled = " (equal switches count as one where traffic is spread evenly)" if _pooled(bought, vertices) else ""
    print_pairs(
        [
            ("cluster", f"{cluster.name}: {size}"),
            ("shape", _shape(cluster)),
            ("GPU", f"{show_bytes(gpu.memory_bytes)}, {show_rate(gpu.memory_bytes_per_s)}"),
            *([("switches", _counted(bought))] if bought else []),
            ("vertices", _counted(vertices) + pooled),
            ("bisection", cut.method if cut.bytes_per_s is None else f"{show_rate(cut.bytes_per_s)} each way ({cut.method})"),
            ("diameter", f"{across.hops} links" + ("" if across.exact else f" (from {across.sources} GPUs)")),
            *((name, _reach([w for w in found if w.inside == inside])) for name, inside in _NEAR_AND_FAR),
            *([("picture", plot)] if plot else []),
        ]
    )
    if found:
        rows = [
            [_span(str, w.hops), f"{w.gpus:,}", _span(show_rate, w.bytes_per_s), _span(show_s, w.latency_s), ", ".join(w.classes)]
            for w in found
        ]
        print_table(["links from gpu0", "to GPUs", "uncontended", "latency", "by way of"], rows, right=(0, 1, 2, 3))
    rows = [[c.name, f"{c.count:,}", show_rate(c.bytes_per_s), show_s(c.latency_s)] for c in link_classes(wiring)]
    print_table(["class of links", "links", "capacity", "latency"], rows, right=(1, 2, 3))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def _pooled(bought: Mapping[str, int], vertices: Mapping[str, int]) -> bool:
    """Whether the graph has other counts of switches than one buys."""
    in_nodes = ("gpu", "nic", "cpu", "pcie", "nvswitch")
    return bool(bought) and sorted(bought.values()) != sorted(n for kind, n in vertices.items() if kind not in in_nodes)


_NEAR_AND_FAR = (("in a node", True), ("across", False))


def _shape(cluster: Cluster) -> str:
    narrow = f", {cluster.oversubscription:g}:1 oversubscribed" if cluster.oversubscription > 1 else ""
    hashed = f", flows hashed (seed {cluster.options.routing.seed})" if cluster.options.routing.hashed else ""
    inside = f" of {cluster.inside_name} nodes" if cluster.inside_name not in (cluster.shape_name, "explicit") else ""
    return f"{cluster.shape_name}{inside}{narrow}{hashed}"


def _reach(found: list[Way]) -> str:
    """Bandwidth and latency from GPU 0 over some ways."""
    from ..units import show_rate, show_s

    if not found:
        return "no other GPU"
    rate = tuple(f(value for way in found for value in way.bytes_per_s) for f in (min, max))
    latency = tuple(f(value for way in found for value in way.latency_s) for f in (min, max))
    return f"{_span(show_rate, rate)}, {_span(show_s, latency)} from GPU to GPU"


def _span(show: Any, values: tuple[Any, ...]) -> str:
    least, most = show(values[0]), show(values[-1])
    return least if least == most else f"{least} to {most}"
