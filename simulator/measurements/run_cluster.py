"""The cluster of a row of a table of training runs: its GPUs, their links inside a node, and the network between nodes.

GPUs are joined by NVLink in domains of equal size, which are the nodes of the cluster. Cards without NVLink, and those with
bridges between pairs, are in servers with PCIe; MI300X and their kin are each wired to each. A blank cell of a rate has the usual
rate of the GPU. The network is read from `inter_node`: its kind by name, its NICs as in "8x400Gb", whose rate is that of
`nic_gbit_per_node` if the row has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..config import catalog, shipped_fits
from ..config.catalog import gpu_named, memory_gb_in
from ..config.cluster_file import MOST_GPUS
from ..config.document import read
from ..config.fabric_files import outline
from ..errors import UserError, shown
from ..units import BITS_PER_BYTE, GB, GIB
from .csv_tables import Row, count, number

USUAL_GPUS_PER_NODE = 8
IN_RACKS = {"gb200": (4, 72), "gb300": (4, 72)}
"""Usual numbers of GPUs of a node and of an NVLink domain, for GPUs whose domains are racks of several nodes."""
NIC_GBIT = {"v100": 100, "a100": 200, "a800": 200}
USUAL_NIC_GBIT = 400
"""Rate of the NIC that a GPU usually has."""
NVLINK_GBPS = {
    "v100": 150, "a100": 300, "a800": 200, "h100": 450, "h800": 200, "h20": 450, "h200": 450, "gh200": 450, "b200": 900,
    "b300": 900, "gb200": 900, "gb300": 900,
}  # fmt: skip
"""Rate of the NVLinks that modules of a GPU usually have, in one direction."""
MESH_GBPS = {"mi300x": 448, "mi325x": 448, "mi355x": 537.6}
"""Rate of seven links of Infinity Fabric, one to each other GPU of a node, in one direction: AMD data sheets (2023-25)."""
PCIE_GBPS = {
    15.75: ("p100-pcie", "p4", "t4", "v100-pcie"),
    31.5: ("a10", "a100-pcie", "a30", "a40", "a6000", "l4", "l40", "l40s", "mi210", "rtx-3090", "rtx-4090"),
    63.0: ("h100-nvl", "h100-pcie", "rtx-5090", "rtx-pro-6000"),
}
"""Cards, without the size of their memory, by the rate of 16 lanes of PCIe 3, 4 or 5 in one direction: data sheets of NVIDIA and
AMD."""
PCIE_OF_MODULES = {"v100": 15.75, "a100": 31.5, "a800": 31.5, "h100": 63.0, "h800": 63.0, "h200": 63.0, "h20": 63.0}
"""Rate of PCIe of GPUs that usually have NVLink, for rows that say that they had none."""
NETWORKS: Mapping[str, tuple[str, ...]] = {
    "roce": ("roce",), "efa": ("efa",), "tcpxo": ("tcpxo", "fastrak"), "tcpx": ("tcpx",), "tcp": ("tcp",),
    "slingshot-11": ("slingshot",), "slingshot-10": ("slingshot-10", "slingshot 10"),
}  # fmt: skip
"""Measured fabrics, and the names of their networks in `inter_node`, of which longer ones go first. InfiniBand, and what has no
name here, is the measured fabric of the nearest rate."""
OF_ONE_PROVIDER = ("tcpx", "tcpxo", "slingshot-10", "slingshot-11")
"""Networks that always have the NICs of their measured fabric."""
NICS = re.compile(r"(?<![\w.])([1-9]\d?) ?[xX\u00d7] ?(?:(\d+(?:\.\d+)?) ?(G(?:B|iB|[bB]ytes?)(?:/s|ps)?\b)?)?")
"""Number of NICs, and the rate of one, in GB/s where it says so and else in Gbit/s: "8x400Gb", "4 x 25 GB/s", "4x Omni-Path"."""
MOST_NIC_GBIT = 1600
"""More than any NIC has: a rate beyond is that of a node, or in other units than its words say."""
GENERATION = re.compile(r"(?<![a-wyz])(edr|hdr100|hdr200|hdr|ndr200|ndr400|ndr|xdr)(?![a-z0-9])")
GENERATION_GBIT = {"edr": 100, "hdr100": 100, "hdr": 200, "hdr200": 200, "ndr200": 200, "ndr": 400, "ndr400": 400, "xdr": 800}
"""Rate of a NIC by the generation of InfiniBand."""
NO_NVLINK = re.compile(r"pcie|pci-e|pci express|none|no nvlink", re.IGNORECASE)
MEMORY_TOLERANCE = 0.05
"""Relative difference of memory sizes that are called the same: 80 GB are 80 GiB, and a GPU of 192 GB may show 180."""


class Machine(NamedTuple):
    """The links between the GPUs of a node, as fields of a cluster, and the number of GPUs of a domain and of a server."""

    links: dict[str, Any]
    domain: int
    per_node: int


def gpu_of(row: Row) -> str:
    """The name of the GPU of a row in the catalog: the model, or else what the source calls it."""
    name = catalog.plain(row["gpu_model"].strip() or row.get("gpu", ""))
    if not name:
        raise UserError("gpu_model, gpu: blank, the row has no GPU")
    return name if name in catalog.files("gpus") else gpu_named(name)


def cluster_of(row: Row) -> dict[str, Any]:
    """The cluster of a row: domains of equal size, joined by the NICs of their nodes."""
    gpus, gpu, machine = count(row, "gpus"), gpu_of(row), machine_of(row)
    if gpus > MOST_GPUS:
        raise UserError(f"gpus: {gpus} are more than one simulation takes")
    domains = _domains(row, gpus, machine.domain)
    cluster = {"gpu": gpu, "gpus_per_node": gpus // domains, "nodes": domains, **machine.links}
    if domains == 1:
        return cluster
    return {**cluster, "shape": "rail-optimized", "nodes_per_pod": domains, **_network(row, gpus // domains, machine.per_node)}


def machine_of(row: Row) -> Machine:
    """The node of a row. NVLink joins the GPUs of a domain; cards, and GPUs of which a row says so, have PCIe only, or bridges
    between pairs."""
    gpu, per_node, domain = gpu_of(row), *_node_and_domain(row)
    chip, said = gpu.partition("-")[0], row["nvlink_oneway_GBps"].strip()
    pcie = next((rate for rate, cards in PCIE_GBPS.items() if _without_memory(gpu) in cards), None)
    stated = number(said) if said else None
    if stated is not None and not (stated > 0 or (stated == 0 and pcie)):
        raise UserError(f"nvlink_oneway_GBps: {shown(said)} is not a positive number")
    if chip in MESH_GBPS:
        return Machine({"intra_node": f"fully-connected {stated or MESH_GBPS[chip]:g} GB/s"}, max(domain, per_node), per_node)
    if pcie and (not stated or stated <= pcie * (1 + MEMORY_TOLERANCE)):
        return Machine({"intra_node": f"PCIe {pcie:g} GB/s"}, per_node, per_node)
    if pcie and domain == 2 and stated:
        return Machine({"intra_node": f"PCIe {pcie:g} GB/s", "box": {"bridge": f"{stated:g} GB/s"}}, per_node, per_node)
    has_none = domain < 2 <= per_node or (NO_NVLINK.search(row["intra_node"]) and "nvlink" not in row["intra_node"].lower())
    if stated is None and has_none and chip in PCIE_OF_MODULES:
        return Machine({"intra_node": f"PCIe {PCIE_OF_MODULES[chip]:g} GB/s"}, per_node, per_node)
    if stated is None and chip not in NVLINK_GBPS:
        raise UserError(f"nvlink_oneway_GBps: blank, and no usual rate of {gpu} is known")
    return Machine({"intra_node": f"NVSwitch {stated or NVLINK_GBPS[chip]:g} GB/s"}, domain, per_node)


def notes_on_cluster(row: Row) -> Iterator[str]:
    """Notes on GPUs and links that differ from the words of a row, or that it does not state."""
    words, gpu = row["gpu_model"].strip() or row.get("gpu", ""), gpu_of(row)
    stated_gb, held = memory_gb_in(words), shipped_fits.gpu(gpu).memory_bytes
    if stated_gb and gpu != catalog.plain(words) and not any(_is_alike(stated_gb, held / unit) for unit in (GB, GIB)):
        yield f"gpu: {shown(words)} is taken for {gpu}, which has {held / GIB:.0f} GiB"
    (_, domain, per_node), gpus = machine_of(row), count(row, "gpus")
    if domain < min(per_node, gpus):
        yield f"nvlink_domain: {domain} of {per_node} GPUs of a node; others are reached over NICs"
    domains = _domains(row, gpus, domain)
    if domains > -(-gpus // domain) and gpus // domains < domain // 2:
        yield f"gpus: {gpus} do not divide by domains of {domain}; {domains} of {gpus // domains} are taken"
    if domains > 1:
        yield from _notes_on_network(row, str(cluster_of(row)["inter_node"]))


def _notes_on_network(row: Row, counts: str) -> Iterator[str]:
    words, stated = row["inter_node"], number(row["nic_gbit_per_node"])
    nics, gbit = _rate_in(words)
    if words.strip() and not row["nic_gbit_per_node"].strip() and not gbit:
        yield f"inter_node: {shown(words)} states no rate of a NIC; {counts} counts"
    if nics and gbit and stated > 0 and not _is_alike(stated, nics * gbit):
        yield f"inter_node: {shown(words)} differs from nic_gbit_per_node; {counts} counts"


def host_of(row: Row) -> dict[str, Any]:
    """The memory of the CPUs of a node, which no column describes: that of a DGX with such GPUs, if the catalog has one."""
    dgx = catalog.files("clusters").get(f"dgx-{gpu_of(row).partition('-')[0]}")
    found = read(dgx).data.get("host") if dgx else None
    return {"host": found} if found else {}


def _is_alike(one: float, other: float) -> bool:
    return abs(one - other) <= MEMORY_TOLERANCE * other


def _without_memory(gpu: str) -> str:
    return re.sub(r"-\d+gb$", "", gpu)


def _domains(row: Row, gpus: int, domain: int) -> int:
    """The number of domains of equal size that hold the GPUs; if possible of whole groups of tensor parallelism."""
    fitting = [n for n in range(-(-gpus // domain), gpus + 1) if gpus % n == 0]
    tp = count(row, "tp")
    return next((n for n in fitting if gpus // n % tp == 0), fitting[0])


def _node_and_domain(row: Row) -> tuple[int, int]:
    """The numbers of GPUs of a node and of an NVLink domain."""
    in_rack, rack = IN_RACKS.get(gpu_of(row), (USUAL_GPUS_PER_NODE, 0))
    per_node = count_or(row, "gpus_per_node", min(count(row, "gpus"), in_rack))
    return per_node, count_or(row, "nvlink_domain", rack or per_node)


def _network(row: Row, gpus: int, per_node: int) -> dict[str, Any]:
    """The fields of a cluster for the NICs of `gpus` GPUs, of which `per_node` share a node's NICs."""
    usual_gbit, words = NIC_GBIT.get(gpu_of(row).partition("-")[0], USUAL_NIC_GBIT), row["inter_node"]
    said, nic_gbit = _rate_in(words)
    names = {word: fabric for fabric, known in NETWORKS.items() for word in known if word in words.lower()}
    fabric = names[max(names, key=len)] if names else ""
    if row["nic_gbit_per_node"].strip():
        gbit = number(row["nic_gbit_per_node"])
        nics = said or min(per_node, max(1, round(gbit / usual_gbit)))
    else:
        nics, usual = said or per_node, float(usual_gbit)
        if fabric in OF_ONE_PROVIDER and (across := outline(fabric).across):
            nics, usual = said or min(int(across.nics), per_node), across.nic_bytes_per_s * BITS_PER_BYTE / GB
        gbit = nics * (nic_gbit or usual)
    if not gbit > 0:
        raise UserError(f"nic_gbit_per_node: {shown(row['nic_gbit_per_node'])} is not a positive number")
    named = {"fabric": fabric} if fabric else {}
    return {"inter_node": f"{max(1, nics * gpus // per_node)}x{gbit / nics:g} Gbit/s", **named}


def _rate_in(words: str) -> tuple[int, float]:
    """The number of NICs and the rate of one in Gbit/s that the words for a network state; 0 for what they do not state."""
    said = NICS.search(words)
    rate = float(said[2]) * (BITS_PER_BYTE if said[3] else 1) if said and said[2] else 0.0
    generation = GENERATION.search(words.lower())
    usual = GENERATION_GBIT[generation[1]] if generation else 0
    return int(said[1]) if said else 0, rate if 0 < rate <= MOST_NIC_GBIT else usual


def count_or(row: Row, column: str, usual: int) -> int:
    """The whole number in a cell, or the usual one for a blank cell."""
    return count(row, column) if row[column].strip() else usual
