"""`trainsim network`: which links a training step uses, and which it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ._show import (
    Count,
    checked_path,
    json_option,
    long_option,
    print_json,
    print_notes,
    print_pairs,
    print_table,
    progress,
    say,
    set_option,
    trust_option,
)

if TYPE_CHECKING:
    from ..engine.task import Array
    from ..study.network.network import LinkUse, Network
    from ..study.network.waiting import Wait, WaitedLink
    from ..study.runnable import RunnableJobs

MOST_WAITS = 3
"""That are told by name."""


@click.command("network", short_help="Show which links a training step waits for, and what they carry.")
@click.argument("scenario")
@set_option
@trust_option
@click.option("--top", type=Count(1, 100_000), default=10, show_default=True, help="How many of the links to show.")
@click.option("--link", "name", metavar="SOURCE>TARGET", help="Show this link over time.")
@click.option("--bins", type=Count(1, 100_000), default=50, show_default=True, help="Into how many intervals the step is cut.")
@click.option("--plot", metavar="FILE", callback=checked_path((".png", ".svg", ".pdf")), help="Draw the links by utilisation.")
@click.option("--allow-oom", is_flag=True, help="Simulate a plan that does not fit in memory.")
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, top: int, name: str | None, bins: int, plot: str | None,
    allow_oom: bool, long: bool, as_json: bool,
) -> None:  # fmt: skip
    """Simulate a training step of SCENARIO and show which links ranks wait for, and what each class of links carried in it.

    A rank waits for a collective or transfer that no computation hides: first for its latency, then for the links that limit it.
    `nic <> leaf` are links both ways, as a ring loads both. Waits are means over all ranks. While such links are full, the wire
    limits; while they are not, what moves is as fast as it is alone: as the library was measured, or round after round. Of
    links that carry the same at the same times one is listed, with their number; its wait is for any of them. Use is of what a
    link could carry in the step, on average, perturbations included.

    Of several jobs on one cluster, show the links that more than one of them uses, and what each job sends over them.
    """
    from ..study.runnable import RunnableJobs, load

    patience = {"allow_oom": allow_oom, "long": long}
    with progress("simulating") as expect:
        found = load(scenario, settings, trust=trust)
        if isinstance(found, RunnableJobs):
            _tell_jobs(found, top, {"--link": name, "--plot": plot}, patience, as_json=as_json)
            return
        link = found.cluster.link_named(name) if name else None
        run = found.simulate(**patience, expect=expect)
        network = run.network
        shown = network.waited_links(top), network.busiest(top)
    print_notes(run.notes)
    if plot:
        _draw(network, plot)
    if as_json:
        print_json(_record(network, *shown, link, bins))
    else:
        _tell(network, *shown, link, bins, plot)


def _tell_jobs(jobs: RunnableJobs, top: int, refused: dict[str, str | None], patience: dict[str, bool], *, as_json: bool) -> None:
    """Who shares which link; raises `UserError` for what only one job can be asked."""
    from dataclasses import asdict

    from ..errors import UserError
    from ..units import show_bytes

    for option, value in refused.items():
        if value is not None:
            raise UserError(f"{option} shows the step of one job, and these are {len(jobs.tenants)}", hint="leave it out")
    run = jobs.simulate(**patience)
    links = jobs.shared(run, top)
    print_notes(run.notes)
    if as_json:
        print_json({**run.as_dict(), "shared_links": [asdict(link) for link in links]})
        return
    print_pairs(run.summary)
    if not links:
        say("no two jobs share a link")
        return
    rows = [[u.name, f"{u.utilisation:.2%}", ", ".join(f"{job.name} {show_bytes(job.bytes)}" for job in u.jobs)] for u in links]
    print_table(["links of several jobs", "use", "bytes per step"], rows, right=(1,))


def _record(network: Network, waited: list[WaitedLink], busiest: list[LinkUse], link: int | None, bins: int) -> dict[str, Any]:
    from dataclasses import asdict

    record = {
        "step_time_s": network.step_s,
        "waits": [asdict(wait) for wait in network.waits],
        "classes": network.classes,
        "waited_links": [asdict(one) for one in waited],
        "busiest": [asdict(use) for use in busiest],
    }
    if link is not None:
        edges_s, bytes_per_s = network.series(link, bins)
        record["link"] = {**asdict(network.link(link)), "edges_s": edges_s, "bytes_per_s": bytes_per_s}
    return record


def _tell(
    network: Network, waited: list[WaitedLink], busiest: list[LinkUse], link: int | None, bins: int, plot: str | None
) -> None:
    from ..units import show_bytes, show_rate, show_s

    waits = [("waits for", _waits_for(network.waits))]
    print_pairs([("step time", show_s(network.step_s)), *waits, *([("picture", plot)] if plot else [])])
    rows = [
        [c["kind"], f"{c['links']:,}", show_bytes(c["bytes"]), f"{c['utilisation']:.2%}", f"{c['highest_utilisation']:.2%}",
         show_s(c["busy_s"]), _or_none(c["waited_s"])]
        for c in network.classes
    ]  # fmt: skip
    print_table(["links", "count", "carried", "mean use", "highest", "mean busy", "mean wait"], rows, right=range(1, 7))
    if waited:
        rows = [
            [w.name, f"{w.alike:,}", show_rate(w.capacity_bytes_per_s), _or_none(w.waited_s), _or_none(w.full_s)] for w in waited
        ]
        print_table(["links waited for", "alike", "each", "mean wait", "of it full"], rows, right=range(1, 5))
    rows = [[u.name, show_bytes(u.bytes), f"{u.utilisation:.2%}", show_s(u.busy_s)] for u in busiest]
    print_table(["busiest links", "carried", "use", "busy"], rows, right=range(1, 4))
    if link is not None:
        edges_s, bytes_per_s = network.series(link, bins)
        rows = [[show_s(a), show_rate(rate)] for a, rate in zip(edges_s[:-1], bytes_per_s, strict=True)]
        print_table([f"{network.link(link).name} from", "mean rate"], rows, right=(0, 1))


def _waits_for(waits: list[Wait]) -> str:
    """In a line, the longest first."""
    from ..units import show_s

    said = [f"{_limit(w.links)} {show_s(w.waited_s)} ({_which(w)})" for w in waits[:MOST_WAITS]]
    more_s = sum(w.waited_s for w in waits[MOST_WAITS:])
    return ", then ".join([*said, *([f"{show_s(more_s)} for others"] if more_s else [])]) or "no collective and no transfer"


def _which(wait: Wait) -> str:
    """The axes that wait, and how much of it for links that are full: `dp, pp; 12.1 ms of it full`."""
    from ..units import show_s

    axes = ", ".join(wait.waited_by_axis_s)
    if not wait.links:
        return axes
    if wait.full_s in (0, wait.waited_s):
        return f"{axes}; {'all' if wait.full_s else 'none'} of it full"
    return f"{axes}; {show_s(wait.full_s)} of it full"


def _limit(kinds: tuple[str, ...]) -> str:
    """Links that limit together: `nic <> leaf links` where they do so both ways."""
    ends = [tuple(kind.split(" > ")) for kind in kinds]
    both = {pair: " <> " if pair[::-1] in ends and pair[0] != pair[1] else " > " for pair in ends}
    said = [way.join(pair) for pair, way in both.items() if way == " > " or ends.index(pair) < ends.index(pair[::-1])]
    return f"{', '.join(said)} links" if said else "latency"


def _or_none(waited_s: float) -> str:
    from ..units import show_s

    return show_s(waited_s) if waited_s else "-"


def _draw(network: Network, file: str) -> None:
    from ..figures.gantt import save
    from ..figures.topology import draw

    save(draw(network.cluster, network.utilisation, marked=_longest(network)), file)


def _longest(network: Network) -> dict[str, Array]:
    """The links that are waited for at least half as long as any, by what to say of them."""
    from ..units import show_s

    found = network.waited_links(MOST_WAITS)
    longest = [one for one in found if 2 * one.waited_s >= found[0].waited_s]
    links = [network.like(network.cluster.link_named(one.name)) for one in longest]
    said = [f"{one.name}{f' and {one.alike - 1:,} alike' if one.alike > 1 else ''}, {show_s(one.waited_s)}" for one in longest]
    return dict(zip(said, links, strict=True))
