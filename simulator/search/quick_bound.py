"""Quick lower bound of a step, for any order of its slots: head, busy time and tail of the slowest rank.

- Head: nothing starts on a rank before the first microbatch has come through all stages before the earliest one of the rank.
- Busy: the slots of all microbatches, one after the other on the compute stream, each from its first kernel to its last with the
  tensor-parallel or expert collectives that must finish in between. Paired slots hide each other's collectives: a pair counts
  from its first kernel to its last, or only kernels are counted.
- Tail: the last slot of a rank is a backward pass of one of its stages, and its gradient has to go back through all earlier
  stages. If weight gradients are separate slots, one of these is the last, and nothing has to follow.

If consecutive steps overlap, a rank still needs its busy time for each step. Everything else that a simulation includes
(transfers, reductions, launches, the optimizer) only adds to this time. The bound is cheap enough to be computed for every plan;
`bound.py` has the bound of a given order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..program.slot import BACKWARD, FORWARD, WEIGHT_GRADIENT
from .slot_times import PlanSlots, SlotTime


def quick_bound_ns(slots: PlanSlots, *, together: bool, paired: bool) -> int:
    """The least time of a step, in ns. `together`: all ranks begin a step at the same time, and it ends when all have ended.

    `paired`: a forward and a backward slot may run together, and hide each other's collectives.
    """
    of_ranks: dict[int, list[int]] = {}
    for instance, stage in enumerate(slots.instances):
        if slots.microbatches[instance // slots.stages]:
            of_ranks.setdefault(stage.rank, []).append(instance)
    busy_ns = {rank: _busy_ns(slots, own, paired=paired) for rank, own in of_ranks.items()}
    if not together:
        return max(busy_ns.values())
    head_ns = _heads_ns(slots)
    tail_ns = [0] * len(slots.instances) if paired or WEIGHT_GRADIENT in slots.kinds else _tails_ns(slots)
    return max(
        min(head_ns[one] for one in own) + busy_ns[rank] + max(0, min(tail_ns[one] for one in own))
        for rank, own in of_ranks.items()
    )


def _busy_ns(slots: PlanSlots, own: Sequence[int], *, paired: bool) -> int:
    busy_ns = sum(slots.microbatches[one // slots.stages] * slots.busy_ns(one, kernels=paired) for one in own)
    return max(busy_ns, _of_pairs_ns(slots, own))


def _of_pairs_ns(slots: PlanSlots, own: Sequence[int]) -> int:
    """The least time of the slots of all microbatches on a rank, each alone or in a pair; 0 without the times of pairs.

    Each slot has a share of that time: a backward slot its own time, and a forward slot the least excess of any pair over the
    share of its backward slot, but at most its own time. So no pair takes less than its two shares.
    """
    if not slots.pairs_ns:
        return 0
    backward_ns = {one: slots.busy_ns(one, kernels=False) - slots.times[FORWARD, one, 0].through_ns for one in own}
    forward_ns = {
        one: min(slots.times[FORWARD, one, 0].through_ns, *(slots.pairs_ns[one, other] - backward_ns[other] for other in own))
        for one in own
    }
    return sum(slots.microbatches[one // slots.stages] * (forward_ns[one] + backward_ns[one]) for one in own)


def _heads_ns(slots: PlanSlots) -> list[int]:
    """Instance -> the time until a microbatch, or a part of its sequences, reaches a stage, in ns."""
    heads_ns: list[int] = []
    for instance in range(len(slots.instances)):
        first = instance % slots.stages == 0
        heads_ns.append(0 if first else heads_ns[-1] + min(time.result_ns for time in _of(slots, FORWARD, instance - 1)))
    return heads_ns


def _tails_ns(slots: PlanSlots) -> list[int]:
    """Instance -> from the end of the last kernel of a stage, if its backward pass is the last slot of the rank, to the end of
    the first stage's backward pass; negative if its gradient leaves before its last kernel."""
    tails_ns: list[int] = []
    for instance in range(len(slots.instances)):
        if instance % slots.stages == 0:
            between_ns, ends_ns = 0, min(time.ends_ns for time in _of(slots, BACKWARD, instance))
            tails_ns.append(0)
        else:
            tails_ns.append(min(time.result_behind_ns for time in _of(slots, BACKWARD, instance)) + between_ns + ends_ns)
            between_ns += min(time.result_ns for time in _of(slots, BACKWARD, instance))
    return tails_ns


def _of(slots: PlanSlots, kind: str, instance: int) -> list[SlotTime]:
    """The times of the parts of a slot."""
    return [slots.times[kind, instance, part] for part in range(slots.parts)]
