"""Advice on the parallelism of a training run: the steps of reasoning, what each proposes, and the fastest of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any

from ..config import feasible, load
from ..config.scenario import Scenario
from ..errors import Infeasible, OutsideDomain, must_be
from ..escape import Summarised
from ..plan.plan import Plan
from ..simulation.runnable import load_one
from ..units import GIB, KIB, MIB, counted, show_bytes
from ..workload.framework import Framework
from .candidates import Proposal, candidate, fastest, proposal, with_any_batch, with_plan
from .training_steps import STEPS, Thought, as_planned, degrees, tensor_degrees

MOST_SIMULATED = 14
"""Largest number of plans that are simulated for one advice."""
SEQUENCES_PER_GPU, MOST_TOKENS, LEAST_TOKENS_PER_GPU = 2, 4 * MIB, KIB
"""The usual global batch: sequences per GPU, most tokens, and fewest tokens per GPU, which may exceed the most tokens."""
KEPT = ("optimizer", "vocabulary", "rank_order", "overlap", "moe")
"""Fields of a plan that the reasoning keeps; it chooses all others."""
PLAIN = Plan(sharding="none", recompute="none")
"""The plan that the reasoning starts from: replicas only, regardless of the framework's choices."""
NO_FRAMEWORK = "none: launches are free, and every operator is one kernel; --set framework=megatron-core-2025 names one"
MORE_PLANS = "`trainsim search FILE` examines all plans of a space; the plans above are those that this reasoning proposes"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the reasoning with what it proposes."""

    name: str
    text: str
    proposals: tuple[Proposal, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"step": self.name, "text": self.text, "proposals": [one.as_dict() for one in self.proposals]}


@dataclass(frozen=True, repr=False)
class TrainingAdvice(Summarised):
    """The steps of reasoning for a training run, and the fastest plan among their proposals."""

    base: Scenario
    steps: tuple[Step, ...]

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        return tuple(one for step in self.steps for one in step.proposals)

    @property
    def best(self) -> Proposal:
        """The proposal with the shortest step."""
        return fastest(self.proposals)

    @property
    def scenario(self) -> Scenario:
        """The scenario with the recommended plan."""
        return self.best.candidate.scenario

    @property
    def summary(self) -> list[tuple[str, str]]:
        lines = [("framework", NO_FRAMEWORK)] if self.base.framework == Framework() else []
        for step in self.steps:
            lines.append((step.name, step.text))
            lines += [("", one.text) for one in step.proposals]
        return [*lines, ("recommended", self.best.text), ("more plans", MORE_PLANS)]

    def as_dict(self) -> dict[str, Any]:
        """The content of `trainsim advise --json`."""
        scenario = self.base
        return {
            "for": "training",
            "model": scenario.model.name,
            "cluster": scenario.cluster.name,
            "gpus": scenario.cluster.gpus,
            "steps": [step.as_dict() for step in self.steps],
            "recommended": self.best.as_dict(),
            "scenario": self.scenario.as_dict(),
        }


def advise(scenario: Scenario | str | Path, *, long: bool = False) -> TrainingAdvice:
    """Reasons about the parallelism of a training run: model, cluster, job and framework of a scenario, on all its GPUs.

    The plan of the scenario itself is one of the proposals if it is not the default; the other proposals take its fields `KEPT`.
    Raises `Infeasible` if no plan fits.
    """
    must_be(scenario, (Scenario, str, Path), "scenario", "a scenario", 'sim.advise("llama3-70b-64xh100")')
    base = load_one(scenario) if isinstance(scenario, (str, Path)) else scenario
    kept = {name: getattr(base.plan, name) for name in KEPT}
    bare = replace(base, plan=replace(PLAIN, **kept))
    steps: list[Step] = []
    found: list[Proposal] = []
    for think in STEPS:
        if thought := think(bare, found):
            steps.append(_simulated(thought, found, long=long))
            found += steps[-1].proposals
    planned = [] if base.plan == Plan(**kept) else [_simulated(as_planned(base), (), long=long)]
    if not found and not any(step.proposals for step in planned):
        raise _nothing_fits(bare)
    return TrainingAdvice(bare, (*planned, *steps))


def _simulated(thought: Thought, found: Sequence[Proposal], *, long: bool) -> Step:
    """A thought as a step, with its new proposals simulated."""
    known = [one.candidate.plan for one in found]
    new = [one for one in thought.candidates if one.plan not in known][: MOST_SIMULATED - len(found)]
    return Step(thought.name, thought.text, tuple(proposal(one, long=long) for one in new))


def _nothing_fits(base: Scenario) -> Infeasible:
    """The error if no plan fits: the memory that the smallest plan lacks."""
    most = max(tensor_degrees(base), default=1)
    stages = list(degrees(base.model.layers, base.cluster.gpus // most))
    shapes = [{"tp": most, "pp": pp, "sharding": "zero1"} for pp in stages] + [{"tp": tp, "sharding": "fsdp"} for tp in (1, most)]
    tried = [candidate(with_plan(base, **shape, recompute="full")) for shape in shapes]
    least = min((one for one in tried if one), key=lambda one: one.over_bytes, default=None)
    name, gpus = base.model.name, base.cluster.gpus
    if least is None:
        feasible.check(with_any_batch(with_plan(base)))  # raises if model, cluster and job are inconsistent
        message = f"no plan of {name} on {counted(gpus, 'GPU')} is legal with a global batch of {base.job.global_batch}"
        return Infeasible(message, hint="another --global-batch, or another number of GPUs")
    message = (
        f"no plan of {name} fits on {counted(gpus, 'GPU')}: {least.words} needs the least, "
        f"{show_bytes(least.memory.total_bytes)} per GPU, {least.over_bytes / GIB:.1f} GiB too much"
    )
    shorter = ", or shorter sequences" if least.memory.activations_bytes >= least.over_bytes else ""
    return Infeasible(message, hint=f"more GPUs, or GPUs with more memory{shorter}", over_bytes=least.over_bytes)


def cluster_on(name: str, gpus: int | None = None, *, trust: bool = False) -> tuple[dict[str, Any], int]:
    """The description of a named cluster with `gpus` GPUs, as in a scenario file, and their number: whole nodes or a part of one
    node; by default all GPUs of the cluster.
    """
    found = load.cluster(name, trust=trust)
    per_node, count = found.gpus_per_node, gpus or found.gpus
    if count < per_node:
        return {"name": name, "nodes": 1, "gpus_per_node": count}, count
    if count % per_node:
        near = count // per_node * per_node
        reason = f"{count} GPUs are not whole nodes of {name}, which have {per_node}"
        raise OutsideDomain(reason, nearest={"gpus": near}, hint=f"nearest legal: --gpus {near} or {near + per_node}")
    return {"name": name, "nodes": count // per_node}, count


def usual_global_batch(gpus: int, sequence_length: int, microbatch_size: int = 1) -> int:
    """The default global batch: 2 sequences per GPU, but at most 4 Mi tokens, and at least 1,024 tokens per GPU.

    Rounded to a power of two times the factor that makes it divisible by the GPUs. Llama 3 405B began with 4 M tokens and ended
    with 16 M (The Llama 3 Herd of Models, arXiv 2407.21783, section 3.4).
    """
    tokens = max(LEAST_TOKENS_PER_GPU * gpus, min(MOST_TOKENS, SEQUENCES_PER_GPU * gpus * sequence_length))
    unit = gpus // (gpus & -gpus) * microbatch_size
    return unit << max(0, round(log2(tokens / sequence_length / unit)))
