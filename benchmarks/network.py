"""How fast the network is: collectives over a thousand GPUs, and rates of many flows that come and go.

    python benchmarks/network.py [--quick]

The figures of others are those of their own programs on the same kind of machine, and not measured here.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from time import perf_counter

import numpy as np
from timing import best

import simulator as sim
from simulator.engine.compiled import event_loop
from simulator.engine.rates import Route, SharedLinkRates
from simulator.engine.task import RATE_BITS, UNCAPPED, WEIGHT_BITS, Csr, Profile, TaskGraph
from simulator.study.collective import collective

GIB = 2**30
GPUS = 1024
ASTRA_SIM_S = {"all_reduce": 3.4, "alltoall": 12.0}
ASTRA_SIM_MB = {"all_reduce": 363, "alltoall": 1000}
"""ASTRA-sim, 1 GiB over 1,024 GPUs, one event per message: seconds and peak memory of the process."""
SIMGRID = {(128, 320): (223_000, 64_000), (1000, 2784): (51_000, 5_800), (1024, 128): (4_600, 8_200)}
"""SimGrid 3.32, flows per second with lazy and with full updates, in a like case: so many flows at a time (1,024 for 1,000)
between random hosts of a two-level fat tree, of which 9, 28 and 868 are coupled on average."""
FLOWS = 10_240


def collectives() -> None:
    """From a cluster's name to the time of a collective, in this process and as a command; the cluster is a Clos of DGX."""
    print(f"\nOne collective of 1 GiB over {GPUS:,} GPUs of {GPUS // 8} nodes, from the name of the cluster on:")
    for kind, algorithm, messages in (
        ("all_reduce", "ring", 2 * (GPUS - 1) * GPUS),
        ("alltoall", "direct", (GPUS - 1) * GPUS),
        ("alltoall", "pairwise", (GPUS - 1) * GPUS),
        ("alltoall", "hierarchical", (GPUS // 8 - 1 + 7) * GPUS),
        ("all_reduce", "tree", 0),
        ("all_reduce", "hierarchical", 0),
    ):
        inside_s, found_s = best(partial(alone_s, kind, algorithm))
        line = f"  {kind:<10} {algorithm:<13} {found_s * 1e3:9.3f} ms simulated  {inside_s:7.3f} s"
        if messages:
            whole_s, peak_mb = as_command(kind, algorithm)
            line += f"  command {whole_s:6.2f} s, {peak_mb:5.0f} MB at most so far"
            line += f"  ASTRA-sim {ASTRA_SIM_S[kind]} s, {ASTRA_SIM_MB[kind]} MB:"
            line += f" {ASTRA_SIM_S[kind] / inside_s:.0f}x, {ASTRA_SIM_S[kind] / whole_s:.1f}x;  {messages:,} messages"
        print(line, flush=True)


def alone_s(kind: str, algorithm: str) -> float:
    """Seconds that the collective takes, from the name of its cluster on."""
    cluster = sim.cluster("dgx-h100", nodes=GPUS // 8)
    return collective(kind, cluster, [GIB], algorithm=algorithm).rows[0].time_s


def as_command(kind: str, algorithm: str) -> tuple[float, float]:
    """Seconds of `trainsim collective` from a cold start, and the peak memory (MB) of all commands so far."""
    options = ["--cluster", "dgx-h100", "--gpus", str(GPUS), "-b", "1G", "-e", "1G", "--algorithm", algorithm, "--json"]
    began = perf_counter()
    done = subprocess.run([sys.executable, "-m", "simulator", "collective", kind, *options], capture_output=True, check=True)
    seconds = perf_counter() - began
    json.loads(done.stdout)
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """Flows over links: routes, work (2^-24 bytes) and capacity (2^-24 bytes/ns)."""

    routes: Sequence[Route]
    work: Sequence[int]
    capacity: Sequence[int]


def fat_tree(hosts: int, flows: int, seed: int = 0) -> Load:
    """Flows between random hosts of a two-level fat tree of 32 hosts per leaf and 32 spines, one spine for each flow."""
    rng = np.random.default_rng(seed)
    wide = 32
    leaves = hosts // wide
    source = rng.integers(0, hosts, flows)
    target = (source + rng.integers(1, hosts, flows)) % hosts
    spine = rng.integers(0, wide, flows)
    up = 2 * hosts + source // wide * wide + spine
    down = 2 * hosts + leaves * wide + target // wide * wide + spine
    near = source // wide == target // wide
    routes = [
        [(link, 1 << WEIGHT_BITS) for link in ((s, hosts + t) if inside else (s, u, d, hosts + t))]
        for s, t, u, d, inside in zip(source.tolist(), target.tolist(), up.tolist(), down.tolist(), near.tolist(), strict=True)
    ]
    size = rng.integers(1 << 20, 1 << 26, flows)
    return Load(routes, [x << RATE_BITS for x in size.tolist()], [50 << RATE_BITS] * (2 * hosts + 2 * leaves * wide))


def flows_per_s(load: Load, at_once: int) -> float:
    """Flows that end per second of our time, where each that ends makes room for the next; the first solve is not counted."""
    fabric = SharedLinkRates(load.routes, load.capacity)
    left, since, rate, due = dict[int, int](), dict[int, int](), dict[int, int](), list[tuple[int, int, int]]()

    def settle(now: int) -> None:
        for flow, new in fabric.solve():
            left[flow] -= rate.get(flow, 0) * (now - since[flow])
            rate[flow], since[flow] = new, now
            heappush(due, (now - (-left[flow] // new), flow, new))

    def begin(flow: int, now: int) -> None:
        left[flow], since[flow] = load.work[flow], now
        fabric.join(flow, flow, UNCAPPED)

    for flow in range(at_once):
        begin(flow, 0)
    settle(0)
    following, ended = at_once, 0
    began = perf_counter()
    while following < len(load.routes):
        now, flow, at = heappop(due)
        if rate.get(flow) != at or -(-left[flow] // at) + since[flow] != now:
            continue
        fabric.leave(flow)
        del left[flow], rate[flow]
        begin(following, now)
        following, ended = following + 1, ended + 1
        settle(now)
    return ended / (perf_counter() - began)


def compiled_flows_per_s(load: Load, at_once: int) -> float:
    """The same by the compiled engine: a stream for each flow at a time, from the columns of the graph to the last end."""
    n = len(load.routes)
    graph = TaskGraph(
        solo_ns=np.zeros(n, dtype=np.int64),
        tail_ns=np.zeros(n, dtype=np.int64),
        speed=np.full(n, -1),
        footprint=np.arange(n),
        work=np.array(load.work),
        cap=np.full(n, UNCAPPED),
        streams=Csr.from_lists([range(first, n, at_once) for first in range(at_once)]),
        preds=Csr.from_lists([[]] * n),
        footprints=Csr.from_lists([[link for link, _ in route] for route in load.routes]),
        footprint_weight=np.array([weight for route in load.routes for _, weight in route]),
        link_profile=np.zeros(len(load.capacity), dtype=np.int64),
        speed_profile=np.zeros(0, dtype=np.int64),
        profiles=(Profile.constant(load.capacity[0]),),
    )
    return n / best(lambda: event_loop.simulate(graph).makespan_ns)[0]


def coupled(load: Load, at_once: int) -> float:
    """Flows that share links, directly or through others, with a flow: the mean over lots of so many."""
    return float(np.mean([_coupled(load.routes[i : i + at_once]) for i in range(0, len(load.routes) - at_once + 1, at_once)]))


def _coupled(routes: Sequence[Route]) -> float:
    group = list(range(len(routes)))

    def root(flow: int) -> int:
        while group[flow] != flow:
            group[flow] = group[group[flow]]
            flow = group[flow]
        return flow

    first: dict[int, int] = {}
    for flow, route in enumerate(routes):
        for link, _ in route:
            group[root(flow)] = root(first.setdefault(link, flow))
    sizes = np.bincount([root(flow) for flow in range(len(routes))])
    return float((sizes**2).sum() / len(routes))


def flows(quick: bool) -> None:
    """Random flows, several as many at a time."""
    print("\nRandom flows on a fat tree, so many at a time, in flows per second; the compiled engine from graph to times:")
    for at_once, hosts in ((128, 320), (1000, 2784), (1024, 128), (10_000, 32_768), (10_240, 1024)):
        if quick and at_once > 2000:
            continue
        load = fat_tree(hosts, at_once + FLOWS)
        ends = FLOWS if hosts > at_once else 600_000 // at_once
        some = Load(load.routes[: at_once + ends], load.work[: at_once + ends], load.capacity)
        rates = {"pure Python": max(flows_per_s(some, at_once) for _ in range(3))}
        if event_loop.numba:
            rates["compiled"] = compiled_flows_per_s(load, at_once)
        print(f"  {at_once:6,} on {hosts:6,} hosts, {coupled(load, at_once):7.1f} coupled on average", flush=True)
        of = dict(zip(("lazy", "full"), SIMGRID.get((at_once, hosts), ()), strict=False))
        for name, rate in rates.items():
            ratios = ", ".join(f"{rate / theirs:6.2f}x SimGrid {what} ({theirs:,})" for what, theirs in of.items())
            print(f"    {name:<13}{rate:11,.0f}  {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the largest case")
    quick = parser.parse_args().quick
    collectives()
    flows(quick)


if __name__ == "__main__":
    main()
