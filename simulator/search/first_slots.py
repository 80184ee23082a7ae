"""Memory that the first slots of a plan need: a cheap lower bound that rejects plans before all their slots are ordered.

If a schedule can give the order of one rank, the beginning of the first rank's order is used, since in most schedules this rank
holds more microbatches than others. The memory of these slots is at most the peak over the whole order; reductions, transfers and
the optimizer, which are left out, only add to it. For a schedule that orders all ranks together another bound is used: in any
order, a microbatch has passed all stages of a rank before its gradient returns to the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

from ..bounded_cache import Cache
from ..config import derived
from ..config.scenario import Scenario
from ..frozen import replace
from ..lowering.kept_slots import kept_slots
from ..memory.account import Account, bodies_of
from ..program.layout import Layout, as_taken, placements_of
from ..program.slot import BACKWARD, FORWARD, INPUT_GRADIENT, Box, Slot
from ..simulation.memory_check import terms_of
from .slot_times import FUSED, SPLIT

TIMES = 4
"""Number of slots of the first rank that are used, per stage: enough for the warm-up of all schedules except gpipe."""


def first_slots_bytes(scenario: Scenario, kinds: tuple[str, ...] | None, kept: Cache) -> int:
    """Lower bound of the bytes that a GPU of the first rank needs, for slots of these kinds; 0 if none is known without an
    order."""
    schedule, plan = scenario.schedule, scenario.plan
    beside = plan.exchanges_beside_compute(scenario.framework.overlap)
    if kinds is None or beside or plan.shares_vocabulary:
        return 0
    shape = as_taken(schedule, derived.schedule_shape(scenario))
    placements = placements_of(schedule, shape)
    if hasattr(schedule, "order"):
        slots: tuple[Box, ...] = tuple(islice(schedule.order(0, shape), TIMES * len(placements[0])))
    elif shape.splits == 1 and kinds in (FUSED, SPLIT):
        slots = _one_microbatch(placements[0], kinds)
    else:
        return 0
    begun = Layout(shape, placements, (slots, *[()] * (shape.ranks - 1)))
    placed, dp = derived.placed(scenario), derived.replicas(scenario)
    once = _once(begun, kinds)
    program, *_ = kept_slots(scenario.model, placed, scenario.job, once, dp=dp, framework=scenario.framework, kept=kept)
    (first,) = Account(program, terms_of(scenario, begun)).memory(bodies_of(begun, program), [0])
    return first.total_bytes


def _one_microbatch(placement: Sequence[int], kinds: tuple[str, ...]) -> tuple[Slot, ...]:
    """The first microbatch on the first rank, until its gradient has come back to the last stage of the rank."""
    own = [stage for stage, rank in enumerate(placement) if rank == 0]
    (back,) = {BACKWARD, INPUT_GRADIENT} & set(kinds)
    return *(Slot(FORWARD, stage, 0) for stage in own), Slot(back, own[-1], 0)


def _once(layout: Layout, kinds: tuple[str, ...]) -> Layout:
    """One microbatch in each direction on the first rank, or as many as a sequence has parts."""
    splits, directions = layout.shape.splits, range(len(layout.placements))
    places = [(d, stage) for d in directions for stage, rank in enumerate(layout.placements[d]) if rank == 0]
    slots = tuple(Slot(kind, stage, d * splits + part) for (d, stage), part in product(places, range(splits)) for kind in kinds)
    shape = replace(layout.shape, microbatches=len(directions) * splits)
    return replace(layout, shape=shape, orders=(slots, *layout.orders[1:]))
