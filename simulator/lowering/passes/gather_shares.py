"""The gather of activations that were sent over the pipeline in shares, as in Megatron-LM until 2023 and in DeepSpeed.

Without sequence parallelism all ranks of a tensor-parallel group hold the same activations between layers. Each sends only its
share of them to the next stage, over its own NIC, and the receivers gather the whole over the links of their group. Reference:
Narayanan et al., arXiv 2104.04473, section 4.1; `_communicate` in megatron/p2p_communication.py, NVIDIA/Megatron-LM @aed2f75.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...frozen import replace
from ...kernels import Part
from ...program.operations import Collective, Purpose
from ...program.program import ACTIVATION, END, GRADIENT, WAIT, Body, Key, Program, Step
from .pipeline import RECEIVE
from .tensor_parallel import TP

GATHERED = "gathered"
"""First element of the keys of received values that have been gathered."""


def gather_shares(program: Program, payload_bytes: int) -> Program:
    """Adds an all-gather of `payload_bytes` before every slot that consumes a value from another rank."""
    orders = tuple(_gathering(order) for order in program.orders)
    if orders == program.orders:
        return program
    parts = {ACTIVATION: Part.FORWARD, GRADIENT: Part.INPUT_GRADIENT}
    ops = {
        _body_of(value): Collective(
            name=f"gather {value}",
            streams=(TP.name,),
            communicator=TP.name,
            kind="all_gather",
            payload_bytes=payload_bytes,
            purpose=Purpose.GATHER,
            part=part,
        )
        for value, part in parts.items()
    }
    return replace(program, bodies={**program.bodies, **{name: Body((op,)) for name, op in ops.items()}}, orders=orders)


def _gathering(order: Sequence[Step]) -> tuple[Step, ...]:
    """The steps of a rank with a gather of each received value before its consumer, or before the pair of the consumer."""
    received = {key for step in order if step.phase == RECEIVE for _, key in step.outputs}
    out: list[Step] = []
    first_of_pair: dict[int, int] = {}
    for step in order:
        at = first_of_pair.setdefault(step.pair, len(out)) if step.pair >= 0 else len(out)
        shares = [key for key in step.after if key in received and step.phase != WAIT]
        out[at:at] = [_gather(key, step) for key in shares]
        out.append(step._replace(after=tuple(_gathered(key) if key in shares else key for key in step.after)))
    return tuple(out)


def _gather(key: Key, consumer: Step) -> Step:
    body = _body_of(str(key[0]))
    return Step(body, "gather", consumer.stage, consumer.microbatch, after=(key,), outputs=((END, _gathered(key)),))


def _gathered(key: Key) -> Key:
    return (GATHERED, *key)


def _body_of(value: str) -> str:
    return f"gather {value}"
