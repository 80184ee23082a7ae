"""Operands for PyTorch's kernels: random tensors on a device, and the backward pass of what was computed from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UserError
from .kernel_words import Probe
from .timers import Job

SEED = 1
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}


class Refused(UserError):
    """A kernel that this machine cannot run; the message says why."""


class Operands:
    """Makes random tensors on one device."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device, self.functional = torch, device, torch.nn.functional
        self.random = torch.Generator(device=device).manual_seed(SEED)

    def tensor(self, probe: Probe, *sizes: int, dtype: str = "") -> Any:
        """Random numbers; FP8 ones by way of 16 bits."""
        name = dtype or probe.dtype
        made = self.torch.randn(
            sizes, generator=self.random, device=self.device, dtype=self.dtype("bf16" if name == "fp8" else name)
        )
        return made.to(self.dtype(name)) if name == "fp8" else made

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, DTYPES[name])

    def whole(self, most: int, *sizes: int) -> Any:
        """Random whole numbers below `most`."""
        return self.torch.randint(most, sizes, generator=self.random, device=self.device)

    def backward(self, result: Any, *inputs: Any) -> Job:
        """The backward pass of what was computed from some inputs."""
        given = self.torch.randn_like(result)
        return Job(lambda: self.torch.autograd.grad(result, inputs, given, retain_graph=True))

    def needs_cuda(self, what: str) -> None:
        """Refuses what only CUDA has."""
        if self.device != "cuda":
            raise Refused(f"{what} needs CUDA")


def operators(torch: Any, call: Callable[[], object]) -> int | None:
    """How many operators of PyTorch a call runs, those on single numbers and those that move nothing left out; None if none."""
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
