"""`trainsim validate --kind collectives`: every row, in order, predicted from what describes it and from nothing else."""

from __future__ import annotations

import csv
import gzip
import io
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.costs import theory
from simulator.costs.theory import Call
from simulator.errors import UserError
from simulator.study.collective import spread, time_collective
from simulator.study.links import fabrics
from simulator.study.links.describe import algorithm, machine
from simulator.study.tables import read
from simulator.study.validate import collectives
from simulator.study.validate.report import judged, validate
from simulator.units import US_PER_S

from ..commandline import trainsim
from ..source import ROOT

TABLE = ROOT.parent / "shared" / "data" / "collectives.csv.gz"
KEYS = ["id", "source_key", "measured", "predicted", "error", "unit", "interval", "memory_gb", "measured_memory_gb", "skipped"]
KEYS += ["provenance", "extrapolated"]
HIDDEN = ("id", "title", "locator", "notes", "source_key", "tier", "source", "role", "system", "algbw_GBps", "busbw_GBps")
COLUMNS = ("system", "fabric", "gpu", "gpus", "nodes", "gpus_per_node", "collective", "algorithm", "nccl", "dtype", "bytes")
ROWS = (
    ("HGX H100", "NVLink4 NVSwitch 450GB/s", "H100-SXM", 8, 1, 8, "all_reduce", "auto", "2.27", "fp16", 2**26, 340.0),
    ("HGX H100", "NVLink4 NVSwitch 450GB/s", "H100-SXM", 8, 1, 8, "all_reduce", "auto", "2.27", "int8", 2**26, 370.0),
    ("mine", "NVLink3 NVSwitch + HDR IB", "A100-SXM-80", 64, 8, 8, "all_gather", "auto", "", "fp32", 2**20, 200.0),
    ("mine", "PCIe4 x16", "L40S", 4, 1, 4, "alltoall", "auto", "", "fp16", 2**20, 200.0),
    ("nobody's", "NVLink", "unnamed", 4, 1, 4, "all_reduce", "auto", "", "fp16", 2**20, 200.0),
    ("theirs", "NVLink5 NVL72", "GB200", 72, 18, 4, "all_gather", "auto", "", "fp16", 2**30, 1700.0),
    ("theirs", "NVLink bridge pairs + PCIe (placed 1/node)", "A40", 2, 2, 1, "sendrecv", "auto", "", "fp16", 2**20, 300.0),
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
    assert [row["source_key"] for row in record["rows"]] == [f"{row[0]}+{row[6]}" for row in ROWS]
    assert [row["measured"] for row in record["rows"]] == [row[-1] for row in ROWS]
    for row in record["rows"]:
        assert (row["predicted"] is None) == bool(row["skipped"])
        if row["predicted"] is not None:
            assert row["unit"] == "us"
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
            assert row["interval"][0] < row["predicted"] < row["interval"][1]
    assert [row["skipped"] for row in record["rows"] if row["skipped"]] == [
        "the GPU is not named",
        "the fabric names no network between the nodes",
    ]
    assert record["overall"]["n"] == 5
    assert record["overall"]["skipped"] == 2
    assert record["sources"]["HGX H100+all_reduce"]["n"] == 2


def test_the_same_for_eyes(tmp_path: Path) -> None:
    said = trainsim("validate", "--kind", "collectives", table(tmp_path / "rows.csv"))
    assert said.code == 0
    assert "HGX H100+all_reduce" in said.out
    assert "skipped 1: the GPU is not named" in said.out


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
    before = [row.predicted for row in judged(collectives, rows, "before").rows]
    after = [row.predicted for row in judged(collectives, [changed[i] for i in order], "after").rows]
    assert after == [before[i] for i in order]


def test_a_row_keeps_its_own_id(tmp_path: Path) -> None:
    rows = [(f"row-{i}", *row) for i, row in enumerate(ROWS)]
    path = table(tmp_path / "rows.csv", rows, ("id", *COLUMNS, "time_us"))
    assert [row.id for row in validate("collectives", path).rows] == [f"row-{i}" for i in range(len(ROWS))]


@pytest.mark.parametrize("kind", ["training", "kernel", "collective"])
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
    path.write_text("fabric,gpu,gpus,node,collective,algorithm,dtype,bytes\n" + ",".join("1" * 8), encoding="utf-8")
    said = trainsim("validate", "--kind", "collectives", path)
    assert f"{path}:1: no column 'nodes'\n    hint: did you mean 'node'?" in said.err
    path.write_text("Op,Dtype,Gpu\ngemm,bf16,h100\n", encoding="utf-8")
    assert "no column 'gpu'\n    hint: did you mean 'Gpu'?" in trainsim("validate", "--kind", "kernels", path).err
    assert trainsim("validate", "--kind", "collectives", tmp_path / "none.csv").code == 2
    assert trainsim("validate", "--kind", "collectives").code == 2


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
    assert [row["source_key"] for row in said.record["rows"]] == [f"+{row[6]}" for row in ROWS]
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
    rows = [(*ROWS[2][:6], word, *ROWS[2][7:]) for word in (kind, *written)]
    judged_rows = validate("collectives", table(tmp_path / "rows.csv", rows)).rows
    assert [row.skipped for row in judged_rows] == [None] * len(rows)
    assert len({row.predicted for row in judged_rows}) == 1


def test_a_collective_that_is_none_is_skipped_with_its_reason(tmp_path: Path) -> None:
    rows = [(*ROWS[2][:6], word, *ROWS[2][7:]) for word in ("reduce", "send", "recv_send")]
    skipped = [row.skipped or "" for row in validate("collectives", table(tmp_path / "rows.csv", rows)).rows]
    assert ["is none of all_reduce" in why for why in skipped] == [True] * 3


def test_collective_and_validate_call_the_same_rows_extrapolated(tmp_path: Path) -> None:
    """Of 8 GPUs measured, of 8 over a longer way, and of links that no curve speaks of."""
    common = ("-b", "1M", "-e", "1M", "--json")
    asked = [("dgx-h100", 8, 1, "H100-SXM", "NVLink4 NVSwitch"), ("dgx-h100", 64, 8, "H100-SXM", "NVLink4 NVSwitch + NDR IB")]
    asked += [("dgx1-v100", 8, 1, "V100", "NVLink2 cube mesh"), ("dgx-h100", 7, 1, "H100-SXM", "NVLink4 NVSwitch")]
    for cluster, gpus, nodes, gpu, fabric in asked:
        flags = ("--cluster", cluster, "--gpus", gpus, "--nodes", nodes)
        (row,) = trainsim("collective", "all_reduce", *flags, *common).record["rows"]
        line = ("mine", fabric, gpu, gpus, nodes, gpus // nodes, "all_reduce", "auto", "", "fp16", 2**20, 100.0)
        (other,) = validate("collectives", table(tmp_path / "rows.csv", [line])).rows
        assert (other.provenance, other.extrapolated) == (row["provenance"], row["extrapolated"]), cluster
        assert other.extrapolated == (other.provenance != "interpolated")


@pytest.mark.parametrize("kind", theory.KINDS)
def test_of_a_cube_mesh_validate_tells_what_its_routes_give_or_nothing(kind: str, tmp_path: Path) -> None:
    counts, box = range(2, 9), sim.cluster("dgx1-v100", nodes=1)
    lines = [("mine", "NVLink2 cube mesh", "V100", n, 1, n, kind, "auto", "", "fp16", 2**30, 100.0) for n in counts]
    rows = validate("collectives", table(tmp_path / "rows.csv", lines)).rows
    left: set[int] = {"sendrecv": set(), "alltoall": {5, 6, 7}}.get(kind, {3, 5, 6, 7})
    for n, row in zip(counts, rows, strict=True):
        if n in left:
            assert f"no formula tells what {n} GPUs of a cube mesh reach" in (row.skipped or "")
            continue
        (taken,) = time_collective(kind, box, [2**30], gpus=spread(box, n))
        assert row.predicted == pytest.approx(taken.time_s * US_PER_S, rel=1e-4), n


@pytest.mark.parametrize(("fabric", "gpu", "told"), [("NVLink1", "P100-SXM2", True), ("NVLink2", "V100", False)])
def test_three_of_a_quad_are_told_where_its_wires_are_alike(fabric: str, gpu: str, *, told: bool) -> None:
    inside = machine(gpu, fabric, 3, 1).inside
    assert inside.told("all_reduce", 3) is told
    assert not inside.told("all_reduce", 6)


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
    assert "skipped 1: the GPU is not named, line 6" in said[0]
    assert "skipped 4: the GPU is not named, lines 6, 13, 20, 27" in said[1]


# Words ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "fabric", "inside"),
    [
        ("H100-SXM", "NVLink4 NVSwitch 450GB/s", "nvlink4-nvswitch"),
        ("H200-SXM", "NVLink4 NVSwitch", "nvlink4-nvswitch"),
        ("A100-SXM-40", "NVLink3 NVSwitch + HDR IB", "nvlink3-nvswitch"),
        ("B300", "NVLink5", "nvlink5-nvswitch"),
        ("GB200", "NVL72", "nvlink5-nvswitch"),
        ("V100", "NVLink2", "nvlink2-mesh"),
        ("L40S", "PCIe4 x16", "pcie4"),
        ("RTXPRO6000", "PCIe5 x16", "pcie5"),
        ("A40", "NVLink bridge pairs + PCIe", "pcie4"),
        ("H100-NVL/PCIe", "NVLink bridge pairs + PCIe", "pcie5"),
        ("T4", "PCIe3", "pcie3"),
        ("MI300X", "xGMI", "xgmi-mi300"),
    ],
)
def test_words_for_links_inside(gpu: str, fabric: str, inside: str) -> None:
    assert machine(gpu, fabric, 4, 1).inside.name == inside


@pytest.mark.parametrize(
    ("fabric", "name", "nics", "gbit"),
    [
        ("NVLink3 NVSwitch + HDR IB", "hdr-ib", 8, 200),
        ("NVLink4 NVSwitch + NDR IB 400Gb/GPU", "ndr-ib", 8, 400),
        ("NVLink4 NVSwitch + InfiniBand", "hdr-ib", 8, 200),
        ("NVLink4 NVSwitch + EFA 3200Gb/s", "efa", 8, 400),
        ("NVLink3 NVSwitch + EFA 400Gb/s", "efa", 4, 100),
        ("NVLink3 + Slingshot 2x200Gb/s", "slingshot-11", 2, 200),
        ("NVLink4 NVSwitch + RoCE 8x400Gb/s", "roce", 8, 400),
        ("NVLink4 NVSwitch + GPUDirect-TCPXO 1600Gb/s", "tcpxo", 8, 200),
        ("NVLink4 NVSwitch + GPUDirect-TCPX 800Gb/s", "tcpx", 4, 200),
        ("NVLink4 NVSwitch + 100GbE", "tcp", 1, 100),
        ("NVLink4 NVSwitch + EFA 100Gb/s", "efa", 1, 100),
        ("NVLink4 NVSwitch + RDMA 16x200Gb/s", "roce", 8, 400),
        ("NVLink4 NVSwitch + RoCE 8x2x200Gb/s", "roce", 8, 400),
        ("NVLink3 NVSwitch + HDR100 IB", "hdr-ib", 8, 100),
        ("NVLink4 NVSwitch + 4x IB NDR400", "ndr-ib", 4, 400),
        ("NVLink5 NVSwitch 900GB/s, ConnectX-7 400Gb/s", "roce", 8, 400),
        ("NVLink5 NVSwitch 900GB/s RoCE 400Gb/s", "roce", 8, 400),
        ("NVLink4 NVSwitch and 8x400Gb/s InfiniBand", "hdr-ib", 8, 400),
        ("NDR InfiniBand 8x400G", "ndr-ib", 8, 400),
        ("NVLink4 NVSwitch, NDR IB, 4x200Gb/s", "ndr-ib", 4, 200),
        ("NDR IB, 4x200Gb/s, NVLink4 NVSwitch, 450GB/s", "ndr-ib", 4, 200),
        ("NVLink3 NVSwitch + NDR InfiniBand 400Gb/s x8 (ConnectX-7)", "ndr-ib", 8, 400),
    ],
)
def test_words_for_networks(fabric: str, name: str, nics: int, gbit: int) -> None:
    across = machine("A100-SXM-80", fabric, 16, 2).across
    assert across
    assert (across.name, across.nics, across.nic_bytes_per_s * 8 / 10**9) == (name, nics, gbit)


@pytest.mark.parametrize(
    ("gpu", "fabric", "place", "nics", "gbit"),
    [
        ("GB200", "NVL72 + NDR IB 400Gb/GPU", (144, 36), 72, 400),
        ("GB200", "NVL72 + XDR IB", (144, 36), 72, 800),
        ("GB200", "NVL72 + RoCE 4x400Gb/s", (144, 36), 72, 400),
        ("H100-SXM", "NVLink4 NVSwitch + NDR IB 400Gb/GPU", (16, 2), 8, 400),
        ("H100-SXM", "NVLink4 NVSwitch + EFA 32x100Gb/s", (16, 2), 8, 400),
        ("H100-SXM", "NVLink4 NVSwitch + NDR 50GB/s/GPU", (16, 2), 8, 400),
        ("H100-SXM", "NVLink4 NVSwitch + NDR 50Gb/s/GPU", (16, 2), 8, 50),
        ("H100-SXM", "NVLink4 NVSwitch + NDR 400GB/s", (16, 2), 8, 400),
        ("A100-SXM-40", "NVLink3 + 2x Slingshot-11 200Gb/s", (8, 2), 2, 200),
        ("A100-PCIe-80", "PCIe4 x16, HDR IB 200Gb/s", (2, 2), 8, 200),
    ],
)
def test_words_for_nics(gpu: str, fabric: str, place: tuple[int, int], nics: int, gbit: int) -> None:
    """A NIC for each GPU of a rack; more of them than GPUs are pooled; GB is bytes and Gb bits."""
    across = machine(gpu, fabric, *place).across
    assert across
    assert (across.nics, across.nic_bytes_per_s * 8 / 10**9) == (nics, gbit)


@pytest.mark.parametrize(
    ("gpu", "words", "nics", "gbit"),
    [
        ("A100", "RoCE 8x200G", 8, 200),
        ("A100", "RoCE 200G/GPU", 8, 200),
        ("A100", "RoCE 1.6Tb/s", 8, 200),
        ("A100", "RoCE 200", 8, 200),
        ("A100", "IB HDR (8x CX-6)", 8, 200),
        ("A100", "CX6 200G x 8", 8, 200),
        ("A100", "4 NICs HDR 200Gb/s", 4, 200),
        ("A100", "HDR 200Gb/s x4", 4, 200),
        ("A100", "four HDR NICs", 4, 200),
        ("A100", "single-rail HDR", 1, 200),
        ("A100", "dual-rail HDR", 2, 200),
        ("A100", "HDR, one NIC per GPU", 8, 200),
        ("A100", "800Gb/s per node HDR", 4, 200),
        ("A100", "4x200Gb/s per node HDR", 4, 200),
        ("A100", "RoCE 8x200G (1.6Tb/s)", 8, 200),
        ("A100", "RoCE", 8, 200),
        ("A100", "EFA", 4, 100),
        ("A100", "p4d EFA", 4, 100),
        ("A100", "EFA 4x100G", 4, 100),
        ("A100", "EFA 100Gb/s per NIC", 4, 100),
        ("H100", "EFA", 8, 400),
        ("H100", "EFA 32x100G", 8, 400),
        ("H100", "32x EFA", 8, 400),
        ("H100", "4x EFA", 4, 100),
        ("H200", "16x EFA", 8, 400),
        ("B200", "8x EFA", 8, 400),
        ("H100", "16x CX-7", 8, 800),
        ("H100", "TCPXO 200Gb/s x8", 8, 200),
        ("H100", "Thor2 8x400G", 8, 400),
        ("B300", "8x800G CX8", 8, 800),
        ("B300", "ConnectX-8", 8, 800),
        ("B300", "2x400G per GPU RoCE", 8, 800),
        ("GH200", "Slingshot-11 800Gb/s", 4, 200),
        ("GB200", "NVL72 + EFA 28.8Tb/s", 72, 400),
    ],
)
def test_words_for_rates_and_counts_of_nics(gpu: str, words: str, nics: int, gbit: int) -> None:
    """Counts before or behind a rate or in words, rates in T, bare, or by the name of the NIC."""
    gpus, nodes = (144, 36) if gpu == "GB200" else (16, 2)
    across = machine(gpu, words if "+" in words else f"NVLink NVSwitch + {words}", gpus, nodes).across
    assert across
    assert (across.nics, across.nic_bytes_per_s * 8 / 10**9) == (nics, gbit)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("RoCE 250", "'250' looks like a rate"),
        ("RoCE 200 Mb/s", "'200 Mb/s' looks like a rate"),
        ("HDR 8x200G, 100GbE for storage", "two rates: '8x200G' and '100GbE'"),
        ("RoCE 8x200G 3.2Tb/s", "two rates: '8x200G' and '3.2Tb/s'"),
        ("HDR, 4 NICs, 8x200G", "several numbers of NICs: 4, 8"),
        ("one HDR NIC per 2 GPUs", "leaves open how many NICs a node has"),
    ],
)
def test_numbers_that_are_left_over_or_do_not_agree_are_refused(words: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        machine("A100", f"NVLink3 NVSwitch + {words}", 16, 2)


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([100, 200, 400]),
    st.sampled_from(["Gb/s", "G", " Gbps", "GbE", "Gbit/s", " Gig", ""]),
    st.sampled_from(["{n}x{rate}", "{n} x {rate}", "{rate} x{n}", "{rate} x {n}", "{rate}, {n} NICs", "{n} rails of {rate}"]),
)
def test_however_a_rate_is_written_it_is_the_same(count: int, gbit: int, unit: str, order: str) -> None:
    words = order.format(n=count, rate=f"{gbit}{unit}")
    across = machine("H100", f"NVLink4 NVSwitch + RoCE {words}", 16, 2).across
    assert across
    assert (across.nics, across.nic_bytes_per_s * 8 / 10**9) == (count, gbit)


