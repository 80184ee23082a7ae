"""One GPU: what it can do at best, and how much of that its kernels sustain beside those of other GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UserError, did_you_mean

TENSOR_CORE_DTYPE = {"fp32": "tf32"}
"""What matrix products of a dtype run in, if not in itself: training code asks frameworks for TF32 instead of fp32."""

PEAK_OF = {"fp8_block": "fp8", "mxfp8": "fp8"}
"""Ways of scaling: they run at the peak of their format."""
BLOCK_SCALED = {"mxfp8": "nvfp4"}
"""Scaling that tensor cores do themselves: those that have a format of four bits."""


@dataclass(frozen=True, slots=True)
class Sustained:
    """The fractions of its peaks that large kernels sustain on a GPU. What was measured on one GPU is lent to another in the
    ratio of the two (costs/shelf.py); what was measured on a GPU itself does not depend on them.
    """

    compute_fraction: float
    memory_fraction: float
    provenance: str
    """`measured`: fitted to kernels of this GPU. `transferred`: those of another GPU, times what is known of the two."""


AT_PEAK = Sustained(1.0, 1.0, "unknown")
"""Of nothing but the peaks."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak rates are dense, without sparsity; memory is what nvidia-smi shows, `reserved_bytes` of which the driver keeps."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    sms: int
    tdp_w: float
    """0 where it is not known."""
    kernels: Sustained = AT_PEAK
    profile: str = ""
    """A file of kernel fits that go before those of the catalog; none if empty."""
    profile_hash: str = ""
    """Of what stands in it."""
    site_scalar: float = 1.0
    """How much longer every kernel takes on this machine than its models say."""
    architecture: str = ""
    """What kernels are compiled for, such as sm_90; nothing where that is not known."""
    clock_hz: float = 0.0
    """The highest; 0 where that is not known."""
    cache_bytes: float = 0.0
    """Of the last level; 0 where that is not known."""
    reserved_bytes: float = 0.0
    """What of the memory the driver keeps for itself; 0 where that is not known."""

    def peak(self, dtype: str) -> float:
        """The dense peak for a dtype, in flop/s."""
        if dtype not in self.peak_flop_per_s:
            raise UserError(f"{self.name} has no {dtype} peak", hint=did_you_mean(dtype, self.peak_flop_per_s))
        return self.peak_flop_per_s[dtype]

    def matmul_peak(self, dtype: str) -> float:
        """The dense peak of matrix products in a dtype, in flop/s: fp32 ones run as TF32 where the GPU has it."""
        dtype = PEAK_OF.get(dtype, dtype)
        tensor_dtype = TENSOR_CORE_DTYPE.get(dtype, dtype)
        return self.peak(tensor_dtype if tensor_dtype in self.peak_flop_per_s else dtype)

    def runs(self, dtype: str) -> bool:
        """Whether matrix products can be in a dtype."""
        needed = (PEAK_OF.get(dtype, dtype), BLOCK_SCALED.get(dtype, ""))
        return all(name in self.peak_flop_per_s for name in needed if name)
