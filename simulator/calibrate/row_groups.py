"""Rows sorted into what is fitted together: a family of kernels in one dtype and of one library; the rest is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..costs.kernels.estimator import FITTED_AS, SHORT
from ..costs.kernels.family import ANY, KernelFamily, TimedKernels, families
from ..costs.kernels.gpu_model import Array, machine
from ..hardware.gpu import PEAK_OF, Gpu
from ..kernels import Shape
from ..measurements.attention_libraries import library_of
from ..measurements.kernel_table import Measured
from ..measurements.kernel_words import WIDTH, kernels_of, name_of, turns_of

RATIO = "ratio"
"""Instead of a library: rows of operators that are known by their ratios to the kernels of a fit."""
EVERY = 4
"""One size in so many is held out; of two sizes one in twice as many each."""
LEAST_HELD, LEAST_KEPT = 6, 24
"""Rows to judge by, and to fit."""


class Key(NamedTuple):
    """The rows that are fitted together."""

    family: str
    dtype: str
    library: str


@dataclass(frozen=True)
class Group:
    """Rows of one fit, with their kernels."""

    family: KernelFamily
    dtype: str
    library: str
    rows: tuple[Measured, ...]
    timed: TimedKernels


def groups(rows: Iterable[Measured], gpu: Gpu, unused: dict[str, int]) -> Iterator[Group]:
    """The rows of each fit; what belongs to none is counted."""
    found: dict[Key, list[tuple[Measured, tuple[Shape, ...]]]] = {}
    for row in rows:
        kernels = kernels_of(row.probe)
        key = _key(row, kernels, gpu)
        if isinstance(key, str):
            unused[key] = unused.get(key, 0) + 1
        else:
            found.setdefault(key, []).append((row, kernels))
    for (name, dtype, library), pairs in found.items():
        own, kernels_of_rows = zip(*pairs, strict=True)
        family, of_rows = families()[name], own[0].probe.dtype
        on = machine(gpu, "" if family.any_format else PEAK_OF.get(of_rows, of_rows))
        seconds, cold = np.array([row.seconds for row in own]), np.array([row.cold for row in own])
        turns = min(turns_of(row.probe.variant) for row in own)
        timed = TimedKernels(kernels_of_rows, seconds, on, WIDTH[of_rows], cold, turns)
        yield Group(family, dtype, library, own, timed)


def _key(row: Measured, kernels: tuple[Shape, ...], gpu: Gpu) -> Key | str:
    """The fit that a row belongs to, or why it belongs to none."""
    probe = row.probe
    if not row.may_be_fitted:
        return f"the role {row.role!r}"
    if not kernels:
        name = name_of(probe.op, probe.variant)
        return f"no model of {probe.op}" + f" {name}" * (name not in probe.op)
    family = families()[kernels[0].family]
    if family.any_format:
        if row.is_eager:
            return f"{probe.op}: several operators, which a run has one by one"
        return Key(family.name, "", "" if family.is_fitted(kernels[0]) else RATIO)
    if PEAK_OF.get(probe.dtype, probe.dtype) not in gpu.peak_flop_per_s:
        return f"{gpu.name} has no peak in {probe.dtype}"
    dtype = FITTED_AS.get(probe.dtype, probe.dtype)
    if WIDTH[dtype] != WIDTH[probe.dtype]:
        return f"{probe.dtype} takes the fit of {dtype}"
    library = library_of(probe.variant) if family.names_libraries else ""
    return Key(family.name, dtype, SHORT.get(library, library) or ANY)


def held_out(group: Group) -> Array | None:
    """The rows to judge a fit by: all that have one of the held-out sizes. None if too few are left on either side."""
    sizes = group.family.held_out
    for names in (sizes, *((name,) for name in sizes)):
        held, every = np.zeros(len(group.rows), dtype=bool), EVERY * len(names)
        for name in names:
            column = group.timed.first(name)
            held |= np.isin(column, np.unique(column)[every // 2 :: every])
        if held.sum() >= LEAST_HELD and (~held).sum() >= LEAST_KEPT:
            return held
    return None
