"""From a scenario to what the engine takes: a schedule laid out, a program, a skeleton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..binding.bind import Bound, Site, bind
from ..binding.launches import Host
from ..binding.perturb import Perturbation
from ..config import catalog, feasible, shipped_fits
from ..config.scenario import Perturb, Scenario
from ..costs.kernels.estimator import Options, PricedKernels, measured_cost
from ..engine import des
from ..engine.fold import fold
from ..engine.replay import with_fixed_durations
from ..engine.timeline import Timeline
from ..fabrics.policy import policy_on
from ..hardware.cluster import Cluster
from ..lowering.lower import lower
from ..lowering.passes.quantise import weights_cast_before
from ..program.labels import Labels
from ..program.program import Program
from ..program.slot import Durations, Layout, Shape, Slot, lay_out, looped
from ..units import ns, seconds
from ..workload.framework import UNFUSED, Framework


def site_of(scenario: Scenario, prices: PricedKernels | None = None) -> Site:
    """The scenario's cluster with what kernels, collectives and launches take there, and its disturbances."""
    cluster, host = scenario.cluster, _host(scenario.framework)
    perturbations = [_perturbation(p, cluster) for p in scenario.perturb]
    return Site(cluster, prices or prices_of(scenario), policy_on(cluster), perturbations, host)


def prices_of(scenario: Scenario) -> PricedKernels:
    """What kernels of the scenario's dtype take on its GPU with its software. What it does not fuse, lowering has split."""
    gpu, framework = scenario.cluster.gpu, scenario.framework
    accumulates = framework.fusion.accumulation and framework.gradients == "fp32"
    software = Options(library="" if framework.attention == UNFUSED else framework.attention, accumulate=accumulates)
    return measured_cost(gpu, scenario.job.activation_dtype, shipped_fits.fits_for(gpu), software)


def layout_of(scenario: Scenario, site: Site | None = None) -> Layout:
    """The scenario's schedule with its order of slots. A schedule that is made for durations gets those of the site."""
    schedule, shape = catalog.module("schedules", scenario.plan.schedule), feasible.schedule_shape(scenario)
    if getattr(schedule, "COST_AWARE", False):
        shape = replace(shape, durations=slot_durations(scenario, schedule, shape, site or site_of(scenario)))
    return lay_out(schedule, shape)


def program_of(scenario: Scenario, steps: int | None = 1, layout: Layout | None = None) -> Program:
    """The scenario's program, free of hardware: so many training steps, or (None) what is between two gradient norms.

    In the order of its schedule, or of a layout that has been made already.
    """
    layout, dp = layout or layout_of(scenario), feasible.data_parallel_degree(scenario)
    return lower(scenario.model, scenario.plan, scenario.job, layout, dp=dp, steps=steps, framework=scenario.framework)


def bound_of(scenario: Scenario, program: Program, site: Site | None = None) -> Bound:
    """The program on the scenario's cluster."""
    return bind(program, feasible.mesh_of(scenario), site or site_of(scenario))


def _host(framework: Framework) -> Host | None:
    """What launches cost; None if they are free."""
    kernel_ns, collective_ns = ns(framework.kernel_s), ns(framework.host.collective_s)
    if not kernel_ns and not collective_ns:
        return None
    graph_ns = ns(framework.host.graph_s) if framework.cuda_graphs else None
    return Host(kernel_ns, collective_ns, graph_ns, waits_for_transfers=framework.p2p_sync)


def _perturbation(p: Perturb, cluster: Cluster) -> Perturbation:
    if p.link is not None:
        return Perturbation(p.capacity or 0.0, link=cluster.link_named(p.link), from_s=p.from_s, until_s=p.until_s)
    return Perturbation(p.speed or 1.0, rank=p.rank, from_s=p.from_s, until_s=p.until_s)


def slot_durations(scenario: Scenario, schedule: Any, shape: Shape, site: Site) -> Durations:
    """Seconds of every stage's F, I and W and of a crossing: one microbatch by itself, undisturbed, forward and backward."""
    single = replace(shape, microbatches=1, splits=1)
    layout = lay_out(_OneMicrobatch(schedule), single)
    whole = replace(scenario.plan, splits=1, overlap=replace(scenario.plan.overlap, pp=True))
    program = weights_cast_before(lower(scenario.model, whole, scenario.job, layout, dp=1, framework=scenario.framework))
    bound = bound_of(scenario, program, replace(site, perturbations=()))
    folded = fold(bound.skeleton)
    timeline = Timeline(des.simulate(with_fixed_durations(folded.graph)), folded)
    found: dict[tuple[str, int], float] = {}
    crossings = [0.0]
    for rank in range(program.ranks):
        which = int(np.flatnonzero(timeline.expansion.skeleton.program == rank)[0])
        found |= _of_rank(timeline, bound.labels[rank], which, crossings)
    forward, input_gradient, weight_gradient = (tuple(found[kind, s] for s in range(layout.stages)) for kind in "FIW")
    return Durations(forward, input_gradient, weight_gradient, comm=max(crossings))


def _of_rank(timeline: Timeline, labels: Labels, which: int, crossings: list[float]) -> dict[tuple[str, int], float]:
    """Seconds of each slot of one class of ranks, on the GPU; those of its sends are appended to `crossings`."""
    rows, times = np.flatnonzero(~labels.is_launch), timeline.times
    tasks, number = timeline.expansion.tasks_of(which)[rows], labels.step[rows]
    cuts = np.flatnonzero(np.diff(number, prepend=-1, append=-1))
    found: dict[tuple[str, int], float] = {}
    for begin, end in pairwise(cuts.tolist()):
        step = labels.steps[int(number[begin])]
        lasted_s = seconds(int(times.arrival_ns[tasks[begin:end]].max() - times.start_ns[tasks[begin:end]].min()))
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
