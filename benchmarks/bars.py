"""How long simulations take, beside the time that each is meant to take at most.

    python benchmarks/bars.py [--quick] [--only WORD] [--json FILE]

Figures are processor seconds (user and system), the least of several runs, so that other work on the machine counts little.
Commands are run in pairs, one after the other in turn, with the imports that every command needs. The first and the last line
time a fixed piece of work: two runs of this file can be compared where these lines agree. Figures are for one training step.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from timing import best_processor_s, child_processor_s

import simulator as sim
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import simulate_scenario

MIB = 2**20
FEW, MANY = 3, 15
"""Runs of which the least counts, of large and of other clusters: what else the machine does moves single runs by a third."""
IMPORTS = "import numpy, simpy, yaml, click"


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured figure, in the unit of its bar, and the most that it is meant to be (None: shown for comparison only)."""

    what: str
    figure: float
    unit: str
    most: float | None = None

    def __str__(self) -> str:
        met = "" if self.most is None else f"  at most {self.most:9,.1f}  {'met' if self.figure <= self.most else 'MISSED'}"
        return f"  {self.what:<66} {self.figure:11,.1f} {self.unit:<5}{met}"


def calibration() -> Bar:
    """A fixed piece of work: a loop of Python, and sorts of numpy."""
    columns = np.random.default_rng(0).integers(1 << 40, size=200_000)

    def work() -> int:
        total = 0
        for number in range(300_000):
            total += number % 7
        return total + int(np.sort(columns)[0])

    return Bar("calibration: a loop of Python and a sort of numpy", 1e3 * best_processor_s(work, 7)[0], "ms")


