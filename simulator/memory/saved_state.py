"""Bytes of a checkpoint: weights, master copy and moments of the memory account, each once, however many ranks hold or divide it.

What the ranks of a tensor-parallel group hold counts for each of them, so that the few parameters that each of them has a copy of
(norms) count as often.
"""

from __future__ import annotations

from ..frozen import replace
from ..plan.offload import Offload
from ..plan.plan import Shards
from ..program.holdings import Holding
from ..program.operations import Compute
from ..program.program import Program
from ..program.slot import FORWARD
from .items import Terms, static_items

SAVED = (Holding.PARAMETERS, Holding.MASTER, Holding.MOMENTS)
HEAD, NEXT_TABLE = "logits", "embedding_2"
"""The operator of the head, and that of the table by which further tokens are looked up, where a rank has a copy of it."""


def saved_bytes(program: Program, terms: Terms, ranks: int, expert_ranks: int, copies: int, *, tied: bool) -> int:
    """Bytes that a checkpoint of a program holds. Its parameters are divided among `ranks`, those of experts among
    `expert_ranks`, and the pipeline holds every stage so many times. A rank with the head but not the embedding has a copy of the
    table that both share (`tied`), which is not saved again."""
    tables = (NEXT_TABLE, *((HEAD,) if tied else ()))
    whole = replace(terms, shards=Shards(), expert_shards=Shards(), offload=Offload())
    total = 0
    for rank in range(program.ranks):
        forward = {step.stage: program.bodies[step.body].ops for step in program.orders_of(rank)[0] if step.phase == FORWARD}
        stages = (number for number, stage in enumerate(program.stages) if stage.rank == rank)
        kernels = [op for stage in stages for op in forward[stage] if isinstance(op, Compute) and op.operator not in tables]
        for expert, sharing in ((False, ranks), (True, expert_ranks)):
            ops = [op for op in kernels if op.expert is expert]
            items = static_items(ops, whole) if ops else ()
            total += sharing * sum(item.size_bytes for item in items if item.kind in SAVED)
    return total // copies
