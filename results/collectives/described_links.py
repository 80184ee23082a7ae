"""What is known of links before anything is measured: rates on the label, where the fit starts, and what is set by hand.

What was set by hand to the log of a system of the table is kept apart by system, so that it can be left out with it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import published

from simulator.config.fabric_files import Fabric
from simulator.costs.collectives.link_constants import Across, Inside, Laws
from simulator.fabrics.policy import PCIE_CLOCK_GHZ
from simulator.units import GB, KIB, US_PER_S

US = 1 / US_PER_S
SLOW_FABRIC = "ndr-ib-slow-p2p"
"""The fabric of series whose large messages take several times what their NICs would."""

START = {"launch_s": 7 * US, "step_s": 1 * US, "efficiency": 0.78, "fill_s": 18 * US, "pair_efficiency": 0.8}
NVLS = 0.6
ONE_LOG = 0.3
"""Relative standard error of a rate that rests on one cluster's log, or on none. Where two logs speak of one constant they differ
by as much: trees over more than two nodes reach 0.53 (B200 on NDR) and 1.03 (GB200) of the rate of rings on NICs of one kind."""
STATIC: dict[str, Any] = {"crowd": 0.04}
"""Networks with fixed routes, after together's log of NDR: rings at 345, 323 and 291 GB/s on 2, 8 and 46 nodes, while trees and
reductions in switches do not slow down. (cluster00 reaches 98% of its NICs on ten nodes, GB200 98% on three domains.) The other
constants of that log stand in `Across` as what is usual: SHARP at 533 to 548 GB/s (`sharp_efficiency`), single flows at 43 GB/s
on 2 to 4 nodes, 26 on 8 and 14.6 on 16 to 64 (collisions). `tree_efficiency` is the geometric mean of its trees (0.53)
and those of GB200 (1.03, NVIDIA/nccl#1801), both after what the busiest node sends (`theory.tree_load`); `nvls_tree_efficiency`
lies between its 307 and 291 GB/s on 8 and 46 nodes (0.82) and the 345 of cluster00 on ten (0.99)."""
PLUGINS = {"efa": 5 * US, "gib": 2 * US, "tcpx": 30 * US, "tcpxo": 30 * US, "tcp": 5 * US}
"""What the library's transport adds to each crossing (assumed): aws-ofi-nccl over libfabric; gIB; GPUDirect-TCPX and FasTrak,
which stage chunks through buffers of their own; NCCL's helper threads for sockets. InfiniBand has no plug-in."""
REPORTED = {"efa": 75 * US}
"""What a plug-in tells NCCL of the latency of its network, whatever that is: aws-ofi-nccl 75 us on p4d and p5, 35 on p5en
(src/platform-aws.cpp of aws/aws-ofi-nccl@2daf7d3). NCCL's own transports for InfiniBand and sockets report none (src/transport of
NVIDIA/nccl, 2.28.3); of the others it is not known."""
PROXY_S = 6 * US
"""Where the cost of NCCL's proxy thread, GPU to NIC and NIC to GPU, starts."""


def inside(name: str, rate: float, about: str, source: str, **changes: Any) -> Fabric:
    return Fabric(name, about, "theoretical", source, inside=Inside(name, rate * GB, **{**START, **changes}))


def across(name: str, nic: float, nics: int, about: str, source: str, **changes: Any) -> Fabric:
    plugin = {"plugin_s": PLUGINS.get(name, 0.0), "reported_s": REPORTED.get(name, 0.0)}
    network = Across(name, nic * GB, nics, PROXY_S, **{"efficiency": 0.95, "uncertainty": ONE_LOG, **plugin, **changes})
    return Fabric(name, about, "theoretical", source, across=network)


LIBFABRIC = 0.5
LIBFABRIC_SOURCE = "all-to-all over libfabric: about half of the wire, set by hand"
"""aws-ofi-nccl over EFA and over Slingshot."""
STAGED = f"rendezvous: all-reduces of 16 GPUs in 0.98 and 1.06 ms at 16 and 32 MB ({published.TOOLKIT}), chunks of 512 KB"
STAGES: dict[str, Any] = {"rendezvous": 6.0, "rendezvous_bytes": 512 * KIB, "nvls": False}
"""GPUDirect-TCPX: whole chunks are staged, and Google's guides leave NCCL only rings and trees."""
NVIDIA = "rate: NVIDIA data sheets"
BY_HAND = f"set by hand after what users report ({published.RTX4090_ISSUES}; {published.RTX5090_ISSUE})"
PCI = f"rate: PCI-SIG; efficiencies, ramp and flags: {BY_HAND}"
DESCRIBED = (
    inside(
        "nvlink2-mesh",
        150,
        "NVLink 2 without a switch: V100 in a DGX-1, four neighbours each",
        NVIDIA,
        mesh=5,
        pair_bytes_per_s=25 * GB,
    ),
    inside("nvlink3-nvswitch", 300, "NVLink 3 through NVSwitches: DGX and HGX A100", NVIDIA),
    inside("nvlink4-nvswitch", 450, "NVLink 4 through NVSwitches: HGX H100 and H200", NVIDIA, nvls_efficiency=NVLS),
    inside("nvlink5-nvswitch", 900, "NVLink 5 through NVSwitches: HGX B200, NVL72", NVIDIA, nvls_efficiency=NVLS),
    inside("xgmi-mi300", 448, "Infinity Fabric: eight MI300X, seven links of 64 GB/s each", "rate: AMD data sheets", mesh=8),
    inside("pcie3", 15.75, "PCIe 3.0 x16 between the GPUs of a node, without NVLink", PCI, to_nics=True),
    inside("pcie4", 31.5, "PCIe 4.0 x16 between the GPUs of a node, without NVLink", PCI, to_nics=True),
    inside("pcie5", 63, "PCIe 5.0 x16 between the GPUs of a node, without NVLink", PCI, to_nics=True),
    across("edr-ib", 12.5, 4, "InfiniBand EDR (100 Gbit/s), four NICs per node", "rate: InfiniBand Trade Association", **STATIC),
    across("hdr-ib", 25, 8, "InfiniBand HDR (200 Gbit/s), one NIC per GPU", "rate: InfiniBand Trade Association", **STATIC),
    across("ndr-ib", 50, 8, "InfiniBand NDR (400 Gbit/s), one NIC per GPU", "rate: InfiniBand Trade Association", **STATIC),
    across(
        SLOW_FABRIC,
        50,
        8,
        "InfiniBand NDR (400 Gbit/s) with slow point-to-point transfers",
        "as ndr-ib; see results/collectives",
        **STATIC,
    ),
    across("xdr-ib", 100, 8, "InfiniBand XDR (800 Gbit/s), one NIC per GPU", "rate: InfiniBand Trade Association", **STATIC),
    across("roce", 50, 8, "RoCE v2 (400 Gbit/s Ethernet), one NIC per GPU", "rate: NVIDIA ConnectX-7", efficiency=0.92, **STATIC),
    across(
        "gib",
        50,
        8,
        "gIB of Google Cloud: RoCE v2 (400 Gbit/s Ethernet) in a3-ultra and a4, one NIC per GPU",
        "rate: Google Cloud; the library's plug-in: assumed",
        efficiency=0.92,
        **STATIC,
    ),
    across(
        "efa",
        50,
        8,
        "AWS EFA on p5 instances, 3,200 Gbit/s per node",
        f"rate: AWS EC2 P5; {LIBFABRIC_SOURCE}",
        efficiency=0.9,
        adaptive=True,
        alltoall=LIBFABRIC,
    ),
    across(
        "slingshot-11",
        25,
        4,
        "HPE Slingshot 11 (200 Gbit/s), one NIC per GPU, four GPUs per node",
        f"rate: HPE; rendezvous: how all-reduce grows with nodes below and above 2 KB ({published.ALPS}); {LIBFABRIC_SOURCE}",
        alltoall=LIBFABRIC,
        efficiency=0.92,
        rendezvous=4.0,
        rendezvous_bytes=4 * KIB,
        adaptive=True,
    ),
    across(
        "slingshot-10",
        12.5,
        2,
        "HPE Slingshot 10 (100 Gbit/s), two NICs per node",
        "rate: HPE; rendezvous and all-to-all: as slingshot-11",
        alltoall=LIBFABRIC,
        efficiency=0.92,
        rendezvous=4.0,
        rendezvous_bytes=4 * KIB,
        adaptive=True,
    ),
    across("tcpx", 25, 4, "GPUDirect-TCPX of Google Cloud: a3-high", f"rate: Google Cloud; {STAGED}", efficiency=0.8, **STAGES),
    across("tcpxo", 25, 8, "GPUDirect-TCPXO of Google Cloud: a3-mega", f"rate: Google Cloud; {STAGED}", efficiency=0.9, **STAGES),
    across("tcp", 12.5, 1, "Ethernet with TCP sockets at 100 Gbit/s", "rate: the standard", efficiency=0.6, rendezvous=3.0),
)
WIRE_S = {
    **dict.fromkeys(("edr-ib", "hdr-ib", "ndr-ib", SLOW_FABRIC, "xdr-ib"), 1.5 * US),
    "roce": 2.5 * US,
    "gib": 2.5 * US,
    "efa": 15 * US,
    **dict.fromkeys(("slingshot-10", "slingshot-11"), 2 * US),
    "tcpx": 10 * US,
    "tcpxo": 10 * US,
    "tcp": 25 * US,
}
"""One message between two nodes without NCCL, as MPI or libfabric ping-pong shows it: InfiniBand 1 to 2 us, RoCE a little more,
EFA 15 us (Shalev et al., IEEE Micro 2020), Slingshot 2 us (De Sensi et al., SC 2020), sockets 20 to 40 us."""
CLOCK_GHZ = {
    "nvlink2-mesh": 1.53,
    "nvlink3-nvswitch": 1.41,
    "nvlink4-nvswitch": 1.98,
    "nvlink5-nvswitch": 1.965,
    "xgmi-mi300": 2.1,
    **dict.fromkeys(("pcie3", "pcie4", "pcie5"), PCIE_CLOCK_GHZ),
}
"""Boost clocks of the GPUs that sit on these links, from their data sheets: half of launching is
work of the GPU and goes with them, half is memory and does not: so it goes with their root."""
ONE_DIE = ("nvlink2-mesh", "nvlink3-nvswitch", "nvlink4-nvswitch")
"""Fabrics of GPUs of one die, as cards are."""
CYCLES = ("launch_s", "step_s", "fill_s")
"""What takes as many cycles on one GPU of one die as on another: A100 and H100 launch in 11 and 10 thousand as fitted, and step
in 1.4 and 1.5 thousand. B200, of two dies, takes half as many again."""
RDMA = ("edr-ib", "hdr-ib", "ndr-ib", SLOW_FABRIC, "xdr-ib", "roce", "gib", "slingshot-10", "slingshot-11")
"""NICs that do the whole transport themselves: their proxy threads are alike."""
PCIE_STEP_S = 0.4 * US
"""A PCIe hop goes through a root complex or a switch, an NVLink hop through neither: the usual difference of their latencies."""
PCIE: dict[str, float] = {"fill_s": 1 * US, "flags": 3.0}
"""One or two channels fill such a link, so the others hide what a piece waits for: the ramp is short. Small messages go as
words with flags, whose rate NCCL itself puts at a third to a quarter (tuning.cc): up to 256 KiB, as both servers of the table
show."""
USERS = (18 / 31.5, 22 / 31.5, 26 / 31.5, 35 / 63, 28 / 63)
"""Shares of the rate that rings reach by users of NCCL: four RTX 4090 (nccl issue 1603, open-gpu-kernel-modules issue 36 of
tinygrad), four and eight RTX 5090 (nccl issue 1639). PCIe boxes share root complexes and, where peers do not reach each other,
the host's memory."""
SERVERS = {"L40S server": (5.1 / 31.5,), "RTX PRO 6000 server": (26 / 63, 25 / 63)}
"""The same of the two servers in the table, whose rows are not fitted; without the 1.5 of 31.5 of eight L40S."""
PAIRS_OF_SERVERS = {"L40S server": 20 / 31.5, "RTX PRO 6000 server": 38 / 63}
"""Shares that two GPUs reach there."""
PAIRS = {"Vidur 4xA100 pairwise NVLink": 1.33, "Vidur 4xH100 pairwise NVLink": 1.0}
"""Rates at which a pair sends both ways, over what rings reach: 308 of 300 GB/s and 362 of 450 by straight-line fits."""
LAWS_WITHOUT: dict[str, dict[str, float]] = {
    "H100 cluster00": {"norm": math.inf},
    "ALCF Sophia DGX A100": {"peer_s": PROXY_S, "pair_tree_efficiency": 0.94},
}
"""Laws without the system to whose log they were set, or which alone has rows that they are fitted to."""
PLUGIN_OF = {"efa": "AWS p5.48xlarge"}


def pcie_without(system: str) -> dict[str, float]:
    """What PCIe takes, set by hand, without what one system of the table says."""
    shares = [share for name, own in SERVERS.items() if name != system for share in own]
    usual = geometric_mean([*USERS, *shares])
    pair = geometric_mean([share for name, share in PAIRS_OF_SERVERS.items() if name != system])
    return {**PCIE, "efficiency": round(usual, 2), "pair_efficiency": round(pair / usual, 2)}


def laws_without(system: str) -> Laws:
    """The laws without the constants that were set to one system of the table: neutral, or what others say."""
    pair = geometric_mean([share for name, share in PAIRS.items() if name != system])
    laws = replace(Laws(), pair_efficiency=round(pair, 2))
    return replace(laws, **LAWS_WITHOUT.get(system, {}))


def described(without: str = "") -> tuple[Fabric, ...]:
    """Every fabric as it is described, without what is known of its plug-in from one system of the table."""
    return tuple(
        replace(fabric, across=replace(fabric.across, plugin_s=0.0))
        if fabric.across and PLUGIN_OF.get(fabric.name, "-") == without
        else fabric
        for fabric in DESCRIBED
    )
