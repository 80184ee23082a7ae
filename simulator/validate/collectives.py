"""Predictions of uncontended collectives for a table with the columns of nccl-tests and columns that describe the machine.

A row becomes a cluster (`measured_cluster`), on which collectives are timed as `trainsim collective` does: rows of one machine,
kind, library and algorithm together, for all their sizes at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..binding.collective_policy import AUTO
from ..config import catalog
from ..costs.collectives.theory import KINDS
from ..errors import UserError, either, shown
from ..fabrics.policy import LIBRARIES, NCCL
from ..measurements.csv_tables import Row, number, time_us
from ..measurements.measured_cluster import COLUMNS, cluster_of, known_gpu, word
from ..measurements.nccl_tests import kind_named
from ..study.collective import MEASURED, CollectiveTable, collective, spread
from ..units import US_PER_S
from .report import Predicted

UNIT, MEASURED_COLUMN = "us", "time_us"
NEEDS, SOURCE = ("gpu", "gpus", "nodes", "inside", "network", "collective", "bytes"), ("system", "collective")
READS = (*COLUMNS, "library", "asked", "collective", "bytes")
measured = time_us
MOST_BYTES = 2**60


def predictions(rows: Sequence[Row], gpu: None) -> list[Predicted | UserError]:
    """The prediction of each row, or the error that prevents it. Rows that differ only in their sizes are timed together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple(row[column] for column in READS if column != "bytes"), []).append(i)
    found: dict[int, Predicted | UserError] = {}
    for group in groups.values():
        found |= zip(group, _of_group([rows[i] for i in group]), strict=True)
    return [found[i] for i in range(len(rows))]


def _of_group(rows: Sequence[Row]) -> list[Predicted | UserError]:
    """The predictions of rows that differ only in their sizes."""
    row = rows[0]
    try:
        cluster, gpus, nodes = cluster_of(row)
        kind = kind_named(re.sub(r"[\s/]", "", row["collective"].lower()).removesuffix("perf"))
        if not kind:
            raise UserError(f"collective: {shown(row['collective'])} is none of {either(KINDS)}")
        library = word(row, "library", LIBRARIES, NCCL)
        algorithm = word(row, "asked", [AUTO, *map(catalog.plain, catalog.files("collectives"))], AUTO)
        algorithm = "nvls-tree" if algorithm == "nvls" and nodes > 1 else algorithm
        members = spread(cluster, gpus, nodes)
    except UserError as error:
        return [error] * len(rows)
    timed = partial(collective, kind, cluster, gpus=members, algorithm=algorithm, library=library)
    sizes = {row["bytes"]: math.ceil(size) for row in rows if 0 < (size := number(row["bytes"])) <= MOST_BYTES}
    found = _predicted(timed, sorted(set(sizes.values())))
    if not known_gpu(row):
        note = f"gpu: {shown(row['gpu'])} is not known; {cluster.gpu.name}, which has such links, counts"
        found = {size: replace(one, note=note) if isinstance(one, Predicted) else one for size, one in found.items()}
    cells = [row["bytes"] for row in rows]
    return [
        found[sizes[cell]] if cell in sizes else UserError(f"bytes: {shown(cell)} is not a number of bytes") for cell in cells
    ]


def _predicted(timed: Callable[[Sequence[int]], CollectiveTable], sizes: Sequence[int]) -> dict[int, Predicted | UserError]:
    """The predictions for some sizes, made together, or size by size if any size is refused."""
    try:
        return {
            time.size_bytes: Predicted(time.time_s * US_PER_S, time.uncertainty, time.provenance, time.provenance != MEASURED)
            for time in timed(sizes).rows
        }
    except UserError as error:
        if len(sizes) < 2:
            return dict.fromkeys(sizes, error)
        return {size: found for one in sizes for size, found in _predicted(timed, [one]).items()}
