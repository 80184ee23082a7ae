"""From words to links: what "H100-SXM" and "NVLink4 NVSwitch + NDR IB 400Gb/GPU" mean to the simulator.

This is the one place where tables of measurements, whose machines are described in free text, meet the fabrics of
topologies/fabrics. The rules, in order:

- **Inside a node** the GPU decides (`INSIDES`). "bridge" or "pairs" in the fabric means NVLink between two GPUs and PCIe
  between pairs; "PCIe4" without NVLink means PCIe alone, where the GPU's clock scales the launch; a rate such as "200GB/s"
  replaces that of the GPU if it is lower.
  GH200 has no NVSwitch unless the fabric names one: nothing adds up on the way.
- **A node is an NVLink domain**: "NVL72" makes one of 72 GPUs, however many trays they sit in.
- **Across nodes** the text after the first "+" decides, or all of it if there is none: the first of `ACROSSES` that it
  matches. A rate is that of a NIC ("8x400Gb", "400Gb/GPU", "400Gb/s"), but that of all NICs of a node where the family is
  sold so (EFA, TCPX) or where no NIC is as fast ("3200Gb/s"). No rate: that of the fabric's file. InfiniBand without a
  generation is that of the GPU's years.
- **Algorithms**: "nvls", "collnet" and "sharp", "tree" and "ring" mean themselves; "custom" a kernel that reads its peers'
  memory (`direct`); "int8" and "no NVLS" whatever the library picks without the switch's help (`plain`), for switches do
  not add up integers of a byte; anything else, such as "auto", "ofi-tuner" or "median of 131 runs", what the library picks.
- A machine that is not named ("unnamed", an empty GPU, "see source") is not guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..costs.curves import Curve
from ..costs.links import Across, Inside
from ..errors import UserError
from ..units import BITS_PER_BYTE, GB
from . import fabrics
from .fabrics import Fabric

INSIDES = (
    (r"pcie|pci-e|nvl\b", ""),
    (r"gb[23]00|b[23]00", "nvlink5-nvswitch"),
    (r"gh200|h[128]00|h20\b", "nvlink4-nvswitch"),
    (r"a[18]00", "nvlink3-nvswitch"),
    (r"v100", "nvlink2-mesh"),
    (r"mi3\d\d", "xgmi-mi300"),
)
"""What stands in the name of a GPU, and the fabric inside its nodes; nothing: PCIe."""
SWITCHLESS = r"gh200"
SWITCHLESS_MESH = 4
"""GPUs that sit in fours, each wired to each, without an NVSwitch, unless the fabric says otherwise."""
PCIE5 = r"h100|h200|rtx ?pro|b40|rtxpro"
PCIE3 = r"v100|p100|\bt4\b|\bp4\b|rtx ?20"
PCIE_CLOCK_GHZ = 1.75
"""Of the GPU that the launch time of a PCIe fabric is meant for; others launch as much faster as the root of
their clock is."""
CLOCKS_GHZ = (
    (r"rtx ?pro|blackwell", 2.6),
    (r"l40|l4\b|40[89]0|6000 ?ada|ada", 2.5),
    (r"a100|a800|a30", 1.41),
    (r"a40|a6000|3090|a10", 1.75),
    (r"v100|p100|t4|p4\b", 1.5),
)
"""What is in the name of a GPU on PCIe, and its boost clock, from the data sheets."""
BRIDGE_GB_PER_S = ((r"h100|h200", 300.0), (r"a100|a800", 300.0), (r"a40|a6000|a30|3090", 56.25), (r"v100", 50.0))
"""NVLink bridges: what is in the name of the GPU, GB/s per direction."""
ONE_WAY = 0.8
"""What PCIe carries when data goes one way only, over its label: headers, acknowledgements and credits take the rest
(Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018)."""
ACROSSES = (
    (r"slow p2p|staged", "ndr-ib-slow-p2p"),
    (r"efa", "efa"),
    (r"slingshot[- ]?10", "slingshot-10"),
    (r"slingshot|cassini|\bcxi\b", "slingshot-11"),
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"roce|rdma over|spectrum|gpudirect-rdma|mrdma|cx-?[678]|connectx", "roce"),
    (r"xdr|quantum-?3", "xdr-ib"),
    (r"ndr|quantum-?2", "ndr-ib"),
    (r"hdr", "hdr-ib"),
    (r"edr|fdr", "edr-ib"),
    (r"\bib\b|infiniband|rail", ""),
    (r"tcp|ethernet|socket|gvnic|\bena\b|gbe|gige", "tcp"),
)
"""What stands in the name of a network, and the fabric; nothing: InfiniBand of the GPU's years."""
SOLD_BY_NODE = ("efa", "tcpx", "tcpxo")
FASTEST_NIC_GBIT = 800
NODE_GBIT_OF_FOUR_NICS = 400
"""EFA of this rate has four NICs."""
UNNAMED = r"\s*|unnamed|unknown|see source|n/?a|\?"


