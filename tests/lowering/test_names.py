"""Names of operations are for people and for references: whatever they are, every pass does the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.config.scenario import Scenario
from simulator.lowering import lower as lowering
from simulator.program.operations import AnyOp
from simulator.program.program import END, LAST, Program, Step
from simulator.simulation.simulate import program_of

from ..small_scenarios import HOST, scenario, small_cluster, small_model

PASSES = (
    "build", "vocabulary", "tensor_parallel", "context_parallel", "expert_parallel", "quantise", "decomposed_gemms",
    "accumulate", "recompute", "reduce_scales", "offload_activations", "units", "data_parallel", "zero1", "zero3", "muon",
    "offload_state", "cast_weights", "pipeline", "blocking", "gather_shares", "side_by_side", "repeat", "between_norms",
)  # fmt: skip


class Renaming:
    """New names for operations, drawn at random, no two alike; the same ones in every role."""

    def __init__(self, seed: int) -> None:
        self.seed, self.new = seed, {"": "", END: END, LAST: LAST}

    def __call__(self, name: str) -> str:
        return self.new.setdefault(name, f"{random.Random(f'{self.seed} {name}').getrandbits(64):x}")

    def op(self, op: AnyOp) -> AnyOp:
        after = None if op.after is None else tuple(map(self, op.after))
        results = tuple((self(operator), size_bytes) for operator, size_bytes in op.held_results)
        return replace(op, name=self(op.name), operator=self(op.operator), after=after, held_results=results)

    def step(self, step: Step) -> Step:
        outputs, waits = (tuple((self(name), key) for name, key in pairs) for pairs in (step.outputs, step.waits))
        return step._replace(outputs=outputs, waits=waits)

    def program(self, program: Program) -> Program:
        bodies = {name: replace(body, ops=tuple(map(self.op, body.ops))) for name, body in program.bodies.items()}
        return replace(program, bodies=bodies, orders=tuple(tuple(map(self.step, order)) for order in program.orders))


class Numbering(Renaming):
    """Names counted in the order in which they are met: what is left when they are forgotten."""

    def __init__(self) -> None:
        super().__init__(0)

    def __call__(self, name: str) -> str:
        return self.new.setdefault(name, str(len(self.new)))


def renamed_after(lower: Callable[..., Program], seed: int) -> Callable[..., Program]:
    return lambda *args, **named: Renaming(seed).program(lower(*args, **named))


MIXTURE = {"experts": 8, "experts_per_token": 2, "shared_experts": 1, "dense_layers": 1}
SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "zero1, tied": ({"tied_embeddings": True}, {"tp": 2, "pp": 2, "sharding": "zero1"}, {}, "none"),
    "whole tensors": ({}, {"tp": 2, "pp": 2, "sharding": "zero1"}, {}, "internevo-2023"),
    "zero2": ({}, {"tp": 2, "sharding": "zero2"}, {}, "torchtitan-2024"),
    "fsdp": ({"tied_embeddings": True}, {"tp": 2, "sharding": "fsdp"}, {"dtype": "fp8"}, "torchtitan-2024"),
    "hsdp in a pipeline": ({}, {"pp": 2, "sharding": sim.Sharding("hsdp", group=2, unit="half-layer")}, {}, "none"),
    "tied on one rank": ({"tied_embeddings": True}, {"tp": 2, "sharding": "zero1"}, {}, "torchtitan-2024"),
    "blocking": ({}, {"tp": 2, "pp": 4, "overlap": sim.Overlap(dp=False, tp=True, pp=False)}, {}, "megatron-lm-2021"),
    "shares of transfers": ({}, {"tp": 2, "pp": 4, "sequence_parallel": False}, {}, "megatron-lm-2021"),
    "split backward": ({}, {"tp": 2, "pp": 2, "schedule": "zb-h1", "overlap": sim.Overlap(tp=True)}, {}, "none"),
    "fp8": ({}, {"tp": 2, "pp": 2, "sharding": "zero1"}, {"dtype": "fp8"}, "megatron-core-2025"),
    "shared scales": ({}, {"tp": 2, "pp": 2, "recompute": "full"}, {"dtype": "fp8"}, "nemo-2025"),
    "fp8, no sequence parallelism": ({}, {"tp": 4, "sequence_parallel": False}, {"dtype": "fp8"}, "megatron-core-2025"),
    "pieces of GEMMs": ({}, {"tp": 4, "recompute": sim.Recompute("full", every=2), "overlap": sim.Overlap(tp="decomposed")},
        {"dtype": "fp8"}, "megatron-core-2025"),
    "ring": ({}, {"tp": 2, "cp": 4, "sharding": "zero1"}, {"dtype": "fp8"}, "megatron-core-2025"),
    "ring without balance": ({}, {"cp": 4, "pp": 2, "cp_balance": False, "recompute": "selective"}, {}, "none"),
    "ring of heads": ({}, {"cp": 8, "cp_kind": "mixed", "cp_ulysses": 4, "overlap": sim.Overlap(cp=False)}, {}, "none"),
    "all-gather": ({}, {"cp": 4, "pp": 2, "cp_kind": "all-gather", "schedule": "zb-h1"}, {}, "none"),
    "recomputed layers": ({}, {"pp": 2, "recompute": "full", "schedule": "zb-h1"}, {"dtype": "fp8"}, "megatron-core-2025"),
    "recomputed attention": ({}, {"tp": 2, "recompute": "selective", "sharding": "zero1"}, {}, "megatron-lm-2021"),
    "recomputed operators": ({}, {"tp": 2, "recompute": sim.Recompute(ops=("mlp_norm", "mlp_up"))}, {}, "torchtitan-2024"),
    "kept results": ({}, {"tp": 2, "recompute": "per-op", "sharding": sim.Sharding("fsdp", unit=2)}, {}, "torchtitan-2024"),
    "windows, norms of heads": ({"window": 64, "full_attention_every": 3, "qk_norm": "head", "norms": "both"},
        {"tp": 2, "pp": 2, "sharding": "zero1"}, {}, "torchtitan-2024"),
    "parallel layers": ({"parallel_mlp": "one_norm"}, {"tp": 2, "pp": 2}, {"dtype": "fp8"}, "megatron-core-2025"),
    "offloaded activations and optimizer": ({}, {"tp": 2, "pp": 2, "schedule": "zb-h1", "sharding": "zero1",
        "offload": sim.Offload(activations=0.5, optimizer=True, optimizer_fraction=0.5)}, {}, "none"),
    "offloaded parameters": ({}, {"tp": 2, "sharding": sim.Sharding("hsdp", group=4), "offload": "parameters"}, {},
        "torchtitan-2024"),
    "stages without layers": ({}, {"tp": 2, "pp": 4, "schedule": "zb-h1", "layout": "first=0,last=0"}, {}, "none"),
    "copies of stages": ({}, {"pp": 4, "schedule": "chimera", "sharding": "zero1"}, {}, "none"),
    "divided vocabulary": ({"positions": "learned", "max_sequence_length": 128},
        {"tp": 2, "pp": 2, "schedule": "v-half", "vocabulary": "vocab-2", "sharding": "zero1"}, {}, "megatron-lm-2021"),
    "experts": (MIXTURE, {"tp": 2, "pp": 2, "ep": 4, "sharding": "zero1"}, {"dtype": "fp8"}, "megatron-core-2025"),
    "hsdp of experts": (MIXTURE, {"tp": 2, "ep": 4, "etp": 1, "sharding": sim.Sharding("hsdp", group=2)}, {"dtype": "fp8"},
        "torchtitan-2024"),
    "further tokens": ({**MIXTURE, "mtp_layers": 2}, {"tp": 2, "pp": 2, "ep": 2, "recompute": "full"}, {"dtype": "fp8"},
        "megatron-core-2025"),
    "drawn experts": (MIXTURE, {"pp": 2, "ep": 4, "moe": sim.Moe(routing="drawn")}, {}, "none"),
    "Muon": ({}, {"tp": 2, "sharding": "zero1"}, {"optimizer": sim.Optimizer("muon", tensor_parallel="duplicated")}, "none"),
    "adapters, clipping": ({}, {"tp": 2, "pp": 2, "recompute": "full"},
        {"lora": sim.Lora(8, ("qkv", "mlp_down")), "gradient_clipping": True}, "megatron-core-2025"),
    "frozen layers, documents": ({}, {"pp": 2, "schedule": "zb-h1"},
        {"frozen_layers": 5, "packing": sim.Packing(mean=32)}, "none"),
    "experts beside compute": (MIXTURE, {"pp": 2, "ep": 4, "schedule": "dualpipe",
        "overlap": sim.Overlap(ep=True, weight_gradients=True)}, {"dtype": "fp8"}, "megatron-core-2025"),
    "DeepEP": (MIXTURE, {"pp": 2, "ep": 8, "moe": sim.Moe(dispatcher="deepep")}, {}, "torchtitan-2024"),
}  # fmt: skip


def of(model: dict[str, Any], plan: dict[str, Any], job: dict[str, Any], framework: str) -> Scenario:
    chosen = sim.Job(128, 32, 1, **job)
    return scenario(
        small_model(layers=8, **model), small_cluster(4, host=HOST), sim.Plan(**plan), chosen, framework=sim.framework(framework)
    )


@pytest.mark.thinned(10)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_pass_reads_the_names_of_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation gets another name behind every pass: programs, times and memory differ in names only."""
    chosen = of(*SCENARIOS[name])
    as_named = program_of(chosen)
    run = chosen.simulate()
    for seed, one in enumerate(PASSES):
        monkeypatch.setattr(lowering, one, renamed_after(getattr(lowering, one), seed))
    renamed = program_of(chosen)
    assert {op.name for body in renamed.bodies.values() for op in body.ops}.isdisjoint(
        op.name for body in as_named.bodies.values() for op in body.ops
    )
    assert Numbering().program(renamed) == Numbering().program(as_named)
    again = chosen.simulate()
    assert (again.metrics, again.memory) == (run.metrics, run.memory)


@pytest.mark.parametrize("model", [{}, {"mtp_layers": 2}, MIXTURE], ids=str)
@pytest.mark.parametrize("framework", sorted(catalog.files("frameworks")))
def test_names_of_operations_are_unique_with_every_framework(framework: str, model: dict[str, Any]) -> None:
    """Also where keys are repeated before attention in several kernels, and where several losses have metrics."""
    software = replace(sim.framework(framework), metrics=("loss", "accuracy"), fp32_logits=True)
    software = replace(software, fusion=replace(software.fusion, linear_cross_entropy=False))
    chosen = scenario(small_model(layers=4, **model), small_cluster(1), sim.Plan(pp=2), framework=software)
    for body in program_of(chosen).bodies.values():
        assert len({op.name for op in body.ops}) == len(body.ops)
