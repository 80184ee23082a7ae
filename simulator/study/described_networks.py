"""From words to networks: what "NDR IB 400Gb/GPU", "EFA 3200Gb/s" and "2x Slingshot-11 200Gb/s" mean to the simulator.

- The network stands after the first "+"; where there is none, in those of the clauses, between commas and the like, that do.
- The first of `ACROSSES` that this matches is the network. InfiniBand without a generation is that of the GPU's years, and
  RDMA without a kind is RoCE. "SHARP" means switches that add up.
- A rate is that of a NIC ("8x400Gb", "2x Slingshot-11 200Gb/s", "400Gb/s"), but that of all NICs of a server where the family
  is sold so (EFA, TCPX) or where no NIC is as fast ("3200Gb/s"). "GB" is bytes and everything else bits. No rate: that of the
  fabric's file.
- "400Gb/GPU", and any network of a rack, is a NIC for each GPU. NICs beyond one for each GPU are pooled. How many GPUs a
  server has no row tells, only how many were used: it is taken to be `USUAL_GPUS`, or those of a `TRAY`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from ..costs.curves import Curve
from ..costs.links import Across
from ..errors import UserError
from ..units import BITS_PER_BYTE, GB
from .fabrics import Loader

ACROSSES = (
    (r"slow p2p|staged", "ndr-ib-slow-p2p"),
    (r"efa", "efa"),
    (r"slingshot[- ]?10", "slingshot-10"),
    (r"slingshot|cassini|\bcxi\b", "slingshot-11"),
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"roce|rdma over|spectrum|gpudirect-rdma|mrdma|cx-?[678]|connectx", "roce"),
    (r"xdr|quantum-?(3|x800)", "xdr-ib"),
    (r"ndr|quantum-?2", "ndr-ib"),
    (r"hdr", "hdr-ib"),
    (r"edr|fdr|omni-?path", "edr-ib"),
    (r"\bib\b|infiniband|rail", ""),
    (r"rdma", "roce"),
    (r"tcp|ethernet|\bsockets\b|gvnic|\bena\b|gbe|gige", "tcp"),
)
"""What stands in the name of a network, and the fabric; nothing: InfiniBand of the GPU's years."""
SOLD_BY_NODE = ("efa", "tcpx", "tcpxo")
FASTEST_NIC_GBIT = 800
USUAL_GPUS, TRAY = 8, (r"gh200|gb[23]00", 4)
"""GPUs that share the NICs of a server, and of the servers of some GPUs: a row tells only how many of them were used."""
EFA_NIC_GBIT = 100
"""AWS sells the EFA of a server as so many of these: one of them in p3dn, four in p4d, 32 in p5."""
CLAUSE = re.compile(r"[,;|&]|\band\b", re.IGNORECASE)
OWN_RATE = re.compile(r"(nv-?link|nv-?switch|xgmi|pcie)\S*(\s+nv-?switch)?\s+\d+(\.\d+)?\s*[gt]b/s", re.IGNORECASE)
"""The rate of links inside a node."""
PRODUCT = re.compile(r"(\d+)\s*[x×]\s*(\d+)\s*[x×](?=\s*\d+\s*g)", re.IGNORECASE)
"""Two ports, or two NICs, for each of so many GPUs."""
NAMED_RATE = re.compile(r"\b([ehnx]dr)-?(\d{3})\b(?!\s*g)", re.IGNORECASE)
ADDS_UP = r"(?<!no )(?<!without )(sharp|collnet)(?! off)"
COUNT = re.compile(
    r"(?<![\w.])([1-9]\d{0,3})\s*[x×](?!\s*(?:1|2|4|8|16)\b(?!\s*g))(?!\s*(?:gpus?|[abhlpv]\d|g[bh]\d|mi\d|rtx))", re.IGNORECASE
)
"""So many NICs; not the lanes of PCIe, and not GPUs."""
RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?:(?P<bytes>GB(?!E)|GByte)|[Gg][bB]|[Gg]ig|G(?=/s|ps))")


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
    words = NAMED_RATE.sub(r"\1 \2Gb", OWN_RATE.sub(r"\1", words))
    words = PRODUCT.sub(lambda found: f"{int(found[1]) * int(found[2])}x", words)
    across = replace(found.across, sharp=found.across.sharp or re.search(ADDS_UP, words.lower()) is not None)
    return _rated(across, words, node), found.curves


def halves(text: str) -> tuple[str, str]:
    """What the words of a fabric say about the inside of a node, and what about the network."""
    near, plus, far = text.partition("+")
    if plus:
        return near, far
    clauses = CLAUSE.split(text)
    return ", ".join(c for c in clauses if _named(c) is None), ", ".join(c for c in clauses if _named(c) is not None)


def _named(words: str) -> str | None:
    """The fabric of a network in words; empty for InfiniBand of some generation."""
    return next((fabric for pattern, fabric in ACROSSES if re.search(pattern, words.lower())), None)


def _infiniband_of(gpu: str) -> str:
    years = ((r"v100|p100", "edr-ib"), (r"a100|a800|a40", "hdr-ib"), (r"b300|gb300", "xdr-ib"))
    return next((name for pattern, name in years if re.search(pattern, gpu)), "ndr-ib")


def _rated(across: Across, text: str, node: Node) -> Across:
    """The network with the NICs and the rate that the text gives, in its own upper and lower case: GB and Gb differ."""
    count, rate = COUNT.search(text), RATE.search(text)
    each = across.nic_bytes_per_s * BITS_PER_BYTE / GB
    gbit = positive(float(rate["number"]), rate[0]) * (BITS_PER_BYTE if rate["bytes"] else 1) if rate else each
    per = re.search(r"g\S*?\s*(?:/|per)\s*(gpu|nic|port)\b", text, re.IGNORECASE)
    by_gpu = node.rack or (per is not None and per[1].lower() == "gpu")
    nics = int(count[1]) * node.servers if count else node.gpus if by_gpu else min(across.nics, node.gpus)
    whole = gbit > FASTEST_NIC_GBIT or (rate is not None and not count and across.name in SOLD_BY_NODE)
    if whole and not per:
        if across.name == "efa" and not node.rack:
            nics = max(1.0, min(nics, gbit // EFA_NIC_GBIT))
        gbit *= node.servers / nics
    return _with_nics(across, nics, gbit, node)


def positive(rate: float, words: str) -> float:
    """A rate, unless it is nothing."""
    if not 0 < rate < math.inf:
        raise UserError(f"{words!r} is no rate")
    return rate


def _with_nics(across: Across, nics: float, gbit: float, node: Node) -> Across:
    """NICs beyond one for each GPU are pooled: a GPU uses all of its own together."""
    used = min(nics, node.gpus)
    return replace(across, nics=used, nic_bytes_per_s=nics / used * gbit * GB / BITS_PER_BYTE)
