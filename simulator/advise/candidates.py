"""Candidates: plans of one scenario, each with the memory of its fullest GPU; only the proposed ones are simulated.

The memory of a candidate comes from the same account as that of a run and takes milliseconds, so that many plans are counted
and few simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any

from ..config import catalog, derived, feasible
from ..config.leftovers import changed, leftovers
from ..config.scenario import Scenario
from ..errors import OutsideDomain, UserError
from ..memory.account import RankMemory
from ..metrics import mfu
from ..plan.plan import Plan
from ..program.holdings import Holding
from ..simulation.memory_check import least_state_bytes, memory_of, slots_of
from ..simulation.session import Session
from ..simulation.simulate import layout_of, simulate_scenario
from ..units import show_bytes, show_s

RECOMPUTED = ("selective", "full")
"""Recomputations that are tried for a plan that does not fit, the cheapest first."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal plan, as a scenario, with the memory of its fullest GPU."""

    scenario: Scenario
    memory: RankMemory

    @property
    def plan(self) -> Plan:
        return self.scenario.plan

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, gradients and optimizer state held throughout, without what is gathered from other ranks."""
        return self.memory.bytes_of(Holding.PARAMETERS, Holding.GRADIENTS, Holding.MASTER, Holding.MOMENTS)

    @property
    def gathered_bytes(self) -> int:
        """Bytes of parameters that stay gathered from the shares of all ranks, beside the state."""
        return self.memory.bytes_of(Holding.GATHERED)

    @property
    def over_bytes(self) -> float:
        """Bytes that the fullest GPU lacks; negative where some are left."""
        return self.memory.total_bytes - self.scenario.cluster.gpu.memory_bytes

    @property
    def fits(self) -> bool:
        return self.over_bytes <= 0

    @property
    def words(self) -> str:
        """The plan in a few words, such as `tp 8 x pp 16 x dp 8, zero1, recompute full`."""
        plan, chunks = self.plan, f" x {self.plan.chunks} chunks" * (self.plan.chunks > 1)
        chunks += f" in groups of {plan.group}" if plan.group else ""
        named = (("tp", plan.tp), ("cp", plan.cp), ("pp", plan.pp))
        degrees = [f"{axis} {degree}" for axis, degree in named if degree > 1]
        dp, kind = derived.data_parallel_degree(self.scenario), plan.full_sharding.kind
        sequences = self.scenario.job.microbatch_size
        return ", ".join(
            [
                " x ".join([*degrees, f"dp {dp}"]),
                *([f"{catalog.called(plan.schedule)}{chunks}"] if plan.schedule != Plan().schedule else []),
                *([f"ep {plan.ep}"] if plan.ep > 1 else []),
                *([f"etp {plan.etp}"] if plan.etp not in (None, plan.tp) else []),
                *([kind] if kind != "none" else []),
                *([f"recompute {plan.recomputation.text}"] if plan.recomputation.text else []),
                *([f"{sequences} sequences at a time"] if sequences > 1 else []),
            ]
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that fits, with its simulated step, or with the reason why it was not simulated."""

    candidate: Candidate
    step_time_s: float | None
    mfu: float | None
    reason: str = ""

    @property
    def text(self) -> str:
        """The plan, its step time and its memory."""
        has = show_bytes(self.candidate.scenario.cluster.gpu.memory_bytes)
        time = f"not simulated ({self.reason})" if self.step_time_s is None else f"{show_s(self.step_time_s)} per step"
        used = f"{self.mfu:.0%} MFU, " if self.mfu is not None else ""
        return f"{self.candidate.words}: {time}, {used}{show_bytes(self.candidate.memory.total_bytes)} of {has}"

    def as_dict(self) -> dict[str, Any]:
        """The proposal as plain data."""
        candidate = self.candidate
        return {
            "plan": candidate.scenario.as_dict()["plan"],
            "text": candidate.words,
            "step_time_s": self.step_time_s,
            "mfu": self.mfu,
            "peak_memory_bytes": candidate.memory.total_bytes,
        }


def legal(scenario: Scenario) -> bool:
    """Whether a scenario passes the checks that come before every run."""
    try:
        feasible.check(scenario)
    except UserError:
        return False
    return True


def group_needed(scenario: Scenario) -> int | None:
    """The size of the groups of microbatches that the schedule of a scenario needs, if it needs groups."""
    refuse = getattr(scenario.schedule, "refuse", lambda shape: None)  # a schedule without `refuse` supports every shape
    try:
        refuse(derived.schedule_shape(scenario))
    except OutsideDomain as refused:
        return refused.other.get("group")
    return None


def candidate(scenario: Scenario, session: Session | None = None) -> Candidate | None:
    """A scenario, with the choices of its framework, and the memory of its fullest GPU; None if its plan is not legal."""
    try:
        scenario = feasible.check(scenario)
    except UserError:
        return None
    if session is None:
        memory = memory_of(scenario, layout_of(scenario))
    else:  # lowered as in a simulation, which then reuses the slots and their account from the session
        layout = layout_of(scenario, session=session)
        memory = memory_of(scenario, layout, partial(slots_of, scenario, layout, session.slots), kept=session.accounts)
    return Candidate(scenario, max(memory, key=attrgetter("total_bytes")))


def with_plan(base: Scenario, **changes: Any) -> Scenario:
    """The base with these fields of its plan changed, on all its GPUs, and without options that do not apply to the new plan."""
    found = replace(base, plan=replace(base.plan, dp=None, **changes))
    return changed(found, leftovers(found))


def with_any_batch(scenario: Scenario) -> Scenario:
    """A scenario with a global batch that divides among its replicas: one microbatch each."""
    batch = derived.data_parallel_degree(scenario) * scenario.job.microbatch_size
    return replace(scenario, job=replace(scenario.job, global_batch=batch))


def candidate_that_fits(scenario: Scenario, session: Session | None = None) -> Candidate | None:
    """A scenario with its memory, if it is legal and fits."""
    if least_state_bytes(scenario) > scenario.cluster.gpu.memory_bytes:
        return None
    found = candidate(scenario, session)
    return found if found and found.fits else None


def fitting(base: Scenario, plans: Iterable[Mapping[str, Any]]) -> tuple[Candidate, ...]:
    """The first plan that fits, and the first plan before it that fits with recomputation."""
    smaller: list[Mapping[str, Any]] = []
    plain = None
    for changes in plans:
        plain = candidate_that_fits(with_plan(base, **changes))
        if plain:
            break
        smaller.append(changes)
    tried = (candidate_that_fits(with_plan(base, **changes, recompute=scope)) for changes in smaller for scope in RECOMPUTED)
    recomputed = next((one for one in tried if one), None)
    return tuple(one for one in (plain, recomputed) if one)


def proposal(candidate: Candidate, *, steps: int | None = None, long: bool = False, session: Session | None = None) -> Proposal:
    """A candidate with its simulated step, or the mean of `steps` steps from a standing start.

    Without `long`, a simulation above the limits of effort is left out.
    """
    try:
        observed = simulate_scenario(candidate.scenario, steps=steps, long=long, session=session).observed
    except UserError as error:
        return Proposal(candidate, None, None, error.faults[0].message)
    return Proposal(candidate, observed.step_s, mfu.measure(observed).mfu)


def fastest(proposals: Iterable[Proposal]) -> Proposal:
    """The proposal with the shortest step; of equal ones, and of those without a step time, the first."""
    return min(proposals, key=lambda one: inf if one.step_time_s is None else one.step_time_s)
