"""Kernels as shapes of work (GEMM, attention, memory-bound operators, experts), without their speed.

Workload blocks create kernels, programs carry them, and cost models read them, so this module is below all three. Gemm computes
(m, k) x (k, n), 2mnk flop. A kernel can be split among the ranks of a tensor-parallel group along the dimension that its `Split`
names; a dimension that does not divide is refused. Sizes are whole numbers, traffic is in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Protocol

from .errors import UserError

NARROW_BYTES = {"fp8": 1.0, "fp8_block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
"""Bytes per element of the formats that only GEMMs use, with the share of a scale: one fp32 for 128 elements, or one byte for 32
or for 16."""
FP32_BYTES = 4
ALIGNED_BYTES = 16
"""Tensor cores take 16-bit operands whose rows begin at multiples of this many bytes."""
UNFUSED = "unfused"
"""Name for attention as two GEMMs with a softmax between them, in the place of a library."""


class Split(Enum):
    """How an operator is divided within a tensor-parallel group."""

    COLUMN = "column"
    """A linear layer with divided outputs: each rank has all of the input and some columns of the output."""
    GATHERED = "gathered"
    """A linear layer with divided outputs, which are gathered on every rank after it."""
    ROW = "row"
    """A linear layer with divided inputs: each rank has a partial sum of the whole output."""
    INNER = "inner"
    """An operator between a column and a row layer: heads or channels are divided already."""
    HEADS = "heads"
    """An operator inside attention that is not one kernel: each rank has whole heads."""
    SUM = "sum"
    """A sum of the results of several row layers: each rank adds its own partial sums, and the group sums the result."""
    LOSS = "loss"
    """An operator on the divided vocabulary, whose sums over the whole vocabulary the ranks must exchange."""
    LOOKUP = "lookup"
    """A table divided by rows: each rank looks up its own rows, and the results are summed."""
    SEQUENCE = "sequence"
    """An operator outside the divided layers: every rank repeats it, unless sequence parallelism divides the tokens."""


class Part(Enum):
    """The part of a training step that an operator belongs to."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"
    OPTIMIZER = "optimizer"


def divided(what: str, total: int, parts: int) -> int:
    """`total / parts` as a whole number; any other quotient is refused."""
    if total % parts:
        raise UserError(f"{what} {total} does not divide by {parts}", hint=f"choose a degree that divides {total}")
    return total // parts


