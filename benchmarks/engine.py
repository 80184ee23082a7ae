"""How fast the engine is: tasks per second of the event loops and of replay, and what folding saves.

    python benchmarks/engine.py [--quick]

Every figure is the best of a few runs in this process, on one core; ratios are of figures measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from timing import best

import simulator as sim
from simulator.engine import des, heap
from simulator.engine.compiled import event_loop
from simulator.engine.contract import contract
from simulator.engine.fold import fold, unfolded
from simulator.engine.replay import replay, with_fixed_durations
from simulator.engine.task import TaskGraph
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import bound_of, program_of

MIB = 2**20


def llama405b(gpus: int, schedule: str) -> Scenario:
    """TP 8 x PP 16, 16 microbatches per replica, sequence parallel, ZeRO-1."""
    plan = sim.Plan(tp=8, pp=16, schedule=schedule, chunks=4 if schedule == "interleaved" else 1, sharding="zero1")
    job = sim.Job(sequence_length=8192, global_batch=16 * gpus // 128)
    return Scenario(sim.model("llama3-405b"), sim.cluster("dgx-h100", nodes=gpus // 8), plan, job)


def engines() -> None:
    """Tasks per second of each engine on the folded graph of 405B on 16,384 GPUs."""
    scenario = llama405b(16_384, "interleaved")
    graph = with_fixed_durations(fold(bound_of(scenario, program_of(scenario)).skeleton).graph)
    closed: TaskGraph = with_fixed_durations(graph, every=True)
    print(f"\nEngines, {len(graph):,} tasks of the folded graph:")
    des_s, _ = best(lambda: des.simulate(graph))
    print(f"  des, contention on            {des_s:7.3f} s  {len(graph) / des_s:12,.0f} tasks/s")
    heap_s, _ = best(lambda: heap.simulate(graph))
    tasks = len(contract(graph).graph)
    print(
        f"  heap, contention on           {heap_s:7.3f} s  {len(graph) / heap_s:12,.0f} tasks/s  {des_s / heap_s:.1f}x des,"
        f" {tasks:,} chains"
    )
    fixed_s, _ = best(lambda: des.simulate(closed))
    print(f"  des, closed                   {fixed_s:7.3f} s  {len(graph) / fixed_s:12,.0f} tasks/s")
    if event_loop.numba:
        fast_s, _ = best(lambda: event_loop.simulate(graph), 4)  # the first run compiles, or loads what is compiled
        print(f"  compiled, contention on       {fast_s:7.3f} s  {len(graph) / fast_s:12,.0f} tasks/s  {des_s / fast_s:.1f}x des")
    replay_s, _ = best(lambda: replay(closed))
    ratio = fixed_s / replay_s
    print(f"  replay, closed                {replay_s:7.3f} s  {len(graph) / replay_s:12,.0f} tasks/s  {ratio:.1f}x des")


def folding() -> None:
    """A case small enough to be run whole as well, also by the compiled engine: what is left where nothing folds."""
    scenario = llama405b(128, "interleaved")
    skeleton = bound_of(scenario, program_of(scenario)).skeleton
    print("\nFolding, 405B on 128 GPUs, every rank simulated and one of each class:")
    graph = unfolded(skeleton).graph
    whole_s, whole = best(lambda: des.simulate(graph), 1)
    folded_s, folded = best(lambda: des.simulate(with_fixed_durations(fold(skeleton).graph)))
    assert whole.makespan_ns == folded.makespan_ns
    print(f"  whole                         {whole_s:7.3f} s  {len(graph):12,} tasks  {len(graph) / whole_s:,.0f} tasks/s")
    if event_loop.numba:
        fast_s, made = best(lambda: event_loop.simulate(graph))
        assert whole.makespan_ns == made.makespan_ns
        print(
            f"  whole, compiled               {fast_s:7.3f} s  {whole_s / fast_s:.1f}x faster, {len(graph) / fast_s:,.0f} tasks/s"
        )
    ratio = whole_s / folded_s
    print(f"  folded                        {folded_s:7.3f} s  {len(folded.end_ns):12,} tasks  {ratio:.1f}x faster, equal")


def scale(quick: bool) -> None:
    """The same plan on more and more GPUs, in process, from scenario to metrics."""
    print("\nScale, 405B TP8 x PP16, op granularity, contention on, in process:")
    for schedule in ("1f1b", "interleaved"):
        base = 0.0
        for gpus in (1_024, 16_384) if quick else (1_024, 16_384, 102_400):
            scenario = llama405b(gpus, schedule)
            seconds, run = best(lambda s=scenario: (r := s.simulate(allow_oom=True), r.metrics)[0])
            base = base or seconds
            print(
                f"  {schedule:<11} {gpus:>7,} GPUs       {seconds:7.3f} s  {len(run.engine_timeline.expansion.graph):12,} tasks"
                f" of {run.engine_timeline.expansion.tasks_unfolded:,}, {run.engine_timeline.expansion.skeleton.ranks} classes,"
                f" {seconds / base:.2f}x the first, step {run.metrics.step_time_s:.6f} s"
            )


def own_loads(quick: bool) -> None:
    """A step in which all 64 ranks that share experts have their own tokens in every layer, from scenario to metrics."""
    print("\nDeepSeek-V3 on 2,048 GPUs, dualpipe, a drawn token matrix for each layer, in process:")
    moe = sim.Moe("drawn", concentration=100.0)
    plan = sim.Plan(pp=16, ep=64, schedule="dualpipe", sharding="zero1", recompute="full", moe=moe)
    for batch in (4096,) if quick else (4096, 15360):
        began = process_time()
        run = sim.simulate(
            sim.model("deepseek-v3"), sim.cluster("dgx-h100", nodes=256), plan, sim.Job(4096, batch, 1, "fp8_block"),
            framework=sim.framework("megatron-core-2025"), long=True,
        )  # fmt: skip
        step_s, seconds = run.metrics.step_time_s, process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
        expansion = run.engine_timeline.expansion
        print(
            f"  {batch // 128:>3} microbatches              {seconds:7.1f} s  {len(expansion.graph):12,} tasks,"
            f" {expansion.skeleton.ranks} classes, {peak:,.0f} MiB at most so far, step {step_s:.6f} s"
        )


def whole_command() -> None:
    """`trainsim run` from a cold start: seconds and peak memory of the process."""
    print("\n`trainsim run`, 405B on 16,384 GPUs, the whole process:")
    for schedule in ("1f1b", "interleaved"):
        chunks = 4 if schedule == "interleaved" else 1
        data = {
            "model": "llama3-405b", "cluster": {"name": "dgx-h100", "nodes": 2048},
            "plan": {"tp": 8, "pp": 16, "dp": 128, "schedule": schedule, "chunks": chunks, "sharding": "zero1"},
            "job": {"sequence_length": 8192, "global_batch": 2048},
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "scenario.yaml"
            file.write_text(json.dumps(data))
            command = [sys.executable, "-m", "simulator", "run", str(file), "--allow-oom", "--json"]
            began = perf_counter()
            done = subprocess.run(command, capture_output=True, check=True)
        seconds = perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MIB
        step = json.loads(done.stdout)["step_time_s"]
        print(f"  {schedule:<11}                    {seconds:7.3f} s  {peak:8.0f} MiB at most so far, step {step:.6f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the largest case")
    quick = parser.parse_args().quick
    whole_command()
    engines()
    folding()
    scale(quick)
    own_loads(quick)


if __name__ == "__main__":
    main()
