"""Rules of models with experts: degrees that divide the experts and the ranks, and consistent options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, lcm

import numpy as np

from ..fields import Contradiction
from ..lowering.routing import layers_with_experts
from ..plan.plan import Moe
from ..workload.architecture import nearest_divisor
from . import catalog, token_shares
from .derived import data_parallel_degree, has_whole_degrees, neighbours, nodes_of_groups, replicas, with_part_of_nodes
from .scenario import Scenario

Found = Iterator[Contradiction]


def faults_of_experts(scenario: Scenario, *, alone: bool = True) -> Found:
    """Faults of expert parallelism, and of models with experts under other parallelism. `alone`: no other job has a part of the
    cluster, so that a hint may change it."""
    model, plan, etp = scenario.model, scenario.plan, scenario.plan.tensor_parallel_of_experts
    if not model.experts:
        given = {"ep": plan.ep > 1, "etp": plan.etp not in (None, plan.tp), "moe": plan.moe != Moe()}
        given |= {f"overlap.{name}": getattr(plan.overlap, name) for name in ("ep", "weight_gradients")}
        for name in (name for name, value in given.items() if value):
            yield f"plan.{name}", f"{model.name} has no experts", "leave it out, or take a model with experts"
        return
    ranks, fixed = plan.tp * replicas(scenario), plan.ep * etp
    if model.experts % plan.ep:
        yield "plan.ep", f"{model.experts} experts of {model.name} do not divide by ep {plan.ep}", _near(scenario, alone=alone)
    elif has_whole_degrees(scenario) and ranks % fixed:
        message = f"{ranks} GPUs of a pipeline rank do not divide by ep x etp = {fixed}"
        yield "plan.ep", message, _near(scenario, alone=alone)
    if model.expert_ffn_hidden % etp:
        near = nearest_divisor(model.expert_ffn_hidden, etp)
        message = f"expert_ffn_hidden {model.expert_ffn_hidden} of {model.name} does not divide by etp {etp}"
        yield "plan.etp", message, f"etp: {near}"
    if (shared := model.shared_experts * model.expert_ffn_hidden) % plan.tp:
        message = f"the shared experts of {model.name}, {shared} wide together, do not divide by tp {plan.tp}"
        yield "plan.tp", message, f"tp: {gcd(shared, plan.tp)}"
    if plan.tp > 1 and not plan.uses_sequence_parallel:
        yield "plan.sequence_parallel", "tensor-parallel ranks must share the tokens of a model with experts", "leave it out"
    yield from _sharded(scenario, fixed)
    yield from _deepep(scenario)
    yield from _drawn(scenario)
    yield from _beside_compute(scenario)


def _near(scenario: Scenario, *, alone: bool) -> str:
    """A hint with the nearest degree that divides experts and ranks, and with a nearer one that divides a part of every node."""
    plan, experts, etp = scenario.plan, scenario.model.experts, scenario.plan.tensor_parallel_of_experts
    ranks, near = plan.tp * replicas(scenario), nearest_divisor(experts, plan.ep)
    if not has_whole_degrees(scenario):
        return f"ep: {near}"
    hint = f"ep: {nearest_divisor(gcd(experts, ranks // gcd(ranks, etp)), plan.ep)}"
    part = with_part_of_nodes(scenario, plan.pp * lcm(plan.tp * plan.cp, near * etp)) if alone and ranks % (near * etp) else ""
    return hint + (f", or ep: {near} with {part}" if part else "")


def _sharded(scenario: Scenario, fixed: int) -> Found:
    """Faults of sharded state of experts, which `fixed` ranks divide among them before replicas do."""
    plan, sharding, dp = scenario.plan, scenario.plan.full_sharding, data_parallel_degree(scenario)
    if sharding.kind == "zero3" and plan.ep > 1:
        yield (
            "plan.sharding",
            "zero3 is not modelled with expert parallelism, which DeepSpeed's own experts refuse",
            "fsdp, or zero2",
        )
    group = sharding.group
    if group and group * plan.cp * plan.tp % fixed:
        legal = [n for n in range(dp, 0, -1) if not dp % n and not n * plan.cp * plan.tp % fixed]
        near = next((n for n in legal if n <= group), legal[-1]) if legal else None
        message = f"{group} data-parallel ranks do not hold whole groups of ep x etp = {fixed} GPUs"
        yield (
            "plan.sharding.group",
            message,
            f"group: {near}" if near else "leave it out",
        )


def _deepep(scenario: Scenario) -> Found:
    """Faults of DeepEP, and of its options without it."""
    plan, moe, etp = scenario.plan, scenario.plan.moe, scenario.plan.tensor_parallel_of_experts
    if moe.dispatcher != "deepep":
        for name in ("node", "nodes_per_token"):
            if getattr(moe, name) is not None:
                yield f"plan.moe.{name}", f"{moe.dispatcher} has no use for it", "leave it out, or dispatcher: deepep"
        return
    if etp > 1:
        yield "plan.etp", f"deepep takes tokens to whole experts, not to shares on {etp} ranks", "etp: 1"
    if moe.capacity != "dropless":
        yield "plan.moe.capacity", "deepep sends the rows that there are", "dropless, or dispatcher: alltoall"
    if moe.node and plan.ep % moe.node:
        yield (
            "plan.moe.node",
            f"ep {plan.ep} does not divide into nodes of {moe.node}",
            f"node: {nearest_divisor(plan.ep, moe.node)}",
        )


def faults_of_nodes(scenario: Scenario) -> Found:
    """Faults of DeepEP on the nodes where the ranks of its groups are, for sound degrees and a sound placement."""
    plan, moe = scenario.plan, scenario.plan.moe
    if moe.dispatcher != "deepep":
        return
    nodes = nodes_of_groups(scenario, "ep")
    legal, in_order = neighbours(nodes), np.sort(nodes, axis=1)
    if moe.node and moe.node not in legal:
        yield "plan.moe.node", f"{moe.node} consecutive ranks of a group of ep are on several nodes", f"node: {legal[-1]}"
    elif not moe.node and (np.diff(nodes) != 0).sum() > (np.diff(in_order) != 0).sum():
        message = "in a group of ep the ranks of a node are not consecutive, as deepep requires"
        yield "plan.moe.node", message, f"another order of GPUs, node: {legal[-1]}, or dispatcher: alltoall"
    groups = plan.ep // (moe.node if moe.node in legal else legal[-1])
    if moe.nodes_per_token and moe.nodes_per_token > groups:
        yield "plan.moe.nodes_per_token", f"{moe.nodes_per_token} of {groups} nodes", f"at most {groups}"


def _listed(scenario: Scenario) -> Found:
    """Faults of a placement of experts that lists the experts of every rank."""
    placement, ep, experts = scenario.plan.moe.placement, scenario.plan.ep, scenario.model.experts
    if isinstance(placement, str):
        return
    if len(placement) != ep or any(len(own) != experts // ep for own in placement):
        numbers = sorted({len(own) for own in placement})
        message = f"{len(placement)} ranks with {' or '.join(map(str, numbers)) or 'no'} experts each"
        yield "plan.moe.placement", message, f"{ep} lists of {experts // ep} experts, one for each rank of ep"
    elif sorted(expert for own in placement for expert in own) != [*range(experts)]:
        lost = sorted({*range(experts)} - {expert for own in placement for expert in own})
        yield "plan.moe.placement", f"no rank holds expert {lost[0]} of {experts}", f"each of 0 to {experts - 1} once"


def _given(scenario: Scenario) -> Found:
    """Faults of given shares of the tokens."""
    model, moe = scenario.model, scenario.plan.moe
    moe = replace(moe, routing=token_shares.read(str(moe.routing))) if token_shares.is_file(moe.routing) else moe
    layers = len(layers_with_experts(model))
    shares = moe.given_shares(layers)
    if len(shares) != layers:
        message = f"{len(shares)} lists of shares for the {layers} layers with experts of {model.name}"
        yield "plan.moe.routing", message, f"{layers} lists, or one for all layers"
    if wrong := [len(of) for of in shares if len(of) != model.experts]:
        message = f"{wrong[0]} shares for the {model.experts} experts of {model.name}"
        yield "plan.moe.routing", message, f"{model.experts} shares"


def _drawn(scenario: Scenario) -> Found:
    """Faults of uneven routing, drawn or given, and of its options without it."""
    plan, moe, usual = scenario.plan, scenario.plan.moe, Moe()
    what = moe.routing if moe.routing in ("balanced", "drawn") else "given"
    useless = {"balanced": ("seed", "concentration", "ranks", "placement"), "given": ("seed", "concentration")}
    for name in useless.get(str(what), ()):
        if getattr(moe, name) != getattr(usual, name):
            yield f"plan.moe.{name}", f"{what} routing has no use for it", "leave it out, or routing: drawn"
    if what == "balanced":
        return
    if what == "given":
        yield from _given(scenario)
    yield from _listed(scenario)
    if moe.dispatcher != "alltoall":
        yield "plan.moe.dispatcher", f"{moe.dispatcher} is modelled for balanced routing only", "dispatcher: alltoall"
    if moe.capacity != "dropless":
        yield (
            "plan.moe.capacity",
            "padded and cut to its capacity, the load of all experts is even",
            "dropless, or routing: balanced",
        )
    if plan.tensor_parallel_of_experts > 1:
        yield "plan.etp", f"{what} routing is modelled for whole experts only", "etp: 1"
    if plan.ep == 1:
        yield "plan.moe.routing", "without expert parallelism every rank has all rows", "ep > 1, or routing: balanced"
    if scenario.fidelity.collectives == "stepwise":
        yield "fidelity.collectives", "uneven exchanges are not simulated message by message", "fluid or closed"


def _beside_compute(scenario: Scenario) -> Found:
    """Faults of exchanges of experts beside compute.

    The rules of overlap_moe_expert_parallel_comm in Megatron-LM (d98e8a6), megatron/core/transformer/transformer_config.py.
    """
    plan, module = scenario.plan, scenario.schedule
    for name in ("ep", "weight_gradients"):
        if getattr(plan.overlap, name) and plan.ep == 1:
            yield f"plan.overlap.{name}", "without expert parallelism nothing is exchanged", "ep > 1, or leave it out"
    if not plan.exchanges_beside_compute(scenario.framework.overlap):
        return
    alternates, chunks = getattr(module, "ALTERNATES", False), getattr(module, "CHUNKS", plan.chunks)
    if not alternates and not getattr(module, "PAIRS", False):
        message = f"{catalog.called(plan.schedule)} runs no forward pass together with a backward pass"
        yield "plan.overlap.ep", message, "false, or the schedule interleaved, dualpipe or dualpipe-v"
    elif alternates and plan.pp > 1 and chunks == 1:
        message = "in a pipeline of one stage per rank a forward pass waits for the backward pass that would hide its exchanges"
        yield "plan.overlap.ep", message, "false, or the schedule interleaved with chunks: 2"
    if alternates and plan.recomputation.scope == "full":
        message = "layers that are recomputed as a whole exchange tokens once more, which no pair hides"
        yield "plan.recompute", message, "selective, or ops, or plan.overlap.ep: false"
