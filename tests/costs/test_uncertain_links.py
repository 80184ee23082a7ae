"""Plug-ins, exchanges over shared NICs, racks, and the uncertainty of times: laws of the closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import fabric_files
from simulator.costs.collectives import theory
from simulator.costs.collectives.curves import (
    ACROSS_SIGMA,
    DIRECT_SIGMA,
    EXCHANGE_ACROSS_SIGMA,
    NVLINK_SIGMA,
    PCIE_SIGMA,
    log_sigma,
    theory_sigma,
    uncontended_time,
)
from simulator.costs.collectives.link_constants import Across, Inside
from simulator.costs.collectives.theory import ALGORITHMS, EXCHANGES, KINDS, RACK_PIECE_BYTES, Call, taken
from simulator.units import GIB, KIB, MIB

from ..small_scenarios import time_collective

INSIDE = {name: fabric.inside for name in fabric_files.names() if (fabric := fabric_files.load(name)).inside}
ACROSS = {name: fabric.across for name in fabric_files.names() if (fabric := fabric_files.load(name)).across}
insides = st.sampled_from(sorted(INSIDE)).map(INSIDE.__getitem__)
networks = st.sampled_from(sorted(ACROSS)).map(ACROSS.__getitem__)
calls = st.builds(
    lambda kind, algorithm, place, octave: Call(kind, 2.0**octave, *place, algorithm),
    st.sampled_from(KINDS),
    st.sampled_from(ALGORITHMS),
    st.sampled_from([(2, 2), (16, 2), (40, 5), (144, 2), (512, 64)]),
    st.integers(3, 34),
)


@given(calls, insides, networks)
def test_a_plug_in_is_paid_at_every_crossing_as_a_longer_wire_is(call: Call, inside: Inside, across: Across) -> None:
    merged = replace(across, crossing_s=across.hop_s, plugin_s=0.0)
    assert theory.seconds(call, inside, across) == pytest.approx(theory.seconds(call, inside, merged))


@given(calls, insides, networks, st.floats(0, 0.5))
def test_rates_that_are_less_certain_widen_the_interval(call: Call, inside: Inside, across: Across, more: float) -> None:
    """By what they change of the time: by less than their own error, and not at all where they are certain."""
    certain, doubtful, worse = (replace(across, uncertainty=u) for u in (0.0, 0.2, 0.2 + more))
    sigma = EXCHANGE_ACROSS_SIGMA if call.kind in EXCHANGES else ACROSS_SIGMA
    assert theory_sigma(call, inside, certain) == sigma
    assert theory_sigma(call, inside, certain) <= theory_sigma(call, inside, doubtful) <= theory_sigma(call, inside, worse)
    assert theory_sigma(call, inside, doubtful) <= (sigma**2 + 0.2**2) ** 0.5 + 1e-6


@pytest.mark.parametrize(("fabric", "links"), [("nvlink4-nvswitch", NVLINK_SIGMA), ("pcie4", PCIE_SIGMA)])
def test_kernels_of_frameworks_are_less_certain_than_those_of_a_library(fabric: str, links: float) -> None:
    own, of_library = (theory_sigma(Call("all_reduce", MIB, 8, 1, name), INSIDE[fabric]) for name in ("direct", "ring"))
    assert of_library == links
    assert own == max(links, DIRECT_SIGMA)


def test_latency_does_not_depend_on_a_rate() -> None:
    inside, across = INSIDE["nvlink4-nvswitch"], ACROSS["ndr-ib"]
    few, many = (theory_sigma(Call("all_gather", size, 64, 8), inside, across) for size in (64, 16 * GIB))
    assert few == pytest.approx(ACROSS_SIGMA, rel=0.01)
    assert many > 1.2 * few


def test_what_is_measured_is_more_certain_than_what_is_not() -> None:
    """Never more so than logs of one kind of machine agree."""
    fabric = fabric_files.load("nvlink4-nvswitch")
    assert fabric.inside
    call = Call("all_gather", MIB, 8)
    at_home = uncontended_time(call, fabric.inside, None, fabric.curves)
    on_others = uncontended_time(call, replace(fabric.inside, bytes_per_s=1.2 * fabric.inside.bytes_per_s), None, fabric.curves)
    nowhere = uncontended_time(call, fabric.inside)
    assert (at_home.provenance, on_others.provenance, nowhere.provenance) == ("interpolated", "extrapolated", "theoretical")
    assert log_sigma(call) <= at_home.uncertainty < on_others.uncertainty < nowhere.uncertainty


@pytest.mark.parametrize("name", sorted(ACROSS))
def test_every_network_says_how_certain_its_rates_are(name: str) -> None:
    assert 0.1 <= ACROSS[name].uncertainty <= 0.5


@pytest.mark.parametrize(("network", "nics", "share"), [("ndr-ib", 8, 1.0), ("ndr-ib", 4, 0.5), ("efa", 8, 0.5), ("efa", 4, 0.5)])
def test_exchanges_over_shared_nics_or_libfabric_get_half_of_the_wire(network: str, nics: int, share: float) -> None:
    """An all-to-all of 8 GPUs a node; gathers keep theirs, and so do groups with a NIC for each GPU."""
    inside, across = INSIDE["nvlink4-nvswitch"], replace(ACROSS[network], nics=nics)
    call = Call("alltoall", 16 * GIB, 64, 8)
    left = 8 * 56 / 64 * call.payload_bytes
    wire_s = left / (nics * across.nic_bytes_per_s * across.efficiency * share)
    assert theory.seconds(call, inside, across) == pytest.approx(wire_s, rel=0.05)
    assert theory.share_of_exchange(across, 4) == across.alltoall
    free = replace(across, alltoall=1.0)
    assert theory.seconds(replace(call, kind="all_gather"), inside, across) == theory.seconds(
        replace(call, kind="all_gather"), inside, free
    )


def test_only_rings_crowd() -> None:
    inside, across = INSIDE["nvlink5-nvswitch"], ACROSS["ndr-ib"]
    empty = replace(across, crowd=0.0)
    for name, slower in (("ring", True), ("tree", False), ("nvls", False), ("sharp", False)):
        call = Call("all_reduce", 16 * GIB, 368, 46, name)
        assert (theory.seconds(call, inside, across) > theory.seconds(call, inside, empty)) == slower


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("racks", [2, 8, 32])
def test_t7_2_several_racks_take_the_fastest_for_large_payloads(racks: int, *, sharp: bool) -> None:
    """At no size does a doubled payload take much more than twice the time: a ring over 32 racks took five times a tree's."""
    inside, across = INSIDE["nvlink5-nvswitch"], replace(ACROSS["ndr-ib"], nics=72, sharp=sharp)

    def of(size: float, name: str) -> Call:
        return Call("all_reduce", size, 72 * racks, racks, name)

    names = ("ring", "tree", "sharp") if sharp else ("ring", "tree")
    times = {}
    for size in (KIB * 2**i for i in range(24)):
        name = taken(of(size, "auto"), inside, across)
        times[size] = theory.seconds(of(size, name), inside, across)
        if size >= RACK_PIECE_BYTES * 72 * racks:
            assert times[size] == min(theory.seconds(of(size, each), inside, across) for each in names)
    assert all(times[2 * size] <= 2.2 * time for size, time in times.items() if 2 * size in times)


