"""Check that a scenario fits in GPU memory, before the whole program is lowered, which would take most of the time of a refusal.

The memory of a rank depends on the order of its slots and on the activations that one microbatch keeps. A single microbatch is
therefore lowered, which takes milliseconds, and the slots of all microbatches are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np

from ..bounded_cache import Cache
from ..config import derived
from ..config.scenario import Scenario
from ..errors import Infeasible
from ..kernels import NARROW_BYTES
from ..lowering.kept_slots import kept_slots
from ..lowering.lower import lower, quantisation
from ..memory.account import Account, RankMemory, bodies_of
from ..memory.items import MASTER_BYTES, Terms
from ..plan.plan import WITH_MASTER_COPY
from ..program.layout import Layout
from ..program.program import Program
from ..units import GIB, show_bytes

Slots = Callable[[], Sequence[Program]]
"""The lowered slots of a single microbatch (`slots_of`), or none, made when they are needed."""
LEFT_FRACTION = 0.05
"""Fraction of a GPU's memory: memory with a smaller free fraction is reported as nearly full."""


def memory_of(
    scenario: Scenario, layout: Layout, slots: Slots = tuple, *, allow_oom: bool = True, kept: Cache | None = None
) -> tuple[RankMemory, ...]:
    """The memory that a GPU of every pipeline rank needs to run the slots of a layout, which `slots` may have lowered already.

    `kept` holds earlier accounts: an account serves every order of the same slots and any number of microbatches.

    Raises `Infeasible` if a rank needs more memory than the GPU has, unless `allow_oom`.
    """
    gpu, account = scenario.cluster.gpu, _account(scenario, layout, slots, Cache(0) if kept is None else kept)
    memory = account.memory(bodies_of(layout, account.program))
    most = max(memory, key=attrgetter("total_bytes"))
    over = most.total_bytes - gpu.memory_bytes
    if over > 0 and not allow_oom:
        state = most.parameters_bytes + most.gradients_bytes + most.optimizer_bytes
        raise Infeasible(
            f"out of memory: the largest rank needs {most.total_bytes / GIB:,.1f} GiB, {over / GIB:,.1f} GiB more than "
            f"the {show_bytes(gpu.memory_bytes)} of {gpu.name} ({show_bytes(state)} parameters, gradients and optimizer, "
            f"{show_bytes(most.activations_bytes)} activations, {show_bytes(most.working_bytes)} working set, "
            f"{show_bytes(most.overhead_bytes)} context, NCCL buffers and fragmentation)",
            hint=f"{remedies(scenario)}, or --allow-oom to see the timeline anyway; `trainsim memory SCENARIO --remedies` lists "
            "what fits, by step time",
            over_bytes=over,
        )
    _check_host(scenario, host_bytes(scenario, memory), allow_oom=allow_oom)
    return memory


def _account(scenario: Scenario, layout: Layout, slots: Slots, kept: Cache) -> Account:
    """The account of a layout with a single microbatch, whose bodies are those of any number."""
    plan, dp = derived.placed(scenario), derived.replicas(scenario)
    unblocked, job = replace(plan, overlap=replace(plan.overlap, pp=True)), replace(scenario.job, global_batch=1)
    terms, of = terms_of(scenario, layout), (scenario.model, unblocked, job, layout.sampled)
    options: dict[str, Any] = {"dp": dp, "framework": derived.software(scenario)}
    key = *of, *options.values(), terms
    return kept.of(key, lambda: Account(lower(*of, **options, slots=slots(), whole_slots=True), terms))


def slots_of(scenario: Scenario, layout: Layout, kept: Cache | None = None) -> tuple[Program, ...]:
    """The lowered slots of a single microbatch of a layout, which its memory and its program share."""
    plan, job, dp = derived.placed(scenario), scenario.job, derived.replicas(scenario)
    kept = Cache(0) if kept is None else kept
    return kept_slots(scenario.model, plan, job, layout.sampled, dp=dp, framework=derived.software(scenario), kept=kept)


