"""The step without some of its causes: the same task graph, simulated again with durations in which a cause takes no time.

Orders, dependencies and classes of ranks stay as they were: only durations change. So the difference between two such steps is
what a cause adds to the step, with all that waits behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..engine.replay import with_fixed_durations
from ..engine.task import FULL_SPEED, Array, Profile, TaskGraph
from ..engine.timeline import Timeline
from ..errors import UserError
from ..kernels import Kernel
from ..metrics import Observation, Window, observe, whole
from ..program.operations import HOST, Compute, Purpose
from ..program.slot import KINDS
from ..simulation import choose_engine
from ..simulation.result import Result
from ..simulation.steady_state import between_starts, first_starts_ns
from ..units import NS_PER_S, seconds

Cause = str
LAUNCHES, OPTIMIZER, IMBALANCE = "launches", "optimizer", "imbalance"
RECOMPUTATION, SLOWER_CLOCKS, BELOW_PEAK = "recomputation", "sustained clocks", "kernel efficiency"
MAY_BE_ABSENT = (LAUNCHES, OPTIMIZER, RECOMPUTATION)
"""Causes that are listed for every step, even if the step has no row of them."""


@dataclass(frozen=True)
class Counterfactual:
    """A finished simulation, whose step can be simulated again without some causes."""

    result: Result
    _shares: dict[Kernel, float] = field(default_factory=dict, repr=False, compare=False)
    _steps_s: dict[frozenset[Cause], float] = field(default_factory=dict, repr=False, compare=False)
    """Steps that were simulated, by the causes that they are without."""
    _rows: dict[tuple[int, Cause], Array] = field(default_factory=dict, repr=False, compare=False)
    _speeds: dict[frozenset[Cause], list[float]] = field(default_factory=dict, repr=False, compare=False)
    """Mean speed of the kernels of each class of ranks, by the causes that the step is without."""

    def __post_init__(self) -> None:
        if self.result.scenario.fidelity.collectives == "stepwise":
            hint = "use fidelity.collectives: fluid, or closed"
            raise UserError("the step time without a cause cannot be computed where every message is simulated", hint=hint)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes of communication that occur in the program."""
        return tuple(axis for axis in self.result.observation.axes if axis != HOST)

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """Every cause that can be removed, in the order in which a waterfall removes them."""
        return (LAUNCHES, OPTIMIZER, *self.axes, IMBALANCE, RECOMPUTATION, SLOWER_CLOCKS, BELOW_PEAK)

    def step_s(self, removed: Iterable[Cause]) -> float:
        """Seconds of a step without the given causes, averaged over ranks as the step time of the run is."""
        gone = self._present(removed)
        if not gone:
            return self.result.metrics.step_time_s
        if gone not in self._steps_s:
            self._steps_s[gone] = self._observed(self._graph(gone)).step_s
        return self._steps_s[gone]

    def _present(self, removed: Iterable[Cause]) -> frozenset[Cause]:
        """The causes among these that take time in the step; the others change no duration."""
        return frozenset(cause for cause in removed if cause not in MAY_BE_ABSENT or self._occurs(cause))

    def _occurs(self, cause: Cause) -> bool:
        """Whether a row of any class of ranks belongs to a cause."""
        return any(self._removed(which, frozenset([cause])).any() for which in range(len(self.result.observation.labels)))

    def with_slots_scaled(self, factors: Array) -> Observation:
        """The step if the times of kernels were multiplied by factors for each class of ranks (rows) and kind of slot."""
        expansion = self.result.engine_timeline.expansion
        solo_ns = expansion.graph.solo_ns.copy()
        for which, labels in enumerate(self.result.observation.labels):
            own_ns = self._compute_ns(which, frozenset())
            for kind, factor in zip(KINDS, factors[which].tolist(), strict=True):
                own_ns[labels.phase[labels.is_compute] == kind] *= factor
            tasks = expansion.tasks_of(which)[labels.is_compute]
            solo_ns[tasks] = 0
            np.add.at(solo_ns, tasks, np.rint(own_ns).astype(np.int64))
        return self._observed(replace(expansion.graph, solo_ns=solo_ns))

    def kernels_s(self, removed: Iterable[Cause]) -> float:
        """Seconds of kernels in a step on a mean rank, without the given causes."""
        gone, total_ns = frozenset(removed), []
        for which, labels in enumerate(self.result.observation.labels):
            counted = self.result.observation.counts(labels.iteration[labels.is_compute])
            total_ns.append(self._compute_ns(which, gone)[counted].sum())
        timeline, steps = self.result.engine_timeline, self.result.observation.window.steps
        return seconds(float(np.dot(total_ns, timeline.multiplicity)) / timeline.ranks / steps)

    def _observed(self, graph: TaskGraph) -> Observation:
        """The same training steps as the run measures, with the durations of another graph."""
        every = self.result.scenario.fidelity.collectives == "closed"
        times, _, _ = choose_engine.run(with_fixed_durations(graph, every=every))
        timeline = Timeline(times, self.result.engine_timeline.expansion)
        return observe(timeline, self.result.labels, window=self._window(timeline))

    def _window(self, timeline: Timeline) -> Window:
        """The same training steps as the run measures, on another timeline."""
        window, labels = self.result.observation.window, self.result.labels
        if window.iterations.start == 0:
            return whole(timeline, labels, window.steps)
        return between_starts(first_starts_ns(timeline, labels), window.steps)

    def _graph(self, gone: frozenset[Cause]) -> TaskGraph:
        """The graph with the durations that are left when causes are removed."""
        expansion = self.result.engine_timeline.expansion
        graph, silent = expansion.graph, np.zeros(len(expansion.graph), dtype=bool)
        computed: list[tuple[Array, Array]] = []
        for which, labels in enumerate(self.result.observation.labels):
            tasks = expansion.tasks_of(which)
            silent[tasks[~labels.is_compute & self._removed(which, gone)]] = True
            computed.append((tasks[labels.is_compute], self._compute_ns(which, gone)))
        durations_ns = [own_ns for _, own_ns in computed]
        evened_ns = self._evened(durations_ns, self._mean_speeds(gone)) if IMBALANCE in gone else durations_ns
        solo_ns = np.where(silent, 0, graph.solo_ns)
        for (tasks, _), own_ns in zip(computed, evened_ns, strict=True):
            solo_ns[tasks] = 0
            np.add.at(solo_ns, tasks, np.rint(own_ns).astype(np.int64))
        sharing = graph.sharing and replace(graph.sharing, group=np.where(silent, -1, graph.sharing.group))
        tail_ns, work = (np.where(silent, 0, column) for column in (graph.tail_ns, graph.work))
        footprint = np.where(silent, -1, graph.footprint)
        made = replace(graph, solo_ns=solo_ns, tail_ns=tail_ns, work=work, footprint=footprint, sharing=sharing)
        return _at_full_speed(made) if IMBALANCE in gone else made

    def _removed(self, which: int, gone: frozenset[Cause]) -> Array:
        """Whether each row of a class of ranks belongs to a cause that is removed."""
        removed = np.zeros(len(self.result.observation.labels[which].op), dtype=bool)
        for cause in gone - {IMBALANCE, SLOWER_CLOCKS, BELOW_PEAK}:
            removed |= self._rows_of(which, cause)
        return removed

    def _rows_of(self, which: int, cause: Cause) -> Array:
        """Whether each row of a class of ranks belongs to a cause that has rows of its own."""
        if (which, cause) not in self._rows:
            labels = self.result.observation.labels[which]
            if cause == RECOMPUTATION:
                rows = np.array([op.purpose is Purpose.RECOMPUTE for op in labels.ops])[labels.op]
            elif cause == OPTIMIZER:
                rows = (labels.phase == OPTIMIZER) & labels.is_compute
            else:
                rows = labels.axis == (HOST if cause == LAUNCHES else cause)
            self._rows[which, cause] = rows
        return self._rows[which, cause]

    def _compute_ns(self, which: int, gone: frozenset[Cause]) -> Array:
        """Nanoseconds of each kernel of a class of ranks, at full speed."""
        labels, expansion = self.result.observation.labels[which], self.result.engine_timeline.expansion
        rows, variant = np.flatnonzero(labels.is_compute), int(expansion.skeleton.variants[which])
        own_ns = expansion.template_of(which).whole.durations_ns(variant)[rows].astype(float)
        if BELOW_PEAK in gone:
            own_ns = labels.flop_of(variant)[rows] * (NS_PER_S / self.result.observation.peak_flop_per_s)
        elif SLOWER_CLOCKS in gone:
            of_kernel = [self._burst_share(op.kernel) if isinstance(op, Compute) else 1.0 for op in labels.ops]
            own_ns *= np.array(of_kernel)[labels.op[rows]]
        own_ns[self._removed(which, gone)[rows]] = 0
        return own_ns

    def _burst_share(self, kernel: Kernel) -> float:
        """The time of a kernel in a short burst of launches, over its time in a step; both with its launch where kernels wait for
        it."""
        if kernel not in self._shares:
            prices, took_s = self.result.prices, seconds(self.result.site.cost(kernel))
            longer_s = prices.estimate(kernel).seconds - prices.burst_s(kernel)
            self._shares[kernel] = 1 - longer_s / took_s if took_s else 1.0
        return self._shares[kernel]

    def _mean_speeds(self, gone: frozenset[Cause]) -> list[float]:
        """The mean speed of the kernels of each class of ranks; full speed where they run at the peak of the GPUs.

        Where a speed changes with time, it is the speed while kernels run, in the step without those of the causes that are
        removed before imbalance: a rank that waits for others while it is slow loses nothing, and in a shorter step other kernels
        may be slow.
        """
        expansion = self.result.engine_timeline.expansion
        profiles = [expansion.graph.profiles[number] for number in expansion.graph.speed_profile[: expansion.skeleton.ranks]]
        if BELOW_PEAK in gone:
            return [float(FULL_SPEED)] * len(profiles)
        if all(profile.steady for profile in profiles):
            return [float(profile.value[0]) for profile in profiles]
        before = gone & {*self.causes[: self.causes.index(IMBALANCE)]}
        if before not in self._speeds:
            observed = self._observed(self._graph(before)) if self._present(before) else self.result.observation
            self._speeds[before] = [_speed_of_kernels(observed, which, profile) for which, profile in enumerate(profiles)]
        return self._speeds[before]

    def _evened(self, own_ns: Sequence[Array], speeds: Sequence[float]) -> list[Array]:
        """Durations of kernels, in nanoseconds, with which every rank computes for as long as the mean rank; ranks of the same
        program take equally long at every kernel. `own_ns` are those at full speed."""
        timeline = self.result.engine_timeline
        skeleton = timeline.expansion.skeleton
        took_ns = [own * FULL_SPEED / speed for own, speed in zip(own_ns, speeds, strict=True)]
        total_ns = np.array([took.sum() for took in took_ns])
        mean_ns = float(np.dot(total_ns, timeline.multiplicity)) / timeline.ranks
        for program in np.unique(skeleton.program).tolist():
            alike = np.flatnonzero(skeleton.program == program)
            if len(alike) > 1:
                same = np.average([took_ns[which] for which in alike], axis=0, weights=timeline.multiplicity[alike])
                for which in alike.tolist():
                    took_ns[which] = same
        return [took * (mean_ns / took.sum()) if took.sum() else took for took in took_ns]


def _speed_of_kernels(observed: Observation, which: int, profile: Profile) -> float:
    """The mean speed of a class of ranks, with this profile, while its kernels run."""
    rows, times = observed.labels[which].is_compute, observed.timeline.class_times(which)
    begins_ns, ends_ns = times.start_ns[rows].astype(float), times.end_ns[rows].astype(float)
    last_ns = max(float(ends_ns.max(initial=0)), float(profile.since_ns[-1]))
    since_ns = np.array([*profile.since_ns, last_ns], dtype=float)
    done = np.concatenate([[0.0], np.cumsum(np.diff(since_ns) * profile.value)])
    ran_ns = float((ends_ns - begins_ns).sum())
    did = float((np.interp(ends_ns, since_ns, done) - np.interp(begins_ns, since_ns, done)).sum())
    return did / ran_ns if ran_ns else FULL_SPEED


def _at_full_speed(graph: TaskGraph) -> TaskGraph:
    """The graph without perturbed speeds."""
    profiles = (*graph.profiles, Profile.constant(FULL_SPEED))
    return replace(graph, profiles=profiles, speed_profile=np.full_like(graph.speed_profile, len(graph.profiles)))
