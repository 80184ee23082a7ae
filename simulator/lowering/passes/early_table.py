"""Gradients of a tied table before other weight gradients, so that the other end of the pipeline need not wait for these.

Where W are slots of their own, a rank ends its step with several of them. The sum of a tied table's gradients over both ends of
the pipeline needs only their part for the table, which therefore goes first; the sum then runs beside the other weight gradients
(WeightGradStore.clear in megatron/core/weight_grad_store.py, sail-sg/zero-bubble-pipeline-parallelism @f68d3879, which sorts the
weight gradients after the last other slot by their parameters). Otherwise the first stage, which has ended its W by then, would
wait for those of the last stage in every step.
"""

from __future__ import annotations

from ...kernels import Part
from ...program.operations import COMPUTE, AnyOp, Wait
from ...program.program import END, Body, Key, Step
from ...program.slot import WEIGHT_GRADIENT

COMPUTED: Key = ("table", "computed")
"""The key of the rank's gradients of the table."""


def table_first(steps: tuple[Step, ...], bodies: dict[str, Body]) -> tuple[Step, ...]:
    """The steps of a rank, each W at its end in two: first all parts for the table, the last of which makes the gradients of the
    table, then the others. The same steps if the rank does not end with W. New bodies are added to `bodies`."""
    at = len(steps)
    while at and steps[at - 1].phase == WEIGHT_GRADIENT:
        at -= 1
    last = steps[at:]
    for name in dict.fromkeys(step.body for step in last):
        if (divided := _divided(bodies[name])) is None:
            return steps
        bodies[_of_table(name)], bodies[_others(name)] = divided
    first = [Step(_of_table(step.body), step.phase, step.stage, step.microbatch) for step in last]
    first[-1:] = [step._replace(outputs=((END, COMPUTED),)) for step in first[-1:]]
    return (*steps[:at], *first, *(step._replace(body=_others(step.body)) for step in last))


def computes_table_first(steps: tuple[Step, ...]) -> bool:
    return any((END, COMPUTED) in step.outputs for step in steps)


def _of_table(body: str) -> str:
    return f"{body}, table"


def _others(body: str) -> str:
    return f"{body}, without table"


def _divided(body: Body) -> tuple[Body, Body] | None:
    """The weight gradients of embedding and head, and those of the layers; None where one waits for one of the other part."""
    table = tuple(op for op in body.ops if op.layer < 0)
    others = tuple(op for op in body.ops if op.layer >= 0)
    return None if _waits(table, others) or _waits(others, table) else (_with_work(table), _with_work(others))


def _waits(ops: tuple[AnyOp, ...], others: tuple[AnyOp, ...]) -> bool:
    """Whether an operation names one of the others among those that it waits for."""
    names = {op.name for op in others}
    return any(not names.isdisjoint(op.after or ()) for op in ops)


def _with_work(ops: tuple[AnyOp, ...]) -> Body:
    return Body(ops or (Wait(name="no gradients", streams=(COMPUTE,), part=Part.WEIGHT_GRADIENT),))
