"""Remedies for a plan that does not fit: the cheapest changes that would make it fit, ranked by their simulated step time.

Changes are tried one at a time; if few suffice, also two together, then three. Each is checked by the same account of memory as a
run, and those that fit are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import inf
from typing import Any

from ..config.leftovers import changed, completed
from ..config.scenario import Scenario
from ..errors import shown
from .candidates import RECOMPUTED, Candidate, Proposal, candidate, candidate_that_fits, legal, proposal

MOST_TOGETHER = 3
"""Largest number of changes made together."""
ENOUGH = 3
"""Number of remedies at which larger combinations of changes are no longer tried."""
MOST_SIMULATED = 10
"""Most remedies that are simulated."""
SHARDED = ("none", "zero1", "zero2", "fsdp")
"""Kinds of sharding, each dividing more state than the one before."""
FACTORS = (2, 4, 8)
"""Factors by which a degree of parallelism grows."""

Change = Mapping[str, Any]
"""New values of fields of the plan or the job, by their names in a scenario, such as {"plan.tp": 8}."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes a plan fit, with its step, and the bytes that it saves on the fullest GPU."""

    change: Change
    proposal: Proposal
    saved_bytes: int

    @property
    def settings(self) -> str:
        """The change as options of the command line."""
        written = {name: value if isinstance(value, str) else shown(value) for name, value in self.change.items()}
        return " ".join(f"--set {name}={value}" for name, value in written.items())

    def as_dict(self) -> dict[str, Any]:
        made = self.proposal
        return {
            "set": dict(self.change),
            "step_time_s": made.step_time_s,
            "mfu": made.mfu,
            "peak_memory_bytes": made.candidate.memory.total_bytes,
            "saved_bytes": self.saved_bytes,
        }


def remedies(scenario: Scenario, *, long: bool = False) -> tuple[Remedy, ...]:
    """The changes that make a scenario fit, the fastest step first; empty if it fits, or if nothing that is tried helps."""
    planned = candidate(scenario)
    if planned is None or planned.fits:
        return ()
    proposals = [(change, proposal(one, long=long)) for change, one in _fitting(planned.scenario)]
    found = [Remedy(change, made, planned.memory.total_bytes - made.candidate.memory.total_bytes) for change, made in proposals]
    return tuple(sorted(found, key=lambda one: inf if one.proposal.step_time_s is None else one.proposal.step_time_s))


def _fitting(scenario: Scenario) -> list[tuple[Change, Candidate]]:
    """The changes that fit, in the smallest possible combinations: for each set of fields the weakest values that suffice."""
    families = [[one for one in family if legal(_with(scenario, one))] for family in _families(scenario)]
    found: dict[tuple[int, ...], tuple[Change, Candidate]] = {}
    for together in range(1, MOST_TOGETHER + 1):
        for chosen in combinations([n for n, family in enumerate(families) if family], together):
            needed = not any(set(smaller) <= set(chosen) for smaller in found)
            if needed and (weakest := _weakest(scenario, [families[n] for n in chosen])):
                found[chosen] = weakest
        if len(found) >= ENOUGH:
            break
    return list(found.values())[:MOST_SIMULATED]


def _weakest(scenario: Scenario, families: Sequence[Sequence[Change]]) -> tuple[Change, Candidate] | None:
    """The weakest values of some families that fit together; None if the strongest do not fit."""
    merged = [{name: value for one in several for name, value in one.items()} for several in product(*families)]
    able = [completed(scenario, change) for change in merged if legal(_with(scenario, change))]
    if not able or not (strongest := candidate_that_fits(changed(scenario, able[-1]))):
        return None
    tried = ((change, candidate_that_fits(changed(scenario, change))) for change in able[:-1])
    return next(((change, one) for change, one in tried if one), (able[-1], strongest))


def _with(scenario: Scenario, change: Change) -> Scenario:
    """A scenario with a change, and without options that do not apply to the new plan."""
    return changed(scenario, completed(scenario, change))


def _families(scenario: Scenario) -> Iterator[list[Change]]:
    """Families of changes that may save memory: the values of one field each, the weakest first."""
    plan, job, kind = scenario.plan, scenario.job, scenario.plan.full_sharding.kind
    scope = plan.recomputation.scope
    yield [{"plan.recompute": one} for one in RECOMPUTED[RECOMPUTED.index(scope) + 1 if scope in RECOMPUTED else 0 :]]
    if kind in SHARDED:
        yield [{"plan.sharding": one} for one in SHARDED[SHARDED.index(kind) + 1 :]]
    open_dp = {"plan.dp": None} if plan.dp else {}
    for axis in ("tp", "pp", "cp"):
        yield [{f"plan.{axis}": factor * getattr(plan, axis), **open_dp} for factor in FACTORS]
    yield [{"plan.ep": factor * plan.ep} for factor in FACTORS]
    if plan.tp > 1 and not plan.uses_sequence_parallel:
        yield [{"plan.sequence_parallel": True}]
    sizes = range(job.microbatch_size - 1, 0, -1)
    yield [{"job.microbatch_size": size} for size in sizes if job.microbatch_size % size == 0]
