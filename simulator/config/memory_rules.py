"""Rules of the memory of ranks: groups that divide the state of the model, and activations that are recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..errors import did_you_mean, shown
from ..fields import Contradiction
from ..kernels import Attention
from ..plan.plan import Sharding
from ..plan.recomputation import Recompute
from ..units import counted
from ..workload.blocks.dense import QUERIES, BlockOp
from .derived import data_parallel_degree, data_parallel_ranks_in_node, has_whole_degrees
from .scenario import Scenario

Found = Iterator[Contradiction]


def faults_of_sharding(scenario: Scenario) -> Found:
    """Faults of the groups that divide the state of the model."""
    plan, sharding, dp = scenario.plan, scenario.plan.full_sharding, data_parallel_degree(scenario)
    if sharding.group and has_whole_degrees(scenario) and dp % sharding.group:
        near = next(n for n in range(min(sharding.group, dp), 0, -1) if dp % n == 0)
        yield "plan.sharding.group", f"dp {dp} does not divide into groups of {sharding.group}", f"group: {near}"
    if sharding.kind == "hsdp" and sharding.group is None and (in_node := data_parallel_ranks_in_node(scenario)):
        yield from _no_groups_in_nodes(dp, in_node)
    if scenario.framework.whole_tensors and sharding.kind == "zero1":
        others = {
            "experts": scenario.model.experts, "muon": scenario.job.full_optimizer.kind == "muon",
            "an offloaded optimizer": plan.offloading.optimizer,
            "two copies of a stage": hasattr(scenario.schedule, "placements"),
        }  # fmt: skip
        if found := [name for name, there in others.items() if there]:
            yield "framework.whole_tensors", f"owners of whole tensors are not modelled with {' and '.join(found)}", "false"
    if sharding.gathers and scenario.model.mtp_layers:
        message = f"{sharding.kind} is not modelled for models whose modules for further tokens read the table again"
        yield "plan.sharding", message, "zero1, or mtp_layers: 0"
    elif sharding.gathers and plan.pp > 1 and scenario.model.tied_embeddings:
        message = f"{sharding.kind} does not divide the table that the first and the last stage of {scenario.model.name} share"
        yield "plan.sharding", message, "zero1, or pp: 1"


def _no_groups_in_nodes(dp: int, in_node: int) -> Found:
    """The fault of hsdp whose groups do not follow from the nodes: `in_node` ranks of a node, which are one or all."""
    divisors = [n for n in range(2, dp) if dp % n == 0]
    near = f"group: {divisors[-1 if in_node > 1 else 0]}, or " if divisors else ""
    why = f"all {dp} data-parallel ranks share a node" if in_node > 1 else "no two data-parallel ranks share a node"
    if dp == 1:
        why = "there is one data-parallel rank"
    yield "plan.sharding.group", f"hsdp replicates the state across groups, and {why}", f"{near}kind: fsdp"


def faults_of_units(sharding: Sharding, most: int) -> Found:
    """Faults of the layers that are gathered together, where the largest stage has `most` layers."""
    if sharding.unit != "half-layer" and sharding.unit > most:
        yield "plan.sharding.unit", f"the largest stage has {counted(most, 'layer')}, fewer than {sharding.unit}", f"unit: {most}"


def faults_of_kept_results(scenario: Scenario) -> Found:
    """Faults of recomputation that keeps the results of single operators."""
    if scenario.plan.recomputation.scope != "per-op":
        return
    low, other = scenario.framework.low_precision, "full, selective, or ops"
    if scenario.model.experts:
        yield "plan.recompute", f"per-op is not modelled for layers with experts, as in {scenario.model.name}", other
    if scenario.job.narrow and low.weight_gradients and low.keeps_narrow:
        message = (
            f"per-op is not modelled where inputs of GEMMs are kept in {scenario.job.dtype}, as in {scenario.framework.name}"
        )
        yield "plan.recompute", message, f"{other}, or a framework that keeps 16 bits"


def faults_of_recomputed_layers(chosen: Recompute, most: int) -> Found:
    """Faults of the choice of layers that the backward pass recomputes, where the largest stage has `most` layers."""
    for name, value in (("first", chosen.first or 1), ("every", chosen.every), ("together", chosen.together)):
        if value > most:
            message = f"the largest stage has {counted(most, 'layer')}, fewer than {value}"
            yield f"plan.recompute.{name}", message, f"{name}: {most}"
    if chosen.first and chosen.first < chosen.every <= most:
        message = f"there is no layer number {chosen.every} among the first {chosen.first} of a stage"
        yield "plan.recompute.every", message, f"every: {chosen.first}"


def faults_of_recomputed_operators(scenario: Scenario) -> Found:
    """Faults of the list of operators that the backward pass recomputes."""
    chosen, model = scenario.plan.recomputation, scenario.model
    layers = [model.block.layer(model, batch=1, seq=1, element_bytes=1, number=number) for number in model.kinds.values()]
    names = list(dict.fromkeys(op.name for operators in layers for op in operators))
    for name in chosen.ops:
        if name not in names:
            yield "plan.recompute.ops", f"a layer of {model.name} has no operator {shown(name)}", did_you_mean(name, names)
    operators = [op for layer in layers for op in layer]
    rotated = _rotated_queries(operators)
    for before, op, behind in zip([None, *operators], operators, [*operators[1:], None], strict=False):
        begins, ends = (one is None or one.name not in chosen.ops for one in (before, behind))
        if op.name in chosen.ops and begins and not op.saved_bytes:
            message = f"{op.name} keeps no input from which it could be recomputed"
            yield "plan.recompute.ops", message, f"leave it out, or add {before.name}" if before else "leave it out"
        if op.name in chosen.ops and ends and not (behind and behind.saved_bytes):
            rotates = rotated.get(op.name, "")
            if rotates not in chosen.ops:
                hint = f"leave it out, or add {rotates}" if rotates else "leave it out"
                yield "plan.recompute.ops", f"no operator keeps the result of {op.name}", hint


def _rotated_queries(operators: Sequence[BlockOp]) -> dict[str, str]:
    """The operators that produce only queries, each with the operator right before attention, which rotates the queries.

    Attention keeps the rotated queries; operators of keys and values are in between.
    """
    ends = (before for before, op in pairwise(operators) if isinstance(op.forward, Attention))
    last = next(ends, None)
    return {op.name: last.name for op in operators if last and op.makes == (QUERIES,)}
