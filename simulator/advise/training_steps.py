"""The steps in which people choose the parallelism of a training run, each with the number that decides it.

The order is that of practice: a model that fits on one GPU is replicated; one that fits in a node is divided by tensor
parallelism, whose collectives need NVLink; a larger one is divided by layers across nodes, and where nodes have no NVLink inside
them too; replicas share their state; experts go to different GPUs; long sequences are divided too; and a pipeline's bubble is
shortened. Each step proposes the plan with the least model parallelism that fits, and one with less that fits with recomputation.

Sources, read in November 2026: NVIDIA-NeMo/Megatron-Bridge, docs/parallelisms.md, the guide to choosing (data parallelism alone
below a billion parameters; tensor parallelism within a node with NVLink, pipelines across nodes; of a mixture the degree of
experts first, with little tensor parallelism; context parallelism above 8,192 tokens). The "Ultra-Scale Playbook" of Hugging Face
(nanotron/ultrascale-playbook) treats the same techniques: one GPU, data, ZeRO, tensor, sequence, context, pipeline, experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..config import derived
from ..config.scenario import Scenario
from ..errors import either
from ..units import show_bytes
from .candidates import Candidate, Proposal, candidate, fastest, fitting, group_needed, legal, with_any_batch, with_plan

PCIE = "pcie"
"""The inside of a node without NVLink."""
LONG_TOKENS = 8192
"""Tokens of a sequence above which context parallelism is considered."""
MOST_CHUNKS = 4
"""Most chunks of an interleaved schedule that are considered, in powers of two."""
MOST_EXPERT_NODES = 8
"""Most nodes over which experts are divided."""


@dataclass(frozen=True, slots=True)
class Thought:
    """One step of the reasoning: its subject, the sentence with the number that decided it, and what it proposes to simulate."""

    name: str
    text: str
    candidates: tuple[Candidate, ...] = ()


Think = Callable[[Scenario, Sequence[Proposal]], Thought | None]
"""A step: from the scenario without a plan, and the proposals so far, to a thought; None if the step does not apply."""


def degrees(most: int, whole: int) -> Iterator[int]:
    """The divisors of `whole` from 2 to `most`."""
    return (n for n in range(2, min(most, whole) + 1) if whole % n == 0)


def as_planned(scenario: Scenario) -> Thought:
    """The plan that the scenario has itself."""
    one = candidate(scenario)
    if one is None:
        return Thought("as planned", "the plan is not legal: `trainsim run` says why")
    verdict = "fits" if one.fits else f"does not fit, {show_bytes(one.over_bytes)} too much"
    return Thought("as planned", f"{one.words} needs {show_bytes(one.memory.total_bytes)}: {verdict}", (one,) * one.fits)


def one_gpu(base: Scenario, found: Sequence[Proposal]) -> Thought:
    """Does everything fit on one GPU? Then every GPU can hold a replica, and gradients are all that is exchanged."""
    job, alone, gpu = base.job, with_plan(base), base.cluster.gpu
    whole = candidate(with_any_batch(alone))
    if whole is None:
        return Thought("one GPU", "replicas of the whole model are not legal on this cluster")
    tokens = job.microbatch_size * job.sequence_length
    text = (
        f"weights, gradients and Adam's state take {show_bytes(whole.state_bytes)}, activations of {tokens:,} tokens "
        f"{show_bytes(whole.memory.activations_bytes)}, with overhead {show_bytes(whole.memory.total_bytes)}; one {gpu.name} has "
        f"{show_bytes(gpu.memory_bytes)}"
    )
    candidates = fitting(base, [{}])
    if whole.fits and not candidates:
        dp = base.cluster.gpus
        return Thought("one GPU", f"{text}: fits, but a global batch of {job.global_batch} does not divide by dp {dp:,}")
    with_recomputation = "fits only with recomputation" if candidates else "does not fit"
    return Thought("one GPU", f"{text}: {'fits, replicate it' if whole.fits else with_recomputation}", candidates)


def tensor_degrees(base: Scenario) -> list[int]:
    """Tensor-parallel degrees within a node that divide the model, from two on."""
    per_node = base.cluster.gpus_per_node
    within = degrees(per_node, per_node)  # another degree has groups that reach from one node into the next
    return [tp for tp in within if legal(with_any_batch(with_plan(base, tp=tp)))]


def stages_of(base: Scenario, tp: int) -> list[int]:
    """Numbers of pipeline stages, from two on, beside a tensor-parallel degree."""
    return list(degrees(base.model.layers, base.cluster.gpus // tp))


def _recomputing(one: Candidate) -> str:
    """The recomputation of a candidate, as a part of a sentence."""
    words = one.plan.recomputation.words
    return f" with {' and '.join(words)} recomputation" if words else ""


def tensor(base: Scenario, found: Sequence[Proposal]) -> Thought | None:
    """Does it fit in a node, where NVLink carries the collectives of every layer?"""
    tps = tensor_degrees(base)
    if not tps:
        return None
    if found:
        return Thought("tensor", "not needed: a replica fits on one GPU")
    candidates = fitting(base, ({"tp": tp} for tp in tps))[:1]
    largest = candidate(with_any_batch(with_plan(base, tp=tps[-1])))
    text = f"the {min(base.cluster.gpus_per_node, base.cluster.gpus)} GPUs of a node divide every layer and its tokens"
    if candidates:
        (one,) = candidates
        text += f": tp {one.plan.tp} is the least that fits{_recomputing(one)}, {show_bytes(one.memory.total_bytes)} per GPU"
    elif largest:
        text += f": with tp {tps[-1]} each still needs {show_bytes(largest.memory.total_bytes)}, does not fit a node"
    return Thought("tensor", text, candidates)


def pipeline(base: Scenario, found: Sequence[Proposal]) -> Thought | None:
    """Across nodes only activations between stages should travel: layers are divided among nodes."""
    tp = max(tensor_degrees(base), default=1)
    stages = stages_of(base, tp)
    if not stages:
        return None
    if found:
        return Thought("pipeline", f"not needed: {found[0].candidate.words} fits without")
    candidates = fitting(base, ({"tp": tp, "pp": pp} for pp in stages))[:1]
    layers = base.model.layers
    if not candidates:
        return Thought("pipeline", f"up to {stages[-1]} stages share {layers} layers beside tp {tp}: none of them fits")
    (one,) = candidates
    text = (
        f"{one.plan.pp} stages of up to {-(-layers // one.plan.pp)} of {layers} layers, beside tp {tp}, are the fewest that "
        f"fit{_recomputing(one)}: {show_bytes(one.state_bytes)} of state and {show_bytes(one.memory.activations_bytes)} of "
        "activations per GPU"
    )
    return Thought("pipeline", text, candidates)


def sharding(base: Scenario, found: Sequence[Proposal]) -> Thought | None:
    """Replicas repeat the state of the model: they can divide the optimizer state, or everything, among them instead."""
    if base.cluster.gpus == 1:
        return None
    gpus, all_tps = base.cluster.gpus, [1, *tensor_degrees(base)]
    tps = [tp for tp in all_tps if tp < gpus]
    shapes = [{"tp": tp} for tp in tps]
    shapes += [{"tp": all_tps[-1], "pp": pp} for pp in stages_of(base, all_tps[-1]) if all_tps[-1] * pp < gpus]
    zero1 = fitting(base, ({**shape, "sharding": "zero1"} for shape in shapes))
    zero2 = fitting(base, ({"tp": tp, "sharding": "zero2"} for tp in tps))[:1]
    full = fitting(base, ({"tp": tp, "sharding": "fsdp"} for tp in dict.fromkeys((1, tps[-1]))))
    of = {kind: candidate(with_any_batch(with_plan(base, sharding=kind))) for kind in ("none", "zero1", "zero2", "fsdp")}
    states = {kind: show_bytes(one.state_bytes) for kind, one in of.items() if one}
    text = "replicas of the whole model"
    text += f" hold {states['none']} of state each" if "none" in states else " are not legal"
    text += f"; ZeRO-1 divides Adam's part among all GPUs: {states['zero1']} each" if "zero1" in states else ""
    text += f"; ZeRO-2 gradients too: {states['zero2']}" if "zero2" in states else ""
    text += f"; FSDP divides all of it: {states['fsdp']}, and gathers each layer's parameters" if "fsdp" in states else ""
    if (one := of["fsdp"]) and one.gathered_bytes:
        text += f", of which {show_bytes(one.gathered_bytes)} stay gathered"
    return Thought("sharding", text, (*zero1, *zero2, *full))


def without_nvlink(base: Scenario, found: Sequence[Proposal]) -> Thought | None:
    """Where GPUs of a node have PCIe only, collectives in every layer take long: stages exchange activations alone."""
    stages = stages_of(base, 1)
    if base.cluster.inside_name != PCIE or not stages or (found and _is_replica(found[0].candidate)):
        return None
    text = (
        "the GPUs of a node have no NVLink, and PCIe carries collectives of every layer slowly; stages exchange activations alone"
    )
    candidates = fitting(base, ({"pp": pp, "sharding": "zero1"} for pp in stages))
    if not candidates:
        return Thought("PCIe", f"{text}: up to {stages[-1]} of them do not fit without tensor parallelism")
    one = min(candidates, key=lambda one: one.plan.pp)
    text += f": {one.plan.pp} of them are the fewest that fit without tensor parallelism{_recomputing(one)}"
    return Thought("PCIe", text, candidates)


def _is_replica(one: Candidate) -> bool:
    """Whether every GPU holds the whole model."""
    return one.plan.tp == one.plan.pp == 1 and one.plan.full_sharding.kind == "none"


def experts(base: Scenario, found: Sequence[Proposal]) -> Thought | None:
    """Experts are most of a mixture's parameters, and each token uses few of them: they go to different GPUs, whole."""
    model, per_node, gpus = base.model, base.cluster.gpus_per_node, base.cluster.gpus
    if not model.experts or gpus == 1:
        return None
    owned = sum(times * op.parameters for times, op in model.operators if op.expert)
    whole = [ep for ep in degrees(MOST_EXPERT_NODES * per_node, model.experts) if gpus % ep == 0]
    near, far = [ep for ep in whole if per_node % ep == 0][-1:], [ep for ep in whole if per_node % ep][-1:]
    stages = [1, *stages_of(base, 1)]
    in_stages = {ep: fitting(base, ({"ep": ep, "pp": pp, "sharding": "zero1"} for pp in stages)) for ep in (*near, *far)}
    sharded = [one for ep in near for one in fitting(base, [{"ep": ep, "sharding": "fsdp"}])]
    candidates = (*(one for ep in near for one in in_stages[ep]), *sharded, *(one for ep in far for one in in_stages[ep][:1]))
    text = (
        f"{owned / model.parameters:.0%} of the parameters are in {model.experts} experts, of which a token uses "
        f"{model.experts_per_token}: whole experts on different GPUs instead of a slice of every expert on each"
    )
    text += f"; {near[0]} GPUs of a node can hold them" if near else ""
    return Thought("experts", text if candidates else f"{text}; no degree fits", candidates)


