"""A page for each system of the table, predicted without its own rows: each kind of call by size, with the stated uncertainty."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median

from data_rules import Sanity
from held_out import INTERVAL_SIGMAS, Judged, score

from simulator.files import atomic
from simulator.units import US_PER_S, show_bytes

FOLDER = Path(__file__).with_name("left_out")
HEAD = "| call | GPUs | nodes | bytes | rows | measured | predicted | error | stated | in interval |"
NOTE = f"""Predicted by what is known without any row of this system. A line holds one decade of sizes: medians of the measured
and the predicted time, of the error (predicted / measured - 1), and of the stated interval, {INTERVAL_SIGMAS:.0f} standard
errors to either side; and the share of rows inside their intervals."""


def write_pages(rows: Iterable[Judged], rules: dict[str, Sanity]) -> dict[str, str]:
    """Writes a page for every system. Returns the name of the file of each."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        groups[row.system].append(row)
    FOLDER.mkdir(exist_ok=True)
    names = {system: f"{_slug(system)}.md" for system in sorted(groups)}
    for old in FOLDER.glob("*.md"):
        if old.name not in names.values():
            old.unlink()
    for system, name in names.items():
        with atomic(FOLDER / name) as temporary:
            temporary.write_text("\n".join(_page(system, groups[system], rules[system])), encoding="utf-8")
    return names


def _slug(system: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", system.lower()).strip("-")


def _page(system: str, rows: list[Judged], rule: Sanity) -> list[str]:
    whole = score(rows)
    lines = [f"# Without {system}", "", NOTE, ""]
    lines += [
        f"- {whole.rows} rows: median error {whole.median:.1%}, 90th percentile {whole.p90:.1%}, bias {whole.bias:+.1%}, "
        f"{whole.covered:.0%} in their intervals.",
        f"- Largest messages reach {rule.reach:.0%} of what the links are sold with, in the middle of the series.",
        f"- In {rule.falls} of {rule.steps} steps to the next size a time falls to less than half.",
        "",
        HEAD,
        "|---" * (HEAD.count("|") - 1) + "|",
    ]
    decades: dict[tuple[str, int, int, int], list[Judged]] = defaultdict(list)
    for row in rows:
        call = row.call
        decade = math.floor(math.log10(call.payload_bytes))
        decades[f"{call.kind} {call.algorithm}", call.ranks, call.nodes, decade].append(row)
    for (what, ranks, nodes, _), own in sorted(decades.items()):
        sizes = [row.call.payload_bytes for row in own]
        cells = [
            what, str(ranks), str(nodes), _span(min(sizes), max(sizes)), str(len(own)),
            _us(median(row.measured_s for row in own)), _us(median(row.time.seconds for row in own)),
            f"{median(row.error for row in own):+.0%}",
            f"±{INTERVAL_SIGMAS * median(row.time.uncertainty for row in own):.0%}",
            f"{fmean(row.sigmas <= INTERVAL_SIGMAS for row in own):.0%}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _span(first: float, last: float) -> str:
    return show_bytes(first) if first == last else f"{show_bytes(first)} to {show_bytes(last)}"


def _us(seconds: float) -> str:
    return f"{seconds * US_PER_S:.4g} us"
