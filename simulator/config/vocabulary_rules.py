"""Rules of plans whose pipeline ranks divide embedding and head among them."""

from __future__ import annotations

from collections.abc import Iterator

from ..fields import Contradiction
from . import catalog
from .scenario import Scenario

Found = Iterator[Contradiction]


def faults_of_vocabulary(scenario: Scenario) -> Found:
    """Faults of embeddings and heads that the pipeline ranks divide."""
    plan, scheme = scenario.plan, scenario.plan.vocabulary
    if not plan.shares_vocabulary:
        return
    if plan.pp == 1:
        yield "plan.vocabulary", f"there is no pipeline whose ranks could divide it as {scheme} does", "baseline, or pp > 1"
    elif scheme not in getattr(scenario.schedule, "VOCABULARY", ()):
        known = "1f1b" if scheme == "interlaced" else "1f1b or v-half"
        called = catalog.called(plan.schedule)
        yield "plan.vocabulary", f"{scheme} is not defined for {called}", f"schedule: {known}, or vocabulary: redis"
    if scenario.model.tied_embeddings:
        message = f"{scheme} divides two tables, but embedding and head of {scenario.model.name} share one"
        yield "plan.vocabulary", message, "redis, or a model with tied_embeddings: false"
    if scenario.model.mtp_layers:
        message = f"{scheme} with a head for further tokens, as {scenario.model.name} has, is not modelled"
        yield "plan.vocabulary", message, "redis, or mtp_layers: 0"
    if plan.full_sharding.gathers:
        message = f"{plan.full_sharding.kind} with a vocabulary that the pipeline ranks divide ({scheme}) is not modelled"
        yield "plan.sharding", message, "zero1, or vocabulary: redis"
    if scheme == "interlaced" and plan.tp > 1:
        message = "interlaced reduces over the ranks of tp and pp together, which is not modelled"
        yield "plan.tp", message, "tp: 1, or vocabulary: vocab-1 or vocab-2"
