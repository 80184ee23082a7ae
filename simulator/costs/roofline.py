"""The first cost model: a fixed time per kernel, then the slower of arithmetic and memory traffic.

t = t0 + max(flop / (c x peak), bytes / (m x bandwidth)), with t0, c and m per GPU from topologies/gpus, where their
provenance stands. Attention has fractions of its own. On matrix products of training size this is 6 to 9% off on average
for A100, H100 and B200, on small ones and on attention worse: see docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Callable

from ..hardware.gpu import Gpu
from ..kernels import Attention, Kernel, Part
from ..units import ns

KernelCost = Callable[[Kernel], int]
"""Nanoseconds of one kernel."""


def roofline(gpu: Gpu, dtype: str) -> KernelCost:
    """The cost of kernels of one dtype on one GPU."""
    peak, constants = gpu.matmul_peak(dtype), gpu.kernels

    def cost(kernel: Kernel) -> int:
        fraction = constants.compute_fraction
        if isinstance(kernel, Attention):
            forward = kernel.part is Part.FORWARD
            fraction = constants.attention_forward_fraction if forward else constants.attention_backward_fraction
        arithmetic_s = kernel.flop / (fraction * peak)
        traffic_s = kernel.traffic_bytes / (constants.memory_fraction * gpu.memory_bytes_per_s)
        return ns(constants.fixed_s + max(arithmetic_s, traffic_s))

    return cost
