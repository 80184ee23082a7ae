"""Whether periods of a step are expected to repeat: its slots one after the other, with the times of their kernels alone.

Where ranks have slack, as in schedules that postpone weight gradients, a slow stage delays the others only when their slack is
used up; until then each keeps its own pace, and no period is alike on all ranks. A step of slots alone takes less than a
millisecond and shows this, so that a step that would prove nothing is not simulated. A wrong guess costs time, never a proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..engine.task import Array, longest_run
from ..kernels import KernelCost
from ..lowering.build import names_of
from ..program.layout import Layout
from ..program.operations import Compute
from ..program.program import Program
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, KINDS, WEIGHT_GRADIENT

FEWEST_ALIKE = 3
"""Fewest periods that all ranks run at the same pace at the same time where a proof is expected."""


def is_expected(layout: Layout, slots_of_period: Sequence[int], programs: Sequence[Program], cost: KernelCost) -> bool:
    """Whether all ranks are expected to run some periods at the same pace; `programs` have the slots of one microbatch.

    True where slots run in pairs, or depend on each other in ways that are not known here.
    """
    known = not layout.shares and not layout.slots.place.any()
    starts_ns = _starts_ns(layout, _durations_ns(layout, programs, cost)) if known else None
    if starts_ns is None:
        return True
    passed_ns = [start_ns[slots:] - start_ns[:-slots] for start_ns, slots in zip(starts_ns, slots_of_period, strict=True)]
    paces_ns = {int(values[np.argmax(counts)]) for values, counts in (np.unique(of, return_counts=True) for of in passed_ns)}
    return any(_together_ns(starts_ns, passed_ns, pace_ns) >= FEWEST_ALIKE * pace_ns for pace_ns in paces_ns)


def _together_ns(starts_ns: Sequence[Array], passed_ns: Sequence[Array], pace_ns: int) -> int:
    """How long all ranks run at a pace at the same time; `passed_ns` is the time from each slot to that of the next period."""
    begin_ns, end_ns = 0, np.iinfo(np.int64).max
    for start_ns, of in zip(starts_ns, passed_ns, strict=True):
        run = longest_run(of == pace_ns)
        if run is None:
            return 0
        begin_ns = max(begin_ns, int(start_ns[run[0]]))
        end_ns = min(end_ns, int(start_ns[run[1] - 1 + len(start_ns) - len(of)]))
    return int(end_ns) - begin_ns


def _durations_ns(layout: Layout, programs: Sequence[Program], cost: KernelCost) -> dict[tuple[str, int, int], int]:
    """(kind, stage, part of the sequence) -> the sum of the kernels of a slot, in the program in which it is largest."""
    kernels_of = [
        {name: [op.kernel for op in body.ops if isinstance(op, Compute)] for name, body in program.bodies.items()}
        for program in programs
    ]
    # layers share kernels, and the same object is found sooner than an equal one
    kernels = {id(kernel): kernel for of in kernels_of for each in of.values() for kernel in each}
    cost_ns = {number: cost(kernel) for number, kernel in kernels.items()}
    lasts_ns: dict[tuple[str, int, int], int] = {}
    for program, of_body in zip(programs, kernels_of, strict=True):
        sums_ns = {name: sum([cost_ns[id(kernel)] for kernel in of]) for name, of in of_body.items()}
        for slot, body in names_of(layout, program).items():
            lasts_ns[slot] = max(lasts_ns.get(slot, 0), sums_ns[body])
    return lasts_ns


def _starts_ns(layout: Layout, lasts_ns: Mapping[tuple[str, int, int], int]) -> list[Array] | None:
    """The start of every slot, rank by rank, without transfers; None if slots wait for each other in a circle."""
    needs = {(kind, stage): _needed(kind, stage, layout.stages) for kind in KINDS for stage in range(layout.stages)}
    columns = ((of.kind.tolist(), of.stage.tolist(), of.microbatch.tolist()) for of in layout.columns)
    orders = [[(KINDS[kind], stage, microbatch) for kind, stage, microbatch in zip(*of, strict=True)] for of in columns]
    starts: list[list[int]] = [[] for _ in orders]
    free, ended = [0] * len(orders), dict[tuple[str, int, int], int]()
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            for kind, stage, microbatch in order[len(starts[rank]) :]:
                needed = needs[kind, stage]
                ready = ended.get((*needed, microbatch)) if needed else 0
                if ready is None:
                    break
                start = max(free[rank], ready)
                starts[rank].append(start)
                free[rank] = start + lasts_ns[kind, stage, microbatch % layout.shape.splits]
                ended[BACKWARD if kind == INPUT_GRADIENT else kind, stage, microbatch] = free[rank]
                moved = True
    whole = [len(order) for order in orders] == [len(of) for of in starts]
    return [np.array(of, dtype=np.int64) for of in starts] if whole else None


def _needed(kind: str, stage: int, stages: int) -> tuple[str, int] | None:
    """The kind and the stage of the slot for whose result a slot waits; None for a slot that only follows others of its rank."""
    if kind == FORWARD:
        return (FORWARD, stage - 1) if stage else None
    if kind == WEIGHT_GRADIENT:
        return None
    return (FORWARD, stage) if stage == stages - 1 else (BACKWARD, stage + 1)
