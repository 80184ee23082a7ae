"""What published logs of systems outside the table say as a whole, beside what the theory says: numbers quoted one by one.

Each fact names its source: a repository at a commit, or an issue where a user of NCCL reports it; with the year in which it was
written where that is known, and otherwise when it was read. Where they name no size, 8 GiB are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collective_sources import READ

from simulator.config.fabric_files import Fabric
from simulator.costs.collectives.curves import uncontended_time
from simulator.costs.collectives.link_constants import Laws
from simulator.costs.collectives.theory import Call
from simulator.fabrics.policy import links_of
from simulator.measurements.measured_cluster import COLUMNS, cluster_of
from simulator.units import GB, GIB, KIB, MIB, US_PER_S

ALPS = "boeschf/nccl-benchmark-on-alps-2025@897cff4, 2025"
TOOLKIT = f"GoogleCloudPlatform/cluster-toolkit@1047080, {READ}"
CLUSTER00 = f"xxrjun/nccl-tests-cluster@455de4f, {READ}"
TOGETHER = "togethercomputer/together-nccl-tests@0492bed, May 2026"
TOGETHER_SENDS = "togethercomputer/together-nccl-tests@280e4df, April 2026"
VIDUR = f"microsoft/vidur@7d47513, {READ}"
NVLS_ISSUE, H200_ISSUE, H800_ISSUE = "NVIDIA/nccl-tests#212, 2024", "NVIDIA/nccl-tests#272, 2024", "NVIDIA/nccl#1374, 2024"
RTX4090_ISSUES = f"NVIDIA/nccl#1603 and tinygrad/open-gpu-kernel-modules#36, {READ}"
GB200_ISSUE = "NVIDIA/nccl#1801, 2025"
RTX5090_ISSUE, BRIDGE_ISSUE = "NVIDIA/nccl#1639, 2025", "NVIDIA/nccl-tests#178, 2023"


@dataclass(frozen=True)
class Machine:
    """What a fact was measured on: how it is called, and the columns that describe it in a table of collectives."""

    gpu: str
    links: str
    inside: str
    nics: str = ""
    network: str = ""
    nics_per_node: int = 0
    nic_gbit: int = 0
    inside_gb_per_s: int = 0

    def row(self, call: Call) -> dict[str, str]:
        """A row of such a table."""
        known = {"gpu": self.gpu, "inside": self.inside, "gpus": str(call.ranks), "nodes": str(call.nodes)}
        known |= {"inside_GBps": str(self.inside_gb_per_s or "")}
        if call.nodes > 1:
            known |= {"network": self.network, "nics_per_node": str(self.nics_per_node), "nic_gbit": str(self.nic_gbit)}
        return dict.fromkeys(COLUMNS, "") | known


GH200 = Machine("GH200", "NVLink4", "nvlink4-mesh", "Slingshot 4x200Gb/s", "slingshot-11", 4, 200)
TCPXO = Machine("H100-SXM", "NVLink4 NVSwitch", "nvlink4-nvswitch", "GPUDirect-TCPXO 1600Gb/s", "tcpxo", 8, 200)
H100 = Machine("H100-SXM", "NVLink4 NVSwitch", "nvlink4-nvswitch", "NDR IB 400Gb/GPU", "ndr-ib", 8, 400)
B200 = Machine("B200", "NVLink5 NVSwitch", "nvlink5-nvswitch", "NDR IB 400Gb/GPU", "ndr-ib", 8, 400)
GB200 = Machine("GB200", "NVLink5 NVSwitch", "nvlink5-nvswitch", "NDR IB 400Gb/GPU", "ndr-ib", 4, 400)
GB200_EIGHTS = Machine("GB200", "NVLink5 NVSwitch", "nvlink5-nvswitch", "NDR IB 400Gb/GPU", "ndr-ib", 8, 400)
A100 = Machine("A100-SXM", "NVLink3 NVSwitch 300GB/s", "nvlink3-nvswitch")
H200 = Machine("H200", "NVLink4 NVSwitch", "nvlink4-nvswitch")
H800 = Machine("H800", "NVLink4 NVSwitch", "nvlink4-nvswitch", inside_gb_per_s=200)
RTX4090, RTX5090 = Machine("RTX 4090", "PCIe4 x16", "pcie4"), Machine("RTX 5090", "PCIe5 x16", "pcie5")
BRIDGED = Machine("A100-PCIe", "NVLink bridge pairs", "nvlink-bridge-pairs")
BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "alltoall": 1.0}


@dataclass(frozen=True)
class Fact:
    """One published number: microseconds, or the bus bandwidth in GB/s as nccl-tests counts it."""

    source: str
    machine: Machine
    call: Call
    us: float = 0.0
    gb_per_s: float = 0.0
    used: bool = False
    """Whether a constant was set with it in mind: then it shows no more than that one form fits several."""

    @property
    def words(self) -> str:
        c = self.call
        factor, unit = next((f, u) for f, u in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B")) if c.payload_bytes >= f)
        where = f"{c.ranks} GPUs on {c.nodes} nodes" if c.nodes > 1 else f"{c.ranks} GPUs"
        links = self.machine.nics if c.nodes > 1 else self.machine.links
        return f"{self.machine.gpu}, {links}: {c.kind} {c.algorithm}, {c.payload_bytes / factor:g} {unit}, {where}"

    def said(self, seconds: float) -> float:
        """A time, in the unit of the fact."""
        if self.us:
            return seconds * US_PER_S
        share = BUS_FACTOR.get(self.call.kind, 0.0) * (self.call.ranks - 1) / self.call.ranks or 1.0
        return share * self.call.payload_bytes / seconds / GB

    @property
    def published(self) -> float:
        return self.us or self.gb_per_s


def _call(size: float, ranks: int, nodes: int, algorithm: str = "auto", kind: str = "all_reduce") -> Call:
    return Call(kind, size, ranks, nodes, algorithm)


FACTS = (
    *(Fact(ALPS, GH200, _call(8, n, n // 4), us=us) for n, us in ((8, 19), (2048, 145))),
    *(Fact(ALPS, GH200, _call(16 * KIB, n, n // 4), us=us, used=True) for n, us in ((8, 51), (2048, 465))),
    *(Fact(ALPS, GH200, _call(64 * KIB, n, n // 4), us=140) for n in (8, 16)),
    *(Fact(ALPS, GH200, _call(2 * MIB, n, n // 4), us=us) for n, us in ((8, 130), (16, 210))),
    *(Fact(ALPS, GH200, _call(4 * GIB, n, n // 4), gb_per_s=92) for n in (8, 64, 512)),
    *(Fact(TOOLKIT, TCPXO, _call(size * MIB, 16, 2), us=us, used=True) for size, us in ((16, 980), (32, 1060))),
    *(
        Fact(CLUSTER00, H100, _call(4 * GIB, 10 * g, 10), gb_per_s=v, used=True)
        for g, v in ((1, 48.9), (2, 98.3), (4, 196), (8, 345))
    ),
    Fact(CLUSTER00, H100, _call(4 * GIB, 80, 10, kind="alltoall"), gb_per_s=47.5),
    Fact(CLUSTER00, H100, _call(4 * GIB, 80, 10, kind="sendrecv"), gb_per_s=25),
    *(
        Fact(TOGETHER, B200, _call(16 * GIB, 8 * n, n, name), gb_per_s=v, used=True)
        for name, found in (
            ("ring", (345, 323, 291)),
            ("nvls", (717, 307, 291)),
            ("tree", (335, 193, 193)),
            ("sharp", (533, 548, 545)),
        )
        for n, v in zip((2, 8, 46), found, strict=True)
    ),
    *(
        Fact(TOGETHER, B200, _call(16 * GIB, 8 * n, n, "ring", "all_gather"), gb_per_s=v)
        for n, v in ((2, 343), (8, 312), (46, 293))
    ),
    *(
        Fact(TOGETHER_SENDS, B200, _call(GIB, 8 * n, n, kind="sendrecv"), gb_per_s=v, used=True)
        for n, v in ((2, 43), (4, 43), (8, 26), (16, 14.6), (64, 14.6))
    ),
    *(
        Fact(GB200_ISSUE, machine, _call(16 * GIB, 3 * domain, 3, name), gb_per_s=v, used=name == "tree")
        for machine, domain, found in ((GB200, 4, (196.9, 234.8)), (GB200_EIGHTS, 8, (393.6, 485)))
        for name, v in zip(("ring", "tree"), found, strict=True)
    ),
    Fact(VIDUR, A100, _call(64 * MIB, 2, 1, kind="sendrecv"), us=233, used=True),
    Fact(VIDUR, A100, _call(2 * KIB, 2, 1, kind="sendrecv"), us=14.8),
    Fact(VIDUR, H100, _call(64 * MIB, 2, 1, kind="sendrecv"), us=193, used=True),
    Fact(VIDUR, H100, _call(2 * KIB, 2, 1, kind="sendrecv"), us=7.7),
    Fact(VIDUR, H100, _call(64 * MIB, 2, 2, kind="sendrecv"), us=1882, used=True),
    Fact(VIDUR, H100, _call(2 * KIB, 2, 2, kind="sendrecv"), us=18.3),
    *(Fact(NVLS_ISSUE, H100, _call(8 * GIB, 8, 1, name), gb_per_s=v) for name, v in (("auto", 480), ("ring", 370))),
    Fact(H200_ISSUE, H200, _call(4 * GIB, 8, 1), gb_per_s=475),
    Fact(H800_ISSUE, H800, _call(8 * GIB, 8, 1), gb_per_s=215),
    *(Fact(RTX4090_ISSUES, RTX4090, _call(8 * GIB, 4, 1), gb_per_s=v, used=True) for v in (18, 22, 26)),
    *(Fact(RTX5090_ISSUE, RTX5090, _call(8 * GIB, n, 1), gb_per_s=v, used=True) for n, v in ((4, 35), (8, 28))),
    *(Fact(BRIDGE_ISSUE, BRIDGED, _call(8 * GIB, n, 1), gb_per_s=v) for n, v in ((2, 208), (3, 20))),
)


def predicted(fact: Fact, load: Callable[[str], Fabric], laws: Laws) -> float:
    """What the fabrics predict for a fact, in its unit."""
    cluster, _, _ = cluster_of(fact.machine.row(fact.call))
    links = links_of(cluster, load)
    if links is None:
        raise LookupError(cluster.name)
    return fact.said(uncontended_time(fact.call, links.inside, links.across, links.curves, laws=laws).seconds)


def table(load: Callable[[str], Fabric], laws: Laws) -> list[str]:
    """The facts as lines of the report."""
    lines = ["## Published summaries", "", "Numbers quoted from the logs of systems that are not in the table."]
    lines += ["`set` marks those that a constant was set with in mind.", ""]
    lines += ["| what | published | predicted | error | | source |", "|---|---|---|---|---|---|"]
    for fact in FACTS:
        value, unit = predicted(fact, load, laws), "us" if fact.us else "GB/s"
        error = value / fact.published - 1
        cells = [fact.words, f"{fact.published:g} {unit}", f"{value:.4g} {unit}", f"{error:+.0%}", fact.used * "set", fact.source]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
