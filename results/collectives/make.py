"""Regenerates topologies/fabrics and report.md: the fabrics fitted to measured collectives, and how well they predict.

    python results/collectives/make.py

reads the table of measured collectives beside the checkout (../shared/data/collectives.csv.gz). Where it is missing nothing
is written. Only rows whose role is `fit` are fitted; no measured time is kept, only constants and a few knots per series.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import collective_sources as sources
import data_rules
import held_out
import left_out_pages
import numpy as np
import published
from described_links import (
    CLOCK_GHZ,
    CYCLES,
    ONE_DIE,
    PCIE_STEP_S,
    PROXY_S,
    RDMA,
    SLOW_FABRIC,
    US,
    WIRE_S,
    described,
    laws_without,
    pcie_without,
)  # fmt: skip
from held_out import Judged

from simulator.calibrate.fit_fabric import Free, Point, fitted, knots
from simulator.config import fabric_files
from simulator.config.fabric_files import Fabric, Loader
from simulator.config.load import cluster as find
from simulator.costs.collectives import theory
from simulator.costs.collectives.curves import Curve, UncontendedTime, uncontended_time
from simulator.costs.collectives.link_constants import LAWS, Across, Inside, Laws
from simulator.costs.collectives.theory import Call
from simulator.errors import UserError
from simulator.fabrics.policy import LIBRARIES, Links, links_of, policy_on
from simulator.files import atomic
from simulator.hardware.cluster import Cluster
from simulator.measurements.measured_cluster import COLUMNS, cluster_of
from simulator.units import MIB, show_bytes

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT.parent / "shared" / "data" / "collectives.csv.gz"
REPORT = Path(__file__).with_name("report.md")
PICTURE = Path(__file__).with_name("calibration.png")
SLOW = 2.0
"""A series whose large messages take so many times what its NICs would is kept apart from the fabric of that name."""
FEW_POINTS = 100
"""A fabric with fewer starts from the mean of the others."""

SANITY = "Never fitted; but what PCIe takes was set by hand with the two servers in view, in its form and in its numbers."

SIZES_NOTE = """All fitted again, the laws too, without one size, in every series; then that size, for one size in three; each row
by the curve of its own series, whatever its description is taken to mean: what a curve is worth between its knots. (Of
cluster00 the table says NDR at 50 GB/s, and its curves are kept under a name of their own, which nobody gets who does
not ask for it: as shipped it is 66% fast.)"""
SYSTEMS_NOTE = """All fitted again, the laws too, without one system, its rows and what was set by hand to its log; then that
system from its description. Rows that are never fitted (the PCIe servers, bridged pairs) are predicted as well. A row is in its
interval if it is off by at most two of the standard errors that are stated with the time: nine of ten rows should be. A whole
generation of NVLink is not to be had from two others: launches and steps of B200 take half as many cycles again, which nothing in
its description says, so that small messages come out a quarter too fast and large ones within a tenth. cluster00 sends at a
quarter of what its NICs are sold with, the L40S server and the A40 pair at a tenth of what their links are, and no words say so.
Two logs of bridged pairs have a floor of 28 and 60 us that comes and goes from one size to the next, as of a host that is busy
with something else."""
RULES_NOTE = f"""From the measurements and the description alone: `reach` is the share of the nominal rate of its links that the
largest message of a series gets, in the middle of the series (asked: {data_rules.LEAST_REACH:.0%}); `falls` are the steps to the
next larger size at which a time falls to less than half (allowed: one in a hundred). The thresholds were chosen with the
table in view."""
LOGS_NOTE = """The same without one log, which is another version of the library, another run or another site, of a system that
has several: what intervals are worth where a time is claimed to be `interpolated`. (The only log of a system leaves a
theory behind; the constants of links are fitted again, the laws are not.)"""

SWITCHES_NOTE = """By NCCL's own cost model (simulator/costs/collectives/nccl_choice.py), unless the file of a fabric lays down
`choices:`. It decides over which links bytes go and how long that takes: a series in which a library chose for itself speaks of
what it took. A near tie of a ring and a tree is decided by the faster, over two nodes for the tree."""

INSIDE_FREE = {"launch_s": 0.3, "step_s": 0.3, "efficiency": 0.05, "fill_s": 0.4, "pair_efficiency": 0.1}
ACROSS_FREE = {"crossing_s": 0.7, "efficiency": 0.1, "rendezvous": 0.3, "rendezvous_bytes": 1.0}
LAWS_INSIDE = {
    "alltoall_launch": 0.5,
    "alltoall_step": 0.7,
    "alltoall_efficiency": 0.2,
    "direct_launch": 0.5,
    "direct_vllm_launch": 0.5,
    "direct_efficiency": 0.5,
}
LAWS_ACROSS = {"crossing_fill": 0.7, "peer_s": 0.7}
"""What is fitted, and the sigma of the logarithm of its prior: by how much fabrics differ, so that one with few points leans on
the others where its points are silent."""


# Reading --------------------------------------------------------------------------------------------------------------------

Cells = tuple[str, ...]
"""What a row says of its machine, column by column."""


@cache
def machine(cells: Cells) -> tuple[Cluster, int, int]:
    """The cluster that cells describe, and over how many of its GPUs and nodes a row was measured."""
    return cluster_of(dict(zip(COLUMNS, cells, strict=True)))


@dataclass(frozen=True)
class Measured:
    """One row: who was measured, the call, the cluster that it describes, and the fabrics that speak of it."""

    system: str
    role: str
    call: Call
    seconds: float
    machine: Cells
    inside: str
    across: str
    version: str
    source: str

    @property
    def series(self) -> tuple[Any, ...]:
        c = self.call
        return (self.inside, self.across, c.kind, c.algorithm, c.ranks, c.nodes)

    @property
    def log(self) -> str:
        return f"{self.source}; NCCL {self.version}"


def measured(path: Path) -> list[Measured]:
    """Every row whose machine is described."""
    known_links = {fabric.name: fabric for fabric in described()}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    links_of_cells = cache(lambda cells: links_on(cells, known_links.__getitem__))
    found = []
    for row in rows:
        cells, size = tuple(row[column] for column in COLUMNS), float(row["bytes"])
        try:
            _, gpus, nodes = machine(cells)
        except UserError:
            continue
        links = links_of_cells(cells)
        call = Call(row["collective"], size, gpus, nodes, series_of(row["collective"], row["library"], size))
        network = links.across.name if links.across else ""
        known = (cells, links.inside.name, network, row["nccl"], row["source"])
        found.append(Measured(row["system"], row["role"], call, float(row["time_us"]) * US, *known))
    return found


def series_of(kind: str, library: str, size: float) -> str:
    """The measured series that a row belongs to: how a library did it that chose for itself."""
    if kind != "all_reduce":
        return "auto"
    own = LIBRARIES[library]
    return own.direct if size <= own.direct_most_bytes else own.series


def links_on(cells: Cells, load: Loader) -> Links:
    """The links of the cluster that cells describe."""
    cluster, _, _ = machine(cells)
    links = links_of(cluster, load)
    if links is None:
        raise LookupError(cluster.name)
    return links


# Fitting --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """Everything that predictions are made from."""

    fabrics: Mapping[str, Fabric]
    laws: Laws

    @cached_property
    def links(self) -> Callable[[Cells], Links]:
        """The links that cells describe, looked up once."""
        return cache(lambda cells: links_on(cells, self.fabrics.__getitem__))

    def time(self, row: Measured) -> UncontendedTime:
        """The prediction for a row, from its description alone."""
        links = self.links(row.machine)
        return uncontended_time(row.call, links.inside, links.across, links.curves, laws=self.laws)

    def wire_s(self, row: Measured) -> float:
        """The time on the wire at the rates that the description names."""
        links = self.links(row.machine)
        return theory.least(row.call, links.inside, links.across)


def build(rows: Sequence[Measured], *, laws: bool, without: str = "") -> Built:
    """Fabrics, and if asked the laws, from measured rows, without what was set by hand to one system."""
    start: dict[str, Any] = {"laws": laws_without(without)}
    known_links = described(without)
    for fabric in known_links:
        start[fabric.name] = fabric.inside or fabric.across
    points = healthy(aggregated(rows), start)
    constants = fit_inside([p for p in points if not p.across], start, pcie_without(without), laws=laws)
    constants = fit_across([p for p in points if p.across], constants, laws=laws)
    curves = curves_of(rows, constants)
    count = {name: sum(name in (p.inside, p.across) for p in points) for name in constants}
    made = {}
    for fabric in known_links:
        own = tuple(curve for home, curve, _ in curves if home == fabric.name)
        behind = [row for home, _, group in curves for row in group if home == fabric.name]
        held = constants[fabric.name]
        held_as = {"inside": held} if isinstance(held, Inside) else {"across": held}
        known = "measured" if own or count[fabric.name] else "theoretical"
        source = _source(fabric, behind, fitted_too=bool(count[fabric.name]))
        made[fabric.name] = replace(fabric, provenance=known, source=source, curves=own, **held_as)
    return Built(made, constants["laws"])


def build_without(rows: Sequence[Measured], system: str) -> Built:
    """The same, and the laws, without anything that is known from one system."""
    return build([row for row in rows if row.role == "fit" and row.system != system], laws=True, without=system)


def _source(fabric: Fabric, rows: Sequence[Measured], *, fitted_too: bool) -> str:
    """Where the numbers of a fabric come from: its rate, and the measurements behind its curves and other constants."""
    if not rows:
        return f"{fabric.source}; the rest assumed, or as on the fabrics that were measured"
    what = "constants and curves" if fitted_too else "curves"
    return f"{fabric.source}; {what}: {sources.origins(rows)}, {sources.READ}"


def aggregated(rows: Iterable[Measured]) -> list[Point]:
    """The median over runs and versions of each call."""
    times: dict[tuple[str, str, Call], list[float]] = defaultdict(list)
    for row in rows:
        times[row.inside, row.across, row.call].append(row.seconds)
    return [Point(call, median(found), a, b) for (a, b, call), found in times.items()]


def healthy(points: Sequence[Point], start: Mapping[str, Any]) -> list[Point]:
    """Points of series whose large messages come near what the links allow."""

    def is_slow(p: Point) -> bool:
        expected_s = theory.seconds(p.call, start[p.inside], start.get(p.across))
        return p.call.payload_bytes > 256 * MIB and p.seconds > SLOW * expected_s

    slow = {(p.across, p.call.kind) for p in points if p.across and is_slow(p)}
    return [p for p in points if (p.across, p.call.kind) not in slow]


def fit_inside(points: Sequence[Point], start: Mapping[str, Any], pcie: Mapping[str, float], *, laws: bool) -> dict[str, Any]:
    seen = list(dict.fromkeys(p.inside for p in points))
    free = [Free(name, field, sigma) for name in seen for field, sigma in INSIDE_FREE.items()]
    free += [Free(name, "nvls_efficiency", 0.3) for name in seen if start[name].nvls_efficiency]
    free += [Free("laws", field, sigma) for field, sigma in LAWS_INSIDE.items() if laws]
    first = fitted(points, start, free)
    many = [name for name in seen if sum(p.inside == name for p in points) >= FEW_POINTS]
    usual = {field: geometric_mean([getattr(first[name], field) for name in many]) for field in INSIDE_FREE}
    usual["launch_s"] = geometric_mean([first[name].launch_s * math.sqrt(CLOCK_GHZ[name]) for name in many])
    alike = [name for name in many if name in ONE_DIE]
    usual |= {
        f"{field}_cycles": geometric_mean([getattr(first[name], field) * CLOCK_GHZ[name] for name in names])
        for field, names in (("launch_s", alike), ("step_s", alike), ("fill_s", many))
    }
    generic = {name: described_as(name, held, usual, pcie) for name, held in start.items() if isinstance(held, Inside)}
    few = [name for name in seen if name not in many]
    if not few:
        return {**first, **{name: held for name, held in generic.items() if name not in seen}}
    # The one series of a few points does not tell how pipelines fill.
    kept = [f for f in free if f.owner not in few or f.name != "fill_s"]
    return fitted(points, {**first, **{name: held for name, held in generic.items() if name not in many}}, kept)


def described_as(name: str, held: Inside, usual: Mapping[str, float], pcie: Mapping[str, float]) -> Inside:
    """Links that nobody measured, after those that somebody did."""
    own = {field: usual[field] for field in INSIDE_FREE}
    in_cycles = {field: usual[f"{field}_cycles"] / CLOCK_GHZ[name] for field in CYCLES}
    if name.startswith("pcie"):
        return replace(held, **{**own, **pcie, "launch_s": in_cycles["launch_s"], "step_s": own["step_s"] + PCIE_STEP_S})
    if name in ONE_DIE:
        return replace(held, **{**own, **in_cycles})
    return replace(held, **{**own, "launch_s": usual["launch_s"] / math.sqrt(CLOCK_GHZ[name])})


def fit_across(points: Sequence[Point], start: Mapping[str, Any], *, laws: bool) -> dict[str, Any]:
    """The networks that were measured; the others have the same proxy thread and a wire of their own."""
    guess = {name: replace(held, crossing_s=PROXY_S + WIRE_S[name]) for name, held in start.items() if isinstance(held, Across)}
    start = {**start, **guess}
    seen = list(dict.fromkeys(p.across for p in points))
    free = [Free(name, field, sigma) for name in seen for field, sigma in ACROSS_FREE.items()]
    free += [Free("laws", field, sigma) for field, sigma in LAWS_ACROSS.items() if laws]
    found: dict[str, Any] = fitted(points, start, free) if points else dict(start)
    for name in guess:
        if name not in seen:
            alike = [other for other in seen if (other in RDMA) == (name in RDMA)]
            proxy_s = fmean(found[other].crossing_s - WIRE_S[other] for other in alike) if alike else PROXY_S
            found[name] = replace(found[name], crossing_s=max(proxy_s, US) + WIRE_S[name])
        found[name] = replace(found[name], efficiency=min(found[name].efficiency, 1.0))
    return found


def curves_of(rows: Sequence[Measured], constants: Mapping[str, Any]) -> list[tuple[str, Curve, list[Measured]]]:
    """The measured series as knots, each with the fabric that it belongs to, and its rows."""
    found = []
    for (within, between, kind, name, ranks, nodes), group in groupby(sorted(rows, key=lambda r: r.series), lambda r: r.series):
        own = list(group)
        times: dict[float, list[float]] = defaultdict(list)
        for row in own:
            times[row.call.payload_bytes].append(row.seconds)

        def baseline(size: float, key: tuple[Any, ...] = (within, between, kind, name, ranks, nodes)) -> float:
            a, b, what, by, n, m = key
            return theory.fastest(Call(what, size, n, m, by), constants[a], constants.get(b), constants["laws"])

        largest = max(times)
        slow = between and median(times[largest]) > SLOW * baseline(largest)
        points, error = knots(times, baseline)
        home = SLOW_FABRIC if slow else between or within
        network = constants.get(home) if between else None
        curve = Curve(kind, name, ranks, nodes, points, error, constants[within], network, source_of(own, len(times)))
        found.append((home, curve, own))
    return found


def source_of(rows: Sequence[Measured], sizes: int) -> str:
    """Whose measurements a curve was fitted to."""
    systems = ", ".join(sorted({row.system for row in rows}))
    versions = sources.versions(rows) or "not stated"
    return f"{systems}; NCCL {versions}; {len(rows)} points of {sizes} sizes; {sources.origins(rows)}"


# Judging --------------------------------------------------------------------------------------------------------------------

Errors = dict[tuple[str, str], list[float]]
"""(system, "inside" or "across") -> predicted / measured - 1."""


def place(row: Measured) -> str:
    return "across" if row.call.nodes > 1 else "inside"


def errors(built: Built, rows: Iterable[Measured]) -> Errors:
    found: Errors = defaultdict(list)
    for row in rows:
        found[row.system, place(row)].append(built.time(row).seconds / row.seconds - 1)
    return found


def own_curve_errors(built: Built, rows: Iterable[Measured]) -> Errors:
    """The same, by the curve of a row's own series whichever fabric it was put under."""
    index = {}
    for fabric in built.fabrics.values():
        for c in fabric.curves:
            index[c.inside.name, c.kind, c.algorithm, c.ranks, c.nodes, c.source.split(";")[0]] = c
    found: Errors = defaultdict(list)
    for row in rows:
        c = row.call
        near = [
            curve
            for key, curve in index.items()
            if key[:5] == (row.inside, c.kind, c.algorithm, c.ranks, c.nodes) and row.system in key[5].split(", ")
        ]
        across_links = near[0].across if near else None
        within = built.fabrics[row.inside].inside
        time = uncontended_time(c, near[0].inside if near else within, across_links, near, laws=built.laws).seconds
        found[row.system, place(row)].append(time / row.seconds - 1)
    return found


