"""Leftovers: options of a plan that no longer apply after other fields of the plan were changed.

A search, an explanation and an advice change some fields of a scenario's plan and keep the others. Without context parallelism
its kind does not apply, without expert parallelism uneven routing does not, and a schedule may not support groups. The checks
refuse such options if a user states them; code that changes a user's plan resets them to their defaults. A plan for whole experts
keeps them whole (`etp: 1`) when others of its fields divide the rest of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

from ..frozen import replace
from ..plan.plan import Moe, Plan
from . import user_code
from .scenario import Scenario

OPTIONS = {"group": (None, "interleaved"), "splits": (1, "seq-1f1b"), "memory_limit": (1.0, "zb-auto")}
"""Fields of a plan that only schedules with the field in their `OPTIONS` use: the default, and one such schedule."""


def options_used(scenario: Scenario) -> tuple[str, ...]:
    """The fields of `OPTIONS` that the schedule of a scenario uses."""
    module = scenario.schedule
    return tuple(OPTIONS) if isinstance(module, user_code.Schedule) else tuple(getattr(module, "OPTIONS", ()))


def leftovers(scenario: Scenario) -> dict[str, Any]:
    """The fields of a plan that do not apply to it, by their names in a scenario, with their defaults."""
    usual = Plan()
    found = {f"plan.{name}": getattr(usual, name) for name in _unused_fields(scenario)}
    plan = scenario.plan
    if plan.overlap.tp == "decomposed" and not (plan.tp > 1 and plan.uses_sequence_parallel):
        found["plan.overlap.tp"] = None
    return {name: value for name, value in {**found, **_of_experts(scenario)}.items() if value_at(scenario, name) != value}


def _of_experts(scenario: Scenario) -> dict[str, Any]:
    """Fields of the experts of a plan that do not apply to its degrees, with their defaults, or `etp: 1` for whole experts."""
    plan, moe, usual = scenario.plan, scenario.plan.moe, Plan()
    if not scenario.model.experts:
        return {}
    found: dict[str, Any] = {f"plan.moe.{name}": getattr(usual.moe, name) for name in _unused_by_degree(scenario)}
    if plan.ep == 1:
        return found | {f"plan.overlap.{name}": getattr(usual.overlap, name) for name in ("ep", "weight_gradients")}
    whole = moe.dispatcher == "deepep" or moe.routing != usual.moe.routing
    return found | ({"plan.etp": 1} if whole and plan.etp is None and plan.tp > 1 else {})


def _unused_fields(scenario: Scenario) -> Iterator[str]:
    plan = scenario.plan
    if plan.cp == 1:
        yield from ("cp_kind", "cp_ulysses", "cp_balance")
    yield from (name for name in OPTIONS if name not in options_used(scenario))
    if plan.shares_vocabulary and (plan.pp == 1 or plan.vocabulary not in getattr(scenario.schedule, "VOCABULARY", ())):
        yield "vocabulary"
    if isinstance(plan.layout, tuple) and len(plan.layout) != plan.pp * getattr(scenario.schedule, "CHUNKS", plan.chunks):
        yield "layout"


def _unused_by_degree(scenario: Scenario) -> Iterator[str]:
    """Options of experts without a use for their degree: lists of other ranks, other nodes, and exchanges that there are not."""
    plan, moe = scenario.plan, scenario.plan.moe
    if plan.ep == 1 and moe.routing != Moe().routing:
        yield from ("routing", "seed", "concentration", "ranks", "placement")
    if plan.ep == 1 and plan.tensor_parallel_of_experts > 1 and moe.dispatcher == "deepep":
        yield from ("dispatcher", "node", "nodes_per_token")
    if isinstance(moe.placement, tuple) and len(moe.placement) != plan.ep:
        yield "placement"
    own = moe.node and not plan.ep % moe.node
    if moe.node and not own:
        yield "node"
    in_order = plan.rank_order == Plan().rank_order and plan.placement is None
    nodes = plan.ep // gcd(plan.ep, scenario.cluster.gpus_per_node)
    if moe.nodes_per_token and moe.nodes_per_token > nodes and in_order and not own:
        yield "nodes_per_token"


def value_at(scenario: Scenario, name: str) -> Any:
    """The value of a field of a scenario, by its dotted name."""
    value: Any = scenario
    for part in name.split("."):
        value = getattr(value, part)
    return value


def changed(scenario: Scenario, change: Mapping[str, Any]) -> Scenario:
    """A scenario with new values of some fields, by their dotted names."""
    for name, value in change.items():
        scenario = _with(scenario, name.split("."), value)
    return scenario


def _with(of: Any, path: list[str], value: Any) -> Any:
    first, *rest = path
    return replace(of, **{first: _with(getattr(of, first), rest, value) if rest else value})


def completed(scenario: Scenario, change: Mapping[str, Any]) -> dict[str, Any]:
    """A change of a scenario, completed with resets of options that do not apply to the changed plan."""
    return {**change, **{name: value for name, value in leftovers(changed(scenario, change)).items() if name not in change}}
