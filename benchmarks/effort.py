"""What work takes beside what `simulator.simulation.estimated_effort` estimates: the small ends of the grids that its rates
were measured on.

Processor seconds of this process, from objects to results; starting Python and reading files are left out on both sides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import simulator as sim
from simulator.config import catalog
from simulator.program.layout import as_taken, lay_out
from simulator.program.slot import Shape
from simulator.simulation import estimated_effort
from simulator.study.collective import collective, spread
from simulator.study.flows import Case, Flow, effort_of, end_times_s
from simulator.study.schedule import evaluate

Timed = tuple[str, estimated_effort.Effort, Callable[[], Any]]


def runs() -> Iterator[Timed]:
    for nodes, folding in ((16, False), (64, False), (4096, True), (16384, True)):
        estimates: list[estimated_effort.Effort] = []
        scenario = sim.scenario(
            {
                "model": "llama3-8b",
                "cluster": {"name": "dgx-h100", "nodes": nodes},
                "plan": {"tp": 2, "pp": 4},
                "job": {"sequence_length": 2048, "global_batch": 8 * nodes},
            }
        )

        def work(scenario: Any = scenario, folding: bool = folding, told: list[estimated_effort.Effort] = estimates) -> None:
            scenario.simulate(folding=folding, engine="des", long=True, expect=told.append)

        work()
        yield f"run of {8 * nodes} GPUs{'' if folding else ', every rank'}", estimates[0], work


def collectives() -> Iterator[Timed]:
    for kind, algorithm, gpus in (
        ("alltoall", "direct", 1024),
        ("alltoall", "direct", 2048),
        ("alltoall", "pairwise", 1024),
        ("all_reduce", "ring", 16384),
    ):
        cluster, told = sim.cluster("dgx-h100", nodes=gpus // 8), list[estimated_effort.Effort]()
        chosen = spread(cluster, gpus)

        def work(
            kind: str = kind, algorithm: str = algorithm, cluster: Any = cluster, chosen: Any = chosen, told: Any = told
        ) -> Any:
            return collective(kind, cluster, [2**20], gpus=chosen, algorithm=algorithm, long=True, expect=told.append)

        work()
        yield f"{kind} of {gpus} GPUs, {algorithm}", told[0], work


def schedules() -> Iterator[Timed]:
    for name, shape in (
        ("1f1b", Shape(16, 1000)),
        ("zb-h1", Shape(32, 500)),
        ("interleaved", Shape(16, 256, 4)),
        ("v-half", Shape(32, 128, 2)),
        ("zb-v", Shape(32, 256, 2)),
        ("zb-auto", Shape(32, 256)),
    ):
        schedule = catalog.module("schedules", name)
        taken = as_taken(schedule, shape)
        estimate = taken.stages * taken.microbatches * estimated_effort.SLOT
        yield f"{name}, P {shape.ranks} M {shape.microbatches}", estimate, lambda s=schedule, t=taken: evaluate(lay_out(s, t))


def flows() -> Iterator[Timed]:
    for count, links, hops in ((1000, 100, 4), (2000, 100, 4), (2000, 1000, 4), (1000, 50, 8)):
        rng = random.Random(1)
        routes = [tuple(rng.sample(range(links), hops)) for _ in range(count)]
        drawn = tuple(Flow(0.0, float(rng.randint(2**20, 2**30)), route) for route in routes)
        case = Case("drawn", tuple(float(rng.choice((2**30, 2**31, 2**32))) for _ in range(links)), (0.0,) * links, drawn)
        yield f"{count} flows of {hops} links over {links}", effort_of(case), lambda case=case: end_times_s(case)


def main() -> None:
    for name, estimate, work in (case for cases in (runs, collectives, schedules, flows) for case in cases()):
        began = process_time()
        work()
        took_s = process_time() - began
        print(f"{name:45} took {took_s:7.2f} s, estimated {estimate.seconds:7.2f} s, {estimate.seconds / took_s:5.2f}x")


if __name__ == "__main__":
    main()
