"""Whether a scenario makes sense before anything is simulated: degrees that divide, GPUs that exist, features that do.

Every fault names the field that a person would change. All are found in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, is_dataclass
from math import gcd, inf
from typing import Any

from ...binding.fidelity import Fidelity
from ...errors import Fault, OutsideDomain, UserError, shown
from ...hardware.cluster import Cluster
from ...plan.mesh import Mesh
from ...plan.plan import Overlap, Plan
from ...program.slot import Shape, as_taken, lay_out
from ...workload.framework import Framework, MemoryOverhead
from ...workload.job import DTYPES, ELEMENT_BYTES, Job
from ...workload.model import Model
from .. import catalog, outside
from ..documents.document import Document
from .scenario import Perturb, Scenario

MOST_LAYER_SLOTS = 400_000
"""Layers x microbatches of a replica: what one simulation takes in memory and in patience."""
LONGEST_MICROBATCH_S = 24 * 3600
"""Of a whole model on one GPU: within it every duration fits the clock."""

OPTIONS = {"group": (None, "interleaved"), "splits": (1, "seq-1f1b"), "memory_limit": (1.0, "zb-auto")}
"""Fields of a plan that only some schedules look at (those that name them in `OPTIONS`): default, and one that does."""

Found = Iterator[tuple[str, str, str]]
"""(dotted field, what is wrong, hint)."""


def data_parallel_degree(scenario: Scenario) -> int:
    """The plan's dp, or what is left of the GPUs."""
    plan = scenario.plan
    return plan.dp or max(1, scenario.cluster.gpus // (plan.tp * plan.pp * plan.cp))


def microbatches(scenario: Scenario) -> int:
    """Microbatches of one replica in one step."""
    return max(1, scenario.job.global_batch // (data_parallel_degree(scenario) * scenario.job.microbatch_size))


def schedule_shape(scenario: Scenario) -> Shape:
    """What the plan asks of its schedule, durations apart."""
    plan = scenario.plan
    shape = Shape(
        plan.pp, microbatches(scenario) * plan.splits, plan.chunks, plan.group, plan.splits, memory_limit=plan.memory_limit
    )
    return as_taken(catalog.module("schedules", plan.schedule), shape)


def mesh_of(scenario: Scenario) -> Mesh:
    plan = scenario.plan
    degrees = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "dp": data_parallel_degree(scenario), "pp": plan.pp}
    return Mesh.of(degrees, plan.rank_order)


def check(scenario: Scenario) -> None:
    """Raises `UserError` with every fault of the scenario, each with its place if it came from a file."""
    _well_formed(scenario)
    cheap: tuple[Callable[[Scenario], Found], ...] = (_degrees, _batch, _divisions, _order, _disturbed_ranks)
    dear: tuple[Callable[[Scenario], Found], ...] = (_cluster, _disturbed_links, _scheduled)
    found = [fault for law in cheap for fault in law(scenario)] or [fault for law in dear for fault in law(scenario)]
    if found:
        raise UserError(
            faults=[Fault(f"{field}: {message}", hint, _where(scenario, field, message)) for field, message, hint in found]
        )


def _where(scenario: Scenario, field: str, message: str) -> str:
    place = tuple(int(part) if part.isdecimal() else part for part in field.split("."))
    return Document({}, scenario.marks).where_of_several(place, message)


def _well_formed(scenario: Scenario) -> None:
    """Fields of the right type, each legal by itself: what a file's schema has found out already, and Python's has not."""
    from ..documents.checked import validated
    from .schema import SettingsSchema

    parts: list[tuple[str, Any, type[Any]]] = [
        ("model", scenario.model, Model),
        ("cluster", scenario.cluster, Cluster),
        ("plan", scenario.plan, Plan),
        ("plan.overlap", getattr(scenario.plan, "overlap", None), Overlap),
        ("job", scenario.job, Job),
        ("framework", scenario.framework, Framework),
        ("fidelity", scenario.fidelity, Fidelity),
        *((f"perturb.{i}", p, Perturb) for i, p in enumerate(scenario.perturb)),
    ]
    for name, value, kind in parts:
        if not isinstance(value, kind):
            make = name if kind in (Model, Cluster, Framework) else kind.__name__
            raise UserError(
                f"{name} is {shown(value)}, not an object of class {kind.__name__}", hint=f"sim.{make}(...) makes one"
            )
    schedule = scenario.plan.schedule
    data = {
        "plan": _plain(scenario.plan) | ({} if isinstance(schedule, str) else {"schedule": "1f1b"}),
        "job": _plain(scenario.job),
        "framework": _framework(scenario.framework),
        "fidelity": _plain(scenario.fidelity),
        "perturb": [_perturb(p) for p in scenario.perturb],
    }
    validated(SettingsSchema, Document(data, scenario.marks))
    if not isinstance(schedule, str) and not any(
        callable(getattr(schedule, name, None)) for name in ("order", "orders", "__call__")
    ):
        raise UserError(f"plan.schedule: {shown(schedule)} is no schedule", hint=outside.SCHEDULE)


def _plain(value: Any) -> dict[str, Any]:
    inner = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for name, v in inner.items()}