@dataclass(frozen=True, slots=True)
class Machine:
    """The links that a row of a table was measured on, and the curves that speak of them."""

    inside: Inside
    across: Across | None
    nodes: int
    """NVLink domains."""
    curves: tuple[Curve, ...]


Loader = Callable[[str], Fabric]


def machine(gpu: str, fabric: str, gpus: int, nodes: int, load: Loader = fabrics.load) -> Machine:
    """The links of a GPU and a fabric in words. Raises `UserError`, with the reason, for what says too little."""
    if re.fullmatch(UNNAMED, gpu, re.IGNORECASE):
        raise UserError("the GPU is not named")
    if re.fullmatch(UNNAMED, fabric, re.IGNORECASE):
        raise UserError("the fabric is not named")
    gpu, fabric = gpu.lower(), fabric.lower()
    within = _inside(gpu, fabric, load)
    domain = re.search(r"nvl-?(\d+)", fabric)
    nodes = min(gpus, -(-gpus // int(domain[1])) if domain else nodes)
    if nodes < 2:
        return Machine(_found(within), None, 1, within.curves)
    between = _across(gpu, fabric, load)
    return Machine(_found(within), between.across, nodes, within.curves + between.curves)


def algorithm(words: str, dtype: str = "") -> str:
    """The algorithm that a table's words mean."""
    known = (("custom", "direct"), (r"no nvls|int8", "plain"), ("nvls", "nvls"), ("collnet|sharp", "sharp"))
    for pattern, name in (*known, (r"\btree", "tree"), (r"\bring", "ring")):
        if re.search(pattern, words.lower()):
            return name
    return "plain" if re.search(r"u?int8", dtype.lower()) else "auto"


def _found(fabric: Fabric) -> Inside:
    if fabric.inside is None:
        raise UserError(f"{fabric.name} describes no links inside a node")
    return fabric.inside


def _inside(gpu: str, text: str, load: Loader) -> Fabric:
    near = text.partition("+")[0]
    bridged = re.search(r"bridge|pair", text)
    if bridged or ("pcie" in near and "nvlink" not in near):
        return _bridged(gpu, _pcie(gpu, text, load), load) if bridged else _pcie(gpu, near, load)
    name = next((fabric for pattern, fabric in INSIDES if re.search(pattern, gpu)), "")
    if not name:
        return _pcie(gpu, text, load)
    found = load(name)
    if re.search(SWITCHLESS, gpu) and "switch" not in near:
        found = without_switch(found)
        found = replace(found, inside=replace(_found(found), mesh=SWITCHLESS_MESH))
    rate = re.search(r"(\d+(?:\.\d+)?)\s*gb/s", near)
    if rate and found.inside and float(rate[1]) * GB < found.inside.bytes_per_s:
        slower = replace(found.inside, bytes_per_s=float(rate[1]) * GB)
        return replace(found, inside=slower)
    return found


def without_switch(fabric: Fabric) -> Fabric:
    """The same links from GPU to GPU: nothing adds up on the way, so the library does what is left to it."""
    curves = [curve for curve in fabric.curves if (curve.kind, curve.algorithm) != ("all_reduce", "auto")]
    plain = tuple(replace(curve, algorithm="auto") if curve.algorithm == "plain" else curve for curve in curves)
    return replace(fabric, inside=replace(_found(fabric), nvls_efficiency=0.0), curves=plain)


def _pcie(gpu: str, text: str, load: Loader) -> Fabric:
    said = re.search(r"pcie\s*(?:gen)?\s*([345])", text)
    generation = said[1] if said else "5" if re.search(PCIE5, gpu) else "3" if re.search(PCIE3, gpu) else "4"
    found = load(f"pcie{generation}")
    clock = next((ghz for pattern, ghz in CLOCKS_GHZ if re.search(pattern, gpu)), PCIE_CLOCK_GHZ)
    inside = _found(found)
    return replace(found, inside=replace(inside, launch_s=inside.launch_s * math.sqrt(PCIE_CLOCK_GHZ / clock)))


def _bridged(gpu: str, pcie: Fabric, load: Loader) -> Fabric:
    """Islands of two on NVLink, joined by PCIe: every second edge of a ring is a bridge, so a PCIe link carries one way only."""
    rate = next((rate for pattern, rate in BRIDGE_GB_PER_S if re.search(pattern, gpu)), 0.0) * GB
    if not rate:
        raise UserError(f"no rate known of an NVLink bridge between {gpu}")
    pair, bridge = _found(pcie), _found(load("nvlink4-nvswitch" if re.search(PCIE5, gpu) else "nvlink3-nvswitch"))
    inside = replace(
        pair,
        bytes_per_s=rate,
        efficiency=bridge.efficiency,
        pair_efficiency=bridge.pair_efficiency,
        fill_s=bridge.fill_s,
        island=2,
        beyond_bytes_per_s=pair.bytes_per_s,
        beyond_efficiency=ONE_WAY,
    )
    return replace(pcie, inside=inside, curves=())


def _across(gpu: str, text: str, load: Loader) -> Fabric:
    far = text.partition("+")[2] or text
    name = next((fabric for pattern, fabric in ACROSSES if re.search(pattern, far)), None)
    if name is None:
        raise UserError("the fabric names no network between the nodes")
    found = load(name or _infiniband_of(gpu))
    if found.across is None:
        raise UserError(f"{found.name} describes no network")
    return replace(found, across=_rated(found.across, far))


def _infiniband_of(gpu: str) -> str:
    years = ((r"v100|p100", "edr-ib"), (r"a100|a800|a40", "hdr-ib"), (r"b300|gb300", "xdr-ib"))
    return next((name for pattern, name in years if re.search(pattern, gpu)), "ndr-ib")


def _rated(across: Across, text: str) -> Across:
    """The network with the NICs and the rate that the text gives."""
    several = re.search(r"(\d+)\s*[x×]\s*(\d+)\s*gb", text)
    if several:
        return _with_nics(across, int(several[1]), int(several[2]))
    rate = re.search(r"(\d+)\s*gb(?!/s)(?:it|ps)?(?:/s)?|(\d+)\s*gb/s", text)
    if not rate:
        return across
    gbit = int(rate[1] or rate[2])
    whole = not re.search(r"gb\S*\s*/\s*(gpu|nic|port)", text) and (across.name in SOLD_BY_NODE or gbit > FASTEST_NIC_GBIT)
    nics = 4 if gbit == NODE_GBIT_OF_FOUR_NICS and across.name == "efa" else across.nics
    return _with_nics(across, nics, gbit / nics) if whole else _with_nics(across, across.nics, gbit)


def _with_nics(across: Across, nics: float, gbit: float) -> Across:
    return replace(across, nics=nics, nic_bytes_per_s=gbit * GB / BITS_PER_BYTE)
