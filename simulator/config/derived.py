"""Values that follow from a scenario: degrees that the plan leaves open, the mesh, microbatches, the shape of the schedule."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np

from ..engine.task import Array
from ..errors import UserError
from ..hardware.cluster import Cluster
from ..plan.mesh import REPLICAS, Mesh
from ..plan.plan import Kind, Plan, Sharding
from ..plan.recomputation import Recompute
from ..program.layout import as_taken, placements_of
from ..program.slot import Shape
from ..schedules._vocabulary import BARRIERS
from ..workload.framework import Framework
from ..workload.learning import train_flop_per_token
from . import token_shares
from .scenario import Scenario


def data_parallel_degree(scenario: Scenario) -> int:
    """The data-parallel degree: the plan's dp, or the GPUs divided by the other degrees."""
    plan = scenario.plan
    return plan.dp or max(1, scenario.cluster.gpus // (plan.tp * plan.pp * plan.cp))


def has_whole_degrees(scenario: Scenario) -> bool:
    """Whether the GPUs divide by the other degrees if the plan leaves dp open. Otherwise there is no data-parallel degree."""
    plan = scenario.plan
    return bool(plan.dp) or not scenario.cluster.gpus % (plan.tp * plan.pp * plan.cp)


def with_part_of_nodes(scenario: Scenario, divisor: int) -> str:
    """A hint for GPUs that do not divide by `divisor`: the largest part of every node whose GPUs do. Empty where that would leave
    more than a quarter of the GPUs idle, and where the links of a node depend on their number.
    """
    cluster = scenario.cluster
    each = divisor // gcd(divisor, cluster.nodes)
    used = cluster.gpus_per_node // each * each
    found = cluster.inside_name == "nvswitch" and 4 * used >= 3 * cluster.gpus_per_node
    return f"cluster.gpus_per_node: {used}" if found else ""


def replicas(scenario: Scenario) -> int:
    """Number of ranks that hold the same parameters: the context-parallel ranks of every data-parallel replica."""
    return data_parallel_degree(scenario) * scenario.plan.cp


def alone(scenario: Scenario) -> tuple[bool, bool]:
    """Whether one rank alone holds its parameters outside of experts, and whether one rank alone holds its experts."""
    several = replicas(scenario)
    return several == 1, (scenario.plan.copies_of_experts(several) if scenario.model.experts else several) == 1


def divisible_state(scenario: Scenario) -> bool:
    """Whether several ranks hold the same parameters, and so can divide their state: as replicas, or because both directions of a
    schedule have a copy of every stage.
    """
    schedule, shape = scenario.schedule, schedule_shape(scenario)
    return not all(alone(scenario)) or (hasattr(schedule, "placements") and len(placements_of(schedule, shape)) > 1)


def microbatches(scenario: Scenario) -> int:
    """Microbatches of one replica in one step."""
    return max(1, scenario.job.global_batch // (data_parallel_degree(scenario) * scenario.job.microbatch_size))


def software(scenario: Scenario) -> Framework:
    """The framework, without what the GPU lacks, and without overlap that it does not have in the format of the job."""
    framework, dtype = scenario.framework, scenario.job.dtype
    recipe, overlap = framework.low_precision, framework.overlap
    if overlap.tp == "decomposed" and dtype in recipe.whole_gemms:
        overlap = replace(overlap, tp=True)
    if overlap.parameter_gather and dtype in recipe.late_gathers:
        overlap = replace(overlap, parameter_gather=False)
    if recipe.any_layout and not scenario.cluster.gpu.reads_any_layout:
        recipe = replace(recipe, any_layout=False)
    if overlap is framework.overlap and recipe is framework.low_precision:
        return framework
    return replace(framework, overlap=overlap, low_precision=recipe)


def flop_of_step(scenario: Scenario) -> float:
    """The flop that the model needs in a training step, over all GPUs."""
    return train_flop_per_token(scenario.model, scenario.job) * scenario.job.tokens


def peak_flop_per_s(scenario: Scenario) -> float:
    """The peak of a GPU for matrix products in the format of the job."""
    return scenario.cluster.gpu.matmul_peak(scenario.job.dtype)


def with_microbatches(scenario: Scenario, number: int) -> Scenario:
    """The scenario with a batch of `number` microbatches per replica, or parts of them if sequences are split."""
    job = scenario.job
    batch = number // scenario.plan.splits * data_parallel_degree(scenario) * job.microbatch_size
    return replace(scenario, job=replace(job, global_batch=batch))


def with_usual_plan(scenario: Scenario) -> Scenario:
    """The scenario with its framework's choice of sharding and recomputation if its plan leaves them open, with groups of hsdp,
    and with the number format of gradients that the framework chooses for the job.
    """
    plan, framework = scenario.plan, scenario.framework
    usual, gradients = framework.plan, framework.gradients_of(scenario.job)
    if plan.sharding is None:
        plan = replace(plan, sharding=_usual_sharding(scenario))
    if plan.full_sharding.kind == "hsdp" and plan.full_sharding.group is None:
        plan = _with_groups_in_nodes(plan, scenario)
    if usual.group and plan.full_sharding.kind == "zero1" and plan.full_sharding.group is None:
        plan = _with_usual_groups(plan, scenario, usual.group)
    if plan.full_sharding.gathers and framework.gathered_gradients:
        gradients = framework.gathered_gradients
    if plan.recompute is None:
        every = usual.recompute_every
        plan = replace(plan, recompute=usual.recompute if every == 1 else Recompute(usual.recompute, every=every))
    if plan.recomputation.scope == "selective" and (listed := _listed(scenario, usual.selective)):
        plan = replace(plan, recompute=replace(plan.recomputation, scope="none", ops=(*listed, *plan.recomputation.ops)))
    stores_all = not plan.recomputation.words and not scenario.job.learns_in_part
    if stores_all and (always := _listed(scenario, usual.always, keeping=True)):
        plan = replace(plan, recompute=Recompute(ops=always))
    if usual.early_stop and plan.recomputation.scope == "full" and plan.recomputation.early_stop is None:
        plan = replace(plan, recompute=replace(plan.recomputation, early_stop=True))
    if gradients != framework.gradients:
        scenario = replace(scenario, framework=replace(framework, gradients=gradients))
    fidelity = scenario.fidelity
    if fidelity.overlap is None:
        uneven = bool(scenario.model.experts) and plan.ep > 1 and plan.moe.routing != "balanced"
        own_rows = uneven and plan.moe.ranks == "each"  # kernels are then not merged: ten times as many tasks
        fidelity = replace(fidelity, overlap="free" if fidelity.collectives == "stepwise" or own_rows else "slowed")
    same = plan is scenario.plan and fidelity is scenario.fidelity
    return scenario if same else replace(scenario, plan=plan, fidelity=fidelity)


def _with_usual_groups(plan: Plan, scenario: Scenario, ranks: int) -> Plan:
    """The plan with groups of as many data-parallel ranks as the framework chooses, if they divide into such groups."""
    degree = data_parallel_degree(scenario)
    if degree <= ranks or degree % ranks:
        return plan
    stated = plan.sharding if isinstance(plan.sharding, Sharding) else Sharding(plan.full_sharding.kind)
    return replace(plan, sharding=replace(stated, group=ranks))


def _with_groups_in_nodes(plan: Plan, scenario: Scenario) -> Plan:
    """A plan with hsdp, whose groups are the data-parallel ranks of a node if a node has several but not all of them."""
    group = data_parallel_ranks_in_node(scenario)
    if group is None or not 1 < group < data_parallel_degree(scenario):
        return plan
    stated = plan.sharding if isinstance(plan.sharding, Sharding) else Sharding("hsdp")
    return replace(plan, sharding=replace(stated, group=group))


def data_parallel_ranks_in_node(scenario: Scenario) -> int | None:
    """The largest number of consecutive data-parallel ranks that share a node and into which all data-parallel groups divide.
    None if the degrees, the rank order or the placement do not fit the GPUs, which other checks refuse.
    """
    plan, cluster = scenario.plan, scenario.cluster
    try:
        degrees = {"tp": plan.tp, "cp": plan.cp, "dp": data_parallel_degree(scenario), "pp": plan.pp}
        mesh, gpus = Mesh.of(degrees, plan.rank_order), gpus_of(scenario)
    except UserError:
        return None
    if mesh.ranks != cluster.gpus or not np.array_equal(np.sort(gpus), np.arange(cluster.gpus)):
        return None
    return neighbours(gpus[mesh.groups(("dp",))] // cluster.gpus_per_node)[-1]


def _usual_sharding(scenario: Scenario) -> Kind:
    """The sharding of the framework, if there is state to divide. Only zero1 divides state among the two copies of a stage that
    schedules of two directions have."""
    usual = scenario.framework.plan.sharding
    divides = divisible_state(scenario) if usual == "zero1" else not all(alone(scenario))
    return usual if divides else "none"


def _listed(scenario: Scenario, names: tuple[str, ...], *, keeping: bool = False) -> tuple[str, ...]:
    """The names in the list that operators in the layers of the model have: with `keeping`, operators that keep an input."""
    model = scenario.model
    layers = (model.block.layer(model, batch=1, seq=1, element_bytes=1, number=number) for number in model.kinds.values())
    known = {op.name for operators in layers for op in operators if op.saved_bytes or not keeping}
    return tuple(name for name in names if name in known)


def schedule_shape(scenario: Scenario) -> Shape:
    """The shape that the plan requests from its schedule, without durations."""
    plan = scenario.plan
    shape = Shape(
        plan.pp,
        microbatches(scenario) * plan.splits,
        plan.chunks,
        plan.group,
        plan.splits,
        memory_limit=plan.memory_limit,
        barriers=BARRIERS.get(plan.vocabulary, 0),
    )
    return as_taken(scenario.schedule, shape)


def mesh_of(scenario: Scenario) -> Mesh:
    plan, dp = scenario.plan, data_parallel_degree(scenario)
    group = min(plan.full_sharding.group or dp, dp)
    degrees = {"tp": plan.tp, "cp": plan.cp, "dp": group, REPLICAS: dp // group, "pp": plan.pp}
    mesh = Mesh.of(degrees, plan.rank_order)
    if not scenario.model.experts:
        return mesh
    edp = plan.copies_of_experts(group * plan.cp)
    of_experts = {"tp": plan.tensor_parallel_of_experts, "ep": plan.ep, "dp": edp, REPLICAS: dp // group, "pp": plan.pp}
    return replace(mesh, experts=Mesh.of(of_experts, plan.rank_order))


def placed(scenario: Scenario) -> Plan:
    """The plan, with the content of the file that it names, and with open fields that depend on the nodes: for DeepEP the number
    of ranks of an expert-parallel group that share a node, for cp_kind mixed the number of ranks of a node that can divide the
    heads.
    """
    plan = scenario.plan
    if token_shares.is_file(plan.moe.routing):
        plan = replace(plan, moe=replace(plan.moe, routing=token_shares.read(str(plan.moe.routing))))
    if plan.moe.dispatcher == "deepep" and not plan.moe.node:
        plan = replace(plan, moe=replace(plan.moe, node=neighbours(nodes_of_groups(scenario, "ep"))[-1]))
    if plan.cp_kind == "mixed" and plan.cp_ulysses is None:
        near = neighbours(nodes_of_groups(scenario, "cp"))
        parts = (n for n in parts_of_heads(scenario) if n in near and n < plan.cp)
        plan = replace(plan, cp_ulysses=max(parts, default=None))
    return plan


def nodes_of_groups(scenario: Scenario, axis: str) -> Array:
    """The nodes of the members of all groups along an axis, a group per row."""
    nodes: Array = gpus_of(scenario)[mesh_of(scenario).groups((axis,))] // scenario.cluster.gpus_per_node
    return nodes


def neighbours(nodes: Array) -> list[int]:
    """The divisors n of the group size for which n consecutive members always share a node, in every group."""
    size = nodes.shape[1]
    runs = {n: nodes.reshape(-1, n) for n in range(1, size + 1) if size % n == 0}
    return [n for n, of in runs.items() if (of == of[:, :1]).all()]


def cluster_of(scenario: Scenario) -> Cluster:
    """The cluster; with the memory of its hosts in its graph if the plan copies data there."""
    return replace(scenario.cluster, joins_hosts=True) if scenario.plan.offloading.copies else scenario.cluster


def gpus_of(scenario: Scenario) -> Array:
    """The GPU of every rank."""
    placement = scenario.plan.placement
    return np.arange(scenario.cluster.gpus) if placement is None else np.array(placement)


def parts_of_heads(scenario: Scenario) -> list[int]:
    """Numbers of context-parallel ranks, from 2, among which heads can be divided: each has whole key heads, or a copy of one."""
    plan, model = scenario.plan, scenario.model
    heads, kv_heads = model.heads // plan.tp, max(1, model.kv_heads // plan.tp)
    return [n for n in range(2, plan.cp + 1) if not plan.cp % n and not heads % n and not (kv_heads % n and n % kv_heads)]
