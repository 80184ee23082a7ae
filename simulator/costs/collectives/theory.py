"""Closed forms of the uncontended time of a collective, and the algorithm that a library takes (`taken`).

t = launch + steps x step + crossings x crossing + y + sqrt(fill x y), where y is the time on the wire: the p-norm of the times
of a GPU's own links and of a node's NICs. The square root is the cost of a pipeline of pieces whose best size grows with the
message. In a ring, where every GPU always has a piece to send, latency and wire time overlap: the root of the sum of squares
replaces the sum. On links where small messages travel as words with flags, the flags add to the bytes on the wire. All algorithms
have this form and differ only in their numbers of steps, crossings and bytes; "auto" is the algorithm that NCCL's own cost model
takes (`nccl_choice`), even if another one is faster. References: Hockney, "The communication challenge for MPP", 1994;
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005;
Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ...units import US_PER_S
from . import nccl_choice
from .link_constants import LAWS, Across, Inside, Laws

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "alltoall", "sendrecv"]
Algorithm = Literal["auto", "plain", "ring", "tree", "nvls", "sharp", "direct", "direct_vllm"]
KINDS: tuple[str, ...] = get_args(Kind)
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
"""Algorithms of all-reduces. `plain` is `auto` where switches cannot reduce, as for one-byte integers: ring or tree."""
DIRECT = ("direct", "direct_vllm")
"""Kernels that read their peers' memory: those of TensorRT-LLM, and those of vLLM."""
PLAIN, FORCED = ("ring", "tree"), ("ring", "tree", "nvls", "sharp")
EXCHANGES = ("alltoall", "sendrecv")
KNOWN_AS = {"nvls_tree": "nvls", "point_to_point": "auto"}
"""Names in this module of algorithms of the catalog: between nodes, reductions in NVSwitches always feed trees."""

FEWEST_AT_A_SWITCH = 3
"""Smallest number of GPUs in a node for which NCCL reduces in an NVSwitch."""
STEPS_GROW_UP_TO = 8
"""Largest number of GPUs at one NVSwitch whose reductions were measured. The latency grows with each GPU from 2 to 8 and is
assumed constant beyond, where GPUs wait for the same few hops of the switch and not for one another. This is reasoned: no table
holds more GPUs at one switch."""

MOST_HEADS = 32
"""Largest number of GPUs among which NCCL divides the reductions of an NVSwitch (NCCL_MAX_NVLS_ARITY in src/include/device.h of
NVIDIA/nccl). Each has its own chunks in flight, so that the time to fill the pipeline is proportional to this number."""
RACK_PIECE_BYTES = 128 * 1024
"""Over several nodes with more GPUs than that, such as racks, no library reduces in NVSwitches here, and all-reduces take the
fastest of ring, tree and switches of the network from this size of a rank's piece on (assumed: the times of public runs over
several NVL72 match rings, where NCCL's cost model chooses trees of switches)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. `payload_bytes` follows nccl-tests: the whole tensor of a reduction, a gather or a scatter, the bytes that
    one rank holds of an all-to-all, one message of a sendrecv (each rank to the next).
    """

    kind: str
    payload_bytes: float
    ranks: int
    nodes: int = 1
    algorithm: str = "auto"
    placed: bool = False
    """Whether the route of every message is known, so that flows on a common link share its rate. Otherwise flows are assumed to
    be hashed beyond a leaf switch, which has `Across.leaf_nodes` nodes.
    """
    fewest: int = 0
    """Number of ranks in the node with fewest, where nodes have different numbers of ranks; 0 where they have equally many."""
    most: int = 0
    """The same of the node with most."""

    @property
    def per_node(self) -> float:
        """Number of ranks in each node."""
        return self.ranks / self.nodes

    @property
    def lanes(self) -> int:
        """Number of ranks of each node through which data leaves it: as many as the node with fewest ranks has."""
        return self.fewest or math.ceil(self.per_node)


