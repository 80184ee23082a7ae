"""From words to links: what "H100-SXM" and "NVLink4 NVSwitch + NDR IB 400Gb/GPU" mean to the simulator.

This is the one place where tables of measurements, whose machines are described in free text, meet the fabrics of
topologies/fabrics. The rules, in order:

- **Inside a node** the GPU decides (`INSIDES`), and for one that is not known the generation of NVLink in the fabric.
  "bridge" or "pairs" in the fabric means NVLink between two GPUs and PCIe between pairs; "PCIe4" without NVLink, or a GPU
  that is sold as a card (`CARDS`), means PCIe alone, where the GPU's clock scales the launch; a rate such as "200GB/s" or
  "4x25GB/s" replaces that of the GPU if it is lower. A rate that is no more than a link's, one way or both, or "per link", is
  that of each of its links; without a switch, one that is no more than a pair's is that to each of its peers.
  GH200 has no NVSwitch unless the fabric names one: nothing adds up on the way; nor has another GPU whose fabric says "mesh",
  "all-to-all", "per pair" or "no NVSwitch". V100 has none either; in a DGX-2 it has, and no GPU is wired to another. Lanes
  ("x8") count. Anything else is not guessed.
- **A node is an NVLink domain**: "NVL72" makes one of 72 GPUs, however many trays they sit in, and so does a GB200 or GB300
  whose fabric names no network.
- **Across nodes** the text after the first "+" decides, or the clauses that name a network: `described_networks`.
- **Algorithms**: "nvls", "collnet" and "sharp", "tree" and "ring" mean themselves; "custom", "one-shot" and the like a kernel
  that reads its peers' memory (`direct`); "int8", "no NVLS" and NVLS_ENABLE=0 whatever the library picks without the switch's
  help (`plain`), for switches do not add up integers of a byte; anything else, such as "auto", "ofi-tuner" or "median of 131
  runs", what the library picks.
- A machine that is not named ("unnamed", an empty GPU, "see source") is not guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...costs.curves import Curve
from ...costs.links import Across, Inside
from ...errors import UserError
from ...units import BITS_PER_BYTE, GB
from . import fabrics
from .cluster_links import PCIE_CLOCK_GHZ, clocked, without_switch
from .described_networks import USUAL_GPUS, halves, network, node_of
from .described_rates import Rate, of_links
from .fabrics import Fabric, Loader

INSIDES = (
    (r"gb[23]00", "nvlink5-nvswitch"),
    (r"pcie|pci-e|nvl\b", ""),
    (r"b[23]00", "nvlink5-nvswitch"),
    (r"gh200|h[128]00|h20\b", "nvlink4-nvswitch"),
    (r"a[18]00", "nvlink3-nvswitch"),
    (r"v100", "nvlink2-mesh"),
    (r"mi3\d\d", "xgmi-mi300"),
)
"""What stands in the name of a GPU, and the fabric inside its nodes; nothing: PCIe."""
CARDS = (
    r"rtx|geforce|gtx|quadro|titan|\b[2345]0[5-9]0(d|ti)?\b|\b6000\b|\bl(2|4|20|40s?)\b|\ba(2|10g?|16|30|40)\b|\bb40\b"
    r"|\ba[2456][05]00\b|\bt4g?\b|\bp(4|40|100)\b|\bk80\b|\bm60\b|\bmi(50|60|100|210)\b"
)
"""GPUs that sit in a PCIe slot and have no other links, unless a bridge is named."""
GENERATIONS = (
    (r"nvlink\s*-?(?:v|gen)?\s*5", "nvlink5-nvswitch"),
    (r"nvlink\s*-?(?:v|gen)?\s*4", "nvlink4-nvswitch"),
    (r"nvlink\s*-?(?:v|gen)?\s*3", "nvlink3-nvswitch"),
    (r"nvlink\s*-?(?:v|gen)?\s*[12]", "nvlink2-mesh"),
)
"""What stands in the fabric of a GPU that is not known."""
OWN_GB_PER_S = ((r"h800|a800", 200.0), (r"p100", 80.0), (r"mi35\d", 537.6))
"""What is in the name of a GPU whose links are not those of its generation, GB/s per direction: half of the 400 GB/s and
160 GB/s both ways of NVIDIA's data sheets, seven times the 76.8 GB/s of AMD's."""
LINK_GB_PER_S = ((r"xgmi", 0.0), (r"nvlink5", 50.0), (r"nvlink", 25.0))
"""What is in the name of a fabric, and the rate of one of its links, per direction; 0: that of a pair."""
SWITCH = r"(?<!no )(?<!without )nv-?(link)?\s*switch|dgx-?2\b|nvl-?(?!2\b|4\b)\d"
SWITCHLESS = r"gh200"
EACH_PAIR = r"(?:per |/|each |every )pair|pair by pair"
MESH = r"(?<!cube )(?<!cube-)mesh|all-to-all|fully[- ]connected|(no|without) nv-?(link)?\s*switch|\bquad\b|" + EACH_PAIR
SWITCHLESS_MESH = 4
"""GPUs that sit in fours, each wired to each, without an NVSwitch, unless the fabric says otherwise."""
RACK, RACK_GPUS = (r"gb[23]00", r"mnnvl|multi-?node nvlink"), 72
"""What is in the name of a GPU, or in its fabric, if its nodes are trays of one NVLink domain, and how many GPUs that joins."""
PCIE5 = r"h100|h200|rtx ?pro|b40|\b50[5-9]0"
PCIE3 = r"v100|p100|\bt4g?\b|\bp40?\b|\b[km][68]0\b|rtx ?20|gtx"
NCCL_GENERATIONS = (
    (r"b[23]00|blackwell|rtx ?pro|b40\b|\b50[5-9]0", "blackwell"),
    (r"h[128]00|h20\b", "hopper"),
    (r"v100|p100|\bt4g?\b|\bp40?\b|\b[km][68]0\b|rtx ?20|gtx|quadro|titan", "volta"),
    (r"", "ampere"),
)
"""What is in the name of a GPU, and whose constants NCCL's cost model has for it; AMD's library is taken to choose as on A100."""
LANES = 16
CLOCKS_GHZ = (
    (r"rtx ?pro|blackwell", 2.6),
    (r"l40|l20|40[89]0|6000 ?ada|ada", 2.5),
    (r"\b50[89]0", 2.4),
    (r"\bl4\b", 2.0),
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
UNNAMED = r"\s*|unnamed|unknown|see source|n/?a|\?"


@dataclass(frozen=True, slots=True)
class Machine:
    """The links that a row of a table was measured on, and the curves that speak of them."""

    inside: Inside
    across: Across | None
    nodes: int
    """NVLink domains."""
    curves: tuple[Curve, ...]


def machine(gpu: str, fabric: str, gpus: int, nodes: int, load: Loader = fabrics.load) -> Machine:
    """The links of a GPU and a fabric in words. Raises `UserError`, with the reason, for what says too little."""
    if re.fullmatch(UNNAMED, gpu, re.IGNORECASE):
        raise UserError("the GPU is not named")
    if re.fullmatch(UNNAMED, fabric, re.IGNORECASE):
        raise UserError("the fabric is not named")
    words, gpu, fabric = fabric, gpu.lower(), re.sub(r"pci(-e\b|[- ]express)", "pcie", fabric.lower())
    within = _inside(gpu, fabric, of_links(halves(words)[0]), load)
    generation = next(name for pattern, name in NCCL_GENERATIONS if re.search(pattern, gpu))
    within = replace(within, inside=replace(_found(within), generation=generation))
    domain = _domain(gpu, fabric)
    nodes = min(gpus, -(-gpus // domain) if domain else nodes)
    if nodes < 2:
        return Machine(_found(within), None, 1, within.curves)
    node = node_of(gpu, -(-gpus // nodes), rack=domain > USUAL_GPUS)
    across, curves = network(gpu, words, node, load)
    return Machine(_found(within), across, nodes, within.curves + curves)


def algorithm(words: str, dtype: str = "") -> str:
    """The algorithm that a table's words mean."""
    known = (
        (r"custom|(one|two)-?_?shot|symmetric|msccl", "direct"),
        (r"(no|without)[- ]nvls|nvls\w*[ :=]+(0|off|disabled)|int8", "plain"),
        ("nvls", "nvls"),
        (r"(?<!no )(?<!without )(collnet|sharp)", "sharp"),
    )
    for pattern, name in (*known, (r"\btree", "tree"), (r"\bring", "ring")):
        if re.search(pattern, words.lower()):
            return name
    return "plain" if re.search(r"u?int8", dtype.lower()) else "auto"


