"""What a framework does to a model: which kernels it fuses, what a launch costs its host, how it handles gradients and narrow
number formats.

All of it is configuration that is known before a run; nothing here is fitted to step times. The default, `none`, launches for
nothing and runs every operator as one kernel. Files in workloads/frameworks describe software that exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..kernels import NARROW_BYTES
from ..units import GIB, MIB

UNFUSED = "unfused"
"""Attention as two products with a softmax between them."""
GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Fusion:
    """What runs as one kernel. What is not fused is split into the kernels that PyTorch would launch, with their traffic."""

    norm: bool = True
    """A norm, forward and backward; else the pointwise kernels and sums that it is written with."""
    residual_norm: bool = False
    """A residual sum with the norm that follows it."""
    rope: bool = True
    activation: bool = True
    """The gate with its activation."""
    bias: bool = True
    """Biases, and the sums of their gradients, with the products that they belong to."""
    bias_activation: bool = False
    """Where they are not: with the activation that follows."""
    bias_dropout_add: bool = False
    """Bias, dropout and residual sum in one."""
    softmax: bool = True
    """Mask and softmax of unfused attention."""
    cross_entropy: bool = True
    accumulation: bool = True
    """Weight gradients are added to those of earlier microbatches by the product itself."""
    optimizer: bool = True


BY_COMPILER = (
    "norm", "residual_norm", "rope", "activation", "bias", "bias_activation", "bias_dropout_add", "softmax", "cross_entropy"
)  # fmt: skip
"""What a compiler of pointwise operators and reductions fuses."""


@dataclass(frozen=True, slots=True)
class HostTimes:
    """What the thread that drives a GPU takes to launch: seconds for each kernel, collective or captured graph."""

    kernel_s: float = 0.0
    compiled_kernel_s: float = 0.0
    """The same of a kernel in compiled code."""
    collective_s: float = 0.0
    graph_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LowPrecision:
    """How products come to run in eight or four bits, where the job's dtype asks for them."""

    formats: tuple[str, ...] = tuple(NARROW_BYTES)
    """Those that the framework has."""
    scaling: str = "delayed"
    """Of `fp8`: "delayed" takes the scale from earlier steps, "current" reads the tensor first to find its largest value."""
    norm_casts: bool = True
    """Norms write the narrow format themselves, where the scale does not need the result first."""
    activation_casts: bool = False
    """So do activations, forward and backward."""
    cached_weights: bool = True
    """Weights are cast once per step; else in every forward pass."""
    weight_gradients: bool = True
    """Weight gradients are narrow products too."""
    keeps_narrow: bool = True
    """The input of a linear layer is kept for the backward pass as it was cast; else in 16 bits, and cast again."""
    narrow_gathers: bool = True
    """Sequence parallelism gathers what has been cast already."""


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Which communication runs beside compute where the plan does not say."""

    dp: bool = True
    tp: bool = False
    pp: bool = True
    parameter_gather: bool = True
    """Of the sharded optimizer: a layer's forward pass waits for its own parameters; else the first one waits for all."""


@dataclass(frozen=True, slots=True)
class MemoryOverhead:
    """What software takes of a GPU's memory besides its tensors."""

    context_bytes: float = 0.4 * GIB
    """The CUDA context: code of kernels, stacks, workspaces of libraries."""
    nccl_buffer_bytes: float = 4.0 * MIB
    """NCCL_BUFFSIZE: the buffer of the simple protocol, for each connection and channel."""
    nccl_channels: int = 16
    """Channels of each communicator."""
    fragmentation_fraction: float = 0.0
    """What the allocator reserves and cannot use, as a share of the activations at their peak."""


@dataclass(frozen=True, slots=True)
class Framework:
    """The software of a run."""

    name: str = "none"
    attention: str = ""
    """The library of attention kernels, or `unfused`; nothing for the usual one of the GPU."""
    dropout: bool = False
    """Of hidden states and of attention, as GPTs are trained with."""
    compile: bool = False
    cuda_graphs: bool = False
    p2p_sync: bool = False
    """Where transfers block, the host waits for them too before it launches on."""
    gradients: str = "fp32"
    """The format in which gradients are accumulated and reduced."""
    fusion: Fusion = field(default_factory=Fusion)
    host: HostTimes = field(default_factory=HostTimes)
    low_precision: LowPrecision = field(default_factory=LowPrecision)
    overlap: Overlaps = field(default_factory=Overlaps)
    memory: MemoryOverhead = field(default_factory=MemoryOverhead)

    @property
    def fused(self) -> Fusion:
        """What is fused in the end: with a compiler, all that a compiler fuses."""
        return replace(self.fusion, **dict.fromkeys(BY_COMPILER, True)) if self.compile else self.fusion

    @property
    def kernel_s(self) -> float:
        """Host time of a kernel."""
        return self.host.compiled_kernel_s if self.compile else self.host.kernel_s

    @property
    def gradient_bytes(self) -> int:
        return GRADIENT_BYTES[self.gradients]