@dataclass(frozen=True, slots=True)
class Demand:
    """Steps, crossings and bytes that one algorithm needs for a call, independent of link rates."""

    steps: float
    crossings: float
    gpu_bytes: float
    """Bytes that a GPU's link inside the node carries, per direction."""
    node_bytes: float
    """Bytes that leave a node."""
    efficiency: float
    """Fraction of the rate of the links inside the node that the algorithm reaches."""
    across: float = 1.0
    """Further factor on the efficiency of the NICs."""
    launch: float = 1.0
    """Factor on the launch time."""
    overlaps: bool = False
    """Whether the latency of a step overlaps with the pieces that are still on the wire."""
    depth: float = 0.0
    """Crossings of a piece before the pipeline is full: all crossings in a tree, one there and one back in a ring."""
    fills: float = 1.0
    """Factor on the time scale of pipeline filling; 0 without a pipeline, for a single hop."""
    extra_s: float = 0.0
    nics: float = math.inf
    """Largest number of NICs of a node that the algorithm can use."""
    wires: float = 1.0
    """Fraction of a GPU's rate that the algorithm can use: below 1 where a node has no switch."""
    message: float = 1.0
    """Bytes of one message over bytes of payload; the message size determines the handshake."""


def seconds(call: Call, inside: Inside, across: Across | None = None, laws: Laws = LAWS) -> float:
    """The predicted time of a call in seconds; never below the time on the wire."""
    return _quickest(call, _choice(call, inside, across), inside, across, laws)


def fastest(call: Call, inside: Inside, across: Across | None = None, laws: Laws = LAWS) -> float:
    """The predicted time of the fastest algorithm that a library may take, whichever algorithm the library chooses. This time has
    no jumps where the library changes algorithms; fits of constants and corrections of measured series use it as the reference.
    """
    if call.kind != "all_reduce" or call.ranks < 2 or call.algorithm not in ("auto", "plain"):
        return seconds(call, inside, across, laws)
    return _quickest(call, _library(call, inside, across), inside, across, laws)


def least(call: Call, inside: Inside, across: Across | None = None) -> float:
    """The time on the wire at nominal rates, with the best allowed algorithm, in seconds."""
    demands = (_demand(name, call, inside, across, LAWS) for name in _choice(call, inside, across))
    return min((max(_wire(call, demand, inside, across)) for demand in demands), default=0.0)


def _quickest(call: Call, names: Iterable[str], inside: Inside, across: Across | None, laws: Laws) -> float:
    """The predicted time of the fastest of the named algorithms; 0 without any algorithm."""
    times = []
    for name in names:
        demand = _demand(name, call, inside, across, laws)
        on_gpu, on_nics = _wire(call, demand, inside, across)
        on_gpu *= flagged(inside, call.payload_bytes, call.per_node)
        on_gpu /= demand.efficiency
        crossing = deep = 0.0
        if across is not None and call.nodes > 1:
            on_nics /= across.efficiency * demand.across
            shaken = handshake(across, call.payload_bytes * demand.message)
            crossing = demand.crossings * across.hop_s * shaken + demand.extra_s
            deep = laws.crossing_fill * demand.depth * across.hop_s
        wire = bottleneck_s(on_gpu, on_nics, laws)
        fill = demand.fills * (inside.fill_s + deep)
        latency = demand.steps * inside.step_s + crossing
        moving = math.hypot(latency, wire) if demand.overlaps else latency + wire
        times.append(demand.launch * inside.launch_s + moving + math.sqrt(fill * wire))
    return min(times, default=0.0)


def bottleneck_s(on_gpu_s: float, on_nics_s: float, laws: Laws = LAWS) -> float:
    """The time of two bottlenecks in series: the p-norm of their times."""
    slowest = max(on_gpu_s, on_nics_s)
    if not slowest:
        return 0.0
    found: float = slowest * ((on_gpu_s / slowest) ** laws.norm + (on_nics_s / slowest) ** laws.norm) ** (1 / laws.norm)
    return found


def _wire(call: Call, demand: Demand, inside: Inside, across: Across | None) -> tuple[float, float]:
    """Seconds on the wire at full rate: on a GPU's links, and on the NICs of a node."""
    on_gpu = demand.gpu_bytes / (rate(inside, call.per_node) * demand.wires)
    if across is None or call.nodes < 2:
        return on_gpu, 0.0
    nics = min(across.nics, demand.nics, math.inf if call.kind in EXCHANGES else call.lanes)
    return on_gpu, demand.node_bytes / (nics * across.nic_bytes_per_s)


