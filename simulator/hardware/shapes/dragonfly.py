"""Dragonfly: routers in groups, all joined with all inside a group, and every group joined to every other.

A way is at most one link in the first group, one between groups and one in the last. Reference: Kim et al., "Technology-
driven, highly-scalable dragonfly topology", ISCA 2008; HPE Slingshot is one. Sprayed traffic uses all links of a group and
all cables between two groups evenly: a group's links are then one hub in its middle, at half a hop from each router, and
the cables one link from hub to hub. Hashed traffic takes one cable per flow, and the minimal way to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ..cluster import Cluster
from ..wiring import Array, Links, Part
from ._assembly import Switching, hops, joined_by

if TYPE_CHECKING:
    from ..options import Dragonfly

OPTIONS = ("dragonfly", "routing")


class _Groups:
    """Routers are numbered through the groups; only the last group may have fewer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.ports = cluster, cluster.options.dragonfly
        self.rate = cluster.rail_bytes_per_s
        self.nic = np.arange(cluster.nodes * cluster.rails)
        self.router_of = self.nic // self.ports.nics_per_router
        self.routers = int(self.router_of[-1]) + 1
        self.per_group = self.ports.routers_per_group
        self.group_of = np.arange(self.routers) // self.per_group
        self.groups = int(self.group_of[-1]) + 1
        self.size = np.bincount(self.group_of)
        wrong = too_few_links(len(self.nic), self.ports)
        if wrong:
            raise UserError(f"dragonfly: {wrong[0]}", hint=wrong[1])
        source, other = np.divmod(np.arange(self.groups * (self.groups - 1)), max(1, self.groups - 1))
        self.pair_source, self.pair_target = source, other + (other >= source)
        cables = self.per_group * self.ports.global_links // max(1, self.groups - 1)
        self.bundle_bytes_per_s = cables * self.rate

    def pair(self, a: Array, b: Array) -> Array:
        """The number of an ordered pair of groups."""
        pair: Array = a * (self.groups - 1) + b - (b > a)
        return pair

    def router_name(self, i: int) -> str:
        return f"group{i // self.per_group}/router{i % self.per_group}"


def too_few_links(nics: int, ports: Dragonfly) -> tuple[str, str] | None:
    """What is wrong with such routers for so many NICs, and what to do about it; None if every two groups can be joined."""
    groups = -(-nics // (ports.nics_per_router * ports.routers_per_group))
    most = ports.routers_per_group * ports.global_links + 1
    if groups <= most:
        return None
    message = f"{groups} groups cannot each be joined to every other: a group has {most - 1} global links"
    return message, f"at most {most} groups: more global_links, or larger groups"


def fabric(cluster: Cluster) -> Switching:
    groups = _Groups(cluster)
    return _hashed(groups) if cluster.options.routing.hashed else _sprayed(groups)


def _sprayed(g: _Groups) -> Switching:
    """A hub in every group."""
    latency_s, router, hub = g.cluster.switch_latency_s, np.arange(g.routers), g.routers + np.arange(g.groups)
    rate = (g.size[g.group_of] - 1 + g.ports.global_links) * g.rate
    up, across = 2 * g.routers, hub[g.pair_source]
    runs = (
        Links.between(router, hub[g.group_of], rate, latency_s / 2, "group up"),
        Links.between(hub[g.group_of], router, rate, latency_s / 2, "group down"),
        Links.between(across, hub[g.pair_target], g.bundle_bytes_per_s, latency_s, "global"),
    )

    def between(a: Array, b: Array, flow: Array) -> Array:
        from_group, to_group = g.group_of[a], g.group_of[b]
        far = from_group != to_group
        return hops((a != b, a), (far, up + g.pair(from_group, to_group)), (a != b, g.routers + b))

    routers = Part("router", g.routers, g.router_name)
    if g.routers == 1:
        return Switching((routers,), g.router_of, (), lambda a, b, flow: np.zeros((len(a), 0), dtype=np.int64))
    kinds = (routers, Part("hub", g.groups, lambda i: f"group{i}/hub"))
    return Switching(kinds, g.router_of, runs, between, ((g.router_of, g.nic),), ((g.routers + g.router_of, g.nic),))


def _hashed(g: _Groups) -> Switching:
    """Every cable a link, but for those that join the same two routers."""
    local_source, local_target = _all_pairs(g.size)
    first_local = np.concatenate([[0], np.cumsum(g.size * (g.size - 1))])
    cables = np.minimum(g.size[g.pair_source], g.size[g.pair_target])
    cables = np.minimum(cables, max(1, round(g.bundle_bytes_per_s / g.rate)))
    first_cable = np.concatenate([[0], np.cumsum(cables)]).astype(np.int64)
    pair = np.repeat(np.arange(len(cables)), cables)
    which = np.arange(len(pair)) - first_cable[pair]

    def end(group: Array, other: Array, cable: Array) -> Array:
        """The router of a group that a cable to another group is plugged into."""
        turn = (other - group) % g.groups - 1
        router: Array = group * g.per_group + (turn * max(1, g.ports.global_links) + cable) % g.size[group]
        return router

    a, b = g.pair_source[pair], g.pair_target[pair]
    latency_s = g.cluster.switch_latency_s
    runs = (
        Links.between(local_source, local_target, g.rate, latency_s, "group"),
        Links.between(end(a, b, which), end(b, a, which), g.bundle_bytes_per_s / cables[pair], latency_s, "global"),
    )

    def local(a: Array, b: Array) -> Array:
        group = g.group_of[a]
        x, y = a % g.per_group, b % g.per_group
        link: Array = first_local[group] + x * (g.size[group] - 1) + y - (y > x)
        return link

    def between(a: Array, b: Array, flow: Array) -> Array:
        from_group, to_group = g.group_of[a], g.group_of[b]
        far = from_group != to_group
        pair = np.where(far, g.pair(from_group, to_group), 0)
        cable = flow % cables[pair] if len(cables) else flow
        out = np.where(far, end(from_group, to_group, cable), b)
        into = np.where(far, end(to_group, from_group, cable), b)
        crossed = len(local_source) + first_cable[pair] + cable
        return hops((a != out, local(a, out)), (far, crossed), (into != b, local(into, b)))

    return Switching((Part("router", g.routers, g.router_name),), g.router_of, runs, between)


def _all_pairs(sizes: Array) -> tuple[Array, Array]:
    """Ordered pairs of different routers of each group, group by group."""
    sources, targets, first = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], 0
    for size in sizes.tolist():
        source, other = np.divmod(np.arange(size * (size - 1)), max(1, size - 1))
        sources.append(first + source)
        targets.append(first + other + (other >= source))
        first += size
    return np.concatenate(sources), np.concatenate(targets)


wire, route, relay = joined_by(fabric)
