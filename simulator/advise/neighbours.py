"""Neighbours of a plan: plans that differ from it in one decision, each simulated, and those that make the step shorter.

A layer moves from one stage to another (`splits.py`); microbatches are halved or doubled; activations are recomputed more or
less; the schedule, the degrees of parallelism and the order of ranks, the sharding, the overlap and the library of attention
change by one value, and so does how GPUs divide the experts. A plan that does not fit is tried once more with selective
recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import derived
from ..config.leftovers import changed, completed
from ..config.scenario import Scenario
from ..errors import shown
from ..plan.plan import Overlap, Plan
from ..simulation.run import Run
from ..simulation.session import Session
from ..study.waterfall import BUBBLE
from ..study.without import BELOW_PEAK, IMBALANCE, OPTIMIZER, RECOMPUTATION, Cause
from ..units import show_bytes, show_s
from .candidates import Proposal, candidate_that_fits, group_needed, legal, proposal
from .explanation_effort import Work, splits_in_time, work_of
from .remedies import Change
from .splits import Split, Splits, moved_from_slowest, splits

SCHEDULES: Sequence[Mapping[str, Any]] = (
    {"plan.schedule": "1f1b", "plan.chunks": 1},
    {"plan.schedule": "interleaved", "plan.chunks": 2},
    {"plan.schedule": "interleaved", "plan.chunks": 4},
    {"plan.schedule": "zb-h1", "plan.chunks": 1},
    {"plan.schedule": "zb-v", "plan.chunks": 2},
)
SCOPES = ("none", "selective", "full")
EMPTY = """'""'"""
"""An empty string in the syntax of a shell."""
LEAST_GAIN = 0.001
"""The smallest saving, as a fraction of the step, for which a change is reported."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A change of a plan, with the resulting step and the additional bytes on the fullest GPU."""

    change: Change
    addresses: Cause
    step_time_s: float
    gain: float
    """The fraction of the step that is saved."""
    more_bytes: int

    @property
    def fields(self) -> dict[str, Any]:
        """The changed fields of the scenario with their new values, as plain data."""
        return {
            f"{name}.{self.addresses}" if isinstance(value, Overlap) else name: True if isinstance(value, Overlap) else value
            for name, value in self.change.items()
        }

    @property
    def settings(self) -> str:
        """The change as options of the command line."""
        return " ".join(f"--set {name}={_written(value)}" for name, value in self.fields.items())

    @property
    def text(self) -> str:
        sign = "+" if self.more_bytes >= 0 else "-"
        return (
            f"{self.settings}: {-self.gain:+z.1%} step, {show_s(self.step_time_s)}, "
            f"{sign}{show_bytes(abs(self.more_bytes))} on the fullest GPU"
        )

    def as_dict(self) -> dict[str, Any]:
        """The change and its effects as plain data."""
        return {
            "set": self.fields,
            "addresses": self.addresses,
            "step_time_s": self.step_time_s,
            "gain": self.gain,
            "more_bytes": self.more_bytes,
        }


def _written(value: Any) -> str:
    """A value as it stands in a setting."""
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return (value or EMPTY) if isinstance(value, str) else shown(value)


def expected_work(run: Run, *, long: bool = False) -> Work:
    """The work of the explanation of a run. Raises `UserError` where it takes long, unless `long` allows it."""
    return work_of(run, len(list(_changes(run.scenario))), long=long)


def neighbours(run: Run, *, long: bool = False) -> tuple[tuple[Neighbour, ...], Splits | None]:
    """The neighbours of a run's plan that fit and make the step shorter, the shortest step first, one for each field; and the
    tried splits of the layers. Raises `UserError` if the simulations are above the limits, unless `long` allows it."""
    session, changes = Session(), list(_changes(run.scenario))
    most_splits = splits_in_time(run, len(changes), len(moved_from_slowest(run)), long=long)
    found = [made for cause, change in changes if (made := _made(run, cause, change, session, long=long))]
    of_split: dict[Split, Neighbour] = {}

    def step_of(split: Split) -> float | None:
        made = _made(run, IMBALANCE, {"plan.layout": split}, session, long=long)
        if made is None:
            return None
        of_split[split] = made
        return made.step_time_s

    tried = splits(run, step_of, most_splits)
    found += [of_split[tried.best[0]]] if tried else []
    best: dict[str, Neighbour] = {}
    for one in sorted(found, key=lambda one: one.step_time_s):
        if one.gain >= LEAST_GAIN:
            best.setdefault(next(iter(one.change)), one)
    return tuple(best.values()), tried