class Shape(Protocol):
    """Any kernel: the name of the family of its cost model, and its work."""

    family: ClassVar[str]

    @property
    def flop(self) -> int: ...

    @property
    def traffic_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Gemm:
    """A GEMM, the matrix product (m, k) x (k, n), `batch` times."""

    family: ClassVar[str] = "gemm"
    m: int
    n: int
    k: int
    element_bytes: float
    """Bytes per element of the result, and of operands without a format of their own."""
    part: Part = Part.FORWARD
    batch: int = 1
    dtype: str = ""
    """The narrow format of the operands; empty where the operands have the format of the result."""
    counted: tuple[int, int] = (1, 1)
    """Ratio of the flop of the `full` convention to the executed flop, for GEMMs of scores of a part of a sequence."""
    aligned: bool = True
    """Whether tensor cores can take the operands; if not, the products are computed in fp32 without them."""

    @property
    def shape(self) -> str:
        """The sizes in words."""
        times = f"{self.batch} times " if self.batch > 1 else ""
        how = f" in {self.dtype}" if self.dtype else "" if self.aligned else " without tensor cores"
        return f"{times}{self.m} x {self.n} x {self.k}{how}"

    @property
    def flop(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def model_flop(self) -> int:
        """Flop by the `full` convention: GEMMs and attention with the full score matrix, without recomputation."""
        return self.flop * self.counted[0] // self.counted[1]

    @property
    def operand_bytes(self) -> float:
        """Bytes per element of an operand."""
        return NARROW_BYTES.get(self.dtype, self.element_bytes)

    @property
    def traffic_bytes(self) -> int:
        """Bytes of each operand read once and the result written once."""
        operands_bytes = self.operand_bytes * (self.m * self.k + self.k * self.n)
        return self.batch * int(operands_bytes + self.element_bytes * self.m * self.n)

    @property
    def result_bytes(self) -> int:
        return int(self.m * self.n * self.batch * self.element_bytes)

    def split(self, how: Split, parts: int) -> Gemm:
        """The share of one rank. The dimension for the outputs (or inputs) of the layer depends on the part."""
        if how is Split.HEADS:
            return replace(self, batch=divided("attention heads", self.batch, parts))
        dim = DIMENSIONS[self.part][{Split.SEQUENCE: 0, Split.ROW: 1}.get(how, 2)]
        share = divided(f"GEMM dimension {dim}", getattr(self, dim), parts)
        m, n, k = (share if name == dim else getattr(self, name) for name in "mnk")
        return replace(self, m=m, n=n, k=k)


DIMENSIONS = {Part.FORWARD: "mkn", Part.INPUT_GRADIENT: "mnk", Part.WEIGHT_GRADIENT: "kmn"}
"""The dimensions of a GEMM for the tokens, inputs and outputs of a layer, by part. Forward (T, in) x (in, out); input gradient
(T, out) x (out, in); weight gradient (in, T) x (T, out)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused scaled dot-product attention: `batch` sequences of `seq` tokens; `causal` computes the lower triangle only.

    With a `prefix` the sequences are the next `seq` tokens of longer sequences, and also see the keys of `prefix` tokens before.
    With a `window` a token of a causal sequence sees the latest `window` tokens, itself included, or, if `chunked`, the earlier
    tokens of its own chunk of `window` tokens. A window of the whole sequence has no effect.
    """

    family: ClassVar[str] = "attention"
    batch: int
    seq: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    element_bytes: int
    part: Part = Part.FORWARD
    prefix: int = 0
    window: int = 0
    """0 where a token sees all earlier tokens."""
    chunked: bool = False
    value_dim: int = 0
    """Width of a head of values and results; 0 where it is `head_dim`, the width of a head of queries and keys."""
    diagonal: bool = True
    """Whether the tokens also see keys of their own; in most steps of ring attention they see only the keys of the prefix."""
    packed: float = 1.0
    """Fraction of the scores that lie within documents, where several documents fill a sequence."""

    @property
    def keys(self) -> int:
        """Number of keys that a sequence sees."""
        return self.prefix + (self.seq if self.diagonal else 0)

    @property
    def effective_window(self) -> int:
        """The window where it hides earlier tokens; 0 where a token sees all of them."""
        return self.window if self.window < self.prefix + self.seq else 0

    @property
    def widths(self) -> tuple[int, int]:
        """Widths of a head: of queries and keys, and of values and results."""
        return self.head_dim, self.value_dim or self.head_dim

    @property
    def aligned(self) -> bool:
        """Whether tensor cores can take heads and scores as operands in 16 bits, where they are in memory."""
        rows = (*self.widths, self.keys) if self.element_bytes < FP32_BYTES else ()
        return not any(row * self.element_bytes % ALIGNED_BYTES for row in rows)

    @property
    def shape(self) -> str:
        keys = f", {self.kv_heads} of keys" if self.kv_heads != self.heads else ""
        earlier = f" {'after' if self.diagonal else 'on only'} {self.prefix}" if self.prefix else ""
        tokens = f"{self.batch} x {self.seq} tokens{earlier}"
        values = f" with values of {self.value_dim}" if self.value_dim else ""
        limit = self.effective_window
        window = f", {'chunks' if self.chunked else 'window'} of {limit}" if limit else ""
        packed = f", {self.packed:.3g} of the scores within documents" if self.packed < 1 else ""
        mask = "causal" if self.causal else "full"
        return f"{tokens}, {self.heads} heads of {self.head_dim}{values}{keys}, {mask}{window}{packed}"

    @property
    def model_flop(self) -> int:
        """Flop of two GEMMs of seq x seq per head forward (4bs²hd flop), twice as many backward, with the full score matrix.

        A causal part of a sequence counts its rows and its columns, so that the parts add up to the whole. A window counts as if
        it were not there; documents that share a sequence count as if each had a sequence of its own.
        """
        return self._flop_of(self.seq * (self.seq * self.diagonal + self.prefix * (2 if self.causal else 1)))

    @property
    def flop(self) -> int:
        """Flop of the kernel: half if causal, fewer in a window. The backward pass has one more GEMM, of recomputed scores."""
        full = self._flop_of(self._windowed_scores) if self.effective_window else self.model_flop
        done = full if self.part is Part.FORWARD else full * 5 // 4
        return done // 2 if self.causal else done

    def _flop_of(self, scores: int) -> int:
        times = 1 if self.part is Part.FORWARD else 2
        flop = times * 2 * self.batch * scores * self.heads * sum(self.widths)
        return flop if self.packed == 1 else round(flop * self.packed)

    @property
    def _windowed_scores(self) -> int:
        """Twice the causal scores within the window: those of `prefix + seq` tokens less those of `prefix` tokens."""

        def scores(tokens: int) -> int:
            whole, rest = divmod(tokens, self.window)
            if self.chunked:
                return whole * self.window**2 + rest**2
            inside = min(tokens, self.window)
            return inside**2 + 2 * self.window * (tokens - inside)

        return scores(self.prefix + self.seq) - scores(self.prefix)

    @property
    def result_bytes(self) -> int:
        return self.batch * self.seq * self.heads * self.widths[1] * self.element_bytes

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the logarithms of the sums of exponentials, one fp32 number per row of scores, for the backward pass."""
        return self.batch * self.heads * self.seq * FP32_BYTES

    @property
    def traffic_bytes(self) -> int:
        """Bytes of queries, keys, values and output, each once; backward also of their gradients."""
        rows = self.seq * self.heads + self.keys * self.kv_heads
        tensors = self.batch * rows * sum(self.widths) * self.element_bytes
        return tensors if self.part is Part.FORWARD else 2 * tensors

    def split(self, how: Split, parts: int) -> Attention:
        heads = divided("attention heads", self.heads, parts)
        if self.kv_heads % parts == 0:
            return replace(self, heads=heads, kv_heads=self.kv_heads // parts)
        divided("the tensor-parallel degree must be a multiple of kv_heads: degree", parts, self.kv_heads)
        return replace(self, heads=heads, kv_heads=1)


@dataclass(frozen=True, slots=True)
class Rowwise:
    """A memory-bound operator over `rows` x `columns`: norms, activations, residuals, embeddings, optimizers."""

    family: ClassVar[str] = "rowwise"
    op: str
    rows: int
    columns: int
    element_bytes: int
    bytes_per_element: float
    """Bytes read and written per element, over all tensors; scales of blocks make the number a fraction."""

    flop = 0
    model_flop = 0

    @property
    def shape(self) -> str:
        return f"{self.rows} x {self.columns}, {self.bytes_per_element:g} bytes each"

    @property
    def result_bytes(self) -> int:
        return self.rows * self.columns * self.element_bytes

    @property
    def traffic_bytes(self) -> int:
        return int(self.rows * self.columns * self.bytes_per_element)

    def split(self, how: Split, parts: int) -> Rowwise:
        if how is Split.SUM:
            return self
        if how in (Split.SEQUENCE, Split.HEADS):
            what = "tokens of a microbatch" if how is Split.SEQUENCE else "attention heads"
            return replace(self, rows=divided(what, self.rows, parts))
        return replace(self, columns=divided(f"{self.op} width", self.columns, parts))


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward network of gated experts in one kernel: m tokens of k channels, each through `top_k` of `batch` experts of n.

    No program carries this kernel: inference libraries have it, and tables of measurements.
    """

    family: ClassVar[str] = "moe"
    m: int
    n: int
    k: int
    batch: int
    top_k: int
    element_bytes: float

    @property
    def flop(self) -> int:
        return 2 * GATED_GEMMS * self.m * self.top_k * self.n * self.k

    @property
    def traffic_bytes(self) -> int:
        """Bytes of the weights of the experts that have tokens, and of the tokens once in and once out."""
        weights = GATED_GEMMS * self.n * self.k * min(self.batch, self.m * self.top_k)
        return int(self.element_bytes * (weights + 2 * self.m * self.k))


GATED_GEMMS = 3
"""Number of GEMMs of a gated expert: the gate, up and down projections."""
Kernel = Gemm | Attention | Rowwise
KernelCost = Callable[[Kernel], int]
"""The time of a kernel in nanoseconds, as a function that a cost model supplies to the binding."""
