"""`trainsim calibrate`: measurements of one's own made into data that the simulator reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from .. import escape
from ._show import checked_path, json_option, print_json, print_table, say


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
@click.option("--kind", metavar="COLLECTIVE", help="Of runs that do not name their program, such as alltoall.")
@json_option
def links(
    files: tuple[Path, ...], out: str | None, inside: str | None, across: str | None, kind: str | None, as_json: bool
) -> None:
    """Fit a fabric to FILES, what nccl-tests printed (its table, or its JSON): constants, and a curve for each run.

    Give runs of several collectives and numbers of GPUs, in one file or in several: what they do not tell is taken from the
    fabric that ships and is nearest.
    """
    from ..files import atomic
    from ..study.calibrate.links import calibrated
    from ..study.links import fabric_text

    fabric = calibrated(files, Path(out).stem if out else files[0].stem, inside, across, kind)
    content = fabric_text.text(fabric)
    if out:
        with atomic(out) as temporary:
            temporary.write_text(content, encoding="utf-8")
    curves = [
        {"kind": c.kind, "ranks": c.ranks, "nodes": c.nodes, "knots": len(c.knots), "error": c.error} for c in fabric.curves
    ]
    if as_json:
        print_json({"name": fabric.name, "file": out, "curves": curves, "yaml": content})
    elif out is None:
        say(content, nl=False)
    else:
        say(f"{out}: {fabric.source}")
        rows = [[str(c["kind"]), str(c["ranks"]), str(c["nodes"]), str(c["knots"]), f"{c['error']:.1%}"] for c in curves]
        print_table(["collective", "ranks", "nodes", "knots", "median error"], rows, right=(1, 2, 3, 4))


@command.command("gpu", short_help="Time the kernels of a GPU with PyTorch.")
@click.option("--model", metavar="NAME", help="Time the kernels of this model, as several plans split it.  [default: a grid]")
@click.option("--dtype", default="bf16,fp8", show_default=True, help="Of products and attention: bf16, fp16, fp8.")
@click.option("--ops", help="Only these, such as gemm,attention,rmsnorm,adam.  [default: all]")
@click.option("--budget", default="10 min", show_default=True, help="When to stop; the time is shared fairly by the operators.")
@click.option(
    "--out", metavar="DIR", help="Where to write.  [default: results/calibration/GPU-DATE, the newest if it is not complete]"
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="cpu tries it out without a GPU.")
@json_option
def gpu(model: str | None, dtype: str, ops: str | None, budget: str, out: str | None, device: str, as_json: bool) -> None:
    """Time kernels with CUDA events and write them to raw.csv, the machine to machine.json, fitted constants to fit.csv.

    Every kernel is warmed up, run on random data with a cold cache, and written as soon as it is measured: stop it when you
    like, the same command goes on. The fits are also written as profile.yaml, which a run takes by
    `--set cluster.gpu.profile=DIR/profile.yaml`.
    """
    from datetime import date

    from ..study.calibrate import grid, survey_folder
    from ..study.calibrate.fit_table import fit_survey
    from ..study.calibrate.harness import begin, measure_all
    from ..study.calibrate.machine import TorchBench
    from ..units import SECONDS, parse

    budget_s, today = parse(budget, SECONDS), date.today().isoformat()
    asked = grid.wanted(model, _words(dtype, "--dtype"), [] if ops is None else _words(ops, "--ops"))
    bench = TorchBench(device)
    where = survey_folder.folder(out, bench.name, today)
    try:
        wanted = grid.possible(asked, bench.device)
        begin(where, bench.name, bench.facts(), today)
        with bench, _progress() as report:
            outcome = measure_all(bench, wanted, where / survey_folder.RAW, budget_s, report)
    except KeyboardInterrupt:
        kept = f"{survey_folder.rows_in(where)} rows are kept in {where / survey_folder.RAW}"
        say(f"{kept}; the same command goes on from there", err=True)
        raise
    written = fit_survey(where, outcome.left)
    if as_json:
        counts = {name: getattr(outcome, name) for name in ("measured", "kept", "left", "refused")}
        print_json({"folder": str(where), "too_large": len(set(asked) - set(wanted)), **counts, **written.record()})
        return
    say(f"{outcome.measured} kernels measured, {outcome.kept} were there, {outcome.left} wait for more time: {where}")
    if too_large := len(set(asked) - set(wanted)):
        say(f"{too_large} sizes are too large for a CPU; of what is too large in every size one was made smaller")
    for reason, count in outcome.refused.items():
        say(f"{count} not run here: {reason}")
    for name, times in written.slowdowns.items():
        say(f"{name}: {times:.3g} times as long as alone")
    for option in written.suggested:
        say(f"launches suggest {option}")
    for row in written.impossible:
        say(f"left out: {row}", err=True)
    if written.profile:
        _print_profile(written.profile)
    else:
        say(f"no profile: {written.why_not}" + f"\n  hint: {written.hint}" * bool(written.hint))


@command.command("fit", short_help="A profile from a table of measured kernels.")
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--gpu", "gpu_name", metavar="NAME", default="", help="Whose rows, where the table names several GPUs or none.")
@click.option("--out", metavar="FILE.yaml", callback=checked_path((".yaml", ".yml")), help="Write it here, not to stdout.")
@json_option
def fit(table: Path, gpu_name: str, out: str | None, as_json: bool) -> None:
    """Fit kernel models to TABLE, measured kernels in the columns that `trainsim validate --kind kernels` reads.

    Give the profile to a run as `--set cluster.gpu.profile=FILE.yaml`, or to the GPU in a scenario:
    `gpu: {name: h100, profile: FILE.yaml}`. Kernels that the table says nothing about keep the constants that ship.
    """
    from ..files import atomic
    from ..study.calibrate import fit_table

    found = fit_table.profile_of(table, gpu_name)
    made = found.profile
    content = fit_table.text(made, f"Kernels of {made.gpu}: constants fitted to {table.name} by trainsim calibrate fit")
    if out:
        with atomic(out) as temporary:
            temporary.write_text(content, encoding="utf-8")
    for one in found.impossible:
        say(f"left out: {table}:{one.row.line}: {one.row.probe}: {one.why}", err=True)
    if as_json:
        print_json({"gpu": made.gpu, "file": out, **found.record(), "yaml": content})
    elif out is None:
        say(content, nl=False)
    else:
        _print_profile(made)
        for reason, count in made.unused.items():
            say(f"{count} rows not used: {reason}")
        say(f"written: {Path(out).resolve()}")


@command.command("trace", short_help="A table of kernels from a PyTorch trace.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--gpu", "gpu_name", metavar="NAME", default="", help="The GPU, for the table.  [default: as the trace says]")
@click.option("--out", metavar="TABLE.csv", callback=checked_path((".csv",)), help="Write the table here, for `calibrate fit`.")
@json_option
def trace(file: Path, gpu_name: str, out: str | None, as_json: bool) -> None:
    """Read FILE, what torch.profiler exported (Kineto, .json or .json.gz), into a table of kernels and collectives.

    Shapes are there if it ran with record_shapes=True. Kernels that match none of ours are listed by name and not fitted.
    """
    from ..files import atomic
    from ..study.calibrate import trace as traces

    found = traces.read(file, gpu_name)
    if out:
        with atomic(out) as temporary:
            temporary.write_text(traces.text(found, f"trace {file.name}"), encoding="utf-8")
    record = traces.record(found)
    if as_json:
        print_json({**record, "file": out})
        return
    _print_trace(record)


def _print_trace(record: dict[str, Any]) -> None:
    spread = ("calls", "median us", "total us")
    rows = [[e["name"], e["kernel"], *_times(e)] for e in record["kernels"]]
    print_table(["name", "kernel", *spread], rows, right=(2, 3, 4))
    if record["collectives"]:
        rows = [[e["kind"], e["dtype"], str(e["bytes"]), str(e["ranks"]), *_times(e)] for e in record["collectives"]]
        print_table(["collective", "dtype", "bytes", "ranks", *spread], rows, right=(2, 3, 4, 5, 6))
    strange = f"{record['unmatched_fraction']:.1%} of the time matches nothing"
    say(f"busy {record['busy_fraction']:.1%} of {record['span_s']:.6g} s; {strange}")
    each = record["launches"]
    if each["apart_us"] is not None:
        say(f"{each['count']} launches, {each['per_s']:,.0f} in a second, {each['apart_us']:.2f} us from one to the next")


def _times(entry: dict[str, Any]) -> list[str]:
    return [str(entry["calls"]), f"{entry['median_us']:,.1f}", f"{entry['total_us']:,.0f}"]


def _words(text: str, option: str) -> list[str]:
    from ..errors import UserError

    found = [word for part in text.split(",") if (word := part.strip().lower())]
    if not found:
        raise UserError(f"{option} names nothing", hint="leave it out, or give names with commas between them")
    return found


def _print_profile(made: Any) -> None:
    """The fits of a profile, what was scaled for want of rows, and what the profile does not speak of."""
    from ..study.calibrate import fit_table

    fits, ratios = fit_table.fits(made), fit_table.ratios(made)
    rows = [
        [e["family"], e["dtype"], e["library"], str(e["rows"]), str(e["held_out"]), f"{e['error']:.1%}", f"{e['sigma']:.1%}"]
        for e in fits
        if e["rows"]
    ]
    columns = ["kernels", "dtype", "library", "rows", "held out", "mean error", "standard error"]
    if rows:
        print_table(columns, rows, right=(3, 4, 5, 6))
    if ratios:
        rows = [[e["op"], f"{e['times']:.3g}", str(e["rows"]), f"{e['error']:.1%}", *_smaller(e)] for e in ratios]
        columns = ["operator", "times a pointwise kernel", "rows", "error", "smaller rows", "their error"]
        print_table(columns, rows, right=(1, 2, 3, 4, 5))
    for e in fits:
        if e["scaled"]:
            name = " ".join(filter(None, (e["family"], e["dtype"], e["library"])))
            say(f"{name}: too few rows for a fit; {e['scaled']['times']:.3g} times {e['scaled']['of']}")
    for words in made.missing:
        say(f"not measured: {words}, as it ships")


def _smaller(ratio: dict[str, Any]) -> tuple[str, str]:
    """How many rows were too small to tell a ratio, and how far off they are by it."""
    return (str(ratio["smaller_rows"]), f"{ratio['smaller_error']:.1%}") if ratio["smaller_rows"] else ("", "")


@contextmanager
def _progress() -> Iterator[Callable[[Any, Any], None]]:
    """What is measured now, on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda outcome, probe: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")

        def report(outcome: Any, probe: Any) -> None:
            now = escape.terminal(str(probe))
            bar.update(task, total=outcome.wanted, completed=outcome.wanted - outcome.left, description=now)

        yield report
