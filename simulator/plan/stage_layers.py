"""Layers of every pipeline stage: the usual division, layouts that users write, and layers moved to make room for the vocabulary.

A layout is `even`; a list of layers per stage, in pipeline order; the layers of the first and the last stage, "first=7,last=7";
or a layout of Megatron-LM, "Et*3|(tt|)*29t|L". In Megatron's text a bar ends a stage, E is the embedding, t a layer, L the head
with the loss, `x*3` repeats a letter or a bar, `(...)*3` repeats a group, and commas mean nothing
(megatron/core/transformer/pipeline_parallel_layer_layout.py at d98e8a6).

The usual division counts embedding and head as a layer each where this makes the layers divide, which Megatron does on request
(account_for_embedding_in_pipeline_split) and torchtitan always (distributed/pipeline_parallel.py at b5bcd76).

With `redis`, the division of Yeung et al. (arXiv 2411.05288) that redistributes layers, stages hold as many layers as make the
largest number of flop of a stage as small as whole layers allow. As in their code (github.com/sail-sg/VocabularyParallelism at
6191c3b), remaining layers go to the last stages before the one with the head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heapify, heapreplace

from ..errors import UserError, shown
from ..workload.blocks.prediction import further_tokens
from ..workload.model import Model
from .plan import EVEN, Plan

ENDS = re.compile(r"(?=.*first=(\d{1,7}))?(?=.*last=(\d{1,7}))?(?:first=\d+(?:,last=\d+)?|last=\d+(?:,first=\d+)?)")
"""A layout of the first stage, of the last one, or of both in either order."""
GROUP = re.compile(r"\(([^()]+)\)\*(\d{1,7})")
LETTER = re.compile(r"([EtL|])\*(\d{1,7})")
MOST_LETTERS = 1 << 16
"""Largest number of letters of a layout of Megatron after all repetitions."""
EXAMPLES = 'layout: [31, 32, 32, 31], "first=7,last=7" or "Et*3|t*4|t*4|t*3L"'


def readable(layout: object) -> str | tuple[int, ...]:
    """The layout that a user wrote, checked as far as possible without its model. Raises `UserError` if it cannot be read."""
    if isinstance(layout, (list, tuple)) and layout and all(type(count) is int and count >= 0 for count in layout):
        return tuple(layout)
    if not isinstance(layout, str) or not layout:
        raise UserError(f"{shown(layout)} is not a layout of layers", hint=EXAMPLES)
    dense = "".join(layout.split())
    if dense != EVEN and not ENDS.fullmatch(dense):
        _of_megatron(dense)
    return dense


def stage_layers(plan: Plan, model: Model, sequence_length: int, stages: int) -> tuple[int, ...]:
    """The number of layers of every stage of a plan, in pipeline order. Raises `UserError` where the layers do not fit."""
    if plan.layout == EVEN:
        if model.layers < stages:
            message = f"{model.layers} layers of {model.name} do not fill pp x chunks = {stages} stages"
            raise UserError(message, hint=_nearest(model.layers, stages))
        if plan.vocabulary == "redis":
            return _redistributed(model, sequence_length, stages)
        return even(model.layers, stages, with_ends=not plan.shares_vocabulary)
    counts = _counts(readable(plan.layout), model.layers, stages)
    said = f"{shown(plan.layout if isinstance(plan.layout, str) else str(list(plan.layout)))} has"
    if len(counts) != stages:
        raise UserError(f"{said} {len(counts)} stages, but pp x chunks = {stages}", hint=_nearest(model.layers, stages))
    if sum(counts) != model.layers:
        raise UserError(f"{said} {sum(counts)} layers, but the model has {model.layers}", hint=_nearest(model.layers, stages))
    ends = () if plan.shares_vocabulary else (0, stages - 1)
    empty = [stage for stage in range(stages) if not counts[stage] and stage not in ends]
    if empty:
        hint = "only the first stage, with the embedding, and the last, with the head, may have none"
        hint = hint if ends else f"every stage holds a layer, as {plan.vocabulary} divides embedding and head among all ranks"
        raise UserError(f"{said} no layer in stage {empty[0]}", hint=hint)
    return counts


def even(layers: int, stages: int, *, with_ends: bool = True) -> tuple[int, ...]:
    """Equal numbers of layers. If only layers + 2 divide, embedding and head (`with_ends`) count as a layer each; else the first
    stages get one more each while layers are left over.
    """
    share, rest = divmod(layers, stages)
    if with_ends and rest and not (layers + 2) % stages:
        return share, *[share + 1] * (stages - 2), share
    return (share + 1,) * rest + (share,) * (stages - rest)


def _counts(layout: str | Sequence[int], layers: int, stages: int) -> tuple[int, ...]:
    """The layers of every stage that a layout names."""
    if not isinstance(layout, str):
        return tuple(layout)
    ends = ENDS.fullmatch(layout)
    if ends is None:
        return _of_megatron(layout)
    first, last = ([int(count)] if count else [] for count in (ends[1], ends[2]))
    others = stages - len(first) - len(last)
    left = layers - sum(first) - sum(last)
    if min(others, left) < 0 or (left and not others):
        message = f"{shown(layout)} leaves {left} of {layers} layers for {others} of {stages} stages"
        raise UserError(message, hint=_nearest(layers, stages))
    between = divmod(left, others) if others else (0, 0)
    return (*first, *(between[0] + (i < between[1]) for i in range(others)), *last)


def _of_megatron(layout: str) -> tuple[int, ...]:
    """The layers of every stage in a layout of Megatron, with the embedding first and the head last."""
    if "m" in layout:
        raise UserError(f"{shown(layout)}: layers that predict several tokens (m) are not modelled yet", hint="leave out the m")
    stages = _repeated(LETTER, _repeated(GROUP, layout.replace(",", ""))).split("|")
    flat = "".join(stages)
    well_formed = re.fullmatch("Et*L", flat) and stages[0] and stages[-1]
    if not well_formed:
        hint = f"E once at the beginning of the first stage, L once at the end of the last, t for layers between; {EXAMPLES}"
        raise UserError(f"{shown(layout)} is not a layout of layers", hint=hint)
    return tuple(stage.count("t") for stage in stages)


def _repeated(what: re.Pattern[str], text: str) -> str:
    """A text with every `x*n` of a pattern replaced by n times x."""
    if sum(len(letters) * int(times) for letters, times in what.findall(text)) > MOST_LETTERS:
        raise UserError("layout of too many layers and stages", hint=f"at most {MOST_LETTERS} letters after all repetitions")
    return what.sub(lambda match: match[1] * int(match[2]), text)


def _redistributed(model: Model, sequence_length: int, stages: int) -> tuple[int, ...]:
    """The layers of every stage if each layer in turn goes to the stage that then has the fewest flop, the last one if several
    do.

    Because all layers are alike, this makes the largest stage as small as possible.
    """
    block, size = model.block, {"batch": 1, "seq": sequence_length, "element_bytes": 1}
    further = [op for _, op in further_tokens(model, block, batch=1, seq=sequence_length, element_bytes=1)]
    ends = (block.embedding(model, **size), [*block.head(model, **size), *further])
    layers = (block.layer(model, **size, number=number) for number in model.kinds.values())
    embedding_flop, head_flop, *layer_flops = (
        sum(op.forward.model_flop for op in operators if op.forward) for operators in (*ends, *layers)
    )
    if len(set(layer_flops)) > 1:
        hint = "vocabulary: baseline, or a layout"
        raise UserError(f"vocabulary redis moves layers of equal flop, and those of {model.name} are not equal", hint=hint)
    layer_flop = layer_flops[0]
    besides = [embedding_flop, *[0] * (stages - 1)]
    besides[-1] += head_flop
    with_one_more = [(flop + layer_flop, -stage) for stage, flop in enumerate(besides)]
    counts = [0] * stages
    heapify(with_one_more)
    for _ in range(model.layers):
        flop, stage = with_one_more[0]
        counts[-stage] += 1
        heapreplace(with_one_more, (flop + layer_flop, stage))
    return tuple(counts)


def _nearest(layers: int, stages: int) -> str:
    """A legal layout similar to an illegal one, as a list if it is short, or a legal number of stages."""
    if layers < stages:
        alone = ', or layout: "first=0,last=0" for an embedding and a head alone' if layers + 2 >= stages > 2 else ""
        return f"at most {layers} stages{alone}"
    return f"layout: {list(even(layers, stages))}" if stages <= 16 else f"layout: {EVEN}"
