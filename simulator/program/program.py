"""Program: bodies of operations, and the order in which every pipeline rank runs the bodies.

A body is like a function, and a step is a call of a body: the step names the values for which the first op of the body waits and
the results of the body, by *keys* such as `("activation", 3, 7)`. Steps with equal work share a body, so that a program of a
hundred thousand operations is a dozen bodies and a few thousand steps.

Operations name streams, communicators and other operations, never ranks or hardware. Order in a body means data flow: an op waits
for the previous op, unless `after` names other ops. A `detached` op is outside this chain: later ops do not wait for a detached
op unless they name the op. Passes find the ops of other passes by fields: the operator of an op (`operator`), its part of a
training step and its purpose. Names are for readers and for references; no pass parses a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, Self

from ..errors import InvariantBroken
from ..frozen import Plain, replace
from ..kernels import DIMENSIONS, Gemm, Kernel, Part, Rowwise, Split
from .holdings import Buffer

COMPUTE = "compute"
"""The stream of a rank's own kernels. Communication runs on a stream per axis, transfers on one per edge and kind."""
HOST = "host"
"""The stream of the thread that launches the operations of a rank, and the axis of time spent waiting for launches."""
OFFLOAD = "offload"
"""The axis of copies to and from the memory of the host, and of updates by the host: each kind has a stream of its own."""
DEEPEP = "deepep"
"""The library of exchanges of experts that forwards tokens within nodes."""
COPY_OUT, COPY_IN, UPDATE_ON_HOST = "copy_out", "copy_in", "update_on_host"
PAGEABLE_OUT, PAGEABLE_IN = "pageable_copy_out", "pageable_copy_in"
"""Kinds of collectives of the axis `OFFLOAD`, each of a single rank. Pageable memory is not locked: a core copies it, piece by
piece, to or from a buffer of the driver."""


Matrix = tuple[tuple[int, ...], ...]


class Purpose(Enum):
    """The reason why a pass added an op to the program."""

    REDUCE = "reduce"
    """The sum of activations, or of their gradients, over a tensor-parallel group; REDUCE_LOSS is for terms of the loss."""
    REDUCE_LOSS = "reduce loss"
    GATHER = "gather"
    """The gather of activations, or of their gradients, of all tokens; REGATHER gathers an input again for weight gradients."""
    REGATHER = "regather"
    GATHER_RESULT = "gather result"
    """The gather of all channels of a result that ranks need whole, and of the gradient of that result."""
    COUNT_ROWS = "count rows"
    """The exchange of numbers of rows that ranks send to experts."""
    DISPATCH = "dispatch"
    """The way of tokens, or of gradients, to the ranks of their experts; COMBINE is the way back."""
    COMBINE = "combine"
    SORT = "sort"
    """The order of tokens by the experts of a rank, or back."""
    CAST = "cast"
    """The cast of an operand of a GEMM to a narrow format; CAST_WEIGHTS casts its weights, CAST_CACHED_WEIGHTS once per step."""
    CAST_WEIGHTS = "cast weights"
    CAST_CACHED_WEIGHTS = "cast cached weights"
    REDUCE_SCALES = "reduce scales"
    """The maximum over ranks of the largest values of tensors, from which narrow formats take their scales."""
    RECOMPUTE = "recompute"
    """The repetition of a forward op, whatever the purpose of that op, in the backward pass."""
    ACCUMULATE = "accumulate"
    """The addition of a weight gradient to the gradients of earlier microbatches."""
    REDUCE_GRADIENTS = "reduce gradients"
    REDUCE_TIED_TABLE = "reduce tied table"
    """The reduction of the gradient of a table that the first and the last stage share."""
    CLIP = "clip"
    """The reading of gradients for their norm, or their scaling."""
    NORM = "norm"
    UPDATE = "update"
    GATHER_PARAMETERS = "gather parameters"
    EXCHANGE = "exchange"
    """The passing of queries, keys, values, results or their gradients between ranks that share sequences, or of what ranks that
    share the vocabulary need of each other's stages."""
    MERGE = "merge"
    """The addition of partial results, or of partial gradients, that arrive in steps."""
    OFFLOAD = "offload"
    """The copy of activations, gradients or parameters to the memory of the host, or back."""
    COPY = "copy"
    """The copy of gathered parameters from the buffer of a gather, or of gradients into the buffer of a reduction."""


