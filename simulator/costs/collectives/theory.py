"""Closed forms of the uncontended time of a collective: latency, bandwidth, and the slow climb between them.

t = launch + steps x step + crossings x crossing + y + sqrt(fill x y), where y is the time on the wire: the p-norm of what a
GPU's own links and a node's NICs need. The square root is what a pipeline of pieces costs whose best size grows with the
message. In a ring, where every GPU always has a piece to send, latency and wire overlap: the root of the sum of their squares
stands for their sum. On links where small messages go as words with flags, these are on the wire as well. All algorithms are
written in this form and differ only in how many steps, crossings and bytes they take; "auto" is the one that NCCL's own cost
model takes (`nccl_choice`), whether or not it is the fastest. References: Hockney, "The communication challenge for MPP", 1994;
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005;
Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from . import nccl_choice
from .link_constants import LAWS, Across, Inside, Laws

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "alltoall", "sendrecv"]
Algorithm = Literal["auto", "plain", "ring", "tree", "nvls", "sharp", "direct"]
KINDS: tuple[str, ...] = get_args(Kind)
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
"""`plain` is what is left of `auto` where the switch cannot add up, as for integers of a byte: ring or tree."""
PLAIN = ("ring", "tree")
TAKEN_AS = {"nvls_tree": "nvls"}
"""Names here of algorithms that NCCL names otherwise: over nodes an NVSwitch that adds up always feeds trees."""

FEWEST_AT_A_SWITCH = 3
"""GPUs of a node for which NCCL lets an NVSwitch add up."""
STEPS_GROW_UP_TO = 8
"""The most GPUs whose switch was measured as it adds up. More of them wait for the same few hops of the switch, not for one
another: that each further one takes longer, as 2 to 8 do, is not taken to go on. Reasoned: no table holds more at one switch.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. `payload_bytes` counts as nccl-tests does: the whole tensor of a reduction, a gather or a scatter,
    what one rank holds of an all-to-all, one message of a sendrecv (each rank to the next).
    """

    kind: str
    payload_bytes: float
    ranks: int
    nodes: int = 1
    algorithm: str = "auto"
    placed: bool = False
    """Whether the links that its messages cross are known one by one, so that flows which meet on one share it. Otherwise flows
    are taken to be hashed beyond a leaf, of `Laws.leaf_nodes` nodes.
    """

    @property
    def per_node(self) -> float:
        """Ranks in each node."""
        return self.ranks / self.nodes


@dataclass(frozen=True, slots=True)
class Demand:
    """Steps, crossings and bytes that one algorithm needs for a call, before any rate is known."""

    steps: float
    crossings: float
    gpu_bytes: float
    """Bytes that a GPU's link inside the node carries, per direction."""
    node_bytes: float
    """Bytes that leave a node."""
    efficiency: float
    """Fraction of the rate of the links inside."""
    across: float = 1.0
    """Further factor on the efficiency of the NICs."""
    launch: float = 1.0
    """Factor on the launch."""
    overlaps: bool = False
    """Whether the latency of a step hides behind the pieces that are still on the wire."""
    depth: float = 0.0
    """Crossings that a piece makes before the pipe is full: all of them in a tree, one and back in a ring."""
    fills: bool = True
    """Whether there is a pipe to fill: more than one hop."""
    extra_s: float = 0.0
    nics: float = math.inf
    """NICs that it can use at most."""
    wires: float = 1.0
    """Part of a GPU's rate that it can use: less than all where there is no switch."""
    message: float = 1.0
    """Bytes of one message over bytes of payload: what decides on a handshake."""


def seconds(call: Call, inside: Inside, across: Across | None = None, laws: Laws = LAWS) -> float:
    """The predicted time; never less than the wire allows."""
    if call.ranks < 2:
        return 0.0
    return min(_time(call, name, inside, across, laws) for name in _choice(call, inside, across))


