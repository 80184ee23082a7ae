"""Traces as PyTorch's profiler writes them: what they hold is what was simulated, and a real reader finds the same times."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator as sim
from simulator.errors import UserError
from simulator.figures.kineto import BEFORE_US, FIRST_CORRELATION, kineto
from simulator.simulation.run import Run
from simulator.simulation.runnable import load_one

from ..commandline import trainsim
from ..project.source import ROOT
from ..small_scenarios import HOST, scenario, small_cluster

READER = ROOT / ".venv-hta" / "bin" / "python"
"""The Python of an environment with `traceinsight`, which HTA is called today; `make hta` makes it."""
BREAKDOWN = """
import json, sys
from hta.trace_analysis import TraceAnalysis
read = TraceAnalysis(trace_dir=sys.argv[1])
tables = read.get_temporal_breakdown(visualize=False), read.get_comm_comp_overlap(visualize=False)
print("FOUND" + json.dumps([table.set_index("rank").to_dict("index") for table in tables]))
"""


@pytest.fixture(scope="module")
def run() -> Run:
    plan = sim.Plan(tp=2, pp=4, dp=2, chunks=2, schedule="interleaved", sharding="zero1")
    return scenario(cluster=small_cluster(4), plan=plan).simulate()


def read(file: Path) -> dict[str, Any]:
    text = gzip.decompress(file.read_bytes()).decode()
    assert '"rank": ' in text, "HTA finds the rank by this text"
    found: dict[str, Any] = json.loads(text)
    return found


def kernels(file: Path) -> list[dict[str, Any]]:
    return [event for event in read(file)["traceEvents"] if event["cat"] in ("kernel", "gpu_memcpy")]


def covered(spans: list[tuple[int, int]]) -> int:
    """The time in which at least one of some spans is in progress."""
    total, until = 0, -1
    for begins, ends in sorted(spans):
        total += max(0, ends - max(begins, until))
        until = max(until, ends)
    return total


def test_a_file_for_the_first_rank_of_every_class(run: Run, tmp_path: Path) -> None:
    files = kineto(run, tmp_path / "new" / "traces")
    first = np.unique(run.engine_timeline.class_of, return_index=True)[1]
    assert [file.name for file in files] == [f"rank_{rank}.json.gz" for rank in sorted(first.tolist())]
    for file, rank in zip(files, sorted(first.tolist()), strict=True):
        assert read(file)["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 16}
    chosen = kineto(run, tmp_path, ranks=[3, 5])
    assert [file.name for file in chosen] == ["rank_3.json.gz", "rank_5.json.gz"]
    with pytest.raises(UserError, match="no rank 99"):
        kineto(run, tmp_path / "none", ranks=[99])
    assert not (tmp_path / "none").exists()


def test_kernels_are_the_operations_of_the_step_in_whole_microseconds(run: Run, tmp_path: Path) -> None:
    (file,) = kineto(run, tmp_path, ranks=[4])
    table = run.timeline.to_pandas(ranks=[4])
    table = table[(table.end_ns > table.start_ns) & (table.stream != "host")]
    found = kernels(file)
    assert len(found) == len(table)
    starts = sorted(round(start / 1000) + BEFORE_US for start in table.start_ns)
    assert [event["ts"] for event in found] == starts
    exact = table[table.stream == "compute"]
    compute = [event for event in found if not event["name"].startswith(("nccl", "Memcpy"))]
    assert abs(sum(event["dur"] for event in compute) - (exact.end_ns - exact.start_ns).sum() / 1000) <= len(compute)
    by_stream: dict[int, list[dict[str, Any]]] = {}
    for event in found:
        by_stream.setdefault(event["tid"], []).append(event)
        assert event["args"]["stream"] == event["tid"] >= 1
    for events in by_stream.values():
        assert all(one["ts"] + one["dur"] <= two["ts"] for one, two in pairwise(events))


@pytest.mark.parametrize("overlapping", [False, True])
def test_every_kernel_has_a_launch_before_it_inside_the_step(run: Run, tmp_path: Path, *, overlapping: bool) -> None:
    """Where steps overlap, the first gather precedes the first kernel of its step."""
    if overlapping:
        run = load_one("fsdp-llama3-8b-64xh100", ["job.gradient_clipping=false"]).simulate()
        assert run.timeline.to_pandas(ranks=[0]).start_ns.min() < -BEFORE_US * 1000
    (file,) = kineto(run, tmp_path, ranks=[0])
    events = read(file)["traceEvents"]
    steps = [event for event in events if event["cat"] == "user_annotation"]
    assert [step["name"] for step in steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    launches = {event["args"]["correlation"]: event for event in events if event["cat"] == "cuda_runtime"}
    assert min(launches) == FIRST_CORRELATION
    for kernel in kernels(file):
        launch = launches.pop(kernel["args"]["correlation"])
        assert steps[0]["ts"] <= launch["ts"] <= kernel["ts"]
        assert kernel["ts"] + kernel["dur"] <= steps[0]["ts"] + steps[0]["dur"] <= steps[1]["ts"]
    assert not launches


def test_copies_to_the_host_are_copies_and_no_kernel(tmp_path: Path) -> None:
    cluster, plan = small_cluster(1, host=HOST), sim.Plan(dp=4, offload=sim.Offload(activations=0.5))
    (file, *_) = kineto(scenario(cluster=cluster, plan=plan).simulate(), tmp_path)
    names = {event["name"] for event in kernels(file) if event["cat"] == "gpu_memcpy"}
    assert names == {"Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"}


def test_the_command_writes_a_folder(tmp_path: Path) -> None:
    done = trainsim("run", "three-axes-64xh100", "--hta", tmp_path / "traces")
    assert done.code == 0
    assert "traces" in done.out
    assert list((tmp_path / "traces").glob("rank_*.json.gz"))


@pytest.mark.slow
def test_hta_finds_our_times(tmp_path: Path) -> None:
    """Compute, communication beside it and beyond it, as a reader of traces that others wrote measures them."""
    if not READER.exists():
        pytest.skip("no traceinsight here: make hta")
    run = sim.load("llama3-70b-64xh100").simulate()
    files = kineto(run, tmp_path)
    command = [str(READER), "-W", "ignore", "-c", BREAKDOWN, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "MPLBACKEND": "agg"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    times, overlaps = json.loads(said.removeprefix("FOUND"))
    assert len(times) == len(files) == 8
    for file in files:
        rank = str(read(file)["distributedInfo"]["rank"])
        table = run.timeline.to_pandas(ranks=[int(rank)])
        table = table[(table.end_ns > table.start_ns) & (table.stream != "host")]
        spans = [*zip(table.start_ns, table.end_ns, table.stream == "compute", strict=True)]
        compute = covered([(begins, ends) for begins, ends, is_compute in spans if is_compute])
        communication = covered([(begins, ends) for begins, ends, is_compute in spans if not is_compute])
        either = covered([(begins, ends) for begins, ends, _ in spans])
        assert times[rank]["compute_time(us)"] == pytest.approx(compute / 1000, rel=1e-3)
        assert times[rank]["non_compute_time(us)"] == pytest.approx((either - compute) / 1000, rel=1e-3)
        assert overlaps[rank]["comp_comm_overlap_pctg"] == pytest.approx(
            100 * (compute + communication - either) / communication, abs=0.1
        )
