"""`sim.search`: the best plans of a scenario among all that could be best, as a table or as an object with more details."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from math import inf
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

from ..config.document import Document
from ..config.load import document_of, document_with
from ..config.named_parts import Trust
from ..config.scenario import Scenario, from_document
from ..config.suggestions import meant
from ..costs.kernels.power import no_energy
from ..errors import InvariantBroken, UserError, did_you_mean, must_be, shown
from ..frozen import replace
from ..metrics.idle import OPTIMIZER
from ..study.common_steps import common_steps
from ..study.grid import Axis, axes_of, said
from ..study.pool import Workers
from ..study.shard import WHOLE, Shard
from ..units import HOUR_S, seconds
from .best_first import Against, Aim, Candidate, Objective, Search, search_of
from .choice_scenario import Base, settings_of
from .plan_checks import INFEASIBLE, OUT_OF_MEMORY, TOO_LONG, MemoryShortage, least_over_bytes, measured, shortage_of
from .records import Records
from .sampled_search import SampledSearch, estimated_s
from .space import MOST_PLANS, Choice, Space, choices, number_of_plans, space_of, with_degrees_of_experts, with_values

if TYPE_CHECKING:
    import pandas as pd

    from ..workload.job import Job

OBJECTIVES, AGAINST = get_args(Objective), get_args(Against)
MOST_TOP = 1000
MOST_BUDGET = 10_000
MOST_COUNTED = 64
"""Largest number of plans whose whole memory is counted to find the one that lacks least."""
OTHER_WORK = ("model", "job.global_batch", "job.sequence_length", "jobs")
"""Fields that change the work of a step: steps of different work cannot be compared."""
OF_SPACE = ("plan.tp", "plan.pp", "plan.cp", "plan.ep", "plan.dp", "plan.schedule", "plan.chunks", "plan.sharding",
            "plan.recompute", "plan.layout", "job.microbatch_size")  # fmt: skip
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    search: Search
    wall_s: float
    """Seconds of the search, without those of the confirmation."""
    complete: bool
    """False if the search was interrupted: the best plans are then those that were simulated until then."""
    confirmed: str
    """Whether the reference engine confirms the step of the best plan, in words."""
    of_plans: int
    """Number of plans of the space, or of its shard; with a budget, more than were examined."""

    @property
    def best(self) -> list[Candidate]:
        """The best plans, the best first, or all plans of the front."""
        aim = self.search.aim
        return [self.search.plans[number] for _, _, number in self.search.best[: None if aim.against else aim.top]]

    @property
    def counts(self) -> dict[str, int]:
        """The number of plans by outcome."""
        return dict(sorted(Counter(plan.status for plan in self.search.plans).items()))

    @property
    def reasons(self) -> dict[str, tuple[int, str]]:
        """The fields that make plans infeasible, each with the number of plans and one of the faults."""
        infeasible = [plan.weighed for plan in self.search.plans if plan.status == INFEASIBLE]
        examples = {one.reason: one.example for one in infeasible}
        return {field: (number, examples[field]) for field, number in Counter(one.reason for one in infeasible).most_common()}

    def nearest(self) -> tuple[Candidate, MemoryShortage] | None:
        """The plan that lacks least memory, among `MOST_COUNTED` of the plans that do not fit."""
        base = self.search.base
        found: tuple[Candidate, MemoryShortage] | None = None
        short = [plan for plan in self.search.plans if plan.status == OUT_OF_MEMORY]
        least = [(least_over_bytes(base, plan.choice, plan.weighed), plan.text, plan) for plan in short]
        for least_bytes, _, plan in sorted(least, key=itemgetter(0, 1))[:MOST_COUNTED]:
            if found and found[1].over_bytes <= least_bytes:
                break
            shortage = shortage_of(base, plan.choice)
            if shortage and (not found or shortage.over_bytes < found[1].over_bytes):
                found = plan, shortage
        return found

    def document(self, plan: Candidate) -> Document:
        """The scenario of a plan, before its names are resolved."""
        choice, base = plan.choice, self.search.base
        settled = settings_of(base, choice)
        if base.document.at(("plan", "placement")) is not None:
            settled["plan.placement"] = None
        return with_values(base.document, {**dict(choice.others), **settled, "job.microbatch_size": choice.microbatch})

    def row(self, plan: Candidate) -> dict[str, Any]:
        """A plan with all its results."""
        measured, parts = plan.measured, {**asdict(plan.choice), "others": None}
        others = {name: said(value) if isinstance(value, (list, dict)) else value for name, value in plan.choice.others}
        return {
            "plan": plan.text,
            **{name: value for name, value in parts.items() if name != "others"},
            **others,
            "status": plan.status,
            "reason": (measured.reason if measured and plan.status == TOO_LONG else plan.weighed.example) or None,
            "value": plan.value[0] if plan.value else None,
            "bound_s": seconds(plan.bound_ns) or None,
            "step_time_s": measured.step_time_s if measured else None,
            "mfu": measured.mfu if measured and measured.step_time_s else None,
            "memory_bytes": plan.weighed.memory_bytes or None,
            "gpus": plan.weighed.gpus or None,
            "energy_j": measured.energy_j if measured else None,
            "largest_wait": self.largest_wait(plan),
            "loses_by": self.loses_by(plan),
        }

    @staticmethod
    def largest_wait(plan: Candidate) -> str | None:
        """The largest wait of the GPUs of a simulated plan, with its fraction of the step; None if they wait for nothing."""
        if not plan.measured or not plan.measured.step_time_s:
            return None
        waits = ((name, lost_s) for name, lost_s in plan.measured.losses if lost_s and name != OPTIMIZER)
        return next((f"{name} {lost_s / plan.measured.step_time_s:.1%}" for name, lost_s in waits), None)

    def points(self) -> list[tuple[float, float, str]]:
        """Every simulated plan of a front, the fastest first: step time in seconds, the second quantity, and its text."""
        aim, found = self.search.aim, []
        for plan in self.search.plans:
            if plan.value is not None:
                measured, step_time_s, _ = plan.simulated()
                other = aim.second_quantity(plan.weighed.gpus, step_time_s, measured.memory_bytes)
                found.append((step_time_s, other, plan.text))
        return sorted(found)

    def loses_by(self, plan: Candidate) -> str | None:
        """The cause for which a plan loses most time against the best plan, with the loss as a fraction of the best step."""
        best = self.best[0].measured if self.best else None
        if not plan.measured or not plan.measured.step_time_s or not best or not best.step_time_s or plan is self.best[0]:
            return None
        before = {"kernels": best.kernels_s, **dict(best.losses)}
        after = {"kernels": plan.measured.kernels_s, **dict(plan.measured.losses)}
        name = max(after, key=lambda cause: after[cause] - before.get(cause, 0.0))
        more_s = after[name] - before.get(name, 0.0)
        return f"{name} +{more_s / best.step_time_s:.1%}" if more_s > 0 else None

    def table(self) -> pd.DataFrame:
        """All plans, the best first, then the others by their bounds and texts."""
        import pandas as pd

        best = {plan.text: number for number, plan in enumerate(self.best)}
        order = sorted(
            self.search.plans, key=lambda plan: (best.get(plan.text, len(best)), plan.value is None, plan.bound_ns, plan.text)
        )
        return pd.DataFrame([self.row(plan) for plan in order])


def search(
    scenario: str | Path | Mapping[str, Any],
    settings: Iterable[str] = (),
    space: str | Path | Mapping[str, Any] | None = None,
    *,
    over: Iterable[str] | Mapping[str, Sequence[Any]] = (),
    gpus: Sequence[int] = (),
    objective: str = "step_time",
    top: int = 5,
    pareto: str | None = None,
    trust: bool = False,
    long: bool = False,
    budget: int | None = None,
    workers: int = 1,
    executor: Executor | str | None = None,
) -> pd.DataFrame:
    """The best plans of a scenario, and the outcome of every other plan of the space: a row for each, the best first.

    The space is a file or a mapping such as {"tp": [4, 8], "microbatch": [1]}; omitted parts are as in the default. Plans that
    cannot be among the `top` best are not simulated: their rows have the bound that proves it. If a disturbance begins or ends
    in some plans only (`over`), all steps are first steps, from a standing start. With `pareto`, one of
    memory, cost and gpus, the first rows are the front of step time against it. With a `budget`, optuna proposes plans of a
    space that is too large, at most so many are simulated, and only those that were tried have rows. An `executor` of
    `concurrent.futures`, or the address of a Dask scheduler such as "dask://localhost:8786", does the work elsewhere; such an
    address is trusted like code.
    """
    aim, base = aim_of(objective, top, pareto), base_of(scenario, settings, trust=trust)
    return found_of(base, aim, space, over, gpus, budget=budget, workers=workers, executor=executor, long=long).table()


def base_of(scenario: str | Path | Mapping[str, Any], settings: Iterable[str] = (), *, trust: bool = False) -> Base:
    """The scenario that a search varies."""
    document = document_with(scenario, settings) if isinstance(scenario, Mapping) else document_of(scenario, settings)
    if "jobs" in document.data:
        raise UserError("several jobs on one cluster cannot be searched", hint="search one of the jobs by itself")
    return Base(document, trust)


def with_steps(base: Base, axes: Sequence[Axis]) -> Base:
    """The scenario with the number of steps that all plans are simulated for, if these fields vary beside the parts of a plan."""
    return replace(base, steps=common_steps(base.document, axes))


def space_for(base: Base, space: str | Path | Mapping[str, Any] | None) -> Space:
    """The space of a search of a scenario, with the parts that depend on its model."""
    return with_degrees_of_experts(space_of(space), from_document(base.document, Trust(base.trust)))


def job_of(base: Base) -> Job:
    """The job that all plans of a search have in common."""
    return from_document(base.document, Trust(base.trust)).job


def tokens_of(base: Base) -> int:
    """The tokens of a step, which all plans of a search have in common."""
    return job_of(base).tokens


def aim_of(objective: str, top: int, against: str | None = None, within_s: float = inf) -> Aim:
    """The aim of a search. Raises `UserError` for an objective that does not exist, or a number of plans outside the range."""
    aim, front = meant(objective, OBJECTIVES), meant(against, AGAINST)
    if aim is None:
        raise UserError(f"no objective {shown(objective)}", hint=did_you_mean(str(objective), OBJECTIVES))
    if against is not None and front is None:
        raise UserError(f"no front of step time and {shown(against)}", hint=did_you_mean(str(against), AGAINST))
    if front is not None and aim != "step_time":
        hint = f"leave out --objective, or for the best plans by {objective} --pareto and --plot"
        raise UserError(f"a front of step time and {against} has no objective {objective}", hint=hint)
    if not isinstance(top, int) or isinstance(top, bool) or not 1 <= top <= MOST_TOP:
        raise UserError(f"{shown(top)} best plans cannot be found", hint=f"a whole number from 1 to {MOST_TOP:,}")
    return Aim(aim, top, front, within_s)  # type: ignore[arg-type]


def found_of(
    base: Base,
    aim: Aim,
    space: str | Path | Mapping[str, Any] | None,
    over: Iterable[str] | Mapping[str, Sequence[Any]] = (),
    gpus: Sequence[int] = (),
    *,
    budget: int | None = None,
    workers: int = 1,
    executor: Executor | str | None = None,
    long: bool = False,
    records: Records | None = None,
    shard: Shard = WHOLE,
    tell: Tell = lambda text: None,
) -> Found:
    """Examines the plans of a space, or of a shard of it, until the best are known, or until Ctrl-C."""
    began = perf_counter()
    scenario = from_document(base.document, Trust(base.trust))
    if aim.objective == "energy" and (why := no_energy(scenario.cluster.gpu, scenario.job.dtype)):
        raise UserError(f"energy is not known: {why}", hint="search for step_time or cost")
    axes = _axes(base, over, gpus)
    base = with_steps(base, axes)
    if budget is None:
        every = _choices_of(base, space, axes)
        searched = search_of(base, aim, [every[number] for number in shard.numbers(len(every))], long=long, records=records)
        of_plans = len(searched.plans)
    else:
        searched = _sampled(base, aim, (space_for(base, space), axes), budget, long=long)
        of_plans = number_of_plans(searched.space, searched.axes)
    complete = True
    try:
        searched.run(Workers(workers, executor), tell)
    except KeyboardInterrupt:
        complete = False
    wall_s = perf_counter() - began
    confirmed = _confirmed(searched, long=long) if searched.best and complete else "not confirmed: the search was interrupted"
    return Found(searched, wall_s, complete, confirmed if searched.best else "no plan was simulated", of_plans)


def _sampled(base: Base, aim: Aim, of: tuple[Space, tuple[Axis, ...]], budget: int, *, long: bool) -> SampledSearch:
    """A search of the plans that optuna proposes, with further fields. Raises `UserError` for options that exclude a budget."""
    if not isinstance(budget, int) or isinstance(budget, bool) or not 1 <= budget <= MOST_BUDGET:
        raise UserError(f"a budget of {shown(budget)} plans", hint=f"a whole number from 1 to {MOST_BUDGET:,}")
    if aim.against:
        raise UserError("a front needs every plan, not a budget", hint="a smaller space without a budget, or an objective")
    return SampledSearch(base, aim, [], long, space=of[0], axes=of[1], budget=budget)


def choices_of(
    base: Base,
    space: str | Path | Mapping[str, Any] | None,
    over: Iterable[str] | Mapping[str, Sequence[Any]] = (),
    gpus: Sequence[int] = (),
) -> list[Choice]:
    """The plans of a search. Raises `UserError` for fields that cannot vary in it."""
    return _choices_of(base, space, _axes(base, over, gpus))


def _choices_of(base: Base, space: str | Path | Mapping[str, Any] | None, axes: tuple[Axis, ...]) -> list[Choice]:
    """The plans of a space with the values of further fields. Raises `UserError` for too many."""
    values = space_for(base, space)
    if (number := number_of_plans(values, axes)) > MOST_PLANS:
        hours = estimated_s(base, values, axes) / HOUR_S
        raise UserError(
            f"{number:,} plans are more than a search should have: examining all of them takes about {hours:,.1f} core-hours",
            hint=f"at most {MOST_PLANS:,}: a smaller space, or a budget of plans that are simulated, which optuna chooses",
        )
    return list({choice.text: choice for choice in choices(values, axes)}.values())


def _axes(base: Base, over: Iterable[str] | Mapping[str, Sequence[Any]], gpus: Sequence[int]) -> tuple[Axis, ...]:
    """The fields that vary beside the parts of a plan. Raises `UserError` for those that cannot vary in a search."""
    axes, faults = axes_of(over) if over else ((), [])
    if faults:
        raise UserError(faults=faults)
    axes = (*_sizes(from_document(base.document, Trust(base.trust)), gpus), *axes)
    for axis in axes:
        same = [name for name in (*OTHER_WORK, *OF_SPACE) if axis.name == name or axis.name.startswith(f"{name}.")]
        if same and same[0] in OTHER_WORK:
            raise UserError(
                f"{axis.name} changes the work of a step: such plans cannot be compared", hint="search for each by itself"
            )
        if same:
            raise UserError(f"{axis.name} is a part of the space", hint="--space FILE says which values it may have")
    return axes


def _sizes(scenario: Scenario, gpus: Sequence[int]) -> tuple[Axis, ...]:
    """The numbers of GPUs to search, as numbers of nodes."""
    per_node = scenario.cluster.gpus_per_node
    for number in must_be(gpus, Iterable, "gpus", "numbers of GPUs", "gpus=[64, 128]"):
        must_be(number, int, "a number of GPUs", "a whole number", "gpus=[64, 128]")
    if wrong := [number for number in gpus if number < 1 or number % per_node]:
        near = max(per_node, wrong[0] // per_node * per_node)
        raise UserError(f"{wrong[0]} GPUs are not whole nodes of {per_node}", hint=f"nearest legal: {near}")
    return (Axis("cluster.nodes", tuple(dict.fromkeys(number // per_node for number in gpus))),) if gpus else ()


def _confirmed(search: Search, *, long: bool) -> str:
    """The result of the reference engine for the best plan. Raises `InvariantBroken` if it differs."""
    plan = search.plans[search.best[0][2]]
    again = measured(search.base, plan.choice, "des", long)
    if again.step_time_s is None:
        return f"not confirmed by the reference engine: {again.reason}"
    if plan.measured is None or again.step_time_s != plan.measured.step_time_s:
        raise InvariantBroken(f"the reference engine takes {again.step_time_s} s for {plan.text}")
    return "confirmed by the reference engine"
