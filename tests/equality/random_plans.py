"""Random plans by every engine: each row of each rank starts, ends and arrives as in the reference, which simulates every rank.

    python -m tests.equality.random_plans [--plans N] [--seed N]

`make plans` runs as many plans as wanted, of fewer than 3,000 tasks each, on all cores; the slow tests run ten thousand. The
plans have slow GPUs, slow links, and links that are slow for a while among them; the small ones also run twice at once, as two
jobs on the same links. A difference ends the run with the plan that shows it.

All are bound as `simulate` binds them, without links that can never limit flows: leaving these out changes rates by what a share
of a link is rounded by, which one plan in a thousand shows.
"""

from __future__ import annotations

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from simulator.config import feasible
from simulator.engine import heap, replay
from simulator.engine.compiled import event_loop
from simulator.engine.contract import contract
from simulator.engine.skeleton import join_skeletons, task_count
from simulator.engine.task import TaskGraph
from simulator.engine.timeline import Timeline, Times
from simulator.errors import UserError
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.session import Session
from simulator.simulation.simulate import bound_of, kept_prices, program_of, site_of

from ..small_scenarios import both
from . import test_stretches
from .test_plans import scenarios

MOST_TASKS = 3_000
ROWS_OF_TASK = 1
"""Plans with no more rows of all ranks than this for each of the most tasks are bound, to see how many tasks they are."""
TWICE = 4
"""Plans of at most so many tasks, as a part of the most, also run twice at once."""
AT_A_TIME = 250
"""Plans that a process draws before it reports."""


def engines(graph: TaskGraph) -> dict[str, Times]:
    """The times of a graph by every engine that takes it, but for the reference."""
    found = {"heap": heap.simulate(graph), "heap, contracted": heap.times_by(contract(graph))}
    if not replay.why_not(graph):
        found["replay"] = replay.replay(graph)
    if event_loop.INSTALLED and not event_loop.why_not(graph):
        found["compiled"] = event_loop.simulate(graph)
    return found


def check(of: Scenario, session: Session) -> Counter[str]:
    """Compares all engines on a plan, and counts by which it was simulated; nothing if the plan is refused or too large."""
    try:
        feasible.check(of)
    except UserError:
        return Counter()
    program = program_of(of)
    rows = sum(len(program.bodies[step.body].ops) for steps in program.orders for step in steps)
    if rows * of.cluster.gpus > ROWS_OF_TASK * MOST_TASKS * len(program.orders):
        return Counter()
    of_bound = bound_of(of, program, site_of(of, kept_prices(of, session), session))
    skeleton = of_bound.merged
    tasks = task_count(skeleton)
    if tasks >= MOST_TASKS:
        return Counter()
    pair = both(skeleton, skeleton)
    assert len(pair.whole.graph) == tasks
    pair.assert_equal()
    several = TWICE * tasks < MOST_TASKS
    if several:
        twice = join_skeletons([skeleton, skeleton])
        both(twice, twice).assert_equal()
    found = engines(pair.whole.graph)
    for name, times in found.items():
        for column in ("start_ns", "end_ns", "arrival_ns"):
            np.testing.assert_array_equal(getattr(times, column), getattr(pair.whole_times, column), err_msg=name)
    whole = Timeline(pair.whole_times, pair.whole)
    stretched = test_stretches.of_stretches(of_bound, every=False)
    for rank in range(whole.ranks) if stretched else ():
        one, other = whole.rank_times(rank), stretched.rank_times(rank)
        np.testing.assert_array_equal(one.start_ns, other.start_ns)
        np.testing.assert_array_equal(one.end_ns, other.end_ns)
        np.testing.assert_array_equal(one.arrival_ns, other.arrival_ns)
    ways = [
        name for name, is_so in (("disturbed", of.perturb), ("stretches", stretched), ("with a second job", several)) if is_so
    ]
    return Counter(["plans", *ways, *found])


def drawn(number: int, first: int) -> Counter[str]:
    """So many plans that are neither refused nor too large, or a few more; the same ones for the same `first`."""
    counts, turn, session = Counter[str](), 0, Session()
    while counts["plans"] < number:

        @seed(first + turn)
        @settings(
            max_examples=number, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
        )
        @given(scenarios())
        def some(of: Scenario) -> None:
            if counts["plans"] < number:
                counts.update(check(of, session))

        some()
        turn += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    parts = [min(AT_A_TIME, wanted.plans - begin) for begin in range(0, wanted.plans, AT_A_TIME)]
    total = Counter[str]()
    with ProcessPoolExecutor() as pool:
        try:
            for done in as_completed([pool.submit(drawn, part, 1000 * (wanted.seed + at)) for at, part in enumerate(parts)]):
                total += done.result()
                print(f"{total['plans']:,} of {wanted.plans:,} plans", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    print("every row as in the reference: " + ", ".join(f"{number:,} {what}" for what, number in total.most_common()))


if __name__ == "__main__":
    main()
