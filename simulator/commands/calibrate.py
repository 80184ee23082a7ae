"""`trainsim calibrate`: measurements of one's own made into data that the simulator reads."""

from __future__ import annotations

from pathlib import Path

import click

from ._show import checked_path, json_option, print_json, print_table


@click.group("calibrate", short_help="Turn measurements of your own into data.")
def command() -> None:
    """Turn measurements of your own into data that the simulator reads."""


@command.command("links", short_help="A fabric from the output of nccl-tests.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", metavar="FILE.yaml", callback=checked_path((".yaml", ".yml")), help="Write the fabric here, not to stdout."
)
@click.option("--inside", metavar="FABRIC", help="Start the links inside nodes from this one.  [default: the nearest]")
@click.option("--across", metavar="FABRIC", help="Start the network between nodes from this one.  [default: the nearest]")
@json_option
def links(files: tuple[Path, ...], out: str | None, inside: str | None, across: str | None, as_json: bool) -> None:
    """Fit a fabric to FILES, what nccl-tests printed (its table, or its JSON): constants, and a curve for each run.

    Give runs of several collectives and numbers of GPUs, in one file or in several: what they do not tell is taken from the
    fabric that ships and is nearest.
    """
    from ..files import atomic
    from ..study import fabrics
    from ..study.calibrate.links import calibrated

    fabric = calibrated(files, Path(out).stem if out else files[0].stem, inside, across)
    content = fabrics.text(fabric)
    if out:
        with atomic(out) as temporary:
            temporary.write_text(content, encoding="utf-8")
    curves = [
        {"kind": c.kind, "ranks": c.ranks, "nodes": c.nodes, "knots": len(c.knots), "error": c.error} for c in fabric.curves
    ]
    if as_json:
        print_json({"name": fabric.name, "file": out, "curves": curves, "yaml": content})
    elif out is None:
        click.echo(content, nl=False)
    else:
        rows = [[str(c["kind"]), str(c["ranks"]), str(c["nodes"]), str(c["knots"]), f"{c['error']:.1%}"] for c in curves]
        print_table(["collective", "ranks", "nodes", "knots", "median error"], rows, right=(1, 2, 3, 4))
