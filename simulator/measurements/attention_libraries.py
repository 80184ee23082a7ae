"""Libraries of attention as tables, PyTorch and inference frameworks name them, and the fit that each one takes."""

from __future__ import annotations

import re
from collections.abc import Collection

from ..costs.kernels.attention import FOR_AMPERE
from ..costs.kernels.estimator import SHORT, UNFUSED
from .framework_kv_cache import is_of_frameworks

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
