"""Durations of a scenario's slots for cost-aware schedules: one microbatch is simulated alone, without disturbances."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..binding.bind import Site, bind
from ..config import derived
from ..config.scenario import Scenario
from ..engine import heap
from ..engine.fold import fold
from ..engine.replay import with_fixed_durations
from ..lowering.lower import lower
from ..lowering.passes.quantise import weights_cast_before
from ..program.layout import Layout
from ..program.slot import Durations, Shape, Slot, looped
from ..schedules._vocabulary import with_vocabulary
from ..units import seconds


def slot_durations(scenario: Scenario, schedule: Any, shape: Shape, site: Site) -> Durations:
    """Seconds of F, I and W of every stage and of a transfer between stages, for one microbatch alone without disturbances.

    A single replica is simulated: it shares no state with others, so the plan's sharding does not matter.
    """
    layout = _one_microbatch(schedule, replace(shape, microbatches=1, splits=1))
    layout = with_vocabulary(layout, scenario.plan.vocabulary) if scenario.plan.shares_vocabulary else layout
    whole = replace(derived.placed(scenario), splits=1, sharding="none", overlap=replace(scenario.plan.overlap, pp=True))
    software = derived.software(scenario)
    lowered = lower(scenario.model, whole, scenario.job, layout, dp=1, framework=software, whole_slots=True)
    program = weights_cast_before(lowered)
    bound = bind(program, derived.mesh_of(scenario), replace(site, perturbations=(), sms=None), gpus=derived.gpus_of(scenario))
    expansion = fold(bound.skeleton)
    times = heap.simulate(with_fixed_durations(expansion.graph))
    lasts_s: dict[tuple[str, int], float] = {}
    for role, labels in enumerate(bound.labels):
        which = int(np.flatnonzero(expansion.skeleton.program == role)[0])
        rows = np.flatnonzero(~labels.is_launch)
        tasks, number = expansion.tasks_of(which)[rows], labels.step[rows]
        for begin, end in pairwise(np.flatnonzero(np.diff(number, prepend=-1, append=-1)).tolist()):
            step, own = labels.steps[int(number[begin])], tasks[begin:end]
            lasted_ns = int(times.arrival_ns[own].max() - times.start_ns[own].min())
            slot = step.phase, step.stage
            lasts_s[slot] = max(lasts_s.get(slot, 0.0), seconds(lasted_ns))
    forward, input_gradient, weight_gradient = (tuple(lasts_s[kind, s] for s in range(shape.stages)) for kind in "FIW")
    crossing = max((lasted_s for (phase, _), lasted_s in lasts_s.items() if phase == "send"), default=0.0)
    return Durations(forward, input_gradient, weight_gradient, comm=crossing)


def _one_microbatch(schedule: Any, shape: Shape) -> Layout:
    """The layout of one microbatch, forward and backward with split backward passes, with the placement of a schedule."""
    rank_of = tuple(getattr(schedule, "placement", looped)(shape))
    back = [(kind, stage) for stage in reversed(range(shape.stages)) for kind in "IW"]
    passes = [*(("F", stage) for stage in range(shape.stages)), *back]
    orders = (tuple(Slot(kind, s, 0) for kind, s in passes if rank_of[s] == rank) for rank in range(shape.ranks))
    return Layout(shape, (rank_of,), tuple(orders))
