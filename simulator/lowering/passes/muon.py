"""Muon: the momentum of every matrix of a layer is made orthogonal by Newton-Schulz iterations before it updates the matrix.

An iteration on a matrix of r x s, r <= s, consists of three GEMMs in bf16: A = X X', B = b A + c A A, and a X + B X, of 4 r^2 s +
2 r^3 flop. All other parameters (embedding, head, norms) are updated by Adam. Tensor-parallel ranks either take their own part of
a divided matrix as a matrix (`blockwise`), or gather the whole momentum and all do the same (`duplicated`). A sharded optimizer
gives every rank whole matrices, the largest first, each to the rank with the fewest parameters so far; all ranks are simulated as
the one with the most work, since the gather of the parameters waits for it.

References: Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982; NVIDIA/Megatron-LM,
core/optimizer/muon.py (025c931a) and layer_wise_optimizer.py (00639331, `_compute_per_buffer_param_layout`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import NamedTuple

from ...frozen import replace
from ...kernels import Gemm, Part, Rowwise, Split
from ...program.operations import COMPUTE, AnyOp, Collective, Compute, Purpose
from ...program.program import Body, Program, bucket_of, first_forward
from ...workload.optimizer import Optimizer
from .data_parallel import OPTIMIZER, Replicas, replica_count
from .tensor_parallel import TP

FP32_BYTES, HALF_BYTES = 4, 2
MOMENTUM_BYTES, NORMALISE_BYTES, UPDATE_BYTES = 12, 10, 18
"""Traffic per parameter besides the read of the gradient. The momentum is read and written, and the direction written in fp32
(12); the direction is read for its norm, read again and written in bf16 (10). Behind the iterations it is cast to fp32 (6) and
read, and the master copy read and written (12); a weight in half precision is written beside it."""


@dataclass(frozen=True, slots=True)
class Muon:
    """The values of plan, job and framework that the pass needs."""

    optimizer: Optimizer
    """The optimizer in full."""
    replicas: Replicas | None
    """Number of ranks that divide the optimizer; None if it is not divided."""
    tp: int
    gradient_bytes: int
    element_bytes: int


class Matrix(NamedTuple):
    """A matrix on a rank: its shape there, the side (0 or 1) that tensor parallelism divides, and whether it is an expert's."""

    rows: int
    columns: int
    divided: int | None
    expert: bool

    @property
    def parameters(self) -> int:
        return self.rows * self.columns


def muon(program: Program, plan: Muon) -> Program:
    """The program in which the optimizer updates the matrices of layers by Muon, and the rest as before."""
    bodies = dict(program.bodies)
    for rank, steps in enumerate(program.orders):
        name = next(step.body for step in steps if step.phase == OPTIMIZER)
        matrices, others = _parameters(program, rank, plan)
        bodies[name] = Body(tuple(_with_matrices(bodies[name], matrices, others, plan)))
    return replace(program, bodies=bodies)


def _parameters(program: Program, rank: int, plan: Muon) -> tuple[Counter[Matrix], int]:
    """The matrices that the busiest replica of a rank updates, and the number of other parameters of each replica."""
    matrices: dict[int, list[Matrix]] = {}
    others: Counter[int] = Counter()
    for stage, at in first_forward(program.orders[rank]).items():
        for op in program.bodies[program.orders[rank][at].body].ops:
            if not isinstance(op, Compute) or op.frozen or not op.parameters:
                continue
            shards = replica_count(program, stage, plan.replicas, bucket_of(op)) if plan.replicas else 1
            if op.is_matrix and isinstance(op.kernel, Gemm):
                divided = (
                    {Split.COLUMN: 1, Split.GATHERED: 1, Split.ROW: 0}.get(op.split) if plan.tp > 1 and not op.expert else None
                )
                matrix = Matrix(op.kernel.k, op.kernel.n, divided, op.expert)
                matrices.setdefault(shards, []).extend([matrix] * op.kernel.batch)
            else:
                others[shards] += op.parameters
    busiest: Counter[Matrix] = Counter()
    for shards, of in matrices.items():
        busiest += max(_shared_out(of, shards), key=lambda own: sum(n * newton_schulz_flop(m) for m, n in own.items()))
    return busiest, sum(-(-number // shards) for shards, number in others.items())


def _shared_out(matrices: list[Matrix], shards: int) -> list[Counter[Matrix]]:
    """The matrices of each rank: the largest come first, and each goes to the rank with the fewest parameters so far."""
    own: list[Counter[Matrix]] = [Counter() for _ in range(shards)]
    loads = [(0, shard) for shard in range(shards)]
    heapify(loads)
    for matrix in sorted(matrices, key=lambda matrix: -matrix.parameters):
        load, shard = loads[0]
        own[shard][matrix] += 1
        heapreplace(loads, (load + matrix.parameters, shard))
    return own


def newton_schulz_flop(matrix: Matrix) -> int:
    """Flop of one iteration."""
    small, large = sorted(matrix[:2])
    return 4 * small**2 * large + 2 * small**3


def _with_matrices(body: Body, matrices: Mapping[Matrix, int], others: int, plan: Muon) -> Iterator[AnyOp]:
    """The kernels of the update: of Adam over the other parameters, and of Muon over the matrices."""
    for op in body.ops:
        if op.purpose is not Purpose.UPDATE or not isinstance(op, Compute) or not isinstance(op.kernel, Rowwise):
            yield op
        elif others:
            yield replace(op, kernel=replace(op.kernel, rows=others))
    parameters = sum(number * matrix.parameters for matrix, number in matrices.items())
    if not parameters:
        return
    yield _kernel("momentum", Rowwise("momentum", parameters, 1, FP32_BYTES, MOMENTUM_BYTES + plan.gradient_bytes))
    for kind, (matrix, number) in enumerate(matrices.items()):
        # grouped experts are one batch, other matrices follow each other
        for i in range(1 if matrix.expert else number):
            yield from _orthogonal(f"matrix {kind}.{i}", matrix, number if matrix.expert else 1, plan)
    written_bytes = HALF_BYTES if plan.element_bytes < FP32_BYTES else 0
    yield _kernel("update of matrices", Rowwise("update", parameters, 1, FP32_BYTES, UPDATE_BYTES + written_bytes))


def _orthogonal(name: str, matrix: Matrix, batch: int, plan: Muon) -> Iterator[AnyOp]:
    """The Newton-Schulz iterations on the momentum of a matrix, or of a batch of matrices."""
    sides = [matrix.rows, matrix.columns]
    if matrix.divided is not None and plan.optimizer.tensor_parallel == "duplicated":
        sides[matrix.divided] *= plan.tp
        yield Collective(
            name=f"{name}.gather",
            streams=(TP.name,),
            purpose=Purpose.UPDATE,
            part=Part.OPTIMIZER,
            communicator=TP.name,
            kind="all_gather",
            payload_bytes=sides[0] * sides[1] * FP32_BYTES,
        )
    small, large = sorted(sides)
    yield _kernel(f"{name}.normalise", Rowwise("normalise", batch * small, large, HALF_BYTES, NORMALISE_BYTES))
    for step in range(plan.optimizer.newton_schulz_steps or 0):
        for i, (n, k) in enumerate(((small, large), (small, small), (large, small))):
            yield _kernel(f"{name}.{step}.{i}", Gemm(small, n, k, HALF_BYTES, batch=batch))


def _kernel(name: str, kernel: Gemm | Rowwise) -> Compute:
    return Compute(name=name, streams=(COMPUTE,), purpose=Purpose.UPDATE, part=Part.OPTIMIZER, kernel=kernel)
