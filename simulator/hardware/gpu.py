"""GPU: peak rates, memory, and the fractions of the peaks that large kernels sustain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from ..errors import UserError, did_you_mean
from ..fields import (
    LEAST_FACTOR,
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


ANY_LAYOUT = ("sm_100", "sm_103")
"""Architectures whose tensor cores read operands in eight bits in any layout (PTX ISA, tcgen05.mma)."""

WIDE_FORMATS = ("fp16", "bf16", "fp32")
"""Formats, at least one of which every GPU must have a peak for."""


@dataclass(frozen=True, slots=True)
class Sustained(Declared):
    """Fractions of its peaks that large kernels sustain on a GPU. Fits are transferred from one GPU to another by the ratio of
    these fractions; fits to measurements of the GPU itself do not depend on them. The check that refuses a microbatch of more
    than a day uses them, too.
    """

    compute_fraction: Annotated[Fraction, "fraction of `peak` that large GEMMs sustain"]
    memory_fraction: Annotated[Fraction, "fraction of `memory_bandwidth` that large kernels sustain"]
    provenance: Annotated[
        Literal["measured", "transferred"],
        "measured: fitted to kernels of this GPU; transferred: estimated from the fractions of another GPU",
    ]

    comments: ClassVar[Mapping[str, Any]] = {"source": str}


AT_PEAK = Sustained(1.0, 1.0, "transferred")
"""Placeholder where a GPU's file has no fractions, until those of the most similar measured GPU are known."""


@dataclass(frozen=True, slots=True)
class Gpu(Declared):
    """Peak rates, memory and kernel constants of a GPU. Peak rates are dense, without sparsity."""

    name: Annotated[Name, Usual(lambda given: "inline"), "name of the GPU in results"]
    memory_bytes: Annotated[Bytes, "total memory, as nvidia-smi shows it, such as 80 GiB"]
    memory_bytes_per_s: Annotated[BytesPerSecond, Key("memory_bandwidth"), "peak rate of the memory, such as 3.35 TB/s"]
    peak_flop_per_s: Annotated[
        Mapping[str, FlopPerSecond], Key("peak"), "dense peak rate by number format, such as {bf16: 989 TFLOP/s}"
    ]
    sms: Annotated[Size, "number of streaming multiprocessors, such as 132"]
    tdp_w: Annotated[Watts, "thermal design power, the limit of what the board draws, such as 700 W; 0 if not known"] = 0.0
    kernels: Annotated[
        Sustained, "fractions of the peaks that kernels sustain; left out, those of the most similar measured GPU"
    ] = AT_PEAK
    profile: Annotated[str, "path of a file that `trainsim calibrate fit` wrote for this GPU; empty for none"] = ""
    profile_hash: Annotated[str, NO_KEY, "hash of the profile; empty without a profile"] = ""
    site_scalar: Annotated[float, Limits(ge=LEAST_FACTOR, le=1000), "factor on the times of all kernels"] = 1.0
    architecture: Annotated[str, "architecture that kernels are compiled for, such as sm_90; empty if not known"] = ""
    clock_hz: Annotated[Hertz, "highest clock, such as 1980 MHz; 0 if not known"] = 0.0
    cache_bytes: Annotated[Bytes, "size of the last-level cache, such as 50 MiB; 0 if not known"] = 0.0
    reference_tdp_w: Annotated[float, NO_KEY, "thermal design power of this GPU in the catalog; 0 for other GPUs"] = 0.0
    reserved_bytes: Annotated[BytesOrNone, "part of `memory` that the driver keeps, such as 0.5 GiB"] = 0.0

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

    @property
    def reads_any_layout(self) -> bool:
        """Whether tensor cores read operands in eight bits in any layout; others need the inner dimension to be contiguous."""
        return self.architecture in ANY_LAYOUT

    def runs(self, dtype: str) -> bool:
        """Whether the GPU can run GEMMs in a dtype."""
        needed = (PEAK_OF.get(dtype, dtype), BLOCK_SCALED.get(dtype, ""))
        return all(name in self.peak_flop_per_s for name in needed if name)
