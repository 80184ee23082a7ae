"""The cluster on which a row of a table of collectives was measured, from columns of fixed words and numbers.

- `inside` names the links in a node, `inside_GBps` their rate one way per GPU; blank: the usual rate. A node has the usual number
of GPUs, even if fewer were used. An NVL72 is one node, even where its trays are counted as nodes; of several, the trays in use.
- `network` names the network between nodes, `nics_per_node` and `nic_gbit` its NICs; blank: those of the fabric's file, and in an
NVL72 one for each GPU. `nics_per_node` counts the NICs of what the row counts as a node.
- `sharp` says `yes` where the switches of the network may reduce, which only InfiniBand's do.
- A GPU that the catalog lacks is replaced by the usual GPU on such links.

Properties without a column have the defaults of a cluster: nodes share their leaf switches, a PCIe box has two sockets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import isclose

from ..config import catalog, load
from ..config.catalog import gpu_named
from ..config.fabric_files import outline
from ..config.suggestions import meant
from ..errors import UserError, did_you_mean, shown
from ..hardware.cluster import Cluster
from ..units import BITS_PER_BYTE, GB
from .csv_tables import Row, count, number


@dataclass(frozen=True, slots=True)
class Node:
    """The node that a word of the column `inside` stands for."""

    shape: str
    """The shape of the intra-node fabric, as `intra_node` of a cluster names it."""
    gb_per_s: float
    """The usual rate of a GPU, one way, in GB/s."""
    gpus: int
    """The usual number of GPUs in a node."""
    gpu: str
    """The usual GPU of such nodes."""


INSIDE = {
    "nvlink2-mesh": Node("cube-mesh", 150, 8, "v100-32gb"),
    "nvlink3-mesh": Node("fully-connected", 300, 4, "a100-80gb"),
    "nvlink3-nvswitch": Node("NVSwitch", 300, 8, "a100-80gb"),
    "nvlink4-mesh": Node("fully-connected", 450, 4, "gh200-96gb"),
    "nvlink4-nvswitch": Node("NVSwitch", 450, 8, "h100"),
    "nvlink5-nvswitch": Node("NVSwitch", 900, 8, "b200"),
    "nvlink5-nvl72": Node("NVSwitch", 900, 72, "gb200"),
    "nvlink-bridge-pairs": Node("PCIe", 0, 8, "a100-pcie-80gb"),
    "xgmi3-mesh": Node("fully-connected", 448, 8, "mi300x"),
    "pcie4": Node("PCIe", 31.5, 8, "l40s"),
    "pcie5": Node("PCIe", 63, 8, "rtx-pro-6000"),
}
RACK_GPUS = 72
INFINIBAND = ("-ib", "-ib-slow-p2p")
"""Ends of the names of fabrics whose switches may reduce."""
LABEL_TOLERANCE = 0.02
"""Relative tolerance of rates: PCIe 4.0 and 5.0 are sold as 32 and 64 GB/s, which is before encoding."""
P100_GB_PER_S = 80
"""Rate of a GPU with the four NVLinks of 20 GB/s of a P100; a V100 has six of 25 GB/s."""
BRIDGES_GB_PER_S = {"v100": (15.75, 50), "a100": (31.5, 300), "a40": (31.5, 56.25), "h100": (63, 300)}
"""Rates in GB/s of PCIe and of an NVLink bridge by GPU, one way: NVIDIA data sheets."""
COLUMNS = (
    "gpu", "gpus", "nodes", "gpus_per_node", "inside", "inside_GBps", "network", "nics_per_node", "nic_gbit", "sharp",
)  # fmt: skip
"""Columns that describe the machine."""


def cluster_of(row: Row) -> tuple[Cluster, int, int]:
    """The cluster of a row, and the numbers of GPUs and nodes in the measurement."""
    node, gpus, servers_per_node = INSIDE[word(row, "inside", INSIDE)], count(row, "gpus"), 1
    if row["gpus_per_node"].strip() and not row["nodes"].strip():
        nodes = -(-gpus // count(row, "gpus_per_node"))
    else:
        nodes = count(row, "nodes")
    if node.gpus == RACK_GPUS:
        domains = -(-gpus // RACK_GPUS)
        servers_per_node, nodes = -(-nodes // domains), domains
    if gpus < 2:
        raise UserError("gpus: 1, which has no other to talk to")
    gpu = known_gpu(row) or node.gpu
    used, is_rack = -(-gpus // nodes), node.gpus == RACK_GPUS
    per_node = used if is_rack and nodes > 1 else max(node.gpus, used)
    network = _network(row, nodes, per_node, servers_per_node, is_rack=is_rack) if nodes > 1 else {}
    sizes = {"gpu": gpu, "gpus_per_node": per_node, "nodes": nodes}
    found = load.cluster({**sizes, **_inside(row, node, gpu), **network})
    sharp = word(row, "sharp", ("yes", "no"), "no") == "yes"
    if sharp and network and not network["fabric"].endswith(INFINIBAND):
        raise UserError(f"sharp: yes, but the switches of {network['fabric']} reduce nothing, as those of InfiniBand may")
    return replace(found, sharp=sharp), gpus, nodes


def known_gpu(row: Row) -> str:
    """The catalog's name of the GPU of a row; empty for an unknown GPU, which the usual GPU on such links replaces."""
    try:
        return gpu_named(row["gpu"])
    except UserError:
        return ""