def fastest(call: Call, inside: Inside, across: Across | None = None, laws: Laws = LAWS) -> float:
    """The predicted time of the fastest that a library may take, whatever it chooses. It does not jump where the library changes
    over: constants are fitted with it, and measured series are read against it.
    """
    if call.kind != "all_reduce" or call.ranks < 2 or call.algorithm not in ("auto", "plain"):
        return seconds(call, inside, across, laws)
    return min(_time(call, name, inside, across, laws) for name in _library(call, inside, across).values())


def least(call: Call, inside: Inside, across: Across | None = None) -> float:
    """The time on the wire, at the rates on the label, by the best algorithm allowed."""
    if call.ranks < 2:
        return 0.0
    demands = (DEMANDS[name](call, inside, across, LAWS) for name in _choice(call, inside, across))
    return min(max(_wire(call, demand, inside, across)) for demand in demands)


def _time(call: Call, name: str, inside: Inside, across: Across | None, laws: Laws) -> float:
    demand = DEMANDS[name](call, inside, across, laws)
    on_gpu, on_nics = _wire(call, demand, inside, across)
    on_gpu *= inside.flagged(call.payload_bytes, call.per_node)
    on_gpu /= demand.efficiency
    crossing = deep = 0.0
    if across is not None and call.nodes > 1:
        on_nics /= across.efficiency * demand.across
        crossing = demand.crossings * across.crossing_s * across.handshake(call.payload_bytes * demand.message) + demand.extra_s
        deep = laws.crossing_fill * demand.depth * across.crossing_s
    wire = bottleneck_s(on_gpu, on_nics, laws)
    fill = demand.fills * (inside.fill_s + deep)
    latency = demand.steps * inside.step_s + crossing
    moving = math.hypot(latency, wire) if demand.overlaps else latency + wire
    return demand.launch * inside.launch_s + moving + math.sqrt(fill * wire)


def bottleneck_s(on_gpu_s: float, on_nics_s: float, laws: Laws = LAWS) -> float:
    """The time of two bottlenecks in a row: the p-norm of their times."""
    slowest = max(on_gpu_s, on_nics_s)
    if not slowest:
        return 0.0
    found: float = slowest * ((on_gpu_s / slowest) ** laws.norm + (on_nics_s / slowest) ** laws.norm) ** (1 / laws.norm)
    return found


def _wire(call: Call, demand: Demand, inside: Inside, across: Across | None) -> tuple[float, float]:
    """Seconds at full rate: of a GPU's link, and of the NICs of a node."""
    on_gpu = demand.gpu_bytes / (inside.rate(call.per_node) * demand.wires)
    if across is None or call.nodes < 2:
        return on_gpu, 0.0
    nics = min(across.nics, math.ceil(call.per_node), demand.nics)
    return on_gpu, demand.node_bytes / (nics * across.nic_bytes_per_s)


def taken(call: Call, inside: Inside, across: Across | None) -> str:
    """The algorithm that a library takes for an all-reduce that is left to it (`auto`, `plain`), by its name here.

    NCCL's cost model decides. Where a ring and a tree are nearly equal to it, the faster is taken; over two nodes the tree,
    as logs of NCCL say (NVIDIA/nccl-tests#196).
    """
    ways, seen = _library(call, inside, across), group(call, inside, across)
    name = nccl_choice.chosen(call.payload_bytes, seen, ways)
    if name not in PLAIN or not nccl_choice.is_tie(call.payload_bytes, seen) or call.nodes == 1:
        return ways[name]
    if call.nodes == 2:
        return "tree"
    return min(PLAIN, key=lambda name: seconds(replace(call, algorithm=name), inside, across))


def _library(call: Call, inside: Inside, across: Across | None) -> dict[str, str]:
    """Algorithms of a library for an all-reduce, by NCCL's name, with their names here: more where switches reduce."""
    found = {name: name for name in PLAIN}
    if call.algorithm != "plain" and _adds_up(call, inside, across):
        found |= TAKEN_AS | {"nvls": "nvls"}
    if call.algorithm != "plain" and call.nodes > 1 and across is not None and across.sharp:
        found |= {"sharp": "sharp"}
    return found