@dataclass(frozen=True, kw_only=True)
class Op(Plain):
    """Common fields of operations: a name that is unique in the body, the occupied streams, the ops to wait for, and others."""

    name: str
    streams: tuple[str, ...]
    after: tuple[str, ...] | None = None
    """Names of earlier ops of the same body to wait for; None for the last op of the chain so far."""
    detached: bool = False
    layer: int = -1
    """The layer of the op, counted within its stage; -1 for an op outside layers."""
    purpose: Purpose | None = None
    """None for an operator of the model itself, and for transfers between stages."""
    part: Part = Part.FORWARD
    """The part of a training step to which the op belongs; an op added for an operator has the part of the operator."""
    unit: tuple[int, str] | None = None
    """The unit of sharded state of an op in a layer: its first layer and its name; None where the unit is the layer."""
    operator: str = ""
    """The name of the forward op of the operator to which the op belongs; "" for an op without an operator."""
    held_bytes: int = 0
    """Memory that the op takes at its start."""
    freed_bytes: int = 0
    """Memory that the op gives back at its end."""
    working_bytes: int = 0
    """Memory that the op takes only while it runs."""
    kept_bytes: int = 0
    """Memory that the result of the op takes throughout a training step, however often the op runs."""
    buffers: tuple[Buffer, ...] = ()
    """The part of `held_bytes` and `freed_bytes` that is not activations."""

    def holding(self, *buffers: Buffer) -> Self:
        """The op that takes and frees these buffers too."""
        held_bytes = self.held_bytes + sum(buffer.held_bytes for buffer in buffers)
        freed_bytes = self.freed_bytes + sum(buffer.freed_bytes for buffer in buffers)
        return replace(self, held_bytes=held_bytes, freed_bytes=freed_bytes, buffers=(*self.buffers, *buffers))


@dataclass(frozen=True, kw_only=True)
class Compute(Op):
    """A kernel on the rank's own GPU."""

    kernel: Kernel
    split: Split = Split.SEQUENCE
    parameters: int = 0
    """Number of parameters of the op; only forward ops count parameters."""
    whole_parameters: int = 0
    """The part of `parameters` that is never divided within a tensor-parallel group."""
    expert: bool = False
    """Whether the op belongs to the experts of a layer."""
    frozen: bool = False
    """Whether the parameters of the op do not learn."""
    adapter: str = ""
    """For an op of an adapter: "in" for its first matrix, "out" for its second; `split` is that of the adapted layer."""
    matrices: tuple[int, ...] = ()
    """For a GEMM of several matrices: the outputs of each, before any splitting."""
    adds_gradient: bool = False
    """Whether the op adds to the gradient of a parameter: weight gradients, and backward kernels of norms, which make both."""
    rows_of_variants: tuple[int, ...] = ()
    """Rows of each expert on the ranks of every variant of the program, where they differ; `kernel` has the most of them."""
    listed: bool = False
    """Whether the plan lists the operator of the op among those whose results the backward pass computes again."""

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel on the ranks of every variant; one for all where `rows_of_variants` is empty."""
        most = max(self.rows_of_variants, default=0)
        return tuple(self._with_rows(rows, most) for rows in self.rows_of_variants) or (self.kernel,)

    def flop_of(self, variant: int) -> int:
        """Flop by the `full` convention on ranks of a variant: in proportion to their rows."""
        flop, rows = self.kernel.model_flop, self.rows_of_variants
        return flop // max(rows) * rows[variant] if rows else flop

    def _with_rows(self, rows: int, most: int) -> Kernel:
        kernel = self.kernel
        if isinstance(kernel, Gemm):
            tokens = DIMENSIONS[kernel.part][0]
            m, n, k = (rows if dim == tokens else getattr(kernel, dim) for dim in "mnk")
            return replace(kernel, m=m, n=n, k=k)
        if isinstance(kernel, Rowwise) and kernel.rows % most == 0:
            return replace(kernel, rows=kernel.rows // most * rows)
        raise InvariantBroken(f"{self.name}: a kernel of {kernel.shape} does not follow the rows of experts")

    @property
    def is_matrix(self) -> bool:
        """Whether the parameters of the op are matrices inside a layer."""
        return self.layer >= 0 and isinstance(self.kernel, Gemm) and self.parameters > 0


@dataclass(frozen=True, kw_only=True)
class Collective(Op):
    """A collective over the group that `communicator` names. The payload of a gather or a scatter is the whole tensor."""

    communicator: str
    kind: str
    payload_bytes: int
    matrix_bytes: Matrix = ()
    """For an uneven all-to-all: the bytes from each member to each other member, in the order of the group."""


def collective_for(op: Op, group: Communicator, purpose: Purpose, kind: str, payload_bytes: int, word: str = "") -> Collective:
    """A collective of a group for an operation, on the stream of the group. Its name is that of the operation and a word, which
    is its purpose if left out.
    """
    return Collective(
        name=f"{op.name}.{word or purpose.value}",
        streams=(group.name,),
        layer=op.layer,
        purpose=purpose,
        part=op.part,
        operator=op.operator,
        communicator=group.name,
        kind=kind,
        payload_bytes=payload_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class Transfer(Op):
    """One end of a point-to-point transfer: `sends` is true at the source and false at the target."""

    communicator: str
    payload_bytes: int
    sends: bool


@dataclass(frozen=True, kw_only=True)
class Wait(Op):
    """A point that all streams of the op pass together, in zero time."""


AnyOp = Compute | Collective | Transfer | Wait

Key = tuple[str | int, ...]
"""The name of a value that passes from step to step: `("activation", stage, microbatch)` is the input of the stage."""

WAIT = "wait"
"""Phase of a step in which a rank waits for transfers."""
ACTIVATION, GRADIENT, PARAMETERS = "activation", "gradient", "parameters"
"""First elements of keys that cross ranks or training steps: the input of a stage, the gradient of its output, a bucket of its
weights. A step that waits for parameters waits for the parameters of the previous training step."""
LOSS = "loss"
"""First element of the keys of the last stage's results."""