def _check_host(scenario: Scenario, needed_bytes: int, *, allow_oom: bool) -> None:
    """Raises `Infeasible` if the hosts need more memory than they have, unless `allow_oom`."""
    over = needed_bytes - host_capacity_bytes(scenario)
    if over > 0 and not allow_oom:
        raise Infeasible(
            f"out of host memory: a node needs {show_bytes(needed_bytes)} for offloaded data, {over / GIB:.1f} GiB more than the "
            f"{show_bytes(host_capacity_bytes(scenario))} of a node of {scenario.cluster.name}",
            hint="offload less, or --allow-oom to see the timeline anyway",
            over_bytes=over,
        )


def least_state_bytes(scenario: Scenario) -> float:
    """Bytes of parameters, gradients and optimizer state on a mean GPU: a lower bound of the account of the fullest GPU."""
    plan, model, replicas, offload = scenario.plan, scenario.model, derived.replicas(scenario), scenario.plan.offloading
    of_experts = sum(times * op.parameters for times, op in model.operators if op.expert)
    shared = (model.parameters - of_experts) / (plan.tp * plan.pp)
    own = of_experts / (plan.ep * plan.tensor_parallel_of_experts * plan.pp)
    shards, of_own = plan.full_sharding.shards(replicas), plan.full_sharding.shards(plan.copies_of_experts(replicas))
    learns = not scenario.job.learns_in_part
    element_bytes = 0.0 if offload.parameters else float(scenario.job.element_bytes)
    element_bytes = min(element_bytes, _narrow_parameter_bytes(scenario) or element_bytes)
    gradient_bytes = 0 if _copies_every_gradient(scenario) else scenario.framework.gradient_bytes(scenario.job) * learns
    on_gpus = 1 - offload.optimizer_fraction if offload.optimizer else 1.0
    moment_bytes = scenario.job.full_optimizer.moments_of(matrix=True).size_bytes * learns * on_gpus
    return sum(
        parameters * (element_bytes / each.parameters + gradient_bytes / each.gradients + moment_bytes / each.optimizer)
        for parameters, each in ((shared, shards), (own, of_own))
    )


def terms_of(scenario: Scenario, layout: Layout) -> Terms:
    """The inputs of the memory account of a scenario besides its program."""
    plan, copies = scenario.plan, len(layout.placements)
    sharding, dp = plan.full_sharding, derived.data_parallel_degree(scenario)
    group = (sharding.group or dp) * plan.cp
    shards, optimizer = sharding.shards(group * copies), scenario.job.full_optimizer
    of_experts = sharding.shards(plan.copies_of_experts(group) * copies)
    is_shared = shards.parameters > 1 or (scenario.model.experts > 0 and of_experts.parameters > 1)
    # what the host keeps of parameters is the master copy alone
    alone = plan.offloading.parameters or not scenario.framework.weights_beside_master
    is_master = sharding.kind in WITH_MASTER_COPY and is_shared and optimizer.master == "fp32" and alone
    # PyTorch casts a reduced gradient to the format of the parameter that it belongs to: the master copy
    gradient_bytes = MASTER_BYTES if is_master and sharding.reduce == "each" else scenario.framework.gradient_bytes(scenario.job)
    buckets, replicas = sharding.kind == "none" and scenario.framework.memory.gradient_buckets, group * copies
    in_buckets = (buckets and replicas > 1, buckets and plan.copies_of_experts(group) * copies > 1)
    return Terms(
        parameter_bytes=MASTER_BYTES if is_master else scenario.job.element_bytes,
        gradient_bytes=0 if _copies_every_gradient(scenario) else gradient_bytes,
        element_bytes=scenario.job.element_bytes,
        shards=shards,
        expert_shards=of_experts,
        degrees=derived.mesh_of(scenario).sizes,
        overhead=scenario.framework.memory,
        reserved_bytes=scenario.cluster.gpu.reserved_bytes,
        offload=plan.offloading,
        optimizer=optimizer,
        frozen_parameter_bytes=scenario.job.element_bytes,
        narrow_bytes=_narrow_bytes(scenario),
        narrow_parameter_bytes=0.0 if is_master else _narrow_parameter_bytes(scenario),
        in_buckets=in_buckets,
    )


