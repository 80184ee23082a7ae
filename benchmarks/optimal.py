"""How fast `optimal` proves the best pipeline order, and how near it comes where it does not.

    python benchmarks/optimal.py [--quick]

P = 4, M = 8 and P = 8, M = 16 to the proof, within 10 and 60 seconds; P = 8, M = 32 and P = 16, M = 64 within 60 seconds, with
the gap that is left. Unit durations, and those profiled for the 1.5B model in arXiv 2401.10241, Table 9; memory caps below,
at and above that of 1F1B, counted from F to the end of W. Seconds are of the wall clock, with two workers.
"""

from __future__ import annotations

import argparse

from simulator.program.slot import Durations, Goal, Shape
from simulator.schedules import optimal

DURATIONS = {"unit": Durations(), "1.5B": Durations(18.522, 18.086, 9.337, comm=0.601)}
CAPS = (0.5, 0.75, 1.0, 1.5, 2.0)
TO_PROOF = ((4, 8, 10.0), (8, 16, 60.0))
TO_A_GAP = ((8, 32, 60.0), (16, 64, 60.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what is proven in seconds")
    sizes = TO_PROOF if parser.parse_args().quick else TO_PROOF + TO_A_GAP
    columns = ("P", "M", "durations", "cap", "makespan", "at least", "gap", "seconds")
    print("{:>3} {:>3}  {:9} {:>5} {:>11} {:>11} {:>7} {:>8}  status; source".format(*columns))
    for ranks, microbatches, seconds in sizes:
        for name, durations in DURATIONS.items():
            for cap in CAPS:
                goal = Goal(memory_count="fw", time_limit_s=seconds)
                shape = Shape(ranks, microbatches, memory_limit=cap, durations=durations, goal=goal)
                found = optimal.certificate(shape)
                print(
                    f"{ranks:3} {microbatches:3}  {name:9} {cap:4}P {found.value:11.6g} {found.lower_bound:11.6g} "
                    f"{found.gap:7.2%} {found.seconds:8.2f}  {found.status}; {found.source}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
