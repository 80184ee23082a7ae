"""Units of sharded state: parameters that are gathered together, and whose gradients are reduced together.

A unit is a layer of its stage, or `unit` consecutive layers, the last unit of a stage maybe fewer; or with `half-layer` attention
up to the projection of its result, and the rest of the layer. The experts of these layers are a unit of their own. Embedding and
head are units as without `unit`.

Frameworks let people choose. `fully_shard` of PyTorch takes a module or a list of modules as a unit
(torch/distributed/fsdp/_fully_shard/_fully_shard.py, pytorch/pytorch @0257dd1); torchtitan gives it each transformer block
(torchtitan/models/llama3/infra/parallelize.py, pytorch/torchtitan @37e536d). Megatron-FSDP has `fsdp_unit_modules`, classes of
modules (megatron/core/distributed/fsdp/mcore_fsdp_adapter.py, NVIDIA/Megatron-LM @d98e8a6), LLM Foundry `fsdp_wrap_fn`, which
takes the blocks of a model (llmfoundry/models/hf/hf_fsdp.py, mosaicml/llm-foundry @8c8dd48), and DeepSpeed leaf modules, chosen
by class or by `stage3_module_granularity_threshold` (deepspeed/runtime/zero/config.py, deepspeedai/DeepSpeed @edaa722).
"""

from __future__ import annotations

from typing import Literal

from ...frozen import replace
from ...kernels import Gemm, Part, Split
from ...program.operations import AnyOp, Compute
from ...program.program import Program


def units(program: Program, unit: int | Literal["half-layer"]) -> Program:
    """The program whose operations carry their unit, if it is not their layer."""
    if unit == 1:
        return program
    attention = _attention(program)

    def with_unit(op: AnyOp) -> AnyOp:
        if op.layer < 0:
            return op
        if unit == "half-layer":
            return replace(op, unit=(op.layer, "attention" if op.operator in attention else "mlp"))
        return replace(op, unit=(op.layer // unit * unit, "layer"))

    return program.with_bodies(lambda body: map(with_unit, body.ops))


def _attention(program: Program) -> set[str]:
    """The operators of every layer up to its first row layer, the projection of the result of attention."""
    found: set[str] = set()
    for body in program.bodies.values():
        passed: set[int] = set()
        for op in body.ops:
            if not isinstance(op, Compute) or op.part is not Part.FORWARD or op.layer in passed:
                continue
            found.add(op.operator)
            if isinstance(op.kernel, Gemm) and op.split is Split.ROW:
                passed.add(op.layer)
    return found
