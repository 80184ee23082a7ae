"""Costs of the kernels and collectives of a run, their provenance, and the effect of their errors on the step time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from ..binding.bind import roles_of_ranks
from ..binding.collective_policy import BARRIER, CollectivePolicy
from ..costs.collectives.curves import Provenance as OfCollectives
from ..costs.collectives.curves import UncontendedTime
from ..costs.kernels.family import Provenance as OfKernels
from ..engine.task import Array
from ..engine.timeline import Timeline
from ..kernels import Kernel
from ..program.labels import plain_name
from ..program.operations import AnyOp, Collective, Compute, Transfer
from ..program.program import Body
from ..units import counted, show_bytes, show_s
from ..units import seconds as seconds_of
from .result import Result

STANDARD_ERRORS = 2.0
"""Half-width of the interval of a step time, in standard errors."""
NOT_STRETCHED = ("dp", "pp")
"""Axes whose collectives are not part of the work of a stage that other stages wait for."""
BEST = ("measured", "interpolated")
"""Best provenances; a summary mentions provenance only where other provenances occur."""
LEAST_SHOWN = 0.01
LONGER = 1.01
"""If the links of the cluster need more than this many times the measured time of a collective, their time counts."""
FACE_VALUE_SIGMA = 0.5
"""Relative standard error of a collective on links that are taken at their face value: assumed, as that of exchanges of clusters
that are in no fit, the widest of all."""
Kernels = tuple[Kernel, ...]
"""The kernel of each variant of ranks, or one for all."""
Payload = tuple[str, str, int]
"""The communicator of a collective, or its axis; its kind; and its bytes."""

Splits = tuple[tuple[tuple[int, ...], int], ...]
"""The ways in which the ranks of groups are on nodes: the number of ranks on each node, the largest first, and the number of such
groups, the most frequent first."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """One kernel or collective of a step, summed over the layers, microbatches and pipeline ranks of one replica that run it."""

    name: str
    shape: str
    calls: int
    seconds_each: float
    seconds: float
    """Time of all calls, summed over all pipeline ranks."""
    model: str
    provenance: str
    sigma: float
    """Relative standard error."""
    extrapolated: bool
    axis: str = ""
    """Axis of a collective; empty for kernels."""
    ranks: str = ""
    """The pipeline ranks that run a kernel, such as 0-6."""
    over_burst: float = 1.0
    """Time of a kernel over its time in a short burst of launches."""


class OpCosts(list[OpCost]):
    """The costs of a run, the most expensive first. The list prints as one line; each row prints in full."""

    def __init__(self, rows: Iterable[OpCost]) -> None:
        super().__init__(sorted(rows, key=lambda row: -row.seconds))

    def __repr__(self) -> str:
        most = f", most in {self[0].name}: {show_s(self[0].seconds)}" if self else ""
        return f"OpCosts({len(self):,} rows, {show_s(sum(row.seconds for row in self))}{most})"


def kernel_costs(result: Result, rows: Iterable[tuple[Kernels, OpCost]]) -> OpCosts:
    """The rows of kernels, with their times over those in a short burst of launches."""
    mean = _mean_over_variants(result, result.prices.burst_s)
    return OpCosts(replace(row, over_burst=row.seconds_each / mean(kernels)) for kernels, row in rows)


def kernel_rows(result: Result) -> list[tuple[Kernels, OpCost]]:
    """Cost of every kernel of the measured step; the same operator of different layers is one row.

    Where ranks have different numbers of tokens, a row shows the largest shape, and the mean of the times.
    """
    ranks: dict[tuple[str, Kernels], set[int]] = defaultdict(set)
    named_in, mean = _kernels(result), _mean_over_variants(result, lambda kernel: result.prices.estimate(kernel).seconds)
    for rank, body, _ in _calls(result):
        for named in named_in[body]:
            ranks[named].add(rank)
    rows = []
    for (name, kernels), times in _counted(result, named_in).items():
        most = max(kernels, key=lambda kernel: kernel.traffic_bytes)
        made, mean_s = result.prices.estimate(most), mean(kernels)
        known = made.model, made.provenance, made.sigma, made.extrapolated
        row = OpCost(name, most.shape, round(times), mean_s, mean_s * times, *known, ranks=spans(ranks[name, kernels]))
        rows.append((kernels, row))
    return rows


def _mean_over_variants(result: Result, seconds: Callable[[Kernel], float]) -> Callable[[Kernels], float]:
    """The mean time of a kernel over the variants of ranks, which each have a kernel of their own or all have the same one."""
    shares = _shares_of_variants(result)

    def mean(kernels: Kernels) -> float:
        if len(kernels) == 1:
            return seconds(kernels[0])
        return sum(share * seconds(kernel) for share, kernel in zip(shares, kernels, strict=True))

    return mean


def _shares_of_variants(result: Result) -> tuple[float, ...]:
    """Variant -> the share of the ranks that belong to it."""
    variants = result.simulated.program.variants
    return tuple(len(of) / sum(map(len, variants)) for of in variants)


def _counted(result: Result, named_in: Mapping[str, Counter[tuple[str, Kernels]]]) -> dict[tuple[str, Kernels], float]:
    """The number of calls of each kernel, from the number of calls of each body."""
    calls = defaultdict[tuple[str, Kernels], float](float)
    for _, body, times in _calls(result):
        for named, count in named_in[body].items():
            calls[named] += times * count
    return {named: times / result.observed.window.steps for named, times in calls.items()}


def _kernels(result: Result) -> dict[str, Counter[tuple[str, Kernels]]]:
    """Body -> its kernels by plain name, and how many of each it has."""
    bodies = result.simulated.program.bodies.items()
    kernels = ((name, (op for op in body.ops if isinstance(op, Compute))) for name, body in bodies)
    return {name: Counter((plain_name(op), op.kernels()) for op in ops) for name, ops in kernels}


def _calls(result: Result) -> Iterator[tuple[int, str, float]]:
    """Every body of the measured training steps of one replica: pipeline rank, body, and number of calls in all these steps, the
    mean over the ranks of a pipeline coordinate."""
    window, (program, repeats) = result.observed.window, (result.simulated.program, result.simulated.repeats)
    shares = _shares_of_roles(result)
    for at, (role, order, share) in enumerate(zip(program.roles, program.orders, shares, strict=True)):
        calls = Counter(step.body for step in order if step.iteration in window.iterations)
        if repeats:
            again = repeats.steps[at].tolist()
            calls.update({body: repeats.times * n for body, n in Counter(order[at].body for at in again).items()})
        yield from ((role.pipeline, body, share * times) for body, times in calls.items())


def _shares_of_roles(result: Result) -> Sequence[float]:
    """Role -> the share of the ranks of its pipeline coordinate that have it."""
    roles = result.simulated.program.roles
    if not result.simulated.program.divided_roles:
        return [1.0] * len(roles)
    ranks = np.bincount(roles_of_ranks(roles, result.simulated.bound.mesh), minlength=len(roles)).tolist()
    of_coordinate: Counter[int] = Counter()
    for role, number in zip(roles, ranks, strict=True):
        of_coordinate[role.pipeline] += number
    return [number / of_coordinate[role.pipeline] for role, number in zip(roles, ranks, strict=True)]


def spans(numbers: Iterable[int]) -> str:
    """Numbers as a list of ranges, such as 0-2, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def collective_costs(result: Result) -> OpCosts:
    """Cost of every collective of the measured step without contention; on links taken at face value, and where every message is
    simulated, as it was simulated. The mean of all groups is given where their ranks are on nodes in different ways, as in racks
    that a group does not divide. Where its messages need longer on the links of the cluster than was measured on others, that is
    its cost. A transfer is counted at its source.
    """
    policy, size = result.site.policy, result.scenario.cluster.gpus_per_node
    program, by_messages = result.simulated.program, result.scenario.fidelity.collectives == "stepwise"
    gpus_of = dict(zip(program.communicators, result.simulated.bound.families, strict=False))
    uncontended_s, simulated_s = _mean_s(result, _uncontended_ns), dict[Payload, float]()
    calls, lasted_s = (defaultdict[tuple[Payload, Splits], float](float) for _ in range(2))
    known_of = dict[tuple[Payload, Splits], UncontendedTime | None]()
    for named, times in _payload_calls(result).items():
        name, kind, payload_bytes = named
        if gpus_of[name].shape[1] > 1 and kind != BARRIER:
            alike = (program.communicators[name].axis, kind, payload_bytes), _splits(gpus_of[name] // size)
            calls[alike] += times
            known = known_of[alike] = None if by_messages else _known(policy, *alike)
            simulated_s = simulated_s if known or simulated_s else _mean_s(result, _simulated_ns)
            lasted_s[alike] += times * (uncontended_s if known else simulated_s).get(named, 0.0)
    rows = []
    for alike, times in calls.items():
        (axis, kind, payload_bytes), splits = alike
        algorithm = policy.chosen(kind, _nodes(splits[0][0]), payload_bytes)
        used = sorted({len(split) for split, _ in splits})
        on = f"{used[0]} to {used[-1]} nodes" if used[0] < used[-1] else counted(used[0], "node")
        shape = f"{show_bytes(payload_bytes)} over {sum(splits[0][0])} ranks on {on}, {algorithm}"
        seconds, known = lasted_s[alike] / times, known_of[alike]
        if known and seconds <= LONGER * known.seconds:
            seconds = known.seconds
        else:
            known = None
        how = (
            (known.source, known.provenance, known.uncertainty)
            if known
            else ("links at face value", "theoretical", FACE_VALUE_SIGMA)
        )
        n = round(times)
        rows.append(OpCost(f"{axis} {kind}", shape, n, seconds, seconds * n, *how, how[1] != "interpolated", axis))
    return OpCosts(rows)


def _splits(nodes: Array) -> Splits:
    """The splits of groups over nodes, given the node of every member, a group per row."""
    found = Counter[tuple[int, ...]]()
    begins = np.diff(np.sort(nodes, axis=1), axis=1, prepend=-1) != 0
    rows = begins[:1] if (begins == begins[:1]).all() else begins
    for row, times in Counter(map(bytes, rows)).items():
        ends = [*np.flatnonzero(np.frombuffer(row, dtype=bool))[1:].tolist(), nodes.shape[1]]
        found[tuple(sorted(np.diff(ends, prepend=0).tolist(), reverse=True))] += times
    return tuple(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def _nodes(split: Sequence[int]) -> Array:
    """The node of every rank of a group with a split over nodes."""
    return np.repeat(np.arange(len(split)), split)


def _known(policy: CollectivePolicy, call: Payload, splits: Splits) -> UncontendedTime | None:
    """The uncontended time of a collective, the mean over all groups, with provenance and error of the slowest."""
    _, kind, payload_bytes = call
    known = []
    for split, times in splits:
        nodes = _nodes(split)
        one = policy.uncontended_time(kind, policy.chosen(kind, nodes, payload_bytes), nodes, payload_bytes)
        if one is None:
            return None
        known.append((one, times))
    mean_s = sum(one.seconds * times for one, times in known) / sum(times for _, times in known)
    slowest, _ = max(known, key=lambda each: each[0].seconds)
    return replace(slowest, seconds=mean_s)


def _payload_calls(result: Result) -> dict[Payload, float]:
    """How often a measured step has each collective, and each transfer at its source: communicator, kind and bytes."""
    moved = {name: Counter(_payloads(body)) for name, body in result.simulated.program.bodies.items()}
    payloads = defaultdict[Payload, float](float)  # of means over the ranks of a pipeline coordinate
    for _, body, times in _calls(result):
        for payload, count in moved[body].items():
            payloads[payload] += times * count
    return {payload: times / result.observed.window.steps for payload, times in payloads.items()}


def _simulated_ns(timeline: Timeline, which: int) -> Array:
    """The time of every row of a class of ranks, from the start of its last member to its arrival."""
    times = timeline.class_times(which)
    return times.arrival_ns - times.start_ns


def _uncontended_ns(timeline: Timeline, which: int) -> Array:
    """The time of every row of a class of ranks without contention, if it is a turn of a communicator."""
    skeleton = timeline.skeleton
    template, tariff = skeleton.templates[int(skeleton.program[which])].whole, skeleton.tariff
    charged = skeleton.kind[skeleton.slots[template.slot, which]], template.charge
    moving_ns = -(-tariff.work[charged] // np.maximum(1, tariff.cap[charged]))
    found: Array = tariff.latency_ns[charged] + tariff.tail_ns[charged] + moving_ns
    return found


def _mean_s(result: Result, lasting_ns: Callable[[Timeline, int], Array]) -> dict[Payload, float]:
    """The mean time of each collective over the measured steps, from the times of the rows of every class of ranks."""
    timeline, labels = result.simulated.timeline, result.simulated.bound.labels
    most = max(len(of.ops) for of in labels)
    sums = {id(of.ops): (of.ops, np.zeros((2, most))) for of in labels}
    for which, program in enumerate(timeline.skeleton.program.tolist()):
        of, rows = labels[program], np.flatnonzero(timeline.skeleton.templates[program].whole.slot >= 0)
        calls = result.observed.calls(which)[rows] * int(timeline.multiplicity[which])
        for total, each in zip(sums[id(of.ops)][1], (lasting_ns(timeline, which)[rows], 1), strict=True):
            total += np.bincount(of.op[rows], calls * each, most)
    found = defaultdict[Payload, list[int]](lambda: [0, 0])
    for ops, (total_ns, times) in sums.values():
        for op in np.flatnonzero(times).tolist():
            for payload in _payloads_of(ops[op]):
                found[payload][0] += int(total_ns[op])
                found[payload][1] += int(times[op])
    return {payload: seconds_of(total_ns / times) for payload, (total_ns, times) in found.items()}


def _payloads(body: Body) -> Iterator[Payload]:
    """Communicator, kind and bytes of every collective of a body, and of every transfer that it sends."""
    for op in body.ops:
        yield from _payloads_of(op)


def _payloads_of(op: AnyOp) -> Iterator[Payload]:
    if isinstance(op, Collective):
        yield op.communicator, op.kind, op.payload_bytes
    elif isinstance(op, Transfer) and op.sends:
        yield op.communicator, "sendrecv", op.payload_bytes


def kernel_provenance(costs: Sequence[OpCost]) -> dict[str, float]:
    """Shares of the kernels' time by provenance, and the share (of any provenance) of sizes beyond the measured sizes."""
    extrapolated = sum(cost.seconds for cost in costs if cost.extrapolated)
    return {**_shares(costs, get_args(OfKernels)), "extrapolated": extrapolated / (sum(cost.seconds for cost in costs) or 1.0)}


def collective_provenance(costs: Sequence[OpCost]) -> dict[str, float]:
    """Shares of the collectives' uncontended time by provenance."""
    return _shares(costs, get_args(OfCollectives))


def _shares(costs: Sequence[OpCost], names: Iterable[str]) -> dict[str, float]:
    total = sum(cost.seconds for cost in costs) or 1.0
    return {name: sum(cost.seconds for cost in costs if cost.provenance == name) / total for name in names}


def provenance_lines(kernels: Mapping[str, float], collectives: Mapping[str, float]) -> list[tuple[str, str]]:
    """A line of a summary, if the provenance of some times is not among the `BEST`."""
    listed = []
    for what, shares in (("kernels", kernels), ("collectives", collectives)):
        if any(share for name, share in shares.items() if name not in BEST):
            words = [f"{_percent(share)} {name}" for name, share in shares.items() if share]
            beyond = f" ({words.pop()})" if what == "kernels" and shares.get("extrapolated") else ""
            listed += [f"{what} {', '.join(words)}{beyond}"]
    return [("provenance", "; ".join(listed))] if listed else []


def _percent(share: float) -> str:
    """A share in whole percent; values near 0 or 1 print as <1% or >99% unless they are exact."""
    return "<1%" if share < LEAST_SHOWN else ">99%" if 1 - LEAST_SHOWN < share < 1 else f"{share:.0%}"


def step_interval_s(
    step_s: float,
    kernels: Iterable[OpCost],
    collectives: Iterable[OpCost],
    exposed_s: Mapping[str, float],
    pipeline_ranks: int,
    bubble_fraction: float,
) -> tuple[float, float]:
    """Interval of the step time, from the errors of its kernels and of its exposed collectives alone.

    An error in a rank's mean kernel time is assumed to shift the step time by the same amount; errors within one cost model are
    fully correlated, errors of different cost models are independent. The exposed time of an axis has the mean error of the
    collectives of the axis, weighted by their uncontended time. The bubble grows in proportion to the time of a stage.
    """
    stretched = 1 / (1 - bubble_fraction)
    errors_s: dict[str, float] = defaultdict(float)
    for cost in kernels:
        errors_s[cost.model] += stretched * cost.seconds * cost.sigma / pipeline_ranks
    uncontended_s: dict[str, float] = defaultdict(float)
    wrong_s: dict[str, float] = defaultdict(float)
    for cost in collectives:
        uncontended_s[cost.axis] += cost.seconds
        wrong_s[cost.axis] += cost.seconds * cost.sigma
    waits = [
        exposed_s.get(axis, 0.0) * (1.0 if axis in NOT_STRETCHED else stretched) * wrong_s[axis] / uncontended_s[axis]
        for axis in uncontended_s
        if uncontended_s[axis]
    ]
    spread = STANDARD_ERRORS * math.hypot(*errors_s.values(), *waits)
    return max(0.0, step_s - spread), step_s + spread
