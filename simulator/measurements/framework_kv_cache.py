"""What inference frameworks do before attention over a prompt, and time with it: keys and values go into a cache.

So do the public collectors whose tables are read here (ai-dynamo/aiconfigurator, collector/{sglang,vllm,trtllm}/collect_attn.py):
SGLang and vLLM copy keys and values into pages, TensorRT-LLM turns queries and keys by their positions on the way. What sees all
keys (collect_attn_encoder.py) has no cache and is the kernel alone. Training writes no cache, so this is fitted beside the
kernel, and left out of it. A kernel that looks its keys up in pages may be slower too: FlashAttention 2 on A100, whose bare times
forward and backward were published. On H100 rows with and without a cache agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..costs.kernels.attention import CACHE_PASSES, CACHE_US, Heads
from ..costs.kernels.gpu_model import Array, Machine, columns
from ..units import US_PER_S

CACHED_START: Mapping[str, float] = {CACHE_US: 1.7, CACHE_PASSES: 1.1}
"""Where fitting starts: microseconds, and passes over the bytes that are read and written, at the memory's full rate."""
CACHED_SIGMA = 0.3
"""How far they may be believed to lie from there, of their logarithms: what is moved is known."""
WITH_A_CACHE = re.compile(r"(fa3|flash_attention|torch_flow|flashinfer|trtllm_mha|vllm_\w+)$")
"""The words of those collectors for the kernels of attention, as they write them."""
TURNS_QUERIES = ("torch_flow", "trtllm_mha")
"""Of which the queries are moved too."""
READ_AND_WRITTEN = 2


def is_of_frameworks(variant: str) -> bool:
    """Whether a row's word for attention is one of those collectors' own, letter by letter."""
    return WITH_A_CACHE.match(variant.strip()) is not None


def cached_s(cache_us: float, passes: float, on: Machine, what: Heads, width: float, *, queries: bool) -> Array:
    """Seconds of writing keys and values of `width` bytes an element to a cache, and of moving the queries with them."""
    batch, seq, heads, kv_heads, head_dim = columns(what.batch, what.seq, what.heads, what.kv_heads, what.head_dim)
    moved = READ_AND_WRITTEN * width * batch * seq * head_dim * (2 * kv_heads + (heads if queries else 0))
    took_s: Array = cache_us / US_PER_S + passes * moved / on.bytes_per_s
    return took_s
