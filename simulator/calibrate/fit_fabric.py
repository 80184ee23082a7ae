"""A user's fabric fitted to the output of nccl-tests: constants fitted to all runs together, and a curve for each run.

The fit starts from a shipped fabric, and constants that the measurements do not determine keep its values. The start is the
fabric that the user names; otherwise, among the fabrics that can join the GPUs of the runs, the one with the rate nearest to the
measurements. Runs inside a node determine the links inside; runs over several nodes determine the network across them. Where a
run was faster than the wire of the start, the rates of the wire are raised until no measurement exceeds them. Constants are
fitted in logarithms, to the logarithm of time (least_squares.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from ..config import fabric_files, shipped_fits
from ..config.catalog import gpu_named
from ..config.fabric_files import Fabric
from ..costs.collectives import theory
from ..costs.collectives.curves import Curve, Knots, uncontended_time
from ..costs.collectives.link_constants import LAWS, Across, Inside, Laws
from ..costs.collectives.theory import Call
from ..costs.kernels.gpu_model import Array
from ..errors import UserError
from ..isotonic import isotonic
from ..measurements.nccl_tests import Table, read
from .least_squares import Descent, least_squares

Constants = Mapping[str, Inside | Across | Laws]
"""Constants by the name of their fabric, or `laws`."""
Links = TypeVar("Links", Inside, Across)

MOST_KNOTS = 9
CLOSE_ENOUGH = 0.03
"""Error in log time below which a curve gets no more knots."""
SPIKE = 0.2
"""Largest difference, in log time, of one size from both its neighbours before the size counts as an outlier."""
DESCENT = Descent(25, 25, damping=1.0, eased=4, difference=2.0**-13, least_gain=2.0**-16)
FREE = {
    "inside": {"launch_s": 0.5, "step_s": 0.5, "efficiency": 0.2, "nvls_efficiency": 0.5, "fill_s": 0.7},
    "across": {"crossing_s": 0.7, "efficiency": 0.2, "rendezvous": 0.3, "rendezvous_bytes": 1.0},
}
"""The fitted constants, each with the sigma of the prior of its logarithm, where links have them at all."""
LIMITS = (
    ("efficiency", 0.0, 1.0), ("pair_efficiency", 0.0, 2.0), ("nvls_efficiency", 0.0, 1.0), ("rendezvous", 1.0, 100.0),
)  # fmt: skip
"""Range of each constant that a file of a fabric accepts."""
MOST_NAMED = 8
"""Most lines with wrong results that the source of a fabric lists."""
RATE_TOLERANCE = 1e-5
"""Relative margin of a rate above the rate that a measurement needs, since files hold six digits."""
PCIE = ("pcie3", "pcie4", "pcie5")
CANDIDATES_INSIDE = ("nvlink3-nvswitch", "nvlink4-nvswitch", "nvlink5-nvswitch", *PCIE)
INSIDE_OF = {
    "sm_70": "nvlink2-mesh", "sm_80": "nvlink3-nvswitch", "sm_90": "nvlink4-nvswitch", "sm_100": "nvlink5-nvswitch",
    "sm_103": "nvlink5-nvswitch", "gfx942": "xgmi-mi300", "gfx950": "xgmi-mi300",
}  # fmt: skip
"""Intra-node links of GPU modules by architecture. Cards and other architectures are on PCIe; NVLink bridges are ignored."""
CARDS = ("pcie", "nvl")
CANDIDATES_ACROSS = ("edr-ib", "hdr-ib", "ndr-ib", "xdr-ib", "efa", "slingshot-11", "tcp")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured time, and the fabrics of its links."""

    call: Call
    seconds: float
    inside: str
    across: str = ""


@dataclass(frozen=True, slots=True)
class Free:
    """A constant to fit, and the sigma of the prior of its logarithm around the start."""

    owner: str
    name: str
    sigma: float


