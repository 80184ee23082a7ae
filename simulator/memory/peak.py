"""The peak of a rank's memory, and the operations that hold its bytes for microbatches.

The bytes that a microbatch holds on a stage follow from the passes that it has begun there, its *chain* of bodies. So the peak of
a rank is a sum over a few chains, each multiplied by the number of microbatches with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..program.holdings import Holding
from ..program.operations import AnyOp
from ..program.program import Program, Step
from ..units import counted
from .account import usage
from .items import Item
from .ledger import Chain, Held, Ledger, chains_of

MOST_SUMMANDS = 2
"""Largest number of summands in a formula. Longer sums are given by the number of their summands."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment of the peak of a pipeline rank, and the bytes that its microbatches hold then."""

    step: Step
    op: AnyOp
    """The operation that takes the last bytes."""
    microbatches: int
    """Number of microbatches that hold bytes, counted on every stage of the rank."""
    items: tuple[Item, ...]


class _Part(NamedTuple):
    """Bytes of one size that an operator takes in every layer and for every microbatch, or that a buffer takes."""

    kind: Holding
    what: str
    is_buffer: bool
    size_bytes: int

    def item(self, places: Mapping[tuple[int, int], int], tokens: int) -> Item:
        """The total of these bytes, held several times at each (stage, layer); given per token where tokens divide them."""
        each = f"{self.size_bytes:,} bytes"
        if not self.is_buffer and self.size_bytes % tokens == 0:
            each = f"{tokens:,} tokens x {self.size_bytes // tokens:,} bytes"
        noun = "" if self.is_buffer or self.kind is Holding.COMMUNICATION else "microbatch"
        alike = Counter((layer >= 0, count) for (_, layer), count in places.items())
        single = noun if len(alike) == 1 else ""
        times = [_times(number, in_layers, count, single) for (in_layers, count), number in alike.items()]
        factor = times[0] if len(times) == 1 else f"({' + '.join(times)}) {noun and noun + 'es'}".rstrip()
        if len(times) > MOST_SUMMANDS:
            factor = f"{sum(places.values())} layers of microbatches"
        return Item(self.kind, self.what, f"{each} x {factor}", self.size_bytes * sum(places.values()))


def peak_of(program: Program, rank: int, tokens: int) -> Peak:
    """The peak of a pipeline rank in the order of its program; `tokens` are those of a microbatch on a GPU."""
    used = {name: usage(body) for name, body in program.bodies.items()}
    found = [(*_peak_at(used[step.body] for step in order), order) for order in program.orders_of(rank)]
    _, last, order = max(found, key=lambda one: one[0])
    step, ops = order[last], program.bodies[order[last].body].ops
    _, at = _peak_at((op.held_bytes, op.held_bytes - op.freed_bytes) for op in ops)
    chains = dict(chains_of(order[: last + 1]))
    running = chains.pop((step.iteration, step.stage, step.microbatch))
    alive: Counter[tuple[int, Chain, AnyOp | None]] = Counter((stage, chain, None) for (_, stage, _), chain in chains.items())
    alive[step.stage, running, ops[at]] = 1
    parts: dict[_Part, Counter[tuple[int, int]]] = {}
    microbatches = 0
    for (stage, chain, until), count in alive.items():
        held = _held(program, stage, chain, until)
        microbatches += count * bool(held)
        for one in held:
            part = _Part(one.kind, one.what, one.is_buffer, one.size_bytes)
            parts.setdefault(part, Counter())[stage, one.op.layer] += count
    items = [part.item(places, tokens) for part, places in parts.items()]
    return Peak(step, ops[at], microbatches, tuple(sorted(items, key=lambda item: -item.size_bytes)))


def _peak_at(changes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The largest number of bytes, and the first change that reaches it. A change adds bytes for a while, and then for good."""
    most, at, alive = 0, 0, 0
    for i, (most_bytes, left_bytes) in enumerate(changes):
        if alive + most_bytes > most:
            most, at = alive + most_bytes, i
        alive += left_bytes
    return most, at


def _held(program: Program, stage: int, chain: Chain, until: AnyOp | None) -> tuple[Held, ...]:
    """The bytes that a microbatch holds while an operation of the last body of its chain runs, or (None) after the last body."""
    ledger = Ledger(program.stages[stage])
    for body in chain[:-1]:
        for op in program.bodies[body].ops:
            ledger.begin(op)
            ledger.end(op)
    for op in program.bodies[chain[-1]].ops:
        ledger.begin(op)
        if op is until:
            break
        ledger.end(op)
    return tuple(ledger.held)


def _times(places: int, in_layers: bool, count: int, noun: str) -> str:
    """A number of layers, if they are layers, times the number of microbatches in each."""
    if not in_layers:
        return counted(count * places, noun)
    return f"{counted(places, 'layer')} x {counted(count, noun)}" if noun or count > 1 else counted(places, "layer")
