"""The times of one collective by itself, as users of nccl-tests know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from ..binding.collective_policy import AUTO
from ..escape import Summarised
from ..fabrics.policy import NCCL
from ..fabrics.uneven_alltoall import Exchange
from ..hardware.cluster import Cluster
from ..simulation import estimated_effort
from ..units import show_bytes, show_s
from .collective import Timed, spread, time_collective


@dataclass(frozen=True, repr=False)
class CollectiveTable(Summarised):
    """How long a collective takes by size, as nccl-tests lists it."""

    kind: str
    cluster: str
    gpus: int
    nodes: int
    fidelity: str
    rows: tuple[Timed, ...]
    exchange: Exchange | None = None

    @property
    def heading(self) -> list[tuple[str, str]]:
        """What is timed, where."""
        spreading = f"{self.gpus:,} GPUs, {self.gpus // self.nodes} on each of {self.nodes:,} node{'s' * (self.nodes > 1)}"
        return [("collective", self.kind), ("on", f"{spreading} of {self.cluster}"), *_between(self.exchange)]

    @property
    def summary(self) -> list[tuple[str, str]]:
        rates = [
            (show_bytes(row.size_bytes), f"{show_s(row.time_s)}, busbw {row.bus_gb_per_s:.2f} GB/s, {row.algorithm}")
            for row in self.rows
        ]
        return [*self.heading, *rates]

    def as_dict(self) -> dict[str, Any]:
        """What `trainsim collective --json` prints."""
        head = {name: getattr(self, name) for name in ("kind", "cluster", "gpus", "nodes", "fidelity")}
        if self.exchange:
            (_, most_sent), (_, most_received) = self.exchange.spans
            head |= {"most_sent_bytes": most_sent, "most_received_bytes": most_received}
        return {**head, "rows": [row.as_dict() for row in self.rows]}


def collective(
    kind: str, cluster: Cluster, sizes_bytes: Sequence[int] = (), *, gpus: int | None = None, nodes: int | None = None,
    algorithm: str = AUTO, fidelity: str = "fluid", pieces: int | None = None, library: str = NCCL,
    matrix: ArrayLike | None = None, long: bool = False, expect: estimated_effort.Expect = estimated_effort.nobody,
) -> CollectiveTable:  # fmt: skip
    """Times a collective by itself, for every size, on so many GPUs of a cluster, spread evenly over so many nodes.

    An alltoall takes a `matrix` in place of sizes: entry (i, j) is what rank i has for rank j, in bytes.
    """
    exchange = None if matrix is None else Exchange.of(matrix)
    used = spread(cluster, exchange.ranks if exchange else gpus, nodes)
    how: dict[str, Any] = {"algorithm": algorithm, "fidelity": fidelity, "pieces": pieces, "library": library}
    how |= {"long": long, "expect": expect}
    rows = time_collective(kind, cluster, sizes_bytes, gpus=used, matrix=exchange.held if exchange else None, **how)
    on_nodes = len(set((used // cluster.gpus_per_node).tolist()))
    return CollectiveTable(kind, cluster.name, len(used), on_nodes, fidelity, tuple(rows), exchange)


def _between(exchange: Exchange | None) -> list[tuple[str, str]]:
    """What ranks send to others, and receive."""
    if exchange is None:
        return []
    spans = [f"{least:,.0f} to {most:,.0f} B" if least < most else f"{most:,.0f} B" for least, most in exchange.spans]
    return [("each sends", f"{spans[0]} to others"), ("and receives", spans[1])]
