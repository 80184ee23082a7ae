"""Measuring kernels, without anything to measure them on: the table, the order, the budget, what is kept and what goes on."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.calibrate.bench import kernel_grid
from simulator.calibrate.bench.run_queue import Outcome, measure_all
from simulator.calibrate.bench.timers import FLOAT_BYTES, LEAST_RUNS, MOST_RUNS, CudaWatch, Job, timed
from simulator.calibrate.bench.torch_bench import Reading, SmiMonitor, accepted_query, parse_reading
from simulator.calibrate.bench.torch_kernels import Kernels, Refused
from simulator.errors import UserError
from simulator.kernels import Attention, Gemm, Part
from simulator.measurements.attention_libraries import library_of
from simulator.measurements.kernel_table import COLUMNS, FIT, Measured, append, rows_of, spread, text
from simulator.measurements.kernel_words import SIZES, Probe, kernel_of, probes_of, work

from ..commandline import trainsim
from ..project.test_import_light import HEAVY, loaded

# The table ------------------------------------------------------------------------------------------------------------------

sizes = st.integers(0, 2**30)
probes = st.builds(
    Probe,
    st.sampled_from(["gemm", "attention_fwd", "adam"]),
    st.sampled_from(["bf16", "fp8"]),
    **dict.fromkeys(SIZES, sizes),
    causal=st.sampled_from([None, True, False]),
    variant=st.sampled_from(["", "fwd", "wgrad acc=true", 'with "quotes", and a comma']),
)
times = st.floats(2.0**-30, 2.0**6)
measured = st.builds(
    Measured, st.just("H200"), probes, times, times, times, st.integers(1, 100), st.just("a, b"), clock_mhz=st.none() | times,
    throttle=st.sampled_from(["", "hot, power cap"]), operators=st.none() | st.integers(1, 9), alone_s=st.none() | times,
    cold=st.booleans(),
)  # fmt: skip


@given(st.lists(measured, min_size=1, max_size=5))
def test_a_table_is_read_as_it_was_written(tmp_path_factory: Any, rows: list[Measured]) -> None:
    path = tmp_path_factory.mktemp("table") / "raw.csv"
    for row in rows:
        append(path, row)
    assert path.read_text(encoding="utf-8") == text(rows)
    found = rows_of(path)

    def words(row: Measured) -> tuple[object, ...]:
        return row.gpu, row.probe, row.runs, row.source, row.role, row.throttle, row.operators

    assert list(map(words, found)) == list(map(words, rows))
    assert [row.line for row in found] == list(range(2, len(rows) + 2))
    for mine, theirs in zip(found, rows, strict=True):
        assert (mine.alone_s or 0) == pytest.approx(theirs.alone_s or 0, rel=1e-6)
        assert mine.seconds == pytest.approx(theirs.seconds, rel=1e-6)
        assert (mine.low_s, mine.high_s) == pytest.approx((theirs.low_s, theirs.high_s), rel=1e-6)


def test_every_cell_that_makes_no_sense_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("gpu,op,dtype,m,causal,time_us\nh100,gemm,bf16,64,,10\nh100,,bf16,-3,2,ten\nh100,gemm,bf16,1.5,,0\n")
    with pytest.raises(UserError) as caught:
        rows_of(path)
    assert [(fault.where.rpartition(":")[2], fault.message.partition(":")[0]) for fault in caught.value.faults] == [
        ("3", "op is empty"),
        ("3", "time_us"),
        ("3", "m"),
        ("3", "causal"),
        ("4", "time_us"),
        ("4", "m"),
    ]


def test_a_dtype_that_nobody_knows_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    """In rows that may be fitted; a trace has others."""
    path = tmp_path / "bad.csv"
    path.write_text(
        "gpu,op,dtype,m,n,k,role,time_us\nh100,gemm,bf16,64,64,64,fit,10\nh100,gemm,bf61,64,64,64,,10\n"
        "h100,gemm,bfloat16,64,64,64,fit,10\nh100,sort,long,64,64,64,unmatched,10\n"
    )
    with pytest.raises(UserError) as caught:
        rows_of(path)
    assert [(fault.where, fault.message) for fault in caught.value.faults] == [
        (f"{path}:3", "dtype: 'bf61' is not known"),
        (f"{path}:4", "dtype: 'bfloat16' is not known"),
    ]
    assert all("did you mean 'bf16'" in fault.hint for fault in caught.value.faults)


def test_a_table_of_one_gpu_needs_no_column_for_it(tmp_path: Path) -> None:
    rows = "".join(f"gemm,bf16,{m},4096,4096,{m / 4}\n" for m in (512, 1024, 2048, 4096))
    (tmp_path / "mine.csv").write_text("op,dtype,m,n,k,time_us\n" + rows)
    assert trainsim("calibrate", "fit", tmp_path / "mine.csv", "--gpu", "a100", "--out", tmp_path / "mine.yaml").code == 0
    assert "gpu: a100-80gb" in (tmp_path / "mine.yaml").read_text()
    assert trainsim("calibrate", "fit", tmp_path / "mine.csv").code == 2


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("gpu,op,dtype,time\nh100,gemm,bf16,1\n")
    said = trainsim("calibrate", "fit", tmp_path / "bad.csv")
    assert said.code == 2
    assert "bad.csv:1: no column 'time_us'" in said.err


# What is measured -----------------------------------------------------------------------------------------------------------


@given(st.tuples(*[st.integers(1, 2**16)] * 4), st.sampled_from(list(Part)[:3]))
def test_a_product_is_the_same_in_words(size: tuple[int, int, int, int], part: Part) -> None:
    m, n, k, batch = size
    for probe in probes_of(Gemm(m, n, k, 2, part, batch), "bf16"):
        kernel = kernel_of(probe)
        assert isinstance(kernel, Gemm)
        assert (kernel.m, kernel.n, kernel.k, kernel.batch) == (m, n, k, batch)
        back = Part.WEIGHT_GRADIENT if "acc" in probe.variant else Part.INPUT_GRADIENT
        assert kernel.part is (Part.FORWARD if part is Part.FORWARD else back)


def test_attention_is_the_same_in_words() -> None:
    for part in (Part.FORWARD, Part.INPUT_GRADIENT):
        kernel = Attention(2, 512, 16, 4, 64, True, 2, part)
        found = probes_of(kernel, "bf16")
        names = ("flash_attention", "cudnn", "mem_efficient")
        assert {probe.variant for probe in found} == {f"{name} by=pytorch" for name in names}
        assert {library_of(probe.variant) for probe in found} == {*names}
        assert [kernel_of(probe) for probe in found] == [kernel] * 3


def test_every_kernel_of_the_grid_is_one_of_the_workload_or_measured_for_its_own_sake() -> None:
    found = kernel_grid.default(kernel_grid.DTYPES)
    assert len(found) == len(dict.fromkeys(found))
    others = {probe.op for probe in found if kernel_of(probe) is None}
    assert others == {"copy", "launch", "overlap"}
    assert all(work(probe) > 0 for probe in found)


def test_the_grid_of_a_model_has_its_kernels_at_several_degrees() -> None:
    found = set(kernel_grid.of_model(sim.model("llama3-8b"), ["bf16"]))
    for tp in kernel_grid.DEGREES:
        assert Probe("gemm", "bf16", 4096, 6144 // tp, 4096, variant="fwd") in found
        assert Probe("gemm", "bf16", 4096, 4096, 6144 // tp, variant="dgrad") in found
        assert Probe("attention_bwd", "bf16", 0, 0, 0, 2, 4096, 32 // tp, 8 // tp, 128, True, "cudnn by=pytorch") in found
    assert Probe("rmsnorm_bwd", "bf16", 4096, 4096) in found


def test_few_kernels_of_a_queue_span_all_sizes() -> None:
    for queue in kernel_grid.queues(kernel_grid.default(["bf16"])):
        assert work(queue[0]) == max(map(work, queue))
        assert len(queue) == 1 or work(queue[1]) == min(map(work, queue))
        assert len({(probe.op, probe.dtype, probe.variant) for probe in queue}) == 1


def test_a_cpu_is_asked_for_every_operator_in_sizes_that_it_can_do() -> None:
    """Those of the grid where they are small enough; of others one that is made smaller."""
    whole = kernel_grid.default(["bf16", "fp8"])
    found = kernel_grid.for_cpu(whole)
    kinds = [{(probe.op, probe.dtype, probe.variant) for probe in probes} for probes in (whole, found)]
    assert kinds[0] == kinds[1]
    assert all(work(probe) <= kernel_grid.MOST_CPU_WORK for probe in found)
    shrunk = {probe.op for probe in set(found) - set(whole)}
    assert shrunk == {"adam", "attention_bwd", "bmm", "cross_entropy", "cross_entropy_bwd", "overlap"}
    assert kernel_grid.for_cpu([Probe("adam", "fp32", 1, 2**29)])


def test_operators_are_picked_by_name() -> None:
    picked = kernel_grid.only(kernel_grid.default(["bf16"]), ["attention", "gelu"])
    assert {probe.op for probe in picked} == {"attention_fwd", "attention_bwd", "elementwise", "elementwise_bwd"}
    with pytest.raises(UserError, match="did you mean 'gemm'"):
        kernel_grid.only(kernel_grid.default(["bf16"]), ["gem"])


# The survey ------------------------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """Says that every kernel takes as long as its operator, and lets a clock go on as long."""

    lasts_s: dict[str, float] = field(default_factory=dict)
    cannot: tuple[str, ...] = ()
    interrupted_after: int = 10**9
    name: str = "NVIDIA H100 80GB HBM3"
    asked: list[Probe] = field(default_factory=list)
    now_s: float = 0.0

    def measure(self, probe: Probe, effort_s: float) -> Measured:
        if len(self.asked) == self.interrupted_after:
            raise KeyboardInterrupt
        self.asked.append(probe)
        self.now_s += self.lasts_s.get(probe.op, 1.0)
        if probe.op in self.cannot:
            raise Refused("no such kernel here")
        return Measured(self.name, probe, 0.002, 0.0012, 0.0028, 3, "trainsim calibrate gpu", FIT, 1980.0, 650.5, cold=True)

    def clock(self) -> float:
        return self.now_s

    def run(self, wanted: list[Probe], path: Path, budget_s: float = 1e9) -> Outcome:
        return measure_all(self, wanted, path, budget_s, clock=self.clock)


def some(*ops: str, count: int = 5) -> list[Probe]:
    return [Probe(op, "bf16", 2**i, 64, 64) for op in ops for i in range(count)]


def test_a_row_says_what_was_measured(tmp_path: Path) -> None:
    Bench().run(some("gemm", count=1), tmp_path / "raw.csv")
    (row,) = csv.DictReader((tmp_path / "raw.csv").open())
    assert tuple(row) == COLUMNS
    told = {name: row[name] for name in ("op", "m", "time_us", "p10_us", "p90_us", "runs", "clock_mhz", "power_w", "role")}
    assert told == {
        "op": "gemm", "m": "1", "time_us": "2000", "p10_us": "1200", "p90_us": "2800", "runs": "3", "clock_mhz": "1980",
        "power_w": "650.5", "role": "fit",
    }  # fmt: skip


@given(st.integers(0, 12))
def test_what_is_there_is_not_measured_again(tmp_path_factory: Any, first: int) -> None:
    path, wanted = tmp_path_factory.mktemp("raw") / "raw.csv", some("gemm", "bmm", "adam", count=4)
    with pytest.raises(KeyboardInterrupt) if first < 12 else nullcontext():
        Bench(interrupted_after=first).run(wanted, path)
    second = Bench()
    outcome = second.run(wanted, path)
    assert (outcome.kept, outcome.measured, outcome.left) == (first, 12 - first, 0)
    assert Counter(row.probe for row in rows_of(path)) == Counter(wanted)


def test_a_row_that_was_cut_short_is_measured_again(tmp_path: Path) -> None:
    path, wanted = tmp_path / "raw.csv", some("gemm")
    Bench().run(wanted, path)
    whole = path.read_bytes()
    for cut in (1, 20, len(whole) - 1):
        path.write_bytes(whole[:-cut])
        outcome = Bench().run(wanted, path)
        assert outcome.kept + outcome.measured == len(wanted)
        assert outcome.measured >= 1
        assert Counter(row.probe for row in rows_of(path)) == Counter(wanted)


def test_the_time_is_shared_fairly_whatever_a_kernel_takes(tmp_path: Path) -> None:
    lasts_s = {"gemm": 5.0, "adam": 1.0, "bmm": 0.5}
    bench = Bench(lasts_s)
    outcome = bench.run(some(*lasts_s, count=29), tmp_path / "raw.csv", budget_s=30)
    assert 30 <= bench.now_s <= 30 + max(lasts_s.values())
    spent = Counter[str]()
    for probe in bench.asked:
        spent[probe.op] += lasts_s[probe.op]  # type: ignore[assignment]
    assert max(spent.values()) - min(spent.values()) <= max(lasts_s.values())
    assert outcome.left == 3 * 29 - len(bench.asked)


def test_what_cannot_run_is_counted_with_its_reason(tmp_path: Path) -> None:
    outcome = Bench(cannot=("bmm",)).run(some("gemm", "bmm"), tmp_path / "raw.csv")
    assert (outcome.measured, outcome.refused, outcome.left) == (5, {"no such kernel here": 5}, 0)
    assert {row.probe.op for row in rows_of(tmp_path / "raw.csv")} == {"gemm"}


def test_a_table_of_another_gpu_is_left_alone(tmp_path: Path) -> None:
    Bench().run(some("gemm"), tmp_path / "raw.csv")
    with pytest.raises(UserError, match="holds measurements of NVIDIA H100 80GB HBM3, and this is cpu"):
        Bench(name="cpu").run(some("bmm"), tmp_path / "raw.csv")


@pytest.mark.parametrize("content", ["name,age", "name,age\n", "gpu,op,dtype,time_us\ncpu,gemm,bf16,3\n"])
def test_a_file_of_somebody_elses_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    """One that ends in the middle of a line too, and a table in other columns."""
    (tmp_path / "raw.csv").write_text(content)
    with pytest.raises(UserError, match="not a table that this command began"):
        Bench().run(some("gemm"), tmp_path / "raw.csv")
    assert (tmp_path / "raw.csv").read_text() == content


def test_the_rows_of_the_whole_grid_can_be_validated(tmp_path: Path) -> None:
    wanted = kernel_grid.default(["bf16", "fp8"])
    Bench().run(wanted, tmp_path / "raw.csv")
    record = trainsim("validate", "--kind", "kernels", tmp_path / "raw.csv", "--json").record
    assert len(record["rows"]) == len(wanted)
    assert all(row["skipped"] for row in record["rows"] if row["predicted"] is None)
    predicted = {row["source_key"].partition("+")[2] for row in record["rows"] if row["predicted"] is not None}
    rowwise = {"rmsnorm", "swiglu_bwd", "embedding", "elementwise", "adam", "cast"}
    assert {"gemm", "bmm", "attention_fwd", "attention_bwd", *rowwise} <= predicted
    assert {row["skipped"] for row in record["rows"]} <= {
        None, "op: 'launch' is not known", "op: 'overlap' is not known", "op: 'copy' as 'h2d' is not a kernel of the workload",
        "op: 'copy' as 'd2h' is not a kernel of the workload",
    }  # fmt: skip


# Timing ---------------------------------------------------------------------------------------------------------------------


class FakeWatch:
    """Writes down what happens; a kernel lasts a second of its own time."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now = 0.0

    def did(self, what: str) -> Callable[[], None]:
        def note() -> None:
            self.log.append(what)
            self.now += what == "call"

        return note

    def mark(self) -> float:
        self.log.append("mark")
        return self.now

    def between_s(self, start: float, end: float) -> float:
        return end - start

    def wait(self) -> None:
        self.log.append("wait")

    def empty_cache(self) -> None:
        self.log.append("cool")

    def keep_busy(self, seconds: float) -> None:
        self.log.append("busy")


