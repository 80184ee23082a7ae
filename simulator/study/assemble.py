"""From a scenario to what the engine takes: a schedule laid out, a program, a skeleton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..binding.bind import Bound, Site, bind
from ..binding.conduct import AUTO, Conduct
from ..binding.perturb import Perturbation
from ..costs.measured import Options, measured_cost
from ..engine import des
from ..engine.close import close
from ..engine.fold import fold
from ..engine.timeline import Timeline
from ..errors import UserError, did_you_mean
from ..hardware.cluster import Cluster
from ..lowering.lower import lower
from ..program.labels import Labels
from ..program.program import Program
from ..program.slot import Durations, Shape, Slot, lay_out, looped
from ..units import seconds
from . import catalog, feasible, kernel_fits
from .scenario import Perturb, Scenario
from .timing import switch_abilities, timing_on


def program_of(scenario: Scenario, steps: int = 1) -> Program:
    """The scenario's program, free of hardware."""
    schedule, shape = catalog.module("schedules", scenario.plan.schedule), feasible.schedule_shape(scenario)
    if getattr(schedule, "COST_AWARE", False):
        shape = replace(shape, durations=slot_durations(scenario, schedule, shape))
    dp = feasible.data_parallel_degree(scenario)
    return lower(scenario.model, scenario.plan, scenario.job, lay_out(schedule, shape), dp=dp, steps=steps)


def bound_of(scenario: Scenario, program: Program, *, every_link: bool = False) -> Bound:
    """The program on the scenario's cluster."""
    return bind(program, feasible.mesh_of(scenario), site_of(scenario), every_link=every_link)


def site_of(scenario: Scenario) -> Site:
    """The scenario's cluster with what its dtype costs there, and its disturbances."""
    cluster = scenario.cluster
    return Site(
        cluster,
        measured_cost(cluster.gpu, scenario.job.dtype, kernel_fits.shelf(), Options()),
        conduct_on(cluster),
        [_perturbation(p, cluster) for p in scenario.perturb],
    )


LIBRARY = {
    "all_reduce": ("ring", "tree", "hierarchical"),
    "reduce_scatter": ("ring", "hierarchical"),
    "all_gather": ("ring", "hierarchical"),
    "alltoall": ("direct",),
    "broadcast": ("ring", "tree"),
    "sendrecv": ("point_to_point",),
    "exchange": ("point_to_point",),
}
"""What `auto` chooses from everywhere: what collective libraries have."""
IN_SWITCHES = {"nvls": ("nvls", "nvls_tree"), "sharp": ("sharp",)}
"""What it has besides for all-reduces where switches add up."""


def conduct_on(cluster: Cluster, algorithm: str = AUTO) -> Conduct:
    """How collectives are done on a cluster: by the algorithm named, or by the fastest that its library has."""
    algorithms = {name: catalog.module("collectives", name) for name in catalog.files("collectives")}
    if algorithm != AUTO and catalog.plain(algorithm) not in map(catalog.plain, algorithms):
        raise UserError(f"no algorithm {algorithm!r}", hint=did_you_mean(algorithm, [AUTO, *algorithms]))
    able = [name for ability in switch_abilities(cluster) for name in IN_SWITCHES[ability]]
    choices = {**LIBRARY, "all_reduce": (*LIBRARY["all_reduce"], *able)}
    return Conduct(algorithms, choices, catalog.plain(algorithm).replace("-", "_"), timing_on(cluster))


def _perturbation(p: Perturb, cluster: Cluster) -> Perturbation:
    if p.link is not None:
        return Perturbation(p.capacity or 0.0, link=cluster.link_named(p.link), from_s=p.from_s, until_s=p.until_s)
    return Perturbation(p.speed or 1.0, rank=p.rank, from_s=p.from_s, until_s=p.until_s)


def slot_durations(scenario: Scenario, schedule: Any, shape: Shape) -> Durations:
    """Seconds of every stage's F, I and W and of a crossing: one microbatch simulated alone, undisturbed, forth and back."""
    single = replace(shape, microbatches=1, splits=1)
    layout = lay_out(_OneMicrobatch(schedule), single)
    undisturbed = replace(scenario, perturb=())
    program = lower(scenario.model, replace(scenario.plan, splits=1), scenario.job, layout, dp=1)
    bound = bound_of(undisturbed, program)
    folded = fold(bound.skeleton)
    timeline = Timeline(des.simulate(close(folded.expansion.graph)), folded.expansion, folded.class_of)
    found: dict[tuple[str, int], float] = {}
    crossings = [0.0]
    for rank in range(program.ranks):
        which = int(np.flatnonzero(timeline.expansion.skeleton.program == rank)[0])
        found |= _of_rank(timeline, bound.labels[rank], which, crossings)
    forward, input_gradient, weight_gradient = (tuple(found[kind, s] for s in range(layout.stages)) for kind in "FIW")
    return Durations(forward, input_gradient, weight_gradient, comm=max(crossings))


def _of_rank(timeline: Timeline, labels: Labels, which: int, crossings: list[float]) -> dict[tuple[str, int], float]:
    """Seconds of each slot of one class of ranks; those of its sends are appended to `crossings`."""
    tasks, times = timeline.expansion.tasks_of(which), timeline.times
    cuts = np.flatnonzero(np.diff(labels.step, prepend=-1, append=-1))
    found: dict[tuple[str, int], float] = {}
    for begin, end in pairwise(cuts.tolist()):
        step = labels.steps[int(labels.step[begin])]
        lasted_s = seconds(int(times.end_ns[tasks[begin:end]].max() - times.start_ns[tasks[begin:end]].min()))
        if step.phase in ("F", "I", "W"):
            found[step.phase, step.stage] = lasted_s
        elif step.phase == "send":
            crossings.append(lasted_s)
    return found


class _OneMicrobatch:
    """A schedule of one microbatch, forth and back with split backward passes, on another schedule's placement."""

    def __init__(self, schedule: Any) -> None:
        self.placement: Callable[[Shape], Sequence[int]] = getattr(schedule, "placement", looped)

    def orders(self, shape: Shape) -> Sequence[Sequence[Slot]]:
        rank_of, stages = self.placement(shape), range(shape.stages)
        forth = [("F", stage) for stage in stages]
        back = [(kind, stage) for stage in reversed(stages) for kind in "IW"]
        return [[Slot(kind, s, 0) for kind, s in forth + back if rank_of[s] == rank] for rank in range(shape.ranks)]
