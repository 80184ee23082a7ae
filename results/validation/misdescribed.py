"""Published rows whose description is incomplete or wrong, with the evidence. They stay in every score."""

from __future__ import annotations

from collections.abc import Mapping

EVIDENCE: Mapping[str, tuple[str, ...]] = {
    "layout and recomputation are the launcher's defaults, not stated beside the data": tuple(
        f"nemo-launcher-a100-{i:03}" for i in range(7, 12)
    ),
    "virtual pipeline is blank, which elsewhere in this table means 1F1B; the step fits the interleaved schedule of the recipe": (
        "bridge-260201-003",
    ),
    "405B: microbatch and virtual pipeline are not stated; either changes the step by a fifth": tuple(
        f"torchtitan-h100-{i:03}" for i in range(13, 19)
    ),
    "Adam on the host: neither the CPU nor its memory is stated": ("mle-h200-b200-001", "mle-h200-b200-002"),
    "a beta of FlashAttention 4, for which no kernels are published": tuple(
        f"mle-h200-b200-{i:03}" for i in range(4, 13, 2)
    ),
    "Qwen3-Next: linear attention and a multi-token head, no columns for either; the source says 'not well tuned'": (
        "moe-zoo-qwen3-006",
    ),
    "the format in which gradients are reduced is not stated: fp32, the default, takes longer over the NICs than the step took": (
        "moe-zoo-qwen3-003",
    ),
    "neither number format nor vocabulary is stated: the authors' script (sail-sg/zero-bubble-pipeline-parallelism @f68d3879) "
    "trains in fp16, with a tokenizer of its own; in fp16 and with 32,000 words these twelve are 4 to 9% too fast, and the other "
    "36 are 1 to 9%": tuple(f"zero-bubble-{i:03}" for i in range(1, 13)),
    "1F1B: steps of 4,096 tokens come out 4 points shorter than those of 2,048 in the median, as if MFU counted half of causal "
    "attention; with V-Half, in the same tables, 1 point": tuple(f"vocab-pp-{i:03}" for i in range(1, 73)),
    "131,072 tokens on GB200: the convention of the published TFLOP/s is doubtful": ("moe-zoo-qwen3-017",),
    "a branch under development; whether the balance of the routing was forced is not stated": (
        "moe-zoo-qwen3-004", "moe-zoo-qwen3-005",
    ),
    "dropless routing, whose balance is not stated; whole layers of experts are recomputed, which no column says": tuple(
        f"moe-zoo-qwen3-{i:03}" for i in (8, 10, 12, 14)
    ),
    "the notes of the source say amp_fp8, the column of the format bf16": tuple(f"mpt-{i:03}" for i in range(71, 78)),
    "the tables of H100 and A100 80 GB are of October 2023 (mosaicml/llm-foundry @b2a43a1; image pytorch:2.1.0, yamls with "
    "activation_checkpointing_reentrant: false) and January 2024 (@5e85bd6), the column says June; on PyTorch 2.1 recomputation "
    "ends early": tuple(f"mpt-{i:03}" for i in (*range(1, 78), *range(80, 139))),
    "heads are said to be 120, derived; the same document has 96 for a run of this width (NHIDDEN=14400, NHEADS=96)": tuple(
        f"bloom-prequel-{i:03}" for i in range(1, 21)
    ),
    "the source's own table flags the row": ("mpt-179",),
    "the column says 2024; the table stands in a file of June 2025 (NVIDIA/Megatron-LM @bf6e998, examples/llama/README.md), with "
    "core_r0.12.0, the configuration of NeMo's performance scripts, gradients reduced in bf16 and the loss in one kernel": tuple(
        f"mcore-llama-fp8-{i:03}" for i in range(1, 4)
    ),
    "alone among its neighbours, which differ in batch or GPUs only": ("mpt-121", "mpt-140"),
}  # fmt: skip
"""Row ids by what is wrong with their description."""
