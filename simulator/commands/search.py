"""`trainsim search`: the best plans of a scenario, found by simulating every plan that could be among them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import catalog
from ..errors import Infeasible, UserError, either
from ._show import (
    Count,
    Positive,
    checked_path,
    json_option,
    long_option,
    picture_option,
    print_json,
    print_notes,
    print_pairs,
    print_table,
    progress_line,
    say,
    scenario_argument,
)
from ._work_options import MOST_WORKERS, SQLITE, shard_of_options, work_options, workers_of

if TYPE_CHECKING:
    from ..search.best_first import Aim, Candidate
    from ..search.choice_scenario import Base
    from ..search.search import Found
    from ..study.shard import Shard

MOST_TOP = 1000
MOST_TOKENS = 1e18
MOST_PRICE = 1e6
MOST_DAYS = 1e5
SPACE_HELP = "Values that each part of a plan may have, as YAML.  [default: as --show-space prints it]"
OVER_HELP = "A further field and its values, such as plan.overlap.tp=true,false. May be repeated."
OBJECTIVE_HELP = "step_time, cost, energy, memory or gpus.  [default: step_time; gpus with --days]"
PARETO_HELP = "Find the Pareto front of step time against memory, cost or gpus, instead of the best plans."
DAYS_HELP = "Leave out plans that take more than this number of days for the tokens."
PLOT_HELP = "Draw the Pareto front.  [default: step time against memory]"
TOKENS_HELP = "Print the time that the best plans take for this number of tokens.  [default: job.total_tokens]"
PRICE_HELP = "Price of a GPU-hour, for the cost of the tokens.  [default: job.price_per_gpu_hour]"
BUDGET_HELP = "Simulate at most N plans, chosen by optuna: for a space that is too large to check every plan."
MOST_BUDGET = 10_000
STORE_HELP = "Commit the outcome of each plan to a table in SQLite, as it comes."
ORDER = {
    "cost": "GPU-hours", "energy": "energy of a step", "memory": "memory of the fullest GPU",
    "gpus": "number of GPUs, then step time; `behind` is in the first of the two that differs",
}  # fmt: skip
"""What orders the best plans, by objective; step time goes without saying."""
YAML = (".yaml", ".yml")
LINE = 120
"""Width of the lines of a written scenario."""
PARTS = {"job.microbatch_size": "microbatch", "plan.layout": "split"} | {
    f"plan.{part}": part for part in ("tp", "pp", "dp", "ep", "chunks", "sharding", "recompute")
}
"""Fields of a scenario that the parts of a space vary, but for those that have notes of their own."""


@click.command("search", short_help="Find the best plans, with a proof that none was missed.")
@scenario_argument
@click.option("--objective", metavar="NAME", help=OBJECTIVE_HELP)
@click.option("--top", type=Count(1, MOST_TOP), default=5, help="Number of plans to find.  [default: 5]")
@click.option("--space", metavar="FILE", help=SPACE_HELP)
@click.option("--over", "over", multiple=True, metavar="FIELD=VALUE,VALUE,...", help=OVER_HELP)
@click.option("--gpus", metavar="N,N,...", help="Numbers of GPUs to search.  [default: those of the cluster]")
@click.option("--tokens", type=Positive(MOST_TOKENS), help=TOKENS_HELP)
@click.option("--days", type=Positive(MOST_DAYS), help=DAYS_HELP)
@click.option("--price", type=Positive(MOST_PRICE), help=PRICE_HELP)
@click.option("--pareto", metavar="NAME", help=PARETO_HELP)
@picture_option("--plot", help=PLOT_HELP)
@click.option("--budget", metavar="N", type=Count(1, MOST_BUDGET), help=BUDGET_HELP)
@click.option("--write", metavar="FILE.yaml", callback=checked_path(YAML), help="Write the best plan as a scenario.")
@click.option("--store", metavar="FILE.sqlite", callback=checked_path((SQLITE,)), help=STORE_HELP)
@work_options
@click.option("--show-space", is_flag=True, help="Print the space and its number of plans, without a search.")
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, objective: str | None, top: int, space: str | None,
    over: tuple[str, ...], gpus: str | None, write: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Find the best plans of SCENARIO among all plans of a space.

    Memory is counted first. A plan is not simulated if a proven lower bound of its step is above the step of the best plans so
    far, so no better plan is skipped. The best plan is simulated again by the reference engine. Ctrl-C keeps the results so far.

    With the objective cost a plan costs its GPU-hours, so that different numbers of GPUs compete fairly. With the objective
    memory only plans that need more memory than the best plans are skipped.
    """
    from math import inf

    from ..search.search import aim_of, base_of, job_of, with_steps
    from ..study.common_steps import NOTE
    from ..study.grid import axes_of
    from ..units import DAY_S

    if options["budget"] and options["store"]:
        raise UserError("--store is for searches of all plans, --budget tries some", hint="one of the two")
    shard = shard_of_options(options, options["store"], "--store")
    base = with_steps(base_of(scenario, settings, trust=trust), axes_of(over)[0] if over else ())
    job = job_of(base)
    options |= {"tokens": options["tokens"] or job.total_tokens, "price": options["price"] or job.price_per_gpu_hour}
    for name in ("price", "days"):
        if options[name] and not options["tokens"]:
            raise UserError(f"--{name} is about a run of so many tokens", hint="--tokens 15e12, or total_tokens of the job")
    within_s = options["days"] * DAY_S / (options["tokens"] / job.tokens) if options["days"] else inf
    pareto = options["pareto"] or ("memory" if options["plot"] else None)
    aim = aim_of(objective or ("gpus" if options["days"] and not pareto else "step_time"), top, pareto, within_s)
    if options["show_space"]:
        _show_space(base, space, as_json=as_json)
        return
    print_notes([*_left_out(base, space), *_varied(base, space, settings), *([NOTE] if base.steps else [])])
    found = _found(base, aim, (space, over, _numbers(gpus)), shard, options)
    if not found.best and found.complete:
        raise _nothing_runs(found)
    plot = options["plot"]
    if write and found.best:
        _write(found, write)
    if plot and found.best:
        _draw(found, plot, ", ".join([Path(scenario).name, *settings]))
    if as_json:
        print_json(_record(found, options))
    else:
        _print(found, options)
        for file in filter(None, (write, plot) if found.best else ()):
            print_pairs([("written", file)])
    if not found.complete:
        raise click.exceptions.Exit(130)


