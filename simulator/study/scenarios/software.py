"""What may stand in a YAML file about software: framework profiles. A part of the boundary, like clusters.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from ...kernels import NARROW_BYTES
from ...units import GIB, MIB
from ..documents.fields import BytesOrNone, Latency, Name
from ..documents.strict import Contradiction, Field, Strict, Text
from . import grammar


class FusionSchema(Strict):
    """What runs as one kernel."""

    norm: bool = True
    residual_norm: bool = False
    rope: bool = True
    activation: bool = True
    bias: bool = True
    bias_activation: bool = False
    bias_dropout_add: bool = False
    softmax: bool = True
    cross_entropy: bool = True
    accumulation: bool = True
    optimizer: bool = True


class HostSchema(Strict):
    """What launching takes on the host: a kernel, one in compiled code, a collective, a captured graph."""

    kernel: Latency = 0.0
    compiled_kernel: Latency = 0.0
    collective: Latency = 0.0
    graph: Latency = 0.0


class LowPrecisionSchema(Strict):
    """How products come to run in eight or four bits."""

    formats: Annotated[tuple[str, ...], Text(grammar.formats, "those that there are", "[fp8, mxfp8]")] = tuple(NARROW_BYTES)
    scaling: Literal["delayed", "current"] = "delayed"
    norm_casts: bool = True
    activation_casts: bool = False
    cached_weights: bool = True
    weight_gradients: bool = True
    keeps_narrow: bool = True
    narrow_gathers: bool = True


class OverlapsSchema(Strict):
    """What runs beside compute where the plan does not say."""

    dp: bool = True
    tp: bool = False
    pp: bool = True
    parameter_gather: bool = True


class MemorySchema(Strict):
    """What software takes of a GPU's memory besides its tensors."""

    context: Annotated[BytesOrNone, Field(description="the CUDA context, such as 0.5 GiB")] = 0.4 * GIB
    nccl_buffer: Annotated[BytesOrNone, Field(description="NCCL_BUFFSIZE, such as 4 MiB")] = 4.0 * MIB
    nccl_channels: Annotated[int, Field(ge=1, le=64, description="of each NCCL communicator, such as 16")] = 16
    fragmentation: Annotated[
        float, Field(ge=0, le=1, allow_inf_nan=False, description="what the allocator cannot use, as a share of activations")
    ] = 0.0


class FrameworkSchema(Strict):
    """A framework; inline, or a file in workloads/frameworks."""

    name: Name = "none"
    attention: Annotated[str, Text(grammar.attention, "a library of attention kernels, or unfused", "flash_attention")] = ""
    dropout: bool = False
    compile: bool = False
    cuda_graphs: bool = False
    p2p_sync: bool = False
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    fusion: FusionSchema = FusionSchema()
    host: HostSchema = HostSchema()
    low_precision: LowPrecisionSchema = LowPrecisionSchema()
    overlap: OverlapsSchema = OverlapsSchema()
    memory: MemorySchema = MemorySchema()
    sources: Annotated[dict[str, str], Field(default_factory=dict)]

    def contradictions(self) -> Iterator[Contradiction]:
        fusion, host = self.fusion, self.host
        if fusion.residual_norm and not fusion.norm and not self.compile:
            yield "fusion", ".residual_norm: a norm of several kernels takes no residual sum in", "norm: true, or leave it out"
        launches = host.kernel or host.compiled_kernel or host.collective
        if self.cuda_graphs and not launches:
            yield (
                "cuda_graphs",
                ": launches take no time that a graph could save",
                "give host times: {kernel: 10 us, graph: 20 us}",
            )
        if self.p2p_sync and not launches:
            yield "p2p_sync", ": launches take no time that could wait for transfers", "give host times: {kernel: 10 us}"
