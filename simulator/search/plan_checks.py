"""Answers to the questions about plans of a search, the cheap ones first: legality, least memory, bounds, memory, and the step.

Each function takes the document of the scenario before its names are resolved, and returns plain data, so that other processes
can answer. Shared results are kept from one plan to the next: times of kernels and slots, orders (`choice_scenario.py` keeps the
scenario).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from ..binding.bind import Site
from ..config import catalog, derived
from ..config.scenario import Scenario
from ..costs.kernels.gpu_model import architecture
from ..costs.kernels.power import no_energy
from ..errors import Infeasible, UserError
from ..frozen import replace
from ..metrics.idle import OPTIMIZER
from ..plan.stage_layers import stage_layers
from ..simulation import steady_state
from ..simulation.energy import Energy
from ..simulation.estimated_effort import TooLong
from ..simulation.memory_check import host_bytes, host_capacity_bytes, least_state_bytes, memory_of, remedies, slots_of
from ..simulation.simulate import kept_prices, layout_of, simulate_scenario, site_of
from ..study.process_session import of_this_thread
from .bound import lower_bound
from .choice_scenario import Base, SharedScenario, checked, scenario_of, shared_scenario
from .first_slots import first_slots_bytes
from .quick_bound import quick_bound_ns
from .slot_times import PlanSlots, plan_slots, slot_kinds
from .space import Choice

INFEASIBLE, OUT_OF_MEMORY, LEGAL, TOO_LONG = "infeasible", "out of memory", "legal", "too long"
UNBOUNDED = ("zb-auto", "optimal")
"""Schedules that the bound of an order does not cover."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The results of a plan before its slots are ordered."""

    status: str
    reason: str = ""
    """For an infeasible plan, the field of its first fault."""
    example: str = ""
    """That fault."""
    memory_bytes: float = 0.0
    """Lower bound of the bytes of the fullest GPU, or, for a plan that fits, its bytes."""
    branch_ns: int = 0
    """Bound of the step from the kernels of the model alone, which plans of a branch have in common."""
    gpus: int = 0
    idle_w: float | None = None
    """Idle power of a GPU; None where power is not modelled."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The results of a plan from its first slots, and then from all of them in order."""

    status: str
    memory_bytes: float = 0.0
    """The bytes of the fullest GPU; for a plan that does not fit possibly only those of its first slots."""
    bound_ns: int = 0
    reason: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A simulated plan."""

    step_time_s: float | None
    mfu: float = 0.0
    memory_bytes: int = 0
    energy_j: float | None = None
    losses: tuple[tuple[str, float], ...] = ()
    """Lost seconds of the step by cause, the largest first."""
    kernels_s: float = 0.0
    """Seconds of the step in which the mean GPU runs kernels."""
    reason: str = ""
    """Why it was not simulated."""


def weighed(base: Base, branch: Sequence[Choice]) -> list[Weighed]:
    """Legality, least memory and the bound from kernels of the plans of a branch, which differ in their pipelines only."""
    shared = shared_scenario(base, branch[0])
    found: list[Weighed] = []
    legal: list[tuple[int, Scenario]] = []
    for number, choice in enumerate(branch):
        one, scenario = _weighed(shared, choice)
        found.append(one)
        legal += [(number, scenario)] if scenario else []
    for number, branch_ns in _branch_bounds_ns(shared, legal):
        found[number] = replace(found[number], branch_ns=branch_ns)
    return found


def _weighed(shared: SharedScenario, choice: Choice) -> tuple[Weighed, Scenario | None]:
    """Legality and least memory of a plan, and its scenario if it is legal."""
    try:
        scenario = checked(shared, choice)
        shape = derived.schedule_shape(scenario)
        if hasattr(scenario.schedule, "refuse"):
            scenario.schedule.refuse(shape)
        stage_layers(scenario.plan, scenario.model, scenario.job.sequence_length, shape.stages)
    except UserError as error:
        return Weighed(INFEASIBLE, *_fault(error)), None
    least_bytes = least_state_bytes(scenario)
    if least_bytes > scenario.cluster.gpu.memory_bytes:
        return Weighed(OUT_OF_MEMORY, memory_bytes=least_bytes), None
    idle_w = None if no_energy(scenario.cluster.gpu, scenario.job.dtype) else architecture(scenario.cluster.gpu).idle_w
    return Weighed(LEGAL, memory_bytes=least_bytes, gpus=scenario.cluster.gpus, idle_w=idle_w), scenario


def _branch_bounds_ns(shared: SharedScenario, legal: Sequence[tuple[int, Scenario]]) -> Iterator[tuple[int, int]]:
    """For each plan the kernels of all microbatches of a replica, evenly divided among its pipeline ranks.

    The kernels of a microbatch are those of the plan with the shortest bodies, of plans with the same kinds of slots and shards,
    and with the same stages where kernels depend on them.
    """
    alike: dict[object, list[tuple[int, Scenario]]] = {}
    for number, scenario in legal:
        stages = (derived.schedule_shape(scenario).stages, scenario.plan.layout) if _depends_on_stages(scenario) else ()
        key = slot_kinds(scenario, shared.times), scenario.plan.full_sharding, derived.alone(scenario), stages
        alike.setdefault(key, []).append((number, scenario))
    for several in alike.values():
        shortest = max((scenario for _, scenario in several), key=lambda scenario: scenario.plan.pp * scenario.plan.chunks)
        slots = plan_slots(shortest, _site(shortest), shared.times)
        kernels_ns = slots.kernels_ns() if slots else 0
        yield from ((number, kernels_ns * derived.microbatches(one) // one.plan.pp) for number, one in several)


def _depends_on_stages(scenario: Scenario) -> bool:
    """Whether the kernels of a microbatch, on all stages together, depend on how layers are divided into stages.

    Where a part of the model learns, all stages but the first compute gradients of all their inputs. Where some layers are
    recomputed, they are counted within a stage. A norm takes in a residual sum of the layer before only if that is on its stage.
    """
    framework = scenario.framework
    joins = framework.compile or framework.fusion.residual_norm
    return scenario.job.learns_in_part or scenario.plan.recomputation.counts_layers or joins


@dataclass(frozen=True, slots=True)
class Branch:
    """The results of the plans of a branch, and the quick bounds of the legal ones if requested."""

    weighed: list[Weighed]
    quick_ns: list[int] | None = None


def check_branch(base: Base, branch: Sequence[Choice], bounds: bool) -> Branch:
    """The plans of a branch, and (`bounds`) the quick bounds of those that are legal."""
    found = weighed(base, branch)
    legal = [choice for choice, one in zip(branch, found, strict=True) if one.status == LEGAL]
    return Branch(found, quick_bounds_ns(base, legal) if bounds and legal else None)


def quick_bounds_ns(base: Base, branch: Sequence[Choice]) -> list[int]:
    """The quick bounds of legal plans of a branch, in ns; 0 if none is known without the order of slots."""
    shared = shared_scenario(base, branch[0])
    return [_quick_bound_ns(shared, checked(shared, choice), base.steps) for choice in branch]


def _quick_bound_ns(shared: SharedScenario, scenario: Scenario, steps: int | None) -> int:
    slots = plan_slots(scenario, _site(scenario), shared.times)
    return quick_bound_of(scenario, slots, steps) if slots else 0


def quick_bound_of(scenario: Scenario, slots: PlanSlots, steps: int | None = None) -> int:
    """The quick bound of a plan with these slots, in ns. `steps` is as in `simulate`: None or 1."""
    together = len(steady_state.to_simulate(scenario, steps)) == 1
    beside = scenario.plan.exchanges_beside_compute(scenario.framework.overlap)
    return quick_bound_ns(slots, together=together, paired=beside or getattr(scenario.schedule, "PAIRS", False))


def _site(scenario: Scenario) -> Site:
    """The site of a scenario, with times of kernels that plans share."""
    return site_of(scenario, kept_prices(scenario, of_this_thread()), of_this_thread())


def examined(base: Base, choice: Choice, bounds: bool = True) -> Examined:
    """The memory of a legal plan, and (`bounds`) the bound of its step in the order of its slots."""
    shared = shared_scenario(base, choice)
    scenario = checked(shared, choice)
    least_bytes = first_slots_bytes(scenario, slot_kinds(scenario, shared.times), shared.times.rows.slots)
    if least_bytes > scenario.cluster.gpu.memory_bytes:
        return Examined(OUT_OF_MEMORY, least_bytes)
    site = _site(scenario)
    try:
        layout = layout_of(scenario, site, of_this_thread())
        slots = slots_of(scenario, layout, of_this_thread().slots)
    except UserError as error:
        reason, example = _fault(error)
        return Examined(INFEASIBLE, reason=reason, example=example)
    memory = memory_of(scenario, layout, lambda: slots, kept=of_this_thread().accounts)
    most_bytes = max(memory, key=attrgetter("total_bytes")).total_bytes
    if most_bytes > scenario.cluster.gpu.memory_bytes or host_bytes(scenario, memory) > host_capacity_bytes(scenario):
        return Examined(OUT_OF_MEMORY, most_bytes)
    covered = bounds and choice.schedule not in UNBOUNDED and not catalog.is_code(choice.schedule)
    return Examined(LEGAL, most_bytes, lower_bound(scenario, site, layout, slots, base.steps).ns if covered else 0)


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The memory that the fullest GPU, or node, of a plan lacks, and remedies."""

    over_bytes: float
    remedies: str


