"""What the kernels of a run cost: each distinct one with its time, the model that says so, and how far to trust it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..costs.measured import Estimate, Estimator
from ..kernels import Kernel
from ..program.op import Compute
from . import kernel_fits
from .assemble import options_of

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True, slots=True)
class OpCost:
    """One kernel or collective of a step: all layers, microbatches and pipeline ranks of one replica that run it alike."""

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
    axis: str = ""
    """Of a collective; kernels have none."""


def kernel_costs(run: Run) -> list[OpCost]:
    """Every kernel of the measured step, the dearest first."""
    job, gpu = run.scenario.job, run.scenario.cluster.gpu
    estimator = Estimator(gpu, job.activation_dtype, kernel_fits.shelf_for(gpu), options_of(run.scenario.framework))
    calls: Counter[tuple[str, Kernel]] = Counter()
    for order in run.program.orders:
        for step in (step for step in order if step.iteration == run.observation.iteration):
            for op in run.program.bodies[step.body].ops:
                if isinstance(op, Compute):
                    calls[op.name.partition(".")[2] if op.layer >= 0 else op.name, op.kernel] += 1
    rows = [_cost(name, kernel, count, estimator.estimate(kernel)) for (name, kernel), count in calls.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _cost(name: str, kernel: Kernel, calls: int, estimate: Estimate) -> OpCost:
    return OpCost(
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
