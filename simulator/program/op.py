"""Operations: the rows of a program. They name streams, communicators and each other, never ranks or hardware.

Order in a body means data flow: an op waits for the op before it, unless it says what it waits for (`after`). A
`detached` op stands beside that chain: later ops do not wait for it unless they name it.

Passes find each other's ops by fields: the forward op that an op belongs to (`twin`), its part of a training step and its
purpose. Names are for people and for references; no pass reads what one says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..kernels import Kernel, Part, Split

COMPUTE = "compute"
"""The stream of a rank's own kernels. Communication runs on a stream per axis, transfers on one per edge and kind."""
HOST = "host"
"""The stream of the thread that launches a rank's operations, and what waiting for it counts for."""


class Purpose(Enum):
    """What a pass put an op into the program for."""

    REDUCE = "reduce"
    """The sum of activations, or of their gradients, over a tensor-parallel group; AGREE is one over the whole vocabulary."""
    AGREE = "agree"
    GATHER = "gather"
    """The activations, or their gradients, of all tokens; REGATHER is of an input, once more for its weight gradient."""
    REGATHER = "regather"
    CAST = "cast"
    CAST_CACHED_WEIGHTS = "cast cached weights"
    ACCUMULATE = "accumulate"
    """A weight gradient added to those of earlier microbatches."""
    REDUCE_GRADIENTS = "reduce gradients"
    REDUCE_TIED_TABLE = "reduce tied table"
    """The gradient of a table that the first and the last stage share."""
    NORM = "norm"
    UPDATE = "update"
    GATHER_PARAMETERS = "gather parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What every operation has: a name that is unique in its body, the streams that it occupies, what it waits for."""

    name: str
    streams: tuple[str, ...]
    after: tuple[str, ...] | None = None
    """Names of earlier ops of the same body; None for the last op of its chain so far."""
    detached: bool = False
    layer: int = -1
    """The layer that it belongs to, counted within its stage; -1 for none."""
    purpose: Purpose | None = None
    """None for an operator of the model itself, and for what moves between stages."""
    part: Part = Part.FORWARD
    """The part of a training step that it belongs to; of what stands beside an operator, that of the operator."""
    twin: str = ""
    """The name of the forward op that it belongs to: a backward op, or what stands beside an operator; "" for a forward op."""
    held_bytes: int = 0
    """Memory that is taken when it starts."""
    freed_bytes: int = 0
    """Memory that is given back when it has ended."""

    @property
    def operator(self) -> str:
        """The name of the forward op of the operator that it belongs to."""
        return self.twin or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Op):
    """A kernel on the rank's own GPU."""

    kernel: Kernel
    split: Split = Split.SEQUENCE
    parameters: int = 0
    """Parameters that this op owns; only forward ops name them."""
    whole_parameters: int = 0
    """Of those, the ones that are never divided within a tensor-parallel group."""
    adds_gradient: bool = False
    """Whether it adds to the gradient of a parameter: weight gradients, and backward kernels of norms, which make both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Op):
    """A collective over the group that `communicator` names. The payload of a gather or a scatter is the whole tensor."""

    communicator: str
    kind: str
    payload_bytes: int
    matrix_bytes: tuple[tuple[int, ...], ...] = ()
    """Of an all-to-all that is not even: what each member has for each other one, in the order of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Op):
    """One end of a point-to-point transfer: `sends` at its source, not at its target."""

    communicator: str
    payload_bytes: int
    sends: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Op):
    """A point that all of its streams pass together. It takes no time."""


AnyOp = Compute | Collective | Transfer | Wait
