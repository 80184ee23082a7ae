"""Time that kernels of the model take because a board sustains a lower clock than in a short burst of launches."""

from __future__ import annotations

from functools import cache

from ..kernels import Kernel
from .kernels_of_ranks import kernels_of_ranks
from .result import Result


def sustained_clocks_s(result: Result) -> float:
    """Seconds of a step, the mean over ranks: a part of the time of compute, so kernels of the optimizer do not count.

    A kernel of a rank with a lower speed takes as much longer, at the speeds that the rank has from the start of the kernel on.
    """
    prices = result.prices

    @cache
    def longer_s(kernel: Kernel) -> float:
        return prices.estimate(kernel).seconds - prices.burst_s(kernel)

    of_model = kernels_of_ranks(result, but_for="optimizer")
    return sum(calls * longer_s(kernel) * stretched for kernel, calls, stretched in of_model)
