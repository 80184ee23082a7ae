"""`trainsim network`: which links a training step uses, and which it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ._show import Count, checked_path, json_option, print_json, print_pairs, print_table, progress, set_option

if TYPE_CHECKING:
    from ..study.jobs import Tenancy
    from ..study.network import LinkUse, Network


@click.command("network", short_help="Show what the links carry in a training step.")
@click.argument("scenario")
@set_option
@click.option("--top", type=Count(1, 100_000), default=10, show_default=True, help="How many of the busiest links to show.")
@click.option("--link", "name", metavar="SOURCE>TARGET", help="Show this link over time.")
@click.option("--bins", type=Count(1, 100_000), default=50, show_default=True, help="Into how many intervals the step is cut.")
@click.option("--plot", metavar="FILE", callback=checked_path((".png", ".svg", ".pdf")), help="Draw the links by utilisation.")
@click.option("--allow-oom", is_flag=True, help="Simulate a plan that does not fit in memory.")
@json_option
def command(
    scenario: str, settings: tuple[str, ...], top: int, name: str | None, bins: int, plot: str | None, allow_oom: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Simulate a training step of SCENARIO and show what every class of links, and each of the busiest, carried in it.

    Of several jobs on one cluster, show the links that more than one of them uses, and what each job sends over them.
    """
    from ..study.jobs import Tenancy
    from ..study.load import load

    with progress("simulating"):
        found = load(scenario, settings)
        if isinstance(found, Tenancy):
            _tell_jobs(found, top, {"--link": name, "--plot": plot}, allow_oom=allow_oom, as_json=as_json)
            return
        link = found.cluster.link_named(name) if name else None
        network = found.simulate(allow_oom=allow_oom).network
        busiest = network.busiest(top)
    if plot:
        _draw(network, plot)
    if as_json:
        print_json(_record(network, busiest, link, bins))
    else:
        _tell(network, busiest, link, bins, plot)


def _tell_jobs(jobs: Tenancy, top: int, refused: dict[str, str | None], *, allow_oom: bool, as_json: bool) -> None:
    """Who shares which link; raises `UserError` for what only one job can be asked."""
    from dataclasses import asdict

    from ..errors import UserError
    from ..units import show_bytes

    for option, value in refused.items():
        if value is not None:
            raise UserError(f"{option} shows the step of one job, and these are {len(jobs.tenants)}", hint="leave it out")
    run = jobs.simulate(allow_oom=allow_oom)
    links = jobs.shared(run, top)
    if as_json:
        print_json({**run.as_dict(), "shared_links": [asdict(link) for link in links]})
        return
    print_pairs(run.summary)
    if not links:
        click.echo("no two jobs share a link")
        return
    rows = [[u.name, f"{u.utilisation:.2%}", ", ".join(f"{job.name} {show_bytes(job.bytes)}" for job in u.jobs)] for u in links]
    print_table(["links of several jobs", "use", "bytes per step"], rows, right=(1,))


def _record(network: Network, busiest: list[LinkUse], link: int | None, bins: int) -> dict[str, Any]:
    from dataclasses import asdict

    record = {"step_time_s": network.step_s, "classes": network.classes, "busiest": [asdict(use) for use in busiest]}
    if link is not None:
        edges_s, bytes_per_s = network.series(link, bins)
        record["link"] = {**asdict(network.link(link)), "edges_s": edges_s, "bytes_per_s": bytes_per_s}
    return record


def _tell(network: Network, busiest: list[LinkUse], link: int | None, bins: int, plot: str | None) -> None:
    from ..units import show_bytes, show_rate, show_s

    print_pairs([("step time", show_s(network.step_s)), *([("picture", plot)] if plot else [])])
    rows = [
        [c["kind"], f"{c['links']:,}", show_bytes(c["bytes"]), f"{c['utilisation']:.2%}", f"{c['highest_utilisation']:.2%}",
         show_s(c["busy_s"])]
        for c in network.classes
    ]  # fmt: skip
    print_table(["links", "count", "carried", "mean use", "highest", "mean busy"], rows, right=range(1, 6))
    rows = [[u.name, show_bytes(u.bytes), f"{u.utilisation:.2%}", show_s(u.busy_s)] for u in busiest]
    print_table(["busiest links", "carried", "use", "busy"], rows, right=range(1, 4))
    if link is not None:
        edges_s, bytes_per_s = network.series(link, bins)
        rows = [[show_s(a), show_rate(rate)] for a, rate in zip(edges_s[:-1], bytes_per_s, strict=True)]
        print_table([f"{network.link(link).name} from", "mean rate"], rows, right=(0, 1))


def _draw(network: Network, file: str) -> None:
    from ..figures.gantt import save
    from ..figures.topology import draw

    save(draw(network.cluster, network.utilisation), file)