def _framework(framework: Framework) -> dict[str, Any]:
    data = _plain(framework)
    times = data["host"] if isinstance(data["host"], dict) else {}
    written: dict[str, Any] = {}
    if times:
        written["host"] = {name.removesuffix("_s"): f"{shown(time)} s" for name, time in times.items()}
    if isinstance(framework.memory, MemoryOverhead):
        taken = framework.memory
        written["memory"] = {
            "context": f"{taken.context_bytes} B",
            "nccl_buffer": f"{taken.nccl_buffer_bytes} B",
            "nccl_channels": taken.nccl_channels,
            "fragmentation": taken.fragmentation_fraction,
        }
    return {**data, **written}


def _perturb(p: Perturb) -> dict[str, Any]:
    times = {"from": f"{shown(p.from_s)} s", "until": None if p.until_s is None else f"{shown(p.until_s)} s"}
    return {"rank": p.rank, "speed": p.speed, "link": p.link, "capacity": p.capacity, **times}


def _degrees(scenario: Scenario) -> Found:
    plan, gpus, per_node = scenario.plan, scenario.cluster.gpus, scenario.cluster.gpus_per_node
    fixed = plan.tp * plan.pp * plan.cp
    asked = fixed * (plan.dp or 1)
    product = "tp x pp" + (" x cp" if plan.cp > 1 else "") + (" x dp" if plan.dp else "")
    exact = bool(plan.dp) and not asked % per_node
    nodes = asked // per_node if exact else fixed // gcd(fixed, per_node)
    by_nodes = f"nodes: {nodes}" if exact or not plan.dp else f"nodes: {nodes} without dp"
    by_dp = f"dp: {gpus // fixed}, or leave it out"
    if asked > gpus and plan.dp and not gpus % fixed:
        yield "plan", f"{product} = {asked} GPUs, but {scenario.cluster.name} has {gpus}", by_dp
    elif asked > gpus:
        hint = f"give the cluster {by_nodes}, or lower a degree"
        yield "plan", f"{product} = {asked} GPUs, but {scenario.cluster.name} has {gpus}", hint
    elif plan.dp and asked < gpus:
        hint = by_dp if not gpus % fixed else by_nodes
        yield "plan.dp", f"{product} = {asked} leaves {gpus - asked} of {gpus} GPUs idle", hint
    elif gpus % fixed:
        near = [n for n in range(fixed, 0, -1) if gpus % n == 0][:1] + [n for n in range(fixed, gpus + 1) if gpus % n == 0][:1]
        hint = f"a product of {' or '.join(map(str, near))}, or {by_nodes}"
        yield "plan", f"{gpus} GPUs do not divide by {product} = {fixed}", hint


