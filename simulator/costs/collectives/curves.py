"""Uncontended time of a collective: from measured curves where these exist, from the closed forms of `theory` elsewhere.

A measured curve consists of a few knots (bytes, seconds) and the links of the measurement. The curve corrects the theory by the
ratio of the two, which varies slowly with the size, with the number of ranks and of nodes, and from one machine to a similar
machine: on links other than its own a curve only extrapolates. Between measured numbers of ranks the ratio is interpolated;
beyond the measured numbers the ratio fades to 1. Below the smallest and above the largest size the ratio is constant, so that
latency and bandwidth follow the theory there. By construction the time of an algorithm never falls when the payload grows, has no
jumps, and is never below the time on the wire. Measured dips (a library that changes its protocol too late takes longer for 1 MB
than for 2 MB) are levelled between the two sizes when a curve is fitted. A series in which the library chose the algorithm
counts, at each size, for the algorithm that the library took there; where the library changes algorithms, times may jump up or
down.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from . import theory
from .link_constants import LAWS, Across, Inside, Laws
from .nccl_choice import Choice
from .theory import Call

Provenance = Literal["interpolated", "extrapolated", "theoretical"]
Knots = tuple[tuple[float, float], ...]
"""Pairs (bytes, seconds), both rising."""

FADES_OCTAVES = 2.0
"""Doublings of ranks or nodes over which a measured correction fades."""
NVLINK_SIGMA, PCIE_SIGMA, ACROSS_SIGMA = 0.18, 0.45, 0.2
"""Relative error of the theory on machines that were not used to fit it: through NVLink, through PCIe, between nodes; half of
what nine of ten rows stay below (benchmarks/collectives_held_out.py). The error of the rate between nodes comes on top
(`Across.uncertainty`)."""
DIRECT_SIGMA, EXCHANGE_ACROSS_SIGMA = 0.27, 0.5
"""The same for kernels that read their peers' memory, which differ between frameworks, and for exchanges between nodes: of two
clusters whose all-to-alls are in the table, one reaches the nominal rate of its NICs and the other a quarter of it."""
LOG_SIGMA_INSIDE, LOG_SIGMA_ACROSS, LOG_SIGMA_EXCHANGE, LOG_SIGMA_DIRECT = 0.055, 0.08, 0.12, 0.2
"""Relative difference between logs of one kind of machine: another version of the library, another run, another site. Exchanges
inside a node differ by more; for kernels that read their peers' memory there is one log per framework (assumed)."""
SIGMA_OF_MEDIAN = 1.48
"""Standard error over median error of a normal distribution."""
SAME_RATE = 0.01
"""Relative difference up to which two link rates count as equal."""
DIRECT_MOST_BYTES = 8 * 2**20
"""Largest payload of direct kernels, which is the workspace that frameworks allocate; the library serves larger payloads."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured series of a collective, fitted by knots."""

    kind: str
    algorithm: str
    ranks: int
    nodes: int
    knots: Knots
    error: float
    """Median relative error of the knots against the measurements."""
    inside: Inside
    across: Across | None = None
    source: str = ""
    choices: tuple[Choice, ...] = ()
    """The algorithms that the file of the fabric names for the library."""

    def ratios(self, laws: Laws) -> Knots:
        """log(measured time / theoretical time) at each knot."""
        return tuple((size, math.log(time / self.theory_s(size, laws))) for size, time in self.knots)

    def theory_s(self, size: float, laws: Laws) -> float:
        """The theoretical time in seconds, without jumps where a library changes algorithms."""
        return theory.fastest(self._call(size), self.inside, self.across, laws)

    def taken(self, size: float) -> str:
        """The algorithm that a library took at this size for an all-reduce whose algorithm the library chose."""
        configured = (line.algorithm for line in self.choices if line.covers(self.kind, size, self.nodes))
        name = next(configured, "") or theory.taken(self._call(size), self.inside, self.across)
        return theory.KNOWN_AS.get(name, name)

    def _call(self, size: float) -> Call:
        return Call(self.kind, size, self.ranks, self.nodes, self.algorithm)


@dataclass(frozen=True, slots=True)
class UncontendedTime:
    """The time of a collective without contention, with its provenance and error."""

    seconds: float
    provenance: Provenance
    source: str
    uncertainty: float
    """Relative standard error."""


