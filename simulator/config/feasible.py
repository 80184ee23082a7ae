"""Checks of a scenario before simulation: degrees that divide, GPUs that exist, and features that the parts support.

Every fault names the field to change. All faults are reported together. A value without an effect is not a fault, but gives a
warning, since the user probably expected an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import gcd, inf, lcm
from typing import Any

from ..errors import Fault, OutsideDomain, UserError, shown
from ..fields import Contradiction
from ..hardware.cluster import Cluster
from ..kernels import UNFUSED
from ..plan.mesh import REPLICAS
from ..plan.plan import EVEN, Fidelity, Plan
from ..plan.stage_layers import stage_layers
from ..program.layout import lay_out
from ..workload.framework import Framework
from ..workload.job import DTYPES, ELEMENT_BYTES, Job
from ..workload.learning import train_flop_per_token
from ..workload.model import Model
from . import catalog, user_code
from .derived import (
    data_parallel_degree,
    has_whole_degrees,
    mesh_of,
    microbatches,
    parts_of_heads,
    placed,
    schedule_shape,
    with_part_of_nodes,
    with_usual_plan,
)
from .document import Document, place_of
from .expert_rules import faults_of_experts, faults_of_nodes
from .learning_rules import faults_of_learning, faults_of_optimizer, faults_of_packing
from .leftovers import OPTIONS, options_used
from .memory_rules import (
    faults_of_kept_results,
    faults_of_recomputed_layers,
    faults_of_recomputed_operators,
    faults_of_sharding,
    faults_of_units,
)
from .offload_rules import faults_of_offload, faults_of_offloaded_layers
from .perturb_rules import faults_of_perturbed_links, faults_of_perturbed_ranks
from .power_rules import faults_of_power
from .reader import Grammar, Grammars, faults_in
from .scenario import GRAMMARS, Perturb, Scenario, exact_routing, schedule
from .vocabulary_rules import faults_of_vocabulary

MOST_LAYER_SLOTS = 400_000
"""Largest product of layers and microbatches of a replica in one simulation, which limits its memory and run time."""
LONGEST_MICROBATCH_S = 24 * 3600
"""Longest time of one microbatch of the whole model on one GPU, in seconds. Below this limit every duration fits the clock."""

Found = Iterator[Contradiction]


def check(scenario: Scenario, whole: Cluster | None = None) -> Scenario:
    """Checks a scenario, and returns it with its framework's choices for what its plan leaves open. With several jobs, the
    cluster of a job is a part of the `whole` one, and need not be possible by itself.

    Raises `UserError` with every fault of the scenario, each with its place in the file if the value came from a file.
    """
    marks = Document({}, scenario.marks)
    _well_formed(scenario, marks)
    scenario = with_usual_plan(scenario)
    cheap: tuple[Callable[[Scenario], Found], ...] = (
        partial(_degrees, whole=whole), _batch, _divisions, _overlapped, _shared_sequences,
        partial(faults_of_experts, alone=whole is None), faults_of_sharding,
        faults_of_kept_results, faults_of_offload, faults_of_learning, faults_of_optimizer, faults_of_packing,
        partial(faults_of_power, alone=whole is None), _order, partial(_placed, whole=whole), faults_of_perturbed_ranks,
    )  # fmt: skip
    dear: tuple[Callable[[Scenario], Found], ...] = (
        partial(_cluster, whole=whole), faults_of_perturbed_links, _scheduled, faults_of_recomputed_operators,
        faults_of_vocabulary, faults_of_nodes,
    )  # fmt: skip
    found = [fault for law in cheap for fault in law(scenario)] or [fault for law in dear for fault in law(scenario)]
    if found:
        raise UserError(faults=_placed_faults(found, marks))
    return scenario


def faults_beside_jobs(scenario: Scenario) -> list[Fault]:
    """Faults of inputs that several jobs share besides their cluster: the perturbations of a scenario with the whole cluster."""
    found = [*faults_of_perturbed_ranks(scenario)]
    if not [*_cluster(scenario, None)]:
        found += faults_of_perturbed_links(scenario, alone=False)
    return _placed_faults(found, Document({}, scenario.marks))


def _placed_faults(found: Iterable[Contradiction], marks: Document) -> list[Fault]:
    """Faults with their places in the file."""
    placed = ((name, message, hint, marks.where_of_several(place_of(name), message)) for name, message, hint in found)
    return [Fault(f"{name}: {message}", hint, where) for name, message, hint, where in placed]


def _well_formed(scenario: Scenario, marks: Document) -> None:
    """Checks the type and the fields of every section made in Python. Sections from files were already checked."""
    kinds = {"model": Model, "cluster": Cluster, "plan": Plan, "job": Job, "framework": Framework, "fidelity": Fidelity}
    sections: list[tuple[str, Any, type[Any]]] = [(name, getattr(scenario, name), kind) for name, kind in kinds.items()]
    sections += [(f"perturb.{i}", one, Perturb) for i, one in enumerate(scenario.perturb)]
    for name, value, kind in sections:
        if not isinstance(value, kind):
            maker = name if kind in (Model, Cluster, Framework) else kind.__name__
            hint = f"sim.{maker}(...) makes one"
            raise UserError(f"{name} is {shown(value)}, not an object of class {kind.__name__}", hint=hint)
    checked = [*scenario.read, scenario.cluster]
    new = [(name, value) for name, value, _ in sections if not any(value is one for one in checked)]
    faults = [fault for name, value in new for fault in faults_in(value, marks, place_of(name), PYTHON_GRAMMARS)]
    if faults:
        raise UserError(faults=faults)


def _schedule(value: Any) -> Any:
    """The name of a schedule, or an object that defines a schedule."""
    if isinstance(value, str):
        return schedule(value)
    if not any(callable(getattr(value, name, None)) for name in ("order", "orders", "__call__")):
        raise UserError(f"{shown(value)} is not a schedule", hint=user_code.SCHEDULE)
    return value


PYTHON_GRAMMARS: Grammars = {
    **GRAMMARS,
    "schedule": Grammar(_schedule, "1f1b"),
    "routing": Grammar(exact_routing, GRAMMARS["routing"].example),
}
"""The grammars for values from Python, where a schedule may also be an object, and the word of a routing stays as it is."""


def _degrees(scenario: Scenario, whole: Cluster | None = None) -> Found:
    plan, gpus, per_node = scenario.plan, scenario.cluster.gpus, (whole or scenario.cluster).gpus_per_node
    fixed = plan.tp * plan.pp * plan.cp
    asked = fixed * (plan.dp or 1)
    product = "tp x pp" + (" x cp" if plan.cp > 1 else "") + (" x dp" if plan.dp else "")
    exact = not asked % per_node or (whole is not None and asked < per_node)  # a job may have a part of a node
    enough = asked if exact else lcm(fixed, per_node)
    by_gpus = (f"gpus: {enough}" if whole else f"nodes: {enough // per_node}") + " without dp" * (not exact and bool(plan.dp))
    by_dp = f"dp: {gpus // fixed}, or leave it out"
    in_part = f", or {part}" if not whole and (part := with_part_of_nodes(scenario, asked)) else ""
    too_many = f"{product} = {asked} GPUs, but {_owner(scenario, whole)} has {gpus}"
    if asked > gpus and plan.dp and not gpus % fixed:
        yield "plan", too_many, by_dp
    elif asked > gpus:
        more = f"give {'the job' if whole else 'the cluster'} {by_gpus}, or " if not whole or enough <= whole.gpus else ""
        yield "plan", too_many, f"{more}lower a degree"
    elif plan.dp and asked < gpus:
        hint = (by_dp if not gpus % fixed else by_gpus) + in_part * (4 * asked >= 3 * gpus)
        yield "plan.dp", f"{product} = {asked} leaves {gpus - asked} of {gpus} GPUs idle", hint
    elif gpus % fixed:
        near = [n for n in range(fixed, 0, -1) if gpus % n == 0][:1] + [n for n in range(fixed, gpus + 1) if gpus % n == 0][:1]
        divides = not gcd(scenario.model.heads, scenario.model.ffn_hidden) % plan.tp  # otherwise no number of nodes helps
        hint = f"a product of {' or '.join(map(str, near))}" + f", or {by_gpus}{in_part}" * divides
        yield "plan", f"{gpus} GPUs do not divide by {product} = {fixed}", hint


def _owner(scenario: Scenario, whole: Cluster | None) -> str:
    """The owner of the GPUs of a scenario, for messages: its cluster, or a job on a part of a `whole` one."""
    return "the job" if whole else scenario.cluster.name


def _batch(scenario: Scenario) -> Found:
    job, model, gpu = scenario.job, scenario.model, scenario.cluster.gpu
    dp = data_parallel_degree(scenario)
    near = " or ".join(map(str, _multiples(job.global_batch, dp * job.microbatch_size)))
    if has_whole_degrees(scenario) and job.global_batch % (dp * job.microbatch_size):
        message = f"{job.global_batch} does not divide by dp {dp} x microbatch_size {job.microbatch_size}"
        yield "job.global_batch", message, f"global_batch: {near}"
    if microbatches(scenario) * model.layers > MOST_LAYER_SLOTS:
        message = f"{microbatches(scenario)} microbatches of {model.layers} layers are more than one simulation takes"
        most = max(1, MOST_LAYER_SLOTS // model.layers)
        yield "job.global_batch", message, f"global_batch: {most * dp * job.microbatch_size}, or a larger microbatch_size"
    flop = train_flop_per_token(model, job) * job.microbatch_size * job.sequence_length
    sustained = gpu.peak_flop_per_s.get(job.activation_dtype, inf) * gpu.kernels.compute_fraction
    if flop / sustained > LONGEST_MICROBATCH_S:
        message = (
            f"a microbatch of {job.microbatch_size * job.sequence_length} tokens keeps one {gpu.name} busy for more than a day"
        )
        yield "job.microbatch_size", message, "a smaller model, fewer tokens or a faster GPU"
    if model.positions == "learned" and job.sequence_length > model.max_sequence_length:
        message = f"{model.name} has learned positions for {model.max_sequence_length} tokens, not {job.sequence_length}"
        yield "job.sequence_length", message, f"at most {model.max_sequence_length}"
    if not gpu.runs(job.dtype):
        legal = [dtype for dtype in DTYPES if gpu.runs(dtype)]
        yield "job.dtype", f"{gpu.name} has no {job.dtype} GEMMs", f"it has {', '.join(legal)}"
    elif job.narrow and job.dtype not in scenario.framework.low_precision.formats:
        legal = [*ELEMENT_BYTES, *scenario.framework.low_precision.formats]
        yield "job.dtype", f"{scenario.framework.name} has no {job.dtype} GEMMs", f"it has {', '.join(legal)}"


def _multiples(value: int, unit: int) -> list[int]:
    """The multiples of `unit` just below and just above a value. The lower multiple is not zero."""
    return sorted({max(1, value // unit) * unit, -(-value // unit) * unit})


def _divisions(scenario: Scenario) -> Found:
    model, plan, job = scenario.model, scenario.plan, scenario.job
    undivided = [f"{name} {size}" for name, size in (("heads", model.heads), ("ffn_hidden", model.ffn_hidden)) if size % plan.tp]
    if model.kv_heads % plan.tp and plan.tp % model.kv_heads and model.kv_heads != model.heads:
        undivided.append(f"kv_heads {model.kv_heads}")
    if undivided:
        whole = gcd(model.heads, model.ffn_hidden)
        best = next(t for t in range(plan.tp, 0, -1) if not whole % t and (not model.kv_heads % t or not t % model.kv_heads))
        yield "plan.tp", f"{' and '.join(undivided)} of {model.name} do not divide by tp {plan.tp}", f"tp: {best}"
    if model.qk_norm == "full" and plan.tp > 1:
        message = f"{model.name} norms queries and keys over all heads, which tensor parallelism would divide"
        yield "plan.tp", message, "tp: 1"
    tokens = job.microbatch_size * job.sequence_length // (plan.splits * plan.cp)
    if job.sequence_length % plan.splits:
        near = " or ".join(map(str, _multiples(job.sequence_length, plan.splits)))
        yield "plan.splits", f"{job.sequence_length} tokens do not divide into {plan.splits} parts", f"sequence_length: {near}"
    elif plan.uses_sequence_parallel and tokens % plan.tp:
        near = " or ".join(map(str, _multiples(job.sequence_length, plan.tp * plan.splits * _chunks(plan))))
        whose = "a microbatch" if plan.cp == 1 else "a context-parallel rank"
        message = f"{tokens} tokens of {whose} do not divide by tp {plan.tp}, which sequence parallelism needs"
        yield "job.sequence_length", message, f"sequence_length: {near}, or plan.sequence_parallel: false"


def _overlapped(scenario: Scenario) -> Found:
    """Faults of the overlap of tensor-parallel collectives with pieces of GEMMs, and of its fidelity."""
    plan, job, framework = scenario.plan, scenario.job, scenario.framework
    if scenario.fidelity.overlap == "slowed" and scenario.fidelity.collectives == "stepwise":
        yield (
            "fidelity.overlap",
            "what single messages take from compute is not modelled",
            "free, or collectives: fluid or closed",
        )
    beside = plan.overlap.over(framework.overlap)
    if framework.launch_blocking and (axes := [axis for axis in ("dp", "tp", "pp", "ep") if getattr(beside, axis)]):
        yield (
            f"plan.overlap.{axes[0]}",
            "the host waits for every kernel (framework.launch_blocking), so that none overlap",
            "false",
        )
    if plan.overlap.tp == "decomposed" and not (plan.tp > 1 and plan.uses_sequence_parallel):
        message = "only the gathers and reduce-scatters of sequence parallelism are cut into pieces"
        yield "plan.overlap.tp", message, "true, or tp > 1 with sequence_parallel: true"
    elif plan.overlap.tp == "decomposed" and job.lora:
        yield "plan.overlap.tp", "adapters take whole tensors, and GEMMs beside them have no pieces", "true, or job.lora: null"
    elif beside.tp == "decomposed" and job.narrow and not framework.low_precision.narrow_gathers:
        message = f"{framework.name} casts to {job.dtype} what it has gathered, which is modelled for whole tensors only"
        yield "plan.overlap.tp", message, "true, or framework.low_precision.narrow_gathers: true"


def _chunks(plan: Plan) -> int:
    """Number of chunks that the length of a sequence must divide into: context-parallel ranks hold two each, or one share."""
    return plan.cp * (1 + plan.cp_balance) if plan.cp > 1 else 1


def _shared_sequences(scenario: Scenario) -> Found:
    """Faults of context parallelism."""
    plan, length = scenario.plan, scenario.job.sequence_length
    if plan.cp_ulysses is not None and plan.cp_kind != "mixed":
        yield "plan.cp_ulysses", f"cp_kind {plan.cp_kind} has no use for it", "leave it out, or cp_kind: mixed"
    if not plan.cp_balance and (plan.cp == 1 or plan.cp_kind != "ring"):
        yield (
            "plan.cp_balance",
            "only a ring of context-parallel ranks has unequal shares",
            "leave it out, or cp > 1 with cp_kind: ring",
        )
    if not plan.cp_balance and plan.moe.routing != "balanced":
        message = f"ranks of a ring without balance and of {plan.moe.routing} routing would differ twice"
        yield "plan.cp_balance", message, "leave it out, or routing: balanced"
    if plan.cp == 1:
        if plan.cp_kind != "ring":
            yield "plan.cp_kind", "there is no context-parallel group to share sequences", "use cp > 1, or leave it out"
        return
    if length % _chunks(plan):
        near = " or ".join(map(str, _multiples(length, _chunks(plan))))
        each = "two" if plan.cp_balance else "one"
        message = f"{length} tokens do not divide into {_chunks(plan)} chunks, {each} for each of cp {plan.cp} ranks"
        yield "job.sequence_length", message, f"sequence_length: {near}"
    if plan.splits > 1:
        yield "plan.splits", f"parts of sequences that cp {plan.cp} ranks share are not modelled", "splits: 1, or cp: 1"
    if scenario.framework.attention == UNFUSED:
        message = "context parallelism joins partial results of fused attention, and this framework has none"
        yield "plan.cp", message, "a library in framework.attention, or cp: 1"
    if 0 < scenario.model.window < length and plan.cp_kind != "ulysses":
        message = f"windows of attention as in {scenario.model.name} are modelled with whole sequences only"
        yield "plan.cp_kind", message, "cp_kind: ulysses"
    if not any(fault for law in (_degrees, _order, _placed, faults_of_experts) for fault in law(scenario)):
        yield from _shared_heads(scenario)


def _shared_heads(scenario: Scenario) -> Found:
    """Faults of context-parallel ranks that exchange tokens for heads."""
    plan, parts = scenario.plan, parts_of_heads(scenario)
    inside, neighbours = [n for n in parts if n < plan.cp], placed(scenario).cp_ulysses
    if plan.cp_kind == "mixed" and neighbours not in inside:
        hint = f"cp_ulysses: {' or '.join(map(str, inside))}" if inside else "cp_kind: ring"
        what = f"{neighbours} does not divide" if neighbours else "no number of ranks in a node divides"
        yield "plan.cp_ulysses", f"{what} cp {plan.cp} and the heads of a rank, each into several parts", hint
    elif plan.cp_kind == "ulysses" and plan.cp not in parts:
        hint = "cp_kind: ring" if not parts else f"cp: {parts[-1]}, or cp_kind: ring"
        yield "plan.cp", f"{plan.cp} does not divide the heads of {scenario.model.name} on {plan.tp} tensor-parallel ranks", hint


def _order(scenario: Scenario) -> Found:
    try:
        mesh = mesh_of(scenario)
    except UserError as error:
        yield "plan.rank_order", error.faults[0].message, error.hint
        return
    experts = mesh.experts
    if experts and experts.ranks == mesh.ranks:
        for axis, what in (("pp", "pipelines"), (REPLICAS, "replicas")):
            if (mesh.groups((axis,)) != experts.groups((axis,))).any():
                message = f"{scenario.plan.rank_order} gives experts other {what} than the rest of the model"
                yield "plan.rank_order", message, "an order that ends in pp, such as tp-cp-ep-dp-pp"


def _placed(scenario: Scenario, whole: Cluster | None = None) -> Found:
    placement, gpus = scenario.plan.placement, scenario.cluster.gpus
    if placement is not None and sorted(placement) != [*range(gpus)]:
        missing = sorted(set(range(gpus)) - set(placement))
        wrong = f"GPU {missing[0]} has no rank" if missing else f"there are {len(placement)} ranks"
        yield "plan.placement", f"{wrong}, and {_owner(scenario, whole)} has {gpus} GPUs", f"each of 0 to {gpus - 1} once"


def _cluster(scenario: Scenario, whole: Cluster | None) -> Found:
    """Faults that only the shape of the cluster, of which a scenario may have a part, can detect."""
    try:
        (whole or scenario.cluster).wiring  # noqa: B018 - raises what the shape cannot wire
    except UserError as error:
        yield "cluster.shape", error.faults[0].message, error.hint


def _in_fields(scenario: Scenario, refused: OutsideDomain) -> str:
    """The nearest shape that a schedule supports, in fields of a scenario: as a global batch instead of microbatches, by the
    number of replicas that there are then.
    """
    plan, legal = scenario.plan, dict[str, object](refused.nearest)
    if "ranks" in refused.nearest and refused.nearest["ranks"] != plan.pp:
        scenario = replace(scenario, plan=replace(plan, pp=refused.nearest["ranks"], dp=None))
        if not has_whole_degrees(scenario):
            legal.pop("microbatches", None)
        elif plan.dp:
            legal["dp"] = data_parallel_degree(scenario)
    unit = data_parallel_degree(scenario) * scenario.job.microbatch_size
    fields = {name: f"plan.{name}" for name in ("chunks", "group", "memory_limit", "dp")}
    fields |= {"ranks": "plan.pp", "microbatches": "job.global_batch"}
    if "microbatches" in legal:
        count = refused.nearest["microbatches"]
        legal["microbatches"] = f"{count * unit // plan.splits}, which is {count} microbatches of each replica"
    words = "; ".join(f"{fields.get(name, name)}: {value}" for name, value in legal.items())
    words += "".join(f"; or {fields.get(name, name)}: {value}" for name, value in refused.other.items())
    return f"nearest legal: {words}" if words else refused.hint


def _scheduled(scenario: Scenario) -> Found:
    plan, module, shape = scenario.plan, scenario.schedule, schedule_shape(scenario)
    if plan.chunks not in (1, shape.chunks):
        runs = f"{catalog.called(plan.schedule)} runs {shape.chunks} chunk{'s' * (shape.chunks > 1)} per rank"
        yield "plan.chunks", f"{runs}, not {plan.chunks}", f"chunks: {shape.chunks}, or the schedule interleaved"
    else:
        yield from _laid_out(scenario, shape.stages)
    if plan.full_sharding.gathers and hasattr(module, "placements"):
        message = f"{catalog.called(plan.schedule)} keeps two copies of every stage, whose gathers would wait for each other"
        yield "plan.sharding", message, "zero1, or a schedule of one direction"
    if plan.cp > 1 and not plan.cp_balance and getattr(module, "PAIRS", False):
        message = f"ranks with unequal shares would take the turns of the pairs of {catalog.called(plan.schedule)} differently"
        yield "plan.cp_balance", message, "leave it out, or a schedule without pairs"
    for option, (default, example) in OPTIONS.items():
        if getattr(plan, option) != default and option not in options_used(scenario):
            yield (
                f"plan.{option}",
                f"{catalog.called(plan.schedule)} has no use for it",
                f"leave it out, or a schedule such as {example}",
            )
    try:
        if isinstance(module, user_code.Schedule):
            lay_out(module, shape)
        elif hasattr(module, "refuse"):
            module.refuse(shape)
    except OutsideDomain as error:
        yield "plan.schedule", error.reason, _in_fields(scenario, error)
    except UserError as error:
        yield from (("plan.schedule", fault.message, fault.hint) for fault in error.faults)


def _laid_out(scenario: Scenario, stages: int) -> Found:
    """Faults of the layers of the stages."""
    plan = scenario.plan
    try:
        counts = stage_layers(plan, scenario.model, scenario.job.sequence_length, stages)
    except UserError as error:
        field = "plan.layout" if plan.layout != EVEN else "plan.chunks" if plan.chunks > 1 else "plan.pp"
        yield field, error.faults[0].message, error.hint
    else:
        yield from faults_of_units(plan.full_sharding, max(counts))
        yield from faults_of_recomputed_layers(plan.recomputation, max(counts))
        yield from faults_of_offloaded_layers(plan.offloading, max(counts))
