"""Bare flows over a bare graph: the fluid of the engine with nothing around it, on a clock of femtoseconds.

The same solver and the same engine as everywhere, with tick and rate quantum a million times finer, so that what is left
of rounding is below anything that a comparison with exact solutions can see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import des
from ..engine.task import RATE_BITS, UNCAPPED, WEIGHT_BITS, Csr, Profile, TaskGraph
from ..errors import Fault, UserError
from ..units import FINE, NS_PER_S

TICKS_PER_S = NS_PER_S * FINE
QUANTA_PER_BYTE = (1 << RATE_BITS) * FINE * FINE
"""Work counts these; a rate counts them per tick."""


@dataclass(frozen=True, slots=True)
class Flow:
    """So many bytes over a route of links, from a time on."""

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


def end_times_s(case: Case) -> list[float]:
    """When the last byte of each flow leaves: it starts to move at its start plus the latencies of its links."""
    if not case.flows:
        return []
    n = len(case.flows)
    columns = {name: np.empty(n, dtype=object) for name in ("solo", "work")}
    for i, flow in enumerate(case.flows):
        starts = Fraction(flow.start_s) + sum(Fraction(case.latency_s[link]) for link in flow.route)
        columns["solo"][i] = round(starts * TICKS_PER_S)
        columns["work"][i] = round(Fraction(flow.size_bytes) * QUANTA_PER_BYTE)
    capacity = [round(Fraction(c) * QUANTA_PER_BYTE / TICKS_PER_S) for c in case.capacity_bytes_per_s]
    feet = [sorted(set(flow.route)) for flow in case.flows]
    weights = [flow.route.count(link) << WEIGHT_BITS for flow, foot in zip(case.flows, feet, strict=True) for link in foot]
    none = np.full(n, -1)
    graph = TaskGraph(
        solo_ns=columns["solo"],
        pace=none,
        foot=np.arange(n),
        work=columns["work"],
        cap=np.full(n, UNCAPPED << RATE_BITS, dtype=object),
        streams=Csr.from_lists([[i] for i in range(n)]),
        preds=Csr.from_lists([[] for _ in range(n)]),
        feet=Csr.from_lists(feet),
        foot_weight=np.array(weights, dtype=np.int64),
        link_profile=np.arange(len(capacity)),
        pace_profile=np.zeros(0, dtype=np.int64),
        profiles=tuple(Profile.constant(value) for value in capacity),
    )
    return [float(Fraction(int(end), TICKS_PER_S)) for end in des.simulate(graph).end_ns.tolist()]


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSON file in the format of INTERFACE.md."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError("not a text file", where=str(path)) from None
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}:{error.colno}") from None
    cases = data.get("cases") if isinstance(data, dict) else None
    if not isinstance(cases, list):
        raise UserError("no list of cases", where=str(path), hint='{"cases": [{"name": .., "links": [..], "flows": [..]}]}')
    faults: list[Fault] = []
    read = [_case(case, f"{path}: cases[{i}]", faults) for i, case in enumerate(cases)]
    if faults:
        raise UserError("", faults=faults[:20])
    return read


def _case(case: Any, where: str, faults: list[Fault]) -> Case:
    case = case if isinstance(case, Mapping) else {}
    links, flows = _rows(case, "links", where, faults), _rows(case, "flows", where, faults)
    capacity = tuple(_number(link, "capacity_Bps", f"{where}.links[{i}]", faults, positive=True) for i, link in enumerate(links))
    latency = tuple(_number(link, "latency_s", f"{where}.links[{i}]", faults, default=0.0) for i, link in enumerate(links))
    built = tuple(
        Flow(
            _number(flow, "start_s", at, faults, default=0.0),
            _number(flow, "size_B", at, faults),
            _route(flow, len(links), at, faults),
        )
        for flow, at in ((flow, f"{where}.flows[{i}]") for i, flow in enumerate(flows))
    )
    return Case(str(case.get("name", "")), capacity, latency, built)


def _rows(case: Mapping[str, Any], name: str, where: str, faults: list[Fault]) -> Sequence[Any]:
    rows = case.get(name)
    if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
        return rows
    faults.append(Fault(f"{name} should be a list of objects", where=where))
    return []


def _number(
    row: Mapping[str, Any], name: str, where: str, faults: list[Fault], *, default: float | None = None, positive: bool = False
) -> float:
    value = row.get(name, default)
    legal = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
    if not legal or (positive and not value):
        faults.append(Fault(f"{name} should be a {'positive ' if positive else ''}number, not {value!r}", where=where))
        return 1.0
    number: float = value
    return number


def _route(flow: Mapping[str, Any], n_links: int, where: str, faults: list[Fault]) -> tuple[int, ...]:
    route = flow.get("route")
    if isinstance(route, list) and all(isinstance(link, int) and 0 <= link < n_links for link in route):
        return tuple(route)
    faults.append(Fault(f"route should list links 0 to {n_links - 1}, not {route!r}", where=where))
    return ()
