"""Numbers of elements that every node has, and hashes of flows by the numbers of their ends."""

from __future__ import annotations

import numpy as np

from ..hashing import mix
from .options import Routing
from .wiring import Array


class Repeated:
    """Numbering of elements that every node has: kind by kind, and node by node within a kind."""

    def __init__(self, counts: list[int], nodes: int) -> None:
        of = np.array(counts, dtype=np.int64)
        local, first = np.concatenate([[0], np.cumsum(of)]), np.concatenate([[0], np.cumsum(of * nodes)])
        self.stride = np.repeat(of, of)
        self.base = np.arange(local[-1]) + np.repeat(first[:-1] - local[:-1], of)
        self.locals, self.end = int(local[-1]), int(first[-1])
        self.counts, self.ends, self.nodes = of, first[1:], nodes

    def of(self, nodes: Array, local: Array) -> Array:
        """The numbers of local elements in all given nodes, node by node."""
        number: Array = (nodes[:, None] * self.stride[local][None, :] + self.base[local][None, :]).ravel()
        return number

    def where(self, number: Array) -> tuple[Array, Array]:
        """The node of each element and its local number."""
        kind = np.searchsorted(self.ends, number, side="right")
        node, within = np.divmod(number - (self.ends - self.counts * self.nodes)[kind], self.counts[kind])
        local: Array = within + (np.cumsum(self.counts) - self.counts)[kind]
        return node, local

    def at(self, node: Array, local: Array) -> Array:
        """The numbers of rows of local elements, each row in its own node; -1 stays -1."""
        return np.where(local < 0, -1, self.base[local] + node[:, None] * self.stride[local])


def flow_hashes(routing: Routing, source: Array, target: Array) -> Array:
    """A hash of each flow under hashed routing, equal for equal seed and ends, else pseudo-random; 0 under other routing."""
    mixed = np.zeros(len(source), dtype=np.uint64)
    if routing.hashed:
        mixed = mix(mixed + np.uint64(routing.seed))
        for end in (source, target):
            mixed = mix(mixed ^ end.astype(np.uint64))
    hashed: Array = (mixed >> np.uint64(1)).astype(np.int64)
    return hashed
