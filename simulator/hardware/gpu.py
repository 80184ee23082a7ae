"""One GPU: what it can do at best, and the constants that say how much of it real kernels reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """How kernels fall short of the peaks: a fixed time each, and the fraction of each peak that is sustained."""

    fixed_s: float
    compute_fraction: float
    memory_fraction: float
    attention_forward_fraction: float
    attention_backward_fraction: float
    provenance: str
    """`measured` on this GPU, or `transferred` from another."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak rates are dense and without sparsity; memory is what a process can allocate."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    sms: int
    tdp_w: float
    kernels: KernelConstants

    def peak(self, dtype: str) -> float:
        """The dense peak for a dtype, in flop/s."""
        if dtype not in self.peak_flop_per_s:
            raise UserError(f"{self.name} has no {dtype} peak", hint=did_you_mean(dtype, self.peak_flop_per_s))
        return self.peak_flop_per_s[dtype]
