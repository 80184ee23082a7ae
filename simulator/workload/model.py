"""A decoder model: its shape, and what follows from the shape alone (parameters, flop per token)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

from .. import escape
from ..fields import documented
from ..units import show_count
from .architecture import Architecture
from .blocks import dense

ONE_TOKEN = {"batch": 1, "seq": 1, "element_bytes": 1}
"""Arguments of a block whose operators are counted by their parameters only."""


@documented
@dataclass(frozen=True)
class Model(Architecture):
    """Shape of a decoder-only transformer, and what it amounts to. Sizes are counts; nothing depends on how it is trained."""

    def __repr__(self) -> str:
        sizes = f"{self.layers} layers, hidden {self.hidden:,}, heads {self.heads}/{self.kv_heads}, vocab {self.vocab:,}"
        return f"Model({escape.terminal(self.name)}: {show_count(self.parameters)} parameters, {sizes})"

    @property
    def block(self) -> ModuleType:
        """The module of `workload/blocks/` that describes a layer of this model."""
        return dense

    @cached_property
    def layer_parameters(self) -> int:
        return sum(int(op.parameters) for op in self.block.layer(self, **ONE_TOKEN))

    @cached_property
    def embedding_parameters(self) -> int:
        """Token embedding, and the position embedding where positions are learned."""
        return sum(int(op.parameters) for op in self.block.embedding(self, **ONE_TOKEN))

    @cached_property
    def parameters(self) -> int:
        """Parameters of all layers and both ends; an output projection that is tied to the embedding counts once."""
        head = self.block.head(self, **ONE_TOKEN, owns_table=not self.tied_embeddings)
        return self.layers * self.layer_parameters + self.embedding_parameters + sum(int(op.parameters) for op in head)

    @cached_property
    def matmul_parameters(self) -> int:
        """Parameters that multiply activations, with the output projection: the N of 6N flop per token."""
        linear = sum(int(op.matmul_parameters) for op in self.block.layer(self, **ONE_TOKEN))
        return self.layers * linear + self.vocab * self.hidden

    def train_flop_per_token(self, seq: int, *, causal: bool) -> int:
        """Forward and backward flop of one token, nothing recomputed: 6N + 12Lhs, or half the attention if `causal`."""
        attention = 12 * self.layers * self.heads * self.head_dim * seq
        return 6 * self.matmul_parameters + (attention // 2 if causal else attention)
