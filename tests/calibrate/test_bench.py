"""The harness with PyTorch itself, on the CPU: from end to end, stopped half-way, and gone on with (slow)."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.calibrate import fit_table
from simulator.calibrate.bench import kernel_grid
from simulator.calibrate.bench.torch_bench import TorchBench
from simulator.calibrate.bench.torch_kernels import Refused
from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator
from simulator.errors import UserError
from simulator.measurements.attention_libraries import BY_PYTORCH
from simulator.measurements.kernel_table import COLUMNS, rows_of, text
from simulator.measurements.kernel_words import Probe, kernel_of, work

from ..commandline import trainsim

pytestmark = [pytest.mark.slow, pytest.mark.torch]

PATIENCE_S = 120


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed here: make torch")


def measure(out: Path, *args: object) -> tuple[object, ...]:
    return ("calibrate", "gpu", "--device", "cpu", "--dtype", "bf16", "--out", out, *args)


HEADS = (1, 64, 4, 2, 16)
TINY = [
    *(Probe("gemm", "bf16", 64 * i, 64, 64, variant=how) for i in range(1, 5) for how in ("fwd", "dgrad", "wgrad")),
    *(Probe(op, "bf16", 0, 0, 0, *HEADS, True, "flash_attention by=pytorch") for op in ("attention_fwd", "attention_bwd")),
    *(Probe(op, "bf16", 64, 128) for op in ("rmsnorm", "rmsnorm_bwd", "softmax", "softmax_bwd", "embedding")),
    *(Probe(op, "bf16", 64, 128, variant="eager") for op in ("swiglu", "rope", "cross_entropy")),
    *(Probe("elementwise", "bf16", 64 * i, 128, variant="add") for i in range(1, 5)),
    Probe("adam", "fp32", 1, 4096),
    Probe("copy", "bf16", 1, 4096, variant="d2d"),
    Probe("copy", "bf16", 1, 4096, variant="h2d"),
    Probe("launch", "fp32", 64, 1, variant="eager"),
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that is done in a moment."""
    monkeypatch.setattr(kernel_grid, "wanted", lambda *_: list(TINY))


@pytest.mark.usefixtures("tiny")
def test_a_survey_writes_what_it_measured_on_what_and_what_it_tells(tmp_path: Path) -> None:
    said = trainsim(*measure(tmp_path, "--budget", "5 min", "--json"))
    assert said.code == 0
    rows = rows_of(tmp_path / "raw.csv")
    assert Counter(row.probe for row in rows) == Counter(probe for probe in TINY if probe.variant != "h2d")
    assert all(0 < row.low_s <= row.seconds <= row.high_s for row in rows)
    assert all(row.runs >= 5 for row in rows)
    counted = {row.probe.op: row.operators for row in rows}
    one = ("softmax", "softmax_bwd", "embedding", "elementwise", "adam", "copy")
    assert {op: counted[op] for op in (*one, "swiglu", "gemm", "launch")} == {
        **dict.fromkeys(one, 1), "swiglu": 2, "gemm": None, "launch": None
    }  # fmt: skip
    assert min(counted[op] or 0 for op in ("rope", "cross_entropy")) > 1
    assert all(row.is_eager for row in rows if row.probe.op in ("swiglu", "rope", "cross_entropy"))
    assert (said.record["measured"], said.record["left"]) == (len(rows), 0)
    assert said.record["refused"] == {"a copy between host and device needs CUDA": 1}
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["gpu"] == "cpu"
    assert machine["torch"]
    constants = {row["constant"]: float(row["value"]) for row in csv.DictReader((tmp_path / "fit.csv").open())}
    assert constants["eager_us"] > 0
    assert "not in the catalog" in said.record["why_no_profile"]


@pytest.mark.usefixtures("tiny")
def test_rows_of_a_gpu_in_the_catalog_give_a_profile(tmp_path: Path) -> None:
    """The rows of a CPU, with what is predicted of a GPU for their times."""
    trainsim(*measure(tmp_path, "--budget", "5 min"))
    path, by = tmp_path / "raw.csv", Estimator(shipped_fits.gpu("h100"), "bf16", shipped_fits.shipped())
    kernels = [(row, kernel_of(row.probe)) for row in rows_of(path)]
    times = [row.seconds if kernel is None else by.estimate(kernel).seconds for row, kernel in kernels]
    path.write_text(
        text([replace(row, gpu="NVIDIA H100", seconds=time_s) for (row, _), time_s in zip(kernels, times, strict=True)])
    )
    machine = (tmp_path / "machine.json").read_bytes()
    assert trainsim(*measure(tmp_path)).code == 2, "and this machine adds nothing to them"
    assert (tmp_path / "machine.json").read_bytes() == machine
    made = fit_table.fit_survey(tmp_path).profile
    assert made is not None
    assert {judged.fit.family: judged.scaled is not None for judged in made.fits} == {
        "gemm": False, "rowwise": False, "attention": True,
    }  # fmt: skip
    assert "gpu: h100" in (tmp_path / "profile.yaml").read_text().splitlines()
    told = list(csv.DictReader((tmp_path / "fit.csv").open()))
    assert {row["constant"] for row in told if row["what"] == "gemm"} >= {"launch_us", "compute", "memory"}
    assert {row["constant"] for row in told if row["what"] == "measured over predicted"} >= {"rmsnorm bf16", "adam fp32"}


