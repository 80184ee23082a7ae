"""GPU: peak rates, memory, and the fractions of the peaks that large kernels sustain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from ..errors import UserError, did_you_mean
from ..fields import (
    NO_KEY,
    Bytes,
    BytesOrNone,
    BytesPerSecond,
    Contradiction,
    Declared,
    FlopPerSecond,
    Fraction,
    Hertz,
    Key,
    Limits,
    Name,
    Size,
    Usual,
    Watts,
)  # fmt: skip

TENSOR_CORE_DTYPE = {"fp32": "tf32"}
"""Dtype -> format in which GEMMs of the dtype run instead: training code requests TF32 from frameworks instead of fp32."""

PEAK_OF = {"fp8_block": "fp8", "mxfp8": "fp8"}
"""Dtype with scaling -> format whose peak rate applies."""
BLOCK_SCALED = {"mxfp8": "nvfp4"}
"""Dtype with scaling in the tensor cores -> the four-bit format that only such tensor cores have."""


WIDE_FORMATS = ("fp16", "bf16", "fp32")
"""Formats of which every GPU has a peak of at least one."""


@dataclass(frozen=True, slots=True)
class Sustained(Declared):
    """The fractions of its peaks that large kernels sustain on a GPU. Kernels that were measured on one GPU are transferred to
    another in the ratio of the two; what was measured on a GPU itself does not depend on them. (A microbatch of more than a day
    is refused by it, too.)
    """

    compute_fraction: Annotated[Fraction, "of `peak`, by large GEMMs"]
    memory_fraction: Annotated[Fraction, "of `memory_bandwidth`"]
    provenance: Annotated[
        Literal["measured", "transferred"],
        "measured: fitted to kernels of this GPU; transferred: those of another GPU, times what is known of the two",
    ]

    comments: ClassVar[Mapping[str, Any]] = {"source": str}


AT_PEAK = Sustained(1.0, 1.0, "transferred")
"""Placeholder where a GPU's file has no fractions, until those of the most similar measured GPU are known."""


@dataclass(frozen=True, slots=True)
class Gpu(Declared):
    """Peak rates are dense, without sparsity; memory is what nvidia-smi shows, `reserved_bytes` of which the driver keeps."""

    name: Annotated[Name, Usual(lambda given: "inline"), "what results call it"]
    memory_bytes: Bytes
    memory_bytes_per_s: Annotated[BytesPerSecond, Key("memory_bandwidth")]
    peak_flop_per_s: Annotated[Mapping[str, FlopPerSecond], Key("peak"), "dense rate of each format, such as {bf16: 989 TFLOP/s}"]
    sms: Annotated[Size, "multiprocessors, such as 132"]
    tdp_w: Annotated[Watts, "such as 700 W; 0 where it is not known"] = 0.0
    kernels: Annotated[Sustained, "what it sustains; left out, as much as the measured GPU most like this one"] = AT_PEAK
    profile: Annotated[str, "a file that `trainsim calibrate fit` wrote for this GPU"] = ""
    profile_hash: Annotated[str, NO_KEY, "hash of that file"] = ""
    site_scalar: Annotated[float, Limits(gt=0, le=1000), "factor on the time of every kernel on this machine"] = 1.0
    architecture: Annotated[str, "what kernels are compiled for, such as sm_90; empty where it is not known"] = ""
    clock_hz: Annotated[Hertz, "the highest, such as 1980 MHz; 0 where it is not known"] = 0.0
    cache_bytes: Annotated[Bytes, "last level, such as 50 MiB; 0 where it is not known"] = 0.0
    reserved_bytes: Annotated[BytesOrNone, "what of `memory` the driver keeps, such as 0.5 GiB"] = 0.0

    comments: ClassVar[Mapping[str, Any]] = {"sources": dict[str, str]}

    def contradictions(self) -> Iterator[Contradiction]:
        if not any(dtype in self.peak_flop_per_s for dtype in WIDE_FORMATS):
            message = f": none of {', '.join(self.peak_flop_per_s) or 'them'} is a format of 16 or 32 bits"
            yield "peak", message, f"at least one of {', '.join(WIDE_FORMATS)}: peak: {{bf16: 989 TFLOP/s}}"

    def peak(self, dtype: str) -> float:
        """The dense peak for a dtype, in flop/s."""
        if dtype not in self.peak_flop_per_s:
            raise UserError(f"{self.name} has no {dtype} peak", hint=did_you_mean(dtype, self.peak_flop_per_s))
        return self.peak_flop_per_s[dtype]

    def matmul_peak(self, dtype: str) -> float:
        """The dense peak of GEMMs in a dtype, in flop/s: fp32 GEMMs run in TF32 where the GPU has a TF32 peak."""
        dtype = PEAK_OF.get(dtype, dtype)
        tensor_dtype = TENSOR_CORE_DTYPE.get(dtype, dtype)
        return self.peak(tensor_dtype if tensor_dtype in self.peak_flop_per_s else dtype)

    def runs(self, dtype: str) -> bool:
        """Whether the GPU can run GEMMs in a dtype."""
        needed = (PEAK_OF.get(dtype, dtype), BLOCK_SCALED.get(dtype, ""))
        return all(name in self.peak_flop_per_s for name in needed if name)