def uncontended_time(
    call: Call, inside: Inside, across: Across | None = None, curves: Sequence[Curve] = (), *, laws: Laws = LAWS
) -> UncontendedTime:
    """The uncontended time of one collective on these links, corrected by measured curves of the collective.

    An all-reduce with algorithm `auto` has the time of the algorithm that the library's cost model chooses.
    """
    if call.algorithm in theory.DIRECT and call.payload_bytes > DIRECT_MOST_BYTES:
        call = replace(call, algorithm="auto")
    if (call.kind, call.algorithm) == ("all_reduce", "auto") and call.ranks > 1:
        call = replace(call, algorithm=theory.taken(call, inside, across))
    near = _near(call, curves)
    if call.ranks < 2 or not near:
        sigma = theory_sigma(call, inside, across, laws)
        return UncontendedTime(theory.seconds(call, inside, across, laws), "theoretical", "theory", sigma)
    low, high, knots = _corrected(call, near, inside, across, laws)
    size = call.payload_bytes
    known_size = min(max(size, knots[0][0]), knots[-1][0])
    time = read(knots, known_size)
    if known_size != size:
        at_end = theory.seconds(replace(call, payload_bytes=known_size), inside, across, laws)
        time = theory.seconds(call, inside, across, laws) * time / at_end
    weight = min(1.0, sum(weight for _, weight in near))
    at_home = all(_same_links(call, curve, inside, across) for curve, _ in near)
    within = at_home and weight > 1 - 1 / 64 and low <= size <= high
    error = SIGMA_OF_MEDIAN * max(curve.error for curve, _ in near)
    far = 0.0 if within else math.hypot(1 - weight, 0.5) * theory_sigma(call, inside, across, laws)
    uncertainty = math.hypot(error, log_sigma(call), far)
    provenance: Provenance = "interpolated" if within else "extrapolated"
    source = "; ".join(dict.fromkeys(curve.source for curve, _ in near))
    return UncontendedTime(max(time, theory.least(call, inside, across)), provenance, source, uncertainty)


def theory_sigma(call: Call, inside: Inside, across: Across | None = None, laws: Laws = LAWS) -> float:
    """Relative standard error of the theory for a call. The error of the rate between nodes counts by its effect on the time."""
    if call.nodes < 2 or across is None:
        through_links = PCIE_SIGMA if inside.to_nics else NVLINK_SIGMA
        return max(through_links, DIRECT_SIGMA) if call.algorithm in theory.DIRECT else through_links
    known_s = theory.seconds(call, inside, across, laws)
    slower = replace(across, efficiency=across.efficiency / (1 + across.uncertainty))
    by_rate = math.log(theory.seconds(call, inside, slower, laws) / known_s) if known_s else 0.0
    return math.hypot(EXCHANGE_ACROSS_SIGMA if call.kind in theory.EXCHANGES else ACROSS_SIGMA, by_rate)


def log_sigma(call: Call) -> float:
    """Relative standard error of a measured time for another log of the same kind of machine."""
    if call.nodes > 1:
        return LOG_SIGMA_ACROSS
    if call.algorithm in theory.DIRECT:
        return LOG_SIGMA_DIRECT
    return LOG_SIGMA_EXCHANGE if call.kind in theory.EXCHANGES else LOG_SIGMA_INSIDE


def read(knots: Knots, size: float) -> float:
    """Seconds at a size: log-log interpolation between knots, constant beyond the ends."""
    (x0, y0), (x1, y1) = _around(knots, size)
    return y0 if x0 == x1 else float(y0 * (y1 / y0) ** (math.log(size / x0) / math.log(x1 / x0)))


def _straight(points: Knots, size: float) -> float:
    """A value at a size: interpolation between points, linear in the logarithm of the size."""
    (x0, y0), (x1, y1) = _around(points, size)
    return y0 if x0 == x1 else y0 + (y1 - y0) * math.log(size / x0) / math.log(x1 / x0)