def group(call: Call, inside: Inside, across: Across | None) -> nccl_choice.Group:
    """The ranks of a call and their links as NCCL sees them."""
    generation = inside.generation or nccl_choice.generation("", inside.bytes_per_s)
    link = "pcie" if inside.to_nics else "nvlink"
    nics = min(across.nics, math.ceil(call.per_node)) * across.nic_bytes_per_s if across else math.inf
    return nccl_choice.Group(call.ranks, call.nodes, generation, link, inside.rate(call.per_node), nics)


def _adds_up(call: Call, inside: Inside, across: Across | None) -> bool:
    """Whether a library lets the NVSwitches add up."""
    reduces = inside.nvls_efficiency > 0 and call.per_node >= FEWEST_AT_A_SWITCH
    return reduces and (call.nodes < 2 or across is None or across.nvls)


def _choice(call: Call, inside: Inside, across: Across | None) -> tuple[str, ...]:
    """Algorithms in `DEMANDS` that may serve; of several, kernels that read their peers' memory, the fastest is taken."""
    if call.kind in ("alltoall", "sendrecv"):
        return (call.kind,)
    if call.kind != "all_reduce":
        return ("ring",)
    far, wanted = call.nodes > 1, call.algorithm
    if wanted == "sharp" and not far:
        wanted = "nvls"
    if wanted == "nvls" and not _adds_up(call, inside, across):
        wanted = "plain"
    if wanted in DEMANDS:
        return (wanted,)
    left = (taken(replace(call, algorithm="plain" if wanted == "plain" else "auto"), inside, across),)
    return (*left, "one_shot", "two_shot") if wanted == "direct" and not far else left


def reached(call: Call, inside: Inside) -> float:
    """Fraction of the rate of a GPU's links that a call's ranks in a node reach."""
    if inside.split(call.per_node):
        return inside.beyond_efficiency
    return inside.efficiency * (inside.pair_efficiency if call.per_node == 2 else 1.0)


def _of_pair(inside: Inside, laws: Laws) -> float:
    """Fraction of that rate that a pair reaches which sends both ways."""
    return min(1.0, laws.pair_efficiency * inside.efficiency)


def _ring(call: Call, inside: Inside, across: Across | None, laws: Laws) -> Demand:
    """Pieces go round: n - 1 steps, twice for an all-reduce; of n edges, as many cross as there are nodes."""
    n, nodes = call.ranks, call.nodes if call.nodes > 1 else 0
    turns = 2 if call.kind == "all_reduce" else 1
    steps = turns * (n - 1)
    carried = call.payload_bytes * (1.0 if call.kind == "broadcast" else turns * (n - 1) / n)
    crowd = (call.nodes / 2) ** -laws.crowd if nodes and across and not across.adaptive else 1.0
    late, far = steps * (1 - nodes / n), steps * nodes / n
    return Demand(late, far, carried, carried, reached(call, inside), across=crowd, depth=2.0, overlaps=True)


def _tree(call: Call, inside: Inside, _: Across | None, laws: Laws) -> Demand:
    """Up and down two trees over the nodes, a chain within each node: log2 of the nodes in latency, a ring's bytes."""
    n, nodes, size = call.ranks, call.nodes, call.payload_bytes
    return Demand(
        steps=2 * (call.per_node - 1),
        crossings=2 * math.log2(nodes),
        gpu_bytes=2 * (n - 1) / n * size,
        node_bytes=2 * (nodes - 1) / nodes * size,
        efficiency=reached(call, inside),
        across=laws.tree_efficiency if nodes > 2 else laws.pair_tree_efficiency,
        depth=2 * math.log2(nodes),
    )


def _nvls(call: Call, inside: Inside, _: Across | None, laws: Laws) -> Demand:
    """The NVSwitch adds up and multicasts: each GPU sends its tensor once and gets the sum once; trees over the nodes."""
    n, nodes, size = call.per_node, call.nodes, call.payload_bytes
    steps, crossings = _steps_at_switch(n), 2 * math.log2(nodes)
    branches = laws.nvls_tree_efficiency if nodes > 2 else 1.0
    sent, left = (n + 1) / n * size, 2 * (nodes - 1) / nodes * size
    return Demand(steps, crossings, sent, left, inside.nvls_efficiency, across=branches, depth=crossings)


