"""A scenario: model, cluster, plan and job with everything else that a run needs, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ... import escape
from ...binding.fidelity import Fidelity
from ...hardware.cluster import Cluster
from ...plan.plan import Plan
from ...workload.framework import Framework
from ...workload.job import Job
from ...workload.model import Model
from .. import catalog
from ..documents.document import Mark, Place


@dataclass(frozen=True, slots=True)
class Perturb:
    """A disturbance by name: `speed` of a rank or `capacity` of a link as a factor, from a time until another."""

    rank: int | None = None
    speed: float | None = None
    link: str | None = None
    capacity: float | None = None
    from_s: float = 0.0
    until_s: float | None = None


@dataclass(frozen=True)
class Scenario:
    """Everything that a run needs."""

    model: Model
    cluster: Cluster
    plan: Plan = field(default_factory=Plan)
    job: Job = field(default_factory=Job)
    fidelity: Fidelity = field(default_factory=Fidelity)
    perturb: tuple[Perturb, ...] = ()
    framework: Framework = field(default_factory=Framework)
    marks: Mapping[Place, Mark] = field(default_factory=dict, compare=False, repr=False)
    """Where the values came from, for messages."""

    def __repr__(self) -> str:
        return f"Scenario({escape.terminal(self.model.name)} on {self.cluster!r}, {self.plan!r})"

    def as_dict(self) -> dict[str, Any]:
        """The scenario as plain data, for records of results; its schedule as it was asked for."""
        schedule = self.plan.schedule
        named = str(schedule) if isinstance(schedule, str) else catalog.called(schedule)
        return {
            "model": self.model.name,
            "cluster": self._cluster(),
            "plan": {**asdict(replace(self.plan, schedule=named)), "overlap": self._overlap()},
            "job": asdict(self.job),
            "framework": asdict(self.framework),
            "fidelity": asdict(self.fidelity),
            "perturb": [asdict(p) for p in self.perturb],
        }

    def _cluster(self) -> dict[str, Any]:
        """The cluster, and whatever makes its links, or the kernels of its GPU, other than those of the catalog."""
        cluster, gpu = self.cluster, self.cluster.gpu
        of_profile = {"profile": gpu.profile, "profile_hash": gpu.profile_hash} if gpu.profile else {}
        of_site = {"site_scalar": gpu.site_scalar} if gpu.site_scalar != 1 else {}
        links = {"fabric": cluster.fabric} if cluster.fabric else {}
        return {
            "name": cluster.name,
            "gpu": gpu.name,
            "nodes": cluster.nodes,
            "gpus": cluster.gpus,
            **links,
            **of_profile,
            **of_site,
        }

    def _overlap(self) -> dict[str, Any]:
        """What runs beside compute, by the plan or else by the framework."""
        used = self.plan.overlap.over(self.framework.overlap)
        return {axis: getattr(used, axis, said) for axis, said in asdict(self.plan.overlap).items()}
