"""Times of collectives without measurements that were computed by hand, from steps, crossings and bytes of each algorithm."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulator.costs.collectives import nccl_choice
from simulator.costs.collectives.curves import uncontended_time
from simulator.costs.collectives.link_constants import LAWS, Across, Inside
from simulator.costs.collectives.theory import Call, seconds
from simulator.units import GB, KIB, MB, MIB, US_PER_S

LINKS = Inside(
    name="", bytes_per_s=100 * GB, launch_s=10 / US_PER_S, step_s=2 / US_PER_S, efficiency=0.8, fill_s=0.0, nvls_efficiency=0.5
)  # fmt: skip
NETWORK = Across(
    name="", nic_bytes_per_s=25 * GB, nics=2, crossing_s=4 / US_PER_S, plugin_s=1 / US_PER_S, efficiency=0.9, rendezvous=1.0,
    crowd=0.5, tree_efficiency=0.75, nvls_tree_efficiency=0.6, sharp=True, sharp_efficiency=0.7,
)  # fmt: skip
SLOW_LIBRARY = replace(LINKS, launch_s=1.0)
"""Links whose launches take a second, so that kernels that launch sooner are always faster."""
PLAIN = replace(LAWS, norm=math.inf, crossing_fill=0.0)
"""The slower one of two bottlenecks decides, and crossings fill no pipeline."""
S = 100 * MB
GPU_US, NODE_US = 1e3, 2e3
"""Time of the payload on the links of a GPU at their full rate, and on both NICs of a node."""


def took_us(kind: str, algorithm: str, ranks: int, nodes: int = 1, size: float = S, **how: object) -> float:
    call = Call(kind, size, ranks, nodes, algorithm)
    links, network, laws = how.get("links", LINKS), how.get("network", NETWORK), how.get("laws", PLAIN)
    return US_PER_S * seconds(call, links, network, laws)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind, turns", [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_takes_its_turns_and_hides_their_latency(kind: str, turns: int) -> None:
    """Each turn of 8 ranks has 7 steps with an eighth of the payload. Of 32 ranks on 4 nodes every eighth step crosses nodes, and
    the slowest hop of a ring over 4 nodes gets 1 / sqrt(2) of the rate (`crowd`)."""
    near_us = math.hypot(turns * 7 * 2, turns * 7 / 8 * GPU_US / 0.8)
    assert took_us(kind, "ring", 8) == pytest.approx(10 + near_us)
    steps, moved = turns * 31, turns * 31 / 32
    far_us = math.hypot(steps * (28 / 32 * 2 + 4 / 32 * 5), moved * NODE_US / 0.9 * math.sqrt(2))
    assert took_us(kind, "ring", 32, 4) == pytest.approx(10 + far_us)
    steps, moved = turns * 15, turns * 15 / 16
    pair_us = math.hypot(steps * (14 / 16 * 2 + 2 / 16 * 5), moved * NODE_US / 0.9)
    assert took_us(kind, "ring", 16, 2) == pytest.approx(10 + pair_us)


def test_a_broadcast_sends_the_whole_payload_over_each_link_once() -> None:
    assert took_us("broadcast", "auto", 8) == pytest.approx(10 + 7 * 2 + GPU_US / 0.8)


def test_a_piece_of_a_broadcast_passes_all_ranks_before_the_pipeline_is_full() -> None:
    """Of 31 steps over 4 nodes, 31 / 32 x 4 cross nodes. Nothing hides them, unlike those of a ring whose ranks all send."""
    crossing_us, wire_us = 31 / 32 * 4 * 5, NODE_US / 0.9 * math.sqrt(2)
    moved_us = 10 + 31 / 32 * 28 * 2 + crossing_us + wire_us
    assert took_us("broadcast", "auto", 32, 4) == pytest.approx(moved_us)
    filled_us = math.sqrt(3 * crossing_us * wire_us)
    assert took_us("broadcast", "auto", 32, 4, laws=replace(PLAIN, crossing_fill=3.0)) == pytest.approx(moved_us + filled_us)


def test_a_tree_goes_up_and_down_and_loads_its_busiest_node_most() -> None:
    """A chain of 8 ranks in each node, up and down, and log2 of the nodes up and down. The busiest of 4 nodes sends the payload
    twice, that of 3 one and a half times. Over two nodes a tree takes as long as a ring on the NICs, over 0.93."""
    assert took_us("all_reduce", "tree", 8) == pytest.approx(10 + 14 * 2 + 14 / 8 * GPU_US / 0.8)
    for nodes, load in ((3, 1.5), (4, 2.0), (16, 2.0)):
        found_us = 10 + 14 * 2 + 2 * math.log2(nodes) * 5 + load * NODE_US / (0.9 * 0.75)
        assert took_us("all_reduce", "tree", 8 * nodes, nodes) == pytest.approx(found_us)
    found_us = 10 + 14 * 2 + 2 * 5 + 2 * 15 / 16 * NODE_US / (0.9 * 0.93)
    assert took_us("all_reduce", "tree", 16, 2) == pytest.approx(found_us)


@pytest.mark.parametrize("gpus", [4, 8, 16])
def test_switches_add_up_what_each_gpu_sends_once(gpus: int) -> None:
    """A GPU sends its payload and receives its part of the sum. The latency grows up to 8 GPUs, and the time to fill the pipeline
    from 8 GPUs on."""
    steps, wire_us = 2 * (min(gpus, 8) - 1), (gpus + 1) / gpus * GPU_US / 0.5
    assert took_us("all_reduce", "nvls", gpus) == pytest.approx(10 + steps * 2 + wire_us)
    filling = replace(LINKS, fill_s=40 / US_PER_S)
    filled_us = math.sqrt(40 * max(1, gpus / 8) * wire_us)
    assert took_us("all_reduce", "nvls", gpus, links=filling) == pytest.approx(10 + steps * 2 + wire_us + filled_us)
    far_us = 10 + steps * 2 + 2 * 2 * 5 + 2 * NODE_US / (0.9 * 0.6)
    assert took_us("all_reduce", "nvls", 4 * gpus, 4) == pytest.approx(far_us)
    pair_us = 10 + steps * 2 + 2 * 5 + max(wire_us, NODE_US / 0.9)
    assert took_us("all_reduce", "nvls", 2 * gpus, 2) == pytest.approx(pair_us)


@pytest.mark.parametrize("gpus", [4, 16])
def test_network_switches_take_the_payload_of_a_node_once(gpus: int) -> None:
    """Two crossings, there and back, however many nodes there are. Inside the nodes NVSwitches reduce, or chains of GPUs."""
    network_us = NODE_US / (0.9 * 0.7)
    for nodes in (2, 16):
        found_us = 10 + 2 * (min(gpus, 8) - 1) * 2 + 2 * 5 + network_us
        assert took_us("all_reduce", "sharp", nodes * gpus, nodes) == pytest.approx(found_us)
        chained = replace(LINKS, nvls_efficiency=0.0)
        found_us = 10 + 2 * (gpus - 1) * 2 + 2 * 5 + network_us
        assert took_us("all_reduce", "sharp", nodes * gpus, nodes, links=chained) == pytest.approx(found_us)
    fast = replace(NETWORK, nics=16, nic_bytes_per_s=100 * GB)
    found_us = 10 + 2 * (min(gpus, 8) - 1) * 2 + 2 * 5 + (gpus + 1) / gpus * GPU_US / 0.5
    assert took_us("all_reduce", "sharp", 2 * gpus, 2, network=fast) == pytest.approx(found_us)


@pytest.mark.parametrize("algorithm, launch_us", [("direct", 0.47 * 10), ("direct_vllm", 0.47 * 1.48 * 10)])
def test_kernels_that_read_their_peers_read_all_at_once_or_a_share_twice(algorithm: str, launch_us: float) -> None:
    """Of few bytes every rank reads those of 7 others; of more it first reads its share and then the others' sums, one step
    later. They reach the full rate: 1.26 times that of a ring of 0.8. Served side by side, 7 peers are 7 x 0.17 steps."""
    once_us = launch_us + 7 * 0.17 * 2 + 7 * 8e3 / 1e5
    assert took_us("all_reduce", algorithm, 8, size=8e3) == pytest.approx(once_us)
    twice_us = launch_us + (7 * 0.17 + 1) * 2 + 2 * 7 / 8 * 800e3 / 1e5
    assert took_us("all_reduce", algorithm, 8, size=800e3) == pytest.approx(twice_us)
    slow = replace(LINKS, efficiency=0.5)
    slow_us = launch_us + 7 * 0.17 * 2 + 7 * 8e3 / 1e5 / (1.26 * 0.5)
    assert took_us("all_reduce", algorithm, 8, size=8e3, links=slow) == pytest.approx(slow_us)


def test_an_all_to_all_serves_its_peers_side_by_side() -> None:
    """A rank keeps an eighth of what it holds. To the 24 ranks of other nodes go three quarters of what 8 ranks hold, over two
    NICs for 8 GPUs, at half of the rate of rings; the proxy thread takes 4.8 us for each of them."""
    near_us = 14.1 + 7 * 0.17 * 2 + 7 / 8 * GPU_US / (1.01 * 0.8)
    assert took_us("alltoall", "auto", 8) == pytest.approx(near_us)
    far_us = 14.1 + 7 * 0.17 * 2 + 5 + 24 * 4.8 + 8 * 24 / 32 * NODE_US / (0.9 * 0.5)
    assert took_us("alltoall", "auto", 32, 4) == pytest.approx(far_us)


def test_a_message_is_one_flow_over_one_nic() -> None:
    """At 0.85 of the rate of many flows. Beyond the 4 nodes of a leaf, flows over 32 nodes share a link with (32 / 4)^(2/3) = 4
    others, of which 3 count; those over 8 nodes with 2^(2/3)."""
    assert took_us("sendrecv", "auto", 8) == pytest.approx(14.1 + 2 + GPU_US / (1.15 * 0.8))
    for nodes, shared in ((2, 1.0), (4, 1.0), (8, 2 ** (2 / 3)), (32, 3.0)):
        found_us = 14.1 + 2 + 5 + 2 * NODE_US / (0.9 * 0.85) * shared
        assert took_us("sendrecv", "auto", 8 * nodes, nodes) == pytest.approx(found_us)


def test_large_messages_shake_hands_and_small_ones_carry_flags() -> None:
    """With a factor of 3 a crossing of a message as large as `rendezvous_bytes` takes twice as long; that of an all-to-all is a
    thirty-second of what a rank holds. A message as large as `flags_bytes`, with two bytes on the wire for each byte of a small
    one, has one and a half."""
    shaking = replace(NETWORK, rendezvous=3.0, rendezvous_bytes=64 * KIB)
    for kind, ranks, size in (("sendrecv", 16, 64 * KIB), ("alltoall", 32, 32 * 64 * KIB)):
        plain, shaken = (took_us(kind, "auto", ranks, ranks // 8, size, network=each) for each in (NETWORK, shaking))
        assert shaken - plain == pytest.approx(5)
    flagged = replace(LINKS, flags=2.0, flags_bytes=256 * KIB)
    plain, words = (took_us("sendrecv", "auto", 8, size=256 * KIB, links=each) - 16.1 for each in (LINKS, flagged))
    assert words == pytest.approx(1.5 * plain)


def test_the_cost_model_of_nccl_counts_most_of_the_rate_of_a_link_and_never_more() -> None:
    for share in (*nccl_choice.COUNTED.values(), nccl_choice.COUNTED_PCIE, *nccl_choice.SWITCH_SHARE.values()):
        assert 0.7 < share < 1
    for shares in nccl_choice.TREE_SHARE.values():
        assert all(0.4 <= share <= 1 for share in shares)


def test_nccl_counts_the_latency_of_the_network_in_full_for_one_rank_of_each_node() -> None:
    """A ring over 8 nodes of a rank each, with protocol LL: 6.6 us, and 14 crossings at the 5 us of a tree. With 8 ranks in each
    node: 14 crossings of 2.7 us, and 112 steps at the least time of a step, 1 us."""
    alone = nccl_choice.Group(8, 8, "hopper", "nvlink", 450 * GB, 50 * GB)
    many = replace(alone, ranks=64)
    for group, expected_us in ((alone, 6.6 + 14 * 5.0), (many, 6.6 + 14 * 2.7 + 112 * 1.0)):
        assert nccl_choice.estimates("ring", 1024, group)[0][0] == pytest.approx(expected_us)


@pytest.mark.parametrize("algorithm", ["direct", "direct_vllm"])
def test_payloads_beyond_the_workspace_of_direct_kernels_take_the_library(algorithm: str) -> None:
    for size, served in ((8 * MIB, True), (8 * MIB + 1, False)):
        direct, library = (uncontended_time(Call("all_reduce", size, 8, 1, name), SLOW_LIBRARY) for name in (algorithm, "auto"))
        assert (direct.seconds < library.seconds) == served
        assert served or direct == library


def test_two_bottlenecks_and_a_pipeline_that_fills() -> None:
    """Equal times on the links and on the NICs, with a norm of 8: 2^(1/8) times as long. Crossings of a ring fill its pipeline
    there and back."""
    even = replace(NETWORK, nics=1, nic_bytes_per_s=80 * GB, efficiency=1.0, crowd=0.0)
    latency_us, wire_us = 31 * (28 / 32 * 2 + 4 / 32 * 5), 31 / 32 * GPU_US / 0.8 * 2 ** (1 / 8)
    found_us = 10 + math.hypot(latency_us, wire_us) + math.sqrt((30 + 2 * 2 * 5) * wire_us)
    filling = replace(LINKS, fill_s=30 / US_PER_S)
    assert took_us("all_gather", "auto", 32, 4, links=filling, network=even, laws=LAWS) == pytest.approx(found_us)
