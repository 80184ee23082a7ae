"""Flows over a graph of links: only the fluid model of the engine, without a cluster or a training step.

The solver and the engine are those of all runs. Tick and quantum are so fine that rounding is invisible in comparisons with exact
solutions: a tick is 2^-64 of the shortest flow's time, the slowest link moves 2^64 quanta in that time, and both are finer still
by the number of flows, each of which may round twice. Cases that would take too long in integers of any size are counted in 64
bits, for the compiled engine: their ends are rounded, to about a millionth.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import heap
from ..engine.rates import FREE
from ..engine.task import UNCAPPED, WEIGHT_BITS, Csr, Profile, TaskGraph
from ..errors import MOST_LISTED, Fault, UserError, did_you_mean, must_be, nearest, shown
from ..files import check_count, parsed_json, read_bounded
from ..simulation import choose_engine
from ..simulation.estimated_effort import Effort, Expect, Limits, no_progress, of_flows

MOST_BYTES = 2**24
"""Most bytes of a file."""
MOST_VALUES = 3_000_000
"""Most values of a file, counted by the commas between them."""
MOST_FAULTS = 1000
"""Most faults that are collected: a file with more faults usually repeats one fault."""
PRECISION_BITS = 64
ROUNDED_WORK_BITS, ROUNDED_RATE_BITS = 60, 31
"""For cases counted in 64 bits: limits of the quanta of the longest flow, and of the quanta of the fastest link per tick."""
LEAST_TICKS, LEAST_RATE = 1 << 17, 1 << 20
"""For cases counted in 64 bits: fewest ticks of the shortest flow, and fewest quanta of the slowest link per tick."""
LONGEST_ROUTE = 1 << 12
"""Most links of a route in such a case, which might all be the same link."""
KEYS = {"capacity_Bps": "5e10", "latency_s": "1e-6", "start_s": "0.5", "size_B": "1e9", "route": "[0, 1]"}
"""The keys of links and flows, with examples of their values."""
IN_FILES, IN_PYTHON = ("capacity_Bps", "size_B"), ("capacity_bytes_per_s", "size_bytes")
"""The two keys that have other names in Python."""
CASE_KEYS = ("name", "desc", "links", "flows")
LINK_KEYS = ("src", "dst", "capacity_Bps", "latency_s")
FLOW_KEYS = ("start_s", "size_B", "route", "end_exact", "end_s", "end_s_simgrid")
"""The keys of a flow in the format. Descriptions of a case, the ends of a link and known answers are for readers of the file."""
LISTED = (list, tuple, np.ndarray)
LARGEST = sys.float_info.max
MOST_APART = 2**96
"""Largest ratio between the rates of links: the fabric takes no rate of 2^256 quanta per tick or more."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A number of bytes over a route of links, from a start time on."""

    start_s: float
    size_bytes: float
    route: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Links with capacity (bytes/s) and latency (s), and the flows over them."""

    name: str
    capacity_bytes_per_s: tuple[float, ...]
    latency_s: tuple[float, ...]
    flows: tuple[Flow, ...]

    def begin_s(self, flow: Flow) -> Fraction:
        """The time in seconds at which the first byte of a flow moves."""
        return Fraction(flow.start_s) + sum(Fraction(self.latency_s[link]) for link in flow.route)

    def uncontended_end_s(self, flow: Flow) -> Fraction:
        """The end in seconds of a flow without other flows. A link crossed several times is shared by the crossings."""
        if not flow.route:
            return self.begin_s(flow)
        return self.begin_s(flow) + Fraction(flow.size_bytes) / Fraction(min(self.capacity_bytes_per_s[i] for i in flow.route))


def most_at_once(case: Case) -> int:
    """Upper bound of the number of flows under way at the same time.

    While a flow is under way, some link is full. A period without a pause therefore lasts at most as long as all its bytes one
    flow after another over the slowest link of the case.
    """
    slowest = min(case.capacity_bytes_per_s, default=1.0)
    most = held = 0
    until_s = -1.0
    for start_s, lasts_s in sorted(
        (float(case.begin_s(f)), f.size_bytes * max(map(f.route.count, f.route), default=0) / slowest) for f in case.flows
    ):
        held, until_s = (held + 1, until_s + lasts_s) if start_s < until_s else (1, start_s + lasts_s)
        most = max(most, held)
    return most


def effort_of(case: Case, *, rounded: bool = False) -> Effort:
    """The estimated effort of a case, with the largest possible number of concurrent flows."""
    routes = [len(set(flow.route)) for flow in case.flows]
    return of_flows(routes, len(case.capacity_bytes_per_s), most_at_once(case), rounded=rounded)


@dataclass(frozen=True, slots=True)
class Scale:
    """The units that the integers of a task graph count."""

    ticks_per_s: Fraction
    quanta_per_byte: Fraction
    """Work counts these quanta, a rate counts them per tick."""

    def rate(self, bytes_per_s: float) -> int:
        return round(Fraction(bytes_per_s) * self.quanta_per_byte / self.ticks_per_s)


def exact_scale(case: Case) -> Scale:
    """The scale at which rounding is invisible: powers of two, so that floats are counted as they are."""
    n, slowest = len(case.flows), Fraction(min(case.capacity_bytes_per_s, default=1))
    shortest = min((end for end in map(case.uncontended_end_s, case.flows) if end), default=Fraction(1))
    ticks_per_s = _power_of_two(n / shortest)
    return Scale(ticks_per_s, _power_of_two(n * ticks_per_s / slowest))


def rounded_scale(case: Case) -> Scale | None:
    """The scale at which the integers of a case fit into 64 bits; None where flows or links lie too far apart for that."""
    moving = [flow for flow in case.flows if flow.route and flow.size_bytes]
    if not moving:
        return None
    longest = Fraction(max(flow.size_bytes for flow in moving))
    quanta_per_byte = _power_of_two(1 / longest, ROUNDED_WORK_BITS - 1)
    ticks_per_s = _power_of_two(Fraction(max(case.capacity_bytes_per_s)) * quanta_per_byte, -ROUNDED_RATE_BITS)
    scale = Scale(ticks_per_s, quanta_per_byte)
    shortest_s = min(case.uncontended_end_s(flow) - case.begin_s(flow) for flow in moving)
    latest_s = max(map(case.begin_s, case.flows))
    fits = (
        latest_s * ticks_per_s < 1 << ROUNDED_WORK_BITS,
        shortest_s * ticks_per_s >= LEAST_TICKS,
        scale.rate(min(case.capacity_bytes_per_s)) >= LEAST_RATE,
        max(len(flow.route) for flow in moving) <= LONGEST_ROUTE,
    )
    return scale if all(fits) else None


def end_times_s(case: Case, rounded: Scale | None = None) -> list[float]:
    """Seconds at which the last byte of each flow leaves. A flow starts to move at its start plus the latencies of its links.

    With a `rounded` scale the compiled engine counts.
    """
    if not case.flows:
        return []
    scale = rounded or exact_scale(case)
    graph = _graph(case, scale, object if rounded is None else np.int64)
    times = heap.simulate(graph) if rounded is None else choose_engine.run(graph, "compiled")[0]
    ends_s = [int(end) / scale.ticks_per_s for end in times.end_ns.tolist()]
    late = next((i for i, end_s in enumerate(ends_s) if end_s > LARGEST), None)
    if late is not None:
        message = f"case {case.name!r}: flow {late} ends after more than {LARGEST:.2g} s"
        raise UserError(message, hint="give it fewer bytes, or faster links")
    return [float(end_s) for end_s in ends_s]


def _graph(case: Case, scale: Scale, integer: type) -> TaskGraph:
    """The flows as tasks, each on a stream of its own, in integers of this type."""
    n = len(case.flows)
    footprints = [sorted(set(flow.route)) for flow in case.flows]
    weights = [
        flow.route.count(link) << WEIGHT_BITS
        for flow, footprint in zip(case.flows, footprints, strict=True)
        for link in footprint
    ]
    work = [round(Fraction(flow.size_bytes) * scale.quanta_per_byte) if flow.route else 0 for flow in case.flows]
    return TaskGraph(
        solo_ns=np.array([round(case.begin_s(flow) * scale.ticks_per_s) for flow in case.flows], dtype=integer),
        tail_ns=np.zeros(n, dtype=np.int64),
        speed=np.full(n, -1),
        footprint=np.arange(n),
        work=np.array(work, dtype=integer),
        cap=np.full(n, FREE >> 1 if integer is object else UNCAPPED, dtype=integer),
        streams=Csr.from_lists([[i] for i in range(n)]),
        preds=Csr.from_lists([[] for _ in range(n)]),
        footprints=Csr.from_lists(footprints),
        footprint_weight=np.array(weights, dtype=np.int64),
        link_profile=np.arange(len(case.capacity_bytes_per_s)),
        speed_profile=np.zeros(0, dtype=np.int64),
        profiles=tuple(Profile.constant(scale.rate(capacity)) for capacity in case.capacity_bytes_per_s),
    )


def _power_of_two(least: Fraction, bits: int = PRECISION_BITS) -> Fraction:
    """A power of two that is about 2^bits times `least`: not less, and less than twice or four times as much."""
    return Fraction(2) ** (least.numerator.bit_length() - least.denominator.bit_length() + 1 + bits)


@dataclass(frozen=True, slots=True)
class Ends:
    """The end times of the flows of a case, in the order of the case."""

    name: str
    end_s: tuple[float, ...]
    rounded: bool = False
    """Whether the end times are rounded, to about a millionth."""


def flows(cases: str | Path | Iterable[Case], *, long: bool = False, expect: Expect = no_progress) -> list[Ends]:
    """The end times of bare flows over bare graphs, given as cases or as a file of cases, with max-min fair sharing of links.

    They are exact to the last digits of a float. For a case above the limit of effort, the compiled engine computes end times
    that are rounded to about a millionth, if it is installed and the case fits into its integers.
    """
    known = read_cases(Path(cases)) if isinstance(cases, (str, Path)) else _checked(cases)
    limits = Limits(long=long, expect=expect)
    scales = [None if limits.holds(effort_of(case)) or limits.quickest != "compiled" else rounded_scale(case) for case in known]
    efforts = (effort_of(case, rounded=scale is not None) for case, scale in zip(known, scales, strict=True))
    limits.check(sum(efforts, Effort()), f"{sum(len(case.flows) for case in known):,} flows", "fewer flows")
    return [
        Ends(case.name, tuple(end_times_s(case, scale)), scale is not None) for case, scale in zip(known, scales, strict=True)
    ]


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSON file in the format of INTERFACE.md."""
    raw = read_bounded(path, MOST_BYTES, "cases of flows")
    check_count(raw, b",", MOST_VALUES, path, "cases of flows")
    data = parsed_json(raw, str(path), unique=True)
    cases = data.get("cases") if isinstance(data, dict) else None
    if not isinstance(cases, list):
        raise UserError("no list of cases", where=str(path), hint='{"cases": [{"name": .., "links": [..], "flows": [..]}]}')
    faults: list[Fault] = []
    _check_keys(data, ("model", "units", "cases"), str(path), faults)
    numbered = takewhile(lambda _: len(faults) < MOST_FAULTS, enumerate(cases))
    read = [_case(case, f"{path}: cases[{i}]", faults) for i, case in numbered]
    if faults:
        raise UserError(faults=faults)
    return read


