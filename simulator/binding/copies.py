"""Copies: blocks of replicas that differ only in their place in the cluster; one block is bound and simulated for all.

Data-parallel replicas run the same program. If blocks of replicas fill whole nodes, each block is the first one shifted by a
number of nodes. Nodes differ only in their pod, so all blocks act at the same times, and only one is laid out: its ranks, its
groups, and its members of groups that reach across blocks. Blocks with a disturbed rank or link are laid out too, beside one that
stands for all others. This is a fold (`engine/fold.py`) by shifts from block to block. It is proven here from the descriptions of
mesh and cluster, at a cost independent of the number of ranks:

- the program of a rank does not depend on its replica, and outside the disturbed blocks neither do speeds and capacities;
- a group lies within one block, or has members in every block; blocks have the same local GPUs, and their nodes are shared
  between pods in the same way; links inside a node and routes between nodes depend on nothing else;
- no link between switches can ever limit a flow, so that blocks share only the links of nodes and NICs;
- a group across blocks puts the same load on the links of every block, which is compared link by link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm, prod
from types import ModuleType
from typing import Unpack

import numpy as np

from ..collectives import Edges, Everyone, Round
from ..engine.fold import Folded
from ..engine.skeleton import Skeleton, task_count, turns
from ..engine.task import Array, Profile, distinct
from ..errors import InvariantBroken
from ..hardware.cluster import Assembly, Cluster
from ..plan.mesh import OF_EXPERTS, REPLICAS, Mesh
from ..program.operations import Communicator
from ..program.program import Program
from .communicators import Family, Placed
from .limiting import never_limiting, work_per_ns
from .perturb import Perturbation, profiles_of
from .uncontended import RoundTimes, Routed

UNCHANGED = -1
"""Placeholder for the number of a node: any node whose links have their usual capacities."""
PARTS_OF_LOAD = 1 << 20
"""Loads of links are compared in units of this fraction of the load of one edge."""


class BlocksDiffer(InvariantBroken):
    """Blocks turn out not to be copies of each other."""


@dataclass(frozen=True, eq=False)
class Copies:
    """Blocks of ranks that are copies of each other; rank r is GPU r."""

    cluster: Cluster
    whole: Mesh
    block: Mesh
    """The mesh of the ranks of one block, numbered as in the whole mesh."""
    disturbed: tuple[int, ...] = ()
    """The numbers of the blocks with a disturbance."""

    @cached_property
    def laid_out(self) -> tuple[int, ...]:
        """The numbers of the blocks that are laid out, in order: the disturbed ones, and the first of all others, which are its
        copies. So classes of ranks and groups have the same order as when all blocks are laid out."""
        return tuple(sorted((*self.disturbed, self.example_block)))

    @cached_property
    def example_block(self) -> int:
        """The number of the first block without a disturbance."""
        return next(number for number in range(self.count) if number not in self.disturbed)

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the ranks of the blocks that are laid out, numbered as in the whole mesh."""
        return _with_fewer_replicas(self.whole, self.shift * len(self.laid_out))

    @cached_property
    def assembly(self) -> Assembly:
        found = self.cluster.assembly
        if found is None:
            raise InvariantBroken(f"{self.cluster.name} is not made of equal nodes")
        return found

    @cached_property
    def count(self) -> int:
        """Number of blocks."""
        return self.whole.ranks // self.block.ranks

    @cached_property
    def shift(self) -> int:
        """Number of ranks from a block to the next."""
        return _ranks_with_replicas(self.block)

    def block_of(self, rank: Array) -> Array:
        """The block of each rank."""
        found: Array = rank % (self.shift * self.count) // self.shift
        return found

    def in_block(self, rank: Array) -> Array:
        """The number of each rank in its block."""
        found: Array = rank // (self.shift * self.count) * self.shift + rank % self.shift
        return found

    def local(self, rank: Array) -> Array:
        """For each rank the number, among the laid-out ranks, of the rank of which it is a copy."""
        place = np.full(self.count, self.laid_out.index(self.example_block))
        place[list(self.laid_out)] = np.arange(len(self.laid_out))
        before = rank // (self.shift * self.count) * len(self.laid_out) + place[self.block_of(rank)]
        found: Array = before * self.shift + rank % self.shift
        return found

    def ranks_of(self, blocks: Sequence[int]) -> Array:
        """The ranks of some blocks."""
        first = np.arange(self.block.ranks // self.shift)[:, None] * self.count + np.array(blocks)
        found: Array = (first.ravel()[:, None] * self.shift + np.arange(self.shift)).ravel()
        return found

    @cached_property
    def ranks(self) -> Array:
        """The ranks that are laid out."""
        return self.ranks_of(self.laid_out)

    @cached_property
    def nodes(self) -> Array:
        """The nodes of the ranks that are laid out."""
        return distinct(self.ranks // self.cluster.gpus_per_node)

    def crosses(self, c: Communicator) -> bool:
        """Whether the groups of a communicator reach across blocks."""
        outer = REPLICAS if self.whole.degrees[REPLICAS] > 1 else "dp"
        of_experts = self.whole.experts is not None and any(axis in OF_EXPERTS for axis in c.axes)
        return any((OF_EXPERTS.get(axis, axis) if of_experts else axis) == outer for axis in c.axes)

    def own_links(self, links: Array) -> Array:
        """The numbers of links of the nodes that are laid out, node by node; -1 for other links."""
        node, local = self.assembly.in_node(links)
        at = np.minimum(np.searchsorted(self.nodes, node), len(self.nodes) - 1)
        found: Array = np.where((node >= 0) & (self.nodes[at] == node), at * self.assembly.links_of_node + local, -1)
        return found

    @cached_property
    def links(self) -> Array:
        """The cluster's numbers of the links of the nodes that are laid out, node by node."""
        return np.concatenate([self.assembly.of_node(node) for node in self.nodes.tolist()])

    @cached_property
    def example(self) -> Cluster:
        """A part of the cluster with one node and one full pod, which are like all others."""
        pod, nodes = self.assembly.pod or 1, self.cluster.nodes
        return replace(self.cluster, nodes=pod + 1 if pod < nodes else min(nodes, 2))

    def limiting(self, changes: Mapping[int, Sequence[Perturbation]]) -> tuple[Array, Array]:
        """The capacity of every link of the nodes that are laid out, and whether it can limit flows, given the changes of links.

        Raises `BlocksDiffer` if a link between switches can.
        """
        wiring, assembly = self.example.wiring, self.example.assembly
        if assembly is None:
            raise BlocksDiffer("one node alone is not an example of many")
        of_node, capacity = assembly.of_node(0), work_per_ns(wiring.capacity_bytes_per_s)
        node, local = self.assembly.in_node(np.array([*changes], dtype=np.int64))
        if len(distinct(node)) > 1 and any(p.factor > 1 for of in changes.values() for p in of):
            raise BlocksDiffer("nodes that send more than others may together fill a link between switches")
        limiting = {}
        for number in dict.fromkeys([UNCHANGED, *node.tolist()]):
            here = {int(of_node[at]): of for at, of, on in zip(local, changes.values(), node, strict=True) if on == number}
            profiles: list[Profile] = []
            never = never_limiting(wiring, profiles_of(capacity, here, profiles), profiles)
            if not never[assembly.first_fabric :].all():
                raise BlocksDiffer("blocks of replicas share links between switches that can limit them")
            limiting[number] = ~never[of_node]
        found = [limiting.get(number, limiting[UNCHANGED]) for number in self.nodes.tolist()]
        return np.tile(capacity[of_node], len(self.nodes)), np.concatenate(found)

    def pods_divide_blocks_alike(self) -> bool:
        """Whether the nodes of every block are shared between pods like those of the first."""
        first = distinct(self.ranks_of([0]) // self.cluster.gpus_per_node)
        moved = first + np.arange(self.count)[:, None] * (self.shift // self.cluster.gpus_per_node)
        parted = np.diff(moved // (self.assembly.pod or 1), axis=1) > 0
        return bool((parted == parted[0]).all())

    def examples_by_place(self, gpus: Array) -> tuple[Array, Array]:
        """An example of each set of groups (rows of GPUs) whose members have the same local GPUs and share nodes and pods in the
        same way, and for each group the number of its example."""
        per_node, pod = self.cluster.gpus_per_node, self.assembly.pod or self.cluster.nodes
        node = gpus // per_node
        rises = node[:, 1:] - node[:, :-1]
        if (rises < 0).any():  # nodes that recur would have to be compared with all others
            return np.arange(len(gpus)), np.arange(len(gpus))
        pods = node // pod
        columns = gpus % per_node * 4
        columns[:, 1:] += 2 * (rises > 0) + (pods[:, 1:] > pods[:, :-1])
        known: dict[bytes, int] = {}
        which = np.array([known.setdefault(row.tobytes(), at) for at, row in enumerate(columns)])
        examples, alike = np.unique(which, return_inverse=True)
        return examples, alike

    def all_ranks(self, of_block: Folded, skeleton: Skeleton, across: Array) -> Folded:
        """The classes of the ranks of all blocks, from those laid out; `across` are the communicators across blocks."""
        whole = np.arange(self.whole.ranks)

        def tasks() -> int:
            common = int(turns(skeleton)[across].sum())
            return self.count * (task_count(skeleton) - common) // len(self.laid_out) + common

        return Folded(of_block.skeleton, of_block.class_of[self.local(whole)], tasks, of_block.have_common_member)

    def check_equal_loads(self, routed: Routed) -> None:
        """Raises `BlocksDiffer` unless groups put the same load on the links of every block."""
        per_node, (node, local) = self.cluster.gpus_per_node, self.assembly.in_node(routed.link)
        inside = node >= 0
        rank, groups = node[inside] * per_node, 1 + int(routed.group.max(initial=0))
        block, place, nodes = self.block_of(rank), self.in_block(rank) // per_node, self.block.ranks // per_node
        key = (block * groups + routed.group[inside]) * nodes + place
        key = key * self.assembly.links_of_node + local[inside]
        order = np.argsort(key, kind="stable")
        size = int(np.count_nonzero(block == 0))
        if size * self.count == len(key):
            of_block = groups * nodes * self.assembly.links_of_node
            keys = key[order].reshape(self.count, size) - np.arange(self.count)[:, None] * of_block
            loads = np.rint(routed.share[inside][order] * PARTS_OF_LOAD).reshape(self.count, size)
            if (keys == keys[0]).all() and (loads == loads[0]).all():
                return
        raise BlocksDiffer("a group loads the links of its replicas in different ways")


class FamilyAcross(Family):
    """Groups with members in every block of replicas: their members and links in the laid-out blocks, and the costs of the
    whole groups."""

    def __init__(
        self, members: Array, gpus: Array, charges: Mapping[int, tuple[str, int]], copies: Copies, **placed: Unpack[Placed]
    ) -> None:
        self.copies = copies
        super().__init__(members, gpus, charges, **placed)

    def _routed_groups(
        self, plan: tuple[Round, ...], algorithm: ModuleType, kind: str, rows: Array
    ) -> tuple[tuple[RoundTimes, ...], Routed]:
        """The uncontended times of whole groups, and the routes of their messages from or to blocks that are laid out."""
        examples, alike = self.copies.examples_by_place(self.gpus[rows])
        times, whole = self._round_times(plan, algorithm, kind, rows[examples])
        self.copies.check_equal_loads(whole)
        gpus = self.gpus[rows]
        laid_out = np.isin(self.copies.block_of(gpus[0]), self.copies.laid_out)
        near = [replace(r, edges=_with_end_in(r.edges, laid_out)) for r in plan]
        nothing = Routed(*(np.zeros(0, dtype=np.int64),) * 2, *(np.zeros(0),) * 4)
        routed = {r.edges.key: self.links.routed(r.edges, gpus) if len(r.edges.source) else nothing for r in near}
        return tuple(RoundTimes(*(column[alike] for column in part)) for part in times), self.links.combined(near, routed)


def _with_end_in(edges: Edges, chosen: Array) -> Edges:
    """The edges that begin or end at a chosen member."""
    if isinstance(edges, Everyone):
        raise BlocksDiffer("exchanges of all with all are bound rank by rank")
    kept = chosen[edges.source] | chosen[edges.target]
    return Edges(edges.source[kept], edges.target[kept], edges.share[kept])


def copies_of(program: Program, mesh: Mesh, cluster: Cluster, perturbations: Sequence[Perturbation] = ()) -> Copies | None:
    """The smallest blocks of replicas that are copies of each other, apart from disturbed ones; None if there are none, if too
    many are disturbed, or if one block has all ranks.

    Not yet checked: whether the groups across blocks load them alike, and whether no other link limits flows.
    """
    assembly = cluster.assembly
    if assembly is None or not assembly.fabric or assembly.pod is None or cluster.joins_hosts or program.variants:
        return None
    if any(axis in ("dp", "edp", REPLICAS) for role in program.roles for axis in role.coordinates):
        return None
    if mesh.experts and _ranks_with_replicas(mesh.experts) != _ranks_with_replicas(mesh):
        return None
    units = [
        _ranks_before_replicas(of) * (of.degrees["dp"] if of.degrees[REPLICAS] > 1 else 1) for of in (mesh, mesh.experts) if of
    ]
    together = lcm(cluster.gpus_per_node, *units)
    for ranks in range(together, _ranks_with_replicas(mesh) // 2 + 1, together):
        if _ranks_with_replicas(mesh) % ranks == 0:
            found = Copies(cluster, mesh, _with_fewer_replicas(mesh, ranks))
            disturbed = _disturbed(found, perturbations)
            if found.pods_divide_blocks_alike() and 2 * len(disturbed) < found.count:
                found = replace(found, disturbed=disturbed)
                crossing = [c for c in program.communicators.values() if found.crosses(c)]
                return None if any(c.size is not None for c in crossing) else found
    return None


def _disturbed(copies: Copies, perturbations: Sequence[Perturbation]) -> tuple[int, ...]:
    """The numbers of the blocks with a disturbance; a disturbed link between switches disturbs all blocks."""
    links = np.array([p.link for p in perturbations if p.link is not None], dtype=np.int64)
    node, _ = copies.assembly.in_node(links)
    if (node < 0).any():
        return tuple(range(copies.count))
    ranks = [p.rank for p in perturbations if p.rank is not None]
    return tuple(distinct(copies.block_of(np.array([*ranks, *node * copies.cluster.gpus_per_node], dtype=np.int64))).tolist())


def _ranks_before_replicas(mesh: Mesh) -> int:
    """Number of ranks with the same coordinates of replicas and of all axes that vary more slowly."""
    return prod(mesh.degrees[axis] for axis in mesh.order[: mesh.order.index("dp")])


def _ranks_with_replicas(mesh: Mesh) -> int:
    """Number of ranks with the same coordinates of all axes that vary more slowly than replicas."""
    return _ranks_before_replicas(mesh) * mesh.degrees["dp"] * mesh.degrees[REPLICAS]


def _with_fewer_replicas(mesh: Mesh, ranks: int) -> Mesh:
    """The mesh with its replicas reduced so that `_ranks_with_replicas` is `ranks`."""
    axis = REPLICAS if mesh.degrees[REPLICAS] > 1 else "dp"
    degree = ranks // (_ranks_with_replicas(mesh) // mesh.degrees[axis])
    experts = mesh.experts and _with_fewer_replicas(mesh.experts, ranks)
    return replace(mesh, degrees={**mesh.degrees, axis: degree}, experts=experts)
