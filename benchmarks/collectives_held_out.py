"""How well collectives carry over: every system of the table left out, one after the other, and predicted from its description.

    python benchmarks/collectives_held_out.py

reads ../shared/data/collectives.csv.gz. All constants are fitted again without the system's rows, those that were set by hand to
its log included. In the second part only one log of a system is left out: another run, or another version of the library, on
links that stay measured. Coverage is the share of rows inside the interval that is stated with the time.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from simulator.costs.collectives.curves import UncontendedTime

sys.path.insert(0, str(Path(__file__).parents[1] / "results" / "collectives"))
import make

FEW_ROWS = 20
INTERVAL_SIGMAS = 2
"""Half the width of a stated interval, in standard errors."""

Judged = tuple[make.Measured, UncontendedTime]


def systems_left_out(rows: Sequence[make.Measured]) -> Iterator[Judged]:
    """Every row, predicted without its system."""
    for system in sorted({row.system for row in rows}):
        built = make.build_without(rows, system)
        yield from judged(built, [row for row in rows if row.system == system])


def logs_left_out(rows: Sequence[make.Measured]) -> Iterator[Judged]:
    """Every fitted row whose system has several logs, predicted without its log."""
    fit = [row for row in rows if row.role == "fit"]
    logs = {(row.system, row.source, row.version) for row in fit}
    for system, source, version in sorted(log for log in logs if sum(other[0] == log[0] for other in logs) > 1):
        own = [row for row in fit if (row.system, row.source, row.version) == (system, source, version)]
        yield from judged(make.build([row for row in fit if row not in own], laws=True), own)


def judged(built: make.Built, rows: Sequence[make.Measured]) -> Iterator[Judged]:
    for row in rows:
        yield row, built.time(row)


def error(judged: Judged) -> float:
    row, time = judged
    return abs(time.seconds / row.seconds - 1)


def is_inside(judged: Judged) -> bool:
    row, time = judged
    return abs(math.log(time.seconds / row.seconds)) <= INTERVAL_SIGMAS * time.uncertainty


def printed(found: Sequence[Judged], by: Callable[[Judged], str]) -> None:
    """Rows, median, 90th percentile and coverage of each group, and the means of the groups with enough rows."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in found:
        groups[by(one)].append(one)
    kept: list[Any] = []
    for name, own in sorted(groups.items()):
        middle, p90 = np.quantile([error(one) for one in own], (0.5, 0.9))
        inside = fmean(is_inside(one) for one in own)
        print(f"  {name:<42}{len(own):>6}  median {middle:6.1%}  p90 {p90:6.1%}  in interval {inside:6.1%}")
        kept += [(middle, p90)] * (len(own) >= FEW_ROWS)
    middle, p90 = np.mean(kept, axis=0)
    print(f"  {'mean of groups':<48}  median {middle:6.1%}  p90 {p90:6.1%}")


def main() -> None:
    if not make.TABLE.exists():
        print(f"{make.TABLE.name} is not there: nothing to do")
        return
    rows = make.measured(make.TABLE)
    for title, found in (("One system left out", systems_left_out(rows)), ("One log left out", logs_left_out(rows))):
        all_judged = list(found)
        print(f"\n{title}: {len(all_judged):,} rows")
        printed(all_judged, lambda one: one[0].system)
        print("By provenance and place:")
        printed(all_judged, lambda one: f"{one[1].provenance}, {make.place(one[0])}")


if __name__ == "__main__":
    main()
