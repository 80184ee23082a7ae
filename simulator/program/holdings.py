"""Holdings: what the bytes in the memory of a GPU are.

What an operation of the model takes is activations. A pass that adds other tensors says so with a `Buffer`:
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
    """What the optimizer keeps from step to step."""
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    """What the head and the loss keep."""
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
