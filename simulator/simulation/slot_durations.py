"""Durations of a scenario's slots, for schedules that are made for them: one microbatch by itself, undisturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..binding.bind import Site, bind
from ..config import feasible
from ..config.scenario import Scenario
from ..engine import des
from ..engine.fold import fold
from ..engine.replay import with_fixed_durations
from ..engine.timeline import Timeline
from ..lowering.lower import lower
from ..lowering.passes.quantise import weights_cast_before
from ..program.labels import Labels
from ..program.slot import Durations, Shape, Slot, lay_out, looped
from ..units import seconds


def slot_durations(scenario: Scenario, schedule: Any, shape: Shape, site: Site) -> Durations:
    """Seconds of every stage's F, I and W and of a crossing: one microbatch by itself, undisturbed, forward and backward."""
    single = replace(shape, microbatches=1, splits=1)
    layout = lay_out(_OneMicrobatch(schedule), single)
    whole = replace(scenario.plan, splits=1, overlap=replace(scenario.plan.overlap, pp=True))
    program = weights_cast_before(lower(scenario.model, whole, scenario.job, layout, dp=1, framework=scenario.framework))
    bound = bind(program, feasible.mesh_of(scenario), replace(site, perturbations=()))
    folded = fold(bound.skeleton)
    timeline = Timeline(des.simulate(with_fixed_durations(folded.expansion.graph)), folded.expansion, folded.class_of)
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