def test_a_run_is_cooled_first_and_timed_alone() -> None:
    watch = FakeWatch()
    job = Job(watch.did("call"), watch.did("before"), watch.did("after"), repeat=4, ahead=False)
    found = timed(watch, job, 0.0)
    assert found == (0.25,) * LEAST_RUNS
    tail = ["cool", "before", "mark", "call", "mark", "after"] * LEAST_RUNS + ["wait"]
    assert watch.log[-len(tail) :] == tail
    assert watch.log.count("call") > LEAST_RUNS, "warmed up first"
    assert "busy" not in watch.log


def test_the_device_is_kept_busy_where_the_host_is_slower_and_may_run_ahead() -> None:
    watch = FakeWatch()
    timed(watch, Job(lambda: [watch.did("call")() for _ in range(3000)]), 0.0)
    assert watch.log.count("busy") == LEAST_RUNS


def test_there_are_as_many_runs_as_the_effort_allows_and_not_more_than_enough() -> None:
    assert len(timed(FakeWatch(), Job(lambda: None), 60.0)) == MOST_RUNS


class SlowStart(FakeWatch):
    """A kernel of 20 us whose first call takes 0.4 s; keeping busy takes as long as it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        self.now += 0.4 if self.calls == 1 else 2e-5

    def keep_busy(self, seconds: float) -> None:
        self.log.append("busy")
        self.now += seconds

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("effort_s", [0.02, 0.3])
def test_what_only_the_first_call_takes_is_neither_timed_nor_waited_for_again(effort_s: float) -> None:
    watch = SlowStart()
    found = timed(watch, Job(watch.call), effort_s, watch.clock)
    assert found == pytest.approx((2e-5,) * MOST_RUNS)
    assert watch.now <= 0.4 + 3 * effort_s


def test_nothing_is_kept_busy_for_longer_than_a_moment() -> None:
    """However long the host takes."""
    watch = SlowStart()
    asked: list[float] = []

    def slow() -> None:
        watch.now += 0.5

    watch.keep_busy = asked.append  # type: ignore[method-assign, assignment]
    timed(watch, Job(slow), 0.02, watch.clock)
    assert len(asked) == LEAST_RUNS
    assert max(asked) <= 0.005


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("1980, 412.35, 0x0000000000000004\n", Reading(1980.0, 412.35, "power cap")),
        ("1980, 412.35, 0x0000000000000001", Reading(1980.0, 412.35)),
        ("[N/A], 71.2, 0x00000000000000C0", Reading(None, 71.2, "hot, power brake")),
        ("1755, 690.1", Reading(1755.0, 690.1)),
        ("", Reading()),
    ],
)
def test_what_the_driver_tells_is_read(told: str, found: Reading) -> None:
    assert parse_reading(told) == found


def test_what_was_told_meanwhile_counts_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monitor = SmiMonitor("GPU-1")
    told = [(1.0, 300.0, ""), (2.0, 1980.0, ""), (3.0, 1755.0, "hot"), (4.0, 1800.0, "power cap"), (5.0, 300.0, "hot")]
    monitor.readings.extend((at_s, Reading(clock_mhz, None, words)) for at_s, clock_mhz, words in told)
    assert monitor.during(1.5, 4.5) == Reading(1800.0, None, "hot, power cap")
    assert monitor.during(2.5, 2.9) == Reading()


TOOL = """#!/bin/sh
case "$*" in *{refuses}*) echo 'Field "{refuses}" is not a valid field to query.'; exit 2;; esac
case "$*" in *loop-ms*) while true; do echo "{tells}"; sleep 0.02; done;; esac
echo "{tells}"
"""


@pytest.mark.parametrize(
    ("refuses", "asked"),
    [
        ("nothing_at_all", "clocks.sm,power.draw.instant,clocks_event_reasons.active"),
        ("clocks_event_reasons", "clocks.sm,power.draw.instant,clocks_throttle_reasons.active"),
        ("instant", "clocks.sm,power.draw,clocks_throttle_reasons.active"),
    ],
)
def test_the_driver_is_asked_for_what_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str, asked: str) -> None:
    """With a stand-in for the driver's tool; without one, nothing is said."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(TOOL.format(refuses=refuses, tells="1755, 690.1, 0x0000000000000004"))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert f"--query-gpu={asked}" in (accepted_query("GPU-1") or [])
    began = time.perf_counter()
    monitor = SmiMonitor("GPU-1")
    assert monitor.process is None, "making one starts nothing"
    with monitor:
        while not monitor.readings and time.perf_counter() - began < 30:
            time.sleep(0.01)
        process = monitor.process
    assert process is not None
    assert process.returncode is not None, "leaving ends the tool"
    assert monitor.during(began, time.perf_counter()) == Reading(1755.0, 690.1, "power cap")
    tool.unlink()
    with SmiMonitor("GPU-1") as without:
        assert without.during(began, time.perf_counter()) == Reading()


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_ms = 3.5

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at_ms - self.at_ms + 2


