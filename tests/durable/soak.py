"""Kills as many processes as it is told, or as fit into some minutes, in turn in a pool of processes and on a Dask cluster.

`make soak` kills a thousand. It prints how many there were; anything lost ends it with an error and the folder that shows it.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from . import kills

AT_A_TIME = 26, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing more after this time")
    parser.add_argument("--seed", type=int, default=1000)
    given = parser.parse_args()
    until, total, repeated, seed = time.monotonic() + 60 * given.minutes, Counter[str](), 0, given.seed
    while total.total() < given.kills and time.monotonic() < until:
        for kill, most in zip((kills.in_processes, kills.on_a_cluster), AT_A_TIME, strict=True):
            if not (left := min(most, given.kills - total.total())):
                break
            folder = Path(mkdtemp(prefix="trainsim-soak-"))
            print(f"seed {seed}, {folder}: {left} kills", flush=True)
            victim = kill(folder, left, seed)
            total, repeated, seed = total + victim.kills, repeated + victim.repeated, seed + 1
            rmtree(folder)
    said = ", ".join(f"{number} of a {kind}" for kind, number in total.items())
    print(f"{total.total()} kills ({said}): nothing lost, one row per hash, {repeated} tasks in flight ran again")


if __name__ == "__main__":
    main()
