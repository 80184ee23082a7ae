"""Vocabulary parallelism: embedding and head divided among all pipeline ranks, with the necessary collectives.

Every rank holds its rows of both tables, in stages of their own (schedules/_vocabulary.py has the order of their slots). The
first stage of layers keeps learned positions and the operators after the sum of the partial embeddings; the last keeps the final
norm.

- The result of the last stage is broadcast, in fp32. In S a rank computes its logits and their maximum and sum of exponentials.
- Maxima, logits of targets, and sums are all-reduced, one after the other: the first barrier. T then has the softmax, and
  computes the gradient of the weights.
- The gradient of the input is all-reduced. With `vocab-1` (Algorithm 1) T computes it, so that its all-reduce is a second
  barrier. With `vocab-2` (Algorithm 2) S computes it with its own sums; what is missing is one factor for each token, which
  follows from the all-reduced sums, so that its all-reduce follows theirs at once.
- Looked-up rows are all-reduced, each zero on all ranks but one, and the gradients of the first stage's input are broadcast.

Each kind of collective has a stream of its own beside compute. With `interlaced`, which is Algorithm 1, no compute overlaps it.

Read in github.com/sail-sg/VocabularyParallelism (6191c3b), megatron/core: vocab_parallel_schedule.py (broadcast_lm_head_input,
reduce_lm_head_res_alg1 and _alg2, input_embedding_forward_step_helper) and interlaced_schedule.py in pipeline_parallel,
vocab_output.py (what S and T compute) and vocab_input.py in tensor_parallel. Paper: Yeung et al., arXiv 2411.05288.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...frozen import replace
from ...kernels import Part, Split
from ...program.operations import Collective, Communicator, Compute, Purpose
from ...program.program import END, LOSS, Body, Key, Program, Stage, Step
from ...program.slot import FORWARD, WEIGHT_GRADIENT
from ...workload.blocks.dense import BlockOp

FP32_BYTES = 4
SUMS = ("maxima", "targets", "sums")
"""The all-reduces of one fp32 number for each token."""
PHASE = "vocabulary"
OUTPUT, LOSSES, EMBEDDED, RETURNED = "vocabulary output", "vocabulary sums", "embedded tokens", "embedding gradients"
"""The four communicators, their streams, and the first elements of the keys of their results."""
HEAD_GRADIENT, MADE = "head gradient", "made"
"""First elements of the keys of the gradient of the last stage's result, and of the result of a slot of a share."""


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """The values of plan and job that the pass needs."""

    scheme: str
    rows: int
    """Number of tokens of a rank outside the regions that tensor-parallel ranks divide."""
    hidden: int
    element_bytes: int


def kernels_of_stage(operators: Sequence[tuple[int, BlockOp]], stage: Stage, ranks: int) -> list[tuple[int, BlockOp]]:
    """The kernels of a stage that belong to a share of the vocabulary, or those that stay with the layers.

    Outside of layers, every operator that tensor-parallel ranks divide without sequence parallelism is on the vocabulary.
    """
    found = []
    for layer, op in operators:
        at_table = layer < 0 and op.split is not Split.SEQUENCE
        if at_table and stage.share:
            found.append((layer, _share(op, ranks)))
        elif at_table and op.whole_parameters:  # learned positions, which do not depend on tokens
            found.append((layer, replace(op, name="positions", split=Split.SEQUENCE, parameters=op.whole_parameters)))
        elif not at_table and not stage.share:
            found.append((layer, op))
    return found


