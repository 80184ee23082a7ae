"""What the name of a GPU's kernel tells, where no operator of the trace does: its family and direction, or its collective.

Names are those that public profiles of 2023 to 2026 show: of PyTorch, cuDNN, FlashAttention 2 and 3, xFormers, Transformer
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
"""NCCL's and RCCL's kernels, and those that reach into their peers' memory themselves: torch.ops.symm_mem, vLLM's."""
COMPILED = re.compile(r"^triton_(poi|per|red|for)_")
"""What a compiler fused, named after all operators around it: it is none of them."""
FAMILIES = (
    (r"rms_?norm", "rmsnorm"), (r"layer_?norm|\bln_(fwd|bwd)|GammaBeta|cuComputeGradInput", "layernorm"),
    (r"rope|rotary", "rope"), (r"flash|fmha|attention|sdpa|dot_do_o|convert_dq", "attention"),
    (r"gemm|cutlass|cublas|nvjet|xmma|wgmma|splitK", "gemm"), (r"cross_?entropy|nll_loss|log_?soft_?max", "cross_entropy"),
    (r"soft_?max", "softmax"), (r"adam", "adam"), (r"swiglu|silu_?(and_)?mul", "swiglu"), (r"embedding", "embedding"),
)  # fmt: skip
BACKWARD = re.compile(r"bwd|backward|bprop|cutlassB|grad|dot_do_o|convert_dq", re.IGNORECASE)
"""With the two kernels that stand around the one that does the work: sums of output and gradient, and the cast of dq."""
ONE_WAY = ("gemm", "adam")
"""Families that have no direction of their own."""


def collective_of(name: str) -> str:
    """The kind of a collective by its name in a trace; nothing if it is none that we know."""
    return next((kind for pattern, kind in COLLECTIVES if re.search(pattern, name, re.IGNORECASE)), "")


def family_of(kernel: str) -> str:
    """The operator that a kernel is of, by its name alone; nothing if that does not tell."""
    if COMPILED.match(kernel):
        return ""
    ours = next((ours for pattern, ours in FAMILIES if re.search(pattern, kernel, re.IGNORECASE)), "")
    if not ours or ours in ONE_WAY:
        return ours
    back = BACKWARD.search(kernel) is not None
    return f"{ours}_bwd" if back else "attention_fwd" if ours == "attention" else ours
