"""What is asked about a plan of a search, the cheap questions first: is it legal, its memory, bounds of its step, and its step.

Each function takes the document of the scenario before its names are resolved, and returns plain data, so that processes can
answer. What many plans share, the rest of the scenario and the times of kernels, is kept from one plan to the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter

from ..config import catalog, feasible
from ..config.document import Document
from ..config.named_parts import Trust
from ..config.scenario import Scenario, from_document
from ..costs.kernels.estimator import PricedKernels
from ..costs.kernels.gpu_model import architecture
from ..costs.kernels.power import no_energy
from ..errors import UserError
from ..frozen import replace
from ..program.program import Program
from ..simulation.energy import Energy
from ..simulation.estimated_effort import TooLong
from ..simulation.memory_check import host_bytes, host_capacity_bytes, least_state_bytes, memory_of, slots_of
from ..simulation.simulate import layout_of, prices_of, simulate_scenario, site_of
from .bound import lower_bound
from .quick_bound import quick_bound_ns
from .space import EVEN, Choice, with_values

INFEASIBLE, OUT_OF_MEMORY, LEGAL, TOO_LONG = "infeasible", "out of memory", "legal", "too long"
UNBOUNDED = ("zb-auto", "optimal")
"""Schedules that the proven bound does not cover."""


@dataclass(frozen=True, slots=True)
class Base:
    """The scenario that a search varies, and whether its files may name code."""

    document: Document
    trust: bool = False


@dataclass(frozen=True, slots=True)
class Weighed:
    """A plan before any simulation."""

    status: str
    reason: str = ""
    """Of an infeasible plan: the field of its first fault."""
    example: str = ""
    """That fault."""
    memory_bytes: float = 0.0
    """Of the fullest GPU; for what does not fit in memory the least that it needs."""
    quick_ns: int = 0
    gpus: int = 0
    idle_w: float | None = None
    """Idle power of a GPU; None where power is not modelled."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A simulated plan."""

    step_time_s: float | None
    mfu: float = 0.0
    memory_bytes: int = 0
    energy_j: float | None = None
    losses: tuple[tuple[str, float], ...] = ()
    """Seconds of the step by what they are lost to, the greatest first."""
    reason: str = ""
    """Why it was not simulated."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """The scenario without the plan of a choice, told apart by its text."""

    text: str
    trust: bool
    document: Document = field(compare=False)


@lru_cache(maxsize=64)
def _read(rest: _Rest) -> tuple[Scenario, PricedKernels]:
    """A scenario whose plan is replaced by that of a choice, and the times of its kernels."""
    scenario = from_document(rest.document, Trust(rest.trust))
    scenario = replace(scenario, plan=replace(scenario.plan, layout=EVEN, placement=None))
    return scenario, prices_of(scenario)


def _base(base: Base, choice: Choice) -> tuple[Scenario, PricedKernels]:
    document = with_values(base.document, choice.others)
    return _read(_Rest(json.dumps(document.data, default=repr, sort_keys=True), base.trust, document))


def scenario_of(base: Base, choice: Choice) -> Scenario:
    """The scenario of a choice, not checked yet."""
    scenario, _ = _base(base, choice)
    plan = replace(scenario.plan, **choice.plan_fields(scenario.model.layers))
    return replace(scenario, plan=plan, job=replace(scenario.job, microbatch_size=choice.microbatch))


def weighed(base: Base, several: Sequence[Choice]) -> list[Weighed]:
    """Legality, memory and the quick bound of some plans."""
    return [_weighed(base, choice) for choice in several]


def _weighed(base: Base, choice: Choice) -> Weighed:
    try:
        scenario = feasible.check(scenario_of(base, choice))
    except UserError as error:
        return Weighed(INFEASIBLE, *_fault(error))
    capacity_bytes = scenario.cluster.gpu.memory_bytes
    least_bytes = least_state_bytes(scenario)
    if least_bytes > capacity_bytes:
        return Weighed(OUT_OF_MEMORY, memory_bytes=least_bytes)
    site = site_of(scenario, _prices(base, choice, scenario))
    try:
        layout = layout_of(scenario, site)
        slots = slots_of(scenario, layout)
    except UserError as error:
        return Weighed(INFEASIBLE, *_fault(error))
    memory = memory_of(scenario, layout, slots)
    most_bytes = max(memory, key=attrgetter("total_bytes")).total_bytes
    if most_bytes > capacity_bytes or host_bytes(scenario, memory) > host_capacity_bytes(scenario):
        return Weighed(OUT_OF_MEMORY, memory_bytes=most_bytes)
    idle_w = None if no_energy(scenario.cluster.gpu, scenario.job.dtype) else architecture(scenario.cluster.gpu).idle_w
    quick_ns = quick_bound_ns(scenario, site, layout, slots)
    return Weighed(LEGAL, memory_bytes=most_bytes, quick_ns=quick_ns, gpus=scenario.cluster.gpus, idle_w=idle_w)


def _prices(base: Base, choice: Choice, scenario: Scenario) -> PricedKernels:
    """The times of kernels; those that plans share, unless the framework chooses the format of gradients for the job."""
    first, prices = _base(base, choice)
    return (
        prices
        if scenario.framework == first.framework and scenario.fidelity.power == first.fidelity.power
        else prices_of(scenario)
    )


def _fault(error: UserError) -> tuple[str, str]:
    """The field of the first fault, and the fault."""
    message = " ".join(error.faults[0].message.split())
    field, colon, _ = message.partition(":")
    return (field if colon and " " not in field else "schedule"), message


def bound_ns(base: Base, choice: Choice) -> int:
    """The proven bound of the step of a legal plan, in ns; 0 for schedules that it does not cover."""
    if choice.schedule in UNBOUNDED or catalog.is_code(choice.schedule):
        return 0
    scenario = feasible.check(scenario_of(base, choice))
    site = site_of(scenario, _prices(base, choice, scenario))
    layout = layout_of(scenario, site)
    slots: tuple[Program, ...] = slots_of(scenario, layout)
    return lower_bound(scenario, site, layout, slots).ns


def measured(base: Base, choice: Choice, engine: str = "auto", long: bool = False) -> Measured:
    """The simulated step of a legal plan."""
    try:
        run = simulate_scenario(scenario_of(base, choice), engine=engine, long=long)
    except TooLong as error:
        return Measured(None, reason=error.faults[0].message)
    metrics = run.metrics
    losses = {"bubble": metrics.bubble_fraction * metrics.step_time_s}
    losses |= {f"exposed {axis}": seconds for axis, seconds in metrics.exposed_s.items()}
    energy_j = run.energy.joules_per_step if isinstance(run.energy, Energy) else None
    listed = tuple(sorted(losses.items(), key=lambda loss: -loss[1]))
    return Measured(metrics.step_time_s, metrics.mfu, run.peak_memory_bytes, energy_j, listed)
