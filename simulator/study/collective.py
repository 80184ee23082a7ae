"""One collective by itself on a cluster, for every size asked: the table that users of nccl-tests know.

It runs through the same binding and the same engine as those of a training step, one size after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..binding.bind import Bound, Site, bind
from ..binding.conduct import AUTO
from ..engine import des
from ..engine.close import close
from ..engine.fold import fold
from ..engine.timeline import Timeline
from ..errors import OutsideDomain, UserError, did_you_mean
from ..hardware.cluster import Cluster
from ..kernels import Kernel
from ..plan.mesh import Mesh
from ..program.op import Collective
from ..program.program import Body, Communicator, Program, Step
from ..units import GB, US_PER_S, seconds
from .assemble import conduct_on

GROUP = Communicator("group", "tp", ("tp",))
BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
"""Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
KINDS = tuple(BUS_FACTOR)


@dataclass(frozen=True, slots=True)
class Timed:
    """One row of the table."""

    size_bytes: int
    time_s: float
    ranks: int
    kind: str
    algorithm: str

    @property
    def algorithm_gb_per_s(self) -> float:
        return self.size_bytes / self.time_s / GB if self.time_s else 0.0

    @property
    def bus_gb_per_s(self) -> float:
        return self.algorithm_gb_per_s * BUS_FACTOR[self.kind](self.ranks) if self.ranks > 1 else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "size_bytes": self.size_bytes,
            "time_us": self.time_s * US_PER_S,
            "algbw_gb_per_s": self.algorithm_gb_per_s,
            "busbw_gb_per_s": self.bus_gb_per_s,
            "algorithm": self.algorithm,
        }


def spread(cluster: Cluster, gpus: int | None = None, nodes: int | None = None) -> Cluster:
    """The part of a cluster that so many GPUs occupy, evenly on so many nodes; by default as few nodes as hold them."""
    per_node = cluster.gpus_per_node
    wanted = gpus or (nodes or cluster.nodes) * per_node
    used = nodes or -(-wanted // per_node)
    if wanted % used or wanted // used > per_node:
        legal = max(used, min(wanted // used, per_node) * used)
        reason = f"{wanted} GPUs do not spread evenly over {used} nodes of {per_node}"
        raise OutsideDomain(reason, nearest={"gpus": legal, "nodes": used})
    share = wanted // used
    return replace(cluster, nodes=used, gpus_per_node=share, nics_per_node=max(1, cluster.nics_per_node * share // per_node))


def time_collective(
    kind: str, cluster: Cluster, sizes_bytes: Sequence[int], *, algorithm: str = AUTO, closed: bool = False
) -> list[Timed]:
    """How long a collective of all GPUs of a cluster takes alone, for each size."""
    if kind not in KINDS:
        raise UserError(f"no collective {kind!r}", hint=did_you_mean(kind, KINDS))
    bound = bound_collective(kind, cluster, sizes_bytes, algorithm)
    folded = fold(bound.skeleton)
    times = des.simulate(close(folded.expansion.graph, every=closed))
    timeline = Timeline(times, folded.expansion, folded.class_of).rank_times(0)
    labels = bound.labels[0]
    charges = bound.skeleton.templates[0].charge
    lasted_ns = (timeline.end_ns - timeline.start_ns).tolist()
    served = [bound.algorithms.get((GROUP.name, int(charge)), "") for charge in charges]
    size_of = [labels.ops[op].payload_bytes for op in labels.op.tolist()]
    return [Timed(size, seconds(ns), cluster.gpus, kind, name) for size, ns, name in zip(size_of, lasted_ns, served, strict=True)]


def bound_collective(kind: str, cluster: Cluster, sizes_bytes: Sequence[int], algorithm: str = AUTO) -> Bound:
    """A program that does nothing but one collective after the other, on the ground."""
    ops = [
        Collective(name=f"{i}", streams=(GROUP.name,), communicator=GROUP.name, kind=kind, payload_bytes=size)
        for i, size in enumerate(sizes_bytes)
    ]
    program = Program((), {"all": Body(tuple(ops))}, ((Step("all", "collective"),),), {GROUP.name: GROUP})
    mesh = Mesh.of({"tp": cluster.gpus}, "tp")
    return bind(program, mesh, Site(cluster, no_kernels, conduct_on(cluster, algorithm)))


def no_kernels(kernel: Kernel) -> int:
    """The cost of kernels where there are none."""
    return 0
