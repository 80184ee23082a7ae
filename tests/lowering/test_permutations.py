"""Permutations of tokens by operators of PyTorch: sentence 9.13 of docs/semantics.md."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import simulator as sim
from simulator.kernels import Rowwise
from simulator.program.operations import Compute
from simulator.simulation.simulate import program_of
from simulator.workload.framework import Framework, Fusion

from .. import small_scenarios as small

TOKENS, HIDDEN, EACH = 256, 512, 2
EXPERTS = {"experts": 4, "experts_per_token": EACH, "expert_ffn_hidden": 256}


def ops(*, fused: bool, **plan: Any) -> list[Compute]:
    chosen = sim.Plan(**{"dp": 1, "pp": 1, **plan})
    of = small.scenario(
        small.small_model(2, **EXPERTS), small.small_cluster(1, gpus_per_node=1), chosen,
        sim.Job(sequence_length=TOKENS, global_batch=4), framework=Framework(fusion=Fusion(permutation=fused)),
    )  # fmt: skip
    found = [op for body in program_of(of).bodies.values() for op in body.ops]
    return [op for op in found if isinstance(op, Compute) and op.layer == 1]


def moved(found: list[Compute]) -> Counter[str]:
    """Bytes per element of the rows of experts, by permutation and direction."""
    bytes_of = Counter[str]()
    for op in found:
        name, back = op.name.partition(".")[2].split()[0].removesuffix(".dgrad"), op.name.endswith(".dgrad")
        if name in ("permute", "unpermute") and isinstance(op.kernel, Rowwise):
            bytes_of[f"{name}{' back' if back else ''}"] += op.kernel.traffic_bytes
    return Counter({name: whole // (TOKENS * EACH * HIDDEN) for name, whole in bytes_of.items()})


def test_t9_13_bytes_of_the_operators() -> None:
    assert moved(ops(fused=True)) == Counter({"permute": 4, "permute back": 4, "unpermute": 4, "unpermute back": 4})
    assert moved(ops(fused=False)) == Counter({"permute": 4, "permute back": 6, "unpermute": 12, "unpermute back": 16})


def test_t9_13_the_rows_that_the_routers_weights_multiply_are_kept() -> None:
    whole, apart = (sum(op.held_bytes for op in ops(fused=fused)) for fused in (True, False))
    assert apart - whole == TOKENS * EACH * HIDDEN * 2


@pytest.mark.parametrize("fused", [True, False])
def test_t9_13_the_work_of_the_model_is_the_same(fused: bool) -> None:
    assert sum(op.kernel.model_flop for op in ops(fused=fused)) == sum(op.kernel.model_flop for op in ops(fused=True))
