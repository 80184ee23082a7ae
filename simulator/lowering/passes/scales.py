"""Scales of delayed scaling: at the end of every pass through a stage, ranks agree on the largest values that they have seen.

Transformer Engine keeps the largest value of every tensor of a narrow GEMM: of input, weights and result forward, of two
gradients backward. At the end of the autocast context, which in Megatron Core contains all layers of a stage, they are joined in
one tensor, reduced to their maximum over a group of ranks, and turned into scales. The reduction is in the order of the kernels:
all later kernels wait for it, and so for the slowest rank of the group. In Megatron Core the group is all ranks that hold the
stage (0.5, 0.12), or those that divide its tensors and sequences (0.8, and later with `tp_only_amax_red`).

References: reduce_and_update_fp8_tensors and fp8_autocast_exit, transformer_engine/pytorch/fp8.py, NVIDIA/TransformerEngine
v1.8; transformer_block.py and get_amax_reduction_group of parallel_state.py, megatron/core, NVIDIA/Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ...frozen import replace
from ...kernels import Gemm, Part
from ...plan.mesh import REPLICAS
from ...program.operations import COMPUTE, AnyOp, Communicator, Compute, Purpose, collective_for
from ...program.program import Body, Program

GROUPS = {
    "replicas": Communicator("scales", "dp", ("tp", "cp", "dp", REPLICAS)),
    "tp": Communicator("scales", "tp", ("tp", "cp")),
}
VALUES = {Part.FORWARD: 3, Part.INPUT_GRADIENT: 2}
"""Tensors of a GEMM whose largest values are kept, by the part whose pass ends with their reduction."""
VALUE_BYTES = 4


def reduce_scales(program: Program, over: Literal["replicas", "tp"], ranks: int) -> Program:
    """The program whose passes with narrow GEMMs end with the reduction of the largest values over a group of `ranks`."""
    if ranks == 1:
        return program
    group = GROUPS[over]

    def reduced(body: Body) -> Iterator[AnyOp]:
        yield from body.ops
        narrow = [op for op in body.ops if isinstance(op, Compute) and isinstance(op.kernel, Gemm) and op.kernel.dtype]
        once = [op for op in narrow if op.part in VALUES and op.purpose is not Purpose.RECOMPUTE]
        if once:  # a GEMM in pieces counts as one
            size_bytes = VALUE_BYTES * sum(VALUES[part] for _, part in dict.fromkeys((op.operator, op.part) for op in once))
            reduction = collective_for(once[-1], group, Purpose.REDUCE_SCALES, "all_reduce", size_bytes)
            yield replace(reduction, streams=(COMPUTE, group.name), layer=-1, operator="")

    return program.with_communicators(group).with_bodies(reduced)