def test_lanes_gpus_memory_packets_and_years_are_no_rates() -> None:
    for words in ("PCIe5 x16, NDR", "NDR, 16 GPUs", "NDR (H100-80GB, MTU 4096)", "NDR 2024", "NDR, 131 runs", "8xH100, NDR"):
        across = machine("H100", f"NVLink4 NVSwitch + {words}", 16, 2).across
        assert across
        assert (across.name, across.nics, across.nic_bytes_per_s) == ("ndr-ib", 8, 50e9)


@pytest.mark.parametrize(
    ("gpu", "fabric", "name", "rate", "mesh"),
    [
        ("V100", "NVLink2 NVSwitch", "nvlink2-mesh", 150, 0),
        ("V100", "NVLink2", "nvlink2-mesh", 150, 5),
        ("P100-SXM2", "NVLink1", "nvlink2-mesh", 80, 5),
        ("A100-SXM", "NVLink3 4-GPU mesh", "nvlink3-nvswitch", 300, 4),
        ("H100-SXM", "NVLink4, no NVSwitch", "nvlink4-nvswitch", 450, 4),
        ("A10G", "PCIe4 x8", "pcie4", 15.75, 0),
        ("L40S", "PCI Express 4.0 x16, dual socket", "pcie4", 31.5, 0),
        ("RTX 5090", "PCIe", "pcie5", 63, 0),
        ("H100-SXM", "NVLink4 NVSwitch, NDR 50GB/s per GPU", "nvlink4-nvswitch", 450, 0),
        ("MI300X", "xGMI 64GB/s", "xgmi-mi300", 448, 8),
        ("MI300X", "xGMI 128GB/s", "xgmi-mi300", 448, 8),
        ("GH200", "NVLink pair", "nvlink4-nvswitch", 450, 0),
        ("GB200 NVL", "NVL72", "nvlink5-nvswitch", 900, 0),
        ("H800", "NVLink4 NVSwitch", "nvlink4-nvswitch", 200, 0),
        ("H100-SXM", "NVLink4 NVSwitch 18x25GB/s", "nvlink4-nvswitch", 450, 0),
        ("H100-SXM", "NVLink4 NVSwitch 50GB/s per link", "nvlink4-nvswitch", 450, 0),
        ("H100-SXM", "NVLink4 NVSwitch 8x25GB/s", "nvlink4-nvswitch", 200, 0),
        ("H100-SXM", "NVLink4 600GB/s bidirectional", "nvlink4-nvswitch", 300, 0),
        ("H100-SXM 80GB", "NVLink4 NVSwitch, 80GB", "nvlink4-nvswitch", 450, 0),
        ("A100-SXM", "NVLink3 12x25GB/s", "nvlink3-nvswitch", 300, 0),
        ("A100-SXM", "NVLink3 (4 links per pair)", "nvlink3-nvswitch", 300, 4),
        ("A100-SXM", "NVLink3 mesh 2x25GB/s", "nvlink3-nvswitch", 150, 4),
        ("V100", "NVLink2 6x25GB/s", "nvlink2-mesh", 150, 5),
        ("V100", "NVLink2 cube mesh 25GB/s per link", "nvlink2-mesh", 150, 5),
        ("GH200", "NVLink4 150GB/s per pair", "nvlink4-nvswitch", 450, 4),
        ("GH200", "NVLink4 6x25GB/s all-to-all", "nvlink4-nvswitch", 450, 4),
        ("GH200", "NVLink4 fully connected 150 GB/s", "nvlink4-nvswitch", 450, 4),
        ("MI300X", "xGMI 7x64GB/s", "xgmi-mi300", 448, 8),
        ("MI300X", "xGMI 32GB/s", "xgmi-mi300", 224, 8),
        ("MI355X", "Infinity Fabric 153.6GB/s", "xgmi-mi300", 537.6, 8),
        ("something new", "NVLink4 NVSwitch", "nvlink4-nvswitch", 450, 0),
        ("something new", "PCIe4 x16", "pcie4", 31.5, 0),
        ("RTX 4090", "none but the slots", "pcie4", 31.5, 0),
    ],
)
def test_words_for_rates_inside(gpu: str, fabric: str, name: str, rate: float, mesh: int) -> None:
    inside = machine(gpu, fabric, 2, 1).inside
    assert (inside.name, inside.bytes_per_s / 10**9, inside.mesh) == (name, rate, mesh)


