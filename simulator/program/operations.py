"""Operations, of which bodies of a program are made: kernels, collectives, transfers and waits, and why passes add them.

They name streams, communicators and other operations, never ranks or hardware. Passes find the operations of other passes by
fields: the operator of an operation (`operator`), its part of a training step and its purpose. Names are for readers and for
references; no pass parses a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Self

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
"""Kinds of collectives of the axis `OFFLOAD`, each of a single rank. Pageable memory is not locked: a CPU core copies it, piece
by piece, to or from a buffer of the driver."""


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
    """The exchange of tokens, or of gradients, to the ranks of their experts; COMBINE is the exchange back."""
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
    ZERO = "zero"
    """The zeros that are written before the rows of a gradient are added up."""
    REDUCE_GRADIENTS = "reduce gradients"
    REDUCE_TIED_TABLE = "reduce tied table"
    """The reduction of the gradient of a table that the first and the last stage share."""
    CLIP = "clip"
    """The reading of gradients for their norm, or their scaling."""
    NORM = "norm"
    UPDATE = "update"
    GATHER_PARAMETERS = "gather parameters"
    EXCHANGE = "exchange"
    """The transfer of queries, keys, values, results or their gradients between ranks that share sequences, or of tensors between
    ranks that share the vocabulary."""
    MERGE = "merge"
    """The addition of partial results, or of partial gradients, that arrive in steps."""
    OFFLOAD = "offload"
    """The copy of activations, gradients or parameters to the memory of the host, or back."""
    COPY = "copy"
    """The copy of gathered parameters from the buffer of a gather, or of gradients into the buffer of a reduction."""


@dataclass(frozen=True, kw_only=True)
class Op(Plain):
    """Common fields of operations: a name that is unique in the body, the occupied streams, the ops to wait for, and more."""

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
    held_results: tuple[tuple[str, int], ...] = ()
    """The parts of `held_bytes` that another operator reads: for each, the operator, and its bytes. None once working sets are
    known."""
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
    """Whether the parameters of the op are frozen."""
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
    keeps_result: bool = False
    """For attention: whether `held_bytes` includes the result, because no other op keeps it unchanged."""
    input_kept: bool = False
    """For a GEMM that may keep its input in fewer bits: whether another op keeps the input unchanged."""
    input_shared: bool = False
    """For a GEMM of a linear layer: whether other ops read the same input, in the format of activations."""

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
