"""Formats of eight or four bits: which tensors a framework casts to them, when, and what runs otherwise because of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from ..fields import Declared, Noun, documented
from .job import NarrowFormat

Narrow = Annotated[NarrowFormat, Noun("format of eight or four bits")]


@documented
@dataclass(frozen=True, slots=True)
class LowPrecision(Declared):
    """Use of formats of eight or four bits in GEMMs, where the dtype of the job is such a narrow format."""

    formats: Annotated[tuple[Narrow, ...], "formats that the framework supports, such as [fp8, mxfp8]"] = get_args(NarrowFormat)
    scaling: Annotated[
        Literal["delayed", "current"],
        "source of fp8 scales; delayed: earlier steps; current: the tensor, which is read first to find its largest value",
    ] = "delayed"
    shared_scales: Annotated[
        Literal["none", "tp", "replicas"],
        "ranks that agree on delayed scales at the end of every pass through a stage; tp: those that divide its tensors or "
        "sequences; replicas: all that hold the stage",
    ] = "none"
    norm_casts: Annotated[bool, "whether norms write the narrow format, if its scale is known before the result"] = True
    activation_casts: Annotated[bool, "whether activations write the narrow format, under the same condition as norms"] = False
    cached_weights: Annotated[bool, "whether weights are cast once per step; else in every forward pass"] = True
    narrow_parameters: Annotated[
        tuple[Narrow, ...],
        "formats in which parameters of linear layers exist alone, as with --fp8-param-gather of Megatron-LM; else the copies of "
        "cached weights are kept beside parameters in 16 bits",
    ] = ()
    fp8_gathers: Annotated[
        bool,
        "whether ranks that divide parameters gather weights of linear layers in fp8, each having cast its share, as with the "
        "float8 all-gather of torchao; else they gather 16 bits",
    ] = False
    weight_gradients: Annotated[bool, "whether GEMMs of weight gradients run in the narrow format"] = True
    keeps_narrow: Annotated[
        bool,
        "whether inputs of linear layers are kept for the backward pass in the narrow format; else in 16 bits, and cast again",
    ] = True
    keeps_original: Annotated[
        bool,
        "whether linear layers whose input another operator keeps in 16 bits keep no narrow copy beside it, and cast it again, "
        "unless scales come from earlier steps",
    ] = False
    narrow_gathers: Annotated[bool, "whether the all-gathers of sequence parallelism carry the narrow format"] = True
    narrow_dispatch: Annotated[
        bool, "whether dispatches of DeepEP carry the narrow format, as in DeepSeek's own software; else 16 bits"
    ] = False
    whole_gemms: Annotated[
        tuple[Narrow, ...],
        "formats whose GEMMs are not cut into pieces: where overlap.tp is decomposed, their tensor-parallel collectives run "
        "beside GEMMs of the backward pass only, such as [nvfp4]",
    ] = ()
    late_gathers: Annotated[
        tuple[Narrow, ...],
        "formats in which, with a sharded optimizer, the first layer waits for all parameters, whatever overlap.parameter_gather "
        "is",
    ] = ()
    any_layout: Annotated[
        bool,
        "whether fp8 GEMMs read operands in the layout that they have, without transposed copies, on GPUs that can: Blackwell "
        "of data centres",
    ] = False

    @property
    def keeps_narrow_inputs(self) -> bool:
        """Whether the weight gradient uses the narrow copy of the input from the forward GEMM."""
        return self.weight_gradients and self.keeps_narrow

    def gathers_narrow(self, dtype: str, *, divided: bool) -> bool:
        """Whether ranks gather weights in a narrow format, where they divide parameters or the optimizer only. Scales of blocks
        run along one dimension: both copies of a weight are made of 16 bits."""
        return dtype == "fp8" and (self.narrow_alone(dtype) or (self.fp8_gathers and divided))

    def narrow_alone(self, dtype: str) -> bool:
        """Whether weights exist in a narrow format alone; those that every pass casts exist in 16 bits."""
        return dtype in self.narrow_parameters and self.cached_weights

    def keeps_originals(self, dtype: str) -> bool:
        """Whether a linear layer keeps no narrow copy of an input that another operator keeps, with the scales of a format."""
        return self.keeps_narrow_inputs and self.keeps_original and not (dtype == "fp8" and self.scaling == "delayed")