def test_a_node_of_none_and_a_rate_of_nothing_are_no_crash() -> None:
    assert machine("GB200", "NVL0 NVLink5", 4, 1).nodes == 1
    for fabric in ("NVLink4 NVSwitch 0 GB/s", "NVLink4 NVSwitch + NDR 8x0Gb/s"):
        with pytest.raises(UserError, match="is no rate"):
            machine("H100-SXM", fabric, 16, 2)


@pytest.mark.parametrize(
    ("gpu", "fabric"), [("MI250X", "Infinity Fabric + Slingshot-11"), ("Gaudi3", "RoCE"), ("Max 1550", "Xe Link")]
)
def test_links_that_nobody_knows_are_not_guessed(gpu: str, fabric: str) -> None:
    with pytest.raises(UserError, match=f"no links known inside a node of {gpu.lower()}"):
        machine(gpu, fabric, 8, 2)


def test_a_rack_is_one_node() -> None:
    assert machine("GB200", "NVLink5 NVL72", 72, 18).nodes == 1
    assert machine("GB200", "NVLink5 NVL72 + XDR IB", 144, 36).nodes == 2
    assert machine("GB200", "NVL36x2", 72, 18).nodes == 1
    assert machine("GB300", "NVLink5", 8, 2).nodes == 1
    assert machine("B200", "NVLink5 MNNVL", 16, 4).nodes == 1
    assert machine("GB300", "NVLink5 + XDR IB", 8, 2).nodes == 2