def _found(base: Base, aim: Aim, of: tuple[Any, ...], shard: Shard, options: dict[str, Any]) -> Found:
    """Searches a space, starting from the results in a table, and commits new results to it."""
    from ..search.search import found_of
    from ._search_store import StoredPlans

    workers = workers_of(options, MOST_WORKERS)
    with ExitStack() as stack:
        records, tell = None, stack.enter_context(progress_line())
        if options["store"]:
            file = str(shard.file(options["store"]))
            records = stack.enter_context(closing(StoredPlans(file, base, resume=options["resume"], merge=options["merge"])))
        return found_of(base, aim, *of, workers=workers.number, executor=workers.executor, long=options["long"],
                        budget=options["budget"], records=records, shard=shard, tell=tell)  # fmt: skip


def _left_out(base: Base, space: str | None) -> list[str]:
    """Notes if the space does not contain the schedule of the scenario, or by default not its context parallelism."""
    from ..search.space import Space, space_of

    found, notes = space_of(space), []
    own, searched = base.document.at(("plan", "schedule")), [catalog.called(name) for name in found.schedule]
    if isinstance(own, str) and catalog.called(own) not in searched:
        how = "a search takes schedules of the catalog only" if ":" in own else f"`schedule: [{own}]` in --space searches it"
        notes.append(f"plan.schedule: {own} is not searched, but {either(searched)}; {how}")
    cp = base.document.at(("plan", "cp"))
    if isinstance(cp, int) and cp not in found.cp and found.cp == Space().cp:
        notes.append(f"plan.cp: {cp} is not searched, but {either(map(str, found.cp))}; `cp: [{cp}]` in --space searches it")
    return notes


