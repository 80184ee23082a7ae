"""What is trained per step: the batch, its sequences, the number format."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels import NARROW_BYTES

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an activation or a weight in the dtypes that everything can run in."""
BESIDE_NARROW = "bf16"
"""What all else runs in where linear layers run in eight or four bits."""
DTYPES = (*ELEMENT_BYTES, *NARROW_BYTES)


@dataclass(frozen=True, slots=True)
class Job:
    """One training step: `global_batch` sequences of `sequence_length` tokens, `microbatch_size` sequences at a time."""

    sequence_length: int = 2048
    global_batch: int = 64
    microbatch_size: int = 1
    dtype: str = "bf16"
    """Of eight or four bits only the products of linear layers are; activations, weights and the rest stay in bf16."""

    @property
    def narrow(self) -> bool:
        """Whether linear layers run in a format of their own."""
        return self.dtype in NARROW_BYTES

    @property
    def activation_dtype(self) -> str:
        """The format of activations and weights."""
        return BESIDE_NARROW if self.narrow else self.dtype

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation or a weight."""
        return ELEMENT_BYTES[self.activation_dtype]

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence_length