END = "end"
"""Among the outputs of a step, the name for the last op of the body's chain, whose end makes the result available."""
LAST = "last"
"""Among the outputs of a step, the name for the last op on the compute stream, whose end completes the body on the rank."""


EXPERTS = "experts"
Bucket = tuple[int, str]
"""Parameters that are reduced, and gathered, together: first layer within the stage, or -1; "layer", or "attention" or "mlp" as
units of sharded state of their own; "experts", "embedding", "head"."""


def bucket_of(op: AnyOp) -> Bucket:
    """The bucket of the parameters of an operator."""
    if op.layer >= 0:
        layer, name = op.unit or (op.layer, "layer")
        return layer, EXPERTS if isinstance(op, Compute) and op.expert else name
    return op.layer, "embedding" if isinstance(op, Compute) and op.split is Split.LOOKUP else "head"


@dataclass(frozen=True)
class Body:
    """A sequence of operations."""

    ops: tuple[AnyOp, ...]
    turns: tuple[int, ...] = ()
    """In a pair, the turn of each operation: lower turns of both bodies come first, on every stream. Empty where the operations
    of both bodies alternate evenly."""

    @cached_property
    def parameters_by_bucket(self) -> tuple[Mapping[Bucket, int], Mapping[Bucket, int]]:
        """Number of parameters of each bucket: those that learn, and all."""
        learning, all_of_them = dict[Bucket, int](), dict[Bucket, int]()
        for op in self.ops:
            if isinstance(op, Compute) and op.parameters:
                for of in (all_of_them,) if op.frozen else (learning, all_of_them):
                    of[bucket_of(op)] = of.get(bucket_of(op), 0) + op.parameters
        return learning, all_of_them

    @cached_property
    def calls(self) -> tuple[tuple[str, type[Op]], ...]:
        """The communicators that it uses, each with `Collective` or `Transfer`, in the order of their first uses."""
        return tuple(dict.fromkeys((op.communicator, type(op)) for op in self.ops if isinstance(op, (Collective, Transfer))))