def _varied(base: Base, space: str | None, settings: Iterable[str]) -> list[str]:
    """Notes for fields that were set on the command line and that the search takes from its space all the same."""
    from ..search.search import space_for

    found, notes = asdict(space_for(base, space)), []
    for field in dict.fromkeys(setting.partition("=")[0].strip() for setting in settings):
        part = PARTS.get(field, "")
        if part and found[part] != (base.document.at(tuple(field.split("."))),):
            values = either(found[part]) if found[part] else "what the other degrees leave of the GPUs"
            notes.append(f"{field}: a search takes it from its space, {values}; `{part}: [...]` in --space changes that")
    return notes


def _numbers(text: str | None) -> tuple[int, ...]:
    """Numbers of GPUs, from a text such as `64,128`."""
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    if wrong := [part for part in parts if not part.isascii() or not part.isdecimal()]:
        raise UserError(f"--gpus: {wrong[0]!r} is not a number of GPUs", hint="write it like --gpus 64,128")
    return tuple(map(int, parts))


def _show_space(base: Base, space: str | None, *, as_json: bool) -> None:
    from ..search.search import space_for
    from ..search.space import choices

    found = space_for(base, space)
    plans = sum(1 for _ in choices(found, ()))
    if as_json:
        print_json({"space": asdict(found), "plans": plans})
        return
    for name, values in asdict(found).items():
        say(f"{name}: [{', '.join(map(str, values))}]")
    say(f"# {plans:,} plans, before the checks of a scenario")


def _write(found: Found, file: str) -> None:
    """Writes the best plan as a scenario that `trainsim run` takes, with paths from the folder of its file."""
    import yaml

    from ..config.written_paths import with_paths_from
    from ..files import atomic

    best = with_paths_from(found.document(found.best[0]), Path(file).parent)
    with atomic(file) as temporary:
        temporary.write_text(yaml.safe_dump(best.data, sort_keys=False, default_flow_style=None, width=LINE), encoding="utf-8")


def _draw(found: Found, file: str, title: str) -> None:
    """Draws the Pareto front of step time against memory or cost."""
    from ..figures.drawing import save
    from ..figures.pareto import Point, pareto

    points = [Point(*point) for point in found.points()]
    front = {plan.text for plan in found.best}
    against = found.search.aim.against or ""
    save(pareto(points, [point for point in points if point.text in front], against, title), file)


def _counted(found: Found) -> str:
    """How many plans there are of each kind."""
    return f"{len(found.search.plans):,} plans: {', '.join(f'{number:,} {status}' for status, number in found.counts.items())}"


def _nothing_runs(found: Found) -> Infeasible:
    """The error for a space in which no plan runs: the days, the memory that the nearest plan lacks, or why most are
    infeasible."""
    from ..search.best_first import SIMULATED, TOO_SLOW
    from ..units import GIB

    message = f"no plan can run: {_counted(found)}"
    if {TOO_SLOW, SIMULATED} & found.counts.keys():  # a simulated plan that is not wanted takes too many days
        return Infeasible(message, hint="more GPUs with --gpus, or more --days")
    if nearest := found.nearest():
        plan, shortage = nearest
        hint = f"more GPUs with --gpus, or in --space {shortage.remedies}"
        message += f"; the nearest lacks {shortage.over_bytes / GIB:.1f} GiB: {plan.text}"
        return Infeasible(message, hint=hint, over_bytes=shortage.over_bytes)
    return Infeasible(message, hint=next((example for _, example in found.reasons.values()), "another --space"))


