"""Ledger: which operations took the bytes that a microbatch holds on a stage.

Operations state how many bytes they free, but not which of the activations. They free activations of their own operator first,
then those of their layer, the latest first. The last kernel of a layer frees everything that remains of the layer, so this order
matters only within a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..errors import InvariantBroken
from ..kernels import Part
from ..program.holdings import Holding
from ..program.labels import Array, Labels, plain_name
from ..program.operations import AnyOp, Collective, Purpose
from ..program.program import Program, Stage, Step

BUFFERS = {
    Holding.GATHERED: "units in flight",
    Holding.COMMUNICATION: "buffers of reductions",
    Holding.GRADIENTS: "gradients before their reduction",
}
"""Names of the buffers of a class in items; other buffers have the name of their class."""

Passing = tuple[int, int, int]
"""A microbatch on a stage: training step, stage, microbatch."""
Chain = tuple[str, ...]
"""The bodies that a microbatch has begun on a stage, in their order."""


class Held(NamedTuple):
    """Bytes that an operation took, of a class, as a buffer or as activations."""

    kind: Holding
    op: AnyOp
    is_buffer: bool
    size_bytes: int

    @property
    def what(self) -> str:
        """The operator in words, the same in every layer."""
        if self.is_buffer:
            return BUFFERS.get(self.kind, self.kind.value)
        return words_of(self.op)


class Ledger:
    """The bytes that a microbatch holds on a stage, operation by operation."""

    def __init__(self, stage: Stage) -> None:
        self._held: dict[int, Held] = {}
        self._count = 0
        self._behind_layers = not stage.embedding

    @property
    def held(self) -> Iterable[Held]:
        return self._held.values()

    def begin(self, op: AnyOp) -> list[Held]:
        """Adds the bytes that an operation takes at its start."""
        self._behind_layers |= op.layer >= 0
        of_head = self._behind_layers and op.layer < 0 and op.part is Part.FORWARD
        kind = Holding.LOGITS if of_head else Holding.ACTIVATIONS
        from_ranks = isinstance(op, Collective) and op.purpose is not Purpose.OFFLOAD
        rest = Held(Holding.COMMUNICATION if from_ranks else kind, op, False, op.held_bytes)
        taken = [Held(buffer.kind, op, True, buffer.held_bytes) for buffer in op.buffers]
        taken.append(rest._replace(size_bytes=op.held_bytes - sum(held.size_bytes for held in taken)))
        self._held |= {self._count + i: held for i, held in enumerate(taken) if held.size_bytes}
        self._count += len(taken)
        return taken

    def end(self, op: AnyOp) -> list[Held]:
        """Removes the bytes that an operation frees at its end."""
        freed = [part for buffer in op.buffers for part in self._free(buffer.freed_bytes, self._buffers(buffer.kind))]
        return freed + self._free(op.freed_bytes - sum(part.size_bytes for part in freed), self._activations(op))

    def _buffers(self, kind: Holding) -> list[int]:
        """The buffers of a class, the earliest first."""
        return [number for number, held in self._held.items() if held.is_buffer and held.kind is kind]

    def _activations(self, op: AnyOp) -> list[int]:
        """The held bytes besides buffers, in the order in which an operation frees them."""

        def near(number: int) -> tuple[bool, bool, bool, int]:
            own = self._held[number].op
            return bool(op.operator) and own.operator == op.operator, own.layer == op.layer, isinstance(own, Collective), number

        return sorted((number for number, held in self._held.items() if not held.is_buffer), key=near, reverse=True)

    def _free(self, size_bytes: int, order: Iterable[int]) -> list[Held]:
        """Removes bytes from the held ones, in the given order."""
        freed = []
        for number in order:
            if not size_bytes:
                break
            held = self._held.pop(number)
            freed.append(held._replace(size_bytes=min(size_bytes, held.size_bytes)))
            if left_bytes := held.size_bytes - freed[-1].size_bytes:
                self._held[number] = held._replace(size_bytes=left_bytes)
            size_bytes -= freed[-1].size_bytes
        if size_bytes:
            raise InvariantBroken(f"{size_bytes} bytes are freed that the microbatch does not hold")
        return freed


def words_of(op: AnyOp) -> str:
    """The operator of an operation in words, the same in every layer."""
    operator = plain_name(op, op.operator)
    if op.purpose is Purpose.OFFLOAD:
        return "activations, from the host"
    if isinstance(op, Collective):
        return f"{operator}, other ranks"
    if op.part is not Part.FORWARD:
        return f"{operator}, gradients"
    return f"{operator}, repeated" if op.purpose is Purpose.RECOMPUTE else operator


def chains_of(steps: Iterable[Step]) -> Iterator[tuple[Passing, Chain]]:
    """For each step of a rank, its microbatch on a stage, and the bodies that this microbatch has begun by then."""
    begun: dict[Passing, Chain] = {}
    for step in steps:
        key = step.iteration, step.stage, step.microbatch
        begun[key] = (*begun.get(key, ()), step.body)
        yield key, begun[key]


def changes_by_class(program: Program, labels: Labels) -> tuple[tuple[Holding, ...], Array]:
    """The bytes that each row of a role takes at its start and adds at its end: classes, and an array of (rows, 2, classes)."""
    ends = accumulate(len(body.ops) for body in program.bodies.values())
    begin = dict(zip(program.bodies, (0, *ends), strict=False))
    numbers: dict[tuple[int, Chain], int] = {}
    of_step = [numbers.setdefault((stage, chain), len(numbers)) for (_, stage, _), chain in chains_of(labels.steps)]
    cases, case = np.unique(np.array(of_step)[labels.step] * len(labels.ops) + labels.op, return_inverse=True)
    place = {number: at for at, number in enumerate(cases.tolist())}
    found: dict[tuple[Holding, int, int], int] = {}
    for (stage, chain), number in numbers.items():
        first = number * len(labels.ops) + begin[chain[-1]]
        for i, change in enumerate(_changes(program, program.stages[stage], chain)):
            for column, (sign, parts) in enumerate(zip((1, -1), change, strict=True)):
                for part in parts:
                    key = part.kind, place[first + i], column
                    found[key] = found.get(key, 0) + sign * part.size_bytes
    kinds = tuple(kind for kind in Holding if any(kind is one for one, *_ in found))
    table = np.zeros((len(cases), 2, len(kinds)), dtype=np.int64)
    for (kind, at, column), size_bytes in found.items():
        table[at, column, kinds.index(kind)] = size_bytes
    return kinds, table[case.ravel()]


def _changes(program: Program, stage: Stage, chain: Chain) -> list[tuple[list[Held], list[Held]]]:
    """The bytes that each operation of the last body of a chain takes and frees."""
    ledger = Ledger(stage)
    bodies = [[(ledger.begin(op), ledger.end(op)) for op in program.bodies[name].ops] for name in chain]
    return bodies[-1]
