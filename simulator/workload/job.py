"""Job: batch, sequence length and number format of a training step; its trained parameters and optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from ..fields import Contradiction, Declared, Degree, Later, Limits, Name, Noun, documented
from ..kernels import NARROW_BYTES
from . import optimizer
from .optimizer import Optimizer
from .packing import Packing

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an activation or a weight, in the dtypes that all operators support."""
BESIDE_NARROW = "bf16"
"""The dtype of all other operators where linear layers run in eight or four bits."""
NarrowFormat = Literal["fp8", "fp8_block", "mxfp8", "nvfp4"]
Dtype = Literal["fp32", "bf16", "fp16", NarrowFormat]
"""Number formats of training. Formats of eight or four bits apply to the GEMMs of linear layers only."""
DTYPES: tuple[str, ...] = get_args(Dtype)
LATER_DTYPES = ("fp4", "mxfp4", "tf32", "fp64", "int8")


@documented
@dataclass(frozen=True, slots=True)
class Lora(Declared):
    """Adapters of low rank beside linear layers (LoRA). The parameters of the model itself are frozen."""

    rank: Annotated[Degree, "width between the two matrices of an adapter"] = 16
    targets: Annotated[tuple[Name, ...], "linear layers that have an adapter, such as [qkv, attention_out, mlp_up, mlp_down]"] = (
        "qkv",
        "attention_out",
    )


@documented
@dataclass(frozen=True, slots=True)
class Job(Declared):
    """A training step of `global_batch` sequences of `sequence_length` tokens, and the tokens of the whole run."""

    sequence_length: Annotated[int, Limits(ge=1, le=2**27), "number of tokens per sequence"] = 2048
    global_batch: Annotated[int, Limits(ge=1, le=2**24), "number of sequences per training step, over all replicas"] = 64
    microbatch_size: Annotated[int, Limits(ge=1, le=2**16), "number of sequences that a replica computes at a time"] = 1
    dtype: Annotated[
        Dtype,
        Noun("number format"),
        Later(LATER_DTYPES, "training in {}"),
        "number format of training; eight or four bits apply to GEMMs of linear layers, and the rest stays in bf16",
    ] = "bf16"
    optimizer: Annotated[
        Optimizer | optimizer.Kind, "rule by which parameters are updated: a word, or a mapping with number formats"
    ] = "adam"
    gradient_clipping: Annotated[
        bool | None,
        "true: gradients are read for their norm, and scaled; false: no rank waits for a norm; left out: the norm is free",
    ] = None
    frozen_layers: Annotated[
        int, Limits(ge=0, le=10_000), "number of first layers that are frozen; if above 0, the embedding is frozen too"
    ] = 0
    lora: Annotated[Lora | None, "adapters that learn in place of the model; left out: the model itself learns"] = None
    packing: Annotated[Packing | None, "documents that fill a sequence, each with its own attention; left out: one"] = None
    total_tokens: Annotated[
        int | None, Limits(ge=1, le=2**60), "number of tokens of the whole run, for its days, GPU-hours and cost"
    ] = None
    price_per_gpu_hour: Annotated[
        float | None, Limits(gt=0, le=2**20), "price of a GPU for an hour, in any currency, for the cost of the whole run"
    ] = None
    price_per_kwh: Annotated[
        float | None, Limits(gt=0, le=2**20), "price of a kilowatt-hour, in any currency, for the energy of the whole run"
    ] = None
    pue: Annotated[float, Limits(ge=1, le=10), "power of the site over that of its GPUs, for the energy of the whole run"] = 1.0

    def contradictions(self) -> Iterator[Contradiction]:
        for name in ("price_per_gpu_hour", "price_per_kwh"):
            if getattr(self, name) is not None and self.total_tokens is None:
                yield name, ": without total_tokens there is no run to pay for", "give total_tokens, or leave it out"
        if self.pue != 1 and self.total_tokens is None:
            yield "pue", ": without total_tokens there is no run whose energy it adds to", "give total_tokens, or leave it out"
        if self.lora and self.frozen_layers:
            yield "frozen_layers", ": with lora no layer of the model learns", "leave it out"
        if self.packing:
            yield from self._faults_of_packing(self.packing)

    def _faults_of_packing(self, packing: Packing) -> Iterator[Contradiction]:
        if packing.lengths and sum(packing.lengths) != self.sequence_length:
            message = f": documents of {sum(packing.lengths)} tokens do not fill a sequence of {self.sequence_length}"
            yield "packing.lengths", message, f"lengths that add up to {self.sequence_length}"
        elif packing.longest() > self.sequence_length:
            message = f": documents of {packing.longest()} tokens are longer than a sequence of {self.sequence_length}"
            most = (self.sequence_length + 1) // 2 if packing.distribution == "uniform" else self.sequence_length
            yield "packing.mean", message, f"mean: {most}, or a longer sequence"

    @property
    def full_optimizer(self) -> Optimizer:
        """The optimizer with every field that the job leaves open."""
        return (self.optimizer if isinstance(self.optimizer, Optimizer) else Optimizer(self.optimizer)).full

    @property
    def packed_fraction(self) -> float:
        """Expected fraction of the scores of a sequence that lie within its documents."""
        return self.packing.fraction(self.sequence_length) if self.packing else 1.0

    @property
    def learns_in_part(self) -> bool:
        """Whether parameters of the model are frozen."""
        return self.lora is not None or self.frozen_layers > 0

    @property
    def narrow(self) -> bool:
        """Whether linear layers run in a format of eight or four bits."""
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
        """Number of tokens of a training step."""
        return self.global_batch * self.sequence_length
