"""Whether a scenario makes sense before anything is simulated: degrees that divide, GPUs that exist, features that do.

Every fault names the field that a person would change. All are found in one go.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Fault, OutsideDomain, UserError, did_you_mean
from ..plan.mesh import Mesh
from ..plan.plan import Plan
from ..program.slot import Shape
from ..workload.job import ELEMENT_BYTES
from . import catalog
from .scenario import Scenario

NOT_YET = "is not modelled yet"


def data_parallel_degree(scenario: Scenario) -> int:
    """The plan's dp, or what is left of the GPUs."""
    plan = scenario.plan
    return plan.dp or max(1, scenario.cluster.gpus // (plan.tp * plan.pp * plan.cp))


def microbatches(scenario: Scenario) -> int:
    """Microbatches of one replica in one step."""
    return max(1, scenario.job.global_batch // (data_parallel_degree(scenario) * scenario.job.microbatch_size))


def schedule_shape(scenario: Scenario) -> Shape:
    return Shape(scenario.plan.pp, microbatches(scenario), scenario.plan.chunks)


def mesh_of(scenario: Scenario) -> Mesh:
    plan = scenario.plan
    degrees = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "dp": data_parallel_degree(scenario), "pp": plan.pp}
    return Mesh.of(degrees, plan.rank_order)


def check(scenario: Scenario) -> None:
    """Raises `UserError` with every fault of the scenario, each with its place if it came from a file."""
    faults = []
    for field, message, hint in [
        *_unmodelled(scenario),
        *_degrees(scenario),
        *_batch(scenario),
        *_divisions(scenario),
        *_names(scenario),
    ]:
        faults.append(Fault(f"{field}: {message}", hint, scenario.where(tuple(field.split(".")))))
    if faults:
        raise UserError("", faults=faults)


Found = Iterator[tuple[str, str, str]]
"""(dotted field, what is wrong, hint)."""


def _unmodelled(scenario: Scenario) -> Found:
    plan = scenario.plan
    if plan.cp > 1:
        yield "plan.cp", f"context parallelism {NOT_YET}", "use cp: 1"
    if plan.ep > 1 or plan.overlap.ep:
        yield "plan.ep" if plan.ep > 1 else "plan.overlap.ep", f"expert parallelism {NOT_YET}", "use ep: 1, overlap.ep: false"
    if plan.sharding not in ("none", "zero1"):
        yield "plan.sharding", f"{plan.sharding} {NOT_YET}", "use none or zero1"
    if plan.recompute != "none":
        yield "plan.recompute", f"{plan.recompute} recomputation {NOT_YET}", "use recompute: none"
    if scenario.fidelity.collectives == "stepwise":
        yield "fidelity.collectives", f"stepwise {NOT_YET}", "use fluid or closed"


def _degrees(scenario: Scenario) -> Found:
    plan, gpus = scenario.plan, scenario.cluster.gpus
    fixed = plan.tp * plan.pp * plan.cp
    asked = fixed * (plan.dp or 1)
    product = "tp x pp x cp" + (" x dp" if plan.dp else "")
    if asked > gpus:
        need = -(-asked // scenario.cluster.gpus_per_node)
        yield (
            "plan",
            f"{product} = {asked} GPUs, but {scenario.cluster.name} has {gpus}",
            f"give the cluster nodes: {need}, or lower a degree",
        )
    elif plan.dp and asked < gpus:
        yield (
            "plan.dp",
            f"{product} = {asked} leaves {gpus - asked} of {gpus} GPUs idle",
            _fill_hint(plan, gpus, scenario.cluster.gpus_per_node),
        )
    elif gpus % fixed:
        yield "plan", f"{gpus} GPUs do not divide by tp x pp x cp = {fixed}", "choose degrees whose product divides the GPUs"
    if plan.sequence_parallel and plan.tp == 1:
        yield (
            "plan.sequence_parallel",
            "there is no tensor-parallel group to divide the sequence in",
            "use tp > 1, or leave it out",
        )


def _fill_hint(plan: Plan, gpus: int, gpus_per_node: int) -> str:
    fixed = plan.tp * plan.pp * plan.cp
    nodes = -(-fixed * (plan.dp or 1) // gpus_per_node)
    return f"dp: {gpus // fixed}, or nodes: {nodes}" if gpus % fixed == 0 else f"nodes: {nodes}"


def _batch(scenario: Scenario) -> Found:
    job = scenario.job
    dp, per_round = data_parallel_degree(scenario), data_parallel_degree(scenario) * job.microbatch_size
    if job.global_batch % per_round:
        legal = sorted({max(1, job.global_batch // per_round) * per_round, -(-job.global_batch // per_round) * per_round})
        near = " or ".join(str(value) for value in legal)
        yield (
            "job.global_batch",
            f"{job.global_batch} does not divide by dp {dp} x microbatch_size {job.microbatch_size}",
            f"global_batch: {near}",
        )
    longest = scenario.model.max_sequence_length
    if scenario.model.positions == "learned" and job.sequence_length > longest:
        yield (
            "job.sequence_length",
            f"{scenario.model.name} has learned positions for {longest} tokens only",
            f"at most {longest}",
        )
    peaks = scenario.cluster.gpu.peak_flop_per_s
    if job.dtype not in ELEMENT_BYTES:
        why = NOT_YET if job.dtype in peaks else "is no dtype"
        yield "job.dtype", f"training in {job.dtype!r} {why}", did_you_mean(job.dtype, ELEMENT_BYTES)
    elif job.dtype not in peaks:
        yield "job.dtype", f"{scenario.cluster.gpu.name} has no {job.dtype} peak", f"it has {', '.join(peaks)}"


def _divisions(scenario: Scenario) -> Found:
    model, plan, job = scenario.model, scenario.plan, scenario.job
    if model.layers < plan.pp * plan.chunks:
        yield (
            "plan.pp",
            f"{model.layers} layers do not fill pp x chunks = {plan.pp * plan.chunks} stages",
            f"at most {model.layers} stages",
        )
    if plan.tp == 1:
        return
    for what, size in (("heads", model.heads), ("ffn_hidden", model.ffn_hidden)):
        if size % plan.tp:
            best = max(t for t in range(1, plan.tp + 1) if size % t == 0)
            yield "plan.tp", f"{what} {size} of {model.name} does not divide by tp {plan.tp}", f"tp: {best}"
    if model.kv_heads % plan.tp and plan.tp % model.kv_heads:
        yield "plan.tp", f"kv_heads {model.kv_heads} of {model.name} and tp {plan.tp} do not divide", f"tp: {model.kv_heads}"
    tokens = job.microbatch_size * job.sequence_length
    if plan.uses_sequence_parallel and tokens % plan.tp:
        yield (
            "plan.sequence_parallel",
            f"{tokens} tokens of a microbatch do not divide by tp {plan.tp}",
            "choose a sequence_length that does",
        )


def _names(scenario: Scenario) -> Found:
    try:
        mesh_of(scenario)
    except UserError as error:
        yield "plan.rank_order", error.faults[0].message, error.hint
    try:
        schedule = catalog.module("schedules", scenario.plan.schedule)
        if hasattr(schedule, "refuse"):
            schedule.refuse(schedule_shape(scenario))
    except OutsideDomain as error:
        yield "plan.schedule", error.reason, error.hint
    except UserError as error:
        yield "plan.schedule", error.faults[0].message, error.hint