def leave_one_size_out(rows: Sequence[Measured]) -> Errors:
    """Everything, the laws too, refitted without one size in three; then that size predicted, everywhere."""
    found: Errors = defaultdict(list)
    for size in sorted({row.call.payload_bytes for row in rows})[::3]:
        rest = [row for row in rows if row.call.payload_bytes != size]
        built = build(rest, laws=True)
        for key, values in own_curve_errors(built, [row for row in rows if row.call.payload_bytes == size]).items():
            found[key] += values
    return found


def judged(built: Built, rows: Iterable[Measured]) -> list[Judged]:
    return [Judged(row.system, row.call, row.seconds, built.time(row), built.wire_s(row), row.log) for row in rows]


def systems_left_out(rows: Sequence[Measured]) -> list[Judged]:
    """Every row, predicted from its description by what is known without its system."""
    found = []
    for system in sorted({row.system for row in rows}):
        found += judged(build_without(rows, system), [row for row in rows if row.system == system])
    return found


def logs_left_out(rows: Sequence[Measured]) -> list[Judged]:
    """Every fitted row whose system has several logs, predicted without its log."""
    fit = [row for row in rows if row.role == "fit"]
    logs: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for row in fit:
        logs[row.system, row.source, row.version].append(row)
    found = []
    for log, own in logs.items():
        if sum(system == log[0] for system, _, _ in logs) > 1:
            rest = [row for other, of_other in logs.items() if other != log for row in of_other]
            found += judged(build(rest, laws=False), own)
    return found


