"""The time that a plan takes other programs, beside ours, in turn: GPT-3 175B on 512 A100, TP 8 x PP 8 x DP 8, 64 microbatches.

    make bench PEERS=DIR          or          python benchmarks/peers.py DIR

DIR holds a checkout of each program: `calculon` (github.com/calculon-ai/calculon). It is run as it is shipped, and with its
logger silent. Processor seconds, the least of several runs; nothing is timed but the plan: files are read before. A closed
formula and an event simulation answer different questions; the figures say what each costs. Without DIR nothing is run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bars import _step_s, calibration, gpt175b
from timing import best_processor_s

import simulator as sim

ROUNDS = 5
CALCULON = """
import logging, sys
from time import process_time
sys.path.insert(0, sys.argv[1])
import calculon
from calculon.llm import Llm
from calculon import System
home, silent = sys.argv[1], sys.argv[2] == "silent"
application = calculon.io.read_json_file(home + "/models/gpt3-175B.json")
execution = calculon.io.read_json_file(home + "/validation/seqsel/fig7/gpt3-175B_none.json")
execution |= {"num_procs": 512, "data_par": 8, "batch_size": 512, "pipeline_interleaving": 1, "activation_recompute": "full"}
machine = calculon.io.read_json_file(home + "/systems/a100_80g.json")
logger = logging.getLogger()
logger.addHandler(logging.StreamHandler(stream=sys.stderr))
logger.setLevel("INFO")
if silent:
    logging.disable(logging.CRITICAL)
times = []
for _ in range(10):
    began = process_time()
    model = Llm(Llm.Application(application), logger)
    model.compile(System(machine), Llm.Execution.from_json(execution))
    model.run(System(machine))
    times.append(process_time() - began)
print(min(times))
"""


def calculon_s(folder: Path, how: str) -> float:
    """Processor seconds of a plan by Calculon."""
    command = [sys.executable, "-c", CALCULON, str(folder), how]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("PEERS") or None)
    parser.add_argument("--quick", action="store_true", help="one round only")
    wanted = parser.parse_args()
    if wanted.folder is None or not (Path(wanted.folder) / "calculon").is_dir():
        print("Peers are run where a folder with them is given: make bench PEERS=DIR, with DIR/calculon")
        return
    session, scenario, figures = sim.Session(), gpt175b(), {"shipped": [], "silent": [], "ours": []}
    _step_s(scenario, session=session)
    print(calibration())
    for _ in range(1 if wanted.quick else ROUNDS):
        for how in ("shipped", "silent"):
            figures[how].append(calculon_s(Path(wanted.folder) / "calculon", how))
        figures["ours"].append(best_processor_s(lambda: _step_s(scenario, session=session), 1)[0])
    ours, shipped, silent = (min(figures[who]) for who in ("ours", "shipped", "silent"))
    print(f"  a plan of 175B on 512 GPUs, simulated in a session {1e3 * ours:9.1f} ms")
    print(f"  by Calculon, as shipped                            {1e3 * shipped:9.1f} ms  ours over it {ours / shipped:6.1f}")
    print(f"  by Calculon, its logger silent                     {1e3 * silent:9.1f} ms  ours over it {ours / silent:6.1f}")
    print(calibration())


if __name__ == "__main__":
    main()
