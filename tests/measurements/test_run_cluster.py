"""The columns of a row's cluster: links of cards and meshes, networks by name and by the words for their NICs."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.config import load
from simulator.errors import UserError
from simulator.measurements.run_cluster import cluster_of, notes_on_cluster

from ..made_up_runs import row

BLANK = {"nvlink_oneway_GBps": "", "nvlink_domain": "", "gpu_model": ""}


def cluster(**cells: object) -> dict[str, Any]:
    found = cluster_of(row(**cells))
    load.cluster(found)
    return found


@pytest.mark.parametrize(
    ("cells", "inside", "bridge"),
    [
        ({"gpu": "L40S"}, "PCIe 31.5 GB/s", None),
        ({"gpu": "L40S", "nvlink_oneway_GBps": 0, "nvlink_domain": 1}, "PCIe 31.5 GB/s", None),
        ({"gpu": "NVIDIA H100 PCIe"}, "PCIe 63 GB/s", None),
        ({"gpu": "H100 NVL"}, "PCIe 63 GB/s", None),
        ({"gpu": "A100-PCIE-40GB", "nvlink_oneway_GBps": 300, "nvlink_domain": 2}, "PCIe 31.5 GB/s", "300 GB/s"),
        ({"gpu": "A100-SXM4-80GB", "intra_node": "PCIe 4.0"}, "PCIe 31.5 GB/s", None),
        ({"gpu": "A100-SXM4-80GB", "intra_node": "NVLink3 and PCIe 4.0"}, "NVSwitch 300 GB/s", None),
        ({"gpu": "AMD Instinct MI300X"}, "fully-connected 448 GB/s", None),
        ({"gpu": "MI355X"}, "fully-connected 537.6 GB/s", None),
        ({"gpu": "HGX B200"}, "NVSwitch 900 GB/s", None),
    ],
)
def test_links_inside_a_node_are_those_of_the_gpu(cells: dict[str, object], inside: str, bridge: str | None) -> None:
    found = cluster(**{**BLANK, **cells})
    assert (found["intra_node"], found["gpus_per_node"], found["nodes"]) == (inside, 8, 2)
    assert found.get("box", {}).get("bridge") == bridge


def test_one_gpu_without_neighbours_is_no_card() -> None:
    assert cluster(**{**BLANK, "gpu": "A100", "gpus": 1, "tp": 1, "pp": 1})["intra_node"] == "NVSwitch 300 GB/s"


@pytest.mark.parametrize(
    ("words", "nics", "fabric"),
    [
        ("EFAv2 4x100", "4x100 Gbit/s", "efa"),
        ("InfiniBand HDR 8x200", "8x200 Gbit/s", None),
        ("1x100Gb Ethernet", "1x100 Gbit/s", None),
        ("8 x 25 GB/s", "8x200 Gbit/s", None),
        ("8\u00d7400Gb RoCEv2", "8x400 Gbit/s", "roce"),
        ("2 x HDR", "2x200 Gbit/s", None),
        ("4xHDR100", "4x100 Gbit/s", None),
        ("8x50GBps", "8x400 Gbit/s", None),
        ("8x400 GB/s", "8x200 Gbit/s", None),
        ("NDR400", "8x400 Gbit/s", None),
        ("4x Omni-Path", "4x200 Gbit/s", None),
        ("GPUDirect-TCPXO", "8x200 Gbit/s", "tcpxo"),
        ("TCPX", "4x200 Gbit/s", "tcpx"),
        ("Slingshot 11", "4x200 Gbit/s", "slingshot-11"),
        ("Slingshot-10", "2x100 Gbit/s", "slingshot-10"),
    ],
)
def test_words_for_a_network_state_its_kind_and_its_nics(words: str, nics: str, fabric: str | None) -> None:
    found = cluster(inter_node=words)
    assert (found["inter_node"], found.get("fabric")) == (nics, fabric)


def test_the_column_of_rates_goes_before_words() -> None:
    found = row(inter_node="8x400Gb NDR", nic_gbit_per_node=800)
    assert cluster_of(found)["inter_node"] == "8x100 Gbit/s"
    assert list(notes_on_cluster(found)) == ["inter_node: '8x400Gb NDR' differs from nic_gbit_per_node; 8x100 Gbit/s counts"]


def test_domains_hold_whole_groups_of_tensor_parallelism() -> None:
    """14 GPUs are two domains of 7, or seven of 2."""
    assert cluster(gpus=14, tp=2)["gpus_per_node"] == 2
    assert cluster(gpus=14, tp=1)["gpus_per_node"] == 7
    assert cluster(gpus=64, tp=16)["gpus_per_node"] == 8


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        ({"gpu_model": "A100-SXM-64GB"}, "gpu: 'A100-SXM-64GB' is taken for a100-80gb, which has 80 GiB"),
        ({"gpus": 13, "tp": 1}, "gpus: 13 do not divide by domains of 8; 13 of 1 are taken"),
        ({"inter_node": "Ethernet"}, "inter_node: 'Ethernet' states no rate of a NIC; 8x200 Gbit/s counts"),
        ({"nvlink_domain": 4}, "nvlink_domain: 4 of 8 GPUs of a node; others are reached over NICs"),
    ],
)
def test_what_a_cluster_takes_for_granted_is_noted(cells: dict[str, object], note: str) -> None:
    assert list(notes_on_cluster(row(**cells))) == [note]
    assert list(notes_on_cluster(row())) == []


@pytest.mark.parametrize("gpu", ["A100-SXM4-80GB", "H100", "MI300X", "B200-SXM-180GB", "NVIDIA GB200 NVL72", "H200-141GB"])
def test_usual_names_of_gpus_need_no_note(gpu: str) -> None:
    assert list(notes_on_cluster(row(gpu_model=gpu))) == []


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu_model": "", "gpu": ""}, "gpu_model, gpu: blank"),
        ({"nvlink_oneway_GBps": 0}, "nvlink_oneway_GBps: '0' is not a positive number"),
        ({"nic_gbit_per_node": -1}, "nic_gbit_per_node: '-1' is not a positive number"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(cells: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError) as refused:
        cluster_of(row(**cells))
    assert refused.value.faults[0].message.startswith(reason)