def table(title: str, found: Errors, note: str) -> list[str]:
    lines = [f"## {title}", "", note, "", "| system | where | rows | median | p90 | bias |", "|---|---|---|---|---|---|"]
    for (system, where), values in sorted(found.items()):
        lines.append(f"| {system} | {where} | {len(values)} | {percents(values)} |")
    for where in ("inside", "across"):
        mine = [values for (_, at), values in sorted(found.items()) if at == where]
        if mine:
            every = [value for values in mine for value in values]
            mean = fmean(median(map(abs, values)) for values in mine)
            lines.append(f"| all rows (mean of the systems' medians {mean:.1%}) | {where} | {len(every)} | {percents(every)} |")
    return [*lines, ""]


def percents(values: Sequence[float]) -> str:
    sizes = np.abs(values)
    return f"{np.median(sizes):.1%} | {np.quantile(sizes, 0.9):.1%} | {np.median(values):+.1%}"


def laws_table(refit: Laws) -> list[str]:
    lines = ["## The laws", "", "In the code, and as the fit rows alone would have them.", "", "| law | in the code | refitted |"]
    lines.append("|---|---|---|")
    for field in fields(Laws):
        now, then = getattr(LAWS, field.name), getattr(refit, field.name)
        refitted = f"{then:.3g}" if field.name in {**LAWS_INSIDE, **LAWS_ACROSS} else "not fitted"
        lines.append(f"| {field.name} | {now:.3g} | {refitted} |")
    return [*lines, ""]


