"""A balanced exchange, in which every rank sends equally much to every other rank, routed by classes of messages.

Nodes whose NICs are attached to the same switches are alike: their messages take the same links of the fabric, and corresponding
links of their own nodes. So one pair of nodes of each pair of classes is routed, and its load is multiplied by the number of such
pairs: 16,384 GPUs in 64 pods have 268 million messages, and 264,000 are routed. This is valid if routes follow from the switches
of both ends (so not for hashed routing or explicit graphs) and if the ranks fill their nodes alike. Loads are whole numbers of
messages, equal to those of all messages routed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..engine.task import Array
from ..hardware.cluster import Assembly, Cluster

LEAST_RANKS = 256
"""With fewer ranks, messages are routed one by one, which is fast enough."""
MOST_EDGES = 1 << 14
"""Largest number of messages that are routed at a time."""


class Classes(NamedTuple):
    """The classes of the nodes of a group of ranks: nodes of a class are alike."""

    assembly: Assembly
    local: Array
    """The ranks of a node, by their places in it."""
    nodes: Array
    of_node: Array
    """Node -> class."""
    first: Array
    """Class -> one node."""
    second: Array
    """Class -> another node, or -1."""
    alike: Array
    """Class -> number of nodes."""

    @property
    def messages(self) -> int:
        """Number of messages that are routed."""
        return (len(self.first) ** 2 + len(self.first)) * len(self.local) ** 2


class Exchanged(NamedTuple):
    """Number of messages on every link that carries any, and the latencies of the messages."""

    link: Array
    messages: Array
    longest_s: float
    mean_s: float


def classes_of(cluster: Cluster, gpus: Array) -> Classes | None:
    """The classes of the nodes of some GPUs; None if routes do not follow from classes, or if classes save nothing."""
    if cluster.nodes == 1 or len(gpus) < LEAST_RANKS or cluster.options.routing.hashed:
        return None
    assembly = cluster.assembly
    fabric = assembly.fabric if assembly else None
    node, local = np.divmod(gpus, cluster.gpus_per_node)
    nodes, counts = np.unique(node, return_counts=True)
    if assembly is None or fabric is None or len(nodes) < 2 or (counts != counts[0]).any():
        return None
    places = local[np.argsort(node, kind="stable")].reshape(len(nodes), -1)
    if (places != places[0]).any():
        return None
    nic = nodes[:, None] * cluster.rails + np.arange(cluster.rails)
    columns = [of[nic] for of in (fabric.port, fabric.rail, fabric.site) if of is not None]
    _, first, of_node, count = np.unique(
        np.concatenate(columns, axis=1), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    of_node = of_node.ravel()
    second = np.full(len(first), -1, dtype=np.int64)
    others = np.setdiff1d(np.arange(len(nodes)), first)
    second[of_node[others]] = nodes[others]
    found = Classes(assembly, places[0], nodes, of_node, nodes[first], second, count)
    return found if 2 * found.messages < len(gpus) ** 2 else None


def exchanged(cluster: Cluster, classes: Classes) -> Exchanged:
    """The loads of the links where every rank sends a message to every other, and the latencies of the messages."""
    assembly, wiring, local = classes.assembly, cluster.wiring, classes.local
    per_node, owner, place = cluster.gpus_per_node, *_owners(cluster, assembly)
    fabric = np.zeros(wiring.links, dtype=np.int64)
    within = np.zeros((len(classes.first), int(place.max()) + 1), dtype=np.int64)
    latency_s, slowest_s, total_s = np.append(wiring.latency_s, 0.0), 0.0, 0.0
    for source_node, target_node, source_class, target_class, as_source, as_target, times in _pairs(classes):
        pair, sender, receiver = (of.ravel() for of in np.indices((len(source_node), len(local), len(local))))
        source_place, target_place = local[sender], local[receiver]
        apart = (source_node[pair] != target_node[pair]) | (source_place != target_place)
        source_place, target_place, pair = source_place[apart], target_place[apart], pair[apart]
        route = cluster.route(source_node[pair] * per_node + source_place, target_node[pair] * per_node + target_place)
        edge_s = latency_s[route].sum(axis=1)
        slowest_s = max(slowest_s, float(edge_s.max(initial=0.0)))
        total_s += float(edge_s @ times[pair])
        of_pair = np.broadcast_to(pair[:, None], route.shape)[route >= 0]
        link = route[route >= 0]
        shared = owner[link] < 0
        np.add.at(fabric, link[shared], times[of_pair[shared]])
        at_source = ~shared & (owner[link] == source_node[of_pair])
        at_target = ~shared & ~at_source
        np.add.at(within, (source_class[of_pair[at_source]], place[link[at_source]]), as_source[of_pair[at_source]])
        np.add.at(within, (target_class[of_pair[at_target]], place[link[at_target]]), as_target[of_pair[at_target]])
    used = np.zeros(cluster.nodes, dtype=bool)
    used[classes.nodes] = True
    class_of = np.zeros(cluster.nodes, dtype=np.int64)
    class_of[classes.nodes] = classes.of_node
    own = np.flatnonzero(owner >= 0)
    own = own[used[owner[own]]]
    fabric[own] = within[class_of[owner[own]], place[own]]
    link = np.flatnonzero(fabric)
    ranks = len(classes.nodes) * len(local)
    return Exchanged(link, fabric[link], slowest_s, total_s / (ranks * (ranks - 1)))


def _pairs(classes: Classes) -> Iterator[tuple[Array, ...]]:
    """Pairs of nodes that stand for all pairs of their classes, in batches: source and target, their classes, the number of such
    pairs per node of the source's class and per node of the target's class, and the total number of pairs."""
    one, other = (of.ravel() for of in np.indices((len(classes.first),) * 2))
    target = np.where(one == other, classes.second[other], classes.first[other])
    less = (one == other).astype(np.int64)
    source, to_self = classes.first[one], np.arange(len(classes.first))
    columns = [
        np.concatenate(column)[np.concatenate((target, classes.first)) >= 0]
        for column in (
            (source, classes.first),
            (target, classes.first),
            (one, to_self),
            (other, to_self),
            (classes.alike[other] - less, np.ones_like(to_self)),
            (classes.alike[one] - less, np.zeros_like(to_self)),
            (classes.alike[one] * (classes.alike[other] - less), classes.alike),
        )
    ]
    step = max(1, MOST_EDGES // len(classes.local) ** 2)
    for begin in range(0, len(columns[0]), step):
        yield tuple(column[begin : begin + step] for column in columns)


def _owners(cluster: Cluster, assembly: Assembly) -> tuple[Array, Array]:
    """The node of every link, -1 for links of the fabric, and its place among the links of the node."""
    node, rails, links = np.arange(cluster.nodes), cluster.rails, assembly.link.locals
    owner, place = (np.full(cluster.wiring.links, -1, dtype=np.int64) for _ in range(2))
    inside = assembly.link.at(node, np.broadcast_to(np.arange(links), (cluster.nodes, links)))
    owner[inside], place[inside] = node[:, None], np.arange(links)
    for first, at in ((assembly.nic_up, links), (assembly.nic_down, links + rails)):
        nics = first + np.arange(cluster.nodes * rails)
        owner[nics], place[nics] = np.repeat(node, rails), at + np.tile(np.arange(rails), cluster.nodes)
    return owner, place
