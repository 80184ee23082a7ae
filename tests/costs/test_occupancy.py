"""SMs and memory bandwidth of collectives, against what NCCL and others state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.collectives.occupancy import COPY_ENGINES, DEEPEP, Place, memory_traffic_bytes, sms
from simulator.units import GB
from simulator.workload.framework import CommunicationSms

USUAL = CommunicationSms()
NODE = Place(8, 1, "hopper", 18, 1, 450 * GB)
NODES = Place(64, 8, "hopper", 18, 8, 50 * GB)
AMPERE = Place(16, 2, "ampere", 12, 8, 25 * GB)
MIB = 1 << 20
CHANNELS = {
    "DGX H100": (NODE, 24),
    "DGX A100": (Place(8, 1, "ampere", 12, 1, 300 * GB), 24),
    "DGX-1": (Place(8, 1, "volta", 6, 1, 150 * GB), 12),
    "DGX B200": (Place(8, 1, "blackwell", 18, 1, 900 * GB), 32),
    "eight NICs of 400 Gbit/s": (NODES, 16),
    "four of them": (replace(NODES, ranks=32, paths=4), 16),
    "a rank per node": (replace(NODES, ranks=8, paths=1), 4),
    "NICs of 200 Gbit/s": (AMPERE, 16),
    "NICs of 100 Gbit/s": (replace(AMPERE, paths=4, path_bytes_per_s=12.5 * GB), 8),
    "racks of 72, a NIC each": (Place(144, 2, "blackwell", 18, 72, 50 * GB), 32),
    "racks of 72, of each eight GPUs": (Place(16, 2, "blackwell", 18, 8, 50 * GB), 16),
    "PCIe 4": (Place(8, 1, "ampere", 0, 1, 24 * GB), 2),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_rings_hold_an_sm_for_each_channel_of_nccl(name: str) -> None:
    place, channels = CHANNELS[name]
    for kind, algorithm in (("all_gather", "ring"), ("all_reduce", "tree"), ("all_reduce", "sharp")):
        assert sms(kind, algorithm, 256 * MIB, place, "", USUAL) == channels


def test_t22_2_sms_by_library_and_algorithm_unless_the_framework_states_them() -> None:
    rows = [
        ("all_reduce", "nvls", NODE, "", 16, CommunicationSms(switches=4), 4),
        ("all_reduce", "nvls_tree", replace(NODES, generation="blackwell"), "", 32, CommunicationSms(switches=6), 6),
        ("sendrecv", "point_to_point", replace(NODES, ranks=2, nodes=2, paths=1), "", 4, CommunicationSms(transfers=1), 1),
        ("sendrecv", "point_to_point", replace(NODE, ranks=2), "", 32, CommunicationSms(transfers=0), 0),
        ("sendrecv", "point_to_point", replace(NODES, ranks=32, paths=4), "", 4, CommunicationSms(transfers=2), 2),
        ("alltoall", "pairwise", NODE, "", 32, CommunicationSms(exchanges=8), 8),
        ("alltoall", "pairwise", NODES, DEEPEP, 20, CommunicationSms(exchanges=24), 24),
        ("exchange", "point_to_point", NODE, COPY_ENGINES, 0, CommunicationSms(transfers=9), 0),
        ("reduce_scatter", "ring", NODE, "", 24, CommunicationSms(rings=8), 8),
    ]
    for kind, algorithm, place, library, usual, given_sms, chosen in rows:
        assert sms(kind, algorithm, 256 * MIB, place, library, USUAL) == usual
        assert sms(kind, algorithm, 256 * MIB, place, library, given_sms) == chosen


@given(st.integers(1, 1 << 40), st.sampled_from([place for place, _ in CHANNELS.values()]))
def test_small_payloads_take_fewer_channels_and_none_takes_less_for_more_bytes(payload_bytes: int, place: Place) -> None:
    few, many = (sms("all_gather", "ring", size, place, "", USUAL) for size in (payload_bytes, 2 * payload_bytes))
    assert 1 <= few <= many <= max(32, few)
    assert sms("all_gather", "ring", 32 << 10, place, "", USUAL) == 1


def test_t22_3_bytes_read_and_written_for_each_byte_that_moves() -> None:
    def traffic(kind: str, algorithm: str, place: Place = NODE, library: str = "") -> float:
        return memory_traffic_bytes(kind, algorithm, 800, place, library) / 100

    assert traffic("all_gather", "ring") == traffic("reduce_scatter", "ring") == 7 * 3
    assert traffic("all_reduce", "ring") == traffic("all_reduce", "tree") == 2 * 7 * 3
    assert traffic("all_reduce", "nvls") == 8 * 6
    assert traffic("alltoall", "pairwise") == 7 * 4
    assert traffic("alltoall", "pairwise", NODES) == pytest.approx(8 * 63 / 64 * 6)
    assert traffic("exchange", "point_to_point") == 8 * 4
    assert traffic("exchange", "point_to_point", library=COPY_ENGINES) == 8 * 2
    assert traffic("copy_out", "copy", replace(NODE, ranks=1), COPY_ENGINES) == 8
    assert traffic("sendrecv", "point_to_point") == 8 * 3
