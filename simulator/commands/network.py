"""`trainsim network`: the links that limit a training step, and the utilisation of every link."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..errors import UserError
from ..units import show_bytes, show_rate, show_s
from ._show import (
    Count,
    json_option,
    long_option,
    not_empty,
    picture_option,
    print_json,
    print_notes,
    print_pairs,
    print_table,
    progress,
    say,
    scenario_argument,
)

if TYPE_CHECKING:
    from ..engine.task import Array
    from ..simulation.network.link_use import LinkUse, Network
    from ..simulation.network.waits import WaitedLink
    from ..simulation.runnable import RunnableJobs

    Series = tuple[LinkUse, Array, Array]
    """One link, the edges of intervals in seconds, and its mean bytes/s in each."""

MOST_WAITS = 3
"""Number of limiting links that are listed one by one; the others are summed."""


@click.command("network", short_help="Show the links that limit a training step.")
@scenario_argument
@click.option("--top", type=Count(1, 100_000), default=10, show_default=True, help="Limiting links, and busiest links, to list.")
@click.option("--link", "name", metavar="SOURCE>TARGET", callback=not_empty, help="Show the mean rate of this link over time.")
@click.option("--bins", type=Count(1, 100_000), default=50, show_default=True, help="Intervals of the step for --link.")
@picture_option("--plot", help="Draw the cluster, links coloured by utilisation.")
@click.option("--allow-oom", is_flag=True, help="Simulate a plan that does not fit in memory.")
@long_option
@json_option
def command(
    scenario: str, settings: tuple[str, ...], trust: bool, top: int, name: str | None, bins: int, plot: str | None,
    allow_oom: bool, long: bool, as_json: bool,
) -> None:  # fmt: skip
    """Simulate a training step of SCENARIO. Show the links that limit it, and the utilisation of every class of links.

    The first table divides the exposed communication of the step: the time in which ranks are idle until a collective or a
    transfer ends. This time counts as latency until the first byte moves, and then for the links that limit the rate. `nic <>
    leaf` means the links of both directions, because a ring loads both. All times are means over ranks. "At full links" is the
    part in which the limiting links are saturated. In the rest the rate is that of an uncontended collective, as measured with
    the library or modelled round by round.

    The second table sums up each class of links. Mean utilisation is the traffic divided by the capacity of the links over the
    step, including perturbations.

    The third table lists single limiting links, and the fourth the links with the highest utilisation. Links that carry the
    same traffic at the same times are listed once, with their number; the wait is for any of them. Its mean is over all ranks of
    the run, as in the other tables; "longest wait" is that of the one rank that waits longest for these links.

    For several jobs on one cluster, show the links that more than one job uses, and the traffic of each job.
    """
    from ..config.derived import cluster_of
    from ..simulation.runnable import RunnableJobs, load

    patience = {"allow_oom": allow_oom, "long": long}
    with progress("simulating") as expect:
        found = load(scenario, settings, trust=trust)
        if isinstance(found, RunnableJobs):
            _print_jobs(found, top, {"--link": name, "--plot": plot}, patience, as_json=as_json)
            return
        link = cluster_of(found).link_named(name) if name else None
        run = found.simulate(**patience, expect=expect)
        network = run.network
        waited, busiest = network.waited_links(top), network.busiest(top)
        series = None if link is None else (network.link(link), *network.series(link, bins))
    print_notes(run.notes)
    if plot:
        from ..figures.drawing import save
        from ..figures.topology_colours import longest_waits
        from ..figures.topology_plot import topology_plot

        where = f"{run.scenario.model.name} on {run.gpus:,} GPUs of {network.cluster.name}"
        title = f"{where}: use of links in a step of {show_s(network.step_s)}"
        save(topology_plot(network.cluster, network.utilisation, title=title, marked=longest_waits(network)), plot)
    if as_json:
        print_json(_record(network, waited, busiest, series))
    else:
        _print_tables(network, waited, busiest, series, plot)


def _print_jobs(
    jobs: RunnableJobs, top: int, refused: dict[str, str | None], patience: dict[str, bool], *, as_json: bool
) -> None:
    """The links that several jobs share; raises `UserError` for options that only one job takes."""
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
    print_table(["link of several jobs", "utilisation", "traffic per step"], rows, right=(1,))


def _record(network: Network, waited: list[WaitedLink], busiest: list[LinkUse], series: Series | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "step_time_s": network.step_s,
        "waits": [asdict(wait) for wait in network.waits],
        "classes": network.classes,
        "waited_links": [asdict(one) for one in waited],
        "busiest": [asdict(use) for use in busiest],
    }
    if series:
        use, edges_s, bytes_per_s = series
        record["link"] = {**asdict(use), "edges_s": edges_s, "bytes_per_s": bytes_per_s}
    return record


def _print_tables(
    network: Network, waited: list[WaitedLink], busiest: list[LinkUse], series: Series | None, plot: str | None
) -> None:
    print_pairs([("step time", show_s(network.step_s)), *([("picture", plot)] if plot else [])])
    headers = ["communication waits for", "axes", "mean wait", "of the step", "at full links"]
    print_table(headers, _wait_rows(network), right=(2, 3, 4))
    rows = [
        [c["kind"], f"{c['links']:,}", show_bytes(c["bytes"]), f"{c['utilisation']:.2%}", f"{c['highest_utilisation']:.2%}",
         show_s(c["busy_s"]), _or_none(c["waited_s"])]
        for c in network.classes
    ]  # fmt: skip
    headers = ["class of links", "links", "traffic", "mean utilisation", "highest", "mean busy", "mean wait"]
    print_table(headers, rows, right=range(1, 7))
    if waited:
        rows = [
            [w.name, f"{w.alike:,}", show_rate(w.capacity_bytes_per_s), *map(_or_none, (w.waited_s, w.full_s, w.longest_s))]
            for w in waited
        ]
        headers = ["limiting link", "links alike", "capacity", "mean wait", "at full links", "longest wait"]
        print_table(headers, rows, right=range(1, 6))
    rows = [[u.name, show_bytes(u.bytes), f"{u.utilisation:.2%}", show_s(u.busy_s)] for u in busiest]
    if rows:
        print_table(["busiest link", "traffic", "utilisation", "busy"], rows, right=range(1, 4))
    if series:
        use, edges_s, bytes_per_s = series
        rows = [[show_s(a), show_rate(rate)] for a, rate in zip(edges_s[:-1], bytes_per_s, strict=True)]
        print_table([f"{use.name} from", "mean rate"], rows, right=(0, 1))


def _wait_rows(network: Network) -> list[list[str]]:
    """The rows of exposed communication by limiting links, the longest first; the shortest are summed in one row."""
    listed = [(_limit(w.links), ", ".join(w.waited_by_axis_s), w.waited_s, w.full_s) for w in network.waits[:MOST_WAITS]]
    if rest := network.waits[MOST_WAITS:]:
        axes = ", ".join(dict.fromkeys(axis for w in rest for axis in w.waited_by_axis_s))
        listed.append(("other links", axes, sum(w.waited_s for w in rest), sum(w.full_s for w in rest)))
    return [
        [what, axes, _or_none(waited_s), f"{waited_s / network.step_s:.2%}", _or_none(full_s)]
        for what, axes, waited_s, full_s in listed or [("nothing", "", 0.0, 0.0)]
    ]


def _limit(kinds: tuple[str, ...]) -> str:
    """Links that limit together: `nic <> leaf` where they do so in both directions."""
    ends = [tuple(kind.split(" > ")) for kind in kinds]
    both = {pair: " <> " if pair[::-1] in ends and pair[0] != pair[1] else " > " for pair in ends}
    shown = [way.join(pair) for pair, way in both.items() if way == " > " or ends.index(pair) < ends.index(pair[::-1])]
    return ", ".join(shown) or "latency"


def _or_none(waited_s: float) -> str:
    return show_s(waited_s) if waited_s else "-"
