"""`trainsim validate --kind collectives`: every row, in order, predicted from what describes it and from nothing else."""

from __future__ import annotations

import csv
import gzip
import io
import random
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

import simulator as sim
from simulator.config import fabric_files
from simulator.costs.collectives import theory
from simulator.measurements.csv_tables import read
from simulator.measurements.measured_cluster import INSIDE, cluster_of
from simulator.study.collective import spread
from simulator.units import GB, US_PER_S
from simulator.validate import collectives
from simulator.validate.report import compare_rows, validate

from ..commandline import trainsim
from ..project.source import ROOT
from ..small_scenarios import time_collective
from .described import columns, links_in

TABLE = ROOT.parent / "shared" / "data" / "collectives.csv.gz"
KEYS = ["id", "source_key", "measured", "predicted", "error", "unit", "interval", "memory_gb", "measured_memory_gb", "skipped"]
KEYS += ["provenance", "extrapolated", "note", "apart"]
HIDDEN = ("id", "title", "locator", "notes", "source_key", "tier", "source", "role", "system", "algbw_GBps", "busbw_GBps")
HIDDEN += ("fabric", "algorithm", "nccl", "quality")
COLUMNS = ("system", "gpu", "gpus", "nodes", "gpus_per_node", "inside", "network", "nics_per_node", "nic_gbit", "library")
COLUMNS += ("collective", "bytes")
ROWS = (
    ("HGX H100", "H100-SXM", 8, 1, 8, "nvlink4-nvswitch", "", "", "", "nccl", "all_reduce", 2**26, 340.0),
    ("HGX H100", "H100-SXM", 8, 1, 8, "nvlink4-nvswitch", "", "", "", "nccl-plain", "all_reduce", 2**26, 370.0),
    ("mine", "A100-SXM-80", 64, 8, 8, "nvlink3-nvswitch", "hdr-ib", 8, 200, "nccl", "all_gather", 2**20, 200.0),
    ("mine", "L40S", 4, 1, 4, "pcie4", "", "", "", "nccl", "alltoall", 2**20, 200.0),
    ("nobody's", "unnamed", 4, 1, 4, "", "", "", "", "nccl", "all_reduce", 2**20, 200.0),
    ("theirs", "GB200", 72, 18, 4, "nvlink5-nvl72", "", "", "", "nccl", "all_gather", 2**30, 1700.0),
    ("theirs", "A40", 2, 2, 1, "nvlink-bridge-pairs", "", "", "", "nccl", "sendrecv", 2**20, 300.0),
)


