"""The time of a collective alone, from the description of a machine: latency, bandwidth, and the slow climb between them.

t = launch + steps x step + crossings x crossing + y + sqrt(fill x y), where y is the time on the wire: the p-norm of what a
GPU's own links and a node's NICs need. The square root is what a pipeline of pieces costs whose best size grows with the
message. All algorithms are written in this form and differ only in how many steps, crossings and bytes they take;
"auto" is the best of those that a library would pick from. References: Hockney, "The communication challenge for MPP", 1994;
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005;
Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .links import LAWS, Across, Inside, Laws

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "alltoall", "sendrecv")
ALGORITHMS = ("auto", "plain", "ring", "tree", "nvls", "sharp", "direct")
"""`plain` is the best of ring and tree: what is left of `auto` where the switch cannot add up, as for integers of a byte."""


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

    @property
    def per_node(self) -> float:
        """Ranks in each node."""
        return self.ranks / self.nodes


@dataclass(frozen=True, slots=True)
class Way:
    """How one algorithm does a call: what it takes, before it is known how fast anything is."""

    steps: float
    crossings: float
    gpu_bytes: float
    """What a GPU's link inside the node carries, per direction."""
    node_bytes: float
    """What leaves a node."""
    efficiency: float
    """Of the links inside."""
    across: float = 1.0
    """Further factor on the efficiency of the NICs."""
    launch: float = 1.0
    fill: float = 1.0
    """Factors on the launch, and on how slowly the rate is reached."""
    extra_s: float = 0.0
    nics: float = math.inf
    """NICs that it can use at most."""
    message: float = 1.0
    """Bytes of one message over bytes of payload: what decides on a handshake."""


def seconds(call: Call, inside: Inside, across: Across | None = None, laws: Laws = LAWS) -> float:
    """The predicted time; never less than the wire allows."""
    if call.ranks < 2:
        return 0.0
    return min(_time(call, way, inside, across, laws) for way in _ways(call, inside, across, laws))


def least(call: Call, inside: Inside, across: Across | None = None) -> float:
    """The time that the wire alone takes, at the rates on the label, by the best algorithm allowed."""
    if call.ranks < 2:
        return 0.0
    return min(max(_wire(call, way, inside, across)) for way in _ways(call, inside, across, LAWS))


def _time(call: Call, way: Way, inside: Inside, across: Across | None, laws: Laws) -> float:
    on_gpu, on_nics = _wire(call, way, inside, across)
    on_gpu /= way.efficiency
    crossing = 0.0
    if across is not None and call.nodes > 1:
        on_nics /= across.efficiency * way.across * (call.nodes / 2) ** -laws.crowd
        size = call.payload_bytes * way.message
        late = (across.rendezvous - 1) * size / (size + across.rendezvous_bytes)
        crossing = way.crossings * across.crossing_s * (1 + late) + way.extra_s
    slowest = max(on_gpu, on_nics)
    wire = slowest * ((on_gpu / slowest) ** laws.norm + (on_nics / slowest) ** laws.norm) ** (1 / laws.norm) if slowest else 0.0
    depth = min(way.crossings, 2 * (1 + math.log2(call.nodes)))  # a long ring is full of pieces long before the last has come
    fill = way.fill * inside.fill_s + laws.crossing_fill * depth * (across.crossing_s if across else 0.0)
    return way.launch * inside.launch_s + way.steps * inside.step_s + crossing + wire + math.sqrt(fill * wire)


def _wire(call: Call, way: Way, inside: Inside, across: Across | None) -> tuple[float, float]:
    """Seconds at full rate: of a GPU's link, and of the NICs of a node."""
    on_gpu = way.gpu_bytes / inside.rate(call.per_node)
    if across is None or call.nodes < 2:
        return on_gpu, 0.0
    nics = min(across.nics, math.ceil(call.per_node), way.nics)
    return on_gpu, way.node_bytes / (nics * across.nic_bytes_per_s)


def _ways(call: Call, inside: Inside, across: Across | None, laws: Laws) -> list[Way]:
    if call.kind == "alltoall":
        return [_alltoall(call, inside, laws)]
    if call.kind == "sendrecv":
        return [_sendrecv(call, inside, laws)]
    ring, tree = _ring(call, inside), _tree(call, inside, laws)
    if call.kind != "all_reduce":
        return [ring]
    adds_up = inside.nvls_efficiency > 0 and call.per_node > 2
    shared = across is not None and across.sharp and call.nodes > 1
    choice: dict[str, Callable[[], list[Way]]] = {
        "ring": lambda: [ring],
        "tree": lambda: [tree],
        "plain": lambda: [ring, tree],
        "nvls": lambda: [_nvls(call, inside)] if adds_up else [ring, tree],
        "sharp": lambda: [_sharp(call, inside, laws)] if call.nodes > 1 else choice["nvls"](),
        "auto": lambda: [ring, tree] + adds_up * [_nvls(call, inside)] + shared * [_sharp(call, inside, laws)],
        "direct": lambda: choice["auto"]() + (call.nodes == 1) * _direct(call, inside, laws),
    }
    return choice[call.algorithm]()