def _found(fabric: Fabric) -> Inside:
    if fabric.inside is None:
        raise UserError(f"{fabric.name} describes no links inside a node")
    return fabric.inside


def _domain(gpu: str, text: str) -> int:
    """GPUs of an NVLink domain, if the words name one; 0 where it is a node. Two half racks are one."""
    said = re.search(r"nvl-?([1-9]\d*)", text)
    if said and not re.search(r"nvl-?36x2", text):
        return int(said[1])
    joined = re.search(RACK[1], text) or (re.search(RACK[0], gpu) and not halves(text)[1])
    return RACK_GPUS if said or joined else 0


def _inside(gpu: str, text: str, said: Rate | None, load: Loader) -> Fabric:
    near = halves(text)[0]
    paired = re.search("pair", re.sub(EACH_PAIR, "", text))
    bridged = (paired or "bridge" in text) and not re.search(SWITCHLESS, gpu)
    if bridged or ("pcie" in near and "nvlink" not in near):
        return _bridged(gpu, text, _pcie(gpu, text, load), load) if bridged else _pcie(gpu, near, load)
    name = _family(gpu, near)
    if not name:
        return _pcie(gpu, text, load)
    found = load(name)
    inside = _found(found)
    if re.search(SWITCH, near):
        found = replace(found, inside=replace(inside, mesh=0))
    elif re.search(SWITCHLESS, gpu):
        found = without_switch(found)
        alone = paired or re.search(r"nvl-?2\b", near)
        found = replace(found, inside=replace(_found(found), mesh=0 if alone else SWITCHLESS_MESH))
    elif re.search(MESH, near) and not name.startswith("xgmi"):
        found = without_switch(replace(found, inside=replace(inside, mesh=SWITCHLESS_MESH, pair_bytes_per_s=0.0)))
    return _rated(found, gpu, said, both=re.search(r"bi-?dir|both (way|dir)", near) is not None)


