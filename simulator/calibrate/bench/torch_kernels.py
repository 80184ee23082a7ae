"""The kernels of a table as PyTorch runs them: random operands, and a call that launches only the kernel.

Operands are random because arithmetic on constants draws less power, and a GPU that draws less power runs faster. Operands lie in
memory as in training: a weight is outputs x inputs, so that forward, input gradient and weight gradient each read their operands
in another order. A kernel that a device or a version of PyTorch cannot run is refused with PyTorch's own message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import median
from typing import Any

from ...errors import UserError
from ...measurements.attention_libraries import PYTORCH_ATTENTION, library_of
from ...measurements.kernel_words import Probe
from .timers import CpuWatch, Job, timed
from .training_step import HOST_STEP, ROPE_BASE, Builder

SEED = 1
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}
TABLE_ROWS = 2**15
"""Rows of an embedding table whose vocabulary the row does not state."""
HEAD = 128
COVER = 1.5
"""Time of the concurrent copies as a multiple of the uncontended GEMM: contention slows both."""
TRIAL_S = 0.02
"""Time in seconds for measuring the GEMM and the copy separately."""


class Refused(UserError):
    """A kernel that this machine cannot run, with the reason."""


class Kernels:
    """Builds the kernels of rows on one device, with operands."""

    def __init__(self, torch: Any, device: str, watch: CpuWatch) -> None:
        self.torch, self.device, self.functional, self.watch = torch, device, torch.nn.functional, watch
        self.zeros = False
        """Whether operands are zeros, which switch fewer bits."""
        self.random = torch.Generator(device=device).manual_seed(SEED)
        self.builders: Mapping[str, Callable[[Probe], Job]] = {
            "gemm": self.gemm, "bmm": self.batched, "attention_fwd": self.attention, "attention_bwd": self.attention,
            "cast": self.cast, "quantise": self.cast, "adam": self.adam, "copy": self.copy, "launch": self.launch,
            "overlap": self.overlap,
        }  # fmt: skip
        """Builders of kernels by operator, for all operators except memory-bound operators on rows."""

    def job(self, probe: Probe) -> Job:
        """A kernel with its operands. Raises `Refused` for a kernel that the device cannot run."""
        if probe.dtype not in DTYPES:
            raise Refused(f"no kernel for {probe.op} in {probe.dtype} here")
        return self.builders.get(probe.op, self.rowwise)(probe)

    def tensor(self, probe: Probe, *sizes: int, dtype: str = "") -> Any:
        """Random numbers; FP8 numbers are generated in 16 bits and cast."""
        name = dtype or probe.dtype
        wide = self.dtype("bf16" if name == "fp8" else name)
        if self.zeros:
            return self.torch.zeros(sizes, device=self.device, dtype=wide).to(self.dtype(name))
        return self.torch.randn(sizes, generator=self.random, device=self.device, dtype=wide).to(self.dtype(name))

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, DTYPES[name])

    def indices(self, most: int, *sizes: int) -> Any:
        """Random whole numbers below `most`, on the device."""
        return self.torch.randint(most, sizes, generator=self.random, device=self.device)

    def backward(self, result: Any, *inputs: Any) -> Job:
        """The backward pass of a result with respect to some inputs."""
        given = self.torch.randn_like(result)
        return Job(lambda: self.torch.autograd.grad(result, inputs, given, retain_graph=True))

    def needs_cuda(self, what: str) -> None:
        """Raises `Refused` for a kernel that needs CUDA on a device without CUDA."""
        if self.device != "cuda":
            raise Refused(f"{what} needs CUDA")

    # GEMMs -----------------------------------------------------------------------------------------------------------------

    def gemm(self, probe: Probe) -> Job:
        """A GEMM: forward x w', input gradient g w, or weight gradient g' x."""
        if probe.dtype == "fp8":
            return self.scaled(probe)
        if probe.variant == "fwd":
            x, w = self.tensor(probe, probe.m, probe.k), self.tensor(probe, probe.n, probe.k)
            return Job(lambda: x @ w.t())
        if not probe.variant.startswith("wgrad"):
            g, w = self.tensor(probe, probe.m, probe.k), self.tensor(probe, probe.k, probe.n)
            return Job(lambda: g @ w)
        x, g = self.tensor(probe, probe.k, probe.m), self.tensor(probe, probe.k, probe.n)
        if "acc=true" not in probe.variant:
            return Job(lambda: g.t() @ x)
        total, fp32 = self.tensor(probe, probe.n, probe.m, dtype="fp32"), self.torch.float32
        return Job(lambda: self.torch.addmm(total, g.t(), x, out_dtype=fp32, out=total))

    def scaled(self, probe: Probe) -> Job:
        """An FP8 GEMM with one scale per tensor. The backward pass accumulates in full precision, as libraries do."""
        x, w = self.tensor(probe, probe.m, probe.k), self.tensor(probe, probe.n, probe.k)
        scale, fast = self.torch.ones((), device=self.device), probe.variant == "fwd"
        made = self.dtype("bf16")
        return Job(lambda: self.torch._scaled_mm(x, w.t(), scale, scale, out_dtype=made, use_fast_accum=fast))

    def batched(self, probe: Probe) -> Job:
        x = self.tensor(probe, probe.batch, probe.m, probe.k)
        y = self.tensor(probe, probe.batch, probe.k, probe.n)
        return Job(lambda: self.torch.bmm(x, y))

    def attention(self, probe: Probe) -> Job:
        """Scaled dot-product attention by the library that the row names."""
        library = library_of(probe.variant)
        if library not in PYTORCH_ATTENTION:
            raise Refused(f"PyTorch has no attention called {probe.variant!r}")
        attend = self.torch.nn.attention
        backend = getattr(attend.SDPBackend, PYTORCH_ATTENTION[library])
        back = probe.op.endswith("_bwd")
        heads = (probe.heads, probe.kv_heads, probe.kv_heads)
        q, k, v = (self.tensor(probe, probe.batch, h, probe.seq, probe.head_dim).requires_grad_(back) for h in heads)
        grouped, causal = probe.heads != probe.kv_heads, bool(probe.causal)

        def forward() -> Any:
            with attend.sdpa_kernel(backend):
                return self.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

        return self.backward(forward(), q, k, v) if back else Job(forward)

    # Memory-bound operators ------------------------------------------------------------------------------------------------

    def rowwise(self, probe: Probe) -> Job:
        """An operator on rows, or its backward pass."""
        back, name = probe.op.endswith("_bwd"), probe.op.removesuffix("_bwd")
        name = probe.variant.partition(" ")[0] if name == "elementwise" else name
        call, inputs = self._operator(name, probe)
        if not back:
            return Job(call)
        for tensor in inputs:
            tensor.requires_grad_(True)
        return self.backward(call(), *inputs)

    def _operator(self, name: str, probe: Probe) -> tuple[Callable[[], Any], tuple[Any, ...]]:
        """A call of an operator, and the tensors for which it computes gradients."""
        f, n = self.functional, probe.n
        if name == "embedding":
            table, words = self.tensor(probe, probe.k or TABLE_ROWS, n), self.indices(probe.k or TABLE_ROWS, probe.m)
            return lambda: f.embedding(words, table), (table,)
        x = self.tensor(probe, probe.m, n)
        if name in ("rmsnorm", "layernorm"):
            weight = self.tensor(probe, n)
            norm = f.rms_norm if name == "rmsnorm" else f.layer_norm
            return lambda: norm(x, (n,), weight), (x, weight)
        if name in ("swiglu", "add", "mul"):
            y = self.tensor(probe, probe.m, n)
            call = {"swiglu": lambda: f.silu(x) * y, "add": lambda: x + y, "mul": lambda: x * y}[name]
            return call, (x, y)
        if name == "cross_entropy":
            words = self.indices(n, probe.m)
            return lambda: f.cross_entropy(x.float(), words), (x,)
        if name == "rope":
            return _rotary(self.torch, x), (x,)
        plain = {"gelu": f.gelu, "silu": f.silu, "relu": f.relu, "dropout": f.dropout, "softmax": lambda t: f.softmax(t, -1)}
        if name not in plain:
            raise Refused(f"no kernel for {name} here")
        return lambda: plain[name](x), (x,)

    def cast(self, probe: Probe) -> Job:
        """A cast from 16 bits; `quantise` also computes the scale first."""
        x, narrow = self.tensor(probe, probe.m, probe.n, dtype="bf16"), self.dtype(probe.dtype)
        if probe.op == "cast":
            return Job(lambda: x.to(narrow))
        largest = self.torch.finfo(narrow).max
        return Job(lambda: (x * (largest / x.abs().amax().float())).to(narrow))

    def adam(self, probe: Probe) -> Job:
        """One fused step of the optimizer on a single tensor."""
        parameter = self.tensor(probe, probe.m * probe.n).requires_grad_(True)
        parameter.grad = self.torch.randn_like(parameter)
        optimizer = self.torch.optim.AdamW([parameter], fused=True)
        return Job(optimizer.step)

    # Copies and launches -----------------------------------------------------------------------------------------------------

    def copy(self, probe: Probe) -> Job:
        """A copy within the device's memory, or from or to pinned memory of the host."""
        here = self.tensor(probe, probe.m * probe.n)
        if probe.variant == "d2d":
            there = self.torch.empty_like(here)
            return Job(lambda: there.copy_(here))
        self.needs_cuda("a copy between host and device")
        host = self.torch.empty(here.shape, dtype=here.dtype, pin_memory=True)
        if probe.variant == "h2d":
            return Job(lambda: here.copy_(host, non_blocking=True))
        return Job(lambda: host.copy_(here, non_blocking=True))

    def launch(self, probe: Probe) -> Job:
        """A chain of the smallest kernels, launched one after another, or at once as a graph; or a step that the host limits."""
        wait = self.torch.cuda.synchronize if self.device == "cuda" else lambda: None
        if probe.variant == "step":
            self.needs_cuda("a step that its host limits")
            step = Builder(self.torch, self.device).step(HOST_STEP)
            return Job(step, before=wait, repeat=probe.m, ahead=False)
        x = self.tensor(probe, 1)

        def chain() -> None:
            for _ in range(probe.m):
                x.add_(1)

        if probe.variant == "eager":
            return Job(chain, before=wait, repeat=probe.m, ahead=False)
        self.needs_cuda("a CUDA graph")
        chain()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            chain()
        return Job(graph.replay, repeat=probe.m, ahead=False)

    def overlap(self, probe: Probe) -> Job:
        """A GEMM while another stream copies within the device's memory, for longer than the uncontended GEMM takes."""
        self.needs_cuda("a second stream")
        gemm, cuda = self.gemm(Probe("gemm", probe.dtype, probe.m, probe.n, probe.k, variant="fwd")), self.torch.cuda
        here = self.tensor(probe, max(probe.m * probe.k, probe.n * probe.k, probe.m * probe.n))
        there, side = self.torch.empty_like(here), cuda.Stream()
        alone_s = median(timed(self.watch, gemm, TRIAL_S))
        count = math.ceil(COVER * alone_s / median(timed(self.watch, Job(lambda: there.copy_(here)), TRIAL_S)))

        def before() -> None:
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                for _ in range(count):
                    there.copy_(here)

        return Job(gemm.call, before, lambda: cuda.current_stream().wait_stream(side), alone_s=alone_s)


def _rotary(torch: Any, x: Any) -> Callable[[], Any]:
    """Rotary position embedding, which rotates one half of a head against the other, as eager code computes it."""
    rows, columns = x.shape
    width = HEAD if columns % HEAD == 0 else columns
    turns = torch.arange(0, width, 2, device=x.device) / width
    angle = torch.outer(torch.arange(rows, device=x.device), ROPE_BASE**-turns).repeat(1, 2)
    cos, sin = (wave.to(x.dtype)[:, None, :] for wave in (angle.cos(), angle.sin()))

    def rotated() -> Any:
        heads = x.view(rows, -1, width)
        low, high = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-high, low), dim=-1) * sin

    return rotated


def count_operators(torch: Any, call: Callable[[], object]) -> int | None:
    """Number of PyTorch operators that a call runs, without operators on scalars and operators that move no data. None if there
    are none, or if this version of PyTorch cannot count them."""
    with suppress(ImportError, AttributeError, RuntimeError, TypeError):
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
    return None
