"""What may stand in a YAML file about a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from ..documents.fields import Bytes, BytesOrNone, BytesPerSecond, FlopPerSecond, Fraction, Hertz, Name, Size, Watts
from ..documents.strict import Contradiction, Field, Strict

MOST_SCALAR = 1000
WIDE_FORMATS = ("fp16", "bf16", "fp32")
"""One of which every GPU has a peak of."""


class KernelSchema(Strict):
    """How much of its peaks a GPU sustains. It acts where kernels that were measured on one GPU are lent to another, in the ratio
    of the two, and on nothing that was measured on the GPU itself. (A microbatch of more than a day is refused by it, too.)
    """

    compute_fraction: Annotated[Fraction, Field(description="of `peak`, by large products")]
    memory_fraction: Annotated[Fraction, Field(description="of `memory_bandwidth`")]
    provenance: Literal["measured", "transferred"]
    """Fitted to kernels of this GPU, or those of another GPU times what the source says."""
    source: str = ""


class GpuSchema(Strict):
    """A GPU; inline, or a file in topologies/gpus."""

    name: Name = "inline"
    memory: Bytes
    reserved: Annotated[BytesOrNone, Field(description="of `memory`, what the driver keeps, such as 0.5 GiB")] = 0.0
    memory_bandwidth: BytesPerSecond
    peak: Annotated[dict[str, FlopPerSecond], Field(description="dense, by format, such as {bf16: 989 TFLOP/s}")]
    sms: Size
    tdp: Annotated[Watts, Field(description="such as 700 W; 0 where it is not known")] = 0.0
    architecture: Annotated[str, Field(description="what its kernels are compiled for, such as sm_90")] = ""
    clock: Annotated[Hertz, Field(description="the highest, such as 1980 MHz")] = 0.0
    cache: Annotated[Bytes, Field(description="of the last level, such as 50 MiB")] = 0.0
    kernels: Annotated[
        KernelSchema | None, Field(description="what it sustains; left out, as much as the measured GPU most like this one")
    ] = None
    profile: Annotated[str, Field(description="a file that `trainsim calibrate fit` wrote for this GPU")] = ""
    site_scalar: Annotated[float, Field(gt=0, le=MOST_SCALAR, allow_inf_nan=False, description="times every kernel's time")] = 1.0
    sources: Annotated[dict[str, str], Field(default_factory=dict)]

    def contradictions(self) -> Iterator[Contradiction]:
        if not any(dtype in self.peak for dtype in WIDE_FORMATS):
            message = f": none of {', '.join(self.peak) or 'them'} is a format of 16 or 32 bits"
            yield "peak", message, f"at least one of {', '.join(WIDE_FORMATS)}: peak: {{bf16: 989 TFLOP/s}}"
