"""`trainsim topology`: the vertices and links of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ._show import Count, json_option, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from ..hardware.cluster import Cluster
    from ..hardware.wiring import Wiring

MOST_LINKS = 2_000_000


@click.command("topology", short_help="Show the vertices and links of a cluster.")
@click.argument("cluster")
@click.option("--nodes", type=Count(1), help="How many nodes, if not as many as the file says.")
@json_option
def command(cluster: str, nodes: int | None, as_json: bool) -> None:
    """Show CLUSTER, a name that `trainsim catalog clusters` lists or a YAML file: its vertices, links and rates."""
    from ..study.api import cluster as find

    found = find(cluster, **({"nodes": nodes} if nodes else {}))
    _print_record(found) if as_json else _print_tables(found)


def _print_record(cluster: Cluster) -> None:
    from ..errors import UserError

    wiring = cluster.wiring
    if wiring.links > MOST_LINKS:
        raise UserError(f"{wiring.links:,} links are too many to print", hint="show fewer nodes: --nodes 64")
    record = {
        "name": cluster.name,
        "shape": cluster.shape_name,
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "vertices": {run.kind: run.count for run in wiring.vertices},
        "links": [_link(wiring, link) for link in range(wiring.links)],
    }
    print_json(record)


def _link(wiring: Wiring, link: int) -> dict[str, Any]:
    source, target = wiring.vertex_name(int(wiring.source[link])), wiring.vertex_name(int(wiring.target[link]))
    return {
        "name": f"{source}>{target}",
        "source": source,
        "target": target,
        "capacity_bytes_per_s": float(wiring.capacity_bytes_per_s[link]),
        "latency_s": float(wiring.latency_s[link]),
    }


def _print_tables(cluster: Cluster) -> None:
    from ..units import show_bytes, show_rate, show_s

    gpu, wiring = cluster.gpu, cluster.wiring
    narrow = f", {cluster.oversubscription:g}:1 oversubscribed" if cluster.oversubscription > 1 else ""
    size = f"{cluster.nodes:,} nodes of {cluster.gpus_per_node} {gpu.name}, {cluster.gpus:,} GPUs"
    print_pairs(
        [
            ("cluster", f"{cluster.name}: {size}"),
            ("shape", cluster.shape_name + narrow),
            ("GPU", f"{show_bytes(gpu.memory_bytes)}, {show_rate(gpu.memory_bytes_per_s)}"),
            ("vertices", ", ".join(f"{run.count:,} {run.kind}" for run in wiring.vertices)),
        ]
    )
    rows = [[ends, f"{count:,}", show_rate(rate), show_s(latency)] for ends, count, rate, latency in _alike(wiring)]
    print_table(["links", "count", "each", "latency"], rows, right=(1, 2, 3))


def _alike(wiring: Wiring) -> list[tuple[str, int, float, float]]:
    """Links that join the same kinds of vertices at the same rate and latency, counted, in the order of the wiring."""
    import numpy as np

    first = np.array([run.first for run in wiring.vertices])
    source, target = (np.searchsorted(first, ends, side="right") - 1 for ends in (wiring.source, wiring.target))
    columns = np.stack([source, target, wiring.capacity_bytes_per_s, wiring.latency_s], axis=1)
    found, begin, counts = np.unique(columns, axis=0, return_index=True, return_counts=True)
    kinds = [run.kind for run in wiring.vertices]
    named = [f"{kinds[int(a)]} > {kinds[int(b)]}" for a, b, *_ in found]
    return [(named[i], int(counts[i]), float(found[i, 2]), float(found[i, 3])) for i in np.argsort(begin)]
