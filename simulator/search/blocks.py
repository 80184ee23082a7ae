"""Blocks: the longest paths through the body of a step, from the values that it waits for to its results.

A body is entered at its first operation, at the first operation of each of its streams and at operations with a wait of their
own; its exits are the last operation of each stream and its results. The longest path from each entry to each exit is
found once for a body; a walk over steps then only adds and compares these lengths (`bound.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..binding.bind import Bound
from ..engine.task import FULL_SPEED, SPEED_BITS, Array, distinct, offsets
from ..program.operations import COMPUTE, Transfer, Wait
from ..program.program import END, LAST, Program, Step

UNREACHED = -(1 << 60)
"""The length of a path that does not exist."""


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """The paths through a body in ns: exits (rows) by entries (columns). Entries are the start of the step, its streams and its
    waits; exits are its streams, its results, and the last of all ends."""

    streams: tuple[str, ...]
    paths: Array
    compute_ns: int
    """Sum of its own kernels."""


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """The operations of one body on the ranks of a role: predecessors, streams and shortest duration of each."""

    names: tuple[str, ...]
    streams: tuple[tuple[str, ...], ...]
    before: tuple[tuple[int, ...], ...]
    lasts_ns: Sequence[int]
    tail_ns: Sequence[int]
    own: Sequence[bool]
    """Whether an operation is a kernel of the rank itself."""
    result: dict[str, int]
    """The rows that the keys END and LAST denote."""
    layers: tuple[int, ...]
    """The layer of each operation, or -1."""

    def row(self, name: str) -> int:
        return self.result[name] if name in self.result else self.names.index(name)

    def with_layers(self, more: int) -> Rows | None:
        """The rows of a body with `more` further layers like its two middle ones; None if a row waits for one that would move
        away.
        """
        middle = [row for row, layer in enumerate(self.layers) if layer in (1, 2)]
        size, begin = len(middle) // 2, middle[0]
        end, added = begin + 2 * size, more * size

        def further(row: int, by: int, least: int) -> tuple[int, ...]:
            """The predecessors of a row: rows from `least` on move with it, and rows before the middle stay in place."""
            waits = self.before[row]
            if any(begin <= before < least for before in waits) or (row < end and any(before < begin for before in waits)):
                raise _ElsewhereError
            return tuple(before + by if before >= least else before for before in waits)

        try:
            again = [further(row, by * size, begin) for by in range(1, more + 1) for row in range(begin + size, end)]
            behind = [further(row, added, begin + size) for row in range(end, len(self.names))]
        except _ElsewhereError:
            return None
        repeated = slice(begin + size, end)

        def longer(column: Sequence[Any]) -> tuple[Any, ...]:
            return (*column[:end], *(tuple(column[repeated]) * more), *column[end:])

        return Rows(
            longer(self.names),
            longer(self.streams),
            (*self.before[:end], *again, *behind),
            longer(self.lasts_ns),
            longer(self.tail_ns),
            longer(self.own),
            {name: row if row < begin else row + added for name, row in self.result.items()},
            longer(self.layers),
        )

    def block(self, waits: Sequence[str], outputs: Sequence[str]) -> Block:
        """The longest paths of a step with these waits of its own and these results."""
        streams = tuple(dict.fromkeys(stream for of in self.streams for stream in of))
        first, last = dict[str, int](), dict[str, int]()
        for row, of in enumerate(self.streams):
            for stream in of:
                first.setdefault(stream, row)
                last[stream] = row
        if not self.names:
            return Block((), np.zeros((len(outputs) + 1, 1 + len(waits)), dtype=np.int64), 0)
        entries = [0, *(first[stream] for stream in streams), *map(self.row, waits)]
        made = list(map(self.row, outputs))
        paths = []
        for entry in entries:
            ends_ns = self.ends_ns(entry)
            arrives_ns = [end + tail for end, tail in zip(ends_ns, self.tail_ns, strict=True)]
            paths.append([*(ends_ns[last[s]] for s in streams), *(arrives_ns[row] for row in made), max(arrives_ns)])
        compute_ns = sum(ns for ns, own in zip(self.lasts_ns, self.own, strict=True) if own)
        return Block(streams, np.array(paths, dtype=np.int64).T, compute_ns)

    def ends_ns(self, entry: int) -> list[int]:
        """The earliest end of every row if the entry starts at zero and nothing else delays it."""
        ends_ns = [UNREACHED] * len(self.names)
        for row in range(entry, len(self.names)):
            starts_ns = max((ends_ns[before] for before in self.before[row]), default=UNREACHED)
            starts_ns = 0 if row == entry else starts_ns
            if starts_ns > UNREACHED // 2:
                ends_ns[row] = starts_ns + self.lasts_ns[row]
        return ends_ns


def through_pair_ns(forward: Rows, backward: Rows) -> int:
    """The shortest time from the first to the last kernel of a forward and a backward body that run together.

    Their operations alternate evenly (`binding/templates.py`); where both would have the same turn, either may come first.
    """
    return min(_through_ns(one, other) for one, other in ((forward, backward), (backward, forward)))


def _through_ns(first: Rows, second: Rows) -> int:
    """As `through_pair_ns`, where the operations of the first body go before those with the same turn of the second."""
    bodies = first, second
    rows = [(which, row) for which, of in enumerate(bodies) for row in range(len(of.names))]
    turns = sorted(((2 * row + 1) / (2 * len(bodies[which].names)), which, row) for which, row in rows)
    place = {(which, row): at for at, (_, which, row) in enumerate(turns)}
    ends_ns: list[int] = []
    last: dict[str, int] = {}
    began = kernels_ns = end_ns = 0
    for _, which, row in turns:
        body = bodies[which]
        waits = [place[which, before] for before in body.before[row]] + [last[of] for of in body.streams[row] if of in last]
        is_first = COMPUTE in body.streams[row] and not began
        began = began or is_first
        starts_ns = 0 if is_first else max((ends_ns[before] for before in waits), default=UNREACHED)
        ends_ns.append(starts_ns + body.lasts_ns[row] if starts_ns > UNREACHED // 2 else UNREACHED)
        last |= dict.fromkeys(body.streams[row], len(ends_ns) - 1)
        kernels_ns += body.lasts_ns[row] if body.own[row] else 0
        end_ns = ends_ns[-1] if COMPUTE in body.streams[row] else end_ns
    return max(kernels_ns, end_ns)


class _ElsewhereError(Exception):
    """A row waits for a row of a layer that is not next to its own."""


def each_body_once(order: Iterable[Step]) -> tuple[Step, ...]:
    """One step for every body of a rank, without waits and results."""
    once: dict[str, Step] = {}
    for step in order:
        once.setdefault(step.body, step._replace(after=(), outputs=(), waits=(), pair=-1, iteration=0))
    return tuple(once.values())


def greatest_speed(bound: Bound) -> int:
    """The greatest speed that a rank ever has."""
    skeleton = bound.skeleton
    return int(max([FULL_SPEED, *(max(skeleton.profiles[i].value) for i in distinct(skeleton.speed).tolist())]))


def rows_of(program: Program, bound: Bound, role: int, *, moves: bool, everywhere: bool = False) -> dict[str, Rows]:
    """The rows of every body of a role, in a program that has each body once and was bound without launches.

    Kernels take their time at the greatest speed that a rank ever has, and collectives their uncontended time, in the group in
    which it is shortest: among the groups of the role, or (`everywhere`) of all ranks; without `moves` collectives take no time.
    """
    skeleton = bound.skeleton
    template, labels = skeleton.templates[role], bound.labels[role]
    lasts_ns = -(-(template.shortest_ns << SPEED_BITS) // greatest_speed(bound))
    tail_ns = np.zeros_like(lasts_ns)
    gangs = np.flatnonzero(template.slot >= 0)
    ranks = np.flatnonzero(skeleton.program == role)
    first = offsets(np.array([len(family) for family in bound.families]))
    kinds_of = {}
    for slot in distinct(template.slot[gangs]).tolist():
        groups = skeleton.slots[slot, ranks]
        if everywhere:
            family = int(np.searchsorted(first, groups[0], side="right")) - 1
            groups = np.arange(first[family], first[family + 1])
        kinds_of[slot] = distinct(skeleton.kind[groups])
    closed_ns = _closed_ns(bound)
    for row in gangs.tolist() if moves else ():
        kinds, charge = kinds_of[int(template.slot[row])], int(template.charge[row])
        lasts_ns[row] = closed_ns[kinds, charge].min()
        tail_ns[row] = skeleton.tariff.tail_ns[kinds, charge].min()
    found = {}
    for number, step in enumerate(program.orders[role]):
        rows = np.flatnonzero(labels.step == number)
        begin = int(rows[0]) if len(rows) else 0
        ops = program.bodies[step.body].ops
        before: list[list[int]] = [[] for _ in ops]
        for row in range(len(ops)):
            before[row] += [int(one) - begin for one in template.preds.row(begin + row).tolist()]
        found[step.body] = Rows(
            tuple(op.name for op in ops),
            tuple(op.streams for op in ops),
            tuple(map(tuple, _with_streams(before, [op.streams for op in ops]))),
            lasts_ns[begin : begin + len(ops)].tolist(),
            tail_ns[begin : begin + len(ops)].tolist(),
            (template.slot[begin : begin + len(ops)] < 0).tolist(),
            _results(program, step),
            tuple(op.layer for op in ops),
        )
    return found


def _with_streams(before: list[list[int]], streams: Sequence[Sequence[str]]) -> list[list[int]]:
    """The predecessors of each row, including the row before it on each of its streams."""
    last: dict[str, int] = {}
    for row, of in enumerate(streams):
        before[row] += [last[stream] for stream in of if stream in last]
        last |= dict.fromkeys(of, row)
    return [sorted(set(of)) for of in before]


def _results(program: Program, step: Step) -> dict[str, int]:
    """The rows of a body that the keys END and LAST denote (`binding/templates.py`)."""
    ops = program.bodies[step.body].ops
    chain = [row for row, op in enumerate(ops) if not op.detached]
    compute = [row for row, op in enumerate(ops) if COMPUTE in op.streams]
    end = chain[-1] if chain else len(ops) - 1
    return {END: end, LAST: compute[-1] if compute else end}


def _closed_ns(bound: Bound) -> Array:
    """The uncontended time of every charge on every kind of communicator, without its tail: at the greatest rate it ever has."""
    tariff, profiles = bound.skeleton.tariff, bound.skeleton.profiles
    cap = tariff.cap.copy()
    for index in distinct(tariff.cap_profile[tariff.cap_profile >= 0]).tolist():
        cap[tariff.cap_profile == index] = max(profiles[index].value)
    moved: Array = tariff.latency_ns + -(-tariff.work // np.maximum(cap, 1))
    return moved


def is_transfer(program: Program, step: Step) -> bool:
    ops = program.bodies[step.body].ops
    return len(ops) == 1 and isinstance(ops[0], Transfer)


def is_wait(program: Program, step: Step) -> bool:
    ops = program.bodies[step.body].ops
    return len(ops) == 1 and isinstance(ops[0], Wait)
