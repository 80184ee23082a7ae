"""The scenario of each choice of a search: the scenario that the search varies, with the plan of the choice in place of its own.

Files are read once for all plans. What their scenarios have in common is kept from one plan to the next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from threading import get_ident
from typing import Any
from uuid import uuid4

from ..bounded_cache import Cache
from ..config import feasible
from ..config.derived import data_parallel_degree, data_parallel_ranks_in_node
from ..config.document import Document
from ..config.leftovers import changed, leftovers
from ..config.named_parts import Trust
from ..config.scenario import Scenario, from_document
from ..frozen import replace
from ..plan.plan import Sharding
from ..plan.recomputation import Recompute
from ..simulation.simulate import prices_of
from ..study.process_session import of_this_thread
from .slot_rows import KeptRows
from .slot_times import SlotTimes
from .space import EVEN, Choice, with_values

MOST_LEGAL = 256
"""Largest number of plans whose scenario is kept from one question to the next."""


@dataclass(frozen=True, slots=True)
class Base:
    """The scenario that a search varies, whether its files may name code, and the steps that are simulated."""

    document: Document
    trust: bool = False
    search: str = field(default_factory=lambda: uuid4().hex)
    """The number of the search: files are read once in each search, since they may change between two searches."""
    steps: int | None = None
    """The number of steps that all plans are simulated for; None for as many as each plan needs."""


@dataclass(frozen=True, slots=True)
class _ScenarioKey:
    """The scenario without the plan of a choice, identified by its text within a search."""

    search: str
    text: str
    trust: bool
    document: Document = field(compare=False)
    thread: int = field(default_factory=get_ident)
    """What plans share is changed by each of them, and serves one thread at a time."""


@dataclass(frozen=True, eq=False, slots=True)
class SharedScenario:
    """Shared data of plans: a scenario whose plan is replaced by theirs, and times of slots."""

    scenario: Scenario
    times: SlotTimes = field(default_factory=lambda: SlotTimes(rows=KeptRows(of_this_thread().slots)))
    legal: Cache = field(default_factory=lambda: Cache(MOST_LEGAL))
    """Choice -> the scenario of a legal plan."""


@lru_cache(maxsize=16)
def _read(key: _ScenarioKey) -> SharedScenario:
    scenario = from_document(key.document, Trust(key.trust))
    scenario = replace(scenario, plan=replace(scenario.plan, layout=EVEN, placement=None))
    return SharedScenario(scenario)


def shared_scenario(base: Base, choice: Choice) -> SharedScenario:
    """The shared data of all plans with the same further fields as a choice, read once in a search."""
    document = with_values(base.document, choice.others)
    return _read(_ScenarioKey(base.search, json.dumps(document.data, default=repr, sort_keys=True), base.trust, document))


def read(base: Base, choice: Choice) -> None:
    """Reads the shared data of the plans of a base, which this process then keeps, and the fits of its kernels."""
    prices_of(shared_scenario(base, choice).scenario)


def scenario_of(base: Base, choice: Choice) -> Scenario:
    """The scenario of a choice, not checked yet."""
    return _scenario(shared_scenario(base, choice), choice)


def _scenario(shared: SharedScenario, choice: Choice) -> Scenario:
    found = _varied(shared, choice)
    return changed(found, _leftovers(found, choice))


def _varied(shared: SharedScenario, choice: Choice) -> Scenario:
    """The scenario of a choice, with all options that the plan of the base has."""
    scenario = shared.scenario
    overlap = replace(scenario.plan.overlap, **choice.overlap_fields)
    plan = replace(scenario.plan, overlap=overlap, **_fields(scenario, choice))
    return replace(scenario, plan=plan, job=replace(scenario.job, microbatch_size=choice.microbatch))


def _leftovers(scenario: Scenario, choice: Choice) -> dict[str, Any]:
    """The options that do not apply to the plan of a choice, with their defaults; options that the search varies stay."""
    others = tuple(name for name, _ in choice.others)
    return {name: value for name, value in leftovers(scenario).items() if not name.startswith(others)}


def _fields(scenario: Scenario, choice: Choice) -> dict[str, Any]:
    """The fields of the plan of a choice. If the scenario states the same word with options, the options are kept."""
    fields, plan = choice.plan_fields(scenario.model.layers), scenario.plan
    if isinstance(plan.sharding, Sharding) and plan.sharding.kind == choice.sharding:
        fields["sharding"] = plan.sharding
    elif choice.sharding == "hsdp":
        fields["sharding"] = _in_nodes(scenario, choice)
    if isinstance(plan.recompute, Recompute) and plan.recompute.scope == choice.recompute != "none":
        fields["recompute"] = plan.recompute
    return fields


def _in_nodes(scenario: Scenario, choice: Choice) -> Sharding | str:
    """Sharding within nodes, whose groups are replicas of each other; only the word if a node has one rank, or all.

    It has the other options of the sharding that the scenario states.
    """
    stated = scenario.plan.sharding if isinstance(scenario.plan.sharding, Sharding) else Sharding()
    plan = replace(scenario.plan, tp=choice.tp, pp=choice.pp, cp=choice.cp, dp=choice.dp)
    scenario = replace(scenario, plan=plan)
    group = data_parallel_ranks_in_node(scenario) or 1
    return replace(stated, kind="hsdp", group=group) if 1 < group < data_parallel_degree(scenario) else choice.sharding


def settings_of(base: Base, choice: Choice) -> dict[str, Any]:
    """The fields of a scenario that make the plan of a choice, by their dotted names, as a file states them."""
    shared = shared_scenario(base, choice)
    of_plan = _fields(shared.scenario, choice)
    own = {name for name in ("sharding", "recompute") if of_plan[name] is getattr(shared.scenario.plan, name)}
    if isinstance(sharding := of_plan["sharding"], Sharding):
        of_plan["sharding"] = {"kind": sharding.kind, "group": sharding.group}
    found = {f"plan.{name}": value for name, value in of_plan.items() if name not in own}
    found |= {f"plan.overlap.{axis}": beside for axis, beside in choice.overlap_fields.items()}
    found |= _leftovers(_varied(shared, choice), choice)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def checked(shared: SharedScenario, choice: Choice) -> Scenario:
    """The scenario of a choice. Raises `UserError` where it is not legal."""
    return shared.legal.of(choice, lambda: feasible.check(_scenario(shared, choice)))
