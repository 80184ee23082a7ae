"""What the kernels of a run cost: each distinct one with its time, the model that says so, and how far to trust it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..costs.measured import Estimate, Estimator, Options
from ..kernels import Kernel
from ..program.op import Compute
from . import kernel_fits

if TYPE_CHECKING:
    from .run import Run

SPREADS = 2.0
"""Standard errors on each side of a band."""


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of a step: all layers, microbatches and pipeline ranks of one replica that run it alike."""

    name: str
    shape: str
    calls: int
    seconds_each: float
    seconds: float
    """Of all calls, over all pipeline ranks."""
    model: str
    provenance: str
    sigma: float
    """Relative standard error."""
    extrapolated: bool


def kernel_costs(run: Run) -> list[KernelCost]:
    """Every kernel of the measured step, the dearest first."""
    job, gpu = run.scenario.job, run.scenario.cluster.gpu
    estimator = Estimator(gpu, job.dtype, kernel_fits.shelf(), Options())
    calls: Counter[tuple[str, Kernel]] = Counter()
    for order in run.program.orders:
        for step in (step for step in order if step.iteration == run.observation.iteration):
            for op in run.program.bodies[step.body].ops:
                if isinstance(op, Compute):
                    calls[op.name.partition(".")[2] if op.layer >= 0 else op.name, op.kernel] += 1
    rows = [_cost(name, kernel, count, estimator.estimate(kernel)) for (name, kernel), count in calls.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _cost(name: str, kernel: Kernel, calls: int, estimate: Estimate) -> KernelCost:
    return KernelCost(
        name,
        str(kernel),
        calls,
        estimate.seconds,
        estimate.seconds * calls,
        estimate.model,
        estimate.provenance,
        estimate.sigma,
        estimate.extrapolated,
    )


def band_s(step_s: float, costs: Iterable[KernelCost], pipeline_ranks: int) -> tuple[float, float]:
    """The step time with the fit errors of its kernels: those of one model err together, models independently.

    A rank's mean time of kernels is taken to shift the step by as much. Collectives carry no error yet.
    """
    by_model: dict[str, float] = {}
    for cost in costs:
        by_model[cost.model] = by_model.get(cost.model, 0.0) + cost.seconds * cost.sigma / pipeline_ranks
    spread = SPREADS * math.sqrt(sum(error**2 for error in by_model.values()))
    return max(0.0, step_s - spread), step_s + spread
