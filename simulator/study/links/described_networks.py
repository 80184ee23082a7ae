"""From words to networks: what "NDR IB 400Gb/GPU", "EFA 3200Gb/s" and "2x Slingshot-11 200Gb/s" mean to the simulator.

- The network stands after the first "+"; where there is none, in those of the clauses, between commas and the like, that name
  one, and in what follows them ("NDR IB, 8x400Gb/s").
- The first of `ACROSSES` that this matches is the network. InfiniBand without a generation is that of the GPU's years, and
  RDMA without a kind is RoCE. "SHARP" means switches that add up.
- A rate is that of a NIC ("8x400Gb", "2x Slingshot-11 200Gb/s", "400Gb/s"), but that of all NICs of a server where it says so
  ("per node"), where the family is sold so (EFA), or where no NIC of the family is as fast ("3200Gb/s", "Slingshot-11 800Gb/s").
  How rates and counts are written: `described_rates`. No rate: that of the NIC which is named ("CX-8"), of the GPU's servers
  (EFA), or of the fabric's file; of RoCE that of the GPU's years.
- "400Gb/GPU", and any network of a rack, is a NIC for each GPU. NICs beyond one for each GPU are pooled. How many GPUs a
  server has no row tells, only how many were used: it is taken to be `USUAL_GPUS`, or those of a `TRAY`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...costs.curves import Curve
from ...costs.links import Across
from ...errors import UserError
from ...units import BITS_PER_BYTE, GB
from .described_rates import Rate, of_network
from .fabrics import Loader

ACROSSES = (
    (r"slow p2p|staged", "ndr-ib-slow-p2p"),
    (r"efa", "efa"),
    (r"slingshot[- ]?10", "slingshot-10"),
    (r"slingshot|cassini|\bcxi\b", "slingshot-11"),
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"roce|rdma over|spectrum|gpudirect-rdma|mrdma|pollara|\bthor", "roce"),
    (r"xdr|quantum-?(3|x800)", "xdr-ib"),
    (r"ndr|quantum-?2", "ndr-ib"),
    (r"hdr", "hdr-ib"),
    (r"edr|fdr|omni-?path", "edr-ib"),
    (r"\bib\b|infiniband", ""),
    (r"cx-?[5678]|connectx", "roce"),
    (r"rail", ""),
    (r"rdma", "roce"),
    (r"tcp|ethernet|\bsockets\b|gvnic|\bena\b|gbe|gige", "tcp"),
)
"""What stands in the name of a network, and the fabric; nothing: InfiniBand of the GPU's years."""
FASTEST_NIC_GBIT = 800
USUAL_GPUS, TRAY = 8, (r"gh200|gb[23]00", 4)
"""GPUs that share the NICs of a server, and of the servers of some GPUs: a row tells only how many of them were used."""
EFA_GBIT = (
    (r"\bl4\b|a10g?\b|\bt4|v100|p100", 1.0, 100.0),
    (r"l40s|a100", 4.0, 100.0),
    (r"h200", 16.0, 200.0),
    (r"b300", 16.0, 400.0),
    (r"b200", 8.0, 400.0),
    ("", 32.0, 100.0),
)
"""What AWS puts beside a GPU: so many EFA cards of so many Gbit/s in a server. The last is p5 (AWS EC2 instance types)."""
NIC, NIC_GBIT = r"(?:cx|connectx)[- ]?([5678])", {"5": 100.0, "6": 200.0, "7": 400.0, "8": 800.0}
"""ConnectX, and the Gbit/s of each generation: NVIDIA data sheets."""
YEARS = ((r"v100|p100", "edr-ib", 100.0), (r"a100|a800|a40", "hdr-ib", 200.0), (r"b300", "xdr-ib", 800.0))
"""What is in the name of a GPU, and the InfiniBand and the NICs of its years; NDR at 400 Gbit/s beside any other."""
MOST_GPU_GBIT = 1600
"""No GPU has NICs that are faster together."""
WITHIN = r"nv-?link|nv-?switch|nvl-?\d|xgmi|infinity|pcie|mesh|bridge|pair"
"""What a clause is about that is not of the network; one that names nothing goes on where the one before it was."""
CLAUSE = re.compile(r"[,;|&]|\band\b", re.IGNORECASE)
OWN_RATE = re.compile(
    r"(nv-?link|nv-?switch|xgmi|pcie)\S*(\s+nv-?switch)?\s+(\d+\s*[x×]\s*)?\d+(\.\d+)?\s*[gt]b/s(\s*(per|/)\s*(link|pair))?",
    re.IGNORECASE,
)
"""The rate of links inside a node."""
ADDS_UP = r"(?<!no )(?<!without )(sharp|collnet)(?! off)"


@dataclass(frozen=True, slots=True)
class Node:
    """What has the NICs of a node: its GPUs, and the servers that they sit in."""

    gpus: int
    servers: int
    rack: bool


