"""Keys and values that are copied for every head that shares them: sentence 9.12 of docs/semantics.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import simulator as sim
from simulator.kernels import Attention, Rowwise
from simulator.program.operations import Collective, Compute
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework

from .. import small_scenarios as small

TOKENS, HEADS, KEYS, DEPTH = 256, 8, 2, 64


def ops(*, repeated: bool, kv_heads: int = KEYS, **plan: Any) -> list[Any]:
    chosen = sim.Plan(**{"dp": 1, "pp": 1, **plan})
    of = small.scenario(
        small.small_model(2, kv_heads=kv_heads), small.small_cluster(1, gpus_per_node=chosen.tp * chosen.cp), chosen,
        sim.Job(sequence_length=TOKENS, global_batch=4), framework=Framework(repeated_keys=repeated),
    )  # fmt: skip
    return [op for body in program_of(of).bodies.values() for op in body.ops if op.layer == 1]


def test_t9_12_copies_forward_and_sums_backward() -> None:
    few, many = ({op.name: op for op in ops(repeated=here) if isinstance(op, Compute)} for here in (False, True))
    new = {name.partition(".")[2]: many[name].kernel for name in many if name not in few}
    assert set(new) == {f"attention_repeated_{what}{end}" for what in ("keys", "values") for end in ("", ".dgrad")}
    moved = TOKENS * DEPTH * 2 * (HEADS + KEYS)
    assert all(isinstance(kernel, Rowwise) and kernel.traffic_bytes == moved for kernel in new.values())


def test_t9_12_attention_keeps_the_copies_and_does_the_same_work() -> None:
    few, many = (next(op for op in ops(repeated=here) if isinstance(op.kernel, Attention)) for here in (False, True))
    assert many.kernel == replace(few.kernel, kv_heads=HEADS)
    assert many.held_bytes - few.held_bytes == 2 * TOKENS * DEPTH * 2 * (HEADS - KEYS)
    assert many.kernel.flop == few.kernel.flop


def test_t9_12_ranks_of_a_ring_exchange_the_copies() -> None:
    def exchanged(*, repeated: bool) -> list[int]:
        found = ops(repeated=repeated, cp=2)
        return [op.payload_bytes for op in found if isinstance(op, Collective) and op.communicator == "cp" and op.operator]

    few, many = exchanged(repeated=False), exchanged(repeated=True)
    assert many == [payload * HEADS // KEYS for payload in few] != []


def test_t9_12_heads_with_keys_of_their_own_copy_nothing() -> None:
    assert ops(repeated=True, kv_heads=HEADS) == ops(repeated=False, kv_heads=HEADS)