def test_operators_whose_every_size_is_too_large_are_timed_in_a_smaller_one(tmp_path: Path) -> None:
    said = trainsim(*measure(tmp_path, "--ops", "adam,cross_entropy", "--budget", "1 min"))
    assert "3 kernels measured" in said.out
    assert "sizes are too large for a CPU" in said.out
    assert {row.probe.op for row in rows_of(tmp_path / "raw.csv")} == {"adam", "cross_entropy", "cross_entropy_bwd"}


HEEDING_INTERRUPTS = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from simulator.cli import main; main()"
)
"""What the background of a script starts is deaf to interrupts, and so would its children be."""


def test_it_stops_when_it_is_told_to_and_goes_on_where_it_was(tmp_path: Path) -> None:
    args = [str(a) for a in measure(tmp_path, "--budget", "5 min", "--ops", "gemm,rmsnorm,add")]
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDING_INTERRUPTS, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    raw = tmp_path / "raw.csv"
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE_S and (not raw.exists() or raw.read_bytes().count(b"\n") < 4):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert raw.read_bytes().endswith(b"\n")
    rows = rows_of(raw)
    assert len(rows) >= 3
    assert f"{len(rows)} rows are kept in {raw}" in err
    before = raw.read_bytes()

    said = trainsim(*measure(tmp_path, "--budget", "3 s", "--ops", "gemm,rmsnorm,add", "--json"))
    assert said.record["kept"] == len(rows)
    assert raw.read_bytes().startswith(before), "only ever added to"
    assert max(Counter(row.probe for row in rows_of(raw)).values()) == 1
    assert len(rows_of(raw)) == len(rows) + said.record["measured"]


def test_every_kernel_of_the_grid_runs_on_a_cpu_or_says_why_not() -> None:
    """All builders, at their smallest."""
    bench, smallest = TorchBench("cpu"), dict[tuple[str, str, str], Probe]()
    for probe in sorted(kernel_grid.default(["bf16", "fp8"]), key=work):
        smallest.setdefault((probe.op, probe.dtype, probe.variant), probe)
    ran, refused = [], []
    for probe in kernel_grid.for_cpu(smallest.values()):
        try:
            bench.kernels.job(probe).call()
            ran.append(probe.op)
        except (Refused, RuntimeError):
            refused.append((probe.op, probe.variant.removesuffix(f" {BY_PYTORCH}")))
    assert set(refused) <= {
        ("gemm", "wgrad acc=true"), ("attention_fwd", "cudnn"), ("attention_bwd", "cudnn"), ("attention_fwd", "mem_efficient"),
        ("attention_bwd", "mem_efficient"), ("copy", "h2d"), ("copy", "d2h"), ("launch", "graph"),
        ("launch", "step"), ("overlap", "gemm beside copy d2d"),
    }  # fmt: skip
    assert {"gemm", "attention_fwd", "rmsnorm_bwd", "swiglu_bwd", "rope_bwd", "embedding_bwd", "cast", "quantise"} <= set(ran)


@pytest.mark.parametrize(
    ("said", "wrong", "words"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 GiB", Refused, "out of memory"),
        ("no such kernel\nand a long story", Refused, "no such kernel"),
        ("CUDA error: an illegal memory access was encountered", UserError, "elementwise add bf16 m=64 n=64: CUDA error"),
    ],
)
def test_a_kernel_that_fails_is_left_out_and_a_broken_device_ends_it(
    said: str, wrong: type[UserError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(probe: Probe) -> None:
        raise RuntimeError(said)

    bench = TorchBench("cpu")
    monkeypatch.setattr(bench.kernels, "job", fails)
    with pytest.raises(UserError) as caught:
        bench.measure(Probe("elementwise", "bf16", 64, 64, variant="add"), 0.01)
    assert type(caught.value) is wrong
    assert words in str(caught.value)


def test_without_a_gpu_it_says_how_to_try_it_out(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    said = trainsim("calibrate", "gpu", "--out", tmp_path)
    assert said.code == 2
    assert "--device cpu" in said.err
    assert not list(tmp_path.iterdir())


def test_the_table_has_the_columns_of_the_tables_that_are_validated() -> None:
    assert COLUMNS[:16] == (
        "gpu", "op", "dtype", "m", "n", "k", "batch", "seq", "heads", "kv_heads", "head_dim", "causal", "variant", "time_us",
        "source", "role",
    )  # fmt: skip


def test_sustained_loads_are_written_window_by_window(tmp_path: Path) -> None:
    said = trainsim("calibrate", "power", "--device", "cpu", "--seconds", "0.2 s", "--out", tmp_path, "--json")
    assert said.code == 0
    rows = list(csv.DictReader((tmp_path / "sustained.csv").open()))
    assert list(dict.fromkeys(row["load"] for row in rows)) == ["idle", "gemm", "layer", "step"]
    for row in rows:
        if row["load"] != "idle":
            assert float(row["time_us"]) > 0
            assert float(row["period_us"]) > 0
            assert int(row["runs"]) >= 1
    assert not said.record["refused"]
    assert json.loads((tmp_path / "sustained.json").read_text())["gpu"] == "cpu"
    wrong = trainsim("calibrate", "power", "--device", "cpu", "--loads", "gem", "--out", tmp_path)
    assert wrong.code == 2
    assert "gemm" in wrong.err
