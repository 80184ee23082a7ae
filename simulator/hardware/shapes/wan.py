"""Sites far apart, each a fabric of its own, joined by a wide-area network with milliseconds of latency.

`wan: {sites: [rail-optimized, leaf-spine], bandwidth: 400 Gbit/s, latency: 20 ms}` gives the shape of every site; nodes are
divided evenly among them, in order. Every switch that NICs are plugged into has a way to its site's gateway that never
binds, and any two gateways are joined by one link of that bandwidth and latency each way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...errors import UserError
from ..cluster import Cluster
from ..wiring import Array, Links, Part
from ._assembly import Switching, joined_by
from ._direct import mesh

OPTIONS = ("wan",)


@dataclass(frozen=True, eq=False, slots=True)
class _Site:
    """A site's fabric, and what comes before it in the numbering of the whole."""

    fabric: Switching
    nodes: int
    nics: int
    first_nic: int
    first_switch: int
    first_link: int


def _sites(cluster: Cluster) -> list[_Site]:
    wan = cluster.options.wan
    count = len(wan.shapes) if wan else 0
    if wan is None or cluster.nodes < count:
        raise UserError(
            f"{cluster.nodes} nodes cannot be divided among {count} sites"
            if wan
            else f"{cluster.name} does not say what its sites are",
            hint=f"nodes: {count}" if wan else 'wan: {sites: 2, bandwidth: "400 Gbit/s", latency: "20 ms"}',
        )
    sites: list[_Site] = []
    nic = switch = link = 0
    for i, (name, shape) in enumerate(zip(wan.shape_names, wan.shapes, strict=True)):
        nodes = (cluster.nodes + count - 1 - i) // count
        options = replace(cluster.options, wan=None, dims=())
        fabric: Switching = shape.fabric(replace(cluster, nodes=nodes, shape_name=name, shape=shape, options=options))
        sites.append(_Site(fabric, nodes, len(fabric.port), nic, switch, link))
        nic += len(fabric.port)
        switch += sum(part.count for part in fabric.switches)
        link += sum(map(len, fabric.runs))
    return sites


def fabric(cluster: Cluster) -> Switching:
    return _Joined(cluster, _sites(cluster)).fabric


class _Joined:
    """The sites' switches one after the other, then the gateways."""

    def __init__(self, cluster: Cluster, sites: list[_Site]) -> None:
        self.cluster, self.sites = cluster, sites
        last = sites[-1]
        self.first_gateway = last.first_switch + sum(part.count for part in last.fabric.switches)
        self.first_up = last.first_link + sum(map(len, last.fabric.runs))
        self.port = np.concatenate([site.first_switch + site.fabric.port for site in sites])
        self.site_of = np.repeat(np.arange(len(sites)), [site.nics for site in sites])
        self.borders, first, nics = np.unique(self.port, return_index=True, return_counts=True)
        self.border_rate, self.site_of_border = nics * cluster.rail_bytes_per_s, self.site_of[first]
        self.across = mesh(len(sites))

    @property
    def fabric(self) -> Switching:
        parts = [
            Part(part.kind, part.count, _at_site(i, part)) for i, site in enumerate(self.sites) for part in site.fabric.switches
        ]
        parts.append(Part("gateway", len(self.sites), lambda i: f"site{i}/gateway"))
        gathered = [(s.first_link + link, s.first_nic + nic) for s in self.sites for link, nic in s.fabric.gathered]
        spread = [(s.first_link + link, s.first_nic + nic) for s in self.sites for link, nic in s.fabric.spread]
        border = np.searchsorted(self.borders, self.port)
        nic = np.arange(len(self.port))
        gathered.append((self.first_up + border, nic))
        spread.append((self.first_up + len(self.borders) + border, nic))
        return Switching(tuple(parts), self.port, tuple(self._runs()), self.between, tuple(gathered), tuple(spread), self.relays)

    def _runs(self) -> list[Links]:
        wan, latency_s, gateway = self.cluster.options.wan, self.cluster.switch_latency_s, self.first_gateway
        runs = [
            Links.between(s.first_switch + r.source, s.first_switch + r.target, r.capacity_bytes_per_s, r.latency_s, r.name)
            for s in self.sites
            for r in s.fabric.runs
        ]
        up = gateway + self.site_of_border
        runs.append(Links.between(self.borders, up, self.border_rate, latency_s, "gateway up"))
        runs.append(Links.between(up, self.borders, self.border_rate, latency_s, "gateway down"))
        if wan:
            source, target = gateway + self.across.source, gateway + self.across.target
            runs.append(Links.between(source, target, wan.link.bytes_per_s, wan.link.latency_s, "wan"))
        return runs

    def between(self, a: Array, b: Array, flow: Array) -> Array:
        border_a, border_b = np.searchsorted(self.borders, a), np.searchsorted(self.borders, b)
        site_a, site_b = self.site_of_border[border_a], self.site_of_border[border_b]
        n, far = len(self.borders), site_a != site_b
        over = self.across.between(site_a, site_b)[:, 0]
        crossing = [self.first_up + border_a, self.first_up + 2 * n + over, self.first_up + n + border_b]
        columns = [np.where(far[:, None], np.stack(crossing, axis=1), -1)]
        for i, site in enumerate(self.sites):
            here = np.flatnonzero((site_a == i) & ~far)
            way = site.fabric.between(a[here] - site.first_switch, b[here] - site.first_switch, flow[here])
            column = np.full((len(a), way.shape[1]), -1, dtype=np.int64)
            column[here] = np.where(way < 0, -1, way + site.first_link)
            columns.append(column)
        return np.concatenate(columns, axis=1)

    def relays(self, out: Array, into: Array) -> Array:
        """Inside a site as its shape does it; there is nothing to be gained on the way to another."""
        relayed, site = np.zeros(len(out), dtype=bool), self.site_of[out]
        near = site == self.site_of[into]
        for i, at in enumerate(self.sites):
            if at.fabric.relays:
                here = np.flatnonzero(near & (site == i))
                relayed[here] = at.fabric.relays(out[here] - at.first_nic, into[here] - at.first_nic)
        return relayed


def _at_site(i: int, part: Part) -> Callable[[int], str]:
    return lambda j: f"site{i}/{part.name(j)}"


wire, route, relay = joined_by(fabric)
