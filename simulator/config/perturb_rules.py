"""Rules of perturbations: ranks and links that do not exist, and links that would carry more than their capacity."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import UserError, shown
from ..fields import Contradiction
from .derived import cluster_of
from .scenario import Scenario


def faults_of_perturbed_ranks(scenario: Scenario) -> Iterator[Contradiction]:
    """Faults of ranks that do not exist."""
    last = scenario.cluster.gpus - 1
    for i, p in enumerate(scenario.perturb):
        if p.rank is not None and p.rank > last:
            yield f"perturb.{i}.rank", f"there is no rank {shown(p.rank)} among {last + 1:,}", f"ranks are 0 to {last}"


def faults_of_perturbed_links(scenario: Scenario, *, alone: bool = True) -> Iterator[Contradiction]:
    """Faults of links that do not exist, and of links with more than their capacity, which only one job alone may set."""
    for i, p in enumerate(scenario.perturb):
        if p.capacity is not None and p.capacity > 1 and scenario.fidelity.collectives != "stepwise":
            message = f"only stepwise simulates a link that carries more than its capacity, {p.capacity:g} times here"
            stepwise = "fidelity.collectives: stepwise, " if alone else ""
            yield f"perturb.{i}.capacity", message, f"at most 1, {stepwise}or quicker links in the cluster"
        if p.link is not None and p.link.count(">") != 1:
            yield f"perturb.{i}.link", f"{shown(p.link)} is not a link: it has two ends", 'write it like "node0/nic3>leaf3"'
        elif p.link is not None:
            try:
                cluster_of(scenario).link_named(p.link)
            except UserError as error:
                yield f"perturb.{i}.link", error.faults[0].message, error.hint
