"""Bytes of a checkpoint: weights, master copy and moments of the memory account, each counted once for all replicas.

The shares of all ranks of a tensor-parallel group are added up, so that the few parameters that each rank has a copy of (norms)
count once per rank.
"""

from __future__ import annotations

from ..frozen import replace
from ..kernels import Split
from ..plan.offload import Offload
from ..plan.plan import Shards
from ..program.holdings import Holding
from ..program.operations import Compute
from ..program.program import Program, Stage
from ..program.slot import FORWARD
from .items import Terms, static_items

SAVED = (Holding.PARAMETERS, Holding.MASTER, Holding.MOMENTS)


def saved_bytes(program: Program, terms: Terms, ranks: int, expert_ranks: int, copies: int, *, tied: bool) -> int:
    """Bytes that a checkpoint of a program holds. Its parameters are divided among `ranks`, those of experts among
    `expert_ranks`, and the pipeline holds every stage `copies` times. Copies of the table of the embedding are not saved again;
    the head has one if it shares the table (`tied`)."""
    whole = replace(
        terms, shards=Shards(), expert_shards=Shards(), offload=Offload(), narrow_parameter_bytes=0.0, narrow_bytes=(0.0, 0.0)
    )
    total = 0
    for rank in range(program.ranks):
        forward = {step.stage: program.bodies[step.body].ops for step in program.orders_of(rank)[0] if step.phase == FORWARD}
        stages = ((stage, forward[number]) for number, stage in enumerate(program.stages) if stage.rank == rank)
        kernels = [op for stage, ops in stages for op in ops if isinstance(op, Compute) and not _reads_copy(op, stage, tied=tied)]
        for expert, sharing in ((False, ranks), (True, expert_ranks)):
            ops = [op for op in kernels if op.expert is expert]
            items = static_items(ops, whole) if ops else ()
            total += sharing * sum(item.size_bytes for item in items if item.kind in SAVED)
    return total // copies


def _reads_copy(op: Compute, stage: Stage, *, tied: bool) -> bool:
    """Whether the parameters of an operator are a copy of the table of the embedding: those of a head that shares the table, in
    one piece or in chunks, and those by which a stage without the embedding looks up further tokens."""
    is_head, is_lookup = op.split is Split.COLUMN, op.split is Split.LOOKUP
    return op.layer < 0 and ((is_head and tied) or (is_lookup and not stage.embedding))
