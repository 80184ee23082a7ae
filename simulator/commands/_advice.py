"""Printing of advice: the steps of reasoning, and the changes that make a plan fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from ..units import show_bytes, show_s
from ._show import print_pairs, print_table, text_columns

if TYPE_CHECKING:
    from ..advise.remedies import Remedy


def print_steps(pairs: Iterable[tuple[str, str]]) -> None:
    """Prints labels and wrapped sentences; the proposals of a step are indented below its sentence."""
    rows = list(pairs)
    width = text_columns() - 2 - max(len(name) for name, _ in rows)
    lines: list[tuple[str, str]] = []
    for name, text in rows:
        first, *more = wrap(text, width, initial_indent="" if name else "- ", subsequent_indent="" if name else "  ")
        lines += [(name, first), *(("", line) for line in more)]
    print_pairs(lines)


def print_remedies(found: Sequence[Remedy]) -> None:
    """A table of the changes that make a plan fit."""
    rows = []
    for one in found:
        made, has = one.proposal, one.proposal.candidate.scenario.cluster.gpu.memory_bytes
        time = "too long to simulate" if made.step_time_s is None else show_s(made.step_time_s)
        peak = made.candidate.memory.total_bytes
        rows.append([one.settings, time, show_bytes(peak), show_bytes(one.saved_bytes), show_bytes(has - peak)])
    print_table(["change that makes the plan fit", "step time", "peak", "saved", "left"], rows, right=(1, 2, 3, 4))