def long_inputs(base: Scenario, found: Sequence[Proposal]) -> Thought | None:
    """Activations grow with the sequence, and attention with its square: several GPUs share a sequence."""
    job, model, gpus = base.job, base.model, base.cluster.gpus
    if gpus == 1:
        return None
    if job.sequence_length <= LONG_TOKENS and found:
        return Thought("long inputs", f"{job.sequence_length:,} tokens are at most {LONG_TOKENS:,}: no need to divide sequences")
    linear = 6 * model.matmul_parameters / model.train_flop_per_token(job.sequence_length, causal=True)
    text = f"attention is {1 - linear:.0%} of the flop at {job.sequence_length:,} tokens"
    if found:
        plan = fastest(found).candidate.plan
        shapes = [{"tp": plan.tp, "pp": plan.pp, "ep": plan.ep}]
    else:
        tp = max(tensor_degrees(base), default=1)
        shapes = [{"tp": tp, "pp": pp} for pp in (1, *stages_of(base, tp))]
    fixed = {"sharding": "zero1", **({"cp_kind": "ulysses"} if model.window else {})}
    plans = ({**shape, **fixed, "cp": cp} for shape in shapes for cp in _powers(gpus // (shape["tp"] * shape["pp"])))
    candidates = fitting(base, plans)
    if not candidates:
        return Thought("long inputs", f"{text}; no number of GPUs that share a sequence fits")
    one = candidates[0]
    text += f"; {one.plan.cp} GPUs that share a sequence keep {show_bytes(one.memory.activations_bytes)} of activations each"
    return Thought("long inputs", text, candidates)


def _powers(most: int) -> Iterator[int]:
    """The powers of two, from 2, that divide `most`."""
    return (n for n in degrees(most, most) if n & (n - 1) == 0)


def bubble(base: Scenario, found: Sequence[Proposal]) -> Thought | None:
    """Stages wait while a pipeline fills and drains: several smaller stages per GPU shorten that."""
    best = fastest(found).candidate if found else None
    if best is None or best.plan.pp == 1:
        return None
    plan, count = best.plan, derived.microbatches(best.scenario)
    text = f"1F1B waits for (pp - 1) / microbatches = {plan.pp - 1}/{count} = {(plan.pp - 1) / count:.0%} of its work"
    runnable = [one for chunks in _powers(MOST_CHUNKS) if (one := _interleaved(best.scenario, chunks))]
    candidates = tuple(one for one in runnable if one.fits)
    if not candidates:
        return Thought("bubble", f"{text}; several stages per GPU {'do not fit' if runnable else 'are not legal'}")
    chunks = either(one.plan.chunks for one in candidates)
    return Thought("bubble", f"{text}; with {chunks} stages per GPU it is divided by that", candidates)


def _interleaved(scenario: Scenario, chunks: int) -> Candidate | None:
    """The scenario with several stages per GPU: in equal rounds, or else in the smallest group that is legal."""
    plan = replace(scenario.plan, schedule="interleaved", chunks=chunks)
    return candidate(replace(scenario, plan=replace(plan, group=group_needed(replace(scenario, plan=plan)))))


STEPS: tuple[Think, ...] = (one_gpu, tensor, pipeline, sharding, without_nvlink, experts, long_inputs, bubble)
"""The steps in the order in which people reason."""
