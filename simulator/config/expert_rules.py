"""Rules of models with experts: degrees that divide the experts and the ranks, and options that go together."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from ..fields import Contradiction
from ..plan.plan import Moe
from ..workload.architecture import nearest_divisor
from . import catalog
from .derived import replicas
from .scenario import Scenario

Found = Iterator[Contradiction]


def faults_of_experts(scenario: Scenario) -> Found:
    """Faults of expert parallelism, and of models with experts under other parallelism."""
    model, plan, etp = scenario.model, scenario.plan, scenario.plan.tensor_parallel_of_experts
    if not model.experts:
        given = {"ep": plan.ep > 1, "etp": plan.etp, "moe": plan.moe != Moe()}
        given |= {f"overlap.{name}": getattr(plan.overlap, name) for name in ("ep", "weight_gradients")}
        for name in (name for name, value in given.items() if value):
            yield f"plan.{name}", f"{model.name} has no experts", "leave it out, or take a model with experts"
        return
    ranks, fixed = plan.tp * replicas(scenario), plan.ep * etp
    if model.experts % plan.ep:
        near = nearest_divisor(model.experts, plan.ep)
        yield "plan.ep", f"{model.experts} experts of {model.name} do not divide by ep {plan.ep}", f"ep: {near}"
    elif ranks % fixed:
        near = nearest_divisor(ranks // gcd(ranks, etp), plan.ep)
        yield "plan.ep", f"{ranks} GPUs of a pipeline rank do not divide by ep x etp = {fixed}", f"ep: {near}"
    if model.expert_ffn_hidden % etp:
        near = nearest_divisor(model.expert_ffn_hidden, etp)
        message = f"expert_ffn_hidden {model.expert_ffn_hidden} of {model.name} does not divide by etp {etp}"
        yield "plan.etp", message, f"etp: {near}"
    if plan.tp > 1 and not plan.uses_sequence_parallel:
        yield "plan.sequence_parallel", "tensor-parallel ranks must share the tokens of a model with experts", "leave it out"
    sharding = plan.full_sharding
    if sharding.kind not in ("none", "zero1") or sharding.group:
        wrong = f"{sharding.kind} in groups" if sharding.kind == "zero1" else sharding.kind
        yield "plan.sharding", f"{wrong} is not modelled for models with experts", "none, or zero1 without a group"
    yield from _deepep(scenario)
    yield from _drawn(scenario)
    yield from _beside_compute(scenario)


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
    nodes = plan.ep // (moe.node or min(plan.ep, scenario.cluster.gpus_per_node))
    if moe.nodes_per_token and moe.nodes_per_token > nodes:
        yield "plan.moe.nodes_per_token", f"{moe.nodes_per_token} of {nodes} nodes", f"at most {nodes}"


def _drawn(scenario: Scenario) -> Found:
    """Faults of drawn routing, and of its options without it."""
    plan, moe, usual = scenario.plan, scenario.plan.moe, Moe()
    if moe.routing == "balanced":
        for name in ("seed", "concentration", "ranks", "placement"):
            if getattr(moe, name) != getattr(usual, name):
                yield f"plan.moe.{name}", "balanced routing has no use for it", "leave it out, or routing: drawn"
        return
    if moe.dispatcher != "alltoall":
        yield "plan.moe.dispatcher", f"{moe.dispatcher} is modelled for balanced routing only", "dispatcher: alltoall"
    if moe.capacity != "dropless":
        yield (
            "plan.moe.capacity",
            "padded and cut to its capacity, the load of all experts is even",
            "dropless, or routing: balanced",
        )
    if plan.tensor_parallel_of_experts > 1:
        yield "plan.etp", "drawn routing is modelled for whole experts only", "etp: 1"
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
