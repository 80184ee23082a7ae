"""Offload: data that a plan keeps in the memory of the host: activations, the optimizer's state, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any

from ..fields import Contradiction, Declared, Limits, Share, documented, with_word

KEPT_LAYERS = 2
"""Number of layers at the end of a stage whose activations are never copied: there is no time to copy them."""
FIELDS_OF_WORDS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "activations": {"activations": 1.0},
    "optimizer": {"optimizer": True},
    "parameters": {"optimizer": True, "parameters": True},
}
"""Words for offload, and the equivalent fields."""


@documented
@dataclass(frozen=True, slots=True)
class Offload(Declared):
    """Data that GPUs keep in the memory of their host, and copy over PCIe or C2C beside compute."""

    activations: Annotated[
        float, Limits(ge=0, le=1), "fraction of the layers of a stage whose activations are copied, but never the last two layers"
    ] = 0.0
    optimizer: Annotated[bool, "whether CPUs update parameters: gradients are copied out, and parameters back"] = False
    optimizer_fraction: Annotated[Share, "fraction of the parameters that CPUs update"] = 1.0
    parameters: Annotated[bool, "whether the host keeps the shares of parameters; copied in before gathers"] = False

    @classmethod
    def prepared(cls, data: Any) -> Any:
        return with_word(data, FIELDS_OF_WORDS.get)

    @classmethod
    def of(cls, word: str) -> Offload:
        """The offload that a word stands for."""
        return cls(**FIELDS_OF_WORDS[word])

    @property
    def copies(self) -> bool:
        """Whether any data are copied."""
        return self.optimizer or self.activations > 0

    @property
    def words(self) -> tuple[str, ...]:
        """The copied data in words."""
        fraction = "" if self.optimizer_fraction == 1 else f"{self.optimizer_fraction:g} of "
        activations = [f"{self.activations:g} of activations"] if self.activations else []
        return (*activations, *[f"{fraction}optimizer"] * self.optimizer, *["parameters"] * self.parameters)

    def layers(self, of: int) -> int:
        """Number of layers whose activations are copied: the first ones of a stage of `of` layers."""
        return max(0, min(round(self.activations * of), of - KEPT_LAYERS))

    def updated(self, parameters: int) -> int:
        """Number of parameters that a CPU updates, out of those that a rank owns."""
        return ceil(self.optimizer_fraction * parameters) if self.optimizer else 0

    def contradictions(self) -> Iterator[Contradiction]:
        if self.optimizer_fraction < 1 and not self.optimizer:
            yield "optimizer_fraction", ": no CPU updates parameters", "optimizer: true, or leave it out"
        if self.parameters and not self.optimizer:
            yield "parameters", ": GPUs that update parameters of the host are not modelled yet", "optimizer: true"
        if self.parameters and self.optimizer_fraction < 1:
            yield "optimizer_fraction", ": CPUs update all parameters that the host keeps", "leave it out"
