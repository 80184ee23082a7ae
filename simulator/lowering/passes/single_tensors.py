"""Optimizers that update one tensor after the other: norm, clipping and update launch kernels of their own for every tensor.

Such a loop launches as many kernels as a rank has tensors, times those of an update, and the host is soon slower than the GPU.
Ranks that divide a unit hold equal parts of its tensors one behind the other, so that a rank has what its part covers: a few
tensors, or pieces of them. FSDP gives an optimizer these pieces (use_orig_params); a tensor of which a rank has nothing is left
out. All ranks are simulated as the one that has most pieces, since the others wait for it at the next gather.

References: DecoupledAdamW of Composer updates in a loop (composer/optim/decoupled_weight_decay.py, mosaicml/composer @7e8101c, of
2023-07); FullyShardedDataParallel.clip_grad_norm_ of PyTorch 2.0 takes the norm of every gradient and multiplies each by the
coefficient, and its _use_sharded_grad_views sets no gradient where a rank has no part (torch/distributed/fsdp). The wait for the
GPU before every tensor, whose number of steps Composer reads from there, is not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...frozen import replace
from ...kernels import Rowwise
from ...program.operations import AnyOp, Compute
from ...program.program import Body, Bucket, Program, bucket_of, first_forward
from .data_parallel import LOCAL_NORM, OPTIMIZER, Replicas, replica_count

Sizes = Sequence[int]
"""Parameters of tensors, in the order in which a unit holds them."""


def single_tensors(program: Program, replicas: Replicas | None) -> Program:
    """The program whose gradient norm, clipping and update take one tensor after the other; `replicas` divide them, if any do."""
    bodies = dict(program.bodies)
    for rank, steps in enumerate(program.orders):
        pieces = _pieces(program, rank, replicas)
        for name in dict.fromkeys(step.body for step in steps if step.phase in (LOCAL_NORM, OPTIMIZER)):
            bodies[name] = Body(tuple(_one_by_one(bodies[name], pieces)))
    return replace(program, bodies=bodies)


def _pieces(program: Program, rank: int, replicas: Replicas | None) -> list[int]:
    """The parameters of every tensor that a pipeline rank has, or of those parts of them that its busiest replica has."""
    units: dict[int, list[Sizes]] = {}
    for stage, at in first_forward(program.orders[rank]).items():
        tensors: dict[Bucket, list[int]] = {}
        for op in program.bodies[program.orders[rank][at].body].ops:
            if isinstance(op, Compute) and op.parameters and not op.frozen:
                tensors.setdefault(bucket_of(op), []).append(op.parameters)
        for bucket, sizes in tensors.items():
            shards = replica_count(program, stage, replicas, bucket) if replicas else 1
            units.setdefault(shards, []).append(sizes)
    return [piece for shards, of in units.items() for piece in pieces_of_busiest(of, shards)]


def pieces_of_busiest(units: Sequence[Sizes], shards: int) -> list[int]:
    """The pieces of tensors on the rank with most of them, where `shards` ranks divide each unit into equal parts."""
    parts = [-(-sum(sizes) // shards) for sizes in units]
    sizes = np.array([size for of in units for size in of], dtype=np.int64)
    part = np.repeat(parts, [len(of) for of in units])
    ends = np.concatenate([np.cumsum(of, dtype=np.int64) for of in units])
    begins, changes = ends - sizes, np.zeros(shards + 1, dtype=np.int64)
    np.add.at(changes, begins // part, 1)
    np.add.at(changes, (ends - 1) // part + 1, -1)
    busiest = int(np.cumsum(changes[:-1]).argmax())
    inside = np.minimum(ends, (busiest + 1) * part) - np.maximum(begins, busiest * part)
    pieces: list[int] = inside[inside > 0].tolist()
    return pieces


def _one_by_one(body: Body, pieces: Sequence[int]) -> Iterator[AnyOp]:
    """The kernels of a body for one tensor after the other; a pass over all tensors, such as clipping, ends before the next."""
    passes: dict[object, list[tuple[Compute, Rowwise]]] = {}
    for op in body.ops:
        if isinstance(op, Compute) and isinstance(op.kernel, Rowwise) and op.kernel.rows:
            passes.setdefault(op.purpose, []).append((op, op.kernel))
        else:
            yield op
    for of in passes.values():
        for i, piece in enumerate(pieces):
            for op, kernel in of:
                yield replace(op, name=f"{op.name}#{i}", kernel=replace(kernel, rows=piece))
