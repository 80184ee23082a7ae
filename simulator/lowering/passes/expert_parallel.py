"""Expert parallelism: the ranks of a group hold different experts of a layer, and exchange tokens by all-to-alls.

Each token is copied to the experts that the router chose for it. A dispatch sends the copies to the ranks of their experts and a
combine sends the results back; the backward pass does the same with gradients. Tensor-parallel ranks of the experts
gather the dispatched rows of their group, and reduce-scatter their partial sums before the combine. Ranks first tell each other
how many rows they send, unless a capacity fixes the number; a rank with several experts sorts the rows that arrive, and sorts
them back.

DeepEP sends a token once to each node that has experts for it, between GPUs at the same place of their nodes, and within the
node once to each GPU that has experts for it. Both transfers overlap, since a node forwards tokens while others arrive.
Where GEMMs run in a narrow format, DeepSeek's software dispatches rows in that format, and combines in the wide one. Megatron
Core does both in 16 bits: fused_a2a.py (02ad939b) passes DeepEP one tensor of 16 bits, without scales.

References: Lepikhin et al. (GShard), arXiv 2006.16668; MoEAlltoAllTokenDispatcher and `get_capacity` of Megatron-LM (snapshot
d98e8a6), whose order of collectives this is; deepseek-ai/DeepEP; DeepSeek-V3, arXiv 2412.19437, sections 3.2.2 and 3.3.

The degrees belong to a mesh of their own (plan/mesh.py). Gradients of experts are reduced over its axis `edp`, see
data_parallel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import ceil, comb

import numpy as np

from ...frozen import replace
from ...kernels import DIMENSIONS, NARROW_BYTES, Gemm, Kernel, Part, Rowwise, Split
from ...plan.plan import Plan
from ...program.operations import DEEPEP, AnyOp, Collective, Communicator, Compute, Matrix, Purpose, collective_for
from ...program.program import Body, Program
from ...workload.job import Job
from ...workload.model import Model
from ..routing import Load, Loads, loads
from .tensor_parallel import HELD_BY_CHANNELS

EP = Communicator("ep", "ep", ("ep",))
ETP = Communicator("etp", "tp", ("etp",))
INSIDE, ACROSS = "ep inside", "ep across"
"""DeepEP's two communicators: the ranks of a group on one node, and the ranks at the same place of all nodes."""
GROUP = Communicator("experts", "ep", ("etp", "ep"))
"""All ranks that hold shares of the same experts, or exchange tokens with such ranks."""
COUNT_BYTES = 8
EXCHANGES = (Purpose.DISPATCH, Purpose.COMBINE)
DIVIDED = (Split.COLUMN, Split.INNER, Split.ROW)
"""Operators of experts that tensor-parallel ranks divide."""