def _efficiency(call: Call, inside: Inside) -> float:
    return inside.efficiency * (inside.pair_efficiency if call.per_node == 2 else 1.0)


def _ring(call: Call, inside: Inside) -> Way:
    """Pieces go round: n - 1 steps, twice for an all-reduce; of n edges, as many cross as there are nodes."""
    n, nodes = call.ranks, call.nodes if call.nodes > 1 else 0
    turns = 2 if call.kind == "all_reduce" else 1
    steps = turns * (n - 1)
    carried = call.payload_bytes * (1.0 if call.kind == "broadcast" else turns * (n - 1) / n)
    inside_share = 1 - nodes / n
    return Way(steps * inside_share, steps * nodes / n, carried, carried, _efficiency(call, inside))


def _tree(call: Call, inside: Inside, laws: Laws) -> Way:
    """Up and down two trees over the nodes, a chain within each node: log2 of the nodes in latency, a ring's bytes."""
    n, nodes, size = call.ranks, call.nodes, call.payload_bytes
    return Way(
        steps=2 * (call.per_node - 1),
        crossings=2 * math.log2(nodes),
        gpu_bytes=2 * (n - 1) / n * size,
        node_bytes=2 * (nodes - 1) / nodes * size,
        efficiency=_efficiency(call, inside),
        across=laws.tree_efficiency,
    )


def _nvls(call: Call, inside: Inside) -> Way:
    """The NVSwitch adds up and multicasts: each GPU sends its tensor once and gets the sum once; trees over the nodes."""
    n, nodes, size = call.per_node, call.nodes, call.payload_bytes
    steps, crossings = 2 * (n - 1), 2 * math.log2(nodes)
    return Way(steps, crossings, (n + 1) / n * size, 2 * (nodes - 1) / nodes * size, inside.nvls_efficiency)


def _sharp(call: Call, inside: Inside, laws: Laws) -> Way:
    """The network's switches add up: the tensor leaves each node once, and comes back once."""
    n, size = call.per_node, call.payload_bytes
    efficiency = inside.nvls_efficiency or _efficiency(call, inside)
    return Way(2 * (n - 1), 2.0, (n + 1) / n * size, size, efficiency, across=laws.sharp_efficiency)


def _direct(call: Call, inside: Inside, laws: Laws) -> list[Way]:
    """One kernel reads its peers' memory: all of it in one go, or each its share and then the others' sums."""
    n, size = call.ranks, call.payload_bytes
    efficiency = laws.direct_efficiency * _efficiency(call, inside)
    return [
        Way(laws.alltoall_step * (n - 1), 0, (n - 1) * size, 0, efficiency, launch=laws.direct_launch),
        Way(laws.alltoall_step * (n - 1) + 1, 0, 2 * (n - 1) / n * size, 0, efficiency, launch=laws.direct_launch),
    ]


def _alltoall(call: Call, inside: Inside, laws: Laws) -> Way:
    """Every rank to every other; those in other nodes through the NICs, which the proxy serves peer by peer."""
    n, g, size = call.ranks, call.per_node, call.payload_bytes
    return Way(
        steps=laws.alltoall_step * (g - 1),
        crossings=1.0 if call.nodes > 1 else 0.0,
        gpu_bytes=(g - 1) / n * size,
        node_bytes=g * (n - g) / n * size,
        efficiency=laws.alltoall_efficiency * _efficiency(call, inside),
        launch=laws.alltoall_launch,
        extra_s=laws.peer_s * (n - g) if call.nodes > 1 else 0.0,
        message=1 / n,
    )


def _sendrecv(call: Call, inside: Inside, laws: Laws) -> Way:
    """Each rank to the next: one flow over one NIC where it leaves the node."""
    crosses = call.nodes > 1
    within = call.payload_bytes if call.per_node > 1 else 0.0
    return Way(
        steps=1.0 if call.per_node > 1 else 0.0,
        crossings=1.0 if crosses else 0.0,
        gpu_bytes=within,
        node_bytes=call.payload_bytes,
        efficiency=min(1.0, laws.pair_efficiency * inside.efficiency),
        across=laws.flow_efficiency,
        launch=laws.alltoall_launch,
        fill=laws.pair_fill,
        nics=1,
    )
