"""How long searches of committed lists of plans take, beside the time that each is meant to take at most.

- 116 plans of Llama 3 70B on 128 H100 (`spaces/llama3-70b-116-plans.yaml`): searched, and with `--all` each of them simulated.
- 10,000 plans of GPT-3 175B on 512 A100 whose collectives are closed, so that no flows share a link
  (`spaces/gpt3-175b-10000-plans.yaml`): searched. `--quick` leaves them out.

A search looks at every plan, and simulates those that may be among the five best. Wall seconds of a pool with as many
processes as there are cores, which start within them, and processor seconds of all processes. The confirmation of the winner
is not in them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter

import yaml
from bars import calibration

from simulator.search.best_first import search_of
from simulator.search.plan_checks import Base
from simulator.search.search import aim_of, base_of, choices_of
from simulator.search.space import EVEN, Choice
from simulator.study.pool import Workers, cores

HERE = Path(__file__).parent
FEW, MANY = "llama3-70b-128xh100", "gpt3-175b-512xa100"
FEW_PLANS, MANY_PLANS = HERE / "spaces" / "llama3-70b-116-plans.yaml", HERE / "spaces" / "gpt3-175b-10000-plans.yaml"
FEW_AT_MOST_S, MANY_AT_MOST_S = 5, 60
TOP = 5


def listed(file: Path) -> list[Choice]:
    """The plans of a list, each with one sequence in a microbatch and ZeRO-1."""
    rows = yaml.safe_load(file.read_text(encoding="utf-8"))
    return [Choice(row["tp"], row["pp"], 1, 1, 1, row["schedule"], row["chunks"], "zero1", "none", EVEN) for row in rows]


def base_named(scenario: str, settings: Sequence[str] = ()) -> Base:
    """A scenario of this folder, with other values of some fields."""
    return base_of(HERE / "scenarios" / f"{scenario}.yaml", settings)


def processor_s() -> float:
    """Processor seconds of this process and of all that have ended of those that it started."""
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(name: str, base: Base, plans: Sequence[Choice], top: int, at_most_s: float) -> None:
    """Searches plans and prints how long it takes."""
    search, began, before_s = search_of(base, aim_of("step_time", top), plans), perf_counter(), processor_s()
    search.run(Workers(cores()), lambda text: None)
    wall_s, used_s = perf_counter() - began, processor_s() - before_s
    counts: dict[str, int] = {}
    for plan in search.plans:
        counts[plan.status] = counts.get(plan.status, 0) + 1
    print(f"{name}: {wall_s:.1f} s, {used_s:.1f} processor seconds on {cores()} cores; meant to be at most {at_most_s} s")
    print(f"  {', '.join(f'{number:,} {status}' for status, number in sorted(counts.items()))}")
    print(f"  best: {search.best[0][1]}, {search.best[0][0][0]:.3f} s")


def main() -> None:
    few = listed(FEW_PLANS)
    print(calibration())
    timed(f"search of {len(few)} plans", base_named(FEW), few, TOP, FEW_AT_MOST_S)
    if "--all" in sys.argv:
        timed(f"all of {len(few)} plans simulated", base_named(FEW), few, len(few), FEW_AT_MOST_S)
    if "--quick" not in sys.argv:
        many = choices_of(base_named(MANY), MANY_PLANS)
        timed(f"search of {len(many):,} plans of 175B", base_named(MANY), many, TOP, MANY_AT_MOST_S)
    print(calibration())


if __name__ == "__main__":
    main()
