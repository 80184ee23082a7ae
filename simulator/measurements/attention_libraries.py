"""Libraries of attention as tables, PyTorch and inference frameworks name them, the fit that each one takes, and their caches.

Before attention over a prompt, inference frameworks write keys and values to a cache, and time both together. So do the public
collectors whose tables are read here (ai-dynamo/aiconfigurator, collector/{sglang,vllm,trtllm}/collect_attn.py):
SGLang and vLLM copy keys and values into pages, TensorRT-LLM turns queries and keys by their positions on the way. What sees all
keys (collect_attn_encoder.py) has no cache and is the kernel alone. Training writes no cache, so this is fitted beside the
kernel, and left out of it. A kernel that looks its keys up in pages may be slower too: FlashAttention 2 on A100, whose bare times
forward and backward were published. On H100 rows with and without a cache agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ..costs.kernels.attention import FOR_AMPERE, Heads
from ..costs.kernels.estimator import SHORT, UNFUSED
from ..costs.kernels.gpu_model import Array, Machine, columns
from ..units import US_PER_S

BY_PYTORCH = "by=pytorch"
"""Follows the name of a library that is meant as PyTorch means it, the kernel alone: inference frameworks mean others by it."""
PYTORCH_ATTENTION = {"flash_attention": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "mem_efficient": "EFFICIENT_ATTENTION"}
"""Libraries that PyTorch has, and its backends."""
LIBRARIES = (
    (r"unfused|math|eager|naive", UNFUSED),
    (r"fa_?3|flash_?att(entio)?n_?v?3", "fa3"),
    (r"cudnn|torch_flow|trtllm", "torch_flow"),
    (r"fa_?2|flash|triton|flashinfer", "flash_attention"),
)
"""Patterns in the name of a library without a fit of its own, and the library whose fit it takes."""
ON_HOPPER = {
    "flash_attention": "fa3", "flashinfer": "fa3", "vllm_flash_attn": "vllm_flash_attn_fa3",
    "vllm_flashinfer": "vllm_flash_attn_fa3",
}  # fmt: skip
"""Backends of inference frameworks that run FlashAttention 3 on Hopper, or kernels of its design, by the code of public
collectors (ai-dynamo/aiconfigurator). PyTorch means FlashAttention 2 by the same name, and its rows say `by=pytorch`."""
WITH_A_CACHE = re.compile(r"(fa3|flash_attention|torch_flow|flashinfer|trtllm_mha|vllm_\w+)$")
"""The words of those collectors for the kernels of attention, as they write them."""
TURNS_QUERIES = ("torch_flow", "trtllm_mha")
"""Of which the queries are moved too."""
READ_AND_WRITTEN = 2


def library_of(variant: str) -> str:
    """The library that a row names: one spelling, without additions such as `contig=True`."""
    return "_".join(word for word in variant.lower().replace("-", "_").split() if "=" not in word)


def fitted_library(variant: str, known: Collection[str], owned: Collection[str], architecture: str) -> str:
    """The library whose fit a row takes; empty if none is known. A library of one's own profile comes first. Names that inference
    frameworks use mean the kernels that they run on GPUs of the architecture."""
    name = library_of(variant)
    short = SHORT.get(name, name)
    if short in owned:
        return short
    library = short if short in known else next((library for pattern, library in LIBRARIES if re.search(pattern, name)), "")
    if library in owned or not is_of_frameworks(variant):
        return library
    if architecture == "blackwell" and library in FOR_AMPERE:
        return ""
    return ON_HOPPER.get(name, library) if architecture == "hopper" else library


def is_of_frameworks(variant: str) -> bool:
    """Whether a row's word for attention is one of those collectors' own, letter by letter."""
    return WITH_A_CACHE.match(variant.strip()) is not None


def cached_s(cache_us: float, passes: float, on: Machine, what: Heads, width: float, *, queries: bool) -> Array:
    """Seconds of writing keys and values of `width` bytes an element to a cache, and of moving the queries with them."""
    batch, seq, heads, kv_heads, head_dim = columns(what.batch, what.seq, what.heads, what.kv_heads, what.head_dim)
    moved = READ_AND_WRITTEN * width * batch * seq * head_dim * (2 * kv_heads + (heads if queries else 0))
    took_s: Array = cache_us / US_PER_S + passes * moved / on.bytes_per_s
    return took_s