def _family(gpu: str, near: str) -> str:
    """The fabric inside the nodes of a GPU; nothing for PCIe. Raises where neither the GPU nor the words tell."""
    if "p100" in gpu and ("nvlink" in near or "sxm" in gpu):
        return "nvlink2-mesh"
    known = next((fabric for pattern, fabric in (*INSIDES, (CARDS, "")) if re.search(pattern, gpu)), None)
    known = next((fabric for pattern, fabric in GENERATIONS if re.search(pattern, near)), None) if known is None else known
    if known is None:
        raise UserError(f"no links known inside a node of {gpu}: name PCIe4, NVLink4 NVSwitch or the like")
    return known


def _rated(fabric: Fabric, gpu: str, said: Rate | None, *, both: bool) -> Fabric:
    """The fabric at the rate of its GPU, or that in the words, if it is lower."""
    inside = _found(fabric)
    own = next((rate for pattern, rate in OWN_GB_PER_S if re.search(pattern, gpu)), inside.bytes_per_s / GB)
    rate = min(own, _of_gpu(said, own, inside, both=both)) if said else own
    return replace(fabric, inside=replace(inside, bytes_per_s=rate * GB))


def _of_gpu(said: Rate, own: float, inside: Inside, *, both: bool) -> float:
    """GB/s of a GPU by a rate in words, which may be that of one of its links, or without a switch that to one of its peers."""
    ways = 2 if both else 1
    one, total = said.gbit / BITS_PER_BYTE / ways, said.total_gbit / BITS_PER_BYTE / ways
    pair = own / (inside.mesh - 1) if inside.mesh else 0.0
    link = next(rate for pattern, rate in (*LINK_GB_PER_S, ("", 0.0)) if re.search(pattern, inside.name)) or pair
    if said.per == "link" or (not said.count and one <= 2 * link):
        return own * min(1.0, one / link)
    if inside.mesh and total <= max(pair, 2 * link):
        return own * min(1.0, total / pair)
    return total


def _pcie(gpu: str, text: str, load: Loader) -> Fabric:
    said = re.search(r"(?:pcie|gen)\s*-?(?:gen|v)?\s*-?([345])", text)
    lanes = re.search(r"(?<![\w.])x\s?(16|8|4)\b", text)
    generation = said[1] if said else "5" if re.search(PCIE5, gpu) else "3" if re.search(PCIE3, gpu) else "4"
    found = load(f"pcie{generation}")
    clock = next((ghz for pattern, ghz in CLOCKS_GHZ if re.search(pattern, gpu)), PCIE_CLOCK_GHZ)
    inside = _found(found)
    rate = inside.bytes_per_s * (int(lanes[1]) / LANES if lanes else 1.0)
    return clocked(replace(found, inside=replace(inside, bytes_per_s=rate)), clock)


def _bridged(gpu: str, text: str, pcie: Fabric, load: Loader) -> Fabric:
    """Islands of two, or as the words say, on NVLink, joined by PCIe: every second edge of a ring is a bridge, so a PCIe link
    carries one way only.
    """
    rate = next((rate for pattern, rate in BRIDGE_GB_PER_S if re.search(pattern, gpu)), 0.0) * GB
    if not rate:
        raise UserError(f"no rate known of an NVLink bridge between {gpu}")
    ways = re.search(r"([2-8])-?way", text)
    pair, bridge = _found(pcie), _found(load("nvlink4-nvswitch" if re.search(PCIE5, gpu) else "nvlink3-nvswitch"))
    inside = replace(
        pair,
        bytes_per_s=rate,
        efficiency=bridge.efficiency,
        pair_efficiency=bridge.pair_efficiency,
        fill_s=bridge.fill_s,
        island=int(ways[1]) if ways else 2,
        beyond_bytes_per_s=pair.bytes_per_s,
        beyond_efficiency=ONE_WAY,
    )
    return replace(pcie, inside=inside, curves=())
