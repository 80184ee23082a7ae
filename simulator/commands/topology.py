"""`trainsim topology`: the vertices and links of a cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from ._show import json_option, print_json, print_pairs, print_table

MOST_LINKS = 2_000_000


@click.command("topology")
@click.argument("cluster")
@click.option("--nodes", type=click.IntRange(1), help="How many nodes, if not as many as the file says.")
@json_option
def command(cluster: str, nodes: int | None, as_json: bool) -> None:
    """Show CLUSTER, a name that `trainsim catalog clusters` lists or a YAML file: its vertices, links and rates."""
    from ..errors import UserError
    from ..study.api import cluster as find
    from ..units import show_bytes, show_rate, show_s

    found = find(cluster, **({"nodes": nodes} if nodes else {}))
    wiring = found.wiring
    kinds = {run.kind: run.count for run in wiring.vertices}
    if as_json:
        if wiring.links > MOST_LINKS:
            raise UserError(f"{wiring.links:,} links are too many to print", hint="show fewer nodes: --nodes 64")
        print_json(
            {
                "name": found.name,
                "shape": found.shape_name,
                "gpu": found.gpu.name,
                "gpus": found.gpus,
                "nodes": found.nodes,
                "vertices": kinds,
                "links": [_link(wiring, link) for link in range(wiring.links)],
            }
        )
        return
    print_pairs(
        [
            ("cluster", f"{found.name}: {found.nodes} nodes of {found.gpus_per_node} {found.gpu.name}, {found.gpus:,} GPUs"),
            (
                "shape",
                found.shape_name + (f", {found.oversubscription:g}:1 oversubscribed" if found.oversubscription > 1 else ""),
            ),
            ("GPU", f"{show_bytes(found.gpu.memory_bytes)}, {show_rate(found.gpu.memory_bytes_per_s)}"),
            ("vertices", ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())),
        ]
    )
    runs: Counter[tuple[str, str, float, float]] = Counter()
    for link in range(wiring.links):
        ends = wiring.vertex_kind(int(wiring.source[link])), wiring.vertex_kind(int(wiring.target[link]))
        runs[(*ends, float(wiring.capacity_bytes_per_s[link]), float(wiring.latency_s[link]))] += 1
    rows = [[f"{a} > {b}", f"{count:,}", show_rate(rate), show_s(latency)] for (a, b, rate, latency), count in runs.items()]
    print_table(["links", "count", "each", "latency"], rows, right=(1, 2, 3))


def _link(wiring: Any, link: int) -> dict[str, Any]:
    source, target = wiring.vertex_name(int(wiring.source[link])), wiring.vertex_name(int(wiring.target[link]))
    return {
        "name": f"{source}>{target}",
        "source": source,
        "target": target,
        "capacity_bytes_per_s": float(wiring.capacity_bytes_per_s[link]),
        "latency_s": float(wiring.latency_s[link]),
    }