def llama405b(gpus: int, schedule: str, perturb: tuple[sim.Perturb, ...] = ()) -> Scenario:
    """TP 8 x PP 16, 16 microbatches per replica, sequence parallel, ZeRO-1."""
    plan = sim.Plan(tp=8, pp=16, schedule=schedule, chunks=4 if schedule == "interleaved" else 1, sharding="zero1")
    job = sim.Job(sequence_length=8192, global_batch=16 * gpus // 128)
    return Scenario(sim.model("llama3-405b"), sim.cluster("dgx-h100", nodes=gpus // 8), plan, job, perturb=perturb)


def gpt175b(tp: int = 8, pp: int = 8, microbatches: int = 64, **plan: object) -> Scenario:
    """GPT-3 175B on 512 A100, as published: TP 8 x PP 8, 64 microbatches of 1 sequence in each of 8 replicas."""
    dp = 512 // (tp * pp)
    job = sim.Job(sequence_length=2048, global_batch=microbatches * dp)
    return Scenario(sim.model("gpt3-175b"), sim.cluster("dgx-a100", nodes=64), sim.Plan(tp=tp, pp=pp, **plan), job)


def in_process(quick: bool) -> Iterator[Bar]:
    """From scenario to metrics, in this process, with everything imported."""
    for schedule in ("1f1b", "interleaved"):
        for gpus, most_ms in ((16_384, 150), (102_400, 200), (1_048_576, 1_000)):
            if quick and gpus > 102_400:
                continue
            scenario = llama405b(gpus, schedule)
            seconds, _ = best_processor_s(lambda s=scenario: _step_s(s), FEW if gpus > 200_000 else MANY)
            yield Bar(f"405B, {schedule}, {gpus:,} GPUs, in process", 1e3 * seconds, "ms", most_ms)
    for what, perturb in (
        ("one straggler", sim.Perturb(rank=13, speed=0.8)),
        ("one slow link", sim.Perturb(link="node0/gpu1>node0/nic1", capacity=0.5)),
    ):
        for gpus, most_ms in ((16_384, 300), (1_048_576, None)):
            if quick and most_ms is None:
                continue
            scenario = llama405b(gpus, "1f1b", (perturb,))
            seconds, _ = best_processor_s(lambda s=scenario: _step_s(s, long=True), FEW if most_ms is None else MANY)
            yield Bar(f"405B, 1f1b, {gpus:,} GPUs, {what}, in process", 1e3 * seconds, "ms", most_ms)


def _step_s(scenario: Scenario, **options: object) -> float:
    return simulate_scenario(scenario, allow_oom=True, **options).metrics.step_time_s


def commands(quick: bool) -> Iterator[Bar]:
    """Whole commands beside the imports that each needs, in turn."""
    for gpus in (16_384,) if quick else (16_384, 1_048_576):
        data = {
            "model": "llama3-405b", "cluster": {"name": "dgx-h100", "nodes": gpus // 8},
            "plan": {"tp": 8, "pp": 16, "dp": gpus // 128, "schedule": "1f1b", "sharding": "zero1"},
            "job": {"sequence_length": 8192, "global_batch": 16 * gpus // 128},
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "scenario.yaml"
            file.write_text(json.dumps(data))
            run = [sys.executable, "-m", "simulator", "run", str(file), "--allow-oom", *(["--long"] if gpus > 200_000 else [])]
            pairs = [(child_processor_s([sys.executable, "-c", IMPORTS]), child_processor_s(run)) for _ in range(5)]
        imports_s, run_s = (min(column) for column in zip(*pairs, strict=True))
        yield Bar(IMPORTS, 1e3 * imports_s, "ms")
        yield Bar(f"trainsim run, 405B, {gpus:,} GPUs", 1e3 * run_s, "ms")
        if gpus == 16_384:
            yield Bar("- over the imports", median(run_s / imports_s for imports_s, run_s in pairs), "times", 2.4)
        else:
            yield Bar("- beyond the imports", 1e3 * (run_s - imports_s), "ms", 1_200)
    pairs = [
        (child_processor_s([sys.executable, "-c", IMPORTS]), child_processor_s([sys.executable, "-m", "simulator", "--help"]))
        for _ in range(5)
    ]
    yield Bar("trainsim --help", 1e3 * min(run_s for _, run_s in pairs), "ms")


def memory(quick: bool) -> Iterator[Bar]:
    """Peak memory of a process that simulates one step, by Linux: `ru_maxrss` would count this process, which starts it, too."""
    for gpus in (16_384,) if quick else (16_384, 1_048_576):
        code = f"import bars, pathlib; bars._step_s(bars.llama405b({gpus}, '1f1b'), long=True)"
        code += "; print(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
        yield Bar(f"405B, 1f1b, {gpus:,} GPUs, memory of the process", int(done.stdout) * 1024 / MIB, "MiB", 500)


def session(quick: bool) -> Iterator[Bar]:
    """Plans of GPT-3 175B on 512 A100 in a session: the first of a (tp, pp, microbatch), and further ones."""
    scenario = gpt175b()
    _step_s(scenario)  # what is imported on the way
    kept = [sim.Session() for _ in range(2 * MANY)]
    seconds, _ = best_processor_s(lambda: _step_s(scenario, session=kept.pop()), MANY)
    yield Bar("175B, 512 A100, M 64, the first plan of a session", 1e3 * seconds, "ms")
    one = kept[0]
    for what, other, most_ms in (
        ("the first of a (tp, pp, microbatch)", gpt175b(tp=8, pp=16), 12),
        ("another number of microbatches", gpt175b(tp=8, pp=16, microbatches=96), 5),
        ("another schedule", gpt175b(tp=8, pp=16, schedule="zb-h1"), 5),
        ("another sharding", gpt175b(tp=8, pp=16, sharding="zero1"), 5),
        ("the same plan", gpt175b(tp=8, pp=16), None),
    ):
        times = []
        for _ in range(MANY):
            one = sim.Session()
            _step_s(scenario, session=one)
            if most_ms == 5 or most_ms is None:
                _step_s(gpt175b(tp=8, pp=16), session=one)
            times.append(best_processor_s(lambda s=other, k=one: _step_s(s, session=k), 1)[0])
        yield Bar(f"175B, 512 A100, {what}", 1e3 * min(times), "ms", most_ms)
    shared, one = [], sim.Session()
    for tp, pp in ((4, 8), (4, 16), (2, 16), (2, 8)):
        for microbatches in (16, 32, 64):
            scenario = gpt175b(tp=tp, pp=pp, microbatches=microbatches)
            shared.append(best_processor_s(lambda s=scenario: _step_s(s, session=one), 1)[0])
    yield Bar("175B, 512 A100, plans whose flows share links, median", 1e3 * median(shared), "ms", 60)
    yield Bar("175B, 512 A100, plans whose flows share links, worst", 1e3 * max(shared), "ms", 200)


PARTS: dict[str, Callable[[bool], Iterator[Bar]]] = {
    "commands": commands, "in_process": in_process, "memory": memory, "session": session,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out a million GPUs")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    wanted = parser.parse_args()
    print(f"Processor time, least of several runs, on {platform.machine()}, Python {platform.python_version()}")
    bars = [calibration()]
    print(bars[0], flush=True)
    for part in [wanted.only] if wanted.only else PARTS:
        for bar in PARTS[part](wanted.quick):
            bars.append(bar)
            print(bar, flush=True)
    bars.append(calibration())
    print(bars[-1])
    if wanted.json:
        wanted.json.write_text(json.dumps([{"what": b.what, "figure": b.figure, "unit": b.unit, "most": b.most} for b in bars]))


if __name__ == "__main__":
    main()