def calibrated(
    paths: Sequence[Path], name: str, inside: str | None = None, across: str | None = None, kind: str | None = None
) -> Fabric:
    """The fabric that files of nccl-tests describe. `inside` and `across` name the fabrics to start from; `kind` is the
    collective of runs that do not state it."""
    tables = [table for path in paths for table in read(path, kind)]
    within = _start(tables, _possible(tables) if inside is None else (inside,), "inside")
    many = [table for table in tables if table.nodes > 1]
    between = _start(many, CANDIDATES_ACROSS if across is None else (across,), "across", within) if many else None
    source = f"nccl-tests; started from {within.name}" + (f" and {between.name}" if between else "")
    if wrong := [where for table in tables for where in table.wrong]:
        more = f" and {len(wrong) - MOST_NAMED:,} more" if len(wrong) > MOST_NAMED else ""
        source += f"; left out, as their results were wrong: {', '.join(wrong[:MOST_NAMED])}{more}"
    parts = zip(FREE, _fast_enough(tables, within, between), strict=True)
    start: dict[str, Any] = {part: replace(links, name=name) for part, links in parts if links is not None}
    fields = ((part, field, sigma) for part in start for field, sigma in FREE[part].items())
    free = [Free(part, field, sigma) for part, field, sigma in fields if getattr(start[part], field)]
    points = [
        Point(call, seconds, "inside", "across" if call.nodes > 1 else "") for table in tables for call, seconds in table.calls
    ]
    made = {part: _possible_constants(held) for part, held in fitted(points, start, free).items()}
    return _fabric(name, tables, made, source)


def _possible_constants(held: Any) -> Any:
    """Fitted constants clipped to their legal ranges: constants that the runs do not determine can take any value."""
    return replace(held, **{name: min(max(getattr(held, name), low), high) for name, low, high in LIMITS if hasattr(held, name)})


def _possible(tables: Sequence[Table]) -> Sequence[str]:
    """The fabrics that may be inside the nodes of the GPUs in the runs; all candidates if a GPU is not in the catalog."""
    found: list[str] = []
    try:
        for name in dict.fromkeys(gpu_named(name) for table in tables for name in table.gpus):
            links = "" if set(CARDS) & set(name.split("-")) else INSIDE_OF.get(shipped_fits.gpu(name).architecture, "")
            found += [links] if links else PCIE
    except UserError:
        return CANDIDATES_INSIDE
    return tuple(dict.fromkeys(found)) or CANDIDATES_INSIDE


def _start(tables: Sequence[Table], names: Sequence[str], part: str, inside: Inside | None = None) -> Any:
    """The shipped constants that are nearest to the time of the largest message of each run."""
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
            call, seconds = max(table.calls, key=lambda one: one[0].payload_bytes)
            links: tuple[Inside, Across | None] = (candidate, None) if inside is None else (inside, candidate)
            ratio = theory.seconds(call, *links) / seconds
            worst += max(ratio, 1 / ratio)
        return worst

    return min(held, key=misses)


def _fast_enough(tables: Sequence[Table], inside: Inside, across: Across | None) -> tuple[Inside, Across | None]:
    """The links with rates that no measurement exceeds: NICs are raised first, then the links inside, then both."""

    def beaten(inside: Inside, across: Across | None) -> float:
        """The largest ratio of the time at wire speed to a measured time, over runs within a node or runs across nodes."""
        runs = [run for table in tables if (table.nodes > 1) == (across is not None) for run in table.calls]
        return max((theory.least(call, inside, across) / seconds for call, seconds in runs), default=0.0)

    inside = _faster(inside, beaten(inside, None))
    if across is None:
        return inside, None
    network = _faster(across, beaten(_faster(inside, 1 / RATE_TOLERANCE), across))
    inside = _faster(inside, beaten(inside, network))
    left = beaten(inside, network)
    return _faster(inside, left), _faster(network, left)


def _faster(links: Links, factor: float) -> Links:
    """The links, or NICs, with their rates multiplied by a factor if the factor is above 1."""
    if factor <= 1:
        return links
    rates = ("bytes_per_s", "beyond_bytes_per_s", "pair_bytes_per_s") if isinstance(links, Inside) else ("nic_bytes_per_s",)
    return replace(links, **{name: getattr(links, name) * (factor * (1 + RATE_TOLERANCE)) for name in rates})


def _fabric(name: str, tables: Sequence[Table], made: Mapping[str, Any], source: str) -> Fabric:
    together: dict[tuple[str, int, int], list[Table]] = {}
    for table in tables:
        together.setdefault((table.kind, table.ranks, table.nodes), []).append(table)
    inside, across = made["inside"], made.get("across")
    curves = tuple(_curve(own, inside, across if own[0].nodes > 1 else None) for own in together.values())
    about = f"{name}, calibrated on {len(tables)} run{'s' * (len(tables) > 1)} of nccl-tests"
    return Fabric(name, about, "measured", source, inside, across, curves)


