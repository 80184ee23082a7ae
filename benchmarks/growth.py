"""Resident memory of a sweep and of a search with a table in SQLite, after 10,000 and after 100,000 plans that cost nothing.

    .venv/bin/python benchmarks/growth.py [sweep|search] [POINTS]

Without arguments both are run at both sizes, each in a process of its own. Outcomes are made up, so that only what is kept
counts.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import redirect_stdout
from os import devnull
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from simulator.cli import run
from simulator.search import best_first, search
from simulator.search.plan_checks import LEGAL, Examined, Measured, Weighed
from simulator.study import sweep

SIZES = 10_000, 100_000
SCENARIO = {
    "model": {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32_000},
    "cluster": {"name": "dgx-h100", "nodes": 2},
    "job": {"sequence_length": 1024, "global_batch": 32},
}
OTHERS = {"cp": [1], "ep": [1], "microbatch": [1], "schedule": ["1f1b"], "chunks": [1], "recompute": ["none"], "split": ["even"]}


def of_sweep(folder: Path, points: int) -> list[str]:
    sweep.outcome = lambda document, effort: _outcome(
        document.at(("job", "global_batch")), document.at(("job", "sequence_length"))
    )  # type: ignore[assignment]
    over = {"job.global_batch": (32, 100), "job.sequence_length": (128, points // 100)}
    lists = [f"{name}={','.join(str(step * i) for i in range(1, many + 1))}" for name, (step, many) in over.items()]
    return ["sweep", "scenario.yaml", "--over", lists[0], "--over", lists[1], "--output", "a.sqlite"]


def _outcome(batch: int, length: int) -> sweep.Outcome:
    step_s = float(batch * length)
    return sweep.Outcome(
        "simulated", None, None, step_s, 0.9 * step_s, 1.1 * step_s, step_s, step_s, 0.5, 0.5, batch * length, 16
    )


def of_search(folder: Path, points: int) -> list[str]:
    made_up: dict[str, Any] = {
        "weighed": lambda base, several: [Weighed(LEGAL, "", "", 2.0**30 + c.tp * c.pp, c.tp * c.pp, 16, 70.0) for c in several],
        "quick_bounds_ns": lambda base, several: [2**20 * c.tp * c.pp for c in several],
        "examined": lambda base, c, bound: Examined(LEGAL, 2.0**30 + c.tp * c.pp, 2**20 * c.tp * c.pp),
        "measured": lambda base, c, *more: Measured(float(c.tp * c.pp), 0.4, 2**30 + c.tp, None, (("bubble", 0.1 * c.tp),)),
    }
    for name, function in made_up.items():
        setattr(best_first, name, function)
    search._confirmed = lambda looked, long: "made up"  # type: ignore[assignment]
    space = {"tp": list(range(1, 101)), "pp": list(range(2, points // 100 + 2)), **OTHERS}
    (folder / "space.yaml").write_text(yaml.safe_dump(space))
    return ["search", "scenario.yaml", "--space", "space.yaml", "--store", "a.sqlite"]


def measure(kind: str, points: int) -> None:
    with TemporaryDirectory() as name, Path(devnull).open("w") as nowhere:
        folder = Path(name)
        (folder / "scenario.yaml").write_text(yaml.safe_dump(SCENARIO))
        words = {"sweep": of_sweep, "search": of_search}[kind](folder, points)
        files = [str(folder / word) if word.endswith((".yaml", ".sqlite")) else word for word in words]
        with redirect_stdout(nowhere):
            code = run([*files, "--workers", "1"])
    now_kb = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    most_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{kind} of {points:,} plans (exit {code}): {now_kb / 1024:.1f} MiB after it, at most {most_kb / 1024:.1f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        for kind in sys.argv[1:] or ("sweep", "search"):
            for size in SIZES:
                subprocess.run([sys.executable, __file__, kind, str(size)], check=True)