def _around(knots: Knots, size: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The knots on both sides of a size; beyond the ends, the nearest knot twice."""
    i = bisect_right(knots, size, key=lambda knot: knot[0])
    return knots[max(i - 1, 0)], knots[min(i, len(knots) - 1)]


def rising(knots: Iterable[tuple[float, float]]) -> Knots:
    """The knots sorted by size, with times raised where they would fall."""
    points = sorted(knots)
    times = list(accumulate((time for _, time in points), max))
    return tuple((size, time) for (size, _), time in zip(points, times, strict=True))


def _same_links(call: Call, curve: Curve, inside: Inside, across: Across | None) -> bool:
    """Whether a curve was measured on links with the rates of the call, and both or neither have a switch that reduces."""

    def rates(inside: Inside, across: Across | None) -> tuple[float, ...]:
        network = across.nic_bytes_per_s * min(across.nics, math.ceil(call.per_node)) if across and call.nodes > 1 else 0.0
        return inside.bytes_per_s, theory.rate(inside, call.per_node), float(inside.nvls_efficiency > 0), network

    pairs = zip(rates(curve.inside, curve.across), rates(inside, across), strict=True)
    return all(math.isclose(own, other, rel_tol=SAME_RATE) for own, other in pairs)


def _corrected(
    call: Call, near: Sequence[tuple[Curve, float]], inside: Inside, across: Across | None, laws: Laws
) -> tuple[float, float, Knots]:
    """The smallest and the largest size in bytes that all curves cover, and the theory times the corrections of the curves: knots
    at the knots of the curves and at each power of two, up to the payload; between two knots of the curves no time exceeds that
    of the second. Outside its sizes a curve keeps the correction of its nearest end.
    """
    low = max(curve.knots[0][0] for curve, _ in near)
    high = min(curve.knots[-1][0] for curve, _ in near)
    if low > high:
        near = near[:1]
        low, high = near[0][0].knots[0][0], near[0][0].knots[-1][0]
    measured = {size for curve, _ in near for size, _ in curve.knots}
    sizes = measured | _powers_of_two(min(measured), max(measured))
    end = min((size for size in measured if size >= call.payload_bytes), default=max(measured))
    ratios = [(curve.ratios(laws), weight) for curve, weight in near]

    def corrected_s(size: float) -> float:
        correction = math.exp(sum(weight * _straight(knots, size) for knots, weight in ratios))
        return theory.seconds(replace(call, payload_bytes=size), inside, across, laws) * correction

    limit_s, found = math.inf, []
    for size in sorted((size for size in sizes if size <= end), reverse=True):
        time = corrected_s(size)
        limit_s = time if size in measured else limit_s
        found.append((size, min(time, limit_s)))
    return low, high, rising(found)


def _powers_of_two(first: float, last: float) -> set[float]:
    """Powers of two between two sizes, including both sizes."""
    return {2.0**octave for octave in range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1)}


def _near(call: Call, curves: Sequence[Curve]) -> list[tuple[Curve, float]]:
    """The curves that correct the theory for a call, each with its weight; the weights add up to at most 1.

    Except for all-reduces, a series in which the library chose the algorithm replaces an algorithm that was not measured.
    """
    kin = [curve for curve in curves if curve.kind == call.kind and (curve.nodes > 1) == (call.nodes > 1)]
    if call.kind == "all_reduce":
        kin = _of_algorithm(call.algorithm, kin)
    else:
        own = [curve for curve in kin if curve.algorithm == call.algorithm]
        kin = own or [curve for curve in kin if curve.algorithm == "auto"]
    if call.nodes == 1:
        return _bracketed(call, kin)
    doublings = (
        abs(math.log2(call.nodes / curve.nodes)) + abs(math.log2(call.per_node / (curve.ranks / curve.nodes))) for curve in kin
    )
    weights = [1 - distance / FADES_OCTAVES for distance in doublings]
    best = max(weights, default=0.0)
    chosen = [curve for curve, weight in zip(kin, weights, strict=True) if weight == best > 0]
    return [(curve, best / len(chosen)) for curve in chosen]


def _of_algorithm(name: str, kin: Sequence[Curve]) -> list[Curve]:
    """The measured all-reduces of one algorithm: series with the algorithm forced, and parts of series in which a library took
    the algorithm."""
    found: dict[tuple[int, int, Inside, Across | None], Curve] = {}
    ranked = sorted(kin, key=lambda curve: _PREFERRED.index(curve.algorithm) if curve.algorithm in _PREFERRED else -1)
    for curve in ranked:
        part = curve if curve.algorithm == name else _part(curve, name)
        if part is not None:
            series = (curve.ranks, curve.nodes, curve.inside, curve.across)
            found[series] = _joined(found[series], part) if series in found else part
    return list(found.values())


_PREFERRED = ("auto", "plain")
"""Series in which a library chose the algorithm, the series with all algorithms first; a forced algorithm ranks above both."""


@lru_cache(maxsize=4096)
def _part(curve: Curve, name: str) -> Curve | None:
    """The part of a library's series in which the library took an algorithm, evaluated at each knot and each power of two between
    knots; None if the library never took the algorithm.
    """
    if curve.algorithm not in _PREFERRED:
        return None
    ratios = curve.ratios(LAWS)
    sizes = {size for size, _ in curve.knots} | _powers_of_two(curve.knots[0][0], curve.knots[-1][0])
    taken = [size for size in sorted(sizes) if curve.taken(size) == name]
    knots = tuple((size, curve.theory_s(size, LAWS) * math.exp(_straight(ratios, size))) for size in taken)
    return replace(curve, algorithm=name, knots=knots) if knots else None


def _joined(curve: Curve, other: Curve) -> Curve:
    """A series, extended by the knots of another series on the same links that lie outside the sizes of the first."""
    first, last = curve.knots[0][0], curve.knots[-1][0]
    more = [knot for knot in other.knots if not first <= knot[0] <= last]
    if not more:
        return curve
    source = "; ".join(dict.fromkeys(filter(None, (curve.source, other.source))))
    return replace(curve, knots=tuple(sorted([*curve.knots, *more])), error=max(curve.error, other.error), source=source)


def _bracketed(call: Call, kin: Sequence[Curve]) -> list[tuple[Curve, float]]:
    """The curves of the nearest smaller and larger numbers of ranks, with weights; outside the measured numbers the nearest
    curve, whose weight fades."""
    by_ranks = {curve.ranks: curve for curve in kin}
    if call.ranks in by_ranks:
        return [(by_ranks[call.ranks], 1.0)]
    below = [n for n in sorted(by_ranks) if n < call.ranks]
    above = [n for n in sorted(by_ranks) if n > call.ranks]
    if below and above:
        part = math.log(call.ranks / below[-1]) / math.log(above[0] / below[-1])
        return [(by_ranks[below[-1]], 1 - part), (by_ranks[above[0]], part)]
    if not by_ranks:
        return []
    nearest = below[-1] if below else above[0]
    weight = 1 - abs(math.log2(call.ranks / nearest)) / FADES_OCTAVES
    return [(by_ranks[nearest], weight)] if weight > 0 else []
