"""What users ask of one thing by itself: a kernel, a collective, a cluster, the memory or the network of a training step.

The command line and Python call these functions. Each returns a frozen value that shows itself, with `as_dict()` for records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .. import escape
from ..binding.conduct import AUTO
from ..engine.task import Array
from ..errors import UserError
from ..hardware.cluster import Cluster
from ..hardware.measure import Way, bisection, diameter, link_classes, switches, ways
from ..memory.account import RankMemory
from ..units import GIB, show_bytes, show_rate, show_s
from . import effort
from .collective import Timed, spread, time_collective
from .gpus.kernel import Asked, Software, time_kernel
from .links.uneven import Exchange
from .network.network import Network
from .runnable import load_one
from .runs.run import Run, memory_record
from .scenarios.scenario import Scenario
from .simulate import simulate_scenario

MOST_LINKS = 2_000_000


class Summarised:
    """A value that shows itself by its summary, names with values."""

    @property
    def summary(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return escape.block(type(self).__name__, self.summary)

    def _repr_html_(self) -> str:
        return escape.html_table(self.summary)


@dataclass(frozen=True, repr=False)
class KernelTime(Summarised):
    """The predicted time of a kernel, with what is known about the prediction."""

    op: str
    gpu: str
    dtype: str
    time_us: float
    model: str
    provenance: str
    sigma: float
    """Relative standard error."""
    extrapolated: bool
    tflop_per_s: float
    gb_per_s: float
    site_scalar: float = 1.0

    @property
    def summary(self) -> list[tuple[str, str]]:
        slow = [("site", f"every kernel takes {self.site_scalar:g} times as long")] if self.site_scalar != 1 else []
        return [
            ("kernel", f"{self.op} on {self.gpu} in {self.dtype}"),
            ("time", f"{self.time_us:,.2f} us, give or take {self.sigma:.0%} (one standard error)"),
            ("model", self.model),
            ("provenance", self.provenance + (", beyond the measured sizes" if self.extrapolated else "")),
            *slow,
            ("rate", f"{self.tflop_per_s:,.1f} TFLOP/s, {self.gb_per_s:,.0f} GB/s"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """What `trainsim kernel --json` prints."""
        record = asdict(self)
        return record if self.site_scalar != 1 else {name: value for name, value in record.items() if name != "site_scalar"}


def kernel(
    op: str, gpu: str, dtype: str = "bf16", *, m: int | None = None, n: int | None = None, k: int | None = None, batch: int = 1,
    seq: int | None = None, heads: int | None = None, kv_heads: int | None = None, head_dim: int | None = None,
    causal: bool | None = None, top_k: int | None = None, library: str = "", eager: bool = False, profile: str = "",
    site_scalar: float | None = None,
) -> KernelTime:  # fmt: skip
    """Times a kernel on a GPU: a GEMM by `m`, `n` and `k`, attention by `seq` and `heads`, a memory-bound operator by `m`, `n`.

    `library` names whose kernels, `eager` splits operators as an eager framework does, `profile` is the file of a calibration.
    """
    asked = Asked(op, gpu, dtype, (m, n, k), batch, (seq, heads, kv_heads, head_dim), causal, top_k)
    return KernelTime(**time_kernel(asked, Software(library, eager, profile, site_scalar)))


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
    algorithm: str = AUTO, fidelity: str = "fluid", pieces: int | None = None, matrix: ArrayLike | None = None,
    long: bool = False, expect: effort.Expect = effort.nobody,
) -> CollectiveTable:  # fmt: skip
    """Times a collective by itself, for every size, on so many GPUs of a cluster, spread evenly over so many nodes.

    An alltoall takes a `matrix` in place of sizes: entry (i, j) is what rank i has for rank j, in bytes.
    """
    exchange = None if matrix is None else Exchange.of(matrix)
    used = spread(cluster, exchange.ranks if exchange else gpus, nodes)
    how: dict[str, Any] = {"algorithm": algorithm, "fidelity": fidelity, "pieces": pieces, "long": long, "expect": expect}
    rows = time_collective(kind, cluster, sizes_bytes, gpus=used, matrix=exchange.held if exchange else None, **how)
    on_nodes = len(np.unique(used // cluster.gpus_per_node))
    return CollectiveTable(kind, cluster.name, len(used), on_nodes, fidelity, tuple(rows), exchange)


def _between(exchange: Exchange | None) -> list[tuple[str, str]]:
    """What ranks send to others, and receive."""
    if exchange is None:
        return []
    spans = [f"{least:,.0f} to {most:,.0f} B" if least < most else f"{most:,.0f} B" for least, most in exchange.spans]
    return [("each sends", f"{spans[0]} to others"), ("and receives", spans[1])]


@dataclass(frozen=True, repr=False)
class Topology(Summarised):
    """The vertices and links of a cluster, and what they are worth."""

    cluster: Cluster

    @property
    def vertices(self) -> dict[str, int]:
        """Vertices by kind, in the order of the wiring."""
        runs = self.cluster.wiring.vertices
        return {kind: sum(run.count for run in runs if run.kind == kind) for kind in dict.fromkeys(run.kind for run in runs)}

    @property
    def summary(self) -> list[tuple[str, str]]:
        cut, across = bisection(self.cluster), diameter(self.cluster)
        return [
            ("cluster", f"{self.cluster.name}: {self.cluster.nodes:,} nodes, {self.cluster.gpus:,} {self.cluster.gpu.name}"),
            ("shape", self.cluster.shape_name),
            ("vertices", ", ".join(f"{count:,} {kind}" for kind, count in self.vertices.items())),
            ("links", f"{self.cluster.wiring.links:,}"),
            ("bisection", cut.method if cut.bytes_per_s is None else f"{show_rate(cut.bytes_per_s)} each way ({cut.method})"),
            ("diameter", f"{across.hops} links"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """What `trainsim topology --json` prints: every link too."""
        cluster, wiring = self.cluster, self.cluster.wiring
        if wiring.links > MOST_LINKS:
            raise UserError(f"{wiring.links:,} links are too many to print", hint="show fewer nodes: --nodes 64")
        cut, across = bisection(cluster), diameter(cluster)
        return {
            "name": cluster.name,
            "shape": cluster.shape_name,
            "inside": cluster.inside_name,
            "routing": cluster.options.routing.policy,
            "gpu": cluster.gpu.name,
            "gpus": cluster.gpus,
            "nodes": cluster.nodes,
            "switches": switches(cluster),
            "vertices": self.vertices,
            "bisection_bytes_per_s": cut.bytes_per_s,
            "bisection_method": cut.method,
            "diameter_links": across.hops,
            "diameter_exact": across.exact,
            "link_classes": [
                {"name": c.name, "count": c.count, "capacity_bytes_per_s": c.bytes_per_s, "latency_s": c.latency_s}
                for c in link_classes(wiring)
            ],
            "ways": [self._way(way) for way in ways(cluster)],
            "links": [self._link(link) for link in range(wiring.links)],
        }

    def _way(self, way: Way) -> dict[str, Any]:
        wiring = self.cluster.wiring
        return {
            "inside_node": way.inside,
            "classes": list(way.classes),
            "gpus": way.gpus,
            "example": [wiring.vertex_name(0), wiring.vertex_name(way.example)],
            "links": list(way.hops),
            "latency_s": list(way.latency_s),
            "bytes_per_s": list(way.bytes_per_s),
        }

    def _link(self, link: int) -> dict[str, Any]:
        wiring = self.cluster.wiring
        source, target = wiring.vertex_name(int(wiring.source[link])), wiring.vertex_name(int(wiring.target[link]))
        return {
            "name": f"{source}>{target}",
            "source": source,
            "target": target,
            "class": wiring.link_classes[int(wiring.link_class[link])],
            "capacity_bytes_per_s": float(wiring.capacity_bytes_per_s[link]),
            "latency_s": float(wiring.latency_s[link]),
        }


def topology(cluster: Cluster, *, listed: bool = True, long: bool = False) -> Topology:
    """Shows the vertices and links of a cluster; `listed` estimates what listing each of them takes."""
    takes = effort.of_topology(cluster.gpus, listed=listed)
    effort.check(takes, f"a cluster of {cluster.gpus:,} GPUs", "show fewer nodes: --nodes 64", long=long)
    return Topology(cluster)


@dataclass(frozen=True, repr=False)
class MemoryReport(Summarised):
    """What a GPU of every pipeline rank holds in a training step, by class and over time."""

    run: Run

    @property
    def ranks(self) -> tuple[RankMemory, ...]:
        return self.run.memory

    @property
    def capacity_bytes(self) -> float:
        return self.run.scenario.cluster.gpu.memory_bytes

    @property
    def over_gib(self) -> float:
        """By how much the fullest GPU holds more than it can."""
        return max(0.0, (self.run.peak_memory_bytes - self.capacity_bytes) / GIB)

    @cached_property
    def curves(self) -> tuple[tuple[Array, Array], ...]:
        """Of every pipeline rank: seconds, and the bytes held from then on."""
        return tuple(self.run.memory_over_time(rank.rank) for rank in self.ranks)

    @property
    def summary(self) -> list[tuple[str, str]]:
        peaks = [
            (f"rank {rank.rank}", f"{show_bytes(rank.total_bytes)}, {show_bytes(rank.activations_bytes)} of it activations")
            for rank in self.ranks
        ]
        return [*peaks, ("capacity", show_bytes(self.capacity_bytes))]

    def as_dict(self) -> dict[str, Any]:
        """What `trainsim memory --json` prints."""
        curves = zip(self.ranks, self.curves, strict=True)
        return {
            "peak_memory_bytes": self.run.peak_memory_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.run.fits,
            "over_gib": self.over_gib,
            "memory_by_stage": [memory_record(rank) for rank in self.ranks],
            "over_time": [{"rank": rank.rank, "time_s": times, "bytes": held} for rank, (times, held) in curves],
        }


def memory(scenario: Scenario | str | Path, *, long: bool = False, expect: effort.Expect = effort.nobody) -> MemoryReport:
    """Simulates a training step and shows what every pipeline rank holds, whether it fits or not."""
    return MemoryReport(_simulated(scenario, allow_oom=True, long=long, expect=expect))


def network(
    scenario: Scenario | str | Path, *, allow_oom: bool = False, long: bool = False, expect: effort.Expect = effort.nobody
) -> Network:
    """Simulates a training step and shows which links ranks wait for, and what every link carries."""
    return _simulated(scenario, allow_oom=allow_oom, long=long, expect=expect).network


def _simulated(scenario: Scenario | str | Path, **options: Any) -> Run:
    """The run of a scenario, or of the file or name of one."""
    return simulate_scenario(load_one(scenario) if isinstance(scenario, (str, Path)) else scenario, **options)
