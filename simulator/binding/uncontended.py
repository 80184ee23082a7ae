"""Uncontended times of collectives: the messages of their rounds are routed, and latencies and bytes added up.

A single round waits for its slowest message, and lasts as long as its busiest link carries bytes. A repeated round goes round a
ring: each rank passes on what has arrived, and sends again as soon as its edge is free. The slowest cycle of dependencies limits
the speed, and there are two kinds: a piece on its way round takes its bytes and a latency at each hop; an edge carries its own
bytes again and again. So the repetitions last as long as a piece takes to go round, or as the bytes of the busiest link plus one
latency, whichever is longer: on a ring with one slow hop, its bytes move during the latencies of other hops. Pieces of parallel
rings that meet on a link share it. They are assumed to meet always on the busiest link, and half of the time on other links.
Reference: Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", 1992 (cycle means of event graphs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..collectives import Edges, Everyone, Round, windows, wire_fraction
from ..engine.task import Array, run_starts
from ..hardware.cluster import Cluster
from ..units import NS_PER_S, ns
from .exchange_classes import classes_of, exchanged

MOST_WORK = (1 << 63) - 1
MOST_EDGES = 1 << 14
"""Largest number of edges that are routed at a time."""
SAME_TOLERANCE = 1e-9
"""Largest relative difference in the load of links that count as equally busy."""
DIGITS = 12
"""Significant digits to which times of groups are rounded, so that equivalent groups get equal times."""


class Routed(NamedTuple):
    """A set of edges routed for all groups of one layout, independently of the number of bytes."""

    group: Array
    link: Array
    share: Array
    longest_s: Array
    """Per group: the latency of the longest edge, the mean over its edges, weighted by share, and that of the shortest edge."""
    mean_s: Array
    shortest_s: Array


class RoundTimes(NamedTuple):
    """Rounds that take the longer of `latency + ring x bytes` and `last + busiest x bytes` for a payload of that many bytes. One
    row per group.
    """

    latency_ns: Array
    """Total latency of consecutive messages."""
    ring_s_per_byte: Array
    """Transfer time per payload byte of a piece on its way round the ring, or of the busiest link without a ring."""
    last_ns: Array
    """Latency after the last bytes of the busiest link."""
    busiest_s_per_byte: Array


def times_ns(parts: Sequence[RoundTimes], group: int, payload_bytes: int) -> tuple[int, float]:
    """The time that the busiest links of a group wait in its rounds, and the time that they carry bytes, in ns."""
    waiting_ns, busiest_s_per_byte = 0, 0.0
    for latency_ns, ring_s_per_byte, last_ns, busiest in (tuple(column[group] for column in part) for part in parts):
        less_s = float(ring_s_per_byte - busiest) * payload_bytes
        waiting_ns += max(int(last_ns), int(latency_ns) + round(less_s * NS_PER_S))
        busiest_s_per_byte += float(busiest)
    return waiting_ns, busiest_s_per_byte * payload_bytes * NS_PER_S


def least_waits_ns(parts: Sequence[RoundTimes]) -> int:
    """The least time in ns that a message without bytes waits in any group."""
    return sum(int(np.maximum(latency_ns, last_ns).min()) for latency_ns, _, last_ns, _ in parts)


@dataclass(frozen=True, eq=False, slots=True)
class UncontendedLinks:
    """The uncontended times of collectives on the links of a cluster."""

    cluster: Cluster

    def parts(
        self, plan: Sequence[Round], lanes: Sequence[Sequence[Round]], pieces: int | None, gpus: Array
    ) -> tuple[tuple[RoundTimes, ...], Routed]:
        """The uncontended times of groups of GPUs (a row each), and the routes of all their rounds combined.

        `pieces` as in `windows`: only rounds of an uncut payload repeat. `lanes` are the repeated rounds of some of the parallel
        rings, each edge leaving another member; the slowest ring counts.
        """
        routed = {r.edges.key: self.routed(r.edges, gpus) for r in plan}
        count = len(gpus)
        latency_s, s_per_byte = np.zeros(count), np.zeros(count)
        repeated: list[Ring] = []
        for window, ticks in windows(plan, pieces):
            busiest = self._busiest_s(self.combined(window, routed), count) * (float(wire_fraction(window)) * ticks)
            if pieces == 1 and ticks > 1:
                every = routed[window[0].edges.key]
                around = [self._ring_times(lane[len(repeated)], gpus, every, float(window[0].fraction)) for lane in lanes]
                latencies_s, bytes_s, longest_s = (np.max(column, axis=0) for column in zip(*around, strict=True))
                repeated.append((latencies_s, bytes_s, longest_s, busiest))
            else:
                s_per_byte += busiest / (pieces or 1)
        for r in plan:
            # a single round waits for its slowest message; in one that repeats, the slowest piece misses the shortest hop
            of = routed[r.edges.key]
            if r.repeats == 1:
                latency_s = latency_s + of.longest_s
            elif pieces != 1:
                latency_s = latency_s + of.mean_s * (r.repeats + 1) - of.shortest_s
        return _parts(latency_s, s_per_byte, repeated), self.combined(plan, routed)

    def routed(self, edges: Edges, gpus: Array) -> Routed:
        """The routes of the edges of all groups, as entries per group and link."""
        if isinstance(edges, Everyone) and len(gpus) == 1 and (classes := classes_of(self.cluster, gpus[0])):
            link, messages, longest_s, mean_s = exchanged(self.cluster, classes)
            times_s = longest_s, mean_s, mean_s  # no such round repeats
            return Routed(np.zeros_like(link), link, messages.astype(float), *(np.array([one_s]) for one_s in times_s))
        cluster, n, count = self.cluster, len(edges.source), len(gpus)
        edge_s, wiring = np.empty(count * n), cluster.wiring
        entries: list[tuple[Array, Array, Array]] = []
        for begin, route in self._routes(edges, gpus):
            edge_s[begin : begin + len(route)] = wiring.latencies(route).sum(axis=1)
            edge, crosses = np.arange(begin, begin + len(route)), route >= 0
            group, share = (np.broadcast_to(of[:, None], route.shape)[crosses] for of in (edge // n, edges.share[edge % n]))
            entries.append(summed(group, route[crosses], share, cluster.wiring.links))
        group, link, share = (np.concatenate(column) for column in zip(*entries, strict=True))
        whole = entries[0] if len(entries) == 1 else summed(group, link, share, cluster.wiring.links)
        by_group = edge_s.reshape(count, n)
        mean_s = by_group @ (edges.share / edges.share.sum())
        return Routed(*whole, by_group.max(axis=1), mean_s, by_group.min(axis=1, initial=np.inf))

    def _routes(self, edges: Edges, gpus: Array) -> Iterator[tuple[int, Array]]:
        """The routes of the edges of all groups, some at a time, and the number of the first of them."""
        source, target = (gpus[:, end].ravel() for end in (edges.source, edges.target))
        for begin in range(0, len(source), MOST_EDGES):
            some = slice(begin, begin + MOST_EDGES)
            yield begin, self.cluster.route(source[some], target[some])

    def _ring_times(self, r: Round, gpus: Array, every: Routed, fraction: float) -> tuple[Array, Array, Array]:
        """Per group, for one of several parallel rings: the total latency of the slowest piece, its transfer time in seconds per
        payload byte, and the longest latency of a hop.

        `every` holds the routes of all rings, which together carry `fraction` of the payload in a repetition.
        """
        n, count, wiring = len(r.edges.source), len(gpus), self.cluster.wiring
        latency_s, alone_s, shared_s = (np.zeros(count * n) for _ in range(3))
        key, busy_s = every.group * wiring.links + every.link, every.share / wiring.capacities(every.link)
        for begin, route in self._routes(r.edges, gpus):
            group = np.arange(begin, begin + len(route)) // n
            some = slice(begin, begin + len(route))
            latency_s[some] = wiring.latencies(route).sum(axis=1)
            alone_s[some] = (np.tile(r.edges.share, count)[some, None] / wiring.capacities(route)).max(axis=1, initial=0.0)
            at = np.searchsorted(key, (group[:, None] * wiring.links + route).ravel()).reshape(route.shape)
            shared_s[some] = np.where(route >= 0, busy_s[np.minimum(at, len(key) - 1)], 0.0).max(axis=1, initial=0.0)
        binds = shared_s >= np.repeat(self._busiest_s(every, count), n) * (1 - SAME_TOLERANCE)
        alone_s, shared_s = alone_s * float(r.fraction), shared_s * fraction
        hop_s = np.where(binds, shared_s, (alone_s + shared_s) / 2)
        latencies, hops = latency_s.reshape(count, n), hop_s.reshape(count, n)
        onward = _onward(r.edges)
        return _longest(latencies, onward, r.repeats), _longest(hops, onward, r.repeats), latencies.max(axis=1)

    def combined(self, rounds: Sequence[Round], routed: Mapping[tuple[bytes, ...], Routed]) -> Routed:
        """The routes of several rounds combined, with shares weighted by the bytes of each round. Its latencies are empty."""
        parts = [routed[r.edges.key] for r in rounds]
        if len({id(part) for part in parts}) == 1:
            return parts[0]
        whole = wire_fraction(rounds)
        shares = [part.share * float(r.fraction * r.repeats / whole) for r, part in zip(rounds, parts, strict=True)]
        group, link, share = (
            np.concatenate([np.zeros(0, dtype=np.int64), *columns])
            for columns in ([part.group for part in parts], [part.link for part in parts], shares)
        )
        nothing = np.zeros(0)
        return Routed(*summed(group, link, share, self.cluster.wiring.links), nothing, nothing, nothing)

    def _busiest_s(self, routed: Routed, count: int) -> Array:
        """Per group, seconds that its busiest link takes per byte on every edge of share 1."""
        busiest = np.zeros(count)
        np.maximum.at(busiest, routed.group, routed.share / self.cluster.wiring.capacities(routed.link))
        return busiest


Ring = tuple[Array, Array, Array, Array]
"""In seconds: all latencies round the ring, time per byte round the ring, longest latency, time per byte of the busiest link."""


def _onward(edges: Edges) -> Array:
    """For each edge, the edge on which its target passes the data on; where there is none, the number of edges."""
    n, order = len(edges.source), np.argsort(edges.source, kind="stable")
    at = np.searchsorted(edges.source, edges.target, sorter=order)
    found = order[np.minimum(at, n - 1)]
    onward: Array = np.where(edges.source[found] == edges.target, found, n)
    return onward


def _longest(hops: Array, onward: Array, repeats: int) -> Array:
    """Per row, the longest time of `repeats` consecutive hops from any edge, computed by doubling the number of hops."""
    nothing = np.zeros((len(hops), 1))
    onward, doubled = np.append(onward, len(onward)), np.concatenate([hops, nothing], axis=1)
    at, total = np.arange(len(onward)), np.zeros_like(doubled)
    while repeats:
        if repeats & 1:
            total, at = total + doubled[:, at], onward[at]
        doubled, onward = doubled + doubled[:, onward], onward[onward]
        repeats >>= 1
    most: Array = total.max(axis=1)
    return most


def _parts(latency_s: Array, s_per_byte: Array, rings: Sequence[Ring]) -> tuple[RoundTimes, ...]:
    """One part for all rounds that take a latency and then bytes, including rings of equal hops, and a part per other ring."""
    others = []
    for around_s, around, longest_s, busiest in rings:
        if np.allclose(around, busiest, rtol=SAME_TOLERANCE, atol=0.0):
            latency_s, s_per_byte = latency_s + around_s, s_per_byte + busiest
        else:
            others.append(RoundTimes(rounded_ns(around_s), rounded(around), rounded_ns(longest_s), rounded(busiest)))
    whole_ns, each = rounded_ns(latency_s), rounded(s_per_byte)
    return RoundTimes(whole_ns, each, whole_ns, each), *others


def rounded(values: Array) -> Array:
    """Floats rounded to `DIGITS` significant digits, so that equivalent groups come out equal."""
    exponent = np.floor(np.log10(np.where(values > 0, values, 1.0)))
    scale = np.power(10.0, DIGITS - 1 - exponent)
    rounded: Array = np.rint(values * scale) / scale
    return rounded


def rounded_ns(seconds: Array) -> Array:
    values, which = np.unique(rounded(seconds), return_inverse=True)
    return np.array([ns(s) for s in values.tolist()], dtype=np.int64)[which]


def summed(row: Array, link: Array, value: Array, n_links: int) -> tuple[Array, Array, Array]:
    """Entries sorted by row and link, with the values of equal row and link added up. Values are positive."""
    key = row * n_links + link
    first = int(key.min(initial=MOST_WORK))
    if len(key) and int(key.max()) - first < len(key):
        total = np.bincount(key - first, weights=value)
        found = np.flatnonzero(total)
        return (found + first) // n_links, (found + first) % n_links, total[found].astype(value.dtype)
    order = np.argsort(key, kind="stable")
    key = key[order]
    begins = run_starts(key)
    added = np.add.reduceat(value[order], begins) if len(key) else value
    return key[begins] // n_links, key[begins] % n_links, added
