"""`trainsim calibrate`: data for the simulator from measurements of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from .. import escape
from ..errors import UserError
from ..files import atomic
from ._show import checked_path, json_option, not_empty, print_json, print_table, say


@click.group("calibrate", short_help="Make data for the simulator from your own measurements.")
def command() -> None:
    """Make data for the simulator from your own measurements."""


@command.command("links", short_help="Fit a fabric to the output of nccl-tests.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", metavar="FILE.yaml", callback=checked_path((".yaml", ".yml")), help="Write to this file, not to stdout.")
@click.option("--inside", metavar="FABRIC", help="Start the links inside nodes from this fabric.  [default: the nearest]")
@click.option("--across", metavar="FABRIC", help="Start the network between nodes from this fabric.  [default: the nearest]")
@click.option("--kind", metavar="COLLECTIVE", help="Collective of runs whose output does not name it, such as alltoall.")
@json_option
def links(
    files: tuple[Path, ...], out: str | None, inside: str | None, across: str | None, kind: str | None, as_json: bool
) -> None:
    """Fit a fabric to FILES, the output of nccl-tests (its table, or its JSON): constants, and a curve for each run.

    The files should hold runs of several collectives and numbers of GPUs. Values that the runs do not determine are taken from
    the nearest fabric of the catalog.
    """
    from ..calibrate.fit_fabric import calibrated
    from ..config import fabric_files

    fabric = calibrated(files, Path(out).stem if out else files[0].stem, inside, across, kind)
    content = fabric_files.text(fabric)
    _write(out, content)
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


@command.command("gpu", short_help="Time kernels on this GPU with PyTorch.")
@click.option("--model", metavar="NAME", help="Time the kernels of this model as several plans split it.  [default: a grid]")
@click.option("--dtype", default="bf16,fp8", show_default=True, help="Formats of GEMMs and attention: bf16, fp16, fp8.")
@click.option("--ops", help="Time these operators only, such as gemm,attention,rmsnorm,adam.  [default: all]")
@click.option("--budget", default="10 min", show_default=True, help="Time to spend; operators share it equally.")
@click.option(
    "--out", metavar="DIR", help="Folder of the results.  [default: results/calibration/GPU-DATE, the newest if it is incomplete]"
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"], case_sensitive=False), default="auto", help="cpu works without a GPU."
)
@json_option
def gpu(model: str | None, dtype: str, ops: str | None, budget: str, out: str | None, device: str, as_json: bool) -> None:
    """Time kernels with CUDA events and fit kernel models to them.

    The times are written to raw.csv, a description of the machine to machine.json, and the fitted constants to fit.csv and
    profile.yaml. A run uses them with `--set cluster.gpu.profile=DIR/profile.yaml`. Every kernel is warmed up and runs on random
    data with a cold cache. Its time is written at once: you can stop at any time, and the same command continues.
    """
    from datetime import date

    from ..calibrate import survey_folder
    from ..calibrate.bench import kernel_grid
    from ..calibrate.bench.run_queue import begin, measure_all
    from ..calibrate.bench.torch_bench import TorchBench
    from ..calibrate.fit_table import fit_survey
    from ..units import SECONDS, parse

    budget_s, today = parse(budget, SECONDS), date.today().isoformat()
    asked = kernel_grid.wanted(model, _names(dtype, "--dtype"), [] if ops is None else _names(ops, "--ops"))
    bench = TorchBench(device)
    where = survey_folder.folder(out, bench.name, today)
    try:
        wanted = kernel_grid.for_cpu(asked) if bench.device == "cpu" else asked
        begin(where, bench.name, bench.facts(), today)
        with bench.monitor, _progress() as report:
            outcome = measure_all(bench, wanted, where / survey_folder.RAW, budget_s, report)
    except KeyboardInterrupt:
        kept = f"{survey_folder.rows_in(where)} rows are kept in {where / survey_folder.RAW}"
        say(f"{kept}; the same command continues from there", err=True)
        raise
    written = fit_survey(where, outcome.left)
    too_large = len(set(asked) - set(wanted))
    if as_json:
        counts = {name: getattr(outcome, name) for name in ("measured", "kept", "left", "refused")}
        print_json({"folder": str(where), "too_large": too_large, **counts, **written.record()})
        return
    say(f"{outcome.measured} kernels measured, {outcome.kept} measured before, {outcome.left} not yet for lack of time: {where}")
    if too_large:
        say(f"{too_large} sizes are too large for a CPU; operators too large in every size are timed in a smaller one")
    for reason, count in outcome.refused.items():
        say(f"{count} not run here: {reason}")
    for name, times in written.slowdowns.items():
        say(f"{name}: {times:.3g} times its uncontended time")
    for option in written.suggested:
        say(f"launches suggest {option}")
    for row in written.impossible:
        say(f"left out: {row}", err=True)
    if written.profile:
        _print_profile(written.record())
    else:
        say(f"no profile: {written.why_no_profile}" + f"\n  hint: {written.hint}" * bool(written.hint))


@command.command("power", short_help="Record clock and power of this GPU under sustained loads.")
@click.option("--loads", "names", help="Run these loads only, such as gemm,attention_fwd,layer,step.  [default: all]")
@click.option("--seconds", default="3 s", show_default=True, help="Time of each load.")
@click.option("--out", metavar="DIR", help="Folder of the results.  [default: results/calibration/GPU-DATE]")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"], case_sensitive=False), default="auto", help="cpu works without a GPU."
)
@json_option
def power(names: str | None, seconds: str, out: str | None, device: str, as_json: bool) -> None:
    """Run GEMMs, attention, memory-bound operators, a layer and training steps for seconds each, and record clock and power.

    Kernel tables are timed in bursts; a training step runs at the clock that the board sustains. The times of short windows go to
    sustained.csv, the description of the machine to sustained.json. GEMMs also run for a fraction of the time only, and on zeros,
    which shows how the clock depends on the power without changing a limit. Steps run as eager operators and as one CUDA graph.
    """
    from datetime import date

    from ..calibrate import survey_folder
    from ..calibrate.bench import sustained_table
    from ..calibrate.bench.sustained_run import HEADER
    from ..calibrate.bench.torch_bench import TorchBench
    from ..errors import did_you_mean
    from ..units import SECONDS, parse

    seconds_each, chosen = parse(seconds, SECONDS), [] if names is None else _names(names, "--loads")
    for name in chosen:
        if name not in sustained_table.NAMES:
            raise UserError(f"no load {name!r} to run", hint=did_you_mean(name, sustained_table.NAMES))
    bench = TorchBench(device, sustained_table.PERIOD_MS)
    where = Path(out) if out else survey_folder.folder(None, bench.name, date.today().isoformat())
    about, found, refused = bench.facts() | {"measured": date.today().isoformat()}, [], list[str]()
    for one in sustained_table.measure(bench, seconds_each, chosen, refused.append):
        found.append(one)
        sustained_table.write(where, found, about)
        say(" ".join(filter(None, one.summary())), err=True)
    rows = [one.summary() for one in found]
    if as_json:
        print_json({"folder": str(where), "loads": [dict(zip(HEADER, row, strict=True)) for row in rows], "refused": refused})
        return
    print_table(list(HEADER), rows, right=(2, 3, 4, 5, 6, 7, 8))
    for reason in refused:
        say(f"not run here: {reason}")
    say(f"written: {where / sustained_table.TABLE}")


def _gpu_option(help: str) -> Callable[..., Any]:
    """The option that names the GPU of a table."""
    return click.option("--gpu", "gpu_name", metavar="NAME", default="", callback=not_empty, help=help)


@command.command("fit", short_help="Fit a profile to a table of measured kernels.")
@click.argument("table", type=click.Path(path_type=Path))
@_gpu_option("GPU of the rows to fit, if the table names several or none.")
@click.option("--out", metavar="FILE.yaml", callback=checked_path((".yaml", ".yml")), help="Write to this file, not to stdout.")
@json_option
def fit(table: Path, gpu_name: str, out: str | None, as_json: bool) -> None:
    """Fit kernel models to TABLE, measured kernels in the columns that `trainsim validate --kind kernels` reads.

    Give the profile to a run with `--set cluster.gpu.profile=FILE.yaml`, or to the GPU in a scenario:
    `gpu: {name: h100, profile: FILE.yaml}`. Kernels that are not in the table keep the constants of the catalog.
    """
    from ..calibrate import fit_table

    made = fit_table.profile_of(table, gpu_name)
    content = fit_table.text(made, f"Kernels of {made.on.name}: constants fitted to {table.name} by trainsim calibrate fit")
    record = {**fit_table.record(made), "unused": dict(made.unused), "impossible": len(made.impossible)}
    _write(out, content)
    for one in made.impossible:
        say(f"left out: {table}:{one.row.line}: {one.row.probe}: {one.why}", err=True)
    if as_json:
        print_json({"gpu": made.on.name, "file": out, **record, "yaml": content})
    elif out is None:
        say(content, nl=False)
    else:
        _print_profile(record)
        for reason, count in made.unused.items():
            say(f"{count} rows not used: {reason}")
        say(f"written: {Path(out).resolve()}")


@command.command("trace", short_help="Make a table of kernels from a PyTorch trace.")
@click.argument("file", type=click.Path(path_type=Path))
@_gpu_option("Name of the GPU in the table.  [default: the name in the trace]")
@click.option(
    "--out", metavar="TABLE.csv", callback=checked_path((".csv",)), help="Write the table to this file, for `calibrate fit`."
)
@json_option
def trace(file: Path, gpu_name: str, out: str | None, as_json: bool) -> None:
    """Make a table of kernels and collectives from FILE, a trace of torch.profiler (Kineto, .json or .json.gz).

    Shapes are recorded if the profiler ran with record_shapes=True. Unknown kernels are listed by name and are not fitted.
    """
    from ..measurements.torch_trace import trace_table as traces

    found = traces.read(file, gpu_name)
    _write(out, traces.text(found, f"trace {file.name}"))
    record = traces.record(found)
    if as_json:
        print_json({**record, "file": out})
    else:
        _print_trace(record)


def _write(out: str | None, content: str) -> None:
    """Writes a file, if one is named."""
    if out:
        with atomic(out) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _print_trace(record: dict[str, Any]) -> None:
    spread = ("calls", "median us", "total us")
    rows = [[e["name"], e["kernel"], *_times(e)] for e in record["kernels"]]
    print_table(["name", "kernel", *spread], rows, right=(2, 3, 4))
    if record["collectives"]:
        rows = [[e["kind"], e["dtype"], str(e["bytes"]), str(e["ranks"]), *_times(e)] for e in record["collectives"]]
        print_table(["collective", "dtype", "bytes", "ranks", *spread], rows, right=(2, 3, 4, 5, 6))
    unknown = f"{record['unmatched_fraction']:.1%} of kernel time in unknown kernels"
    say(f"busy {record['busy_fraction']:.1%} of {record['span_s']:.6g} s; {unknown}")
    each = record["launches"]
    if each["apart_us"] is not None:
        say(f"{each['count']} launches, {each['per_s']:,.0f} per second, {each['apart_us']:.2f} us from one to the next")


def _times(entry: dict[str, Any]) -> list[str]:
    return [str(entry["calls"]), f"{entry['median_us']:,.1f}", f"{entry['total_us']:,.0f}"]


def _names(text: str, option: str) -> list[str]:
    found = [word for part in text.split(",") if (word := part.strip().lower())]
    if not found:
        raise UserError(f"{option} names nothing", hint="leave it out, or give names with commas between them")
    return found


def _print_profile(record: dict[str, Any]) -> None:
    """Prints the fits of a profile, those that were scaled to a few rows, and the kernels that were not measured."""
    if rows := [
        [e["family"], e["dtype"], e["library"], str(e["rows"]), str(e["held_out"]), f"{e['error']:.1%}", f"{e['sigma']:.1%}"]
        for e in record["fits"]
        if e["rows"]
    ]:
        columns = ["kernels", "dtype", "library", "rows", "held out", "mean error", "standard error"]
        print_table(columns, rows, right=(3, 4, 5, 6))
    if rows := [
        [e["op"], f"{e['times']:.3g}", str(e["rows"]), f"{e['error']:.1%}"]
        + ([str(e["smaller_rows"]), f"{e['smaller_error']:.1%}"] if e["smaller_rows"] else ["", ""])
        for e in record["ratios"]
    ]:
        columns = ["operator", "times a pointwise kernel", "rows", "error", "smaller rows", "their error"]
        print_table(columns, rows, right=(1, 2, 3, 4, 5))
    for e in record["fits"]:
        if e["scaled"]:
            name = " ".join(filter(None, (e["family"], e["dtype"], e["library"])))
            say(f"{name}: too few rows for a fit; {e['scaled']['times']:.3g} times {e['scaled']['of']}")
    for kernels in record["missing"]:
        say(f"not measured: {kernels}, as it ships")


@contextmanager
def _progress() -> Iterator[Callable[[Any, Any], None]]:
    """A progress bar on a terminal; elsewhere nothing."""
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
