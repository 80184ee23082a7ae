"""Collective algorithms, one file each: over which edges between the ranks of a group how many bytes go, in how many steps.

An algorithm defines `steps(kind, ranks)`, the messages that follow one another; `wire_fraction(kind, ranks)`, the bytes
that its busiest edge carries per byte of payload; and `edges(nodes)`, who sends to whom, given the node of every rank of
the group, with the share of that fraction that each edge carries. The payload of a gather or scatter is the whole tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, slots=True)
class Edges:
    """Directed edges between the members of a group, by position in the group, each with its share of the bytes."""

    source: NDArray[Any]
    target: NDArray[Any]
    share: NDArray[Any]
