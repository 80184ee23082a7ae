"""The parts of an explanation that the terminal and the HTML report share: rows of the idle time, sentences about the critical
path, rows of the waterfall."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..study.critical_path import CriticalPath
from ..study.idle_causes import Cause, IdleTime
from ..study.waterfall import Waterfall
from ..units import counted, show_s

MOST_LISTED = 5
"""Most stages, and most links, of the path that are listed."""
MOST_PLACES = 3
"""Most parts of the idle time of a cause that are listed: the ranks that are waited for, or the links."""
WATERFALL = ("cause", "of the step", "seconds", "removed alone")
"""The columns of `waterfall_rows`."""


@dataclass(frozen=True, slots=True)
class IdleRow:
    """Time without kernels of the model: of a cause, or, as a part of the row above, for one rank or at full links."""

    text: str
    seconds: float
    cause: str = ""
    """The name of the cause, without its place; "" for a part of the row above, and for several causes together."""
    axis: bool = False
    """Whether the cause is the communication of an axis."""
    part: bool = False


def idle_rows(found: IdleTime, most: int, least_s: float = 0.0, without: Sequence[str] = ()) -> list[IdleRow]:
    """A row for each cause, the longest first; they add up to all idle time, except that of the causes in `without`.

    The last row is the sum of the causes beyond the first `most`, and of those below `least_s`.
    """
    by_name: dict[str, dict[Cause, float]] = defaultdict(dict)
    for cause, took_s in found.largest.items():
        if cause.name not in without:
            by_name[cause.name][cause] = took_s
    rows, parts = [], {}
    for name, causes in by_name.items():
        of_axis, several = name in found.result.observation.axes, len(causes) > 1
        text = name if of_axis or several else next(iter(causes)).text
        rows.append(IdleRow(text, sum(causes.values()), name, axis=of_axis))
        where = {f"at full links {one.links}" if one.links else several * one.place: took_s for one, took_s in causes.items()}
        told = [IdleRow(f"of it {words}", took_s, part=True) for words, took_s in where.items() if words and took_s >= least_s]
        parts[text] = sorted(told, key=lambda row: -row.seconds)[:MOST_PLACES]
    rows.sort(key=lambda row: -row.seconds)
    listed = [row for row in rows[:most] if row.seconds >= least_s]
    if len(rows) == len(listed) + 1:  # one cause is as short as the row that would stand for it
        listed = rows
    others = rows[len(listed) :]
    shorter = [IdleRow(counted(len(others), "shorter cause"), sum(row.seconds for row in others))] if others else []
    return [one for row in listed for one in (row, *parts.get(row.text, ()))] + shorter


def path_sentences(path: CriticalPath) -> list[str]:
    """The time of the critical path by kind of operation, by stage of a pipeline, and by full link."""
    spent = ", ".join(f"{name} {show_s(value)}" for name, value in path.by_category.items())
    sentences = [f"Critical path, {len(path.segments):,} operations: {spent}."]
    stages = {stage: took for stage, took in path.by(lambda segment: segment.stage).items() if stage >= 0}
    if len(stages) > 1:
        sentences.append(f"Stages on the path: {listed([(f'stage {stage}', took) for stage, took in stages.items()])}.")
    if path.by_link:
        sentences.append(f"Full links on the path: {listed(list(path.by_link.items()))}.")
    return sentences


def waterfall_rows(found: Waterfall) -> list[list[str]]:
    """Every bar of the waterfall in numbers."""
    return [
        [bar.cause, f"{found.fraction(bar):z.2%}", *("" if s is None else show_s(s) for s in (bar.seconds, bar.alone_s))]
        for bar in found.bars
    ]


def listed(taken_s: Sequence[tuple[str, float]]) -> str:
    """Names with seconds, and the number of those that are not listed."""
    more = [f"and {len(taken_s) - MOST_LISTED:,} more"] if len(taken_s) > MOST_LISTED else []
    return ", ".join([*(f"{name}: {show_s(took)}" for name, took in taken_s[:MOST_LISTED]), *more])