@dataclass(frozen=True, slots=True)
class ExpertParallel:
    """The values of model, plan and job that the pass needs."""

    ep: int
    etp: int
    experts: int
    tokens: int
    """Tokens of a microbatch on a rank."""
    per_token: int
    """Experts of a token."""
    capacity: float | None
    """Capacity factor: rows of an expert over its even share of the copies; None for as many rows as copies."""
    hidden: int
    element_bytes: int
    dispatched_bytes: float
    """Bytes of an element of a dispatch."""
    node: int = 0
    """Ranks of a group on one node, for DeepEP; 0 for plain all-to-alls."""
    nodes_per_token: int = 0
    """Number of nodes from which the experts of a token are chosen; 0 for all."""
    late_weights: bool = False
    """Whether weight gradients of experts are placed after the exchange that returns input gradients, and run beside it."""
    loads: Loads | None = None
    """The rows of all ranks of a group in every layer; None for an even load."""
    load: Load | None = None
    """The load of the current layer."""
    matrices: Mapping[Purpose, Matrix] = field(default_factory=dict)
    """The bytes that every rank has for every other rank, in the exchanges of that layer; empty for an even load."""

    @classmethod
    def of(cls, model: Model, plan: Plan, job: Job, tokens: int, *, narrow: bool) -> ExpertParallel:
        """The values for `tokens` tokens of a microbatch on a rank. `narrow`: DeepEP dispatches the narrow format."""
        moe, etp, width = plan.moe, plan.tensor_parallel_of_experts, job.element_bytes
        capacity = None if moe.capacity == "dropless" else moe.capacity
        chosen, late = (model.experts, tokens, model.experts_per_token), plan.overlap.weight_gradients
        if moe.dispatcher == "alltoall":
            uneven = loads(model, plan, tokens)
            return cls(plan.ep, etp, *chosen, capacity, model.hidden, width, width, late_weights=late, loads=uneven)
        dispatched = NARROW_BYTES.get(job.dtype, width) if narrow else width
        nodes = moe.node or plan.ep, moe.nodes_per_token or 0
        return cls(plan.ep, etp, *chosen, capacity, model.hidden, width, dispatched, *nodes, late_weights=late)

    def of_layer(self, layer: int) -> ExpertParallel:
        """The values for a layer, by its number in the model."""
        if self.loads is None:
            return self
        load = self.loads.of_layer[layer]
        sent = (np.ceil(load.rows * (self.hidden * width)) for width in (self.dispatched_bytes, self.element_bytes))
        dispatch, back = (held.astype(np.int64) for held in sent)
        held = {Purpose.DISPATCH: dispatch, Purpose.COMBINE: back.T}
        matrices = {purpose: tuple(map(tuple, matrix.tolist())) for purpose, matrix in held.items()}
        return replace(self, load=load, matrices=matrices)

    @property
    def copies(self) -> int:
        """Copies of tokens on a rank, one for each expert of each token."""
        return self.tokens * self.per_token

    @property
    def sent(self) -> int:
        """Rows that a rank sends in a dispatch, its own included."""
        return self.copies if self.capacity is None else self.experts * ceil(self.capacity * self.copies / self.experts)

    @property
    def rows(self) -> int:
        """Mean number of rows of an expert on the most loaded rank."""
        if self.load:
            return self._rows_of(self.load.most)
        return -(-self.etp * self.ep * self.sent // self.experts)

    def _rows_of(self, received: int) -> int:
        return -(-received * self.ep // self.experts)

    @property
    def rows_of_variants(self) -> tuple[int, ...]:
        """Rows of each expert on the ranks of every variant; empty if all ranks have equally many."""
        found = tuple(map(self._rows_of, self.load.received)) if self.load else ()
        return found if len(set(found)) > 1 else ()

    @property
    def received(self) -> int:
        """Rows of all experts of a rank."""
        return self.rows * (self.experts // self.ep)

    def bytes_of(self, rows: int | Fraction, purpose: Purpose) -> int:
        """Bytes of rows on their way to experts, or back."""
        return ceil(rows * self.hidden * (self.dispatched_bytes if purpose is Purpose.DISPATCH else self.element_bytes))

    @property
    def ways(self) -> dict[Communicator, Fraction | int]:
        """The communicators of an exchange, with the rows that a rank sends over each; none where no token leaves its rank."""
        if not self.node:
            return {EP: self.sent} if self.ep > 1 else {}
        nodes, reached = self.ep // self.node, self.nodes_per_token or self.ep // self.node
        found: dict[Communicator, Fraction | int] = {}
        if self.node > 1:
            ranks = touched(reached * self.node, self.experts // self.ep, self.per_token)
            found[Communicator(INSIDE, "ep", ("ep",), size=self.node, library=DEEPEP)] = ranks * self.tokens
        if nodes > 1:
            rows = touched(reached, self.experts // nodes, self.per_token) * self.tokens
            found[Communicator(ACROSS, "ep", ("ep",), size=nodes, stride=self.node, library=DEEPEP)] = rows
        return found


def touched(places: int, experts: int, chosen: int) -> Fraction:
    """Expected number of places, with `experts` experts each, that hold at least one of `chosen` experts drawn at random."""
    return places * (1 - Fraction(comb((places - 1) * experts, chosen), comb(places * experts, chosen)))


def expert_parallel(program: Program, plan: ExpertParallel) -> Program:
    """Divides the experts of every layer among the ranks, and adds the exchanges of tokens."""
    used = [*plan.ways, *(group for group, degree in ((ETP, plan.etp), (GROUP, plan.ep * plan.etp)) if degree > 1)]

    of_layer = cache(plan.of_layer)

    @cache
    def share(kernel: Kernel, split: Split, rows: int) -> Kernel:
        """The share of a kernel on one rank, cached because layers are alike."""
        if isinstance(kernel, Gemm):
            m, n, k = (rows if dim == DIMENSIONS[kernel.part][0] else getattr(kernel, dim) for dim in "mnk")
            kernel = replace(kernel, m=m, n=n, k=k, batch=kernel.batch // plan.ep)
        elif isinstance(kernel, Rowwise):
            kernel = replace(kernel, rows=rows * (plan.experts // plan.ep))
        return kernel.split(split, plan.etp) if plan.etp > 1 and split in DIVIDED else kernel

    first = {step.body: program.stages[step.stage].first_layer for order in program.orders for step in order}

    def on_one_rank(body: Body, first: int) -> Body:
        return Body(tuple(_divided(body, lambda layer: of_layer(first + layer), share)))

    bodies = {name: on_one_rank(body, first.get(name, 0)) for name, body in program.bodies.items()}
    program = replace(program, bodies=bodies).with_communicators(*used)
    if plan.loads and len(plan.loads.alike) > 1:
        program = replace(program, variants=plan.loads.alike)
    return program.with_bodies(_with_late_weight_gradients) if plan.late_weights else program


def _divided(
    body: Body, of_layer: Callable[[int], ExpertParallel], share: Callable[[Kernel, Split, int], Kernel]
) -> Iterator[AnyOp]:
    """A body with the share of a rank, and with exchanges to and from the experts where tokens or gradients pass through them."""
    experts = [op for op in body.ops if isinstance(op, Compute) and op.expert]
    passing = {op.layer for op in experts if op.part is not Part.WEIGHT_GRADIENT}
    first = {op.layer: op.name for op in reversed(experts)}
    last = {op.layer: op.name for op in experts}
    together: tuple[str, ...] = ()
    for op in body.ops:
        new: list[AnyOp] = [op]
        if isinstance(op, Compute) and op.expert:
            plan, exchanges = of_layer(op.layer), op.layer in passing
            before = _to_experts(op, plan) if exchanges and op.name == first[op.layer] else ()
            behind = _from_experts(op, plan) if exchanges and op.name == last[op.layer] else ()
            new = [*before, _shared(op, plan, share(op.kernel, op.split, plan.rows)), *behind]
        for each in new:
            waits = together and each.purpose not in EXCHANGES and not each.detached
            yield replace(each, after=together) if waits else each
            together = () if waits else together
            together += (each.name,) if each.purpose in EXCHANGES and plan.node else ()


def _with_late_weight_gradients(body: Body) -> Iterator[AnyOp]:
    """Moves the weight gradients of experts after the exchange that follows them, so that they run beside it."""
    back = {op.layer: op.name for op in body.ops if op.purpose is Purpose.COMBINE}

    def is_late(op: AnyOp) -> bool:
        return isinstance(op, Compute) and op.expert and op.part is Part.WEIGHT_GRADIENT and op.layer in back

    late = [op for op in body.ops if is_late(op)]
    for op in body.ops:
        if not is_late(op):
            yield op
        if op.name == back.get(op.layer):
            yield from (replace(each, detached=True, after=()) for each in late if each.layer == op.layer)


def _shared(op: Compute, plan: ExpertParallel, kernel: Kernel) -> Compute:
    """An operator of experts with the parameters and the kept bytes of one rank."""
    whole_rows = op.kernel.m * op.kernel.batch if isinstance(op.kernel, Gemm) else getattr(op.kernel, "rows", 1)
    channels = plan.etp if op.split in HELD_BY_CHANNELS else 1
    whole, parameters = op.whole_parameters // plan.ep, op.parameters // plan.ep
    return replace(
        op,
        kernel=kernel,
        rows_of_variants=plan.rows_of_variants,
        whole_parameters=whole,
        parameters=whole + -(-(parameters - whole) // plan.etp) if op.split in DIVIDED else parameters,
        held_bytes=op.held_bytes * plan.received // (whole_rows * channels) if op.held_bytes else 0,
    )


def _to_experts(op: Compute, plan: ExpertParallel) -> Iterator[AnyOp]:
    """The operations before the first operator of experts: counts, dispatch, gather, sort."""
    if op.part is Part.FORWARD and plan.capacity is None and plan.ep * plan.etp > 1:
        counts_bytes = plan.ep * plan.etp * plan.experts * COUNT_BYTES
        yield _collective(op, Purpose.COUNT_ROWS, GROUP, "all_gather", counts_bytes)
    yield from _exchange(op, plan, Purpose.DISPATCH)
    if plan.etp > 1:
        yield _collective(op, Purpose.DISPATCH, ETP, "all_gather", plan.bytes_of(plan.received, Purpose.DISPATCH))
    yield from _sort(op, plan, "sort")


def _from_experts(op: Compute, plan: ExpertParallel) -> Iterator[AnyOp]:
    """The operations after the last operator of experts: sort, reduce-scatter, combine."""
    yield from _sort(op, plan, "sort back")
    if plan.etp > 1:
        yield _collective(op, Purpose.COMBINE, ETP, "reduce_scatter", plan.bytes_of(plan.received, Purpose.COMBINE))
    yield from _exchange(op, plan, Purpose.COMBINE)


def _exchange(op: Compute, plan: ExpertParallel, purpose: Purpose) -> Iterator[Collective]:
    """The all-to-alls of a dispatch or a combine, in parallel: only the last is in the chain of the body."""
    ways = plan.ways.items()
    for number, (group, rows) in enumerate(ways, 1):
        exchange = _collective(op, purpose, group, "alltoall", plan.bytes_of(rows, purpose))
        yield replace(exchange, matrix_bytes=plan.matrices.get(purpose, ()), detached=number < len(ways))


def _sort(op: Compute, plan: ExpertParallel, name: str) -> Iterator[Compute]:
    """The kernel that sorts the rows of several ranks by the experts of a rank; none for one rank or one expert.

    With DeepEP only arriving rows are permuted, which the permutation of the block already counts.
    """
    if plan.ep * plan.etp == 1 or plan.ep == plan.experts or plan.node:
        return
    kernel = Rowwise("permute", plan.received, plan.hidden, plan.element_bytes, 2 * plan.element_bytes)
    yield Compute(
        name=f"{op.name}.{name}",
        streams=op.streams,
        layer=op.layer,
        purpose=Purpose.SORT,
        part=_passing(op),
        operator=f"{op.operator} {name}",
        kernel=kernel,
        rows_of_variants=plan.rows_of_variants,
        expert=True,
    )


def _collective(op: Compute, purpose: Purpose, group: Communicator, kind: str, payload_bytes: int) -> Collective:
    """A collective of the experts of a layer."""
    found = collective_for(op, group, purpose, kind, payload_bytes, f"{purpose.value} over {group.name}")
    return replace(found, part=_passing(op), operator=f"{op.operator} {purpose.value}")


def _passing(op: Compute) -> Part:
    """The part of the step to which an exchange beside an operator belongs: weight gradients exchange nothing."""
    return Part.FORWARD if op.part is Part.FORWARD else Part.INPUT_GRADIENT
