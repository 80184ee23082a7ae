"""Decomposed tensor parallelism: a GEMM and the collective beside it are cut into as many pieces as a group has ranks.

A GEMM that needs the tokens of all ranks begins with the rank's own, while those of the next rank arrive; each later piece
computes what the exchange before has brought. A GEMM whose result is reduce-scattered begins with the tokens of other ranks: each
piece leaves for its rank while the next one is computed, the rank's own comes last, and a kernel adds the partial sums that have
arrived. So all but one transfer may run beside a piece. Pieces are GEMMs of fewer rows, which are less efficient than the whole.

The collective of an input gradient that has a weight gradient beside it stays whole: it runs beside the weight gradient.

References: NVIDIA/TransformerEngine 4757bfa7, comm_gemm_overlap.cpp (split_overlap_ag, split_overlap_rs), which Megatron-LM calls
tp-comm-overlap; of fecb10bd, pytorch/module/base.py (initialize_ub) says which GEMMs. pytorch/pytorch 0e9ed9cf,
torch/distributed/_symmetric_memory/__init__.py (_pipelined_multi_all_gather_and_consume, _pipelined_produce_and_all2all).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...frozen import replace
from ...kernels import Gemm, Part, Rowwise
from ...program.operations import AnyOp, Collective, Compute, Purpose
from ...program.program import Body, Program
from .tensor_parallel import TP


def decomposed_gemms(program: Program, tp: int) -> Program:
    """The program with GEMMs of layers in pieces, where a gather of `tp` ranks precedes or a reduce-scatter follows them."""
    return program.with_bodies(lambda body: _decomposed(body, tp))


def _decomposed(body: Body, tp: int) -> Iterator[AnyOp]:
    gemms = {
        (op.operator, op.part) for op in body.ops if isinstance(op, Compute) and isinstance(op.kernel, Gemm) and op.layer >= 0
    }
    of_group = [op for op in body.ops if isinstance(op, Collective) and op.communicator == TP.name and op.layer >= 0]
    beside = {operator for operator, part in gemms if part is Part.WEIGHT_GRADIENT}
    cut = {
        (op.operator, op.part): op
        for op in of_group
        if (op.operator, op.part) in gemms
        and (
            op.purpose is Purpose.GATHER
            or (op.purpose is Purpose.REDUCE and (op.part is Part.FORWARD or op.operator not in beside))
        )
    }
    for op in body.ops:
        whole = cut.get((op.operator, op.part))
        if whole and op is whole:
            yield from [_exchange(op, 0, tp)] if op.purpose is Purpose.GATHER else []
        elif whole and isinstance(op, Compute) and isinstance(op.kernel, Gemm):
            gathered = whole.purpose is Purpose.GATHER
            yield from _gathering(op, op.kernel, whole, tp) if gathered else _scattering(op, op.kernel, whole, tp)
        else:
            yield op


def _gathering(op: Compute, kernel: Gemm, gather: Collective, tp: int) -> Iterator[AnyOp]:
    """Pieces of a GEMM on the tokens of one rank after the other, and the exchanges after the first one."""
    last, arriving = op.name, _exchange(gather, 0, tp).name
    yield _piece(op, kernel, 0, tp)
    for i in range(1, tp):
        piece = replace(_piece(op, kernel, i, tp), after=(last, arriving))
        if i < tp - 1:
            exchange = replace(_exchange(gather, i, tp), after=(arriving,))
            arriving = exchange.name
            yield exchange
        last = piece.name
        yield piece


def _scattering(op: Compute, kernel: Gemm, scatter: Collective, tp: int) -> Iterator[AnyOp]:
    """Pieces of a GEMM, each but the last with an exchange after it, and the sum of the partial sums of all ranks."""
    for i in range(tp - 1):
        piece = _piece(op, kernel, i, tp)
        yield from (piece, replace(_exchange(scatter, i, tp), after=(piece.name,)))
    own, arrived = _piece(op, kernel, tp - 1, tp), _exchange(scatter, tp - 2, tp)
    width = int(kernel.element_bytes)
    added = Rowwise("add", kernel.m // tp * kernel.batch, kernel.n, width, (tp + 1) * width)
    yield own
    yield replace(own, name=f"{op.name}.merge", purpose=Purpose.MERGE, kernel=added, after=(own.name, arrived.name))


def _piece(op: Compute, kernel: Gemm, number: int, tp: int) -> Compute:
    """The GEMM on the tokens of one rank. The first piece has the parameters of the operator, and holds its input."""
    piece = replace(op, kernel=replace(kernel, m=kernel.m // tp))
    if not number:
        return piece
    return replace(piece, name=f"{op.name}.piece {number}", parameters=0, whole_parameters=0, held_bytes=0)


def _exchange(whole: Collective, number: int, tp: int) -> Collective:
    """The exchange of the tokens of one rank between neighbours, beside compute."""
    payload_bytes = -(-whole.payload_bytes // tp)
    return replace(whole, name=f"{whole.name} {number}", kind="exchange", payload_bytes=payload_bytes, detached=True)