def _made(run: Run, cause: Cause, change: Change, session: Session, *, long: bool) -> Neighbour | None:
    """A change with its step; with selective recomputation too, if the change does not fit alone. None if neither fits."""
    scenario = run.as_given
    for more in ({}, {"plan.recompute": "selective"}):
        whole = completed(scenario, {**change, **more})
        if "plan.recompute" in change and more:
            break
        one = candidate_that_fits(changed(scenario, whole), session) if legal(changed(scenario, whole)) else None
        if one is not None:
            made: Proposal = proposal(one, steps=run.steps, long=long, session=session)
            if made.step_time_s is None:
                return None
            gain = 1 - made.step_time_s / run.metrics.step_time_s
            return Neighbour(whole, cause, made.step_time_s, gain, one.memory.total_bytes - run.peak_memory_bytes)
    return None


def _with_group(scenario: Scenario, schedule: Change) -> Change:
    """The change to a schedule, with the group that it needs for these microbatches, if it needs one."""
    plan = replace(scenario.plan, schedule=schedule["plan.schedule"], chunks=schedule["plan.chunks"])
    group = None if plan.group else group_needed(replace(scenario, plan=plan))
    return {**schedule, "plan.group": group} if group else schedule


def _changes(scenario: Scenario) -> Iterator[tuple[Cause, Change]]:
    """The changes that are tried, except splits of the layers, each with the cause that it addresses."""
    plan, job = scenario.plan, scenario.job
    replicas = derived.data_parallel_degree(scenario)
    each = job.global_batch // replicas
    for size in (2 * job.microbatch_size, job.microbatch_size // 2):
        if size and each % size == 0:
            yield BELOW_PEAK if size > job.microbatch_size else BUBBLE, {"job.microbatch_size": size}
    scope = plan.recomputation.scope
    for other in SCOPES:
        if other != scope and scope in SCOPES:
            yield RECOMPUTATION, {"plan.recompute": other}
    if plan.pp > 1 and plan.layout == "even" and not plan.shares_vocabulary:
        for schedule in SCHEDULES:
            if (plan.schedule, plan.chunks) != tuple(schedule.values()):
                yield BUBBLE, _with_group(scenario, schedule)
    open_dp = {"plan.dp": None} if plan.dp else {}
    for axis, cause in (("tp", "tp"), ("pp", BUBBLE), ("cp", "cp")):
        degree = getattr(plan, axis)
        for other in (2 * degree, degree // 2):
            if other and not (axis == "cp" and degree == 1):
                yield cause, {f"plan.{axis}": other, **open_dp}
    yield from _changes_of_experts(scenario)
    if plan.full_sharding.kind == "none" and replicas > 1:
        yield OPTIMIZER, {"plan.sharding": "zero1"}
    if plan.tp > 1 and plan.rank_order != Plan().rank_order:
        yield "tp", {"plan.rank_order": Plan().rank_order}
    if scenario.framework.attention == "unfused":
        yield BELOW_PEAK, {"framework.attention": ""}
    usual = plan.overlap.over(scenario.framework.overlap)
    for axis in ("dp", "tp", "pp", "ep"):
        if not getattr(usual, axis) and (axis not in ("tp", "ep") or getattr(plan, axis) > 1):
            yield axis, {"plan.overlap": replace(plan.overlap, **{axis: True})}


def _changes_of_experts(scenario: Scenario) -> Iterator[tuple[Cause, Change]]:
    """The changes of how GPUs divide the experts: other numbers of experts on a GPU, and whole experts or slices of them."""
    plan, shares = scenario.plan, scenario.plan.tensor_parallel_of_experts
    if not scenario.model.experts:
        return
    for ep in (2 * plan.ep, plan.ep // 2):
        if ep:
            yield "ep", {"plan.ep": ep}
    if plan.tp > 1:
        yield from (("ep", {"plan.etp": etp}) for etp in (1, plan.tp) if etp != shares)
