"""Collectives: the time of one alone, in the format of nccl-tests gathered into a table.

What the words of a row mean stands in `simulator/study/links/describe.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from ...costs.curves import alone
from ...costs.theory import KINDS, Call
from ...errors import UserError, either, shown
from ...units import US_PER_S
from ..links import fabrics
from ..links.describe import algorithm, machine
from ..tables import Row, count, number, time_us
from .predicted import Own, Predicted

UNIT = "us"
NEEDS = ("fabric", "gpu", "gpus", "nodes", "collective", "algorithm", "dtype", "bytes")
READS = (*NEEDS, "gpus_per_node")
MOST_BYTES = 2.0**60


def completed(rows: Sequence[Row], own: Own | None) -> Sequence[Row]:
    """The rows as they are: nothing that they leave out can be told."""
    return rows


def source_key(row: Row) -> str:
    """Rows are judged by system and collective."""
    return f"{row.get('system', '')}+{row['collective']}"


def measured(row: Row) -> float | None:
    """Microseconds."""
    return time_us(row)


def predictor() -> Callable[[Row], Predicted]:
    """Predicts a row from the fabrics that ship."""
    load = cache(fabrics.load)
    machine_of = cache(lambda gpu, fabric, gpus, nodes: machine(gpu, fabric, gpus, nodes, load))

    def predict(row: Row) -> Predicted:
        gpus, nodes = count(row, "gpus"), _nodes(row)
        found = machine_of(row["gpu"], row["fabric"], gpus, nodes)
        call = Call(_kind(row), number(row["bytes"]), gpus, found.nodes, algorithm(row["algorithm"], row["dtype"]))
        if not 0 < call.payload_bytes <= MOST_BYTES:
            raise UserError(f"bytes: {shown(row['bytes'])} is no number of bytes")
        if gpus < 2:
            raise UserError("one GPU alone has nobody to talk to")
        if not found.inside.told(call.kind, call.per_node):
            what = f"no formula tells what {call.per_node:g} GPUs of a cube mesh reach"
            raise UserError(f"{what}: `trainsim collective` takes their routes")
        time = alone(call, found.inside, found.across, found.curves)
        return Predicted(time.seconds * US_PER_S, time.uncertainty, provenance=time.provenance, extrapolated=time.extrapolated)

    return predict


def _nodes(row: Row) -> int:
    """The nodes of a row, or as many as its GPUs fill."""
    if row["nodes"].strip() or not row["gpus_per_node"].strip():
        return count(row, "nodes")
    return -(-count(row, "gpus") // count(row, "gpus_per_node"))


def _kind(row: Row) -> str:
    words = re.sub(r"[\s/_-]", "", row["collective"].lower()).removesuffix("perf")
    kind = next((kind for kind in KINDS if kind.replace("_", "") == words), None)
    if kind is None:
        raise UserError(f"collective: {shown(row['collective'])} is none of {either(KINDS)}")
    return kind