def table(path: Path, rows: object = ROWS, header: tuple[str, ...] = (*COLUMNS, "time_us")) -> Path:
    """Rows as a file, gzipped if its name says so."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)  # type: ignore[arg-type]
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_every_row_is_there_in_order_and_every_skip_has_a_reason(name: str, tmp_path: Path) -> None:
    said = trainsim("validate", "--kind", "collectives", table(tmp_path / name), "--json")
    assert said.code == 0
    record = said.record
    assert list(record) == ["rows", "sources", "overall"]
    assert [list(row) for row in record["rows"]] == [KEYS] * len(ROWS)
    assert [row["id"] for row in record["rows"]] == list(range(len(ROWS)))
    assert [row["source_key"] for row in record["rows"]] == [f"{row[0]}+{row[10]}" for row in ROWS]
    assert [row["measured"] for row in record["rows"]] == [row[-1] for row in ROWS]
    for row in record["rows"]:
        assert (row["predicted"] is None) == bool(row["skipped"])
        if row["predicted"] is not None:
            assert row["unit"] == "us"
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
            assert row["interval"][0] < row["predicted"] < row["interval"][1]
    assert [row["skipped"] for row in record["rows"] if row["skipped"]] == [
        "inside is blank",
        "network is blank, and the row is of 2 nodes",
    ]
    assert record["overall"]["n"] == 5
    assert record["overall"]["skipped"] == 2
    assert record["sources"]["HGX H100+all_reduce"]["n"] == 2


def test_a_gpu_that_nobody_knows_is_one_with_such_links_and_that_is_said(tmp_path: Path) -> None:
    known, unknown = (
        compare_rows(collectives, read(table(tmp_path / "rows.csv", [(*ROWS[0][:1], gpu, *ROWS[0][2:])])), "rows").rows[0]
        for gpu in ("H100-SXM", "X100")
    )
    assert (known.note, unknown.note) == (None, "gpu: 'X100' is not known; h100, which has such links, counts")
    assert known.predicted == unknown.predicted


def test_the_same_for_eyes(tmp_path: Path) -> None:
    said = trainsim("validate", "--kind", "collectives", table(tmp_path / "rows.csv"))
    assert said.code == 0
    assert "HGX H100+all_reduce" in said.out
    assert "skipped 1: inside is blank" in said.out


def test_the_predictor_sees_nothing_that_was_measured_and_no_name() -> None:
    assert not {*HIDDEN, "time_us"} & set(collectives.READS)


def test_shuffling_and_blanking_what_is_hidden_changes_no_prediction(tmp_path: Path) -> None:
    rows = read(table(tmp_path / "rows.csv"))
    rng = random.Random(1)
    times = [row["time_us"] for row in rows]
    rng.shuffle(times)
    changed = [
        {**row, **dict.fromkeys(HIDDEN, ""), "time_us": time, "notes": f"{i}"}
        for i, (row, time) in enumerate(zip(rows, times, strict=True))
    ]
    order = list(range(len(rows)))
    rng.shuffle(order)
    before = [row.predicted for row in compare_rows(collectives, rows, "before").rows]
    after = [row.predicted for row in compare_rows(collectives, [changed[i] for i in order], "after").rows]
    assert after == [before[i] for i in order]


def test_a_row_keeps_its_own_id(tmp_path: Path) -> None:
    rows = [(f"row-{i}", *row) for i, row in enumerate(ROWS)]
    path = table(tmp_path / "rows.csv", rows, ("id", *COLUMNS, "time_us"))
    assert [row.id for row in validate("collectives", path).rows] == [f"row-{i}" for i in range(len(ROWS))]


@pytest.mark.parametrize("kind", ["trainings", "kernel", "collective"])
def test_kinds_that_are_not_there_are_refused_with_a_hint(kind: str, tmp_path: Path) -> None:
    said = trainsim("validate", "--kind", kind, table(tmp_path / "rows.csv"))
    assert said.code == 2
    assert "hint" in said.err


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    said = trainsim("validate", "--kind", "collectives", path)
    assert said.code == 2
    assert f"{path}:1: not such a table: it begins with 'a,b'" in said.err
    path.write_text("gpu,gpus,node,inside,network,collective,bytes\n" + ",".join("1" * 7), encoding="utf-8")
    said = trainsim("validate", "--kind", "collectives", path)
    assert f"{path}:1: no column 'nodes'\n    hint: did you mean 'node'?" in said.err
    path.write_text("gpu,gpus,nodes,inside,network,collective,time_us\n" + ",".join("1" * 7), encoding="utf-8")
    said = trainsim("validate", "--kind", "collectives", path)
    assert f"{path}:1: no column 'bytes'\n    hint: known: collective, gpu" in said.err, "time_us is not alike"
    path.write_text("Op,Dtype,Gpu\ngemm,bf16,h100\n", encoding="utf-8")
    assert "no column 'gpu'\n    hint: did you mean 'Gpu'?" in trainsim("validate", "--kind", "kernels", path).err
    assert trainsim("validate", "--kind", "collectives", tmp_path / "none.csv").code == 2
    assert trainsim("validate", "--kind", "collectives").code == 2


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"sharp": "yes", "network": "efa"}, "sharp: yes, but the switches of efa reduce nothing, as those of InfiniBand may"),
        ({"nics_per_node": "0.5"}, "nics_per_node: '0.5' is not a count"),
        ({"nics_per_node": "0"}, "nics_per_node: '0' is not a count"),
    ],
)
def test_a_network_that_cannot_be_is_skipped_with_its_column(cells: dict[str, str], reason: str) -> None:
    machine = {"gpu": "H100-SXM", "gpus": "16", "nodes": "2", "inside": "nvlink4-nvswitch", "network": "ndr-ib"}
    row = {**machine, "collective": "all_reduce", "bytes": "1048576", "time_us": "60"}
    found = compare_rows(collectives, [row, {**row, **cells}], "table").rows
    assert (found[0].skipped, found[1].skipped) == (None, reason)


def test_gpus_of_amd_are_wired_each_to_each() -> None:
    """A pair has one link of seven, 64 GB/s, and eight GPUs together have all."""
    size = 2**30
    row = {"gpu": "MI300X", "nodes": "1", "inside": "xgmi3-mesh", "network": "", "collective": "all_reduce", "bytes": f"{size}"}
    pair, eight = compare_rows(collectives, [{**row, "gpus": "2"}, {**row, "gpus": "8"}], "table").rows
    assert pair.predicted
    assert eight.predicted
    assert size / pair.predicted * US_PER_S < 64 * GB
    assert 150 * GB < size * 2 * 7 / 8 / eight.predicted * US_PER_S < 448 * GB


@pytest.mark.parametrize("time", ["", "0", "-3", "nan", "inf", "1e400", "1e-320", "fast"])
def test_what_was_not_measured_is_predicted_all_the_same(time: str, tmp_path: Path) -> None:
    """Blanking what was measured changes no prediction, and no row goes missing."""
    before = trainsim("validate", "--kind", "collectives", table(tmp_path / "rows.csv"), "--json").record["rows"]
    path = table(tmp_path / "blank.csv", [ROWS[0], *((*row[:-1], time) for row in ROWS[1:])])
    said = trainsim("validate", "--kind", "collectives", path, "--json")
    assert said.code == 0
    rows = said.record["rows"]
    assert [row["predicted"] for row in rows] == [row["predicted"] for row in before]
    assert [(row["measured"], row["error"]) for row in rows[1:]] == [(None, None)] * (len(ROWS) - 1)
    assert said.record["overall"]["n"] == 1
    assert said.record["overall"]["skipped"] == 2


def test_kernels_without_a_time_are_predicted_too(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    head = "gpu,op,dtype,m,n,k,batch,seq,heads,kv_heads,head_dim,causal,variant,time_us\n"
    path.write_text(head + "".join(f"H100-SXM,gemm,bf16,4096,4096,4096,1,,,,,,,{t}\n" for t in ("", "0", "nan", "1e400", "200")))
    rows = trainsim("validate", "--kind", "kernels", path, "--json").record["rows"]
    assert len({row["predicted"] for row in rows}) == 1
    assert [row["error"] is None for row in rows] == [True] * 4 + [False]


def test_columns_of_what_was_measured_may_be_missing(tmp_path: Path) -> None:
    rows = [row[1:-1] for row in ROWS]
    said = trainsim("validate", "--kind", "collectives", table(tmp_path / "rows.csv", rows, COLUMNS[1:]), "--json")
    assert said.code == 0
    assert [row["source_key"] for row in said.record["rows"]] == [f"+{row[10]}" for row in ROWS]
    assert said.record["overall"]["n"] == 0


def test_nodes_that_are_not_told_are_as_many_as_the_gpus_fill(tmp_path: Path) -> None:
    row = dict(zip((*COLUMNS, "time_us"), ROWS[2], strict=True))
    rows = [row, {**row, "nodes": ""}, {**row, "nodes": "", "gpus_per_node": "8.0"}, {**row, "nodes": "", "gpus_per_node": ""}]
    path = table(tmp_path / "rows.csv", [tuple(found.values()) for found in rows])
    told, blank, as_float, neither = trainsim("validate", "--kind", "collectives", path, "--json").record["rows"]
    assert told["predicted"] == blank["predicted"] == as_float["predicted"]
    assert "nodes" in neither["skipped"]


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("all_reduce", ("AllReduce", "all-reduce", "allreduce_perf", "All Reduce")),
        ("alltoall", ("all_to_all", "AllToAll", "alltoall_perf")),
        ("sendrecv", ("send_recv", "SendRecv", "send-recv", "sendrecv_perf", "Send/Recv")),
    ],
)
def test_collectives_are_known_however_they_are_written(kind: str, written: tuple[str, ...], tmp_path: Path) -> None:
    rows = [(*ROWS[2][:10], word, *ROWS[2][11:]) for word in (kind, *written)]
    judged_rows = validate("collectives", table(tmp_path / "rows.csv", rows)).rows
    assert [row.skipped for row in judged_rows] == [None] * len(rows)
    assert len({row.predicted for row in judged_rows}) == 1


def test_a_collective_that_is_none_is_skipped_with_its_reason(tmp_path: Path) -> None:
    rows = [(*ROWS[2][:10], word, *ROWS[2][11:]) for word in ("reduce", "send", "recv_send")]
    skipped = [row.skipped or "" for row in validate("collectives", table(tmp_path / "rows.csv", rows)).rows]
    assert ["is none of all_reduce" in why for why in skipped] == [True] * 3


def test_collective_and_validate_are_one_road(tmp_path: Path) -> None:
    """Of 8 GPUs measured, of 8 over a longer way, and of links that no curve speaks of."""
    common = ("-b", "1M", "-e", "1M", "--json")
    asked = [
        ("dgx-h100", 8, 1, "H100-SXM", "nvlink4-nvswitch", ""),
        ("dgx-h100", 64, 8, "H100-SXM", "nvlink4-nvswitch", "ndr-ib"),
    ]
    asked += [("dgx1-v100", 8, 1, "V100", "nvlink2-mesh", ""), ("dgx-h100", 7, 1, "H100-SXM", "nvlink4-nvswitch", "")]
    for cluster, gpus, nodes, gpu, inside, network in asked:
        flags = ("--cluster", cluster, "--gpus", gpus, "--nodes", nodes)
        (row,) = trainsim("collective", "all_reduce", *flags, *common).record["rows"]
        line = ("mine", gpu, gpus, nodes, gpus // nodes, inside, network, "", "", "nccl", "all_reduce", 2**20, 100.0)
        (other,) = validate("collectives", table(tmp_path / "rows.csv", [line])).rows
        assert (other.provenance, other.extrapolated) == (row["provenance"], row["extrapolated"]), cluster
        assert other.extrapolated == (other.provenance != "interpolated")
        assert other.predicted == row["time_us"], cluster


@pytest.mark.parametrize("kind", theory.KINDS)
def test_any_number_of_gpus_of_a_cube_mesh_takes_its_routes(kind: str, tmp_path: Path) -> None:
    counts, box = range(2, 9), sim.cluster("dgx1-v100", nodes=1)
    lines = [("mine", "V100", n, 1, n, "nvlink2-mesh", "", "", "", "", kind, 2**30, 100.0) for n in counts]
    rows = validate("collectives", table(tmp_path / "rows.csv", lines)).rows
    for n, row in zip(counts, rows, strict=True):
        (timed,) = time_collective(kind, box, [2**30], gpus=spread(box, n))
        assert row.predicted == timed.time_s * US_PER_S, n


def test_rows_tell_how_they_are_known(tmp_path: Path) -> None:
    path = table(tmp_path / "rows.csv")
    rows = trainsim("validate", "--kind", "collectives", path, "--json").record["rows"]
    found = ["interpolated", "interpolated", "theoretical", "theoretical", None, "theoretical", None]
    assert [row["provenance"] for row in rows] == found
    assert [row["extrapolated"] for row in rows] == [how and how == "theoretical" for how in found]
    assert "provenance: 3 theoretical, 2 interpolated\n" in trainsim("validate", "--kind", "collectives", path).out


def test_few_rows_are_listed_and_many_when_asked_for(tmp_path: Path) -> None:
    few, many = table(tmp_path / "few.csv"), table(tmp_path / "many.csv", ROWS * 4)
    said = [
        trainsim("validate", "--kind", "collectives", few).out,
        trainsim("validate", "--kind", "collectives", many).out,
        trainsim("validate", "--kind", "collectives", many, "--rows").out,
    ]
    assert ["predicted (us)" in out for out in said] == [True, False, True]
    line = next(line for line in said[2].splitlines() if line.startswith("8 ") or line.lstrip().startswith("8 "))
    assert "370.00" in line
    assert "%" in line
    assert "skipped 1: inside is blank, line 6" in said[0]
    assert "skipped 4: inside is blank, lines 6, 13, 20, 27" in said[1]


# Columns --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "gpu", "name", "rate", "mesh", "node"),
    [
        ("nvlink2-mesh", "V100-SXM2", "nvlink2-mesh", 150, 5, 8),
        ("nvlink3-mesh", "A100-SXM-40", "nvlink3-nvswitch", 300, 4, 4),
        ("nvlink3-nvswitch", "A100-SXM-80", "nvlink3-nvswitch", 300, 0, 8),
        ("nvlink4-mesh", "GH200", "nvlink4-nvswitch", 450, 4, 4),
        ("nvlink4-nvswitch", "H100-SXM", "nvlink4-nvswitch", 450, 0, 8),
        ("nvlink5-nvswitch", "B200-SXM", "nvlink5-nvswitch", 900, 0, 8),
        ("nvlink5-nvl72", "GB200", "nvlink5-nvswitch", 900, 0, 72),
        ("nvlink-bridge-pairs", "A40", "pcie4", 56.25, 0, 8),
        ("nvlink-bridge-pairs", "H100-NVL/PCIe", "pcie5", 300, 0, 8),
        ("xgmi3-mesh", "MI300X", "xgmi-mi300", 448, 8, 8),
        ("pcie4", "L40S", "pcie4", 31.5, 0, 8),
        ("pcie5", "RTXPRO6000", "pcie5", 63, 0, 8),
    ],
)
def test_every_word_for_links_inside(inside: str, gpu: str, name: str, rate: float, mesh: int, node: int) -> None:
    found = links_in(gpu, inside, 4).inside
    assert (found.name, found.bytes_per_s / 10**9, found.mesh) == (name, rate, mesh)
    assert cluster_of(columns(gpu, inside, 4))[0].gpus_per_node == node


def test_every_word_for_links_inside_is_tried_here() -> None:
    (parameters,) = test_every_word_for_links_inside.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in parameters.args[1]} == set(INSIDE)


@pytest.mark.parametrize(
    ("inside", "gpu", "written", "rate"),
    [
        ("nvlink4-nvswitch", "H800", "200", 200),
        ("nvlink2-mesh", "P100", "80", 80),
        ("pcie4", "A10G", "16", 16),
        ("pcie4", "L40S", "32", 31.5),
        ("pcie5", "RTX 5090", "64", 63),
        ("nvlink-bridge-pairs", "A100-PCIe-80", "200", 200),
    ],
)
def test_a_rate_inside_is_one_way_and_of_pcie_may_be_before_encoding(inside: str, gpu: str, written: str, rate: float) -> None:
    assert links_in(gpu, inside, 2, inside_GBps=written).inside.bytes_per_s == pytest.approx(rate * 10**9)


NETWORKS = ["hdr-ib", "ndr-ib", "xdr-ib", "efa", "roce", "tcp", "tcpx", "tcpxo", "slingshot-11"]


@pytest.mark.parametrize("network", NETWORKS)
def test_every_word_for_a_network_has_the_nics_of_its_fabric(network: str) -> None:
    across, shipped = links_in("H100-SXM", "nvlink4-nvswitch", 16, 2, network=network).across, fabric_files.load(network).across
    assert across
    assert shipped
    assert (across.name, across.nics, across.nic_bytes_per_s) == (network, shipped.nics, shipped.nic_bytes_per_s)


@pytest.mark.parametrize(
    ("nics", "gbit", "pooled"), [(8, 400, (8, 400)), (4, 100, (4, 100)), (32, 100, (8, 400)), (1, 25, (1, 25))]
)
def test_nics_are_those_of_a_node_and_pooled_beyond_one_for_each_gpu(nics: int, gbit: int, pooled: tuple[int, int]) -> None:
    across = links_in("H100-SXM", "nvlink4-nvswitch", 16, 2, network="efa", nics_per_node=nics, nic_gbit=gbit).across
    assert across
    assert (across.nics, across.nic_bytes_per_s * 8 / 10**9) == pooled


def test_a_rack_is_one_node_however_its_trays_are_counted() -> None:
    cluster, gpus, nodes = cluster_of(columns("GB200", "nvlink5-nvl72", 72, 18))
    assert (cluster.nodes, gpus, nodes) == (1, 72, 1)
    two = columns("GB200", "nvlink5-nvl72", 144, 36, network="ndr-ib", nics_per_node=4, nic_gbit=400)
    cluster, _, nodes = cluster_of(two)
    assert (nodes, cluster.nics_per_node, cluster.rail_bytes_per_s) == (2, 72, 50e9)
    assert cluster_of({**two, "nics_per_node": ""})[0].nics_per_node == 72


@pytest.mark.parametrize("counted", [{"nodes": 32}, {"nodes": 2}, {"nodes": "", "gpus_per_node": 4}])
def test_racks_that_are_not_full_have_a_nic_for_each_gpu_in_use(counted: dict[str, object]) -> None:
    """128 GPUs of two racks are 64 and 64, which share no NIC, whether trays or racks are counted as nodes."""
    cells = {name: str(cell) for name, cell in {"gpus_per_node": "", **counted}.items()}
    cluster, gpus, nodes = cluster_of({**columns("GB200", "nvlink5-nvl72", 128, 1, network="ndr-ib"), **cells})
    assert (cluster.nodes, gpus, nodes) == (2, 128, 2)
    assert (cluster.gpus_per_node, cluster.nics_per_node, cluster.rail_bytes_per_s) == (64, 64, 50e9)


def test_switches_of_a_network_reduce_where_a_row_says_yes() -> None:
    b200 = {"network": "ndr-ib", "nics_per_node": 8, "nic_gbit": 400}
    said = [links_in("B200", "nvlink5-nvswitch", 16, 2, sharp=sharp, **b200).across for sharp in ("yes", "no", "")]
    assert [across.sharp for across in said if across] == [True, False, False]


def test_a_gpu_that_is_not_known_is_taken_for_the_usual_one() -> None:
    for gpu in ("unnamed", "", "something new"):
        assert links_in(gpu, "nvlink4-nvswitch", 8) == replace(links_in("H100-SXM", "nvlink4-nvswitch", 8), read_curves=ANY)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inside": ""}, "inside is blank"),
        ({"inside": "nvlink4-nvswich"}, "inside: 'nvlink4-nvswich' is not known; did you mean 'nvlink4-nvswitch'?"),
        ({"nodes": "2"}, "network is blank, and the row is of 2 nodes"),
        ({"nodes": "2", "network": "ndr"}, "network: 'ndr' is not known; did you mean 'ndr-ib'?"),
        ({"nodes": "2", "network": "nvlink4-nvswitch"}, "network: 'nvlink4-nvswitch' is not known"),
        ({"library": "ncl"}, "library: 'ncl' is not known; did you mean 'nccl'?"),
        ({"asked": "rings"}, "asked: 'rings' is not known; did you mean 'ring'?"),
        ({"sharp": "maybe"}, "sharp: 'maybe' is not known"),
        ({"gpus": "1"}, "gpus: 1, which has no other to talk to"),
        ({"gpus": "7", "nodes": "2", "network": "ndr-ib"}, "7 GPUs do not spread evenly over 2 nodes of 8"),
        ({"inside": "nvlink-bridge-pairs", "gpu": "L4"}, "inside: no NVLink bridge is known between l4"),
        ({"inside_GBps": "fast"}, "inside_GBps: 'fast' is not a positive number"),
        ({"inside_GBps": "0"}, "inside_GBps: '0' is not a positive number"),
        ({"inside": "nvlink2-mesh", "gpus": "10"}, "a cube mesh has 8 GPUs, not 10"),
        ({"collective": "reduce"}, "collective: 'reduce' is none of all_reduce"),
        ({"bytes": "none"}, "bytes: 'none' is not a number of bytes"),
        ({"collective": "alltoall", "asked": "tree"}, "tree does no alltoall"),
        ({"asked": "nvls", "library": "nccl", "inside": "nvlink3-nvswitch", "gpu": "A100"}, "nvls needs switches that reduce"),
    ],
)
def test_what_describes_no_machine_is_skipped_with_the_nearest_word(changes: dict[str, str], reason: str) -> None:
    good = columns("H100-SXM", "nvlink4-nvswitch", 8) | {"collective": "all_reduce", "bytes": "1024", "system": "mine"}
    fine, bad = compare_rows(collectives, [good, good | changes], "rows").rows
    assert fine.predicted
    assert bad.predicted is None
    assert reason in (bad.skipped or "")


@pytest.mark.parametrize(
    ("library", "asked", "size", "same_as"),
    [
        ("nccl", "auto", 2**28, ("", "")),
        ("", "", 2**28, ("nccl", "auto")),
        ("vllm", "", 2**28, ("trtllm", "")),
        ("trtllm", "", 2**28, ("nccl", "")),
        ("nccl", "nvls", 2**28, ("nccl", "auto")),
    ],
)
def test_libraries_and_algorithms_that_are_the_same(library: str, asked: str, size: int, same_as: tuple[str, str]) -> None:
    one, other = predicted([(library, asked), same_as], size)
    assert one == other


def test_libraries_and_algorithms_differ() -> None:
    """A switch reduces large payloads, kernels that read their peers' memory are fastest for small ones, and a ring is a ring."""
    nccl, plain, ring = predicted([("nccl", ""), ("nccl-plain", ""), ("nccl", "ring")], 2**28)
    assert nccl < plain
    assert nccl < ring
    nccl, direct, other = predicted([("nccl", ""), ("trtllm", ""), ("vllm", "")], 2**16)
    assert direct < other < nccl
    nccl, direct = predicted([("nccl", ""), ("vllm", "")], 2**16, kind="all_gather")
    assert direct == nccl


def predicted(asked: list[tuple[str, str]], size: int, kind: str = "all_reduce") -> list[float]:
    """The times of one machine for libraries and algorithms, in us."""
    row = columns("H100-SXM", "nvlink4-nvswitch", 8) | {"collective": kind, "bytes": str(size)}
    rows = [row | {"library": library, "asked": algorithm} for library, algorithm in asked]
    return [found.predicted or 0.0 for found in compare_rows(collectives, rows, "rows").rows]


# The measured table ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_measured_table() -> None:
    if not TABLE.exists():
        pytest.skip("needs the table of measured collectives, ../shared/data/collectives.csv.gz")
    report = validate("collectives", TABLE)
    rows = read(TABLE)
    assert len(report.rows) == len(rows)
    predicted = [row for row in report.rows if row.predicted is not None]
    assert len(predicted) >= 0.85 * len(rows)
    assert report.as_dict()["overall"]["median"] <= 0.06
