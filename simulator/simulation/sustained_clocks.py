"""Time that kernels of the model take because a board sustains a lower clock than in a short burst of launches."""

from __future__ import annotations

from functools import cache

import numpy as np

from ..engine.task import FULL_SPEED
from ..kernels import Kernel
from ..program.operations import Compute
from .result import Result


def sustained_clocks_s(result: Result) -> float:
    """Seconds of a step, the mean over ranks: a part of the time of compute, so kernels of the optimizer do not count.

    A rank with a lower speed takes as much longer. Kernels of a rank whose speed changes on the way count at full speed.
    """
    observed, prices = result.observed, result.prices
    skeleton = observed.timeline.skeleton

    @cache
    def longer_s(kernel: Kernel) -> float:
        return prices.estimate(kernel).seconds - prices.burst_s(kernel)

    total_s = 0.0
    for which, (labels, ranks) in enumerate(zip(observed.labels, observed.timeline.multiplicity.tolist(), strict=True)):
        variant, speed = int(skeleton.variants[which]), skeleton.profiles[int(skeleton.speed[which])]
        counted = np.where(labels.in_phase("optimizer"), 0, observed.calls(which))
        calls = np.bincount(labels.op, counted, minlength=len(labels.ops))
        of_rank_s = 0.0
        for at in np.flatnonzero(calls).tolist():
            op = labels.ops[at]
            if isinstance(op, Compute):
                kernels = op.kernels()
                of_rank_s += calls[at] * longer_s(kernels[variant if len(kernels) > 1 else 0])
        total_s += ranks * of_rank_s * (FULL_SPEED / speed.value[0] if speed.steady else 1.0)
    return float(total_s / observed.timeline.ranks / observed.window.steps)
