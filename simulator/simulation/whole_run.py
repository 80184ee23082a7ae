"""The whole training run: duration of all tokens of a job at the measured rate, and costs of GPUs and energy."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.scenario import Scenario
from ..units import DAY_S, HOUR_S, J_PER_KWH, YEAR_S, show_count
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
    kwh: float | None
    """Energy of the GPUs, times `job.pue`, in kilowatt-hours; None where their power is not known."""
    energy_cost: float | None
    """In the currency of `job.price_per_kwh`; None without a price."""
    years_on_one_gpu: float
    """Time of the model's flop (attention counted in full) on one GPU at the rate that its large GEMMs sustain, in years."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Labels and values for a summary."""
        cost = "" if self.cost is None else f", {show_count(self.cost)} in all"
        tokens = f"{show_count(self.total_tokens)} tokens in {show_count(self.steps)} steps"
        paid = "" if self.energy_cost is None else f", {show_count(self.energy_cost)} in all"
        return [
            ("whole run", f"{self.days:,.1f} days for {tokens}, {show_count(self.gpu_hours)} GPU-hours{cost}"),
            *([] if self.kwh is None else [("its energy", f"{show_count(self.kwh)} kWh{paid}")]),
            ("on one GPU", f"{self.years_on_one_gpu:,.1f} years at the rate that its large GEMMs sustain"),
        ]


def whole_run(scenario: Scenario, gpus: int, step_s: float, step_j: float | None = None) -> WholeRun | None:
    """The run of all tokens of a job in steps of the given time, and energy where it is known; None for a job that does not say
    how many tokens."""
    job, gpu = scenario.job, scenario.cluster.gpu
    if job.total_tokens is None:
        return None
    steps = job.total_tokens / job.tokens
    gpu_hours = steps * step_s * gpus / HOUR_S
    kwh = None if step_j is None else steps * step_j * job.pue / J_PER_KWH
    flop = train_flop_per_token(scenario.model, job) * job.total_tokens
    sustained_flop_per_s = gpu.matmul_peak(job.dtype) * gpu.kernels.compute_fraction
    return WholeRun(
        total_tokens=job.total_tokens,
        steps=steps,
        days=steps * step_s / DAY_S,
        gpu_hours=gpu_hours,
        cost=None if job.price_per_gpu_hour is None else gpu_hours * job.price_per_gpu_hour,
        kwh=kwh,
        energy_cost=None if kwh is None or job.price_per_kwh is None else kwh * job.price_per_kwh,
        years_on_one_gpu=flop / sustained_flop_per_s / YEAR_S,
    )