def _share(op: BlockOp, ranks: int) -> BlockOp:
    """The share of one rank of an operator on the vocabulary."""
    parameters = (op.parameters - op.whole_parameters) // ranks
    op = replace(op, parameters=parameters, whole_parameters=0, matmul_parameters=op.matmul_parameters // ranks)
    if op.split is Split.LOOKUP:
        return op
    forward, back, weights = (
        kernel and kernel.split(Split.COLUMN if op.split is Split.COLUMN else Split.INNER, ranks)
        for kernel in (op.forward, op.input_gradient, op.weight_gradient)
    )
    op = replace(op, forward=forward, input_gradient=back, weight_gradient=weights)
    return op if op.split is Split.COLUMN else replace(op, saved_bytes=op.saved_bytes // ranks)


def vocabulary(program: Program, of: SharedVocabulary) -> Program:
    """Adds the collectives of shares, and the waits of slots for them."""
    first, last = (next(i for i, s in enumerate(program.stages) if getattr(s, end)) for end in ("embedding", "head"))
    ranks = range(program.ranks)
    source, target = program.stages[last].rank, program.stages[first].rank
    groups = {OUTPUT: [source, *ranks], LOSSES: ranks, EMBEDDED: ranks, RETURNED: [target, *ranks]}
    communicators = (Communicator(name, "pp", ("pp",), tuple(dict.fromkeys(group))) for name, group in groups.items())
    program = program.with_communicators(*communicators)
    early = of.scheme == "vocab-2"
    bodies = _with_early_gradients(program) if early else dict(program.bodies)
    bodies |= {name: Body(tuple(ops)) for name, ops in _collectives(of).items()}
    orders = [tuple(_with_collectives(program, rank, (first, last), early=early)) for rank in ranks]
    if of.scheme == "interlaced":
        orders = [tuple(_synchronous(order)) for order in orders]
    return replace(program, bodies=bodies, orders=tuple(orders))


def _with_early_gradients(program: Program) -> dict[str, Body]:
    """Bodies in which S, in place of T, computes the gradients of the input of the head."""
    bodies = dict(program.bodies)
    shares = {(s.phase, s.stage): s.body for order in program.orders for s in order if program.stages[s.stage].share}
    for (phase, stage), name in shares.items():
        if phase != FORWARD and program.stages[stage].head and bodies[name] is program.bodies[name]:
            ops = bodies[name].ops
            gradients = [op for op in ops if isinstance(op, Compute) and op.part is Part.INPUT_GRADIENT]
            early = [op for op in gradients if op.split is Split.COLUMN]
            forward = shares[FORWARD, stage]
            bodies[forward] = Body((*bodies[forward].ops, *early))
            bodies[name] = Body(tuple(op for op in ops if op not in early))
    return bodies


def _collectives(of: SharedVocabulary) -> dict[str, list[Collective]]:
    """The bodies of collectives, by name."""
    activation_bytes = of.rows * of.hidden * of.element_bytes

    def collective(name: str, group: str, payload_bytes: int, purpose: Purpose, part: Part = Part.FORWARD) -> Collective:
        kind = "broadcast" if purpose is Purpose.EXCHANGE else "all_reduce"
        op = Collective(name=name, streams=(group,), communicator=group, kind=kind, payload_bytes=payload_bytes)
        return replace(op, purpose=purpose, part=part)

    sums = [collective(name, LOSSES, of.rows * FP32_BYTES, Purpose.REDUCE_LOSS) for name in SUMS]
    gradient = collective(HEAD_GRADIENT, LOSSES, activation_bytes, Purpose.REDUCE, Part.INPUT_GRADIENT)
    return {
        OUTPUT: [collective(OUTPUT, OUTPUT, of.rows * of.hidden * FP32_BYTES, Purpose.EXCHANGE)],
        LOSSES: [*sums, gradient] if of.scheme == "vocab-2" else sums,
        HEAD_GRADIENT: [gradient],
        EMBEDDED: [collective(EMBEDDED, EMBEDDED, activation_bytes, Purpose.REDUCE)],
        RETURNED: [collective(RETURNED, RETURNED, activation_bytes, Purpose.EXCHANGE, Part.WEIGHT_GRADIENT)],
    }


def _with_collectives(program: Program, rank: int, ends: tuple[int, int], *, early: bool) -> Iterator[Step]:
    """The steps of a rank with the collectives before and behind the slots of its shares."""
    has_first, has_last = (program.stages[end].rank == rank for end in ends)
    for step in program.orders[rank]:
        stage = program.stages[step.stage]
        if not stage.share:
            yield _end_of_model(step, ends)
        elif stage.head:
            yield from _around_head(step, ((LOSS, ends[1], step.microbatch),) if has_last else (), early=early)
        else:
            yield from _around_embedding(step, ((RETURNED, step.microbatch),) if has_first else ())


def _around_head(step: Step, output: tuple[Key, ...], *, early: bool) -> Iterator[Step]:
    """S between the broadcast of the output and the sums; T after the sums, and before the gradient unless that is `early`."""
    microbatch = step.microbatch
    made: Key = (MADE, step.stage, step.phase, microbatch)
    sums: Key = (LOSSES, microbatch)
    gradient = ((END, (HEAD_GRADIENT, microbatch)),)
    if step.phase == FORWARD:
        arrived: Key = (OUTPUT, microbatch)
        yield _collective_step(step, OUTPUT, output, ((END, arrived),))
        yield step._replace(after=(arrived,), outputs=(*step.outputs, (END, made)))
        yield _collective_step(step, LOSSES, (made,), ((SUMS[-1], sums), *(gradient if early else ())))
    else:
        yield step._replace(after=(sums,), outputs=(*step.outputs, (END, made)))
        if not early:
            yield _collective_step(step, HEAD_GRADIENT, (made,), gradient)


def _around_embedding(step: Step, gradient: tuple[Key, ...]) -> Iterator[Step]:
    """Look-ups before the sum of their rows; sums of gradients after the broadcast of the gradient."""
    microbatch = step.microbatch
    made: Key = (MADE, step.stage, step.phase, microbatch)
    if step.phase == FORWARD:
        yield step._replace(outputs=(*step.outputs, (END, made)))
        yield _collective_step(step, EMBEDDED, (made,), ((END, (EMBEDDED, microbatch)),))
    else:
        arrived: Key = (RETURNED, step.stage, microbatch)
        yield _collective_step(step, RETURNED, gradient, ((END, arrived),))
        yield step._replace(after=(arrived,))


def _collective_step(slot: Step, body: str, after: tuple[Key, ...], outputs: tuple[tuple[str, Key], ...]) -> Step:
    """The step of a collective of a slot."""
    return Step(body, PHASE, slot.stage, slot.microbatch, after, outputs)


def _end_of_model(step: Step, ends: tuple[int, int]) -> Step:
    """A step of layers: the first stage waits for its input and produces its gradient; the last waits for the gradient of its
    result."""
    first, last = ends
    if step.stage == first and step.phase == FORWARD:
        step = step._replace(after=((EMBEDDED, step.microbatch),))
    elif step.stage == first and step.phase != WEIGHT_GRADIENT:
        step = step._replace(outputs=(*step.outputs, (END, (RETURNED, step.microbatch))))
    if step.stage == last and step.phase not in (FORWARD, WEIGHT_GRADIENT):
        step = step._replace(after=((HEAD_GRADIENT, step.microbatch),))
    return step


def _synchronous(order: Sequence[Step]) -> Iterator[Step]:
    """The steps of a rank, including collectives; each waits for the one before."""
    ended: tuple[Key, ...] = ()
    for step in order:
        yield step._replace(after=tuple(dict.fromkeys((*step.after, *ended))))
        ended = (step.outputs[-1][1],)
