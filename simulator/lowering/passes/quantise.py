"""GEMMs in eight or four bits: linear layers inside the decoder layers, forward and backward, with the necessary casts.

Attention, norms, activations and the projection to the vocabulary stay in the wide format. The input of a linear layer, its
weights and the gradient of its output are each cast once before the GEMMs, into two copies: one unchanged in layout and one
transposed, or scaled across, for the GEMM along tokens. With one scale, GPUs that read any layout need no second copy. A norm or
an activation can write the copies instead of its result, or beside it if something reads that in 16 bits. Scales come from
earlier steps (delayed), from the present tensor (current, nvfp4: one more read of the tensor), or from blocks.

With sequence parallelism cast shares are gathered. Scales of blocks go along one dimension: the gradient of a result, which two
GEMMs need, is gathered in both copies (`_all_gather_mxfp8` in transformer_engine/pytorch/distributed.py). References:
Micikevicius et al., arXiv 2209.05433; NVIDIA Transformer Engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ...frozen import replace
from ...kernels import NARROW_BYTES, Gemm, Part, Rowwise, Split
from ...program.operations import AnyOp, Collective, Compute, Purpose
from ...program.program import Body, Program, first_forward
from ...workload.low_precision import LowPrecision
from ..kernels_of_framework import ACTIVATIONS, GATED, NORMS
from .data_parallel import OfParameters

TENSOR_SCALED = "fp8"
"""The format with one scale per tensor: a gathered tensor has to be transposed on arrival."""
GRADIENT_OF_RESULT = Purpose.GATHER, Part.INPUT_GRADIENT
"""The gather of the gradient of a row layer's result, which both of its gradients need."""
TWO_LEVEL_SCALED = "nvfp4"
"""The format with a scale for the tensor besides the scales of its blocks."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The narrow format of the GEMMs of a job, and the recipe of the framework for casts to this format."""

    dtype: str
    recipe: LowPrecision
    element_bytes: int
    """Bytes of an element in the wide format."""
    shares: int
    """Number of ranks that share the tokens between divided layers."""
    gathered_anew: OfParameters = (False, False)
    """Whether every pass gathers weights again, and so must cast them again."""
    gathered_narrow: OfParameters = (False, False)
    """Whether weights are gathered in the narrow format: each rank has cast its share when it updated it."""
    gathered_inputs: bool = False
    """Whether column layers keep their inputs as gathered."""

    @property
    def width(self) -> float:
        return NARROW_BYTES[self.dtype]

    def casts_in_every_pass(self, op: Compute) -> bool:
        """Whether every forward pass casts the weights of a GEMM, not only the first of a step."""
        return not self.recipe.cached_weights or self.gathered_anew[op.expert]

    @property
    def transposes(self) -> bool:
        """Whether GEMMs along tokens need copies of their own, transposed or scaled across."""
        return self.dtype != TENSOR_SCALED or not self.recipe.any_layout

    def kept_bytes(self, *, expert: bool) -> float:
        """Bytes of the copies of a weight, outside of experts or of experts, that are kept for a whole step."""
        anew = not self.recipe.cached_weights or self.gathered_anew[expert]
        return 0.0 if anew else self.width * (1 + self.transposes)

    @property
    def reads_for_scale(self) -> bool:
        """Whether a cast first reads the tensor to find the scale."""
        return self.dtype == TWO_LEVEL_SCALED or (self.dtype == TENSOR_SCALED and self.recipe.scaling == "current")

    @property
    def shared_scales(self) -> Literal["none", "tp", "replicas"]:
        """The ranks that agree on the scales at the end of every pass."""
        return self.recipe.shared_scales if self.dtype == TENSOR_SCALED and self.recipe.scaling == "delayed" else "none"

    def keeps_gathered(self, op: Compute) -> bool:
        """Whether a GEMM keeps the narrow input that ranks have gathered."""
        gathers = self.gathered_inputs and self.shares > 1 and op.split in (Split.COLUMN, Split.GATHERED)
        return gathers and self.recipe.narrow_gathers and self.recipe.weight_gradients

    def keeps_narrow(self, op: Compute) -> bool:
        """Whether the weight gradient uses the narrow copy of the input from the forward GEMM."""
        original = op.input_kept and self.recipe.keeps_originals(self.dtype)
        return (self.recipe.keeps_narrow_inputs and not original) or self.keeps_gathered(op)

    @property
    def copies_of_gradient(self) -> int:
        """Copies of the gradient of a result that ranks gather: with scales of blocks, one along each dimension of its GEMMs."""
        return 1 if self.dtype == TENSOR_SCALED or not self.recipe.weight_gradients else 2