def _steps_at_switch(ranks: float) -> float:
    """Steps that so many GPUs take through a switch that adds up."""
    return 2 * (min(ranks, STEPS_GROW_UP_TO) - 1)


def _sharp(call: Call, inside: Inside, _: Across | None, laws: Laws) -> Demand:
    """The network's switches add up: the tensor leaves each node once, and comes back once."""
    n, size = call.per_node, call.payload_bytes
    efficiency = inside.nvls_efficiency or reached(call, inside)
    steps = _steps_at_switch(n) if inside.nvls_efficiency else 2 * (n - 1)
    return Demand(steps, 2.0, (n + 1) / n * size, size, efficiency, across=laws.sharp_efficiency, depth=2.0)


def _one_shot(call: Call, inside: Inside, _: Across | None, laws: Laws) -> Demand:
    """One kernel reads its peers' memory, all of it in one go."""
    efficiency, others = laws.direct_efficiency * reached(call, inside), call.ranks - 1
    return Demand(laws.alltoall_step * others, 0, others * call.payload_bytes, 0, efficiency, launch=laws.direct_launch)


def _two_shot(call: Call, inside: Inside, _: Across | None, laws: Laws) -> Demand:
    """One kernel reads its peers' memory: each its share of it, and then the others' sums."""
    efficiency, others = laws.direct_efficiency * reached(call, inside), call.ranks - 1
    read = 2 * others / call.ranks * call.payload_bytes
    return Demand(laws.alltoall_step * others + 1, 0, read, 0, efficiency, launch=laws.direct_launch)


def _alltoall(call: Call, inside: Inside, _: Across | None, laws: Laws) -> Demand:
    """Every rank to every other; those in other nodes through the NICs, which the proxy serves peer by peer. Two on a wire of a
    mesh do what a sendrecv does.
    """
    n, g, size = call.ranks, call.per_node, call.payload_bytes
    paired = inside.mesh > 0 and g == 2
    efficiency = _of_pair(inside, laws) if paired else laws.alltoall_efficiency * reached(call, inside)
    peers = n if inside.carries_out(g) else g
    return Demand(
        steps=laws.alltoall_step * (g - 1),
        crossings=1.0 if call.nodes > 1 else 0.0,
        gpu_bytes=(peers - 1) / n * size,
        node_bytes=g * (n - g) / n * size,
        efficiency=efficiency,
        launch=laws.alltoall_launch,
        extra_s=laws.peer_s * (n - g) if call.nodes > 1 else 0.0,
        depth=1.0,
        wires=inside.to_all(g),
        message=1 / n,
    )


def _sendrecv(call: Call, inside: Inside, across: Across | None, laws: Laws) -> Demand:
    """Each rank to the next, over one wire of a mesh; one flow over one NIC where it leaves the node. Where no topology is known,
    flows that leave their leaf switch are hashed onto the same links; between two nodes there is but one each way.
    """
    crosses = call.nodes > 1
    collide = across is not None and not across.adaptive and call.nodes > 2 and not call.placed
    far = max(1.0, call.nodes / laws.leaf_nodes) if collide else 1.0
    within = call.payload_bytes if call.per_node > 1 or inside.carries_out(call.per_node) else 0.0
    return Demand(
        steps=1.0 if call.per_node > 1 else 0.0,
        crossings=1.0 if crosses else 0.0,
        gpu_bytes=within,
        node_bytes=call.payload_bytes,
        efficiency=_of_pair(inside, laws),
        across=laws.flow_efficiency / min(far**laws.collisions, laws.most_collisions),
        launch=laws.alltoall_launch,
        fills=False,
        nics=1,
        wires=inside.to_one(call.per_node),
    )


DEMANDS: Mapping[str, Callable[[Call, Inside, Across | None, Laws], Demand]] = {
    "ring": _ring,
    "tree": _tree,
    "nvls": _nvls,
    "sharp": _sharp,
    "one_shot": _one_shot,
    "two_shot": _two_shot,
    "alltoall": _alltoall,
    "sendrecv": _sendrecv,
}
