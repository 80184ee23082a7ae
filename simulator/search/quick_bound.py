"""A quick lower bound of a step, of kernels alone: the longest path through the slots of a schedule.

Every rank runs the slots of its order one after the other on its compute stream, each as long as its kernels at the greatest
speed that a rank ever has; a slot begins when the slots of other stages that it needs have come to their results. Everything
else that a simulation knows (transfers, collectives, launches, the optimizer) only adds to this time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..binding.bind import Site
from ..config.scenario import Scenario
from ..errors import InvariantBroken
from ..kernels import KernelCost
from ..program.program import ACTIVATION, COMPUTE, END, GRADIENT, LAST, AnyOp, Compute, Program
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, KINDS, Layout, Slot
from ..program.slot import slots_of as slots_of_box
from ..simulation import steady_state

Place = tuple[str, int, int]
"""The kind of a slot, the instance of its stage, and the part of the sequence."""


class Work(NamedTuple):
    """The kernels of a slot, in ns: all of them, and those before what it hands to the next stage."""

    all_ns: int
    result_ns: int


def quick_bound_ns(scenario: Scenario, site: Site, layout: Layout, slots: Sequence[Program]) -> int:
    """The least time of the kernels of a step, in ns, for a scenario that `feasible.check` has passed."""
    if scenario.plan.shares_vocabulary:  # whose passes add slots that a layout does not have
        return 0
    speed = max([1.0, *(one.speed for one in scenario.perturb if one.speed)])
    of_programs = [_works(program, layout, site.cost) for program in slots]
    works = {place: _least(of[place] for of in of_programs) for place in of_programs[0]}
    if len(steady_state.to_simulate(scenario, None)) == 1:
        found_ns = _walked_ns(layout, works)
    else:
        slots_of_ranks = ([slot for box in order for slot in slots_of_box(box)] for order in layout.orders)
        found_ns = max(sum(works[_place(layout, slot)].all_ns for slot in order) for order in slots_of_ranks)
    return int(found_ns / speed)


def _least(works: Iterable[Work]) -> Work:
    """The least of what ranks at different positions do in the same slot."""
    listed = list(works)
    return Work(min(work.all_ns for work in listed), min(work.result_ns for work in listed))


def _place(layout: Layout, slot: Slot) -> Place:
    return slot.kind, layout.instance(slot.stage, slot.microbatch), slot.microbatch % layout.shape.splits


def _works(program: Program, layout: Layout, cost: KernelCost) -> dict[Place, Work]:
    """The work of every slot of a program of one microbatch for each direction."""
    of_body: dict[tuple[str, str], Work] = {}
    works: dict[Place, Work] = {}
    for order in program.orders:
        for step in order:
            if step.phase not in KINDS:
                continue
            name = next((name for name, key in step.outputs if key[0] in (ACTIVATION, GRADIENT)), END)
            if (step.body, name) not in of_body:
                of_body[step.body, name] = _work(program.bodies[step.body].ops, name, cost)
            works[step.phase, step.stage, step.microbatch % layout.shape.splits] = of_body[step.body, name]
    return works


def _work(ops: Sequence[AnyOp], result: str, cost: KernelCost) -> Work:
    """The kernels of a body, and those of them that its result has to wait for: on the way to it, or before those in order."""
    rows: dict[str, int] = {}
    ends_ns: list[int] = []
    all_ns, chain, compute = 0, -1, -1
    for row, op in enumerate(ops):
        before = [chain] if op.after is None else [rows[name] for name in op.after if name in rows]
        ends_ns.append(max((ends_ns[one] for one in before if one >= 0), default=0))
        if COMPUTE in op.streams:
            lasts_ns = min(map(cost, op.kernels())) if isinstance(op, Compute) else 0
            all_ns += lasts_ns
            ends_ns[row] = all_ns  # the stream runs its kernels in their order
            compute = row
        rows[op.name] = row
        chain = chain if op.detached else row
    at = {END: chain, LAST: compute}.get(result, rows.get(result, -1))
    return Work(all_ns, ends_ns[at] if at >= 0 else 0)


def _walked_ns(layout: Layout, works: dict[Place, Work]) -> int:
    """The end of the last slot if every rank runs its slots in order as soon as what they need is there."""
    made: dict[Slot, int] = {}
    at, free_ns = [0] * len(layout.orders), [0] * len(layout.orders)
    last = layout.stages - 1
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(layout.orders):
            while at[rank] < len(order):
                slots = slots_of_box(order[at[rank]])
                begins = [_ready_ns(slot, made, last) for slot in slots]
                if any(begin < 0 for begin in begins):
                    break
                ends, total_ns = [free_ns[rank]], 0
                for slot, begin in zip(slots, begins, strict=True):
                    work = works[_place(layout, slot)]
                    begin_ns = max(begin, free_ns[rank])
                    made[slot] = begin_ns + work.result_ns
                    ends.append(begin_ns + work.all_ns)
                    total_ns += work.all_ns
                free_ns[rank] = max(*ends, free_ns[rank] + total_ns)
                at[rank] += 1
                moved = True
    if any(number < len(order) for number, order in zip(at, layout.orders, strict=True)):
        raise InvariantBroken("the slots of a layout wait for each other")
    return max(free_ns)


def _ready_ns(slot: Slot, made: dict[Slot, int], last: int) -> int:
    """When the slots of other stages that a slot needs have their results; negative while one of them has not run."""
    kind, stage, microbatch = slot
    if kind == FORWARD:
        return made.get(Slot(FORWARD, stage - 1, microbatch), -1) if stage else 0
    if kind in (BACKWARD, INPUT_GRADIENT) and stage < last:
        after = (made.get(Slot(one, stage + 1, microbatch)) for one in (BACKWARD, INPUT_GRADIENT))
        return max((end for end in after if end is not None), default=-1)
    return 0