def _case(case: Any, where: str, faults: list[Fault]) -> Case:
    case = case if isinstance(case, Mapping) else {}
    where += f" ({shown(str(case['name']))})" if "name" in case else ""
    rows = {name: _rows(case, name, where, faults) for name in ("links", "flows")}
    _check_keys(case, CASE_KEYS, where, faults)
    for name, keys in (("links", LINK_KEYS), ("flows", FLOW_KEYS)):
        for row, at in _each(rows[name], f"{where}.{name}", faults):
            _check_keys(row, keys, at, faults)
    return _case_of(str(case.get("name", "")), rows, where, faults)


def _each(rows: Sequence[Any], where: str, faults: list[Fault]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The links or the flows of a case, each with its place, until too many faults are found."""
    for i, row in enumerate(rows):
        if len(faults) >= MOST_FAULTS:
            return
        yield row, f"{where}[{i}]"


def _case_of(
    name: str, rows: Mapping[str, Sequence[Any]], where: str, faults: list[Fault], names: tuple[str, str] = IN_FILES
) -> Case:
    """The case of links and flows, each number of which is checked; `names` are those of a capacity and a size."""
    capacity_name, size_name = names
    links, flows = (partial(_each, rows[of], f"{where}.{of}", faults) for of in ("links", "flows"))
    capacity = tuple(_number(link, capacity_name, at, faults, positive=True) for link, at in links())
    latency = tuple(_number(link, "latency_s", at, faults, default=0.0) for link, at in links())
    made = tuple(
        Flow(
            _number(flow, "start_s", at, faults, default=0.0),
            _number(flow, size_name, at, faults),
            _route(flow, len(rows["links"]), at, faults),
        )
        for flow, at in flows()
    )
    if capacity and Fraction(max(capacity)) > MOST_APART * Fraction(min(capacity)):
        message = f"{capacity_name}: {max(capacity)!r} is more than 2^96 times as much as {min(capacity)!r}"
        faults.append(Fault(message, "the rates of links may not differ more", where))
    return Case(name, capacity, latency, made)


def _checked(cases: Iterable[Case]) -> list[Case]:
    """Cases that were made in Python, with the checks of those of a file."""
    faults: list[Fault] = []
    numbered = enumerate(must_be(cases, Iterable, "cases", "cases of flows", 'sim.flows("cases.json")'))
    checked = [
        _case_of(str(case.name), _rows_of(case), f"cases[{i}] ({shown(str(case.name))})", faults, IN_PYTHON)
        for i, case in takewhile(lambda _: len(faults) < MOST_FAULTS, numbered)
        if must_be(case, Case, "a case", "a case of flows", 'sim.flows("cases.json")')
    ]
    if faults:
        raise UserError(faults=faults)
    return checked


def _rows_of(case: Case) -> dict[str, list[dict[str, Any]]]:
    """The links and the flows of a case in the form of a file, but with the field names of Python."""
    examples = {"capacity_bytes_per_s": "(5e10,)", "latency_s": "(1e-6,)", "flows": "(Flow(0.0, 1e9, (0,)),)"}
    capacity, latency, flows = (
        list(map(_plain, must_be(getattr(case, name), LISTED, name, "a tuple", example))) for name, example in examples.items()
    )
    if len(capacity) != len(latency):
        message = f"case {shown(str(case.name))}: latency_s has {len(latency)} values for {len(capacity)} links"
        raise UserError(message, hint="one for each link")
    for flow in flows:
        must_be(flow, Flow, "a flow", "a flow", examples["flows"])
    links = [{"capacity_bytes_per_s": c, "latency_s": latency_s} for c, latency_s in zip(capacity, latency, strict=True)]
    return {"links": links, "flows": [{name: _plain(getattr(flow, name)) for name in Flow.__slots__} for flow in flows]}


def _plain(value: Any) -> Any:
    """A value with numpy numbers converted to Python numbers, and a route to a list."""
    if isinstance(value, LISTED):
        return list(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _check_keys(row: Mapping[str, Any], known: Sequence[str], where: str, faults: list[Fault]) -> None:
    """Notes keys that are not in the format. An unknown key in place of a missing number is reported with that number."""
    hinted = len(faults) < MOST_LISTED
    for key in [key for key in row if key not in known]:
        likely_key = nearest(key, known) if hinted else None
        if likely_key not in ("capacity_Bps", "size_B") or likely_key in row:
            hint = did_you_mean(key, known) if hinted else ""
            faults.append(Fault(f"{shown(key)}: unknown key", hint, where))


def _rows(case: Mapping[str, Any], name: str, where: str, faults: list[Fault]) -> Sequence[Any]:
    rows = case.get(name)
    if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
        return rows
    example = {"links": '[{"capacity_Bps": 5e10, "latency_s": 1e-6}]', "flows": '[{"size_B": 1e9, "route": [0]}]'}[name]
    faults.append(Fault(f"{name} should be a list of objects", f'write it like "{name}": {example}', where))
    return []


def _number(
    row: Mapping[str, Any], name: str, where: str, faults: list[Fault], *, default: float | None = None, positive: bool = False
) -> float:
    value = row.get(name, default)
    legal = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if not legal or (positive and not value):
        wanted = "a positive number" if positive else "a number that is not negative"
        if value is None:
            likely_key = nearest(name, [key for key in row if isinstance(key, str) and key not in KEYS])
            faults.append(
                Fault(f"{name} is missing", f"{shown(likely_key)} should be called {name}" if likely_key else wanted, where)
            )
        else:
            example = KEYS[dict(zip(IN_PYTHON, IN_FILES, strict=True)).get(name, name)]
            faults.append(Fault(f"{name} should be {wanted}, not {shown(value)}", f'write it like "{name}": {example}', where))
        return 1.0
    number: float = value
    return number


def _route(flow: Mapping[str, Any], n_links: int, where: str, faults: list[Fault]) -> tuple[int, ...]:
    route = flow.get("route")
    wrong = [link for link in route if type(link) is not int or not 0 <= link < n_links] if isinstance(route, list) else []
    if isinstance(route, list) and not wrong:
        return tuple(route)
    no_link = f"route: {shown(wrong[0])} is not a link of the {n_links} of this case" if wrong else ""
    hint = f"links are counted from 0 to {n_links - 1}" if n_links else "give the case links first"
    message = no_link or f"route is {shown(route)}, no list of links"
    faults.append(Fault(message, f"{hint}: a route such as [0, {max(0, n_links - 1)}]", where))
    return ()