def _curve(tables: Sequence[Table], inside: Inside, across: Across | None) -> Curve:
    """The runs of one collective over the same ranks and nodes as one curve, with the error of times read from the curve."""
    first = tables[0]
    times: dict[float, list[float]] = {}
    for table in tables:
        for size, seconds in table.times:
            times.setdefault(size, []).append(seconds)

    def call(size: float) -> Call:
        return Call(first.kind, size, first.ranks, first.nodes)

    points, _ = knots(times, lambda size: theory.fastest(call(size), inside, across))
    versions = ", ".join(sorted({table.version for table in tables} - {""})) or "not stated"
    source = f"nccl-tests, NCCL {versions}; {sum(map(len, times.values()))} points of {len(times)} sizes"
    made = Curve(first.kind, "auto", first.ranks, first.nodes, points, 0.0, inside, across, source)
    predicted = {size: uncontended_time(call(size), inside, across, [made]).seconds for size in times}
    return replace(made, error=median(abs(predicted[size] / t - 1) for size, found in times.items() for t in found))


# Constants and curves by measured times -------------------------------------------------------------------------------------


def fitted(points: Sequence[Point], start: Constants, free: Sequence[Free]) -> dict[str, Inside | Across | Laws]:
    """The constants after the free ones were fitted to the points."""
    origin = np.array([math.log(getattr(start[f.owner], f.name)) for f in free])
    sigma = np.array([f.sigma for f in free])

    def changed(x: Array) -> dict[str, Any]:
        changes: dict[str, dict[str, Any]] = {}
        for f, value in zip(free, x.tolist(), strict=True):
            changes.setdefault(f.owner, {})[f.name] = math.exp(value)
        return {owner: replace(held, **changes.get(owner, {})) for owner, held in start.items()}

    together: dict[tuple[str, str], list[int]] = {}
    for i, point in enumerate(points):
        together.setdefault((point.inside, point.across), []).append(i)

    @lru_cache(maxsize=4 * (len(free) + 1))
    def errors(links: tuple[str, str], inside: Inside, across: Across | None, laws: Laws) -> list[float]:
        """log(theory / measured) of the points on these links: unchanged constants need no second evaluation."""
        own = [points[i] for i in together[links]]
        return [math.log(theory.fastest(p.call, inside, across, laws) / p.seconds) for p in own]

    def residuals(x: Array) -> Array:
        """log(theory / measured) of every point."""
        c, found = changed(x), np.empty(len(points))
        for links, indices in together.items():
            found[indices] = errors(links, c[links[0]], c.get(links[1]), c.get("laws", LAWS))
        return found

    return changed(least_squares(residuals, origin, sigma, DESCENT))


def knots(series: Mapping[float, Sequence[float]], baseline: Callable[[float], float]) -> tuple[Knots, float]:
    """At most nine knots through a series (size in bytes -> measured seconds), and their median relative error.

    The logarithm of measured over baseline is fitted by linear pieces between a few of the sizes: the next of these is the size
    that is farthest from the lines between the ones before. A single size that differs from both its neighbours is treated as
    noise, and falling times are levelled.
    """
    sizes = sorted(series)
    x = np.log2(np.array(sizes))
    base = np.array([baseline(size) for size in sizes])
    y = _without_spikes(np.log(np.array([float(np.median(series[size])) for size in sizes]) / base))
    chosen = sorted({0, len(sizes) - 1})
    while len(chosen) < min(MOST_KNOTS, len(sizes)):
        error = np.abs(np.interp(x, x[chosen], y[chosen]) - y)
        if error.max() <= CLOSE_ENOUGH:
            break
        chosen = sorted({*chosen, int(error.argmax())})
    hats = np.stack([np.interp(x, x[chosen], unit) for unit in np.eye(len(chosen))], axis=1)
    heights = np.linalg.lstsq(hats, y, rcond=None)[0]
    times = np.exp(isotonic(np.log(base[chosen]) + heights))
    found = tuple(zip((sizes[i] for i in chosen), times.tolist(), strict=True))
    line = np.exp(np.interp(x, x[chosen], np.log(times / base[chosen]))) * base
    all_errors = [abs(line[i] / t - 1) for i, size in enumerate(sizes) for t in series[size]]
    return found, float(np.median(all_errors))


def _without_spikes(y: Array) -> Array:
    """Values in which each outlier is replaced by the nearer of its two neighbours."""
    low, high = np.minimum(y[:-2], y[2:]), np.maximum(y[:-2], y[2:])
    calm = y.copy()
    calm[1:-1] = np.where(y[1:-1] > high + SPIKE, high, np.where(y[1:-1] < low - SPIKE, low, y[1:-1]))
    return calm
