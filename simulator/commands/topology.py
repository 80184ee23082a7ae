"""`trainsim topology`: the vertices and links of a cluster, their rates, and aggregate rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..units import show_rate, show_stated_s
from ._show import Count, json_option, long_option, picture_option, print_json, print_pairs, print_table, trust_option

if TYPE_CHECKING:
    from ..study.cluster_facts import Topology


@click.command("topology", short_help="Show the vertices and links of a cluster.")
@click.argument("cluster")
@click.option("--nodes", type=Count(1), help="Number of nodes.  [default: as in the file]")
@picture_option("--plot", help="Draw the cluster.")
@trust_option
@long_option
@json_option
def command(cluster: str, nodes: int | None, plot: str | None, trust: bool, long: bool, as_json: bool) -> None:
    """Show the vertices, links and rates of CLUSTER, a YAML file or a name that `trainsim catalog clusters` lists.

    The bisection bandwidth is the largest rate at which one half of the nodes can send to the other half. The diameter is the
    number of links on the longest of all shortest paths between two GPUs; the routes that traffic takes, which the first table
    lists from gpu0, may have more. Classes of links are also named by the vertices that they join, as in `trainsim network`.
    """
    from ..config.load import cluster as find
    from ..study.cluster_facts import topology

    found = find(cluster, trust=trust, **({"nodes": nodes} if nodes else {}))
    shown = topology(found, listed=as_json, long=long)
    if plot is not None:
        from ..figures.drawing import save
        from ..figures.topology_plot import topology_plot

        save(topology_plot(found), plot)
    print_json(shown.as_dict()) if as_json else _print_tables(shown, plot)


def _print_tables(shown: Topology, plot: str | None) -> None:
    from ..hardware.measure import link_classes, route_classes
    from ..study.cluster_facts import span

    print_pairs([*shown.summary, *([("picture", plot)] if plot else [])])
    if found := route_classes(shown.cluster):
        rows = [
            [
                span(str, w.hops),
                f"{w.gpus:,}",
                span(show_rate, w.bytes_per_s),
                span(show_stated_s, w.latency_s),
                ", ".join(w.classes),
            ]
            for w in found
        ]
        print_table(["hops from gpu0", "GPUs reached", "slowest link", "latency", "by way of"], rows, right=(0, 1, 2, 3))
    rows = [
        [c.name, ", ".join(c.ends), f"{c.count:,}", show_rate(c.bytes_per_s), show_stated_s(c.latency_s)]
        for c in link_classes(shown.cluster.wiring)
    ]
    print_table(["class of links", "from > to", "links", "capacity", "latency"], rows, right=(2, 3, 4))