def test_sharp_in_the_words_of_a_network_adds_up() -> None:
    said = ("NDR IB with SHARP", "NDR IB, no SHARP", "NDR IB")
    assert [machine("B200", f"NVLink5 NVSwitch + {words}", 16, 2).across.sharp for words in said] == [True, False, False]  # type: ignore[union-attr]


def test_a_bridge_of_four_is_an_island_of_four() -> None:
    assert machine("H200 NVL", "4-way NVLink bridge + PCIe5", 8, 1).inside.island == 4


@pytest.mark.parametrize("words", [("", "NVLink"), ("unnamed", "NVLink"), ("H100-SXM", "see source"), ("H100-SXM", "")])
def test_a_machine_that_is_not_named_is_not_guessed(words: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="not named"):
        machine(*words, 8, 1)


@pytest.mark.parametrize(
    ("words", "dtype", "name"),
    [
        ("auto", "fp16", "auto"),
        ("auto", "int8", "plain"),
        ("auto(int8: no NVLS)", "int8", "plain"),
        ("custom:TRTLLM ", "bf16", "direct"),
        ("NVLSTree", "", "nvls"),
        ("NVLS", "", "nvls"),
        ("CollNet+SHARP", "", "sharp"),
        ("Tree", "", "tree"),
        ("ring", "", "ring"),
        ("auto median of 131 runs", "fp64", "auto"),
        ("auto ofi-tuner", "fp32", "auto"),
        ("auto NCCL_NVLS_ENABLE=0", "", "plain"),
        ("auto, no SHARP", "", "auto"),
        ("one-shot", "", "direct"),
    ],
)
def test_words_for_algorithms(words: str, dtype: str, name: str) -> None:
    assert algorithm(words, dtype) == name
    assert Call("all_reduce", 1, 2, algorithm=name)


def test_every_name_in_the_words_is_a_fabric() -> None:
    from simulator.study.links import describe, described_networks

    words = (*describe.INSIDES, *describe.GENERATIONS, *described_networks.ACROSSES)
    named = {name for _, name in words if name}
    assert named <= set(fabrics.names())


# The measured table ---------------------------------------------------------------------------------------------------------


def test_the_measured_table() -> None:
    if not TABLE.exists():
        pytest.skip("needs the table of measured collectives, ../shared/data/collectives.csv.gz")
    report = validate("collectives", TABLE)
    rows = read(TABLE)
    assert len(report.rows) == len(rows)
    predicted = [row for row in report.rows if row.predicted is not None]
    assert len(predicted) >= 0.85 * len(rows)
    assert report.as_dict()["overall"]["median"] <= 0.06
