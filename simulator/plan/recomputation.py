"""Recomputation: activations that the backward pass computes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ..fields import Contradiction, Declared, Degree, Name, documented, with_word
from ..units import counted


@documented
@dataclass(frozen=True, slots=True)
class Recompute(Declared):
    """Activations that the forward pass does not keep, and that the backward pass recomputes."""

    scope: Annotated[
        Literal["none", "selective", "per-op", "full"],
        "selective: attention between its inputs and its result; full: whole layers; per-op: all but the results of attention, "
        "of every other GEMM and of reduce-scatters, as in torchtitan",
    ] = "none"
    ops: Annotated[tuple[Name, ...], "operators whose results are recomputed, such as [mlp_norm, gated_activation]"] = ()
    first: Annotated[Degree | None, "number of layers of every stage, from its first on, that recompute; left out: all"] = None
    every: Annotated[Degree, "only every n-th layer of a stage recomputes; 2: every other layer"] = 1
    together: Annotated[Degree, "number of consecutive layers of which only the input of the first is kept"] = 1
    early_stop: Annotated[
        bool | None,
        "whether recomputation ends at the last tensor that is needed, as in PyTorch; left out: as the framework does",
    ] = None

    @classmethod
    def prepared(cls, data: Any) -> Any:
        return with_word(data, lambda word: {"scope": word})

    def contradictions(self) -> Iterator[Contradiction]:
        idle = [] if self.words else [name for name in self.__slots__ if getattr(self, name) != getattr(Recompute(), name)]
        yield from ((name, ": nothing is recomputed", "scope: full, or ops") for name in idle)
        if self.scope in ("full", "per-op") and self.ops:
            whole = "whole layers are recomputed, with all their operators"
            message = f": {whole if self.scope == 'full' else 'per-op chooses operators itself'}"
            yield "ops", message, "leave it out, or scope: selective"
        if self.words and self.together > 1 and (self.scope != "full" or self.every > 1):
            yield "together", ": only consecutive whole layers can share an input", "scope: full without every, or leave it out"
        if self.early_stop and self.scope == "none" and self.ops:
            yield "early_stop", ": the result of every operator in ops is needed", "leave it out"
        if self.early_stop and self.scope == "per-op":
            yield "early_stop", ": per-op ends at the last tensor that is needed in any case", "leave it out"

    @property
    def words(self) -> tuple[str, ...]:
        """The recomputation in words: the scope and the listed operators."""
        return (*([self.scope] if self.scope != "none" else []), *self.ops)

    @property
    def text(self) -> str:
        """What is recomputed, and of which layers if not of all; empty if nothing is."""
        layers = [
            *([f"1 layer in {self.every}"] if self.every > 1 else []),
            *([f"first {counted(self.first, 'layer')} of a stage"] if self.first is not None else []),
            *([f"{self.together} layers together"] if self.together > 1 else []),
        ]
        return ", ".join(self.words) + (f" ({', '.join(layers)})" if self.words and layers else "")

    @property
    def counts_layers(self) -> bool:
        """Whether what is recomputed depends on how layers are divided into stages."""
        return self.first is not None or self.every > 1 or self.together > 1

    def takes(self, layer: int) -> bool:
        """Whether a layer, counted within its stage, is one of those that the fields `first` and `every` choose."""
        return layer >= 0 and (self.first is None or layer < self.first) and (layer + 1) % self.every == 0
