"""`trainsim collective`: what nccl-tests would print on a cluster that nobody has bought yet."""

from __future__ import annotations

import re
from typing import Any

import click

from ._show import Count, json_option, print_json, print_pairs, print_table, progress

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
MOST_BYTES = 2**40
MOST_ROWS = 4096
FACE_VALUE = "note: stepwise takes links at their face value; nothing that was measured on this fabric enters"
SET_UP = "note: the switches between nodes are taken to be set up for sharp, which auto does not count on here"
FIDELITIES = ("fluid", "closed", "stepwise")


class Size(click.ParamType[int]):
    """A number of bytes as nccl-tests writes it: K, M and G are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = SIZE.fullmatch(str(value).strip())
        size = int(found[1]) * UNITS[found[2].upper()] if found else 0
        if not 1 <= size <= MOST_BYTES:
            self.fail(f"{value!r} is no size: bytes such as 8, 64K, 512M or 8G", param, ctx)
        return size


@click.command("collective", short_help="Time a collective on a cluster: the table of nccl-tests.")
@click.argument("kind")
@click.option("--cluster", required=True, help="A name that `trainsim catalog clusters` lists, or a YAML file.")
@click.option("--gpus", type=Count(1, 2**20), help="How many in all.  [default: those of the nodes]")
@click.option("--nodes", type=Count(1, 2**20), help="Over how many nodes.  [default: as few as hold the GPUs]")
@click.option("-b", "first", type=Size(), default="8", show_default=True, help="Smallest size.")
@click.option("-e", "last", type=Size(), default="8G", show_default=True, help="Largest size.")
@click.option("-f", "factor", type=Count(2, 1024), default=2, show_default=True, help="From one size to the next.")
@click.option("--algorithm", default="auto", show_default=True, help="One that `trainsim catalog collectives` lists, or auto.")
@click.option("--fidelity", type=click.Choice(FIDELITIES), default="fluid", show_default=True, help="How links are shared.")
@click.option("--pieces", type=Count(1, 2**20), help="Into how many a pipelined algorithm cuts a payload.  [default: no end]")
@json_option
def command(
    kind: str, cluster: str, gpus: int | None, nodes: int | None, first: int, last: int, factor: int, algorithm: str,
    fidelity: str, pieces: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Time collective KIND (all_reduce, reduce_scatter, all_gather, alltoall, broadcast or sendrecv), alone, by size.

    Sizes and bus bandwidths are counted as nccl-tests counts them: the size of a gather, scatter or all-to-all is that of
    the whole buffer of a rank.
    """
    from ..study.api import cluster as find
    from ..study.collective import spread, time_collective
    from ..study.timing import switch_abilities

    with progress("simulating"):
        found = find(cluster) if gpus is None and nodes is None else _large_enough(find(cluster), gpus, nodes)
        chosen, sizes = spread(found, gpus, nodes), _sizes(first, last, factor)
        how: dict[str, Any] = {"algorithm": algorithm, "fidelity": fidelity, "pieces": pieces}
        kind = kind.replace("-", "_").lower()
        rows = time_collective(kind, found, sizes, gpus=chosen, **how)
    if fidelity == "stepwise" and found.fabric != "ideal":
        click.echo(FACE_VALUE, err=True)
    elif rows[0].algorithm == "sharp" and found.fabric != "ideal" and "sharp" not in switch_abilities(found):
        click.echo(SET_UP, err=True)
    used = len({gpu // found.gpus_per_node for gpu in chosen.tolist()})
    if as_json:
        head = {"kind": kind, "cluster": found.name, "gpus": len(chosen), "nodes": used, "fidelity": fidelity}
        print_json({**head, "rows": [row.as_dict() for row in rows]})
        return
    spreading = f"{len(chosen):,} GPUs, {len(chosen) // used} on each of {used:,} node{'s' * (used > 1)} of {found.name}"
    print_pairs([("collective", kind), ("on", spreading)])
    cells = []
    for r in rows:
        figures = (r.as_dict()["time_us"], r.algorithm_gb_per_s, r.bus_gb_per_s)
        cells.append([f"{r.size_bytes:,}", *(f"{figure:.2f}" for figure in figures), r.algorithm, r.provenance])
    print_table(["size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "algorithm", "known by"], cells, right=range(4))


def _large_enough(cluster: Any, gpus: int | None, nodes: int | None) -> Any:
    """The cluster with as many nodes as were asked for: a named cluster says how it grows."""
    from dataclasses import replace

    needed = nodes or -(-(gpus or 1) // cluster.gpus_per_node)
    return replace(cluster, nodes=max(needed, cluster.nodes)) if needed > cluster.nodes else cluster


def _sizes(first: int, last: int, factor: int) -> list[int]:
    from ..errors import OutsideDomain

    if last < first:
        raise OutsideDomain(f"the largest size, {last}, is below the smallest, {first}", nearest={"e": first})
    sizes = [first]
    while sizes[-1] * factor <= last and len(sizes) < MOST_ROWS:
        sizes.append(sizes[-1] * factor)
    return sizes
