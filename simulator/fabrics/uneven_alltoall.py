"""Uneven all-to-all, given by a matrix of bytes: the rounds of each algorithm, and its time on measured links.

Measurements cover even exchanges. The time of an uneven exchange is the known time of the even exchange with the same load on the
busiest link (payload times skew), times the modelled ratio of the two exchanges (`unmeasured_algorithms`): 1 where every rank has
data for every other rank, less than 1 where many pairs have no data for each other. Without a switch the busiest link is a wire
on the routes of the cluster. An algorithm without measurements has the time of its own rounds.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..binding.collective_policy import CollectivePolicy, takes
from ..collectives import Round
from ..collectives._uneven import checked_matrix, payload
from ..costs.collectives.curves import UncontendedTime
from ..engine.task import Array
from ..errors import Fault, UserError, shown
from ..files import check_count, decoded, read_bounded
from ..hardware.cluster import Cluster
from . import unmeasured_algorithms
from .policy import call_of, links_of
from .unmeasured_algorithms import PlacedRounds

KIND = "alltoall"
MOST_BYTES = 2**26
"""Largest size of a matrix file."""
MOST_CELLS, MOST_LINES = 5_000_000, 100_000
"""Largest numbers of cells and lines of a matrix file; a matrix of 2,000 ranks has 4 million cells."""
MOST_HELD_BYTES = 2**40
"""Largest number of bytes that one rank can have for another rank."""
NUMBER = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
ROWS = "a row for each rank, with what it has for every rank: as many numbers as rows, commas between them, no header"
CELL = f"a plain number from 0 to {MOST_HELD_BYTES:,}, such as 1048576 or 1.5e6"
Row = tuple[int, list[str]]
"""Line number and cells of a row."""


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """The bytes that every rank has for every other rank. The payload is the mean over ranks, rounded up to whole bytes."""

    held: Array
    """Matrix of bytes: entry (i, j) is the data of rank i for rank j."""
    payload_bytes: int

    @classmethod
    def of(cls, matrix: ArrayLike) -> Exchange:
        """The exchange that a square matrix of bytes describes."""
        held = checked_matrix(KIND, len(np.atleast_1d(np.asarray(matrix, dtype=object))), matrix)
        return cls(held, math.ceil(payload(held)))

    @property
    def ranks(self) -> int:
        return len(self.held)

    @property
    def spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The smallest and the largest number of bytes that a rank sends to other ranks, and receives from other ranks."""
        moved = np.where(np.eye(self.ranks, dtype=bool), 0.0, self.held)
        sent, received = ((float(total.min()), float(total.max())) for total in (moved.sum(axis=1), moved.sum(axis=0)))
        return sent, received

    @property
    def is_even(self) -> bool:
        """Whether every rank has the same number of bytes for every other rank."""
        pairs = self.held[~np.eye(self.ranks, dtype=bool)]
        return bool((pairs == pairs[:1]).all())


@dataclass(frozen=True, eq=False, slots=True)
class Uneven:
    """An algorithm for a single uneven exchange, used in place of the module of the algorithm.

    The class has no `RINGS`, since ranks may be reordered on a mesh only where all ranks are alike.
    """

    algorithm: ModuleType
    exchange: Exchange
    KINDS = (KIND,)

    def takes(self, kind: str, nodes: Array) -> bool:
        return takes(self.algorithm, kind, nodes)

    def rounds(self, kind: str, nodes: Array) -> tuple[Round, ...]:
        """The rounds of the algorithm for the exchange, as fractions of the payload in whole bytes."""
        rounds: tuple[Round, ...] = self.algorithm.rounds(kind, nodes, self.exchange.held)
        part = payload(self.exchange.held) / max(1, self.exchange.payload_bytes)
        return tuple(replace(r, fraction=r.fraction * part) for r in rounds)


