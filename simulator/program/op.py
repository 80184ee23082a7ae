"""Operations: the rows of a program. They name streams, communicators and each other, never ranks or hardware.

Order in a body means data flow: an op waits for the op before it, unless it says what it waits for (`after`). A
`detached` op stands beside that chain: later ops do not wait for it unless they name it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels import Kernel, Part, Split

COMPUTE = "compute"
"""The stream of a rank's own kernels. Communication runs on a stream per axis, transfers on one per edge and kind."""
HOST = "host"
"""The stream of the thread that launches a rank's operations, and what waiting for it counts for."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Op):
    """A kernel on the rank's own GPU."""

    kernel: Kernel
    part: Part = Part.FORWARD
    split: Split = Split.SEQUENCE
    parameters: int = 0
    """Parameters that this op owns; only forward ops name them."""
    whole_parameters: int = 0
    """Of those, the ones that are never divided within a tensor-parallel group."""
    saved_bytes: int = 0
    """Bytes kept until the backward pass of the same microbatch."""
    adds_gradient: bool = False
    """Whether it adds to the gradient of a parameter: weight gradients, and backward kernels of norms, which make both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Op):
    """A collective over the group that `communicator` names. The payload of a gather or a scatter is the whole tensor."""

    communicator: str
    kind: str
    payload_bytes: int


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
