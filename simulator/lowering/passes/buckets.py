"""Buckets: what of a stage's parameters is reduced, and gathered, at once. A layer is one; so are the embedding and the head."""

from __future__ import annotations

from ...kernels import Split
from ...program.op import Compute
from ...program.program import Program
from ..build import op_name

Bucket = tuple[int, str]
"""(layer within the stage or -1, what it is)."""


def bucket_parameters(program: Program, stage: int) -> dict[Bucket, int]:
    """Parameters per tensor-parallel rank of each bucket of a stage: one per layer, embedding and head apart."""
    body = next(s.body for s in program.orders[program.stages[stage].rank] if s.phase == "F" and s.stage == stage)
    buckets: dict[Bucket, int] = {}
    for op in program.bodies[body].ops:
        if isinstance(op, Compute) and op.parameters:
            buckets[bucket_of(op)] = buckets.get(bucket_of(op), 0) + op.parameters
    return buckets


def bucket_of(op: Compute) -> Bucket:
    """The bucket that the parameters of an operator belong to."""
    if op.layer >= 0:
        return op.layer, "layer"
    return op.layer, "embedding" if op.split is Split.LOOKUP else "head"


def named(bucket: Bucket, purpose: str) -> str:
    """The name of the collective that moves a bucket for a purpose."""
    layer, what = bucket
    return op_name(layer, purpose if layer >= 0 else f"{what} {purpose}")
