"""Which algorithm `auto` takes: as NCCL's own cost model has it, or as a fabric's file lays down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import catalog, fabric_files
from simulator.costs.collectives import nccl_choice, theory
from simulator.costs.collectives.curves import Curve, uncontended_time
from simulator.costs.collectives.nccl_choice import Choice, Group, chosen, generation, nccl_estimate_s
from simulator.costs.collectives.theory import Call
from simulator.errors import UserError
from simulator.fabrics.policy import COMMON_ALGORITHMS, policy_on
from simulator.hardware.cluster import Cluster
from simulator.study.collective import BUS_FACTOR
from simulator.units import GB, GIB, KIB, MIB, US_PER_S
from tests.commandline import trainsim

from ..small_scenarios import time_collective
from ..validate.described import links_in, links_on

TABLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "collectives.csv.gz"
SIZES = [2**octave for octave in range(3, 35)]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def test_every_list_of_collectives_holds_the_same() -> None:
    """Each says something of every kind; an exchange is how a program calls what nccl-tests calls sendrecv."""
    assert set(BUS_FACTOR) == set(theory.KINDS)
    assert set(COMMON_ALGORITHMS) == {*theory.KINDS, "exchange"}
    assert {*get_args(get_type_hints(Choice)["kind"]), "sendrecv"} == set(theory.KINDS)


def taken(cluster: Cluster, sizes: list[int], kind: str = "all_reduce") -> list[str]:
    return [row.algorithm for row in time_collective(kind, cluster, sizes)]


def group(gpu: str, ranks: int, nodes: int) -> Group:
    rate, nic = {"volta": (150, 12.5), "ampere": (300, 25), "hopper": (450, 50), "blackwell": (900, 50)}[gpu]
    return Group(ranks, nodes, gpu, "nvlink", rate * GB, min(8, ranks // nodes) * nic * GB)


def test_words_lines_and_pieces_cost_what_nccl_thinks() -> None:
    """By hand, for 16 GPUs on two nodes of A100: base + 28 near and 2 far hops, or twice 7 near and 1 far."""
    pair = group("ampere", 16, 2)
    ring, tree = (nccl_choice.estimates(name, 8, pair) for name in ("ring", "tree"))
    assert [us for us, _ in ring] == pytest.approx([6.6 + 28 * 1.0 + 2 * 2.7, 14 + 28 * 1.9 + 2 * 4, 8.4 + 28 * 3.4 + 2 * 14])
    assert [us for us, _ in tree] == pytest.approx([6.8 + 14 * 0.6 + 10, 14 + 14 * 1.25 + 17, 8.4 + 14 * 4 + 28])
    assert ring[2][1] == pytest.approx(200 * GB * 16 / 30)
    assert nccl_choice.estimates("ring", GIB, pair)[2][0] == pytest.approx(1.4 * ring[2][0]), "the plateau of a ring"
    lone = group("hopper", 8, 1)
    assert nccl_choice.estimates("nvls", GIB, lone) == [(25.0, pytest.approx(2 * 450 * GB * 0.824 * 0.85 * 15 / 16 * 8 / 14))]


def test_what_a_plug_in_reports_is_part_of_every_crossing_and_twice_with_pieces() -> None:
    """Over four nodes a ring crosses six times, trees four times; in a node nothing does."""
    over = group("hopper", 32, 4)
    for name, crossings in (("ring", 6), ("tree", 4)):
        without, reported = (nccl_choice.estimates(name, 8, one) for one in (over, replace(over, reported_us=75)))
        more_us = [after - before for (before, _), (after, _) in zip(without, reported, strict=True)]
        assert more_us == pytest.approx([crossings * 75, crossings * 75, crossings * 150])
        assert [rate for _, rate in without] == [rate for _, rate in reported]
    ((before, _),), ((after, _),) = (nccl_choice.estimates("nvls", 8, one) for one in (over, replace(over, reported_us=75)))
    assert after - before == pytest.approx(4 * 150)
    lone = group("hopper", 8, 1)
    for name in ("ring", "tree", "nvls"):
        assert nccl_choice.estimates(name, 8, lone) == nccl_choice.estimates(name, 8, replace(lone, reported_us=75))


def test_trees_of_lines_last_longer_where_the_plug_in_reports_a_latency() -> None:
    """On two nodes of p5 up to 32 MiB, as the logs of the table show; over InfiniBand trees of switches come at a thirtieth."""
    assert taken(sim.cluster("aws-p5", nodes=2), [MIB, 32 * MIB, 64 * MIB]) == ["tree", "tree", "nvls_tree"]
    assert taken(sim.cluster("dgx-h100", nodes=2), [MIB]) == ["nvls_tree"]


def test_in_a_node_rings_give_way_to_a_switch_that_adds_up() -> None:
    names = taken(sim.cluster("dgx-h100", nodes=1), SIZES)
    assert names[0] == "ring"
    assert names[-1] == "nvls"
    assert names == sorted(names, key="ring nvls".index), "they switch once"
    assert set(taken(sim.cluster("dgx-a100", nodes=1), SIZES)) == {"ring"}, "no switch of A100 adds up"


@pytest.mark.skipif(not TABLE.exists(), reason="the measured collectives are not beside the checkout")
def test_nccl_takes_the_switch_before_it_pays() -> None:
    """Sums of bytes cannot use it: on eight H100 these are faster at 4 and 8 MiB, where sums of half floats use it already."""
    measured = pd.read_csv(TABLE).query("system == 'HGX H100' and gpus == 8 and collective == 'all_reduce'")
    times = measured.pivot_table(index="bytes", columns="algorithm", values="time_us", aggfunc="median")
    slower = times["auto"] / times["auto(int8: no NVLS)"]
    names = dict(zip(SIZES, taken(sim.cluster("dgx-h100", nodes=1), SIZES), strict=True))
    for size in (4 * MIB, 8 * MIB):
        assert slower[size] > 1.05
        assert names[size] == "nvls"
    assert slower[512 * MIB] < 0.8


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-b200"])
def test_over_nodes_trees_give_way_to_trees_of_switches(name: str) -> None:
    for nodes in (2, 4, 16):
        names = taken(sim.cluster(name, nodes=nodes), SIZES)
        assert names == sorted(names, key=["tree", "nvls_tree"].index)
        assert set(names) == {"tree", "nvls_tree"}


def test_what_logs_of_nccl_say() -> None:
    """nccl-tests issue 196: on two nodes trees, beyond what the network gives a ring. nccl issue 1801: rings for large payloads
    on three parts of an NVL72 whose switch is told not to add up. nccl issue 1752: 64 nodes of 8 H200, trees up to 16 MiB and
    trees of switches from 32 MiB on.
    """
    assert taken(sim.cluster("dgx-a100", nodes=2), [8, 64 * KIB, MIB, 256 * MIB]) == ["tree"] * 4
    thirds = Group(12, 3, "blackwell", "nvlink", 900 * GB, 4 * 50 * GB)
    assert chosen(16 * GIB, thirds, ("ring", "tree")) == "ring"
    assert taken(sim.cluster("dgx-h200", nodes=64), [16 * MIB, 32 * MIB]) == ["tree", "nvls_tree"]


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "broadcast"])
def test_what_has_one_way_takes_it(kind: str) -> None:
    for nodes in (1, 2):
        assert set(taken(sim.cluster("dgx-h100", nodes=nodes), [8, MIB, GIB], kind)) == {"ring"}


@given(
    st.sampled_from(["volta", "ampere", "hopper", "blackwell"]),
    st.integers(1, 64),
    st.integers(1, 8),
    st.sampled_from(["nvlink", "pcie"]),
    st.integers(0, 34),
)
def test_the_least_is_taken_and_all_is_finite(gpu: str, nodes: int, per_node: int, link: str, octave: int) -> None:
    ranks = nodes * per_node
    if ranks < 2:
        return
    who = replace(group(gpu, ranks, nodes), link=link)
    names = ("ring", "tree", "nvls", "sharp")
    name = chosen(2**octave, who, names)
    costs = {other: nccl_estimate_s(other, 2**octave, who) for other in names}
    assert costs[name] == min(costs.values())
    assert 1 / US_PER_S < costs[name] < 1000
    assert nodes > 1 or name != "sharp"
    if gpu in ("volta", "ampere"):
        assert name in ("ring", "tree", "sharp"), "their switches do not add up"


def test_generations_of_constants() -> None:
    named = {"sm_70": "volta", "sm_75": "volta", "sm_80": "ampere", "sm_89": "ampere", "sm_90": "hopper", "sm_103": "blackwell"}
    assert {name: generation(name, 0.0) for name in named} == named
    assert generation("sm_120", 0.0) == "blackwell"
    assert generation("sm_90a", 0.0) == "hopper"
    assert generation("gfx942", 448 * GB) == "ampere"
    assert [generation("", rate * GB) for rate in (900, 450, 300, 150)] == ["blackwell", "hopper", "ampere", "volta"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-b200", "aws-p5", "dgx1-v100", "l40s-pcie"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_whatever_is_taken_the_time_alone_is_that_of_the_fabric(name: str, nodes: int) -> None:
    """No messages of a choice need longer than what is known of the library on these links."""
    cluster = sim.cluster(name, nodes=nodes)
    timing = policy_on(cluster).timing
    assert timing
    on = np.arange(cluster.gpus) // cluster.gpus_per_node
    for kind in KINDS:
        for row in time_collective(kind, cluster, SIZES[::4]):
            known = timing(kind, "auto", on, row.size_bytes)
            assert known
            assert row.time_s == pytest.approx(known.seconds, rel=1e-3, abs=2e-9), (kind, row.size_bytes, row.algorithm)


def test_at_face_value_the_fastest_is_taken() -> None:
    cluster = sim.cluster("dgx-h100", nodes=2, fabric="ideal")
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        for row in time_collective(kind, cluster, [8, MIB, GIB]):
            least = min(
                time_collective(kind, cluster, [row.size_bytes], algorithm=name)[0].time_s
                for name in ("ring", "hierarchical_pipelined")
            )
            assert row.time_s <= least


# Switch sizes as data -------------------------------------------------------------------------------------------------------


def laid_down(folder: Path, *lines: str, start: str = "ndr-ib") -> str:
    """The path of a fabric like one that ships, with lines under `choices:`."""
    own = folder / "mine.yaml"
    text = fabric_files.text(fabric_files.outline(start)) + "choices:\n" + "".join(f"  - {{{line}}}\n" for line in lines)
    own.write_text(text, encoding="utf-8")
    return str(own)


def test_the_first_line_that_holds_a_call_decides() -> None:
    lines = (Choice("all_reduce", "tree", 64 * KIB, 2), Choice("all_reduce", "ring", 64 * KIB), Choice("all_gather", "bruck", 8))

    def covering(*call: Any) -> list[str]:
        return [line.algorithm for line in lines if line.covers(*call)]

    assert covering("all_reduce", 64 * KIB, 2) == ["tree", "ring"]
    assert covering("all_reduce", 64 * KIB, 3) == ["ring"]
    assert covering("all_reduce", 64 * KIB + 1, 2) == []
    assert covering("all_gather", 8, 100) == ["bruck"]
    assert covering("broadcast", 8, 1) == []


def test_switch_sizes_of_a_file_decide_and_time_what_they_take(tmp_path: Path) -> None:
    lines = ("kind: all_reduce, algorithm: ring, size_up_to: 64 KiB", "kind: all_gather, algorithm: bruck, size_up_to: 4 KiB")
    cluster = sim.cluster("dgx-h100", nodes=2, fabric=laid_down(tmp_path, *lines))
    sizes = [8, 64 * KIB, 128 * KIB]
    plain = sim.cluster("dgx-h100", nodes=2)
    assert taken(plain, sizes) == ["tree"] * 3
    rows = time_collective("all_reduce", cluster, sizes)
    assert [row.algorithm for row in rows] == ["ring", "ring", "tree"]
    by_name = time_collective("all_reduce", cluster, sizes, algorithm="ring")
    assert [row.time_s for row in rows[:2]] == [row.time_s for row in by_name[:2]]
    assert rows[2].time_s == time_collective("all_reduce", plain, sizes)[2].time_s
    assert taken(cluster, [8, MIB], "all_gather") == ["bruck", "ring"]


def test_lines_are_written_as_they_are_read(tmp_path: Path) -> None:
    lines = ("kind: all_reduce, algorithm: nvls_tree, size_up_to: 1 MiB, nodes_up_to: 4", "kind: alltoall, algorithm: pairwise")
    read = fabric_files.load(laid_down(tmp_path, *lines))
    assert read.choices == (Choice("all_reduce", "nvls_tree", MIB, 4), Choice("alltoall", "pairwise"))
    again = tmp_path / "again.yaml"
    again.write_text(fabric_files.text(read), encoding="utf-8")
    assert fabric_files.load(str(again)).choices == read.choices


def test_a_line_that_does_not_fit_a_group_is_passed_over(tmp_path: Path) -> None:
    line = "kind: all_reduce, algorithm: hierarchical"
    cluster = sim.cluster("dgx-h100", nodes=2, fabric=laid_down(tmp_path, line))
    assert taken(cluster, [MIB]) == ["hierarchical"]
    uneven = np.array([0, 1, 2, 8])
    assert time_collective("all_reduce", cluster, [MIB], gpus=uneven)[0].algorithm in ("ring", "tree")


def test_faults_of_lines_are_told_with_their_place(tmp_path: Path) -> None:
    lines = (
        "kind: all_reduce, algorithm: rng",
        "kind: all_reduce, algorithm: bruck",
        "kind: all_reduce, algorithm: ring, size: 8 B",
    )
    with pytest.raises(UserError) as refused:
        fabric_files.load(laid_down(tmp_path, *lines))
    said = str(refused.value)
    for words in ("mine.yaml:", "'rng'", "did you mean 'ring'", "bruck does no all_reduce", "size"):
        assert words in said
    assert trainsim("collective", "all_reduce", "--cluster", "dgx-h100", "-e", "8").code == 0


# One rule chooses, the same rule times ------------------------------------------------------------------------------------


SPREAD_OVER = [
    (name, nodes)
    for name in sorted(catalog.files("clusters"))
    for nodes in (1, 2, 4, 16)
    if nodes > 1 or name != "two-sites-h100"
]


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("name", "nodes"), SPREAD_OVER)
def test_t7_8_auto_takes_as_long_as_the_algorithm_that_it_names(name: str, nodes: int) -> None:
    """For every cluster that ships, every kind of collective and sizes from 8 B to 8 GiB, to the nanosecond, provenance too."""
    cluster = sim.cluster(name, nodes=nodes)
    for kind in theory.KINDS:
        rows = time_collective(kind, cluster, [2**octave for octave in range(3, 34, 3)])
        for algorithm in {row.algorithm for row in rows}:
            own = [row for row in rows if row.algorithm == algorithm]
            assert own == time_collective(kind, cluster, [row.size_bytes for row in own], algorithm=algorithm)


def test_the_command_times_what_it_prints() -> None:
    asked = ["collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", "16", "-b", "8G", "-e", "8G", "--json"]
    (auto,) = trainsim(*asked).record["rows"]
    assert auto["algorithm"] == "nvls_tree"
    assert auto == trainsim(*asked, "--algorithm", "nvls_tree").record["rows"][0]
    assert auto["time_us"] != trainsim(*asked, "--algorithm", "ring").record["rows"][0]["time_us"]


def test_validate_times_what_the_cluster_takes() -> None:
    """A row of a table and the same machine as a cluster: one choice, one time."""
    for nodes, size in ((1, 2**20), (1, 2**28), (16, 2**24), (16, 2**33)):
        links = links_in("H100-SXM", "nvlink4-nvswitch", 8 * nodes, nodes, network="ndr-ib")
        call = Call("all_reduce", size, 8 * nodes, nodes)
        known_s = uncontended_time(call, links.inside, links.across, links.curves).seconds
        (row,) = time_collective("all_reduce", sim.cluster("dgx-h100", nodes=nodes), [size])
        assert row.time_s == pytest.approx(known_s, rel=1e-6, abs=2e-9), (nodes, size, row.algorithm)


def test_costs_of_a_run_name_the_algorithm_that_was_simulated() -> None:
    plan, job = sim.Plan(tp=8, dp=2), sim.Job(sequence_length=1024, global_batch=4)
    run = sim.simulate(sim.model("llama3-8b"), sim.cluster("dgx-h100", nodes=2), plan, job, allow_oom=True)
    shapes = [cost.shape for cost in run.collective_costs]
    assert shapes
    assert all(shape.rpartition(", ")[2] in catalog.files("collectives") for shape in shapes)


def test_a_series_in_which_a_library_chose_speaks_of_what_it_took() -> None:
    """Twice the theory where the ring was taken, three times where the switch was."""
    inside = fabric_files.load("nvlink4-nvswitch").inside
    assert inside

    def base_s(size: float, name: str) -> float:
        return theory.seconds(Call("all_reduce", size, 8, 1, name), inside)

    sizes = [2.0**octave for octave in range(10, 31)]
    knots = [(size, theory.taken(Call("all_reduce", size, 8), inside, None)) for size in sizes]
    assert {name for _, name in knots} == {"ring", "nvls"}
    times = tuple((size, base_s(size, name) * (2 if name == "ring" else 3)) for size, name in knots)
    series = Curve("all_reduce", "auto", 8, 1, times, 0.01, inside)
    for size, name in knots:
        ring, nvls, auto = (
            uncontended_time(Call("all_reduce", size, 8, 1, name), inside, None, [series]) for name in ("ring", "nvls", "auto")
        )
        assert auto == (ring if name == "ring" else nvls)
        assert ring.seconds == pytest.approx(2 * base_s(size, "ring"), rel=1e-6)
        assert nvls.seconds == pytest.approx(3 * base_s(size, "nvls"), rel=1e-6)
        assert (ring.provenance == "interpolated") == (name == "ring"), "where it was not taken nobody measured it"
    tree = uncontended_time(Call("all_reduce", 2.0**20, 8, 1, "tree"), inside, None, [series])
    assert tree.provenance == "theoretical"


def test_near_ties_of_ring_and_tree() -> None:
    """Over two nodes a tree, as logs say (nccl-tests issue 196); over more the faster of the two."""
    for name, nodes in (("dgx-a100", 2), ("dgx-a100", 16), ("dgx-a100", 64), ("alps-gh200", 4)):
        cluster = sim.cluster(name, nodes=nodes)
        links = links_on(cluster)
        inside, across = links.inside, links.across
        for size in SIZES:
            call = Call("all_reduce", size, cluster.gpus, nodes)
            if nccl_choice.is_tie(size, theory.group(call, inside, across)):
                ring_s, tree_s = (theory.seconds(replace(call, algorithm=name), inside, across) for name in ("ring", "tree"))
                wanted = "tree" if nodes == 2 or tree_s < ring_s else "ring"
                assert theory.taken(call, inside, across) == wanted


# Libraries ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "small", "large"),
    [("nccl", "ring", "nvls"), ("nccl-plain", "ring", "ring"), ("trtllm", "direct", "nvls"), ("vLLM", "direct", "nvls")],
)
def test_auto_is_the_choice_of_the_library(library: str, small: str, large: str) -> None:
    asked = ("collective", "all_reduce", "--cluster", "dgx-h100", "--nodes", "1", "--library", library, "--json")
    for size, name in (("64K", small), ("256M", large)):
        (row,) = trainsim(*asked, "-b", size, "-e", size).record["rows"]
        assert row["algorithm"] == name
        assert row["provenance"] == "interpolated"


def test_a_library_that_is_not_known_is_refused_with_the_nearest() -> None:
    said = trainsim("collective", "all_reduce", "--cluster", "dgx-h100", "--library", "trt-llm")
    assert said.code == 2
    assert "no library 'trt-llm'\n    hint: did you mean 'trtllm'?" in said.err


def test_a_bridge_of_a_box_counts_in_its_measured_times() -> None:
    """A pair on a bridge is faster than over PCIe, and beyond pairs PCIe sets the rate."""
    box = {"gpu": "a40", "gpus_per_node": 4, "intra_node": "PCIe 31.5 GB/s"}
    bare, bridged = sim.cluster(box), sim.cluster({**box, "box": {"bridge": "56.25 GB/s"}})
    for gpus, least, most in ((2, 1.5, 4.0), (4, 1.0, 2.0)):
        times = [time_collective("all_reduce", cluster, [GIB], gpus=np.arange(gpus))[0].time_s for cluster in (bare, bridged)]
        assert least < times[0] / times[1] < most, gpus


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-b200", "alps-gh200", "aws-p5", "gcp-a3-mega"])
def test_over_two_nodes_an_all_reduce_takes_no_longer_than_its_two_halves_and_does_not_jump(name: str) -> None:
    """Whatever the number of GPUs of a node that take part: a tree over two nodes takes about as long as a ring."""
    cluster = sim.cluster(name, nodes=2)
    sizes = [2**octave for octave in range(24, 34)]
    for of_node in {1, 2, cluster.gpus_per_node // 2, cluster.gpus_per_node} - {0}:
        times = {
            kind: np.array([row.time_s for row in sim.collective(kind, cluster, sizes, gpus=2 * of_node, nodes=2).rows])
            for kind in ("all_reduce", "reduce_scatter", "all_gather")
        }
        assert (times["all_reduce"] < 1.15 * (times["reduce_scatter"] + times["all_gather"])).all(), of_node
        assert (times["all_reduce"][1:] < 2.3 * times["all_reduce"][:-1]).all(), of_node
        assert (times["all_reduce"][1:] > times["all_reduce"][:-1]).all(), of_node


@pytest.mark.parametrize("algorithm", ["ring", "tree", "auto"])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "aws-p5"])
def test_a_group_leaves_its_nodes_by_as_many_nics_as_the_node_with_fewest_ranks_has(name: str, algorithm: str) -> None:
    """More GPUs in the other node make nothing quicker; as many as there are in both do."""
    cluster, sizes = sim.cluster(name, nodes=2), [2**26, 2**30]

    def took_s(first: int, second: int) -> Any:
        gpus = [*range(first), *range(8, 8 + second)]
        return np.array([row.time_s for row in sim.collective("all_reduce", cluster, sizes, gpus=gpus, algorithm=algorithm).rows])

    few, uneven, many = took_s(4, 4), took_s(8, 4), took_s(8, 8)
    assert (uneven > 0.9 * few).all()
    assert (uneven > many).all()


def test_direct_over_nodes_has_the_times_of_its_own_rounds() -> None:
    cluster, sizes = sim.cluster("dgx-h100", nodes=2), [2**10, 2**20, 2**28]
    direct, auto = (sim.collective("all_reduce", cluster, sizes, algorithm=name).rows for name in ("direct", "auto"))
    wire_s = [2 * size / 16 * 8 * 8 / (8 * 50 * GB) for size in sizes]  # of both phases, an eighth of a node's data to each of 8
    for one, other, least_s in zip(direct, auto, wire_s, strict=True):
        assert one.time_s > max(1.5 * other.time_s, least_s)


def test_gpus_may_be_listed_in_any_order_where_groups_are_bound_in_theirs() -> None:
    cluster = sim.cluster("dgx-h100", nodes=2)
    one, other = (
        sim.collective("all_reduce", cluster, [2**20], gpus=gpus, algorithm="nvls_tree").rows
        for gpus in ([0, 8, 1, 9, 2, 10], [0, 1, 2, 8, 9, 10])
    )
    assert one == other


def test_a_nic_is_no_quicker_than_the_links_of_its_gpus() -> None:
    """On a DGX A100, PCIe has 31.5 GB/s."""
    took_s = [
        sim.collective(
            "all_reduce", sim.cluster("dgx-a100", nodes=2, inter_node=f"8x{rate} Gbit/s"), [2**30], gpus=4, nodes=2
        ).rows
        for rate in (300, 400, 800)
    ]
    assert took_s[0][0].time_s == pytest.approx(took_s[1][0].time_s, rel=0.01) == pytest.approx(took_s[2][0].time_s, rel=0.01)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_nothing_to_reduce_takes_the_latency_alone(algorithm: str) -> None:
    within, across = (fabric_files.load(name) for name in ("nvlink4-nvswitch", "ndr-ib"))
    assert within.inside
    nothing, little = (theory.seconds(Call("all_reduce", size, 2, 2, algorithm), within.inside, across.across) for size in (0, 8))
    assert 0 < nothing <= little
