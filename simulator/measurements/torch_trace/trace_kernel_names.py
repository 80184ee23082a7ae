"""Operators and collectives by the names of GPU kernels, where no operator of the trace is known.

The names are from public profiles of 2023 to 2026: of PyTorch, cuDNN, FlashAttention 2 and 3, xFormers, Transformer
Engine, Apex, cuBLAS and CUTLASS, and the kernels of PyTorch's symmetric memory.
"""

from __future__ import annotations

import re

COLLECTIVES = (
    (r"all_?reduce|cross_device_reduce", "all_reduce"), (r"all_?gather", "all_gather"),
    (r"reduce_?scatter", "reduce_scatter"), (r"all_?to_?all", "alltoall"), (r"broadcast", "broadcast"),
    (r"send|recv", "sendrecv"),
)  # fmt: skip
COLLECTIVE_KERNEL = re.compile(r"^(void )?(nccl|rccl)|multimem_|(one|two)_shot_all_?reduce|cross_device_reduce", re.IGNORECASE)
"""Kernels of NCCL and RCCL, and of libraries that access their peers' memory themselves: torch.ops.symm_mem, vLLM."""
COMPILED = re.compile(r"^triton_(poi|per|red|for)_")
"""Kernels that a compiler fused: their names list all operators around them, and they are none of those."""
OPERATORS = (
    (r"rms_?norm", "rmsnorm"), (r"layer_?norm|\bln_(fwd|bwd)|GammaBeta|cuComputeGradInput", "layernorm"),
    (r"rope|rotary", "rope"), (r"flash|fmha|attention|sdpa|dot_do_o|convert_dq", "attention"),
    (r"gemm|cutlass|cublas|nvjet|xmma|wgmma|splitK", "gemm"), (r"cross_?entropy|nll_loss|log_?soft_?max", "cross_entropy"),
    (r"soft_?max", "softmax"), (r"adam", "adam"), (r"swiglu|silu_?(and_)?mul", "swiglu"), (r"embedding", "embedding"),
)  # fmt: skip
BACKWARD = re.compile(r"bwd|backward|bprop|cutlassB|grad|dot_do_o|convert_dq", re.IGNORECASE)
"""Includes the two kernels around attention's backward pass: sums of output and gradient, and the cast of dq."""
ONE_WAY = ("gemm", "adam")
"""Operators whose names tell no direction."""


def collective_of(name: str) -> str:
    """The kind of a collective by its name in a trace; empty if it is unknown."""
    return next((kind for pattern, kind in COLLECTIVES if re.search(pattern, name, re.IGNORECASE)), "")


def operator_of(kernel: str) -> str:
    """The operator of a kernel by its name alone; empty if the name does not tell."""
    if COMPILED.match(kernel):
        return ""
    op = next((op for pattern, op in OPERATORS if re.search(pattern, kernel, re.IGNORECASE)), "")
    if not op or op in ONE_WAY:
        return op
    back = BACKWARD.search(kernel) is not None
    return f"{op}_bwd" if back else "attention_fwd" if op == "attention" else op
