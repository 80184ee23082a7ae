"""How long the cost-aware schedules take to find their orders, beside the published figures of the public generators.

    python benchmarks/schedules.py [--quick]

Every figure is the processor time of the best of a few runs in this process, on one core, from a shape to all slots. Costs are
those of the 1.5B model in Table 9 of arXiv 2401.10241, per slot. The public figures are wall seconds on two shared x86-64 cores,
one thread, for costs of that table: another machine, so a ratio near one says little.
"""

from __future__ import annotations

import argparse
from time import process_time

from simulator.config import catalog
from simulator.program.layout import as_taken
from simulator.program.slot import Durations, Shape

SIZES = ((8, 32), (16, 64), (32, 128))
"""Ranks and microbatches."""
COSTS = Durations(18.522, 18.086, 9.337, comm=0.601)
PUBLIC_S = {
    ("zb_auto", 1.0): (0.06, 0.34, 0.76),
    ("zb_auto", 2.0): (0.11, 0.19, 0.57),
    ("zb_v", 1.0): (0.07, 0.33, 0.98),
    ("v_half", 1.0): (0.39, 1.39, 10.3),
    ("v_min", 1.0): (0.28, 0.99, 6.3),
}
"""Schedule and limit of memory: seconds for each size."""


def seconds(name: str, shape: Shape, runs: int = 3) -> float:
    """Of the fastest of several runs."""
    schedule = catalog.module("schedules", name)
    times = []
    for _ in range(runs):
        began = process_time()
        for order in schedule.orders(as_taken(schedule, shape)):
            list(order)
        times.append(process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the largest size")
    sizes = SIZES[: 2 if parser.parse_args().quick else 3]
    print(f"{'schedule':<14}{'P':>4}{'M':>5}{'seconds':>10}{'public':>9}{'ratio':>8}")
    for (name, limit), public in PUBLIC_S.items():
        for (ranks, microbatches), theirs in zip(sizes, public, strict=False):
            ours = seconds(name, Shape(ranks, microbatches, memory_limit=limit, durations=COSTS))
            label = f"{name} {limit:g}x" if name == "zb_auto" else name
            print(f"{label:<14}{ranks:>4}{microbatches:>5}{ours:>10.4f}{theirs:>9.2f}{theirs / ours:>7.1f}x", flush=True)


if __name__ == "__main__":
    main()