def shortage_of(base: Base, choice: Choice) -> MemoryShortage | None:
    """The memory that a legal plan lacks; None for a plan that fits, or whose slots cannot be ordered."""
    scenario = checked(shared_scenario(base, choice), choice)
    try:
        layout = layout_of(scenario, _site(scenario), of_this_thread())
        memory_of(scenario, layout, partial(slots_of, scenario, layout, of_this_thread().slots), allow_oom=False)
    except Infeasible as error:
        return MemoryShortage(error.over_bytes, remedies(scenario))
    except UserError:  # the schedule cannot order the slots of this plan
        return None
    return None


def least_over_bytes(base: Base, choice: Choice, plan: Weighed) -> float:
    """Lower bound of the memory that a plan lacks, after the first question."""
    return plan.memory_bytes - scenario_of(base, choice).cluster.gpu.memory_bytes


def _fault(error: UserError) -> tuple[str, str]:
    """The field of the first fault, and the fault."""
    message = " ".join(error.faults[0].message.split())
    field, colon, _ = message.partition(":")
    return (field if colon and " " not in field else "schedule"), message


def measured(base: Base, choice: Choice, engine: str = "auto", long: bool = False) -> Measured:
    """The simulated step of a legal plan."""
    try:
        run = simulate_scenario(scenario_of(base, choice), engine=engine, steps=base.steps, long=long, session=of_this_thread())
    except TooLong as error:
        return Measured(None, reason=error.faults[0].message)
    metrics = run.metrics
    losses = {"bubble": metrics.bubble_fraction * metrics.step_time_s}
    losses |= {f"exposed {axis}": seconds for axis, seconds in metrics.exposed_s.items()}
    losses |= {f"imbalance {axis}": seconds for axis, seconds in metrics.imbalance_s.items()}
    losses |= {"launches": metrics.launch_s, OPTIMIZER: metrics.optimizer_s}
    energy_j = run.energy.joules_per_step if isinstance(run.energy, Energy) else None
    listed = tuple(sorted(losses.items(), key=lambda loss: -loss[1]))
    return Measured(metrics.step_time_s, metrics.mfu, run.peak_memory_bytes, energy_j, listed, metrics.busy_s)
