"""Names of attention libraries in tables, PyTorch and inference frameworks, the fit of each name, and the cost of caches.

Before attention over a prompt, inference frameworks write keys and values to a cache, and time both together. So do the public
collectors whose tables are read here (ai-dynamo/aiconfigurator, collector/{sglang,vllm,trtllm}/collect_attn.py): SGLang and vLLM
copy keys and values into pages; TensorRT-LLM applies the rotary positions to queries and keys. Attention without a mask
(collect_attn_encoder.py) has no cache and is the kernel alone. Training writes no cache, so the time of the cache is fitted
beside the kernel and left out of training steps. A kernel that reads its keys from pages may be slower too: FlashAttention 2 on
A100, whose uncached times forward and backward were published. On H100 rows with and without a cache agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ..costs.kernels.attention import FOR_AMPERE, Heads
from ..costs.kernels.fit_choice import LIBRARY_ALIASES
from ..costs.kernels.gpu_model import Array, Machine, columns
from ..kernels import UNFUSED
from ..units import US_PER_S

BY_PYTORCH = "by=pytorch"
"""Suffix of a library name with PyTorch's meaning, the kernel alone: inference frameworks use the same name for other kernels."""
PYTORCH_ATTENTION = {"flash_attention": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "mem_efficient": "EFFICIENT_ATTENTION"}
"""Attention libraries of PyTorch, and PyTorch's names of these backends."""
LIBRARIES = (
    (r"unfused|math|eager|naive", UNFUSED),
    (r"fa_?3|flash_?att(entio)?n_?v?3", "fa3"),
    (r"cudnn|torch_flow|trtllm", "torch_flow"),
    (r"fa_?2|flash|triton|flashinfer", "flash_attention"),
)
"""Patterns in the name of a library without a fit, and the library whose fit such a library takes."""
ON_HOPPER = {
    "flash_attention": "fa3", "flashinfer": "fa3", "vllm_flash_attn": "vllm_flash_attn_fa3",
    "vllm_flashinfer": "vllm_flash_attn_fa3",
}  # fmt: skip
"""Backends of inference frameworks that run FlashAttention 3, or kernels of its design, on Hopper, by the code of public
collectors (ai-dynamo/aiconfigurator). PyTorch means FlashAttention 2 by the same name, and its rows say `by=pytorch`."""
WITH_A_CACHE = re.compile(
    r"(fa3|flash_attention|torch_flow|torch_flow_flashinfer|flashinfer|triton|trtllm_mha|vllm_\w+)( kv_fp8)?$"
)
"""Names of attention kernels in the tables of these collectors, in their own spelling; `kv_fp8` if the cache is in 8 bits."""
TURNS_QUERIES = ("torch_flow", "trtllm_mha")
"""Libraries that also move the queries when they write the cache."""
READ_AND_WRITTEN = 2


def library_of(variant: str) -> str:
    """The library that a row names, in one spelling and without additions such as `contig=True`."""
    return "_".join(word for word in variant.lower().replace("-", "_").split() if "=" not in word)


def fitted_library(variant: str, known: Collection[str], owned: Collection[str], architecture: str) -> str:
    """The library whose fit a row takes; empty if there is none. A library in the user's profile takes precedence. Names of
    inference frameworks stand for the kernels that the frameworks run on GPUs of the architecture."""
    name = library_of(variant)
    short = LIBRARY_ALIASES.get(name, name)
    if short in owned:
        return short
    library = named_library(variant, known)
    if library in owned or not is_of_frameworks(variant):
        return library
    if architecture == "blackwell" and library in FOR_AMPERE:
        return ""
    return ON_HOPPER.get(name, library) if architecture == "hopper" else library


def named_library(variant: str, known: Collection[str]) -> str:
    """The library that a row names, or one that is known by a part of this name; empty if there is none."""
    name = library_of(variant)
    short = LIBRARY_ALIASES.get(name, name)
    return short if short in known else next((library for pattern, library in LIBRARIES if re.search(pattern, name)), "")


def is_of_frameworks(variant: str) -> bool:
    """Whether a row's library is named exactly as inference frameworks' collectors name attention kernels."""
    return WITH_A_CACHE.match(variant.strip()) is not None


def turns_queries(variant: str) -> bool:
    """Whether the library of a row also moves the queries when it writes the cache."""
    return variant.split(" ")[0] in TURNS_QUERIES


def cached_s(cache_us: float, passes: float, on: Machine, what: Heads, width: float, *, queries: bool) -> Array:
    """Seconds of writing keys and values of `width` bytes per element to a cache; with `queries` also of moving the queries."""
    batch, seq, heads, kv_heads, head_dim = columns(what.batch, what.seq, what.heads, what.kv_heads, what.head_dim)
    moved = READ_AND_WRITTEN * width * batch * seq * head_dim * (2 * kv_heads + (heads if queries else 0))
    took_s: Array = cache_us / US_PER_S + passes * moved / on.bytes_per_s
    return took_s