def quantise(program: Program, formats: Quantisation) -> Program:
    """The program with linear layers in the narrow format, and casts before them; `cast_weights` casts cached weights."""
    return program.with_bodies(lambda body: _Caster(body, formats).rewritten())


def cast_weights(program: Program, formats: Quantisation) -> Program:
    """With cached weights, the first forward pass of a stage in a training step casts each weight right before its GEMM."""
    if not formats.recipe.cached_weights or all(formats.gathered_anew):
        return program
    bodies, orders = dict(program.bodies), []
    for order in program.orders:
        changed = list(order)
        for i in first_forward(order).values():
            name = f"{order[i].body}, casting weights"
            bodies.setdefault(name, Body(tuple(_Caster(program.bodies[order[i].body], formats).with_weights_cast())))
            changed[i] = order[i]._replace(body=name)
        orders.append(tuple(changed))
    return replace(program, bodies=bodies, orders=tuple(orders))


def weights_cast_before(program: Program) -> Program:
    """The same program without the casts of cached weights, as in every forward pass after the first one of a stage."""
    return program.with_bodies(lambda body: (op for op in body.ops if op.purpose is not Purpose.CAST_CACHED_WEIGHTS))


def _gemm(op: Compute) -> Gemm:
    """The GEMM of an op, or an empty GEMM if the op has another kernel."""
    return op.kernel if isinstance(op.kernel, Gemm) else Gemm(0, 0, 0, 0)