def taken(call: Call, inside: Inside, across: Across | None) -> str:
    """The algorithm that a library takes for an all-reduce with algorithm `auto` or `plain`, by its name in this module.

    NCCL's cost model decides. Where its estimates of ring and tree are nearly equal, the faster by this module is taken; over two
    nodes the tree is taken, as logs of NCCL show (NVIDIA/nccl-tests#196).
    """

    def time_s(name: str) -> float:
        return seconds(replace(call, algorithm=name), inside, across)

    if spans_racks(call) and call.payload_bytes >= RACK_PIECE_BYTES * call.ranks:
        return min(_library(call, inside, across), key=time_s)
    seen = group(call, inside, across)
    name = nccl_choice.chosen(call.payload_bytes, seen, _library(call, inside, across))
    if name not in PLAIN or not nccl_choice.is_tie(call.payload_bytes, seen) or call.nodes == 1:
        return name
    if call.nodes == 2:
        return "tree"
    return min(PLAIN, key=time_s)


def _library(call: Call, inside: Inside, across: Across | None) -> tuple[str, ...]:
    """Algorithms of a library for an all-reduce: ring and tree, and further algorithms where switches reduce."""
    if call.algorithm == "plain":
        return PLAIN
    nvls = ("nvls",) if adds_up(call, inside, across) and not spans_racks(call) else ()
    return (*PLAIN, *nvls, *(("sharp",) if call.nodes > 1 and across is not None and across.sharp else ()))


def group(call: Call, inside: Inside, across: Across | None) -> nccl_choice.Group:
    """The ranks of a call and their links as NCCL sees them."""
    generation = inside.generation or nccl_choice.generation("", inside.bytes_per_s)
    link = "pcie" if inside.to_nics else "nvlink"
    nics = min(across.nics, call.lanes) * across.nic_bytes_per_s if across else math.inf
    reported_us = across.reported_s * US_PER_S if across else 0.0
    return nccl_choice.Group(call.ranks, call.nodes, generation, link, rate(inside, call.per_node), nics, reported_us)


def spans_racks(call: Call) -> bool:
    """Whether a call spans several nodes with more GPUs than NCCL divides the reductions of an NVSwitch among."""
    return call.nodes > 1 and call.per_node > MOST_HEADS


def adds_up(call: Call, inside: Inside, across: Across | None) -> bool:
    """Whether a library reduces in the NVSwitches of the nodes."""
    reduces = inside.nvls_efficiency > 0 and call.per_node >= FEWEST_AT_A_SWITCH
    return reduces and (call.nodes < 2 or across is None or across.nvls)


def _choice(call: Call, inside: Inside, across: Across | None) -> tuple[str, ...]:
    """Algorithms of `_demand` for a call; empty for a single rank. The fastest of several algorithms is taken."""
    if call.ranks < 2:
        return ()
    if call.kind != "all_reduce":
        return (call.kind if call.kind in EXCHANGES else "ring",)
    far, wanted = call.nodes > 1, call.algorithm
    if wanted == "sharp" and not far:
        wanted = "nvls"
    if wanted == "nvls" and not adds_up(call, inside, across):
        wanted = "plain"
    if wanted in FORCED:
        return (wanted,)
    chosen = call if wanted in ("auto", "plain") else replace(call, algorithm="auto")
    left = (taken(chosen, inside, across),)
    return (*left, "one_shot", "two_shot") if wanted in DIRECT and not far else left


