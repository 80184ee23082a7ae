"""Every plan of the default space simulated, without any bound: the golden that a search is compared with.

`python benchmarks/brute_force.py` writes benchmarks/golden/llama3-70b-128xh100.json anew and says what changed; with --compare it
only compares a search with the golden. `make bench-long` runs both. Some 300 plans fit in memory; they take about 15 minutes of
two cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from simulator.search.plan_checks import LEGAL, Base, examined, measured, weighed
from simulator.search.search import aim_of, base_of, choices_of, found_of
from simulator.search.space import Choice
from simulator.study.pool import Workers, cores, opened

HERE = Path(__file__).parent
SCENARIO, SPACE = HERE / "scenarios" / "llama3-70b-128xh100.yaml", HERE / "spaces" / "default.yaml"
GOLDEN = HERE / "golden" / "llama3-70b-128xh100.json"
TOP = 5


def tried(base: Base, choice: Choice) -> tuple[str, float | None]:
    """What becomes of a plan by itself, and the time of its step in seconds."""
    (one,) = weighed(base, [choice])
    if one.status != LEGAL:
        return one.status, None
    if (ordered := examined(base, choice, bounds=False)).status != LEGAL:
        return ordered.status, None
    return LEGAL, measured(base, choice, long=True).step_time_s


def brute_force(base: Base, plans: list[Choice]) -> dict[str, Any]:
    """Every plan by itself: the number of plans by what became of them, and the best of them all."""
    tasks: Iterator[Any] = iter([(number, (tried, (base, plan))) for number, plan in enumerate(plans)])
    with opened(Workers(cores())) as pool:
        found = {plans[number].text: one for number, one in pool.answers(tasks, 4)}
    statuses = [status for status, _ in found.values()]
    best = sorted((step_s, text) for text, (_, step_s) in found.items() if step_s is not None)
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    return {"plans": len(plans), "counts": counts, "best": [[text, step_s] for step_s, text in best]}


def main() -> None:
    base = base_of(SCENARIO)
    began = perf_counter()
    if "--compare" not in sys.argv:
        golden = brute_force(base, choices_of(base, SPACE))
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
        print(f"brute force: {perf_counter() - began:.0f} s, {golden['plans']} plans, {golden['counts']}")
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = found_of(base, aim_of("step_time", TOP), SPACE, workers=cores())
    best = [[plan.text, plan.simulated()[1]] for plan in found.best]
    print(f"search: {found.wall_s:.1f} s, {found.counts}")
    print("the same best plans" if best == golden["best"][:TOP] else f"DIFFERENT: {best} and not {golden['best'][:TOP]}")
    sys.exit(best != golden["best"][:TOP])


if __name__ == "__main__":
    main()
