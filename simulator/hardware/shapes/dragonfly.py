"""Dragonfly (HPE Slingshot): routers in groups; routers of a group are fully connected, and so are the groups.

A route has at most one link in the first group, one between groups and one in the last. Reference: Kim et al., "Technology-
driven, highly-scalable dragonfly topology", ISCA 2008. Sprayed traffic uses all links of a group and all cables between two
groups evenly: a group is then modelled as a hub, at half a hop from each router, and the cables as one link from hub to hub. A
router is joined to the hub by its ports to the other routers of a full group. Traffic within the group takes no other ports, and
traffic between groups needs these ports too, because it leaves and arrives over the cables of all routers. Hashed traffic takes
one cable per flow, and the minimal route to the cable.
"""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ..cluster import Cluster, hops
from ..options import Dragonfly
from ..wiring import Array, Links, Part, Switching, both_ways
from ._direct import all_pairs, pair_number

OPTIONS = ("dragonfly", "routing")


class _Groups:
    """Numbers of routers and groups. Routers are numbered group by group; only the last group may have fewer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.ports = cluster, cluster.options.dragonfly
        self.nic = np.arange(cluster.nodes * cluster.rails)
        wrong = too_few_links(len(self.nic), self.ports)
        if wrong:
            raise UserError(f"dragonfly: {wrong[0]}", hint=wrong[1])
        self.router_of, self.per_group = self.nic // self.ports.nics_per_router, self.ports.routers_per_group
        self.group_of = np.arange(int(self.router_of[-1]) + 1) // self.per_group
        self.size = np.bincount(self.group_of)
        self.routers, self.groups = len(self.group_of), len(self.size)
        self.part = Part("router", self.routers, lambda i: f"group{i // self.per_group}/router{i % self.per_group}")
        self.pair_source, self.pair_target = all_pairs(self.groups)
        cables = self.per_group * self.ports.global_links // max(1, self.groups - 1)
        self.rate, self.bundle_bytes_per_s = cluster.rail_bytes_per_s, cables * cluster.rail_bytes_per_s


def too_few_links(nics: int, ports: Dragonfly) -> tuple[str, str] | None:
    """The fault and the remedy if not every two groups can be joined; None if they can."""
    groups = -(-nics // (ports.nics_per_router * ports.routers_per_group))
    most = ports.routers_per_group * ports.global_links + 1
    if groups <= most:
        return None
    message = f"{groups} groups cannot each be joined to every other: a group has {most - 1} global links"
    return message, f"at most {most} groups: more global_links, or larger groups"


def fabric(cluster: Cluster) -> Switching:
    groups = _Groups(cluster)
    if groups.routers == 1:
        return Switching((groups.part,), groups.router_of)
    return _hashed(groups) if cluster.options.routing.hashed else _sprayed(groups)


def _sprayed(g: _Groups) -> Switching:
    """The fabric of sprayed traffic, with a hub in every group."""
    latency_s, router, hub = g.cluster.switch_latency_s, np.arange(g.routers), g.routers + np.arange(g.groups)
    rate = (g.per_group - 1 or g.ports.global_links) * g.rate
    across = Links.between(hub[g.pair_source], hub[g.pair_target], g.bundle_bytes_per_s, latency_s, "global")
    runs = (*both_ways(router, hub[g.group_of], rate, latency_s / 2, "group"), across)

    def between(a: Array, b: Array, flow: Array) -> Array:
        from_group, to_group = g.group_of[a], g.group_of[b]
        far = from_group != to_group
        return hops((a != b, a), (far, 2 * g.routers + pair_number(g.groups, from_group, to_group)), (a != b, g.routers + b))

    parts = (g.part, Part("hub", g.groups, lambda i: f"group{i}/hub"))
    return Switching(parts, g.router_of, runs, between, ((g.router_of, g.nic),), ((g.routers + g.router_of, g.nic),))


def _hashed(g: _Groups) -> Switching:
    """The fabric of hashed traffic: every cable is a link, except those that join the same two routers."""
    local = [np.stack(all_pairs(size)) + group * g.per_group for group, size in enumerate(g.size.tolist())]
    local_source, local_target = np.concatenate(local, axis=1)
    first_local = np.concatenate([[0], np.cumsum(g.size * (g.size - 1))])
    cables = np.minimum(g.size[g.pair_source], g.size[g.pair_target])
    cables = np.minimum(cables, max(1, round(g.bundle_bytes_per_s / g.rate)))
    first_cable = np.concatenate([[0], np.cumsum(cables)]).astype(np.int64)
    pair = np.repeat(np.arange(len(cables)), cables)
    which = np.arange(len(pair)) - first_cable[pair]

    def end(group: Array, other: Array, cable: Array) -> Array:
        """The router of a group that a cable to another group is connected to."""
        turn = (other - group) % g.groups - 1
        router: Array = group * g.per_group + (turn * max(1, g.ports.global_links) + cable) % g.size[group]
        return router

    a, b = g.pair_source[pair], g.pair_target[pair]
    latency_s = g.cluster.switch_latency_s
    runs = (
        Links.between(local_source, local_target, g.rate, latency_s, "group"),
        Links.between(end(a, b, which), end(b, a, which), g.bundle_bytes_per_s / cables[pair], latency_s, "global"),
    )

    def within(a: Array, b: Array) -> Array:
        group = g.group_of[a]
        link: Array = first_local[group] + pair_number(g.size[group], a % g.per_group, b % g.per_group)
        return link

    def between(a: Array, b: Array, flow: Array) -> Array:
        from_group, to_group = g.group_of[a], g.group_of[b]
        far = from_group != to_group
        pair = np.where(far, pair_number(g.groups, from_group, to_group), 0)
        cable = flow % cables[pair] if len(cables) else flow
        out = np.where(far, end(from_group, to_group, cable), b)
        into = np.where(far, end(to_group, from_group, cable), b)
        crossed = len(local_source) + first_cable[pair] + cable
        return hops((a != out, within(a, out)), (far, crossed), (into != b, within(into, b)))

    return Switching((g.part,), g.router_of, runs, between)
