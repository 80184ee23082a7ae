"""The place of a loss in words: the operators, the collectives and links, the rank or the stage that cause it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..config import derived
from ..metrics.idle import exposed
from ..program.labels import plain_name
from ..program.operations import Collective
from ..simulation.run import Run
from ..simulation.time_block import OF_AXES
from ..study.waterfall import BUBBLE, LEFT, OTHER_FLOP
from ..study.without import BELOW_PEAK, IMBALANCE, LAUNCHES, OPTIMIZER, RECOMPUTATION, SLOWER_CLOCKS, Cause
from ..units import NS_PER_S, counted, seconds, show_s

MOST_NAMED = 3
"""Most operators that a sentence names."""
GROUPS = {"tp": "tensor-parallel", "ep": "expert-parallel"}
"""Axes whose groups are meant to stay within a node."""
LEAST_DIFFERENCE = 0.01
"""A rank is called slow if it computes for longer than the mean rank by at least this fraction."""
WORDS = {
    SLOWER_CLOCKS: "kernels take longer than in short bursts, at the clock that the board sustains",
    RECOMPUTATION: "forward passes are repeated, to keep fewer activations",
    LAUNCHES: "GPUs wait for the host to launch kernels",
    OPTIMIZER: "the optimizer updates the parameters",
    OTHER_FLOP: "kernels execute flop that the model's count leaves out",
    LEFT: "ranks have finished their work",
}
"""Description of a cause without a particular place."""


def place_of(run: Run, cause: Cause) -> str:
    """Description of a cause in this run, with its place."""
    if cause in OF_AXES:
        return f"{OF_AXES[cause]} that compute waits for or is slowed by{_communication(run, cause)}"
    places: dict[str, Callable[[Run], str]] = {BELOW_PEAK: _kernels, IMBALANCE: _imbalance, BUBBLE: _bubble}
    return places[cause](run) if cause in places else WORDS.get(cause, cause)


def _kernels(run: Run) -> str:
    """The operators that lose most against the peak, and the settings that make kernels small or many."""
    lost_s: dict[str, float] = defaultdict(float)
    observed = run.observation
    for which, labels in enumerate(observed.labels):
        flop, rows = labels.flop_of(), _kernel_rows(run, which)
        own_s = _lengths_ns(run, which)[rows] / NS_PER_S - flop[rows] / observed.peak_flop_per_s
        for name, value in _by_operator(labels, rows, own_s).items():
            lost_s[name] += _share(run, which) * value
    words = f"kernels are slower than the peak of the GPU, most in {_most(lost_s)} per rank"
    job, framework = run.scenario.job, run.scenario.framework
    words += "; attention is not fused" if framework.attention == "unfused" else ""
    tokens = job.microbatch_size * job.sequence_length // (run.scenario.plan.splits * run.scenario.plan.cp)
    return f"{words}; {counted(tokens, 'token')} {'is' if tokens == 1 else 'are'} computed at a time"


def _kernel_rows(run: Run, which: int) -> Any:
    """The rows of kernels of a class of ranks that are measured, without those of the optimizer."""
    labels = run.observation.labels[which]
    measured = run.observation.counts(labels.iteration)
    return np.flatnonzero(labels.is_compute & (labels.phase != "optimizer") & measured)


def _lengths_ns(run: Run, which: int) -> Any:
    times = run.engine_timeline.class_times(which)
    return times.end_ns - times.start_ns


def _share(run: Run, which: int) -> float:
    """The share of a class in the ranks, over the number of measured steps."""
    timeline = run.engine_timeline
    return int(timeline.multiplicity[which]) / timeline.ranks / run.observation.window.steps


def _by_operator(labels: Any, rows: Any, values: Any) -> dict[str, float]:
    """The sums of values of rows by the name of the operator."""
    of_op = np.bincount(labels.op[rows], weights=values, minlength=len(labels.ops))
    total: dict[str, float] = defaultdict(float)
    for op in np.unique(labels.op[rows]).tolist():
        total[plain_name(labels.ops[op])] += float(of_op[op])
    return total


def _most(seconds_of: Mapping[str, float], count: int = MOST_NAMED) -> str:
    """The largest of some seconds, with their names."""
    most = sorted(seconds_of.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{name} {show_s(value)}" for name, value in most if value > 0)


def _communication(run: Run, axis: str) -> str:
    """The operations of an axis that ranks wait for longest, the links that limit them, and what makes compute wait."""
    observed = run.observation
    if axis not in observed.axes:
        return ""
    pieces, of_axis = exposed(observed)
    chosen = of_axis == observed.axes.index(axis)
    waited_s: dict[str, float] = defaultdict(float)
    rank_of, row_of = observed.timeline.expansion.origin
    shares = np.array([_share(run, which) for which in range(len(observed.labels))])
    length_ns = (pieces.until_ns - pieces.from_ns)[chosen] * shares[pieces.which[chosen]]
    for task, ns in zip(pieces.task[chosen].tolist(), length_ns.tolist(), strict=True):
        labels, row = observed.labels[int(rank_of[task])], int(row_of[task])
        waited_s[_name(labels, row)] += seconds(ns)
    named, in_all_s = _most(waited_s, 2), sum(waited_s.values())
    limit = next((wait for wait in run.network.waits if wait.waited_by_axis_s.get(axis)), None)
    words = [f"; a mean rank waits {show_s(in_all_s)} for it, most in {named}" if named else ""]
    words += [f"; most is limited by {' and '.join(limit.links)}"] if limit and limit.links else []
    return "".join([*words, *_reasons(run, axis)])


def _name(labels: Any, row: int) -> str:
    """The operation of a row, of all layers together, such as `all_gather of parameters`."""
    block, op = str(labels.block(row)), labels.ops[int(labels.op[row])]
    name = block.split(" ", 2)[-1] if block.startswith("layer ") else block
    return f"{op.kind} of {name}" if isinstance(op, Collective) else name


def _reasons(run: Run, axis: str) -> Iterable[str]:
    """Why compute waits: degraded links, blocking communication, or groups that extend over nodes."""
    plan = run.scenario.plan
    beside = getattr(plan.overlap.over(run.scenario.framework.overlap), axis, True)
    if not beside:
        yield "; nothing computes beside it"
    limits = {kind for wait in run.network.waits if wait.waited_by_axis_s.get(axis) for kind in wait.links}
    kind_of, kinds = run.network.kinds
    slower = [one for one in run.scenario.perturb if one.link is not None and one.capacity is not None and one.capacity < 1]
    for one in slower:
        if kinds[kind_of[run.network.cluster.link_named(str(one.link))]] in limits:
            yield f"; {one.link} has {one.capacity:g} of its bandwidth"
    if axis in GROUPS:
        yield _spanning(run, axis)


def _spanning(run: Run, axis: str) -> str:
    """The groups that extend over several nodes: all tensor-parallel groups, or some groups, where they do not divide a node."""
    scenario, per_node = run.scenario, run.scenario.cluster.gpus_per_node
    nodes = np.sort(derived.nodes_of_groups(scenario, axis), axis=1)
    used, ranks = (np.diff(nodes, axis=1) != 0).sum(axis=1) + 1, nodes.shape[1]
    several, groups, most = int((used > 1).sum()), len(used), used.max()
    if 0 < several < groups:
        reason = f", as groups of {ranks} do not divide the {per_node} GPUs of a node" if per_node % ranks else ""
        return f"; the ranks of {several:,} of {groups:,} {GROUPS[axis]} groups are on up to {most} nodes{reason}"
    if several and axis == "tp":
        return f"; a tensor-parallel group spans {most} nodes with rank order {scenario.plan.rank_order}"
    return ""


def _imbalance(run: Run) -> str:
    """The rank that computes for longest, what distinguishes it, and the operators that take longer there."""
    timeline, perturbed, placement = run.engine_timeline, run.scenario.perturb, run.scenario.plan.placement
    slow = [p for p in perturbed if p.rank is not None and p.speed is not None and p.speed < 1]
    if slow:
        return ", ".join(f"{p.target(placement)} runs at {p.speed:g} of its speed" for p in slow) + ", and others wait for it"
    operators: list[dict[str, float]] = []
    for which, labels in enumerate(run.observation.labels):
        rows = _kernel_rows(run, which)
        own_s = _lengths_ns(run, which)[rows] / NS_PER_S / run.observation.window.steps
        operators.append(_by_operator(labels, rows, own_s))
    totals = [sum(one.values()) for one in operators]
    longest = int(np.argmax(totals))
    mean: dict[str, float] = defaultdict(float)
    for which, one in enumerate(operators):
        for name, value in one.items():
            mean[name] += value * int(timeline.multiplicity[which]) / timeline.ranks
    mean_s = sum(mean.values())
    if totals[longest] <= mean_s * (1 + LEAST_DIFFERENCE):
        return "some ranks compute for longer than others at times, which wait for them"
    more = _most({name: value - mean[name] for name, value in operators[longest].items()})
    rank = int(np.argmax(timeline.class_of == longest))
    return (
        f"{_stages(run, longest)}rank {rank} computes for {show_s(totals[longest])}, a mean rank for {show_s(mean_s)}; "
        f"it computes longer most in {more}{_ends(run, longest)}"
    )


def _ends(run: Run, which: int) -> str:
    """The time of embedding and head on a class of ranks of a pipeline that holds them."""
    labels, rows = run.observation.labels[which], _kernel_rows(run, which)
    numbers = set(labels.stage.tolist())
    of = [stage for stage in labels.stages if stage.number in numbers and not stage.share]
    has = [f"the {name}" for name in ("embedding", "head") if any(getattr(stage, name) for stage in of)]
    if run.scenario.plan.pp == 1 or not has:
        return ""
    outside = np.array([op.layer < 0 for op in labels.ops])[labels.op[rows]] & (labels.stage[rows] >= 0)
    took_s = seconds(int(_lengths_ns(run, which)[rows][outside].sum()) / run.observation.window.steps)
    return f"; {' and '.join(has)} take{'s' * (len(has) == 1)} {show_s(took_s)}"


def _stages(run: Run, which: int) -> str:
    """The content of the stages of a class of ranks, in a pipeline."""
    labels = run.observation.labels[which]
    if run.scenario.plan.pp == 1:
        return ""
    held, numbers = [], set(labels.stage.tolist())
    for stage in labels.stages:
        if stage.number not in numbers:
            continue
        has = [name for name, there in (("the embedding", stage.embedding), ("the head", stage.head)) if there]
        held.append(f"stage {stage.number} ({' and '.join([counted(stage.layers, 'layer'), *has])})")
    return f"{' and '.join(held)} on "


def _bubble(run: Run) -> str:
    """The settings that make the bubble large."""
    plan = run.scenario.plan
    microbatches = derived.microbatches(run.scenario)
    fills = f"a pipeline of {plan.pp} ranks fills and drains around {counted(microbatches, 'microbatch')}"
    return f"remainder with equal stages at the peak of the GPUs: {fills}"
