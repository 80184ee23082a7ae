"""Memory of gradients besides those that accumulate: copies beside them, and what their reduction and the optimizer make of them.

An optimizer with an fp32 master copy reads gradients in fp32: of gradients in 16 bits it makes a copy of its share (Megatron-LM,
megatron/optimizer/optimizer.py, `_copy_model_grads_to_main_grads`).

With `MemoryOverhead.whole_gradients` a framework works on the gradients of a whole stage at once, as DeepSpeed does
(56c52238, 2022-04). Its optimizer for bf16 adds autograd's gradients to those in fp32 after a backward pass, keeps both
(runtime/bf16_optimizer.py, `update_hp_grads`), and reduces a copy in bf16 (runtime/engine.py, `communication_data_type` and
`allreduce_bucket`). Its ZeRO-1 reduces gradients through a buffer of `reduce_bucket_size`, and flattens the share of a rank before
the copy in fp32 (runtime/zero/stage_1_and_2.py). No activation leaves a hole that is large enough for these tensors.
"""

from __future__ import annotations

FP32_BYTES = 4
BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's `reduce_bucket_size`."""


def copies_bytes(parameters: int, *, gradient_bytes: int, element_bytes: int, whole: bool) -> int:
    """Bytes of gradients in the training dtype that are kept beside those that accumulate."""
    return parameters * element_bytes if whole and gradient_bytes > element_bytes else 0


def at_the_end_bytes(parameters: int, optimized: int, *, gradient_bytes: int, element_bytes: int, whole: bool) -> int:
    """Bytes that reductions and the optimizer take at the end of a step, where a rank updates `optimized` parameters."""
    if gradient_bytes == FP32_BYTES:
        return parameters * element_bytes if whole and element_bytes < FP32_BYTES else 0
    flat_bytes = BUCKET_ELEMENTS * gradient_bytes + optimized * gradient_bytes if whole else 0
    return flat_bytes + optimized * FP32_BYTES