def uneven_policy(exchange: Exchange, policy: CollectivePolicy, cluster: Cluster, gpus: Array) -> CollectivePolicy:
    """The collective policy with which all-to-alls among these GPUs of a cluster are the given exchange."""
    able = {name: module for name, module in policy.algorithms.items() if KIND in module.KINDS}
    uneven: dict[str, Any] = {name: Uneven(module, exchange) for name, module in able.items()}
    links = links_of(cluster)
    if policy.timing is None or links is None:
        return replace(policy, algorithms={**policy.algorithms, **uneven}, timing=None)
    known, inside, across = policy.timing, links.inside, links.across

    @cache
    def placings(name: str) -> tuple[PlacedRounds, PlacedRounds]:
        algorithms, wired = (able[name], uneven[name]), inside.mesh > 1
        even, own = (unmeasured_algorithms.placed_rounds(algorithm, KIND, cluster, gpus, wired=wired) for algorithm in algorithms)
        return even, own

    def timing(kind: str, algorithm: str, nodes: Array, payload_bytes: int) -> UncontendedTime | None:
        even, own = placings(algorithm)
        if not own.rounds or not payload_bytes:
            return None
        call = call_of(kind, algorithm, nodes, payload_bytes)
        skew = unmeasured_algorithms.wire_s(call, own, inside, across) / unmeasured_algorithms.wire_s(call, even, inside, across)
        alike = replace(call, payload_bytes=max(1, round(payload_bytes * skew)))
        even_time = known(kind, algorithm, nodes, int(alike.payload_bytes))
        if even_time is None or exchange.is_even:
            return even_time
        own_s = unmeasured_algorithms.uncontended_time(alike, own.of_payload(skew), inside, across).seconds
        even_s = unmeasured_algorithms.uncontended_time(alike, even, inside, across).seconds
        return unmeasured_algorithms.scaled(even_time, even_time.seconds * own_s / even_s, call, inside, across)

    return replace(policy, algorithms={**policy.algorithms, **uneven}, timing=timing)


def read(path: Path) -> Array:
    """The matrix in a CSV file: row i holds the bytes that rank i has for every rank, as plain numbers and without a header.

    Raises `UserError` with file:line for every wrong row and every wrong cell.
    """
    rows = [(line, cells) for line, cells in enumerate(_lines(path), 1) if cells not in ([], [""])]
    if not rows:
        raise UserError("there is no matrix in the file", where=str(path), hint=ROWS)
    header, rows = (rows[:1], rows[1:]) if len(rows) > 1 and _is_header(rows[0][1]) else ([], rows)
    found = [(line, f"{shown(cells[0])} ...: a header, which such a matrix has not", ROWS) for line, cells in header]
    found += sorted([*_misshapen(rows), *_wrong(rows)])
    if found:
        raise UserError(faults=[Fault(message, hint, f"{path}:{line}") for line, message, hint in found])
    return np.array([[float(cell) for cell in cells] for _, cells in rows])


def _lines(path: Path) -> list[list[str]]:
    """The cells of every line."""
    raw = read_bounded(path, MOST_BYTES, "a matrix of bytes", f"a CSV: {ROWS}")
    check_count(raw, b",", MOST_CELLS, path, "a matrix of bytes")
    check_count(raw, b"\n\r", MOST_LINES, path, "a matrix of bytes")
    text = decoded(raw, path, f"a CSV: {ROWS}")
    try:
        return [[cell.strip() for cell in next(csv.reader([line]), [])] for line in text.splitlines()]
    except csv.Error as error:
        raise UserError(f"not a CSV: {error}", where=str(path), hint=ROWS) from None


def _is_header(cells: list[str]) -> bool:
    """Whether a row holds words, not numbers."""
    return len(cells) > 1 and not any(re.match(r"[-+.0-9]|$", cell) for cell in cells)


def _misshapen(rows: list[Row]) -> Iterator[tuple[int, str, str]]:
    """Faults of rows with a wrong length: a single fault if all rows have the same length, else a fault per row that differs."""
    lengths = Counter(len(cells) for _, cells in rows)
    (usual, _), *others = lengths.most_common()
    if not others and usual != len(rows):
        yield rows[0][0], f"{_count(len(rows), 'row')} of {_count(usual, 'number')}: not square", ROWS
    wanted = len(rows) if len(rows) in lengths else usual
    for line, cells in rows:
        if others and len(cells) != wanted:
            yield line, f"{_count(len(cells), 'number')} in this row, where {wanted:,} should be", ROWS


def _wrong(rows: list[Row]) -> Iterator[tuple[int, str, str]]:
    """Faults of cells that are not a number of bytes."""
    for line, cells in rows:
        for number, cell in enumerate(cells, 1):
            if NUMBER.fullmatch(cell) is None or float(cell) > MOST_HELD_BYTES:
                yield line, f"cell {number}: {shown(cell) if cell else 'nothing'}, which is not a number of bytes", CELL


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"