class _Caster:
    """Rewrites one body, op by op, and records the GEMMs whose operand or weights have already been cast."""

    def __init__(self, body: Body, formats: Quantisation) -> None:
        self.ops, self.formats = body.ops, formats
        self.narrow = {(op.operator, op.part): op for op in body.ops if isinstance(op, Compute) and self._is_linear(op)}
        self.gathered = {(op.operator, op.part, op.purpose) for op in body.ops if isinstance(op, Collective)}
        self.out: list[AnyOp] = []
        self.cast: set[str] = set()

    def _is_linear(self, op: Compute) -> bool:
        of_layer = op.layer >= 0 and isinstance(op.kernel, Gemm) and op.split in (Split.COLUMN, Split.GATHERED, Split.ROW)
        return of_layer and (op.part is not Part.WEIGHT_GRADIENT or self.formats.recipe.weight_gradients)

    def rewritten(self) -> list[AnyOp]:
        for op in self.ops:
            if isinstance(op, Collective):
                self._collective(op)
            elif isinstance(op, Compute) and self._is_linear(op):
                self._linear(op)
            else:
                self.out.append(op)
        return self.out

    def with_weights_cast(self) -> Iterator[AnyOp]:
        """A rewritten forward body, with casts of the weights of its narrow GEMMs, also where these are in pieces."""
        for op in self.ops:
            if isinstance(op, Compute) and self._casts_once(op) and op.operator not in self.cast:
                self.cast.add(op.operator)
                yield from (replace(cast, purpose=Purpose.CAST_CACHED_WEIGHTS) for cast in self._weights(op))
            yield op

    def _casts_once(self, op: Compute) -> bool:
        return op.part is Part.FORWARD and bool(_gemm(op).dtype) and not self.formats.casts_in_every_pass(op)

    def _weights(self, op: Compute) -> Iterator[AnyOp]:
        rows, columns, transposes = _gemm(op).k, _gemm(op).n, self.formats.transposes
        casts = self._casts(op, "weights", rows, columns, 1 + transposes)
        if self.formats.gathered_narrow[op.expert]:
            transpose = self._extra(op, "weights", rows, columns, 2 * self.formats.width, "transpose")
            casts = iter((transpose,) if transposes else ())
        return (replace(cast, purpose=Purpose.CAST_WEIGHTS, rows_of_variants=()) for cast in casts)

    def _collective(self, op: Collective) -> None:
        """Adds a collective; the gather of the operand of a narrow GEMM has a narrow payload if the cast precedes the gather."""
        gemm = self.narrow.get((op.operator, op.part))
        if gemm is None or op.purpose not in (Purpose.GATHER, Purpose.REGATHER) or not self.formats.recipe.narrow_gathers:
            self.out.append(op)
            return
        if op.purpose is Purpose.GATHER:
            self._cast_operand(gemm, gathered=True)
        if op.purpose is Purpose.GATHER or self.formats.keeps_narrow(gemm):
            copies = self.formats.copies_of_gradient if (op.purpose, op.part) == GRADIENT_OF_RESULT and not gemm.frozen else 1
            op = replace(op, payload_bytes=int(op.payload_bytes * copies * self.formats.width / self.formats.element_bytes))
        self.out.append(op)

    def _linear(self, op: Compute) -> None:
        kernel = _gemm(op)
        if op.part is Part.WEIGHT_GRADIENT:
            self.out += self._casts_for_weight_gradient(op)
        else:
            self._cast_operand(op)
        if op.part is Part.FORWARD and self.formats.casts_in_every_pass(op):
            self.out += self._weights(op)
        held_bytes = op.held_bytes
        if self.formats.keeps_narrow(op):
            held_bytes = int(held_bytes * self.formats.width / self.formats.element_bytes)
        self.out.append(replace(op, kernel=replace(kernel, dtype=self.formats.dtype), held_bytes=held_bytes))

    def _cast_operand(self, op: Compute, *, gathered: bool = False) -> None:
        """Adds the cast of the first operand of a GEMM, unless cast before the gather or by the producing op."""
        if op.name in self.cast:
            return
        self.cast.add(op.name)
        kernel = _gemm(op)
        # one for the GEMM itself, and one transposed for the weight gradient
        transposed = self.formats.keeps_narrow(op) if op.part is Part.FORWARD else self.formats.recipe.weight_gradients
        transposed = transposed and not op.frozen and self.formats.transposes
        copies = 2 if transposed and not (gathered and self.formats.dtype == TENSOR_SCALED) else 1
        if not self._written_by_last(copies, beside=self._read_in_wide(op)):
            self.out += self._casts(op, "cast", kernel.m // (self.formats.shares if gathered else 1), kernel.k, copies)

    def _read_in_wide(self, op: Compute) -> bool:
        """Whether the operand of a GEMM is needed in the wide format too: by other operators, or by the weight gradient."""
        if op.part is Part.FORWARD:
            return op.input_shared or not self.formats.keeps_narrow(op)
        return not self.formats.recipe.weight_gradients

    def _written_by_last(self, copies: int, *, beside: bool) -> bool:
        """Whether the previous op can write the cast copies, instead of its result or (`beside`) as well; if so, the op is
        changed."""
        last = self.out[-1] if self.out else None
        if not isinstance(last, Compute) or not isinstance(last.kernel, Rowwise) or self.formats.reads_for_scale:
            return False
        name, recipe = last.kernel.op, self.formats.recipe
        activation = name.removesuffix("_backward").removesuffix(GATED) in ACTIVATIONS
        if not (recipe.norm_casts and name in NORMS) and not (recipe.activation_casts and activation):
            return False
        written = 2 if name.endswith(f"{GATED}_backward") else 1
        change = written * (copies * self.formats.width - (0 if beside else self.formats.element_bytes))
        kernel = replace(last.kernel, bytes_per_element=last.kernel.bytes_per_element + change)
        self.out[-1] = replace(last, kernel=kernel)
        return True

    def _casts_for_weight_gradient(self, op: Compute) -> Iterator[AnyOp]:
        """Casts and transposes before a weight gradient, for operands that were gathered or kept without a transposed copy."""
        kernel, name = _gemm(op), op.operator
        arriving = self.formats.dtype == TENSOR_SCALED and self.formats.recipe.narrow_gathers and self.formats.transposes
        regathers = {(name, part, Purpose.REGATHER) for part in (Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT)}
        if not self.formats.keeps_narrow(op):
            yield from self._casts(op, "cast", kernel.k, kernel.m, 1)
        elif arriving and (regathers & self.gathered or self.formats.keeps_gathered(op)):
            yield self._extra(op, "transpose", kernel.k, kernel.m, 2 * self.formats.width)
        if arriving and (name, Part.INPUT_GRADIENT, Purpose.GATHER) in self.gathered:
            yield self._extra(op, "transpose", kernel.k, kernel.n, 2 * self.formats.width)

    def _casts(self, op: Compute, name: str, rows: int, columns: int, copies: int) -> Iterator[Compute]:
        if self.formats.reads_for_scale:
            yield self._extra(op, f"{name} scale", rows, columns, self.formats.element_bytes, "largest")
        yield self._extra(op, name, rows, columns, self.formats.element_bytes + copies * self.formats.width)

    def _extra(self, op: Compute, name: str, rows: int, columns: int, moved: float, kind: str = "") -> Compute:
        """A kernel before a GEMM, detached from the chain of the body if the GEMM is detached.

        It takes and frees no memory: held bytes are counted with the GEMM, and gathered weights are released after it.
        """
        what = kind or ("transpose" if name == "transpose" else "quantise")
        kernel = Rowwise(what, rows * _gemm(op).batch, columns, 1, moved)
        return replace(
            op,
            name=f"{op.name}.{name}",
            purpose=Purpose.CAST,
            kernel=kernel,
            parameters=0,
            whole_parameters=0,
            held_bytes=0,
            freed_bytes=0,
            working_bytes=0,
            kept_bytes=0,
            buffers=(),
        )
