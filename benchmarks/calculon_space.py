"""Core-hours to search the part of Calculon's space for GPT-3 175B on 512 A100 that `spaces/calculon_175b.yaml` expresses.

    make bench-long PEERS=DIR          or          python benchmarks/calculon_space.py [DIR]

Ours: a search of all these plans for the best. Calculon's, where DIR holds a checkout (`calculon`): what all of its executions
that stand for these plans take, by a random sample of them, with its logger silent. It evaluates every execution by formulas;
ours evaluates bounds of every plan, and simulates those that may be the best. Both are processor time of one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from searches import MANY, base_named, processor_s

from simulator.search.best_first import search_of
from simulator.search.search import aim_of, choices_of
from simulator.search.space import Choice
from simulator.study.pool import Workers, cores
from simulator.units import HOUR_S

SPACE = Path(__file__).parent / "spaces" / "calculon_175b.yaml"
OVER = ("plan.sequence_parallel=false,true",)
GPUS, SEQUENCES, LAYERS = 512, 512, 96
FLUID = ("fidelity.collectives=fluid", f"job.global_batch={SEQUENCES}")
SAMPLE = 2_000
CALCULON = """
import json, logging, random, sys
from time import process_time
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
try:
    import psutil
except ImportError:  # which it asks for the number of cores only
    sys.modules["psutil"] = SimpleNamespace(cpu_count=lambda logical=False: 1)
import calculon
from calculon import System
from calculon.llm import Llm
from calculon.llm.all_executions import AllExecutions
logging.disable(logging.CRITICAL)
home, sample = sys.argv[1], int(sys.argv[2])
application = Llm.Application(calculon.io.read_json_file(home + "/models/gpt3-175B.json"))
machine = System(calculon.io.read_json_file(home + "/systems/a100_80g.json"))
every, mapped = 0, []
for one in AllExecutions.all_executions(application, machine, 512, 512, "float16", [True]):
    every += 1
    _, tp, pp, dp, tn, pn, dn, _, _, _, _, _, recompute, _, _, kind, beside, redo, _, *offload, _ = one
    if kind == "p2p_rs_ag" or (tp == 1 and kind != "ar") or beside == "pipe" or any(offload):
        continue
    inside = (tp > 8, tp * dp > 8 and dp > 1, tp * dp * pp > 8 and pp > 1)  # whose groups leave the node of 8
    if redo == (kind == "rs_ag" and recompute != "full") and (bool(tn), bool(dn), bool(pn)) == inside:
        mapped.append(one)
chosen, good = random.Random(1).sample(mapped, sample), 0
began = process_time()
for one in chosen:
    try:
        model = Llm(application, logging.Logger("sub"))
        model.compile(machine, Llm.Execution(*one))
        model.run(machine)
        model.get_stats_values()
        good += 1
    except Llm.Error:
        pass
print(json.dumps({"every": every, "mapped": len(mapped), "good": good, "s": process_time() - began}))
"""


def ours() -> None:
    base = base_named(MANY, FLUID)
    plans = [plan for plan in choices_of(base, SPACE, OVER) if stands_for_one(plan)]
    search, began, before_s = search_of(base, aim_of("step_time", 1), plans), perf_counter(), processor_s()
    search.run(Workers(cores()), lambda text: None)
    wall_s, used_s = perf_counter() - began, processor_s() - before_s
    statuses = [plan.status for plan in search.plans]
    counts = ", ".join(f"{statuses.count(status):,} {status}" for status in sorted(set(statuses)))
    print(f"ours: {len(plans):,} plans in {wall_s:.0f} s, {used_s / HOUR_S:.3f} core-hours; {counts}")
    print(f"  best: {search.best[0][1]}, {search.best[0][0][0]:.2f} s")


def stands_for_one(plan: Choice) -> bool:
    """Whether Calculon has the plan: all divides evenly, and nothing is varied along an axis of one."""
    if GPUS % (plan.tp * plan.pp) or LAYERS % (plan.pp * plan.chunks):
        return False
    dp, divided = GPUS // (plan.tp * plan.pp), dict(plan.others)["plan.sequence_parallel"]
    tensor = plan.tp > 1 or not (divided or "tp" in plan.overlap)
    data = dp > 1 or not ("dp" in plan.overlap or plan.sharding == "zero1")
    return tensor and data and SEQUENCES % (dp * plan.microbatch) == 0


def theirs(folder: Path) -> None:
    command = [sys.executable, "-c", CALCULON, str(folder), str(SAMPLE)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    hours = found["s"] / SAMPLE * found["mapped"] / HOUR_S
    print(f"Calculon: {found['mapped']:,} of {found['every']:,} executions stand for them, {hours:.3f} core-hours")
    print(f"  by a random {SAMPLE:,} of them, of which {found['good']:,} can run: {found['s']:.1f} s")


def main() -> None:
    named = next((name for name in sys.argv[1:] if not name.startswith("-")), os.environ.get("PEERS"))
    if named and (Path(named) / "calculon").is_dir():
        theirs(Path(named) / "calculon")
    else:
        print("Calculon is run where a folder with it is given: make bench-long PEERS=DIR, with DIR/calculon")
    ours()


if __name__ == "__main__":
    main()