def test_cuda_tells_milliseconds_and_its_cache_is_flooded() -> None:
    """By reading: what was written would have to leave the cache while the kernel is timed."""
    slept: list[int] = []
    read: list[int] = []
    cuda = SimpleNamespace(
        Event=FakeEvent, synchronize=lambda: None, _sleep=slept.append,
        get_device_properties=lambda _: SimpleNamespace(L2_cache_size=50 * 2**20),
    )  # fmt: skip
    torch: Any = SimpleNamespace(
        cuda=cuda, ones=lambda size, **_: SimpleNamespace(size=size, sum=lambda: read.append(size * FLOAT_BYTES))
    )
    watch = CudaWatch(torch)
    assert watch.between_s(watch.mark(), watch.mark()) == pytest.approx(0.002)
    watch.empty_cache()
    assert len(read) == 1
    assert read[0] > 2 * 50 * 2**20
    watch.keep_busy(0.5)
    assert slept == [2**30]


@dataclass
class Streams:
    """Stands in for torch on a GPU of two streams: notes what is launched, and lets a clock of one stream go on."""

    product_s: float
    copy_s: float
    now_s: float = 0.0
    log: list[str] = field(default_factory=list)

    def did(self, what: str, lasts_s: float) -> str:
        self.log.append(what)
        self.now_s += lasts_s
        return what

    @property
    def torch(self) -> Any:
        tensor = SimpleNamespace(copy_=lambda other: self.did("copy", self.copy_s))
        multiplied = {"__matmul__": lambda me, other: self.did("product", self.product_s)}
        matrix = type("Matrix", (), {"t": lambda me: me, "to": lambda me, dtype: me, **multiplied})()
        stream = SimpleNamespace(wait_stream=lambda other: self.log.append("waits"))
        cuda = SimpleNamespace(Stream=lambda: stream, current_stream=lambda: stream, stream=lambda side: nullcontext())
        random = SimpleNamespace(manual_seed=lambda seed: None)
        return SimpleNamespace(
            cuda=cuda, nn=SimpleNamespace(functional=None), Generator=lambda device: random, bfloat16=None,
            randn=lambda sizes, **_: matrix, empty_like=lambda like: tensor,
        )  # fmt: skip

    def mark(self) -> float:
        return self.now_s

    def between_s(self, start: float, end: float) -> float:
        return end - start

    def wait(self) -> None: ...

    def empty_cache(self) -> None: ...

    def keep_busy(self, seconds: float) -> None: ...