def _demand(name: str, call: Call, inside: Inside, across: Across | None, laws: Laws) -> Demand:
    """The steps, crossings and bytes that an algorithm needs for a call."""
    n, g, nodes, size = call.ranks, call.per_node, call.nodes, call.payload_bytes
    reach, efficiency, doublings = reached(call, inside), inside.nvls_efficiency, math.log2(nodes)
    at_switch = 2 * (min(g, STEPS_GROW_UP_TO) - 1)
    if name in EXCHANGES:
        return _demand_of_exchange(call, inside, across, laws)
    if name == "ring":
        # Pieces travel round the ring: n - 1 steps, twice for an all-reduce; of the n edges, one per node crosses between nodes.
        turns, crossing = 2 if call.kind == "all_reduce" else 1, nodes if nodes > 1 else 0
        steps, sent = turns * (n - 1), size * (1.0 if call.kind == "broadcast" else turns * (n - 1) / n)
        crowd = (nodes / 2) ** -across.crowd if crossing and across and not across.adaptive else 1.0
        late, far = steps * (1 - crossing / n), steps * crossing / n
        if call.kind == "broadcast":  # a piece passes all ranks one after the other, and only then is the pipeline full
            return Demand(late, far, sent, sent, reach, across=crowd, depth=far)
        return Demand(late, far, sent, sent, reach, across=crowd, depth=2.0, overlaps=True)
    if name == "tree":
        # Up and down two trees over the nodes, a chain within each node: log2 of the nodes in latency. Over two nodes a tree
        # takes as long as a ring on the NICs, although it sends fewer bytes.
        sent, left = 2 * (n - 1) / n * size, tree_load(nodes) * size
        of_ring = tree_load(nodes) / (2 * (n - 1) / n)
        branches = across.tree_efficiency if across and nodes > 2 else laws.pair_tree_efficiency * of_ring
        return Demand(2 * (g - 1), 2 * doublings, sent, left, reach, across=branches, depth=2 * doublings)
    if name == "nvls":
        # The NVSwitch reduces and multicasts: each GPU sends its tensor once and gets the sum once; trees over the nodes.
        sent, left = (g + 1) / g * size, tree_load(nodes) * size
        branches = across.nvls_tree_efficiency if across and nodes > 2 else 1.0
        heads = max(1.0, min(g, MOST_HEADS) / STEPS_GROW_UP_TO)
        return Demand(at_switch, 2 * doublings, sent, left, efficiency, across=branches, depth=2 * doublings, fills=heads)
    if name == "sharp":
        # Network switches reduce: the tensor leaves each node once, and comes back once.
        hops, sent = at_switch if efficiency else 2 * (g - 1), (g + 1) / g * size
        reduced = across.sharp_efficiency if across else 1.0
        return Demand(hops, 2.0, sent, size, efficiency or reach, across=reduced, depth=2.0)
    # One kernel reads its peers' memory: the whole payload at once, or first its share of it and then the sums of the others.
    others, once = n - 1, name == "one_shot"
    served, read = laws.alltoall_step * others + (0 if once else 1), others * size if once else 2 * others / n * size
    launch = laws.direct_launch * (laws.direct_vllm_launch if call.algorithm == "direct_vllm" else 1.0)
    return Demand(served, 0, read, 0, min(1.0, laws.direct_efficiency * reach), launch=launch)


def tree_load(nodes: int) -> float:
    """Payloads that leave the busiest node of NCCL's double binary tree over these nodes in an all-reduce.

    Each tree carries half of the payload up and down. From four nodes on some node has a parent and two children in one tree and
    is a leaf of the other: 1.5 + 0.5. Of three nodes, one has a parent and a child in one tree: 1.0 + 0.5. (Nodes on average
    send what those of a ring send, 2 (nodes - 1) / nodes.) From ncclGetDtree in src/graph/trees.cc of NVIDIA/nccl 2.28.3.
    """
    return min(2.0, nodes / 2)


def _demand_of_exchange(call: Call, inside: Inside, across: Across | None, laws: Laws) -> Demand:
    """The demand of point-to-point messages: an all-to-all, or a sendrecv from each rank to the next.

    Messages of an all-to-all to other nodes use the NICs, which the proxy thread serves peer by peer. Where nodes have different
    numbers of ranks, each rank of the node with fewest has most to send to other nodes, and to most peers.

    A message of a sendrecv uses one wire of a mesh, and is one flow over one NIC where the message leaves the node. Two ranks on
    one wire exchange as in a sendrecv. Where no topology is known, flows that leave their leaf switch are hashed onto the same
    links; between two nodes there is only one flow in each direction.
    """
    n, g, nodes, size = call.ranks, call.per_node, call.nodes, call.payload_bytes
    far, leaves, launch = float(nodes > 1), carries_out(inside, g), laws.alltoall_launch
    of_pair = min(1.0, laws.pair_efficiency * inside.efficiency)
    if call.kind == "alltoall":
        efficiency = of_pair if inside.mesh > 0 and g == 2 else laws.alltoall_efficiency * reached(call, inside)
        fewest, most, busy = call.fewest or g, call.most or g, _busiest_node(call, across, laws)
        steps, sent = laws.alltoall_step * (most - 1), ((n if leaves else most) - 1) / n * size
        proxy_s, left = laws.peer_s * (n - fewest), busy * (n - busy) / n * size
        needs = Demand(steps, far, sent, left, efficiency, launch=launch, extra_s=proxy_s, message=1 / n, nics=math.ceil(busy))
        return replace(needs, across=share_of_exchange(across, busy, laws), depth=1.0, wires=to_all(inside, g))
    flow, sent = laws.flow_efficiency, size if g > 1 or leaves else 0.0
    if across is not None and not across.adaptive and nodes > 2 and not call.placed:
        flow /= min(max(1.0, nodes / across.leaf_nodes) ** across.collisions, across.most_collisions)
    wires = to_one(inside, g)
    return Demand(float(g > 1), far, sent, size, of_pair, across=flow, launch=launch, fills=0.0, nics=1, wires=wires)