class Step(NamedTuple):
    """One call of a body: phase, stage and microbatch, the keys to wait for, and the keys of the results."""

    body: str
    phase: str
    stage: int = -1
    microbatch: int = -1
    after: tuple[Key, ...] = ()
    """The keys for which the first op of the body waits."""
    outputs: tuple[tuple[str, Key], ...] = ()
    """(name of an op, or END or LAST; the key of its result)."""
    iteration: int = 0
    """The training step of the call."""
    pair: int = -1
    """Steps of a rank with the same number (not -1) run together: their operations take turns on every stream."""
    waits: tuple[tuple[str, Key], ...] = ()
    """(name of an op; a key for which the op waits, besides the ops of the body)."""

    def in_iteration(self, iteration: int) -> Step:
        """The same call in a training step; there are many, and `_replace` takes several times as long."""
        return tuple.__new__(Step, (*self[:6], iteration, *self[7:]))


@dataclass(frozen=True, slots=True)
class Communicator:
    """A family of groups of ranks: one group for each combination of coordinates on the axes along which no group extends.

    `axes` are the mesh axes along which a group extends. With `pipeline` the group has only these pipeline coordinates, in
    this order; the group of a transfer is its source and its target. With `size` the ranks along the axes form several groups of
    that many ranks, `stride` places apart.
    """

    name: str
    axis: str
    """The axis under which the time of the communicator is reported: tp, dp, pp ..."""
    axes: tuple[str, ...]
    pipeline: tuple[int, ...] | None = None
    size: int | None = None
    stride: int = 1
    library: str = ""
    """The library that carries out its collectives, if it is not the usual one."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The `number`-th slice of the model in pipeline order. Where microbatches take two directions, each stage exists twice.

    A `share` is a stage of one rank's rows of the embedding, or of the head; the stages of layers then hold the rest of both.
    """

    number: int
    rank: int
    chunk: int
    first_layer: int
    layers: int
    embedding: bool
    head: bool
    share: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """Ranks with equal steps: all ranks of a pipeline coordinate, or only the ranks at certain coordinates of other axes."""

    pipeline: int
    coordinates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Mesh axis -> the coordinates along the axis; an axis that is left out has all coordinates."""


@dataclass(frozen=True, slots=True)
class Program:
    """The bodies, steps and communicators of the ranks of every role in a training step."""

    stages: tuple[Stage, ...]
    """Instances of stages, one direction after the other; the `stage` of a step is an index of this tuple."""
    bodies: Mapping[str, Body]
    orders: tuple[tuple[Step, ...], ...]
    """Role -> its steps."""
    communicators: Mapping[str, Communicator]
    divided_roles: tuple[Role, ...] = ()
    """The role of each order; empty where every pipeline coordinate is a role, until a pass divides the roles."""
    variants: tuple[tuple[int, ...], ...] = ()
    """Coordinates along ep of the ranks that run each variant: the same operations, some of them with other numbers of rows
    (`Compute.rows_of_variants`). Empty where all ranks of a role are alike."""

    def __repr__(self) -> str:
        steps = sum(map(len, self.orders))
        return (
            f"Program({self.ranks:,} pipeline ranks, {len(self.stages):,} stages, {steps:,} calls of {len(self.bodies):,} bodies)"
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The role of each order."""
        return self.divided_roles or tuple(map(Role, range(len(self.orders))))

    @property
    def ranks(self) -> int:
        """Number of pipeline coordinates."""
        return 1 + max((role.pipeline for role in self.roles), default=-1)

    def orders_of(self, pipeline: int) -> tuple[tuple[Step, ...], ...]:
        """The steps of every role of a pipeline coordinate."""
        return tuple(order for role, order in zip(self.roles, self.orders, strict=True) if role.pipeline == pipeline)

    def with_bodies(self, change: Callable[[Body], Iterable[AnyOp]]) -> Program:
        """The program with every body replaced by the operations that `change` makes of the body."""
        return replace(self, bodies={name: Body(tuple(change(body))) for name, body in self.bodies.items()})

    def with_communicators(self, *new: Communicator) -> Program:
        return replace(self, communicators={**self.communicators, **{c.name: c for c in new}})


def first_forward(steps: Iterable[Step]) -> dict[int, int]:
    """The position of the first forward step of each stage among the steps of a rank, in ascending order."""
    first: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.phase == "F":
            first.setdefault(step.stage, i)
    return first
