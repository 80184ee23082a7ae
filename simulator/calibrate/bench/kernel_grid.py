"""The kernels to time in a survey: those of a model as several plans would split it, or a grid of sizes.

The grid covers what training runs: GEMMs of 128 to 16,384 tokens with the widths of public models, most of them no powers of two;
attention over short and long sequences; memory-bound operators from kilobytes to gigabytes. A kernel that a machine cannot run is
refused when the kernel is timed, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ...config import load
from ...errors import UserError, did_you_mean
from ...kernels import Attention, Gemm, Kernel, Part, Rowwise, Split
from ...measurements.kernel_words import EAGER, FLOP_PER_BYTE, Probe, kernel_of, probes_of, work
from ...workload.blocks.dense import BlockOp
from ...workload.model import Model
from .training_step import KERNELS_OF_HOST_STEP

DTYPES = ("bf16", "fp16", "fp8")
TOKENS = (16384, 8192, 4096, 2048, 1024, 512, 128)
WIDTHS = (
    (1024, 1024), (1536, 4096), (2048, 8192), (4096, 4096), (4096, 14336), (5120, 5120), (6144, 4096),
    (7168, 8192), (8192, 1024), (8192, 8192), (10240, 8192), (28672, 4096), (32768, 5120),
)  # fmt: skip
"""Output and input widths of a linear layer."""
HEADS = (
    (1, 8192, 32, 8, 128), (1, 4096, 32, 8, 128), (4, 4096, 32, 32, 128), (1, 16384, 16, 2, 128), (1, 32768, 4, 1, 128),
    (2, 2048, 64, 8, 128), (8, 1024, 32, 8, 128), (1, 4096, 8, 8, 128), (4, 2048, 24, 24, 64), (8, 2048, 16, 16, 64),
    (16, 512, 32, 32, 64), (1, 8192, 12, 12, 64), (1, 2048, 4, 1, 128), (2, 1024, 20, 4, 128),
)  # fmt: skip
"""Batch, sequence, heads, key heads and width of a head of each attention kernel."""
ROWS = (16384, 4096, 1024)
COLUMNS = (16384, 8192, 5120, 4096, 2048, 1024)
PAIRS = ("rmsnorm", "layernorm", "silu_gated", "rope", "gelu", "softmax")
"""Operators that are timed both forward and backward."""
VOCABULARIES = (32000, 128256)
BATCHED = ((128, 1024, 1024, 128), (64, 2048, 128, 2048), (256, 512, 512, 64), (32, 4096, 4096, 128))
"""Batch, m, n and k of each batched GEMM."""
PARAMETERS = tuple(2**power for power in (29, 27, 25, 23, 20))
COPIED = tuple(2**power for power in (30, 28, 26, 24, 20, 16))
"""Number of 16-bit elements of each copy."""
LAUNCHES = (
    *(Probe("launch", "fp32", 512, 1, variant=how) for how in ("eager", "graph")),
    Probe("launch", "bf16", KERNELS_OF_HOST_STEP, 1, variant="step"),
)
"""Chains of 512 kernels, launched one after another or as a graph, and a training step so small that the host limits it."""
DEGREES = (1, 2, 4, 8)
MICROBATCHES = (1, 2, 4)
MOST_SEQUENCE = 4096
MOST_CPU_WORK = 2**32
"""Largest number of flop, or equally long work, that a CPU runs in one kernel."""
SHRINKS = ("m", "n", "k", "seq")
"""Sizes that may be reduced for a CPU; a number of heads may not."""


def wanted(model: str | None, dtypes: Sequence[str], ops: Sequence[str]) -> list[Probe]:
    """The kernels to time: those of a model or of the grid, of some operators if any are named."""
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UserError(f"kernels are not timed in {dtype!r}", hint=did_you_mean(dtype, DTYPES))
    return only(default(dtypes) if model is None else of_model(load.model(model), dtypes), ops)


def default(dtypes: Iterable[str]) -> list[Probe]:
    """The grid of sizes in the given dtypes."""
    return [
        *dict.fromkeys(probe for dtype in dtypes for probe in _probes_in(_sizes(2), dtype)),
        *(Probe("adam", "fp32", 1, count) for count in PARAMETERS),
        *(Probe("copy", "bf16", 1, count, variant=way) for count in COPIED for way in ("d2d", "h2d", "d2h")),
        *(Probe("overlap", "bf16", TOKENS[1], n, k, variant="gemm beside copy d2d") for n, k in WIDTHS[-4:]),
        *LAUNCHES,
    ]


def of_model(model: Model, dtypes: Iterable[str]) -> list[Probe]:
    """The kernels of a model at several degrees of tensor parallelism and sizes of a microbatch."""
    seq = min(MOST_SEQUENCE, model.max_sequence_length or MOST_SEQUENCE)
    kernels = dict.fromkeys(k for tp in DEGREES for batch in MICROBATCHES for k in _of_rank(model, batch, seq, tp))
    found = dict.fromkeys(probe for dtype in dtypes for probe in _probes_in(kernels, dtype))
    parameters = dict.fromkeys(model.layer_parameters // tp for tp in DEGREES)
    return [*found, *(Probe("adam", "fp32", 1, count) for count in parameters), *LAUNCHES]


def _of_rank(model: Model, batch: int, seq: int, tp: int) -> Iterator[Kernel]:
    """The kernels of one rank, without kernels that the tensor-parallel degree does not divide."""
    sizes = {"batch": batch, "seq": seq, "element_bytes": 2}
    block = model.block
    operators: list[BlockOp] = [*block.embedding(model, **sizes), *block.layer(model, **sizes), *block.head(model, **sizes)]
    for op in operators:
        for kernel in (op.forward, op.input_gradient, op.weight_gradient):
            with suppress(UserError):
                if kernel is not None:
                    yield kernel if op.split is Split.LOOKUP else kernel.split(op.split, tp)


def _probes_in(kernels: Iterable[Kernel], dtype: str) -> Iterator[Probe]:
    """The rows of kernels in a format. FP8 rows are only GEMMs, and the casts of their operands."""
    for kernel in kernels:
        if dtype != "fp8":
            yield from probes_of(kernel, dtype)
        elif isinstance(kernel, Gemm) and kernel.batch == 1:
            yield from (probe for probe in probes_of(kernel, dtype) if "acc" not in probe.variant)
            yield Probe("cast", dtype, kernel.m, kernel.k)
            yield Probe("quantise", dtype, kernel.m, kernel.k, variant=EAGER)


def _sizes(width: int) -> Iterator[Kernel]:
    """The kernels of the grid with elements of `width` bytes."""
    for outputs, inputs in WIDTHS:
        for tokens in TOKENS:
            yield Gemm(tokens, outputs, inputs, width)
            yield Gemm(tokens, inputs, outputs, width, Part.INPUT_GRADIENT)
            yield Gemm(inputs, outputs, tokens, width, Part.WEIGHT_GRADIENT)
    yield from (Gemm(m, n, k, width, batch=batch) for batch, m, n, k in BATCHED)
    for heads in HEADS:
        for causal in (True, False):
            yield from (Attention(*heads, causal, width, part) for part in (Part.FORWARD, Part.INPUT_GRADIENT))
    for rows in ROWS:
        for columns in COLUMNS:
            for op in (*PAIRS, *(f"{name}_backward" for name in PAIRS), "add", "dropout", "embedding", "embedding_backward"):
                yield Rowwise(op, rows, columns, width, width)
        for vocabulary in VOCABULARIES:
            yield from (Rowwise(op, rows, vocabulary, width, width) for op in ("cross_entropy", "cross_entropy_backward"))


def names(probe: Probe) -> tuple[str, ...]:
    """The names that select a kernel on the command line."""
    base = probe.op.removesuffix("_bwd").removesuffix("_fwd")
    return (base, probe.op, *([probe.variant] if base == "elementwise" else []))


def only(probes: Sequence[Probe], ops: Sequence[str]) -> list[Probe]:
    """The kernels of some operators, or all if none are named."""
    known = dict.fromkeys(name for probe in probes for name in names(probe))
    for op in ops:
        if op not in known:
            raise UserError(f"no operator {op!r} to measure", hint=did_you_mean(op, known))
    return [probe for probe in probes if not ops or any(name in ops for name in names(probe))]


def for_cpu(probes: Iterable[Probe]) -> list[Probe]:
    """The kernels that a CPU runs quickly; for an operator whose every size is too large, the smallest kernel, shrunk."""
    of_operators = _by_operator(probes)
    return [probe for own in of_operators for probe in [*filter(_is_small, own)] or [_shrunk(min(own, key=work))]]


def _is_small(probe: Probe) -> bool:
    return work(probe) <= (MOST_CPU_WORK if kernel_of(probe) else MOST_CPU_WORK / FLOP_PER_BYTE)


def _shrunk(probe: Probe) -> Probe:
    """A kernel whose largest size was halved until a CPU runs it quickly."""
    while not _is_small(probe):
        name = max(SHRINKS, key=lambda size: getattr(probe, size))
        probe = replace(probe, **{name: getattr(probe, name) // 2})
    return probe


def _by_operator(probes: Iterable[Probe]) -> list[list[Probe]]:
    """Kernels grouped by operator, format and variant."""
    found: dict[tuple[str, str, str], list[Probe]] = {}
    for probe in probes:
        found.setdefault((probe.op, probe.dtype, probe.variant), []).append(probe)
    return list(found.values())


def queues(probes: Iterable[Probe]) -> list[list[Probe]]:
    """Kernels by operator, format and variant, ordered so that the first few span all sizes: the largest, the smallest, the
    middle one, the quarters, and so on."""
    found = []
    for queue in _by_operator(probes):
        ordered, bits = sorted(queue, key=lambda probe: (-work(probe), str(probe))), (len(queue) - 1).bit_length()
        halving = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(2**bits)]
        places = dict.fromkeys([0, len(queue) - 1, *(place for place in halving if place < len(queue))])
        found.append([ordered[place] for place in places])
    return found
