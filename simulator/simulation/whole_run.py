"""The whole training run: how long all tokens of a job take at the measured rate, and what the GPUs cost."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.scenario import Scenario
from ..units import DAY_S, HOUR_S, YEAR_S, show_count
from ..workload.learning import train_flop_per_token


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run of `job.total_tokens` tokens in which every step is like the measured one: without failures and evaluation."""

    total_tokens: int
    steps: float
    days: float
    gpu_hours: float
    cost: float | None
    """In the currency of `job.price_per_gpu_hour`; None without a price."""
    years_on_one_gpu: float
    """Time of the model's flop (attention counted in full) on one GPU at the rate that its large GEMMs sustain, in years."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Labels and values for a summary."""
        cost = "" if self.cost is None else f", {show_count(self.cost)} in all"
        tokens = f"{show_count(self.total_tokens)} tokens in {show_count(self.steps)} steps"
        return [
            ("whole run", f"{self.days:,.1f} days for {tokens}, {show_count(self.gpu_hours)} GPU-hours{cost}"),
            ("on one GPU", f"{self.years_on_one_gpu:,.1f} years at the rate that its large GEMMs sustain"),
        ]


def whole_run(scenario: Scenario, gpus: int, step_s: float) -> WholeRun | None:
    """The run of all tokens of a job in steps of the given time; None for a job that does not say how many tokens."""
    job, gpu = scenario.job, scenario.cluster.gpu
    if job.total_tokens is None:
        return None
    steps = job.total_tokens / job.tokens
    gpu_hours = steps * step_s * gpus / HOUR_S
    flop = train_flop_per_token(scenario.model, job) * job.total_tokens
    sustained_flop_per_s = gpu.matmul_peak(job.dtype) * gpu.kernels.compute_fraction
    return WholeRun(
        total_tokens=job.total_tokens,
        steps=steps,
        days=steps * step_s / DAY_S,
        gpu_hours=gpu_hours,
        cost=None if job.price_per_gpu_hour is None else gpu_hours * job.price_per_gpu_hour,
        years_on_one_gpu=flop / sustained_flop_per_s / YEAR_S,
    )
