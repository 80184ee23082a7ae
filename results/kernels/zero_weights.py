"""Products that were timed with weights which nobody filled, and how much sooner they end.

vLLM's rows were timed so: the public collector of their source (ai-dynamo/aiconfigurator, collector/vllm/collect_gemm.py) makes
six layers and leaves the weights of bf16 ones as they were allocated, where those of the other libraries draw random numbers.
Memory that is new to a process is zero; small weights get what earlier ones left. Multiplying by zero takes little power, so the
clock stays up in what is bound by power. The larger the weights, the faster their products are beside those of another library:
on B200 1.0 times for less than a gigabyte of them, 1.3 times above 24; less on H100 and A100, and not in the other libraries.
What became of the memory is inferred; that time falls with the bytes of the weights is measured. It is a property of the
benchmark and not of the GPU, so it is fitted beside the product, and left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.costs.kernels.gemm import UNFILLED_GB, UNFILLED_SAVES
from simulator.costs.kernels.gpu_model import Array, Machine
from simulator.units import GB

UNFILLED_BY = "vllm"
UNFILLED_START: Mapping[str, float] = {UNFILLED_SAVES: 0.3, UNFILLED_GB: 4.0}
"""Where fitting starts: the share of the time that zeros save at the full rate, and the weights of which half are zero."""
COPIES, WIDTH_BYTES = 6, 2
"""Layers that take turns, and bytes of a weight."""


def filled_share(saves: float, half_gb: float, on: Machine, sizes: Sequence[Array], time_s: Array) -> Array:
    """Time with such weights over `time_s`, that with random ones, of products of `sizes` m, n and k."""
    m, n, k = sizes
    weights_bytes = COPIES * WIDTH_BYTES * n * k
    new = weights_bytes / (weights_bytes + half_gb * GB)
    busy = np.minimum(2 * m * n * k / (on.flop_per_s * time_s), 1.0)
    share: Array = 1 - np.minimum(saves, 1.0) * new * busy
    return share