def _record(found: Found, options: dict[str, Any]) -> dict[str, Any]:
    """The content of `trainsim search --json`."""
    from ..search.best_first import BOUNDED

    counts = found.counts
    bounded = sum(number for status, number in counts.items() if status in BOUNDED)
    reasons = {field: {"plans": number, "example": example} for field, (number, example) in found.reasons.items()}
    return {
        "plans": len(found.search.plans),
        "plans_of_space": found.of_plans,
        "simulated": counts.get("simulated", 0),
        "bounded": bounded,
        "infeasible": counts.get("infeasible", 0) + counts.get("out of memory", 0),
        "counts": counts,
        "reasons": reasons,
        "wall_s": found.wall_s,
        "complete": found.complete,
        "winner": found.confirmed,
        "objective": found.search.aim.objective,
        "steps": found.search.base.steps,
        "best": [_best(found, plan, options) for plan in found.best],
    }


def _best(found: Found, plan: Candidate, options: dict[str, Any]) -> dict[str, Any]:
    """A plan as JSON."""
    measured, step_time_s, value = plan.simulated()
    row, document = found.row(plan), found.document(plan)
    days, cost = _run(found, plan, options)
    return {
        "plan": document.at(("plan",)),
        "text": plan.text,
        "microbatch_size": plan.choice.microbatch,
        "gpus": row["gpus"],
        "step_time_s": step_time_s,
        "peak_memory_bytes": measured.memory_bytes,
        "mfu": row["mfu"],
        "value": value[0],
        "largest_wait": row["largest_wait"],
        "loses_by": row["loses_by"],
        **({"days": days, "cost" if options["price"] else "gpu_hours": cost} if days is not None else {}),
    }


def _run(found: Found, plan: Candidate, options: dict[str, Any]) -> tuple[float | None, float]:
    """Days that a plan takes for the tokens of the job, and its cost: GPU-hours if there is no price."""
    from ..search.search import tokens_of
    from ..units import DAY_S, HOUR_S

    if not options["tokens"] or not plan.measured or not plan.measured.step_time_s:
        return None, 0.0
    run_s = options["tokens"] / tokens_of(found.search.base) * plan.measured.step_time_s
    return run_s / DAY_S, run_s / HOUR_S * plan.weighed.gpus * (options["price"] or 1.0)


def _print(found: Found, options: dict[str, Any]) -> None:
    """Prints the best plans, why they are slower than the first, and the number of plans of each kind."""
    from ..units import GIB, show_s

    header = ["plan", "GPUs", "step time", "MFU", "memory", "behind", "largest wait", "loses by"]
    tokens = ["days", "cost" if options["price"] else "GPU-hours"] if options["tokens"] else []
    rows = list[list[str]]()
    for plan in found.best:
        measured, step_time_s, value = plan.simulated()
        differing = [(one, best) for one, best in zip(value, found.best[0].simulated()[2], strict=True) if one != best and best]
        one, best = differing[0] if differing else (1.0, 1.0)
        behind = f"{one / best - 1:.2%}" if plan is not found.best[0] else ""
        days, cost = _run(found, plan, options)
        more = [f"{days:,.1f}", f"{cost:,.0f}"] if days is not None else []
        memory = f"{measured.memory_bytes / GIB:.1f} GiB"
        text = re.sub(r", cluster\.nodes=\d+", "", plan.text)  # the number of GPUs says the same
        rows.append([text, f"{plan.weighed.gpus:,}", show_s(step_time_s), f"{measured.mfu:.1%}", memory, behind,
                     found.largest_wait(plan) or "", found.loses_by(plan) or "", *more])  # fmt: skip
    if rows:
        print_table([*header, *tokens], rows, right=[1, 2, 3, 4, 5, *range(8, 8 + len(tokens))])
    if ordered := ORDER.get(found.search.aim.objective):
        say(f"ordered by {ordered}")
    say(_counted(found))
    for field, (number, example) in found.reasons.items():
        say(f"  {number:,} infeasible by {field}: {example.removeprefix(f'{field}: ')}")
    if found.of_plans > len(found.search.plans):
        say(f"of {found.of_plans:,} plans of the space; those that were not tried may be better")
    if found.complete:
        say(f"the best plan is {found.confirmed}")
    else:
        say("interrupted: plans that are not listed may be better" if rows else "interrupted before a plan was simulated")
