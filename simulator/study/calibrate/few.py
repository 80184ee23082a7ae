"""Too few rows for a fit: what ships for a GPU, or would be lent to it, made slower or faster as a whole.

One factor on every time constant is all that a row or two can tell, for attention one in each direction: a machine's clock, a
library that is better or worse than the one measured. How times go with sizes stays what the shipped fit says of it: at other
sizes than those of the rows times are not measured, but that fit's, transferred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...costs.attention import AttentionConstants
from ...costs.machine import Array
from ...costs.rowwise import RowwiseConstants
from ...costs.shelf import MOST, Chosen, Constants, Family, Shelf, choose
from ...hardware.gpu import Gpu

LEAST_SIGMA = 0.15
"""Of what one factor tells: the sizes of a few rows stand for all (assumed: as between GPUs that run the same kernels)."""
UNKNOWN_SIGMA = 0.4
"""Where nothing ships that could be scaled but the usual constants."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """What ships, with all times multiplied."""

    constants: Constants
    times: float
    of: str
    """What was scaled."""


def slowed(c: Constants, times: float) -> Constants:
    """Constants of kernels that take so many times as long, down to what the peaks allow."""
    if isinstance(c, RowwiseConstants):
        faster = min(MOST, c.stream / times)
        return replace(c, launch_us=c.launch_us * times, stream=faster, lookup_cycles=c.lookup_cycles * times)
    computed, moved = min(MOST, c.compute / times), min(MOST, c.memory / times)
    c = replace(c, launch_us=c.launch_us * times, split_us=c.split_us * times, throttle_us=c.throttle_us * times)
    c = replace(c, compute=computed, memory=moved)
    if isinstance(c, AttentionConstants):
        return replace(c, exponential=c.exponential * times)
    # the clock falls with the share of the peak that is reached: as much only if that is set against the slower rate
    return replace(c, power=c.power * times, power_us=c.power_us * times, throttle=c.throttle * times)


def scaled(start: Constants, of: str, measured: Array, predicted: Array, backward: Array) -> Scaled:
    """What ships scaled to rows: to forward ones, where there are any, and then attention's backward pass to the others."""
    logs = np.log(measured / predicted)
    both = bool(backward.any() and not backward.all())
    times = math.exp(float(np.median(logs[~backward] if both else logs)))
    made = slowed(start, times)
    if both and isinstance(made, AttentionConstants):
        back = math.exp(float(np.median(logs[backward]))) / times
        made = replace(made, backward=made.backward * back)
    return Scaled(made, times, of)


def shipped(gpu: Gpu, shelf: Shelf, family: Family, dtype: str, library: str = "") -> Chosen | None:
    """The fit that speaks for kernels without a profile, of a library if anybody measured that."""
    return choose(gpu, shelf, family, dtype, library if library in shelf.libraries(family) else "")


def words_of(chosen: Chosen | None) -> str:
    """What somebody's kernels are known by."""
    if chosen is None:
        return "the usual constants"
    fit = chosen.fit
    return " ".join(filter(None, ("that of", chosen.owner, fit.dtype, fit.library)))


def missing(told: Sequence[tuple[Family, str]], gpu: Gpu, shelf: Shelf) -> tuple[str, ...]:
    """What a profile does not speak of and somebody else's fit does: families of kernels in the dtypes of the others."""
    dtypes = dict.fromkeys(dtype for _, dtype in told if dtype)
    wanted: list[tuple[Family, str]] = [(family, dtype) for dtype in dtypes for family in ("gemm", "attention")]
    absent = [pair for pair in (*wanted, ("rowwise", "")) if pair not in told]
    found = [(family, dtype, choose(gpu, shelf, family, dtype)) for family, dtype in absent]
    return tuple(f"{' '.join(filter(None, (family, dtype)))}: {words_of(chosen)}" for family, dtype, chosen in found if chosen)
