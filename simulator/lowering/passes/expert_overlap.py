"""Exchanges of experts beside compute: the forward pass of one microbatch runs with the backward pass of another.

Both passes of a pair go through their layers together, the first layer of one with the last layer of the other. While the tokens
of one pass are on their way, the other computes. In each layer the compute stream and the stream of exchanges run in this order:

    exchanges   gradients to experts   tokens to experts   gradients back   tokens back
    compute     F up to the router     B of the experts    F of the experts   B of the rest

The slots of DualPipe and its relatives are paired already. In 1F1B and interleaved schedules every backward pass that is followed
by a forward pass runs with that forward pass: a rank then has one more forward pass before its first backward pass. Warm-up and
cool-down stay the same.

This is the order of Megatron-LM's overlap_moe_expert_parallel_comm (snapshot d98e8a6): TransformerLayerSchedulePlan.run in
megatron/core/models/common/model_chunk_schedule_plan.py, get_pp_rank_microbatches in megatron/core/pipeline_parallel/schedules.py
and combined_1f1b.py beside it. DeepSeek-V3's figure 4 (arXiv 2412.19437) shows the same order of exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...frozen import replace
from ...program.layout import Layout
from ...program.operations import AnyOp, Purpose
from ...program.program import Body, Program
from ...program.slot import BACKWARD, FORWARD, Box, Pair, Slot

TO_EXPERTS = (Purpose.COUNT_ROWS, Purpose.DISPATCH)
"""Operations that begin the exchange to the experts; forward passes exchange the numbers of rows first."""
TURNS = 8
"""Turns of a layer; the numbers below are turns within a layer."""
TURNS_OF = {True: (1, 3, 5, 6, TURNS + 1), False: (-1, 0, 2, 4, 7)}
"""Whether a pass is forward -> the turns of the part before the exchanges, the way there, the experts, the way back, and the
rest.

The part after the way back runs with the part before the exchanges of the next layer.
"""


def paired(layout: Layout) -> Layout:
    """The layout in which each backward slot is paired with the forward slot after it; a layout with pairs is not changed."""
    if any(isinstance(box, Pair) for order in layout.orders for box in order):
        return layout
    orders = []
    for order in layout.orders:
        boxes: list[Box] = []
        for slot in order:
            before = boxes[-1] if boxes else None
            if isinstance(slot, Slot) and isinstance(before, Slot) and (before.kind, slot.kind) == (BACKWARD, FORWARD):
                boxes[-1] = Pair(slot, before)
            else:
                boxes.append(slot)
        orders.append(tuple(boxes))
    return replace(layout, orders=tuple(orders), defined_exchanges=())


def side_by_side(program: Program) -> Program:
    """The program whose bodies take turns in pairs, layer by layer, so that exchanges of one run beside compute of the other."""
    phase_of = {step.body: step.phase for order in program.orders for step in order if step.pair >= 0}
    bodies = {name: replace(program.bodies[name], turns=_turns(program.bodies[name], phase)) for name, phase in phase_of.items()}
    return replace(program, bodies={**program.bodies, **bodies})


def _turns(body: Body, phase: str) -> tuple[int, ...]:
    """The turn of each operation, never lower than that of the operation before it."""
    by_layer: dict[int, list[AnyOp]] = {}
    for op in body.ops:
        by_layer.setdefault(op.layer, []).append(op)
    own: dict[str, int] = {}
    layers = [ops for layer, ops in by_layer.items() if layer >= 0]
    for number, ops in enumerate(layers):
        own |= {op.name: TURNS * number + turn for op, turn in zip(ops, _turns_of_layer(ops, phase), strict=True)}
    turns, turn = [], -TURNS
    for op in body.ops:
        turn = max(turn, own.get(op.name, turn))
        turns.append(turn)
    return tuple(turns)


def _turns_of_layer(ops: Sequence[AnyOp], phase: str) -> Iterator[int]:
    """Turns of the operations of a layer. Without exchanges the half with the MLP counts as experts, the other as the rest."""
    before, there, experts, back, rest = TURNS_OF[phase == FORWARD]
    if not any(op.purpose is Purpose.DISPATCH for op in ops):
        first, second = (before, experts) if phase == FORWARD else (experts, rest)
        yield from (first if 2 * i < len(ops) else second for i in range(len(ops)))
        return
    now = before
    for op in ops:
        if op.purpose in TO_EXPERTS:
            now = there
        elif op.purpose is Purpose.COMBINE:
            now = back
        elif now == there:
            now = experts
        elif now == back and not op.detached:  # weight gradients of experts beside the way back are
            now = rest
        yield now
