"""Operands for PyTorch's kernels: random tensors on a device, and backward passes of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UserError
from ...measurements.kernel_words import Probe
from .timers import Job

SEED = 1
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}


class Refused(UserError):
    """A kernel that this machine cannot run, with the reason."""


class Operands:
    """Makes random tensors on one device."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device, self.functional = torch, device, torch.nn.functional
        self.random = torch.Generator(device=device).manual_seed(SEED)

    def tensor(self, probe: Probe, *sizes: int, dtype: str = "") -> Any:
        """Random numbers; those in FP8 are made in 16 bits and cast."""
        name = dtype or probe.dtype
        made = self.torch.randn(
            sizes, generator=self.random, device=self.device, dtype=self.dtype("bf16" if name == "fp8" else name)
        )
        return made.to(self.dtype(name)) if name == "fp8" else made

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, DTYPES[name])

    def indices(self, most: int, *sizes: int) -> Any:
        """Random whole numbers below `most`."""
        return self.torch.randint(most, sizes, generator=self.random, device=self.device)

    def backward(self, result: Any, *inputs: Any) -> Job:
        """The backward pass of a result of some inputs."""
        given = self.torch.randn_like(result)
        return Job(lambda: self.torch.autograd.grad(result, inputs, given, retain_graph=True))

    def needs_cuda(self, what: str) -> None:
        """Refuses a kernel that needs CUDA on another device."""
        if self.device != "cuda":
            raise Refused(f"{what} needs CUDA")


def count_operators(torch: Any, call: Callable[[], object]) -> int | None:
    """Number of PyTorch operators that a call runs, without those on single numbers and those that move nothing; None if none."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    ran = []

    class Counts(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            sizes = [leaf.numel() for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            if max(sizes, default=0) > 1 and not func.is_view:
                ran.append(func)
            return func(*args, **(kwargs or {}))

    with Counts():
        call()
    return len(ran) or None