def _busiest_node(call: Call, across: Across | None, laws: Laws) -> float:
    """The number of ranks of the node whose NICs need longest for an all-to-all: it is the node with fewest ranks, or, where
    ranks share NICs, that with most."""

    def busy(ranks: float) -> float:
        nics = min(across.nics if across else math.inf, math.ceil(ranks))
        return ranks * (call.ranks - ranks) / (nics * share_of_exchange(across, ranks, laws))

    return max(call.fewest or call.per_node, call.most or call.per_node, key=busy)


def share_of_exchange(across: Across | None, ranks: float, laws: Laws = LAWS) -> float:
    """Efficiency of an all-to-all among `ranks` GPUs of each node, over the NIC efficiency of rings."""
    if across is None:
        return 1.0
    return min(across.alltoall, laws.shared_nics if across.nics < math.ceil(ranks) else 1.0)


def rate(inside: Inside, ranks: float) -> float:
    """Rate of a GPU in a group of `ranks` GPUs of its node, in bytes/s."""
    if _is_split(inside, ranks):
        return inside.beyond_bytes_per_s
    part = min(1.0, (ranks - 1) / (inside.mesh - 1)) if 1 < ranks < inside.mesh else 1.0
    return inside.bytes_per_s * part


def reached(call: Call, inside: Inside) -> float:
    """Fraction of the rate of a GPU's links that a call's ranks in a node reach."""
    if _is_split(inside, call.per_node):
        return inside.beyond_efficiency
    return inside.efficiency * (inside.pair_efficiency if call.per_node == 2 else 1.0)


def carries_out(inside: Inside, ranks: float) -> bool:
    """Whether data that a group of `ranks` GPUs sends out of its node uses the same links as data that stays in the node."""
    return inside.to_nics and (not inside.island or _is_split(inside, ranks))


def flagged(inside: Inside, message_bytes: float, ranks: float) -> float:
    """Bytes on the wire over bytes of the message, for a message in a group of `ranks` GPUs of a node."""
    flags = inside.flags if not inside.island or _is_split(inside, ranks) else 1.0
    return 1 + (flags - 1) * inside.flags_bytes / (message_bytes + inside.flags_bytes)


def handshake(across: Across, message_bytes: float) -> float:
    """Factor on the latency of a crossing with a message of this size, due to the handshake of large messages."""
    return 1 + (across.rendezvous - 1) * message_bytes / (message_bytes + across.rendezvous_bytes)


def _is_split(inside: Inside, ranks: float) -> bool:
    """Whether a group of `ranks` GPUs spans more than one island."""
    return 0 < inside.island < ranks


def _thinnest_bytes_per_s(inside: Inside) -> float:
    """Rate of the slowest wire of a mesh in bytes/s; a wire connects one GPU to one other GPU."""
    wire = inside.bytes_per_s / (inside.mesh - 1)
    return min(wire, inside.pair_bytes_per_s or wire)


def to_one(inside: Inside, ranks: float) -> float:
    """Fraction of its rate with which a GPU of a group sends to the next GPU: without a switch, the rate of one wire."""
    return _thinnest_bytes_per_s(inside) / rate(inside, ranks) if inside.mesh > 1 else 1.0


def to_all(inside: Inside, ranks: float) -> float:
    """Fraction of its rate with which a GPU sends equally to every other GPU: without a switch, all messages wait for the slowest
    wire. Where some GPUs are not wired to each other, each half of the group reaches the other half by the wires that a GPU has
    beyond the wires within its own half, and all data of a half for one GPU of the other half goes over one of these wires.
    """
    if inside.mesh < 2 or ranks < 2:
        return 1.0
    wires, others = (max(1.0, inside.mesh - ranks / 2), ranks / 2) if inside.mesh < ranks else (1.0, 1.0)
    return wires / others * (ranks - 1) * _thinnest_bytes_per_s(inside) / rate(inside, ranks)
