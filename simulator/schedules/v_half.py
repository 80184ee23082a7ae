"""V-Half: zero-bubble schedule of two chunks per rank in a V, with about half the activation memory of 1F1B.

The building block of arXiv 2405.15362 with 2, 1, 2 and 1 cells between neighbouring ranks in F0, F1, I1 and I0, repeated every
six cells, with the least idle cells at the turns that keep its slots apart. Activations of (P + 2) // 2 microbatches are alive
at most. For F = I = W, no latency, even P >= 4 and M >= 2P - 1 the longest rank idles 3P - 7 chunk slots. For other durations
the slots are also ordered by readiness, and the shortest result is kept. Reference: Qi et al., "Pipeline Parallelism with
Controllable Memory". Each barrier of the vocabulary adds an interval of idle cells at the loss, as in the branch v-half-vocab of
github.com/sail-sg/zero-bubble-pipeline-parallelism (92895b9, zerobubble/scheduler/zbv_greedy.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ..program.slot import Shape, Slot, snaked
from ._building_block import INTERVAL, Block, Execution, shortest

CHUNKS = 2
VOCABULARY = ("vocab-1", "vocab-2")
COST_AWARE = True
EXECUTIONS = (Execution("steady", inf), Execution("nowhere", 0))

placement = snaked


def orders(shape: Shape) -> Sequence[Sequence[Slot]]:
    idle = INTERVAL * shape.barriers + (0 if shape.ranks % 2 else 3)
    block = Block((2, 1, 2, 1), idle_at_loss=idle, idle_at_turn=1)
    return shortest(block, shape, most_alive(shape), EXECUTIONS).orders


def most_alive(shape: Shape) -> int:
    return 2 * ((shape.ranks + 2) // 2 + shape.barriers)


def in_flight(rank: int, shape: Shape) -> int:
    return min(most_alive(shape), 2 * shape.microbatches)
