"""The cluster that a row of a table of collectives was measured on, from columns of fixed words and numbers.

- `inside` names the links in a node, `inside_GBps` their rate one way per GPU; blank: the usual one. A node has as many GPUs as
  is usual there, however few of them were used. An NVL72 is one node, whatever number of trays it is counted as.
- `network` names the network between nodes, `nics_per_node` and `nic_gbit` its NICs; blank: those of the fabric's file.
- `sharp` says `yes` where the switches of the network may reduce.
- A GPU that the catalog has not is taken for the one that usually sits on such links.

What a row cannot say is as in a cluster that does not say it: nodes share their leaf switches, a PCIe box has two sockets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import isclose

from ..config import catalog, load
from ..config.catalog import gpu_named
from ..errors import UserError, did_you_mean, shown
from ..fabrics.policy import outlined
from ..hardware.cluster import Cluster
from ..units import BITS_PER_BYTE, GB
from .csv_tables import Row, count, number


@dataclass(frozen=True, slots=True)
class Node:
    """What a word of the column `inside` means."""

    shape: str
    """The shape of a node's inside, as a cluster's `intra_node` writes it."""
    gb_per_s: float
    """The usual rate of a GPU, one way."""
    gpus: int
    """How many a node usually has."""
    gpu: str
    """The GPU that usually sits there."""


INSIDE = {
    "nvlink2-mesh": Node("cube-mesh", 150, 8, "v100-32gb"),
    "nvlink3-mesh": Node("fully-connected", 300, 4, "a100-80gb"),
    "nvlink3-nvswitch": Node("NVSwitch", 300, 8, "a100-80gb"),
    "nvlink4-mesh": Node("fully-connected", 450, 4, "gh200-96gb"),
    "nvlink4-nvswitch": Node("NVSwitch", 450, 8, "h100"),
    "nvlink5-nvswitch": Node("NVSwitch", 900, 8, "b200"),
    "nvlink5-nvl72": Node("NVSwitch", 900, 72, "gb200"),
    "nvlink-bridge-pairs": Node("PCIe", 0, 8, "a100-pcie-80gb"),
    "pcie4": Node("PCIe", 31.5, 8, "l40s"),
    "pcie5": Node("PCIe", 63, 8, "rtx-pro-6000"),
}
RACK_GPUS = 72
LABEL_TOLERANCE = 0.02
"""PCIe 4.0 and 5.0 are sold as 32 and 64 GB/s, which is before encoding."""
P100_GB_PER_S = 80
"""NVLinks of 20 GB/s, four of them; those of a V100 are six of 25."""
BRIDGES_GB_PER_S = {"v100": (15.75, 50), "a100": (31.5, 300), "a40": (31.5, 56.25), "h100": (63, 300)}
"""PCIe and an NVLink bridge by the GPU, one way: NVIDIA data sheets."""
COLUMNS = (
    "gpu", "gpus", "nodes", "gpus_per_node", "inside", "inside_GBps", "network", "nics_per_node", "nic_gbit", "sharp",
)  # fmt: skip
"""What describes the machine."""


def cluster_of(row: Row) -> tuple[Cluster, int, int]:
    """The cluster of a row, and over how many of its GPUs and nodes it was measured."""
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
    try:
        gpu = gpu_named(row["gpu"])
    except UserError:
        gpu = node.gpu
    network = _network(row, nodes, node.gpus // servers_per_node, servers_per_node) if nodes > 1 else {}
    sizes = {"gpu": gpu, "gpus_per_node": max(node.gpus, -(-gpus // nodes)), "nodes": nodes}
    found = load.cluster({**sizes, **_inside(row, node, gpu), **network})
    return replace(found, sharp=word(row, "sharp", ("yes", "no"), "no") == "yes"), gpus, nodes


def word(row: Row, column: str, known: Collection[str], usual: str = "") -> str:
    """The word in a cell, one of those known; the usual one where it is blank, if there is one."""
    written = catalog.plain(row[column]) or usual
    if not written:
        raise UserError(f"{column} is blank")
    if written not in known:
        raise UserError(f"{column}: {shown(row[column])} is not known; {did_you_mean(written, known)}")
    return written


def _inside(row: Row, node: Node, gpu: str) -> dict[str, object]:
    """The fields of a cluster that say what joins the GPUs of a node."""
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


def _network(row: Row, nodes: int, gpus: int, servers_per_node: int) -> dict[str, object]:
    """The fields of a cluster that say what joins its nodes."""
    if not row["network"].strip():
        raise UserError(f"network is blank, and the row is of {nodes} nodes")
    across_of = {name: across for name in catalog.files("fabrics") if (across := outlined(name).across)}
    name = word(row, "network", across_of)
    nics = _rate(row, "nics_per_node", min(across_of[name].nics, gpus)) * servers_per_node
    gbit = _rate(row, "nic_gbit", across_of[name].nic_bytes_per_s * BITS_PER_BYTE / GB)
    return {"inter_node": f"{nics:.0f}x{gbit:g} Gbit/s", "shape": "rail-optimized", "fabric": name}


def _rate(row: Row, column: str, usual: float) -> float:
    """The positive number of a cell, or the usual one."""
    if not row[column].strip():
        return usual
    found = number(row[column])
    if not found > 0:
        raise UserError(f"{column}: {shown(row[column])} is no positive number")
    return usual if isclose(found, usual, rel_tol=LABEL_TOLERANCE) else found