def node_of(gpu: str, used: int, *, rack: bool) -> Node:
    if rack:
        return Node(used, -(-used // TRAY[1]), rack=True)
    return Node(max(used, TRAY[1] if re.search(TRAY[0], gpu) else USUAL_GPUS), 1, rack=False)


def network(gpu: str, text: str, node: Node, load: Loader) -> tuple[Across, tuple[Curve, ...]]:
    """The network that the words of a fabric mean, and its curves. The GPU's name comes in lower case, the words as they are."""
    words = halves(text)[1]
    name = _named(words)
    if name is None:
        raise UserError("the fabric names no network between the nodes")
    found = load(name or _infiniband_of(gpu))
    if found.across is None:
        raise UserError(f"{found.name} describes no network")
    words = OWN_RATE.sub(r"\1", words)
    across = replace(found.across, sharp=found.across.sharp or re.search(ADDS_UP, words.lower()) is not None)
    return _rated(across, name, gpu, words, node), found.curves


def halves(text: str) -> tuple[str, str]:
    """What the words of a fabric say about the inside of a node, and what about the network."""
    near, plus, far = text.partition("+")
    if plus:
        return near, far
    parts: tuple[list[str], list[str]] = ([], [])
    beyond = False
    for clause in CLAUSE.split(text):
        beyond = _named(clause) is not None or (beyond and re.search(WITHIN, clause.lower()) is None)
        parts[1 if beyond else 0].append(clause)
    return ", ".join(parts[0]), ", ".join(parts[1])


def _named(words: str) -> str | None:
    """The fabric of a network in words; empty for InfiniBand of some generation."""
    return next((fabric for pattern, fabric in ACROSSES if re.search(pattern, words.lower())), None)


def _infiniband_of(gpu: str) -> str:
    return next((name for pattern, name, _ in YEARS if re.search(pattern, gpu)), "ndr-ib")


def _rated(across: Across, kind: str, gpu: str, words: str, node: Node) -> Across:
    """The network with the NICs and the rate that the words give, or else those of its kind and of the GPU's years."""
    told = of_network(words)
    rate, (usual, usual_gbit) = told.rate, _usual(across, kind, gpu, words, node)
    count = told.count or (rate.count if rate else None)
    if told.by_gpu or (rate is not None and rate.per == "gpu"):
        gbit = rate.gbit if rate else usual_gbit
        own = count if count and (told.by_gpu or count * gbit <= MOST_GPU_GBIT) else 1
        return _with_nics(across, node.gpus, own * gbit, node)
    nics = float(count * node.servers) if count else node.gpus if node.rack else usual
    if rate is None:
        sold_gbit = usual * usual_gbit / count if count and kind == "efa" else usual_gbit
        return _with_nics(across, nics, min(usual_gbit, sold_gbit), node)
    fastest = FASTEST_NIC_GBIT if kind in ("", "roce", "tcp") else usual_gbit
    if not _is_of_all(rate, 0.0 if kind == "efa" and not count else fastest):
        return _with_nics(across, nics, rate.gbit, node)
    if not count and not node.rack:
        nics = max(1.0, min(max(usual, node.gpus), rate.gbit // usual_gbit))
    servers = node.servers if rate.gbit <= TRAY[1] * FASTEST_NIC_GBIT else 1
    return _with_nics(across, nics, rate.gbit * servers / nics, node)


def _usual(across: Across, kind: str, gpu: str, words: str, node: Node) -> tuple[float, float]:
    """NICs of a server, and Gbit/s of one, where no rate is named: by the name of the NIC, or by the GPU beside which it sits."""
    gbit = across.nic_bytes_per_s * BITS_PER_BYTE / GB
    if kind == "efa":
        return next((nics, each) for pattern, nics, each in EFA_GBIT if re.search(pattern, gpu))
    nic = re.search(NIC, words.lower())
    if kind in ("", "roce", "tcp") and nic:
        gbit = NIC_GBIT[nic[1]]
    elif kind == "roce":
        gbit = next((each for pattern, _, each in YEARS if re.search(pattern, gpu)), gbit)
    return min(across.nics, node.gpus), gbit


def _is_of_all(rate: Rate, fastest_gbit: float) -> bool:
    """Whether a rate is that of all NICs of a server: because it says so, or because no NIC is as fast."""
    if rate.count or rate.per == "nic":
        return rate.gbit > FASTEST_NIC_GBIT
    return rate.per == "node" or rate.gbit > fastest_gbit


def _with_nics(across: Across, nics: float, gbit: float, node: Node) -> Across:
    """NICs beyond one for each GPU are pooled: a GPU uses all of its own together."""
    used = min(nics, node.gpus)
    return replace(across, nics=used, nic_bytes_per_s=nics / used * gbit * GB / BITS_PER_BYTE)