def test_t7_2_several_racks_reduce_in_no_switches_of_nvlink() -> None:
    inside, across = INSIDE["nvlink5-nvswitch"], replace(ACROSS["ndr-ib"], nics=72)
    assert taken(Call("all_reduce", 64 * KIB, 144, 2), inside, across) == "tree"
    assert taken(Call("all_reduce", GIB, 72, 1), inside, None) == "nvls"
    assert taken(Call("all_reduce", GIB, 16, 2), inside, replace(across, nics=8)) == "nvls"
    (row,) = time_collective("all_reduce", sim.cluster("gb200-nvl72", nodes=2), [GIB])
    assert row.algorithm == "ring"


def test_a_switch_with_more_heads_takes_longer_to_fill() -> None:
    """Chunks of up to 32 heads are in flight: the square of what filling adds is four times that of 8 GPUs."""
    inside = replace(INSIDE["nvlink5-nvswitch"], launch_s=0.0, step_s=0.0)

    def filling(ranks: int) -> float:
        call = Call("all_reduce", 8 * GIB, ranks, 1, "nvls")
        empty = theory.seconds(call, replace(inside, fill_s=0.0))
        return (theory.seconds(call, inside) - empty) ** 2 / empty

    assert filling(32) / filling(8) == pytest.approx(4)
    assert filling(72) == pytest.approx(filling(32))
    assert filling(4) == pytest.approx(filling(8))