def left_out_sections(rows: Sequence[Measured]) -> list[str]:
    """One system left out after the other, with a page for each; one log left out; and a picture of both."""
    systems, logs = systems_left_out(rows), logs_left_out(rows)
    rules = data_rules.by_system(systems)
    pages = left_out_pages.write_pages(systems, rules)
    lines = ["## Leave one system out", "", SYSTEMS_NOTE, ""]
    lines += held_out.lines(held_out.scores(systems, lambda row: f"{row.system} | {row.place}"), "system | where")
    lines += data_rules.means(systems, rules)
    lines += held_out.lines(held_out.scores(systems, lambda row: row.time.provenance), "provenance")
    lines += ["### What the two rules say of each system", "", RULES_NOTE, ""]
    lines += data_rules.lines(rules, pages)
    lines += ["## Leave one log out", "", LOGS_NOTE, ""]
    lines += held_out.lines(held_out.scores(logs, lambda row: row.system), "system")
    lines += held_out.lines(held_out.scores(logs, lambda row: row.time.provenance), "provenance")
    held_out.calibration_plot({"one system left out": systems, "one log left out": logs}, PICTURE)
    return [*lines, f"![Share of rows by standard errors]({PICTURE.name})", ""]


SHOWN = ("dgx1-v100", "dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "l40s-pcie")
OVER_NODES = (1, 2, 4, 16, 64)


def switches_table() -> list[str]:
    """From which payload on `auto` takes which algorithm for an all-reduce over whole nodes."""
    lines = [
        "## What auto takes for an all-reduce",
        "",
        SWITCHES_NOTE,
        "",
        "| cluster | nodes | from 8 B to 16 GiB |",
        "|---|---|---|",
    ]
    for name in SHOWN:
        for nodes in OVER_NODES:
            cluster = find(name, nodes=nodes)
            over = np.arange(cluster.gpus) // cluster.gpus_per_node
            chosen = policy_on(cluster).automatic_choice
            taken = [(2**k, chosen("all_reduce", over, 2**k)) for k in range(3, 35)]
            firsts = [(size, what) for (size, what), (_, before) in zip(taken[1:], taken, strict=False) if what != before]
            way = ", ".join([str(taken[0][1]), *(f"{what} from {show_bytes(size).replace('.0 ', ' ')}" for size, what in firsts)])
            lines.append(f"| {name} | {nodes} | {way} |")
    return [*lines, ""]


def report(rows: Sequence[Measured], built: Built) -> str:
    fit = [row for row in rows if row.role == "fit"]
    checks = [row for row in rows if row.role == "sanity"]
    lines = ["# How well collectives are predicted", ""]
    lines += ["Written by make.py. Errors are predicted / measured - 1 of single rows; all runs and versions of NCCL count.", ""]
    bare = Built({name: replace(f, curves=()) for name, f in built.fabrics.items()}, built.laws)
    lines += table("As shipped", errors(built, fit), "Rows that were fitted, predicted from the columns that describe them.")
    lines += table("Theory alone", errors(bare, fit), "The same without any curve: five constants per fabric, and the laws.")
    lines += table("Leave one size out", leave_one_size_out(fit), SIZES_NOTE)
    lines += left_out_sections(rows)
    lines += table("Sanity rows", errors(built, checks), SANITY)
    lines += sources.table(rows)
    lines += published.table(built.fabrics.__getitem__, built.laws)
    lines += switches_table()
    lines += laws_table(build(fit, laws=True).laws)
    return "\n".join(lines)


def write(path: Path, content: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def main(say: Callable[[str], None] = print) -> None:
    if not TABLE.exists():
        say(f"{TABLE.name} is not there: nothing to do")
        return
    rows = measured(TABLE)
    built = build([row for row in rows if row.role == "fit"], laws=False)
    for fabric in built.fabrics.values():
        write(fabric_files.folder() / f"{fabric.name}.yaml", fabric_files.text(fabric))
    if "--fast" not in sys.argv:
        write(REPORT, report(rows, built))


if __name__ == "__main__":
    main()
