"""Gathers of parameters after a sharded optimizer: bucket by bucket, beside the forward pass of the next training step.

The first forward pass of a stage waits for each bucket where it first needs it. That is what Megatron-LM does with
--overlap-param-gather; without it, the first forward pass of a rank waits for everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...program.op import Collective, Compute
from ...program.program import PARAMETERS, Body, Communicator, Program, Step
from .buckets import Bucket, bucket_of, named


def gathering(buckets: Mapping[Bucket, int], home: Communicator, element_bytes: int) -> Body:
    """The gathers of a stage's parameters from the ranks that updated them, in the order of its forward pass."""
    return Body(
        tuple(
            Collective(
                name=named(bucket, PARAMETERS),
                streams=(home.name,),
                layer=bucket[0],
                communicator=home.name,
                kind="all_gather",
                payload_bytes=parameters * element_bytes,
            )
            for bucket, parameters in buckets.items()
        )
    )


def first_forward(steps: tuple[Step, ...]) -> dict[int, int]:
    """The first forward step of each stage, by its position among a rank's steps, in that order."""
    first: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.phase == "F":
            first.setdefault(step.stage, i)
    return first


def waiting_for_gathers(steps: tuple[Step, ...], tail: Sequence[Step], program: Program, *, overlaps: bool) -> tuple[Step, ...]:
    """A rank's steps, the first forward pass of each stage behind the gathers of its parameters in the training step before.

    Each bucket is waited for where the pass first needs it; without overlap the rank's first pass waits for all of them.
    """
    gathered = {step.stage: step.outputs for step in tail if step.phase == "gather"}
    if not gathered:
        return steps
    changed = list(steps)
    if not overlaps:
        everything = tuple(key for outputs in gathered.values() for _, key in outputs)
        changed[0] = replace(steps[0], after=(*steps[0].after, *everything))
        return tuple(changed)
    for stage, i in first_forward(steps).items():
        needed = _first_use(program.bodies[steps[i].body])
        waits = ((needed[name], key) for name, key in gathered.get(stage, ()))
        changed[i] = replace(steps[i], waits=(*steps[i].waits, *waits))
    return tuple(changed)


def _first_use(body: Body) -> dict[str, str]:
    """For each gather of a bucket, the first op of a forward body that waits for it: a layer's first, or a table's reader."""
    first: dict[str, str] = {}
    for op in body.ops:
        if op.layer >= 0:
            first.setdefault(named((op.layer, "layer"), PARAMETERS), op.name)
        elif isinstance(op, Compute) and op.parameters:
            first.setdefault(named(bucket_of(op), PARAMETERS), op.name)
    return first
