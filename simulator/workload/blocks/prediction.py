"""Multi-token prediction: modules after the last layer that each predict one more token, as in DeepSeek-V3.

A module joins the result of the module before it (for the first module, of the last layer after the final norm) with the
embedding of a later token, each after its own norm, and projects both to the width of the residual stream. A layer of the same
kind as the model's last layer, and a norm, follow. Each module uses the model's embedding table and head, and has its own loss.

References: DeepSeek-V3, arXiv 2412.19437, section 2.2; Megatron-LM d98e8a6, core/transformer/multi_token_prediction.py
(MultiTokenPredictionLayer, process_mtp_loss), which has all modules on the stage of the head, with a copy of the table, and runs
their heads before the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

from ...kernels import Split
from ..architecture import Architecture
from .dense import BlockOp, embedding, head, linear, norm, rowwise


def further_tokens(
    model: Architecture, block: ModuleType, *, batch: int, seq: int, element_bytes: int, prefix: int = 0, owns_table: bool = False
) -> Iterator[tuple[int, BlockOp]]:
    """The operators of all modules after the final norm, each with the number of its module, or -1 for table and head.

    `block` describes the layers of the model. A rank that holds neither the embedding nor a head tied to it owns a copy of the
    table, which is counted once.
    """
    size = {"batch": batch, "seq": seq, "element_bytes": element_bytes}
    shape, both = (batch * seq, model.hidden, element_bytes), (batch * seq, 2 * model.hidden, element_bytes)
    lookup = embedding(model, **size)[0]
    table = lookup if owns_table else replace(lookup, parameters=0, whole_parameters=0)
    for number in range(model.mtp_layers):
        yield -1, replace(table, name=f"embedding_{number + 2}")
        yield number, norm(model, "next_token_norm", shape)
        yield number, norm(model, "previous_norm", shape)
        yield number, rowwise("join", "copy", both, Split.SEQUENCE, moved=(2, 2))
        yield number, linear("joined_to_hidden", (shape[0], both[1], model.hidden, element_bytes), Split.GATHERED, bias=False)
        for op in block.layer(model, **size, prefix=prefix, number=model.layers - 1):
            yield number, op
        yield number, norm(model, "prediction_norm", shape)
        table = replace(table, parameters=0, whole_parameters=0)
    for number in range(model.mtp_layers):
        for op in head(model, **size, owns_table=False)[1:]:
            yield -1, replace(op, name=f"{op.name}_{number + 2}")
