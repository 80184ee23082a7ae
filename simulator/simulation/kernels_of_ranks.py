"""Kernels that the classes of ranks of a run execute in its measured steps, with their numbers of calls and the ranks' speeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..engine.task import FULL_SPEED, Array, Profile
from ..kernels import Kernel
from ..program.operations import Compute
from .result import Result


class KernelCalls(NamedTuple):
    """The number of calls of a kernel in a step, on ranks of one speed, or of a speed that changes in one way."""

    kernel: Kernel
    calls: float
    """Per rank of the job."""
    stretched: float
    """The time of the kernel over its time at full speed; the mean over its calls where the speed of the ranks changes."""


def _stretches(result: Result, which: int, speed: Profile) -> Array:
    """The time of every row of a class of ranks over its time at full speed, by the speeds of the ranks from its start on."""
    timeline = result.observed.timeline
    tasks = timeline.expansion.tasks_of(which)
    start_ns, solo_ns = timeline.times.start_ns[tasks], timeline.expansion.graph.solo_ns[tasks]
    stretches: Array = np.where(solo_ns > 0, speed.lasting_ns(start_ns, solo_ns) / np.maximum(solo_ns, 1), 1.0)
    return stretches


def kernels_of_ranks(result: Result, but_for: str = "") -> Iterable[KernelCalls]:
    """The kernels of all classes of ranks, but for those of a phase. Calls add up to those of a mean rank in a step."""
    observed = result.observed
    skeleton, of_step = observed.timeline.skeleton, observed.timeline.ranks * observed.window.steps
    found: dict[tuple[int, int, float], KernelCalls] = {}
    for which, (labels, ranks) in enumerate(zip(observed.labels, observed.timeline.multiplicity.tolist(), strict=True)):
        variant, speed = int(skeleton.variants[which]), skeleton.profiles[int(skeleton.speed[which])]
        counted, share = observed.calls(which), ranks / of_step
        counted = np.where(labels.in_phase(but_for), 0, counted) if but_for else counted
        calls = np.bincount(labels.op, counted, minlength=len(labels.ops)) * share
        if not speed.steady:
            stretches = np.bincount(labels.op, counted * _stretches(result, which, speed), minlength=len(labels.ops)) * share
        for at in np.flatnonzero(calls).tolist():
            op = labels.ops[at]
            if isinstance(op, Compute):
                stretched = FULL_SPEED / speed.value[0] if speed.steady else float(stretches[at] / calls[at])
                # operations share kernels, and the same object is found sooner than an equal one
                one = (id(op), variant, stretched) if op.rows_of_variants else (id(op.kernel), 0, stretched)
                kernel, before, _ = found.get(one) or (op.kernels()[one[1]], 0.0, stretched)
                found[one] = KernelCalls(kernel, before + float(calls[at]), stretched)
    return found.values()
