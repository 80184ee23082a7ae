"""What is trained per step: the batch, its sequences, the number format."""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an activation or a weight in the dtypes that can be trained in."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training step: `global_batch` sequences of `sequence_length` tokens, `microbatch_size` sequences at a time."""

    sequence_length: int = 2048
    global_batch: int = 64
    microbatch_size: int = 1
    dtype: str = "bf16"

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence_length
