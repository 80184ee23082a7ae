"""Multiprocessors and memory bandwidth that a running collective takes from the kernels beside it.

A channel of NCCL is a block of threads on a multiprocessor (SM) of its own, from the start of a collective to its end. Numbers of
channels follow from NCCL 2.30.7 (NVIDIA/nccl, files below src/):

- Rings and trees: graph/search.cc finds as many paths as the links carry at its listed speeds, and doubles few fast ones;
  graph/connect.cc doubles the channels once more. On one node with NVLink that gives `ONE_NODE`. Over nodes a path is a NIC with
  two channels, or four where paths are doubled (`DOUBLED_BYTES_PER_S`; on Hopper and later only up to four paths). Every path
  runs through all GPUs of a node, so their NVLinks carry no more paths than on one node, however many NICs a rack has. One path
  over PCIe is assumed.
- enqueue.cc (topoGetAlgoInfo) takes fewer channels where one would get less than 512 threads x 64 bytes: `LEAST_CHANNEL_BYTES`.
- Reductions by NVSwitches: NVLS_NCHANNELS of transport/nvls.cc. Those of network switches run in the channels of rings.
- Messages: two channels per link of NVLink, two over PCIe; over the network one for each 14 GB/s of the NIC, but at least two
  (graph/paths.cc: ncclTopoGetNchannels, P2P_PER_CHANNEL_NET_BW). That is rounded up to a power of two; at most the channels of
  rings, rounded likewise. An all-to-all takes all of these.

DeepEP holds 20 SMs for a dispatch or a combine (deepseek-ai/DeepEP, deep_ep/buffer.py at ebfe47e, `Buffer.num_sms`; its manual
sets 24, and the second version takes 4 to 12). Exchanges of pieces of GEMMs, and copies to the host, run on copy engines, which
hold no SM (NVIDIA/TransformerEngine, transformer_engine/pytorch/module/base.py: ring_exchange with use_ce).

Memory traffic counts how often a byte is read or written in the memory of a rank, from the primitives in device/prims_simple.h
and the loops in device/all_gather.h, reduce_scatter.h and all_reduce.h, without registered buffers. It is assumed that buffers of
channels do not stay in the cache. The traffic is spread evenly over the uncontended time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...program.operations import DEEPEP
from ...units import GB
from ...workload.framework import CommunicationSms

ONE_NODE = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 32}
"""Channels of rings and trees on one node with NVLink."""
DOUBLED_BYTES_PER_S = 28 * GB
MOST_DOUBLED = 4
"""Least rate of a path that NCCL divides in two (the first listed speed of at least 25 GB/s), and on Hopper and later the most
such paths."""
SWITCHES = {"hopper": (16, 16), "blackwell": (24, 32)}
"""Channels where NVSwitches reduce, on one node and over several."""
LEAST_CHANNEL_BYTES = 512 * 64
MESSAGE_BYTES_PER_S = 14 * GB
"""Rate of the network for which a message gets one channel."""
DEEPEP_SMS = 20

COPY_ENGINES = "copy engines"
"""Value in place of a library for copies, which need no kernel. All collectives except these and `DEEPEP` are NCCL's."""
IN_SWITCHES = ("nvls", "nvls_tree")
MESSAGES = ("sendrecv", "exchange")

RING_TRAFFIC = 3
"""A byte that arrives is written to a buffer, read from it, and written to the result, or added to a byte that is read."""
SWITCH_TRAFFIC = 6
"""Each byte is read and written to a buffer; the switch reads it there and writes the sum; that is read and written."""
MESSAGE_TRAFFIC = {True: 4, False: 6}
"""A byte sent, and one received: read; written to a buffer, read, written. Between nodes the sender has a buffer too."""
COPIED_TRAFFIC = 2
"""A byte read here, and one written by the copy engine of another GPU."""


@dataclass(frozen=True, slots=True)
class Place:
    """The ranks of a collective, with the quantities from which NCCL computes its channels."""

    ranks: int
    nodes: int
    generation: str
    nvlinks: int
    """Number of NVLinks of a GPU; 0 where GPUs reach each other over PCIe."""
    paths: int
    """Number of NICs that the ranks of a node use; 1 within a node."""
    path_bytes_per_s: float


def sms(kind: str, algorithm: str, payload_bytes: int, place: Place, library: str, given: CommunicationSms) -> int:
    """The number of SMs that a collective holds on each of its ranks."""
    if library == COPY_ENGINES:
        return 0
    if library == DEEPEP:
        return DEEPEP_SMS if given.exchanges is None else given.exchanges
    rings = _channels(place)
    if algorithm in IN_SWITCHES:
        chosen, most = given.switches, SWITCHES.get(place.generation, (rings, rings))[place.nodes > 1]
    elif kind in MESSAGES:
        chosen, most = given.transfers, min(_power_of_two(_per_message(place)), _power_of_two(rings))
    elif kind == "alltoall":
        chosen, most = given.exchanges, _power_of_two(rings)
    else:
        chosen, most = given.rings, rings
    return min(most if chosen is None else chosen, max(1, payload_bytes // LEAST_CHANNEL_BYTES))


def _channels(place: Place) -> int:
    """The number of channels of rings and trees."""
    if place.nodes == 1 and place.nvlinks:
        return ONE_NODE[place.generation]
    is_late = place.generation not in ("volta", "ampere")
    doubled = place.path_bytes_per_s >= DOUBLED_BYTES_PER_S and (place.paths <= MOST_DOUBLED or not is_late)
    channels = place.paths * (4 if doubled else 2)
    return min(channels, ONE_NODE[place.generation]) if place.nvlinks else channels


def _per_message(place: Place) -> int:
    """The number of channels of one message."""
    if place.nodes > 1:
        return max(2, math.ceil(place.path_bytes_per_s / MESSAGE_BYTES_PER_S))
    return 2 * max(1, place.nvlinks)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least a number."""
    return 1 << (number - 1).bit_length()


def memory_traffic_bytes(kind: str, algorithm: str, payload_bytes: int, place: Place, library: str) -> float:
    """Bytes that a collective reads and writes in the memory of each of its ranks."""
    others = (place.ranks - 1) / place.ranks
    if library == COPY_ENGINES:
        return payload_bytes * (1 if place.ranks == 1 else COPIED_TRAFFIC)
    if algorithm in IN_SWITCHES:
        return payload_bytes * SWITCH_TRAFFIC
    if kind == "alltoall":
        return payload_bytes * others * MESSAGE_TRAFFIC[place.nodes == 1]
    if kind == "exchange":
        return payload_bytes * MESSAGE_TRAFFIC[place.nodes == 1]
    if kind in ("all_gather", "reduce_scatter", "all_reduce"):
        return payload_bytes * others * RING_TRAFFIC * (2 if kind == "all_reduce" else 1)
    return payload_bytes * RING_TRAFFIC