def word(row: Row, column: str, known: Collection[str], usual: str = "") -> str:
    """The word in a cell, checked against the known words. A blank cell has the word `usual`, if there is one."""
    written = catalog.plain(row[column]) or usual
    if not written:
        raise UserError(f"{column} is blank")
    if (found := meant(written, known)) is None:
        raise UserError(f"{column}: {shown(row[column])} is not known; {did_you_mean(written, known)}")
    return found


def _inside(row: Row, node: Node, gpu: str) -> dict[str, object]:
    """The fields of a cluster that describe the links between the GPUs of a node."""
    rate = _rate(row, "inside_GBps", node.gb_per_s)
    if node.shape == "cube-mesh":
        links = 4 if rate <= P100_GB_PER_S else 6
        return {"intra_node": f"cube-mesh {links}x{rate / links:g} GB/s"}
    if node.shape != "PCIe":
        return {"intra_node": f"{node.shape} {rate:g} GB/s"}
    if node.gb_per_s:
        return {"intra_node": f"PCIe {rate:g} GB/s"}
    chip = gpu.partition("-")[0]
    if chip not in BRIDGES_GB_PER_S:
        raise UserError(f"inside: no NVLink bridge is known between {gpu}")
    pcie, bridge = BRIDGES_GB_PER_S[chip]
    return {"intra_node": f"PCIe {pcie:g} GB/s", "box": {"bridge": f"{rate or bridge:g} GB/s"}}


def _network(row: Row, nodes: int, gpus: int, servers_per_node: int, *, is_rack: bool) -> dict[str, str]:
    """The fields of a cluster that describe the network between its nodes."""
    if not row["network"].strip():
        raise UserError(f"network is blank, and the row is of {nodes} nodes")
    across_of = {name: across for name in catalog.files("fabrics") if (across := outline(name).across)}
    name = word(row, "network", across_of)
    usual = gpus / servers_per_node if is_rack else min(across_of[name].nics, gpus)
    nics = (count(row, "nics_per_node") if row["nics_per_node"].strip() else usual) * servers_per_node
    gbit = _rate(row, "nic_gbit", across_of[name].nic_bytes_per_s * BITS_PER_BYTE / GB)
    return {"inter_node": f"{nics:.0f}x{gbit:g} Gbit/s", "shape": "rail-optimized", "fabric": name}


def _rate(row: Row, column: str, usual: float) -> float:
    """The positive number in a cell, or the usual value for a blank cell."""
    if not row[column].strip():
        return usual
    found = number(row[column])
    if not found > 0:
        raise UserError(f"{column}: {shown(row[column])} is not a positive number")
    return usual if isclose(found, usual, rel_tol=LABEL_TOLERANCE) else found
