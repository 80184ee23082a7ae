"""Decoder model: shape, and the parameters and flop per token that follow from the shape alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

from .. import escape
from ..fields import documented
from ..units import show_count
from .architecture import Architecture
from .blocks import dense, moe
from .blocks.prediction import further_tokens


@documented
@dataclass(frozen=True)
class Model(Architecture):
    """Shape of a decoder-only transformer, and the quantities that follow. Sizes are counts; none depends on the training."""

    def __repr__(self) -> str:
        sizes = f"{self.layers} layers, hidden {self.hidden:,}, heads {self.heads}/{self.kv_heads}, vocab {self.vocab:,}"
        return f"Model({escape.terminal(self.name)}: {show_count(self.parameters)} parameters, {sizes})"

    @property
    def block(self) -> ModuleType:
        """The module of `workload/blocks/` that describes a layer of this model."""
        return moe if self.experts or self.kv_lora_rank else dense

    @cached_property
    def operators(self) -> tuple[tuple[int, dense.BlockOp], ...]:
        """The count of each operator in the model, and the operator on one token; a shared table belongs to the embedding."""
        block, one_token = self.block, {"batch": 1, "seq": 1, "element_bytes": 1}
        ends = (*block.embedding(self, **one_token), *block.head(self, **one_token, owns_table=not self.tied_embeddings))
        times = Counter(block.kind(self, number) for number in range(self.layers))
        layers = (
            (times[kind], op) for kind, number in self.kinds.items() for op in block.layer(self, **one_token, number=number)
        )
        further = further_tokens(self, block, batch=1, seq=1, element_bytes=1)
        return (*((1, op) for op in ends), *layers, *((1, op) for _, op in further))

    @cached_property
    def kinds(self) -> dict[str, int]:
        """The kinds of layers, each with the number of the first layer of that kind."""
        return {self.block.kind(self, number): number for number in reversed(range(self.layers))}

    @cached_property
    def layer_parameters(self) -> int:
        return sum(int(op.parameters) for op in self.block.layer(self, batch=1, seq=1, element_bytes=1))

    @cached_property
    def parameters(self) -> int:
        return sum(times * op.parameters for times, op in self.operators)

    @cached_property
    def active_parameters(self) -> int:
        """Number of parameters that a token passes through: all except those of experts that are not chosen for it."""
        idle = sum(
            times * (op.parameters - op.parameters * self.experts_per_token // self.experts)
            for times, op in self.operators
            if op.expert
        )
        return self.parameters - idle

    @cached_property
    def matmul_parameters(self) -> int:
        """Number of parameters that multiply activations, including the output projection: the N of 6N flop per token."""
        return sum(times * op.matmul_parameters for times, op in self.operators)

    def train_flop_per_token(self, seq: int, *, causal: bool) -> int:
        """Forward and backward flop of one token without recomputation: 6N + 12Lhs, with half the attention term if `causal`.

        N counts the parameters of the experts that a token passes through, and the head once for each predicted token. Heads
        whose values differ in width count the mean.
        """
        attention = (
            6 * (self.layers + self.mtp_layers) * self.heads * (self.head_dim + (self.value_head_dim or self.head_dim)) * seq
        )
        return 6 * self.matmul_parameters + (attention // 2 if causal else attention)
