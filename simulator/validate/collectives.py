"""Collectives: the uncontended time of one, in a table with the columns of nccl-tests and those that describe the machine.

A row becomes a cluster (`measured_cluster`), which is timed as `trainsim collective` times one: rows of one machine, kind,
library and algorithm together, for all their sizes at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from ..binding.collective_policy import AUTO
from ..config import catalog
from ..costs.collectives.theory import KINDS
from ..errors import UserError, either, shown
from ..fabrics.policy import LIBRARIES, NCCL
from ..measurements.csv_tables import Row, number, time_us
from ..measurements.measured_cluster import COLUMNS, cluster_of, word
from ..study.collective import MEASURED, Timed, collective, spread
from ..units import US_PER_S
from .report import Own, Predicted

UNIT = "us"
NEEDS = ("gpu", "gpus", "nodes", "inside", "network", "collective", "bytes")
READS = (*COLUMNS, "library", "asked", "collective", "bytes")
MOST_BYTES = 2**60


def completed(rows: Sequence[Row], own: Own | None) -> Sequence[Row]:
    """The rows as they are: no column can be filled in."""
    return rows


def source_key(row: Row) -> str:
    """Rows are judged by system and collective."""
    return f"{row.get('system', '')}+{row['collective']}"


def measured(row: Row) -> float | None:
    """Microseconds."""
    return time_us(row)


def predictions(rows: Sequence[Row], own: Own | None) -> list[Predicted | UserError]:
    """The prediction of each row, or why there is none. Rows that differ in their sizes alone are timed together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple(row[column] for column in READS if column != "bytes"), []).append(i)
    found: dict[int, Predicted | UserError] = {}
    for group in groups.values():
        found |= zip(group, _of_group([rows[i] for i in group]), strict=True)
    return [found[i] for i in range(len(rows))]


def _of_group(rows: Sequence[Row]) -> list[Predicted | UserError]:
    """The predictions of rows that differ in their sizes alone."""
    try:
        timed = _timing(rows[0])
    except UserError as error:
        return [error] * len(rows)
    sizes = [_size(row) for row in rows]
    found = timed(sorted({size for size in sizes if isinstance(size, int)}))
    return [found[size] if isinstance(size, int) else size for size in sizes]


def _size(row: Row) -> int | UserError:
    size = number(row["bytes"])
    return math.ceil(size) if 0 < size <= MOST_BYTES else UserError(f"bytes: {shown(row['bytes'])} is no number of bytes")


def _timing(row: Row) -> Callable[[Sequence[int]], dict[int, Predicted | UserError]]:
    """What times the collective of a row for given sizes. Raises `UserError` for a row that describes none."""
    cluster, gpus, nodes = cluster_of(row)
    kind, library = _kind(row), word(row, "library", LIBRARIES, NCCL)
    algorithm = word(row, "asked", [AUTO, *map(catalog.plain, catalog.files("collectives"))], AUTO)
    algorithm = "nvls-tree" if algorithm == "nvls" and nodes > 1 else algorithm
    members = spread(cluster, gpus, nodes)

    def timed(sizes: Sequence[int]) -> dict[int, Predicted | UserError]:
        try:
            times = collective(kind, cluster, sizes, gpus=members, algorithm=algorithm, library=library).rows
        except UserError as error:
            if len(sizes) < 2:
                return dict.fromkeys(sizes, error)
            return {size: found for one in sizes for size, found in timed([one]).items()}
        return {time.size_bytes: _predicted(time) for time in times}

    return timed


def _predicted(time: Timed) -> Predicted:
    us, extrapolated = time.time_s * US_PER_S, time.provenance != MEASURED
    return Predicted(us, time.uncertainty, provenance=time.provenance, extrapolated=extrapolated)


def _kind(row: Row) -> str:
    words = re.sub(r"[\s/_-]", "", row["collective"].lower()).removesuffix("perf")
    kind = next((kind for kind in KINDS if kind.replace("_", "") == words), None)
    if kind is None:
        raise UserError(f"collective: {shown(row['collective'])} is none of {either(KINDS)}")
    return kind
