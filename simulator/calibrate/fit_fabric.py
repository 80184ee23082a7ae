"""A fabric of one's own from the output of nccl-tests: constants fitted to all runs together, and a curve for each run.

The start, and what the measurements do not tell, is a fabric that ships: the one whose rate is nearest to what was measured,
of those that join the GPUs which the runs name, or the one that is named. Runs inside a node give the links inside; runs over
several nodes the network across them. Where a run was faster than the wire of that start, the wire is: its rates are raised
until no measurement beats them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from ..config import fabric_files
from ..config.fabric_files import Fabric
from ..costs.collectives import theory
from ..costs.collectives.curves import Curve, uncontended_time
from ..costs.collectives.link_constants import Across, Inside
from ..costs.collectives.theory import Call
from ..errors import UserError
from ..measurements.nccl_tests import Table, read
from .collective_curves import Free, Point, fitted, knots

INSIDE_FREE = {"launch_s": 0.5, "step_s": 0.5, "efficiency": 0.2, "fill_s": 0.7}
ACROSS_FREE = {"crossing_s": 0.7, "efficiency": 0.2, "rendezvous": 0.3, "rendezvous_bytes": 1.0}
"""What is fitted, and the sigma of the logarithm of its prior."""
LIMITS = (
    ("efficiency", 0.0, 1.0), ("pair_efficiency", 0.0, 2.0), ("nvls_efficiency", 0.0, 1.0), ("rendezvous", 1.0, 100.0),
)  # fmt: skip
"""Between which a file takes them."""
MOST_NAMED = 8
"""Lines of wrong results that the source of a fabric names."""
RATE_TOLERANCE = 1e-5
"""By how much a rate stays above what a measurement needs: files hold six digits."""
PCIE = ("pcie3", "pcie4", "pcie5")
CANDIDATES_INSIDE = ("nvlink3-nvswitch", "nvlink4-nvswitch", "nvlink5-nvswitch", *PCIE)
INSIDE_OF = (
    (r"PCIe|NVL\b|\b(L40S?|L20|L4|L2|A40|A30|A16|A10G?|A2|T4|P4|P40|P100|RTX)\b|GeForce|Quadro", PCIE),
    (r"\bG?B[123]00\b", ("nvlink5-nvswitch",)),
    (r"\bG?H[12]00\b|\bH800\b|\bH20\b", ("nvlink4-nvswitch",)),
    (r"\bA[18]00\b", ("nvlink3-nvswitch",)),
    (r"\bV100\b", ("nvlink2-mesh",)),
    (r"\bMI3\d\d", ("xgmi-mi300",)),
)
"""What GPUs are joined by, by their names; the first that fits. NVLink bridges between two of PCIe are not looked for."""
CANDIDATES_ACROSS = ("edr-ib", "hdr-ib", "ndr-ib", "xdr-ib", "efa", "slingshot-11", "tcp")


def calibrated(
    paths: Sequence[Path], name: str, inside: str | None = None, across: str | None = None, kind: str | None = None
) -> Fabric:
    """The fabric that files of nccl-tests describe. `inside` and `across` name the fabrics to start from, `kind` the
    collective of runs that do not say which they are of.
    """
    tables = [table for path in paths for table in read(path, kind)]
    within = _start(tables, _possible(tables) if inside is None else (inside,), "inside")
    many = [table for table in tables if table.nodes > 1]
    between = _start(many, CANDIDATES_ACROSS if across is None else (across,), "across", within) if many else None
    start_from = f"started from {within.name}" + (f" and {between.name}" if between else "")
    source = "; ".join(["nccl-tests", start_from, *_left_out([where for table in tables for where in table.wrong])])
    within, between = _fast_enough(tables, within, between)
    start: dict[str, Any] = {"inside": replace(within, name=name)}
    free = _free("inside", INSIDE_FREE)
    if between is not None:
        start["across"] = replace(between, name=name)
        free += _free("across", ACROSS_FREE)
    found: dict[str, Any] = dict(fitted(_points(tables), start, free))
    return _fabric(name, tables, {owner: _possible_constants(held) for owner, held in found.items()}, source)


def _left_out(wrong: Sequence[str]) -> list[str]:
    """What a file says of measurements that are not in it."""
    if not wrong:
        return []
    more = f" and {len(wrong) - MOST_NAMED:,} more" if len(wrong) > MOST_NAMED else ""
    return [f"left out, as their results were wrong: {', '.join(wrong[:MOST_NAMED])}{more}"]


def _possible_constants(held: Any) -> Any:
    """Fitted constants where they mean something: runs that do not tell them push them anywhere."""
    return replace(held, **{name: min(max(getattr(held, name), low), high) for name, low, high in LIMITS if hasattr(held, name)})


def _free(owner: str, sigmas: Mapping[str, float]) -> list[Free]:
    return [Free(owner, field, sigma) for field, sigma in sigmas.items()]


def _possible(tables: Sequence[Table]) -> Sequence[str]:
    """The fabrics that may be inside nodes of the GPUs that runs name; any where one is not known."""
    names = [name for table in tables for name in table.gpus]
    found = [next((fabrics for form, fabrics in INSIDE_OF if re.search(form, name, re.IGNORECASE)), ()) for name in names]
    return tuple(dict.fromkeys(chain.from_iterable(found))) if found and all(found) else CANDIDATES_INSIDE


def _points(tables: Sequence[Table]) -> list[Point]:
    return [
        Point(_call(table, size), seconds, "inside", "across" if table.nodes > 1 else "")
        for table in tables
        for size, seconds in table.times.items()
    ]


def _call(table: Table, size: float) -> Call:
    return Call(table.kind, size, table.ranks, table.nodes)


def _start(tables: Sequence[Table], names: Sequence[str], part: str, inside: Inside | None = None) -> Any:
    """The shipped constants that come nearest to the largest messages of all runs."""
    shipped = [fabric_files.load(name) for name in names]
    held = [getattr(fabric, part) for fabric in shipped if getattr(fabric, part) is not None]
    if not held:
        raise UserError(f"{names[0]!r} describes nothing {part} nodes", hint=f"such as {CANDIDATES_INSIDE[1]}")
    own = [table for table in tables if table.nodes == 1] if part == "inside" else tables
    if not own or len(held) == 1:
        return held[min(1, len(held) - 1)]

    def misses(candidate: Any) -> float:
        worst = 0.0
        for table in own:
            size, seconds = max(table.times.items())
            links: tuple[Inside, Across | None] = (candidate, None) if inside is None else (inside, candidate)
            ratio = theory.seconds(_call(table, size), *links) / seconds
            worst += max(ratio, 1 / ratio)
        return worst

    return min(held, key=misses)


def _fast_enough(tables: Sequence[Table], inside: Inside, across: Across | None) -> tuple[Inside, Across | None]:
    """The links at rates that no measurement beats: NICs first, then the links inside, then both."""
    runs = [(_call(table, size), seconds) for table in tables for size, seconds in table.times.items()]
    near, far = ([run for run in runs if (run[0].nodes > 1) == away] for away in (False, True))
    inside = _faster(inside, max((theory.least(call, inside) / seconds for call, seconds in near), default=0.0))
    if across is None:
        return inside, None
    unbound = _faster(inside, 1 / RATE_TOLERANCE)
    network = _with_rate(across, max((theory.least(call, unbound, across) / seconds for call, seconds in far), default=0.0))
    inside = _faster(inside, max((theory.least(call, inside, network) / seconds for call, seconds in far), default=0.0))
    left = max((theory.least(call, inside, network) / seconds for call, seconds in far), default=0.0)
    return _faster(inside, left), _with_rate(network, left)


def _faster(inside: Inside, factor: float) -> Inside:
    """The same links at so many times their rate, if that is more."""
    if factor <= 1:
        return inside
    factor *= 1 + RATE_TOLERANCE
    beyond = inside.beyond_bytes_per_s * factor
    pair = inside.pair_bytes_per_s * factor
    return replace(inside, bytes_per_s=inside.bytes_per_s * factor, beyond_bytes_per_s=beyond, pair_bytes_per_s=pair)


def _with_rate(across: Across, factor: float) -> Across:
    """The same network with NICs of so many times their rate, if that is more."""
    return replace(across, nic_bytes_per_s=across.nic_bytes_per_s * factor * (1 + RATE_TOLERANCE)) if factor > 1 else across


def _fabric(name: str, tables: Sequence[Table], made: Mapping[str, Any], source: str) -> Fabric:
    together: dict[tuple[str, int, int], list[Table]] = {}
    for table in tables:
        together.setdefault((table.kind, table.ranks, table.nodes), []).append(table)
    inside, across = made["inside"], made.get("across")
    curves = tuple(_curve(own, inside, across if own[0].nodes > 1 else None) for own in together.values())
    about = f"{name}, calibrated on {len(tables)} run{'s' * (len(tables) > 1)} of nccl-tests"
    return Fabric(name, about, "measured", source, inside, across, curves)


def _curve(tables: Sequence[Table], inside: Inside, across: Across | None) -> Curve:
    """The runs of one collective over the same ranks and nodes, as one curve, with the error that its readers will see."""
    first = tables[0]
    times: dict[float, list[float]] = {}
    for table in tables:
        for size, seconds in table.times.items():
            times.setdefault(size, []).append(seconds)
    points, _ = knots(times, lambda size: theory.fastest(_call(first, size), inside, across))
    versions = ", ".join(sorted({table.version for table in tables} - {""})) or "not stated"
    source = f"nccl-tests, NCCL {versions}; {sum(map(len, times.values()))} points of {len(times)} sizes"
    made = Curve(first.kind, "auto", first.ranks, first.nodes, points, 0.0, inside, across, source)
    predicted = {size: uncontended_time(_call(first, size), inside, across, [made]).seconds for size in times}
    return replace(made, error=median(abs(predicted[size] / t - 1) for size, found in times.items() for t in found))
