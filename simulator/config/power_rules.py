"""Rules of power: limits that are refused or have no effect, and energy that is not known."""

from __future__ import annotations

from collections.abc import Iterator

from ..costs.kernels import power
from ..costs.kernels.gpu_model import architecture
from ..fields import Contradiction
from ..hardware.gpu import Gpu
from . import shipped_fits
from .scenario import Scenario


def faults_of_power(scenario: Scenario, *, alone: bool = True) -> Iterator[Contradiction]:
    """Faults of power limits outside the range of the power model, and of a price of energy where the energy is not known, as
    for one of several jobs.
    """
    gpu, idle_w = scenario.cluster.gpu, architecture(scenario.cluster.gpu).idle_w
    if 0 < gpu.tdp_w <= idle_w:
        yield "cluster.gpu.tdp", f"{gpu.tdp_w:g} W is no more than the {idle_w:g} W of an idle board", f"tdp: {power.LEAST_W:g} W"
    elif scenario.fidelity.power == "sustained" and not power.LEAST_W <= gpu.tdp_w <= power.MOST_W and _acts(gpu):
        nearest = min(max(gpu.tdp_w, power.LEAST_W), power.MOST_W)
        message = f"{gpu.tdp_w:g} W is not between {power.LEAST_W:g} and {power.MOST_W:,.0f} W"
        yield "cluster.gpu.tdp", message, f"tdp: {nearest:g} W, or fidelity.power: burst"
    why = power.no_energy(gpu, scenario.job.dtype)
    none = "there is no energy of several jobs" if not alone else f"there is no energy, {why}" if why else ""
    for name, unused in (("price_per_kwh", None), ("pue", 1.0)):
        if none and getattr(scenario.job, name) != unused:
            yield f"job.{name}", none, "leave it out"


def without_effect(scenario: Scenario) -> str:
    """The reason why the power limit of a GPU has no effect; empty if it has one."""
    gpu = scenario.cluster.gpu
    if scenario.fidelity.power == "burst":
        return "a burst is too short for it"
    if not architecture(gpu).idle_w:
        return f"the idle power of {gpu.architecture or 'an unknown architecture'} is not known"
    return "" if _acts(gpu) else "no other board of this chip is known"


def _acts(gpu: Gpu) -> bool:
    """Whether fits exist that are valid at another power limit."""
    owners = shipped_fits.shipped().gpus.values()
    return any(power.acts(gpu, power.reference_w(gpu, owner)) for owner in owners)