def _batch(scenario: Scenario) -> Found:
    job, model, gpu = scenario.job, scenario.model, scenario.cluster.gpu
    dp = data_parallel_degree(scenario)
    near = " or ".join(map(str, _multiples(job.global_batch, dp * job.microbatch_size)))
    if job.global_batch % (dp * job.microbatch_size):
        message = f"{job.global_batch} does not divide by dp {dp} x microbatch_size {job.microbatch_size}"
        yield "job.global_batch", message, f"global_batch: {near}"
    if microbatches(scenario) * model.layers > MOST_LAYER_SLOTS:
        message = f"{microbatches(scenario)} microbatches of {model.layers} layers are more than one simulation takes"
        most = max(1, MOST_LAYER_SLOTS // model.layers)
        yield "job.global_batch", message, f"global_batch: {most * dp * job.microbatch_size}, or a larger microbatch_size"
    flop = model.train_flop_per_token(job.sequence_length, causal=False) * job.microbatch_size * job.sequence_length
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
        yield "job.dtype", f"{gpu.name} has no {job.dtype} products", f"it has {', '.join(legal)}"
    elif job.narrow and job.dtype not in scenario.framework.low_precision.formats:
        legal = [*ELEMENT_BYTES, *scenario.framework.low_precision.formats]
        yield "job.dtype", f"{scenario.framework.name} has no {job.dtype} products", f"it has {', '.join(legal)}"


def _multiples(value: int, unit: int) -> list[int]:
    """The multiples of `unit` on both sides of a value, of which the lower is not zero."""
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
    tokens = job.microbatch_size * job.sequence_length // plan.splits
    if job.sequence_length % plan.splits:
        near = " or ".join(map(str, _multiples(job.sequence_length, plan.splits)))
        yield "plan.splits", f"{job.sequence_length} tokens do not divide into {plan.splits} parts", f"sequence_length: {near}"
    elif plan.sequence_parallel and plan.tp == 1:
        hint = "use tp > 1, or leave it out"
        yield "plan.sequence_parallel", "there is no tensor-parallel group to divide the sequence in", hint
    elif plan.uses_sequence_parallel and tokens % plan.tp:
        near = " or ".join(map(str, _multiples(job.sequence_length, plan.tp * plan.splits)))
        message = f"{tokens} tokens of a microbatch do not divide by tp {plan.tp}, which sequence parallelism needs"
        yield "job.sequence_length", message, f"sequence_length: {near}, or plan.sequence_parallel: false"


def _order(scenario: Scenario) -> Found:
    try:
        mesh_of(scenario)
    except UserError as error:
        yield "plan.rank_order", error.faults[0].message, error.hint


def _cluster(scenario: Scenario) -> Found:
    """What only the shape of the cluster can say."""
    try:
        len(scenario.cluster.wiring.source)
    except UserError as error:
        yield "cluster.shape", error.faults[0].message, error.hint


def _disturbed_ranks(scenario: Scenario) -> Found:
    last = scenario.cluster.gpus - 1
    for i, p in enumerate(scenario.perturb):
        if p.rank is not None and p.rank > last:
            yield f"perturb.{i}.rank", f"there is no rank {shown(p.rank)} among {last + 1}", f"ranks are 0 to {last}"


def _disturbed_links(scenario: Scenario) -> Found:
    for i, p in enumerate(scenario.perturb):
        if p.link is not None and p.link.count(">") != 1:
            yield f"perturb.{i}.link", f"{shown(p.link)} is no link: it has two ends", 'write it like "node0/nic3>leaf3"'
        elif p.link is not None:
            try:
                scenario.cluster.link_named(p.link)
            except UserError as error:
                yield f"perturb.{i}.link", error.faults[0].message, error.hint


def _in_fields(scenario: Scenario, refused: OutsideDomain) -> str:
    """The nearest shape that a schedule serves, in fields of a scenario: there are no microbatches there, but a batch."""
    unit = data_parallel_degree(scenario) * scenario.job.microbatch_size
    fields = {"ranks": "plan.pp", "chunks": "plan.chunks", "group": "plan.group", "memory_limit": "plan.memory_limit"}
    told = []
    for name, value in refused.nearest.items():
        if name == "microbatches":
            batch = value * unit // scenario.plan.splits
            told.append(f"job.global_batch: {batch}, which is {value} microbatches of each replica")
        else:
            told.append(f"{fields.get(name, name)}: {value}")
    return "nearest legal: " + "; ".join(told) if told else refused.hint


def _scheduled(scenario: Scenario) -> Found:
    plan, schedule, shape = scenario.plan, catalog.module("schedules", scenario.plan.schedule), schedule_shape(scenario)
    name = catalog.called(plan.schedule)
    if plan.chunks not in (1, shape.chunks):
        runs = f"{name} runs {shape.chunks} chunk{'s' * (shape.chunks > 1)} per rank"
        yield "plan.chunks", f"{runs}, not {plan.chunks}", f"chunks: {shape.chunks}, or the schedule interleaved"
    elif scenario.model.layers < shape.stages:
        message = f"{scenario.model.layers} layers of {scenario.model.name} do not fill pp x chunks = {shape.stages} stages"
        yield "plan.chunks" if plan.chunks > 1 else "plan.pp", message, f"at most {scenario.model.layers} stages"
    used = OPTIONS if isinstance(schedule, outside.Schedule) else getattr(schedule, "OPTIONS", ())
    for option, (default, example) in OPTIONS.items():
        if getattr(plan, option) != default and option not in used:
            yield f"plan.{option}", f"{name} has no use for it", f"leave it out, or a schedule such as {example}"
    try:
        if isinstance(schedule, outside.Schedule):
            lay_out(schedule, shape)
        elif hasattr(schedule, "refuse"):
            schedule.refuse(shape)
    except OutsideDomain as error:
        yield "plan.schedule", error.reason, _in_fields(scenario, error)
    except UserError as error:
        yield from (("plan.schedule", fault.message, fault.hint) for fault in error.faults)
