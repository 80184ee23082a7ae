"""Whether a measured system is what its description says, by its measurements alone: two rules, which no prediction enters.

- Reach: with its largest message, a series reaches some share of the rate on the label of the links that bound it (the time on
  the wire at nominal rates over the measured time). In the middle of its series, a system must reach a third.
- Steadiness: from one size to the next larger one a time should not fall to less than half. It may once in a hundred steps.

A network that carries a quarter of what its NICs are sold with, or a log whose times jump between 7 and 28 us for one call, can
be predicted from no description. The thresholds were chosen with the table in view; what the rules say of each system stands in
the report, so that other thresholds can be tried. Means over systems that pass stand beside the means over all, never instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import held_out
from held_out import Judged

LEAST_REACH = 1 / 3
MOST_FALLS = 0.01
FALL = 0.5


@dataclass(frozen=True)
class Sanity:
    """What the two rules say of one system."""

    reach: float
    """Median over series of the share of the nominal rate that the largest message reaches."""
    falls: int
    """Steps from one size to the next at which a time falls to less than half."""
    steps: int

    @property
    def reaches(self) -> bool:
        return self.reach >= LEAST_REACH

    @property
    def is_steady(self) -> bool:
        return self.falls <= MOST_FALLS * self.steps


def sanity(rows: Sequence[Judged]) -> Sanity:
    """The rules applied to the rows of one system."""
    series: dict[tuple[object, ...], dict[float, list[Judged]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        call = row.call
        series[row.log, call.kind, call.algorithm, call.ranks, call.nodes][call.payload_bytes].append(row)
    reaches, falls, steps = [], 0, 0
    for by_size in series.values():
        times = [median(row.measured_s for row in by_size[size]) for size in sorted(by_size)]
        reaches.append(by_size[max(by_size)][0].wire_s / times[-1])
        falls += sum(later < FALL * sooner for sooner, later in pairwise(times))
        steps += len(times) - 1
    return Sanity(median(reaches), falls, steps)


def by_system(rows: Iterable[Judged]) -> dict[str, Sanity]:
    """The rules applied to every system."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        groups[row.system].append(row)
    return {name: sanity(own) for name, own in sorted(groups.items())}


def kept(found: dict[str, Sanity]) -> dict[str, frozenset[str]]:
    """The systems over which means are taken, by what is asked of them."""
    reaching = frozenset(name for name, one in found.items() if one.reaches)
    steady = frozenset(name for name, one in found.items() if one.is_steady)
    return {
        "all systems": frozenset(found),
        f"systems that reach {LEAST_REACH:.0%} of what their links are sold with": reaching,
        "systems that reach it and whose times are steady": reaching & steady,
    }


def means(rows: Sequence[Judged], rules: dict[str, Sanity]) -> list[str]:
    """The means of medians and of 90th percentiles over all systems, and over those that pass, as a table in Markdown."""
    table = ["| mean over | systems | median | p90 |", "|---|---|---|---|"]
    for what, names in kept(rules).items():
        found = held_out.scores([row for row in rows if row.system in names], lambda row: row.system)
        middle, p90 = held_out.means(found)
        table.append(f"| {what} | {len(found)} | {middle:.1%} | {p90:.1%} |")
    return [*table, ""]


def lines(rules: dict[str, Sanity], pages: dict[str, str]) -> list[str]:
    """What the rules say of every system, with the page of each, as a table in Markdown."""
    table = ["| system | reach | falls | passes |", "|---|---|---|---|"]
    for name, one in rules.items():
        passed = "both" if one.reaches and one.is_steady else "reach" if one.reaches else "steady" if one.is_steady else "neither"
        table.append(f"| [{name}](left_out/{pages[name]}) | {one.reach:.0%} | {one.falls} of {one.steps} | {passed} |")
    return [*table, ""]