def _narrow_bytes(scenario: Scenario) -> tuple[float, float]:
    """Bytes of the copies of a weight in the narrow format of the job: outside of experts, and of experts."""
    narrow = quantisation(scenario.plan, scenario.job, derived.software(scenario), derived.replicas(scenario))
    if narrow is None:
        return 0.0, 0.0
    beside = _narrow_parameter_bytes(scenario)
    outside, of_experts = (max(0.0, narrow.kept_bytes(expert=expert) - beside) for expert in (False, True))
    return outside, of_experts


def _narrow_parameter_bytes(scenario: Scenario) -> float:
    """Bytes of a weight that exists in the narrow format of the job alone; 0 if weights exist in 16 bits."""
    dtype, recipe = scenario.job.dtype, scenario.framework.low_precision
    gathered_wide = scenario.plan.full_sharding.gathers and not recipe.gathers_narrow(dtype, divided=True)
    return NARROW_BYTES[dtype] if recipe.narrow_alone(dtype) and not gathered_wide else 0.0


def _copies_every_gradient(scenario: Scenario) -> bool:
    """Whether the only backward pass of a step reduces the gradients of each bucket, and copies them all to the host."""
    offload, sharding = scenario.plan.offloading, scenario.plan.full_sharding
    whole = offload.optimizer and offload.optimizer_fraction == 1
    return whole and sharding.reduce == "each" and derived.microbatches(scenario) == 1


def host_bytes(scenario: Scenario, memory: Sequence[RankMemory]) -> int:
    """Bytes that the host of a node holds, for the node that holds most."""
    of_stage, stage = np.array([rank.host_bytes for rank in memory]), derived.mesh_of(scenario).coordinate("pp")
    nodes = derived.gpus_of(scenario)[: len(stage)] // scenario.cluster.gpus_per_node
    return int(np.bincount(nodes, of_stage[stage]).max())


def host_capacity_bytes(scenario: Scenario) -> float:
    """Memory of a node's host; infinite where the cluster does not say."""
    host = scenario.cluster.host
    return host.memory_bytes if host and host.memory_bytes else inf


def fits(scenario: Scenario, memory: Sequence[RankMemory]) -> bool:
    """Whether every GPU, and every host, has the memory that a plan needs."""
    return fits_gpus(scenario, memory) and host_bytes(scenario, memory) <= host_capacity_bytes(scenario)


def fits_gpus(scenario: Scenario, memory: Sequence[RankMemory]) -> bool:
    """Whether every GPU has the memory that a plan needs of it."""
    return max(rank.total_bytes for rank in memory) <= scenario.cluster.gpu.memory_bytes


def summary(scenario: Scenario, memory: Sequence[RankMemory]) -> str:
    """The memory that the fullest GPU needs, and how much it has, as text."""
    verdict = "" if fits_gpus(scenario, memory) else ": DOES NOT FIT"
    if notes(scenario, memory):
        verdict = f": LESS THAN {LEFT_FRACTION:.0%} LEFT"
    needed_bytes = max(rank.total_bytes for rank in memory)
    return f"{show_bytes(needed_bytes)} of {show_bytes(scenario.cluster.gpu.memory_bytes)} on the fullest GPU{verdict}"


def host_record(scenario: Scenario, memory: Sequence[RankMemory]) -> dict[str, float | None]:
    """The memory of hosts that a plan needs, for the node that needs most, and how much it has; None where that is not known."""
    have_bytes = host_capacity_bytes(scenario)
    return {"peak_bytes": host_bytes(scenario, memory), "capacity_bytes": None if have_bytes == inf else have_bytes}


def host_summary(scenario: Scenario, memory: Sequence[RankMemory]) -> str:
    """The memory of the hosts that a plan needs, and how much they have, as text."""
    needed_bytes, have_bytes = host_bytes(scenario, memory), host_capacity_bytes(scenario)
    of = "" if have_bytes == inf else f" of {show_bytes(have_bytes)}"
    return f"{show_bytes(needed_bytes)}{of} on the fullest node{': DOES NOT FIT' if needed_bytes > have_bytes else ''}"


def remedies(scenario: Scenario) -> str:
    """Changes that would reduce the memory of a scenario and that its plan does not make yet, as text."""
    plan, ways = scenario.plan, ["more tp, cp or pp"]
    kind, replicated = plan.full_sharding.kind, derived.divisible_state(scenario)
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
