"""Loads that hold a GPU for seconds: kernels, a layer and whole training steps, to see clock and power settle.

Kernel tables are timed in short loops, before the power management of a board reacts; training steps are not. Each load runs by
itself. With a `share` the GPU waits between kernels for the rest of the time: at the power limit, a kernel that runs for a
fraction of the time may draw more while it runs, which shows how the clock depends on the power without changing the limit. On
zeros, fewer bits switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...measurements.kernel_words import Probe, kernel_of
from .timers import Job
from .torch_kernels import Kernels
from .training_step import Builder, Decoder

SQUARE = Probe("gemm", "bf16", 8192, 8192, 8192, variant="fwd")
MLP = Probe("gemm", "bf16", 8192, 28672, 4096, variant="fwd")
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
ATTENTION = [(op, library) for library in ("flash_attention", "cudnn") for op in ("attention_fwd", "attention_bwd")]
KERNELS = (
    SQUARE,
    replace(SQUARE, dtype="fp8"),
    MLP,
    replace(MLP, dtype="fp8"),
    Probe("gemm", "bf16", 4096, 28672, 8192, variant="wgrad"),
    Probe("gemm", "bf16", 4096, 4096, 4096, variant="fwd"),
    Probe("gemm", "bf16", 2048, 8192, 1024, variant="fwd"),
    *(Probe(op, "bf16", 0, 0, 0, 1, 8192, 32, 8, 128, True, f"{library} by=pytorch") for op, library in ATTENTION),
    *(Probe(op, "bf16", 0, 0, 0, 2, 4096, 32, 32, 128, True, f"{library} by=pytorch") for op, library in ATTENTION),
    Probe("copy", "bf16", 1, 2**29, variant="d2d"),
    Probe("rmsnorm", "bf16", 16384, 8192),
    Probe("swiglu", "bf16", 16384, 16384, variant="eager"),
    Probe("adam", "fp32", 1, 2**28),
)
DECODERS = {
    "8b of 6 layers": Decoder(6, 4096, 32, 8, 14336, 32000, 8192, 1),
    "13b of 5 layers": Decoder(5, 5120, 40, 40, 13824, 32000, 4096, 2),
    "1b of 16 layers": Decoder(16, 2048, 32, 8, 8192, 128256, 4096, 2),
    "125m of 12 layers": Decoder(12, 768, 12, 12, 2048, 50304, 1024, 4),
    "125m of 12 layers, short": Decoder(12, 768, 12, 12, 2048, 50304, 512, 1),
}
"""Decoders whose steps are timed: layers of public models, with as many layers as fit beside their state."""
TINY = Decoder(1, 64, 4, 2, 128, 256, 32, 1)


@dataclass(frozen=True, slots=True)
class Load:
    """A load that runs for seconds: its name, sizes in words, flop and bytes, and a function that makes it."""

    name: str
    detail: str
    build: Callable[[], Job | None]
    """Makes the load; None for a GPU that has nothing to do."""
    share: float = 1.0
    """Share of the time in which the load runs."""
    flop: int = 0
    traffic_bytes: int = 0


def loads(kernels: Kernels, builder: Builder) -> Iterator[Load]:
    """All loads of a GPU, in the order in which they run."""
    yield Load("idle", "no work", lambda: None)
    yield Load("spinning", "one thread waits", lambda: Job(lambda: kernels.watch.keep_busy(SPIN_S)))
    for probe in KERNELS:
        yield of_kernel(kernels, probe)
    for share in SHARES:
        yield replace(of_kernel(kernels, SQUARE), share=share)
    for probe in (SQUARE, replace(SQUARE, dtype="fp8")):
        yield of_kernel(kernels, probe, zeros=True)
    sizes = replace(DECODERS["8b of 6 layers"], kv_heads=32)
    for library in ("flash_attention", "cudnn"):
        for graph in (False, True):
            yield layer(builder, replace(sizes, layers=1, attention=library), graph=graph)
    for name, decoder in DECODERS.items():
        for graph in (False, True):
            yield step(builder, name, decoder, graph=graph)
    for library in ("flash_attention", "cudnn"):
        yield step(builder, "8b of 6 layers, all heads", replace(sizes, attention=library), graph=False)


SPIN_S = 2.0**-10


def small(kernels: Kernels, builder: Builder) -> Iterator[Load]:
    """Loads that a CPU runs, to try the program out."""
    yield Load("idle", "no work", lambda: None)
    yield of_kernel(kernels, Probe("gemm", "bf16", 64, 64, 64, variant="fwd"))
    yield replace(of_kernel(kernels, Probe("gemm", "bf16", 64, 64, 64, variant="fwd")), share=0.5)
    yield layer(builder, TINY, graph=False)
    yield step(builder, "tiny", TINY, graph=False)


def of_kernel(kernels: Kernels, probe: Probe, *, zeros: bool = False) -> Load:
    """The load of one kernel, on random operands or on zeros."""
    kernel = kernel_of(probe)
    flop, moved = (kernel.flop, kernel.traffic_bytes) if kernel else (0, 0)

    def build() -> Job:
        kernels.zeros = zeros
        try:
            return kernels.job(probe)
        finally:
            kernels.zeros = False

    return Load(probe.op, f"{str(probe).partition(' ')[2]}{' zeros' if zeros else ''}", build, 1.0, flop, moved)


def layer(builder: Builder, sizes: Decoder, *, graph: bool) -> Load:
    """The load of forward and backward pass of a layer."""
    return Load("layer", _detail(sizes, graph=graph), lambda: builder.job(builder.passes(sizes), graph=graph))


def step(builder: Builder, name: str, sizes: Decoder, *, graph: bool) -> Load:
    """The load of a training step."""
    detail = f"{name}: {_detail(sizes, graph=graph)}"
    return Load("step", detail, lambda: builder.job(builder.step(sizes), graph=graph))


def _detail(sizes: Decoder, *, graph: bool) -> str:
    return f"{sizes} {'graph' if graph else 'eager'}"
