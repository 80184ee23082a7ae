"""Check that a scenario fits in GPU memory, before the whole program is lowered: lowering takes most of the time of a refusal.

The memory of a rank depends on the order of its slots and on the activations that one microbatch keeps. A single microbatch is
therefore lowered, which takes milliseconds, and the slots of all microbatches are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from ..config import derived
from ..config.scenario import Scenario
from ..errors import Infeasible
from ..lowering.lower import lower
from ..memory.account import RankMemory, account, bodies_of
from ..memory.items import MASTER_BYTES, Terms
from ..program.slot import Layout
from ..units import GIB, show_bytes

LEFT_FRACTION = 0.05
"""Fraction of a GPU's memory: memory with a smaller free fraction is reported as nearly full."""


def memory_of(scenario: Scenario, layout: Layout, *, allow_oom: bool = True) -> tuple[RankMemory, ...]:
    """The memory that a GPU of every pipeline rank needs to run the slots of a layout.

    Raises `Infeasible` if a rank needs more memory than the GPU has, unless `allow_oom`.
    """
    plan, dp, gpu = derived.placed(scenario), derived.replicas(scenario), scenario.cluster.gpu
    terms, unblocked = terms_of(scenario, layout), replace(plan, overlap=replace(plan.overlap, pp=True))
    sample = lower(scenario.model, unblocked, scenario.job, layout.sampled(), dp=dp, framework=scenario.framework)
    memory = account(sample, terms, bodies_of(layout, sample))
    most = max(memory, key=attrgetter("total_bytes"))
    over = most.total_bytes - gpu.memory_bytes
    if over > 0 and not allow_oom:
        state = most.parameters_bytes + most.gradients_bytes + most.optimizer_bytes
        raise Infeasible(
            f"out of memory: the largest rank needs {show_bytes(most.total_bytes)}, {over / GIB:.1f} GiB more than "
            f"the {show_bytes(gpu.memory_bytes)} of {gpu.name} ({show_bytes(state)} parameters, gradients and optimizer, "
            f"{show_bytes(most.activations_bytes)} activations, {show_bytes(most.overhead_bytes)} context, NCCL buffers and "
            "fragmentation)",
            hint=f"{remedies(scenario)}, or --allow-oom to see the timeline anyway; `trainsim memory SCENARIO --remedies` lists "
            "what fits, by step time",
            over_bytes=over,
        )
    return memory


def terms_of(scenario: Scenario, layout: Layout) -> Terms:
    """The inputs of the memory account of a scenario besides its program."""
    plan, copies = scenario.plan, len(layout.placements)
    sharding, dp = plan.full_sharding, derived.data_parallel_degree(scenario)
    group = (sharding.group or dp) * plan.cp
    shards = sharding.shards(group * copies)
    is_master = sharding.kind in ("fsdp", "hsdp") and shards.parameters > 1
    return Terms(
        parameter_bytes=MASTER_BYTES if is_master else scenario.job.element_bytes,
        gradient_bytes=scenario.framework.gradient_bytes,
        element_bytes=scenario.job.element_bytes,
        shards=shards,
        expert_shards=sharding.shards(plan.copies_of_experts(group) * copies),
        degrees=derived.mesh_of(scenario).sizes,
        overhead=scenario.framework.memory,
        reserved_bytes=scenario.cluster.gpu.reserved_bytes,
    )


def remedies(scenario: Scenario) -> str:
    """Changes that would reduce the memory of a scenario and that its plan does not make yet, as text."""
    plan, ways = scenario.plan, ["more tp, cp or pp"]
    kind, replicated = plan.full_sharding.kind, derived.replicas(scenario) > 1
    if kind == "none" and replicated:
        ways.append("sharding: zero1")
    if not plan.full_sharding.gathers and replicated and plan.pp == 1:
        ways.append("sharding: fsdp")
    if scenario.model.experts > plan.ep:
        ways.append("more ep")
    if plan.recomputation.scope != "full":
        ways.append("recompute: full")
    if scenario.job.microbatch_size > 1:
        ways.append("a smaller microbatch")
    return ", ".join(ways)


def notes(scenario: Scenario, memory: Sequence[RankMemory]) -> list[str]:
    """A sentence if the memory is nearly full: less than `LEFT_FRACTION` of the memory of the fullest GPU is free."""
    have = scenario.cluster.gpu.memory_bytes
    left = have - max(rank.total_bytes for rank in memory)
    if not 0 <= left < LEFT_FRACTION * have:
        return []
    return [
        f"memory is nearly full: {show_bytes(left)} of {show_bytes(have)} left on the fullest GPU, less than {LEFT_FRACTION:.0%}"
    ]
