"""Explanation of a step: its losses in words with numbers, the largest first, and at most three changes that make it shorter.

Every number is a simulation: a loss is a bar of the waterfall, and a change is a simulated plan that fits in memory. The place of
a loss comes from the same run: the operators that are far from the peak, the collectives and links that ranks wait for, the stage
or rank that is slower than the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..escape import Summarised
from ..metrics.idle import exposed
from ..simulation.run import Run
from ..simulation.time_block import OF_AXES
from ..study.compare import stage_seconds
from ..study.critical_path import CriticalPath, critical_path
from ..study.waterfall import BUBBLE, OTHER_FLOP, Bar, Waterfall, waterfall
from ..study.without import BELOW_PEAK, IMBALANCE, LAUNCHES, OPTIMIZER, RECOMPUTATION, SLOWER_CLOCKS
from ..units import NS_PER_S, seconds, show_s
from .neighbours import Neighbour, neighbours

MOST_CHANGES = 3
LEAST_LOSS = 0.001
"""The smallest part of a step that is called a loss."""
WORDS = {
    SLOWER_CLOCKS: "kernels take longer than in short bursts, at the clock that the board sustains",
    RECOMPUTATION: "forward passes are repeated, to keep fewer activations",
    LAUNCHES: "GPUs wait for the host to launch kernels",
    OPTIMIZER: "the optimizer updates the parameters",
    OTHER_FLOP: "kernels do flop that the count of the model leaves out",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """A cause that makes the step longer, with its place."""

    cause: str
    seconds: float
    fraction: float
    """The part of the step."""
    text: str
    remedy: str
    """The best simulated change that addresses this cause; "" where none that was tried helps."""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("cause", "seconds", "fraction", "text", "remedy")}


@dataclass(frozen=True, repr=False)
class Explanation(Summarised):
    """Why a step takes as long as it does, and what would make it shorter."""

    run: Run
    waterfall: Waterfall
    path: CriticalPath
    changes: tuple[Neighbour, ...]
    """The changes that help most, at most one for each field."""

    @cached_property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the step, the largest first."""
        found = []
        for bar in self.waterfall.largest_first:
            fraction = self.waterfall.fraction(bar)
            if fraction >= LEAST_LOSS:
                remedy = next((one.text for one in self.changes if one.addresses == bar.cause), "")
                found.append(Loss(bar.cause, bar.seconds, fraction, _text(self.run, bar), remedy))
        return tuple(found)

    @property
    def best(self) -> tuple[Neighbour, ...]:
        """The changes that are shown."""
        return self.changes[:MOST_CHANGES]

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The step, its largest losses, and the changes that help most."""
        metrics = self.run.metrics
        tops = [(f"loss {i}", one.text) for i, one in enumerate(self.losses[:3], 1)]
        changes = [(f"change {i}", one.text) for i, one in enumerate(self.best, 1)]
        nothing = [("change", "none that was tried makes the step shorter")]
        return [("step time", f"{show_s(metrics.step_time_s)}, MFU {metrics.mfu:.1%}"), *tops, *(changes or nothing)]

    def as_dict(self) -> dict[str, Any]:
        """Everything that `trainsim explain --json` prints."""
        return {
            "step_time_s": self.run.metrics.step_time_s,
            "mfu": self.run.metrics.mfu,
            "losses": [loss.as_dict() for loss in self.losses],
            "waterfall": self.waterfall.as_list(),
            "critical_path": self.path.as_list(),
            "changes": [change.as_dict() for change in self.best],
        }


def explain(run: Run, *, long: bool = False) -> Explanation:
    """The explanation of a run: some forty more simulations."""
    return Explanation(run, waterfall(run), critical_path(run), neighbours(run, long=long))


def _text(run: Run, bar: Bar) -> str:
    """A loss in words."""
    took = f"{show_s(bar.seconds)}, {bar.seconds / run.metrics.step_time_s:.1%} of the step"
    if bar.cause in OF_AXES:
        return f"{took}: {OF_AXES[bar.cause]} that compute waits for{_communication(run, bar.cause)}"
    places: dict[str, Callable[[Run], str]] = {BELOW_PEAK: _kernels, IMBALANCE: _imbalance, BUBBLE: _bubble}
    words = places[bar.cause](run) if bar.cause in places else WORDS.get(bar.cause, bar.cause)
    return f"{took}: {words}"


def _kernels(run: Run) -> str:
    """The operators that lose most against the peak."""
    lost_s: dict[str, float] = defaultdict(float)
    observed = run.observation
    for labels, own_s, share in _compute(run):
        flop = labels.flop_of()[labels.is_compute]
        names = np.array([name.split()[-1] for name in labels.blocks], dtype=object)[labels.is_compute]
        counted = observed.counts(labels.iteration[labels.is_compute])
        for name in np.unique(names[counted]):
            of = counted & (names == name)
            lost_s[name] += share * float((own_s[of] - flop[of] / observed.peak_flop_per_s).sum()) / observed.window.steps
    most = sorted(lost_s.items(), key=lambda item: -item[1])[:3]
    named = ", ".join(f"{name} {show_s(value)}" for name, value in most)
    return f"kernels are slower than the peak of the GPU, most in {named} per rank"


def _compute(run: Run) -> Iterable[tuple[Any, Any, float]]:
    """Labels of every class of ranks, the seconds of each of its kernels, and its share of the ranks."""
    timeline = run.engine_timeline
    for which, labels in enumerate(run.observation.labels):
        times = timeline.class_times(which)
        own_s = ((times.end_ns - times.start_ns) / NS_PER_S)[labels.is_compute]
        yield labels, own_s, int(timeline.multiplicity[which]) / timeline.ranks


def _communication(run: Run, axis: str) -> str:
    """The operations of an axis that ranks wait for longest, and the links that limit them."""
    observed = run.observation
    pieces, of_axis = exposed(observed)
    if axis not in observed.axes:
        return ""
    chosen = of_axis == observed.axes.index(axis)
    waited_ns: dict[str, float] = defaultdict(float)
    rank_of, row_of = observed.timeline.expansion.origin
    shares = observed.timeline.multiplicity / observed.timeline.ranks
    length_ns = (pieces.until_ns - pieces.from_ns)[chosen] * shares[pieces.which[chosen]]
    for task, ns in zip(pieces.task[chosen].tolist(), length_ns.tolist(), strict=True):
        labels = observed.labels[int(rank_of[task])]
        waited_ns[labels.block(int(row_of[task])).split()[-1]] += ns
    most = sorted(waited_ns.items(), key=lambda item: -item[1])[:2]
    named = ", ".join(f"{name} {show_s(seconds(ns / observed.window.steps))}" for name, ns in most)
    limit = next((wait for wait in run.network.waits if wait.waited_by_axis_s.get(axis)), None)
    full = f"; most is limited by {' and '.join(limit.links)}" if limit and limit.links else ""
    return f", most in {named}{full}" if named else full


def _imbalance(run: Run) -> str:
    """The slowest stage or rank, and what it alone has."""
    slow = [p for p in run.scenario.perturb if p.rank is not None and p.speed is not None and p.speed < 1]
    if slow:
        return ", ".join(f"rank {p.rank} runs at {p.speed:g} of its speed" for p in slow) + ", and others wait for it"
    taken = stage_seconds(run)
    if len(taken) < 2:
        return "some ranks compute for longer than others, which wait for them"
    slowest = max(taken, key=lambda stage: taken[stage])
    mean_s = sum(taken.values()) / len(taken)
    stage = next(one for one in run.program.stages if one.number == slowest)
    has = " and ".join(name for name, there in (("the embedding", stage.embedding), ("the head", stage.head)) if there)
    alone = f"{stage.layers} layers" + (f" and {has}" if has else "")
    return f"stage {slowest} ({alone}) computes for {show_s(taken[slowest])}, a stage on average for {show_s(mean_s)}"


def _bubble(run: Run) -> str:
    """What leaves ranks without work."""
    job, plan = run.scenario.job, run.scenario.plan
    replicas = run.gpus // (plan.tp * plan.cp * plan.pp)
    microbatches = job.global_batch // replicas // job.microbatch_size
    if plan.pp == 1:
        return "ranks have nothing left to do"
    return f"ranks wait for other stages: a pipeline of {plan.pp} ranks fills and drains around {microbatches} microbatches"
