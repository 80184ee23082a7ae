"""Pipelines whose transfers block, without the product: when every slot starts, and what Megatron-LM exchanges.

The first is computed from what each rank runs and exchanges, the second written in the terms of Megatron-LM's code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator.program.layout import Layout
from simulator.program.slot import Exchange, Pair, Slot

Value = tuple[str, int, int]
"""(activation or gradient, the stage that takes it, microbatch)."""


@dataclass
class Pipeline:
    """What ranks do one after the other: boxes of slots, and exchanges (sends, receives)."""

    doing: list[list[Any]]
    rank_of: dict[int, int]
    last: int
    crossing_ns: int
    """What a transfer holds its edge for, and how much later it arrives."""
    tail_ns: int
    lasts_ns: dict[tuple[str, int], int]
    starts: dict[Slot, int] = field(default_factory=dict)
    ready: dict[Value, int] = field(default_factory=dict)
    """When a value is there for the stage that it is for."""
    free: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """When the stream of an edge has nothing to carry."""

    def run(self) -> dict[Slot, int]:
        """The start of every slot."""
        at, ended, clock = ([0] * len(self.doing) for _ in range(3))
        moved = True
        while moved:
            moved = False
            for rank, doing in enumerate(self.doing):
                while at[rank] < len(doing):
                    does = doing[at[rank]]
                    if isinstance(does, Exchange):
                        after = self._exchange(does, ended[rank], clock[rank])
                    else:
                        after = self._box(does, clock[rank])
                        ended[rank] = after if after is not None else ended[rank]
                    if after is None:
                        break
                    clock[rank] = after
                    at[rank] += 1
                    moved = True
        assert at == [len(doing) for doing in self.doing], "somebody waits for ever"
        return self.starts

    def _box(self, slot: Slot, clock: int) -> int | None:
        taken, made = self.taken(slot), self.made(slot)
        if taken is not None and taken not in self.ready:
            return None
        self.starts[slot] = max(clock, self.ready[taken] if taken else 0)
        end = self.starts[slot] + self.lasts_ns[slot.kind, slot.stage]
        if made and not self.crosses(made):
            self.ready[made] = end
        return end

    def _exchange(self, does: Exchange, begins: int, clock: int) -> int | None:
        drained, arrived = [clock], [value for slot in does.receives if (value := self.taken(slot)) and self.crosses(value)]
        for value in filter(None, map(self.made, does.sends)):
            if self.crosses(value):
                kind, stage, _ = value
                edge = (kind, self.rank_of[self.source(value)], self.rank_of[stage])
                if value not in self.ready:
                    self.free[edge] = max(begins, self.free.get(edge, 0)) + self.crossing_ns
                    self.ready[value] = self.free[edge] + self.tail_ns
                drained.append(self.ready[value] - self.tail_ns)
        if any(value not in self.ready for value in arrived):
            return None
        return max([*drained, *(self.ready[value] for value in arrived)])

    def taken(self, slot: Slot) -> Value | None:
        """What the slot takes from another stage."""
        if slot.kind == "F":
            return ("activation", slot.stage, slot.microbatch) if slot.stage else None
        return ("gradient", slot.stage, slot.microbatch) if slot.kind in "BI" and slot.stage < self.last else None

    def made(self, slot: Slot) -> Value | None:
        """What the slot makes for another stage."""
        if slot.kind == "F":
            return ("activation", slot.stage + 1, slot.microbatch) if slot.stage < self.last else None
        return ("gradient", slot.stage - 1, slot.microbatch) if slot.kind in "BI" and slot.stage else None

    def source(self, value: Value) -> int:
        kind, stage, _ = value
        return stage - 1 if kind == "activation" else stage + 1

    def crosses(self, value: Value) -> bool:
        return self.rank_of[self.source(value)] != self.rank_of[value[1]]


def by_itself(layout: Layout, rank: int) -> list[Any]:
    """What a rank does by the rule for schedules that define no exchanges: behind every slot it waits for what that sends."""
    found: list[Any] = []
    for slot in layout.orders[rank]:
        found += [slot, Exchange(slot, sends=(slot,))]  # type: ignore[arg-type]
    return found


def megatron(rank: int, ranks: int, microbatches: int, chunks: int, group: int) -> list[Any]:
    """What a rank runs and exchanges, in the terms of Megatron-LM (d98e8a6): virtual microbatches, recv_prev, recv_next."""
    table = [
        (microbatch, chunk)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + group, microbatches))
    ]
    total = len(table)
    warm_up = min(total, 2 * (ranks - rank - 1) + (chunks - 1) * group if chunks > 1 else ranks - rank - 1)
    remaining = total - warm_up

    def chunk_of(virtual: int, forward: bool) -> int:
        chunk = table[virtual][1]
        return chunk if forward else chunks - 1 - chunk

    def slot(kind: str, chunk: int, microbatch: int) -> Slot:
        return Slot(kind, chunk * ranks + rank, microbatch)

    def forward(virtual: int) -> Slot:
        return slot("F", chunk_of(virtual, True), table[virtual][0])

    def backward(virtual: int) -> Slot:
        return slot("B", chunk_of(virtual, False), table[virtual][0])

    def received(virtual: int, is_forward: bool) -> list[Slot]:
        """`recv_tensor_from_previous_stage`, and the slot of which that tensor is the input."""
        leads = rank == (0 if is_forward else ranks - 1)
        final = chunks - 1 if is_forward else 0
        kind, forth = ("F", 1) if is_forward else ("B", -1)
        if not leads:
            return [slot(kind, chunk_of(virtual + 1, is_forward), table[virtual + 1][0])]
        if virtual < ranks - 1 or chunk_of(virtual - (ranks - 1), is_forward) == final:
            return []
        sent = virtual - (ranks - 1)
        return [slot(kind, chunk_of(sent, is_forward) + forth, table[sent][0])]

    def at_once(sends: list[Slot], receives: list[Slot]) -> list[Any]:
        return [(frozenset(sends), frozenset(receives))]

    calls: list[Any] = []
    if chunks == 1:
        for i in range(warm_up):
            calls += [*at_once([], [forward(i)]), forward(i), *at_once([forward(i)], [])]
        calls += at_once([], [forward(warm_up)]) if remaining else []
        for i in range(remaining):
            calls += [forward(warm_up + i), *at_once([forward(warm_up + i)], [backward(i)]), backward(i)]
            calls += at_once([backward(i)], [forward(warm_up + i + 1)] if i < remaining - 1 else [])
        for i in range(remaining, total):
            calls += [*at_once([], [backward(i)]), backward(i), *at_once([backward(i)], [])]
        return calls
    calls += at_once([], [forward(0)])
    for k in range(warm_up):
        recv_prev = received(k, True) if k != total - 1 else []
        recv_next = [backward(0)] if k == warm_up - 1 and remaining and rank != ranks - 1 else []
        calls += [forward(k), *at_once([forward(k)], recv_prev + recv_next)]
    for k in range(remaining):
        ahead = k + warm_up
        recv_prev = received(ahead, True) if k != remaining - 1 else []
        calls += [forward(ahead), backward(k), *at_once([forward(ahead), backward(k)], recv_prev + received(k, False))]
    calls += at_once([], [backward(0)]) if not remaining else []
    for k in range(remaining, total):
        recv_next = received(k, False) if k != total - 1 else []
        calls += [backward(k), *at_once([backward(k)], recv_next)]
    return calls


def does(layout: Layout, rank: int) -> list[Any]:
    """What a rank runs and exchanges, in the same form."""
    behind: dict[Slot | None, list[Any]] = {}
    for after, sends, receives in layout.exchanges(rank):
        behind.setdefault(after, []).append((frozenset(sends), frozenset(receives)))
    boxes = [box for box in layout.orders[rank] if not isinstance(box, Pair)]
    return [*behind.get(None, []), *(thing for box in boxes for thing in (box, *behind.get(box, [])))]


def crossing(calls: list[Any], layout: Layout) -> list[Any]:
    """What remains of calls where nothing is sent that stays on its rank, before the first stage or after the last."""
    last, rank_of = layout.stages - 1, layout.placement

    def crosses(slot: Slot, towards: int) -> bool:
        other = slot.stage + towards * (1 if slot.kind == "F" else -1)
        return 0 <= other <= last and rank_of[other] != rank_of[slot.stage]

    kept: list[Any] = []
    for call in calls:
        if not isinstance(call, Slot):
            sends = frozenset(s for s in call[0] if crosses(s, 1))
            receives = frozenset(s for s in call[1] if crosses(s, -1))
            kept += [(sends, receives)] if sends or receives else []
        else:
            kept.append(call)
    return kept
