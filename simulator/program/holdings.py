"""Holdings: what the bytes in the memory of a GPU are.

Bytes that an operation of the model takes are activations. A pass that adds other tensors declares them with a `Buffer`:
`op.holding(Buffer(Holding.GATHERED, held_bytes=n))`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Holding(Enum):
    """A class of memory. Users see the values."""

    PARAMETERS = "parameters"
    GATHERED = "gathered parameters"
    """Parameters of other ranks, and the buffers in which they arrive."""
    GRADIENTS = "gradients"
    MASTER = "master copy"
    """Parameters in fp32, beside those in a format of fewer bits."""
    MOMENTS = "moments"
    """State of the optimizer that is kept from step to step."""
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    """Tensors that the head and the loss keep."""
    COMMUNICATION = "communication buffers"
    """Buffers of reductions, and tensors that came from other ranks and are not kept."""
    WORKSPACE = "working set"
    """Tensors that operations take only while they run."""
    CONTEXT = "context"
    NCCL = "NCCL"
    FRAGMENTATION = "fragmentation"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes other than activations that an operation takes at its start, and that it frees at its end."""

    kind: Holding
    held_bytes: int = 0
    freed_bytes: int = 0
