"""Optimizer: the bytes of state of a parameter, and the kernels that update the parameters, with the bytes that each moves.

Adam keeps two moments of a parameter, SGD with momentum and Muon one, SGD none. Mixed precision adds an fp32 master copy; Adam in
bf16 or in 8 bits, as in torchao and bitsandbytes, updates the parameter itself. A moment in 8 bits has an fp32 scale for each
block of elements. Muon updates the matrices of the layers, and Adam everything else (`lowering/passes/muon.py`).

References: torchao 0372e5ff, optim/adam.py (`_AdamBase`: blocks of 256, no master copy); bitsandbytes 06029dd6,
optim/optimizer.py (`init_state`: blocks of 2,048, in later versions of 256); PyTorch, torch/optim/adamw.py and sgd.py
(`_multi_tensor_...`); Megatron-LM 025c931a, core/optimizer/muon.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from ..fields import Contradiction, Declared, Limits, documented, with_word

Kind = Literal["adam", "adam-bf16", "adam-8bit", "muon", "sgd", "sgd-momentum"]
Format = Literal["fp32", "bf16", "8bit"]
Master = Literal["fp32", "none"]
USUAL: dict[str, tuple[Format, Master]] = {"adam-bf16": ("bf16", "none"), "adam-8bit": ("8bit", "none")}
"""Formats of moments and master copy of a kind; fp32 for the other kinds."""
NUMBER_OF_MOMENTS = {"muon": 1, "sgd": 0, "sgd-momentum": 1}
"""Number of moments of a parameter; two for Adam. For Muon that of a matrix."""
RULES = {"muon": "Muon", "sgd": "SGD", "sgd-momentum": "SGD"}
FP32_BYTES, HALF_BYTES = 4, 2
MOMENT_BYTES = {"fp32": 4, "bf16": 2, "8bit": 1}
BLOCK, NEWTON_SCHULZ_STEPS = 256, 5


class Piece(NamedTuple):
    """A kernel of an update: name, bytes that it moves per parameter besides gradients, and reads or writes of the gradient."""

    name: str
    moved_bytes: float
    gradients: int


class Moments(NamedTuple):
    """The moments of a parameter: their rule, number, and total bytes with their share of scales."""

    rule: str
    number: int
    size_bytes: float


NORM, CLIP = Piece("norm", 0, 1), Piece("clip", 0, 2)
"""Gradient clipping: the norm reads the gradients, and a separate pass scales the gradients in place."""


@documented
@dataclass(frozen=True, slots=True)
class Optimizer(Declared):
    """Rule by which parameters are updated, and the number formats of its state."""

    kind: Annotated[Kind, "muon: matrices of layers by Muon, the rest by Adam; adam-bf16, adam-8bit: no master copy"] = "adam"
    moments: Annotated[Format | None, "number format of the moments; left out: fp32, or what the kind says"] = None
    master: Annotated[
        Master | None, "master copy of parameters of 16 bits; left out: fp32, but none for adam-bf16 and adam-8bit"
    ] = None
    block: Annotated[int | None, Limits(ge=1, le=2**20), "of moments in 8 bits, elements that share a scale; left out: 256"] = (
        None
    )
    newton_schulz_steps: Annotated[int | None, Limits(ge=1, le=100), "of muon, steps of the iteration; left out: 5"] = None
    tensor_parallel: Annotated[
        Literal["blockwise", "duplicated"] | None,
        "of muon; blockwise: each rank its part of a divided matrix; duplicated: each gathers the matrix; left out: blockwise",
    ] = None

    @classmethod
    def prepared(cls, data: Any) -> Any:
        return with_word(data, lambda word: {"kind": word})

    @property
    def full(self) -> Optimizer:
        """The optimizer with every field that was left open."""
        moments, master = USUAL.get(self.kind, ("fp32", "fp32"))
        return replace(
            self,
            moments=self.moments or moments,
            master=self.master or master,
            block=self.block or BLOCK,
            newton_schulz_steps=self.newton_schulz_steps or NEWTON_SCHULZ_STEPS,
            tensor_parallel=self.tensor_parallel or "blockwise",
        )

    def contradictions(self) -> Iterator[Contradiction]:
        if self.kind == "sgd" and self.moments:
            yield "moments", ": sgd has no moments", "leave it out, or kind: sgd-momentum"
        if self.block and (self.moments or USUAL.get(self.kind, ("fp32",))[0]) != "8bit":
            yield "block", ": only moments in 8 bits have blocks", "leave it out, or moments: 8bit"
        for name in ("moments", "master") if self.kind == "muon" else ():
            if getattr(self, name) not in (None, "fp32"):
                yield name, f": muon with {getattr(self, name)} is not modelled", "fp32, or leave it out"
        for name in ("newton_schulz_steps", "tensor_parallel"):
            if self.kind != "muon" and getattr(self, name):
                yield name, f": {self.kind} has no use for it", "leave it out, or kind: muon"

    def pieces(self, element_bytes: int, *, fused: bool) -> tuple[Piece, ...]:
        """The kernels of an update (of Muon those of Adam): one fused kernel, or the multi-tensor operators of PyTorch.

        An update with a master copy of parameters of 16 bits also writes these, even if ranks keep the master copy alone.
        """
        full = self.full
        master = full.master == "fp32" and element_bytes < FP32_BYTES
        weight_bytes, cast_bytes = (FP32_BYTES, HALF_BYTES) if master else (element_bytes, 0)
        moments_bytes = self.moments_of(matrix=False).size_bytes
        if fused or full.moments == "8bit":
            name = "sgd" if self.kind.startswith("sgd") else "adam"
            return (Piece(name, 2 * (weight_bytes + moments_bytes) + cast_bytes, 1),)
        cast = (Piece("cast", FP32_BYTES + HALF_BYTES, 0),) if master else ()
        if self.kind.startswith("sgd"):
            momentum = (Piece("momentum", 2 * moments_bytes, 0), Piece("moment", 2 * moments_bytes, 1)) if moments_bytes else ()
            update = Piece("update", 2 * weight_bytes + moments_bytes, not moments_bytes)
            return (Piece("decay", weight_bytes, 2), *momentum, update, *cast)
        of_moment = (
            ("moment", 1), ("variance", 0), ("square", 1), ("root", 0), ("divide", 0), ("epsilon", 0)
        )  # fmt: skip
        pieces = (Piece(name, moments_bytes, gradients) for name, gradients in of_moment)
        return (Piece("decay", 2 * weight_bytes, 0), *pieces, Piece("update", 2 * weight_bytes + moments_bytes, 0), *cast)

    def moments_of(self, *, matrix: bool) -> Moments:
        """The moments of a parameter, which with Muon is a matrix or not."""
        full, kind = self.full, "adam" if self.kind == "muon" and not matrix else self.kind
        scale_bytes = FP32_BYTES / (full.block or BLOCK) if full.moments == "8bit" else 0
        number = NUMBER_OF_MOMENTS.get(kind, 2)
        return Moments(RULES.get(kind, "Adam"), number, number * (MOMENT_BYTES[full.moments or "fp32"] + scale_bytes))
