"""`trainsim collective`: the table that nccl-tests prints, for any cluster."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from ..errors import OutsideDomain, UserError, in_one_go
from ..plan.plan import Collectives
from ._show import Count, json_option, long_option, print_json, print_pairs, print_table, progress, say, trust_option

if TYPE_CHECKING:
    from ..config.named_parts import Trust
    from ..engine.task import Array
    from ..hardware.cluster import Cluster

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
MOST_BYTES = 2**40
MOST_ROWS = 4096
FACE_VALUE = "note: stepwise uses nominal bandwidths and latencies of links; measurements of this fabric are not used"
SET_UP = "note: the switches between nodes are assumed to be set up for sharp, which auto does not assume here"
FIDELITIES = get_args(Collectives)
SIZES = {"first": "-b", "last": "-e", "factor": "-f"}


class Size(click.types.IntParamType):
    """A number of bytes as nccl-tests writes it: K, M and G are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = SIZE.fullmatch(str(value).strip())
        size = Fraction(found[1]) * UNITS[found[2].upper()] if found else Fraction()
        if size.denominator > 1 or not 1 <= size <= MOST_BYTES:
            self.fail(f"{value!r} is not a size: bytes such as 8, 64K, 512M, 1.5G or 8G", param, ctx)
        return int(size)


ALGORITHM_HELP = "One that `trainsim catalog collectives` lists, one of your own (file.py, module:name), or auto."


@click.command("collective", short_help="Time a collective on a cluster: the table of nccl-tests.")
@click.argument("kind")
@click.option("--cluster", required=True, help="A name that `trainsim catalog clusters` lists, or a YAML file.")
@click.option("--gpus", type=Count(1, 2**20), help="Number of GPUs.  [default: all GPUs of the nodes]")
@click.option("--nodes", type=Count(1, 2**20), help="Number of nodes.  [default: as few as hold the GPUs]")
@click.option("-b", "first", type=Size(), default="8", show_default=True, help="Smallest size.")
@click.option("-e", "last", type=Size(), default="8G", show_default=True, help="Largest size.")
@click.option("-f", "factor", type=Count(2, 1024), default=2, show_default=True, help="Factor from one size to the next.")
@click.option("--algorithm", default="auto", show_default=True, help=ALGORITHM_HELP)
@click.option("--library", default="nccl", show_default=True, help="Library behind auto: nccl, nccl-plain, trtllm or vllm.")
@click.option(
    "--fidelity",
    type=click.Choice(FIDELITIES, case_sensitive=False),
    default="fluid",
    show_default=True,
    help="How links are shared: not at all (closed), max-min fairly (fluid), or message by message (stepwise).",
)
@click.option("--pieces", type=Count(1, 2**20), help="Pieces of a payload in pipelined algorithms.  [default: infinitely many]")
@click.option("--matrix", type=click.Path(path_type=Path), help="CSV of bytes per pair of ranks, for an uneven alltoall.")
@trust_option
@long_option
@json_option
def command(
    kind: str, cluster: str, gpus: int | None, nodes: int | None, first: int, last: int, factor: int, library: str,
    fidelity: str, matrix: Path | None, trust: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Time collective KIND (all_reduce, reduce_scatter, all_gather, alltoall, broadcast or sendrecv) without contention, by size.

    Sizes and bus bandwidths are defined as in nccl-tests: the size of a gather, scatter or all-to-all is that of the whole
    buffer of a rank.

    An alltoall can be uneven: --matrix FILE.csv holds a row and a column for each rank and no header; the number in row i
    and column j is the number of bytes that rank i sends to rank j. There are as many GPUs as rows, and one line is printed:
    its size is the mean number of bytes of a rank, including those that it keeps, rounded up.

    Of the libraries, nccl-plain is NCCL with a data type that switches cannot reduce, such as int8; trtllm and vllm reduce
    small payloads within a node by kernels of their own.
    """
    from ..config.fabric_files import IDEAL
    from ..config.named_parts import Trust
    from ..fabrics.policy import links_of, reducing_networks
    from ..study.collective import collective, kind_named

    kind = kind_named(kind)
    held = _matrix(matrix, kind, gpus) if matrix else None
    with progress("simulating") as expect:
        gpus = gpus if held is None else len(held)
        found = _large_enough(cluster, gpus, nodes, Trust(trust))
        sizes = [] if matrix else _sizes(first, last, factor)
        options |= {"library": library, "fidelity": fidelity, "matrix": held, "expect": expect}
        table = collective(kind, found, sizes, gpus=gpus, nodes=nodes, **options)
    rows = table.rows
    if fidelity == "stepwise" and found.fabric is not IDEAL:
        say(FACE_VALUE, err=True)
    elif rows[0].algorithm == "sharp" and found.fabric is not IDEAL and "sharp" not in reducing_networks(links_of(found)):
        say(SET_UP, err=True)
    if as_json:
        print_json(table.as_dict())
        return
    print_pairs(table.heading)
    cells = []
    for r in rows:
        figures = (r.as_dict()["time_us"], r.algorithm_gb_per_s, r.bus_gb_per_s)
        cells.append([f"{r.size_bytes:,}", *(f"{figure:.2f}" for figure in figures), r.algorithm, r.provenance])
    print_table(["size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "algorithm", "provenance"], cells, right=range(4))


def _matrix(file: Path, kind: str, gpus: int | None) -> Array:
    """The matrix of bytes in a file, if no other option contradicts it."""
    from ..fabrics.uneven_alltoall import KIND, read

    context = click.get_current_context()
    given = [option for name, option in SIZES.items() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]

    def check_kind() -> None:
        if kind != KIND:
            raise UserError(f"--matrix: {kind} takes no matrix of bytes", hint=f"only {KIND} does")

    def check_sizes() -> None:
        if given:
            raise UserError(f"{', '.join(given)}: no sizes beside --matrix", hint="the matrix determines the size")

    held: Array = in_one_go(check_kind, check_sizes, lambda: read(file))[-1]
    if gpus not in (None, len(held)):
        raise UserError(f"{len(held)} rows, and --gpus {gpus}", where=str(file), hint="leave --gpus out, or give every GPU a row")
    return held


def _large_enough(name: str, gpus: int | None, nodes: int | None, trust: Trust) -> Cluster:
    """The cluster, enlarged to the requested number of nodes if it has fewer; a file that cannot be built with its own number of
    nodes is built with the requested one.
    """
    from ..config.load import cluster as find

    try:
        found = find(name, trust=trust)
    except UserError:
        if nodes is None:
            raise
        return find(name, trust=trust, nodes=nodes)
    needed = nodes or -(-(gpus or 1) // found.gpus_per_node)
    return find(name, trust=trust, nodes=needed) if needed > found.nodes else found


def _sizes(first: int, last: int, factor: int) -> list[int]:
    if last < first:
        raise OutsideDomain(f"the largest size, {last}, is below the smallest, {first}", nearest={"e": first})
    sizes = [first]
    while sizes[-1] * factor <= last and len(sizes) < MOST_ROWS:
        sizes.append(sizes[-1] * factor)
    return sizes