@given(st.floats(1e-5, 1e-2), st.floats(1e-5, 1e-2))
def test_copies_beside_a_product_outlast_it(product_s: float, copy_s: float) -> None:
    """One and a half times, by what both take alone, and hardly more; the product's time alone is kept."""
    gpu = Streams(product_s, copy_s)
    job = Kernels(gpu.torch, "cuda", gpu).job(Probe("overlap", "bf16", 64, 64, 64, variant="gemm beside copy d2d"))
    assert job.alone_s == pytest.approx(product_s)
    gpu.log.clear()
    job.before()
    assert gpu.log[0] == "waits", "after all that was launched before"
    copied_s = gpu.log.count("copy") * copy_s
    assert 1.5 * product_s * 0.999 <= copied_s <= (1.5 * product_s + copy_s) * 1.001
    job.call()
    assert gpu.log[-1] == "product"
    assert "copy" not in gpu.log[gpu.log.index("product") :]


# The command ----------------------------------------------------------------------------------------------------------------


def test_without_torch_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    said = trainsim("calibrate", "gpu", "--device", "cpu")
    assert said.code == 2
    assert "pip install torch" in said.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--dtype", "fp9"], "did you mean 'fp8'"),
        (["--ops", "gem"], "did you mean 'gemm'"),
        (["--ops", ""], "--ops names nothing"),
        (["--ops", " , "], "--ops names nothing"),
        (["--dtype", ","], "--dtype names nothing"),
        (["--budget", "10"], "need a unit"),
        (["--model", "llama3-9b"], "no model"),
    ],
)
def test_what_is_asked_for_is_checked_before_anything_is_loaded(args: list[str], words: str) -> None:
    said = trainsim("calibrate", "gpu", *args)
    assert said.code == 2
    assert words in said.err


@pytest.mark.parametrize("name", ["gpu", "fit", "trace", "links"])
def test_help_is_light_and_says_what_comes_out(name: str) -> None:
    assert not loaded(f"from simulator.cli import run\nassert run(['calibrate', {name!r}, '--help']) == 0") & {
        *HEAVY,
        "torch",
    }
    said = trainsim("calibrate", name, "--help")
    assert "--json" in said.out
    assert len(said.out.splitlines()) < 40


def test_the_spread_of_runs_is_where_four_fifths_lie_and_of_one_run_that_run() -> None:
    assert spread((2.0,)) == (2.0, 2.0, 2.0)
    assert spread((1.0, 2.0, 3.0)) == pytest.approx((2.0, 1.2, 2.8))
