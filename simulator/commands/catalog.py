"""`trainsim catalog`: everything that has a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ._show import json_option, print_json, print_pairs, print_table

AUTOMATIC = {
    "plan.dp": "what is left of the GPUs",
    "plan.sequence_parallel": "true when tp > 1",
    "plan.group": "the schedule's own choice",
    **{f"plan.overlap.{axis}": "as the framework does" for axis in ("dp", "tp", "pp")},
}
"""Defaults that depend on the rest of a scenario."""


@click.command("catalog", short_help="List everything that has a name.")
@click.argument("kind", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of scenario files, for editors.")
@json_option
def command(kind: str | None, schema: bool, as_json: bool) -> None:
    """List what has a name, or of one KIND what each is: models, clusters, gpus, schedules, scenarios ...

    `trainsim catalog defaults` lists what a scenario may omit, and what it is then.
    """
    from ..errors import UserError, did_you_mean
    from ..study import catalog

    kinds = [*catalog.DATA, *catalog.CODE]
    if schema:
        from ..study.scenarios.schema import json_schema

        print_json(json_schema())
    elif kind == "defaults":
        _print_defaults(as_json)
    elif kind is None:
        names = {k: list(catalog.files(k)) for k in kinds}
        print_json(names) if as_json else print_pairs((k, ", ".join(found)) for k, found in names.items())
    elif kind not in kinds:
        raise UserError(f"no kind {kind!r}", hint=did_you_mean(kind, [*kinds, "defaults"]))
    else:
        rows = [(name, catalog.headline(path)) for name, path in catalog.files(kind).items()]
        print_json([{"name": n, "about": about} for n, about in rows]) if as_json else print_table(["name", "about"], rows)


def _print_defaults(as_json: bool) -> None:
    from dataclasses import asdict

    from ..binding.fidelity import Fidelity
    from ..errors import shown
    from ..plan.plan import Plan
    from ..workload.job import Job

    values = {"plan": asdict(Plan()), "job": asdict(Job()), "fidelity": asdict(Fidelity())}
    if as_json:
        print_json(values)
    else:
        flat = list(_flat(values))
        print_pairs((n, AUTOMATIC.get(n) or (value if isinstance(value, str) else shown(value))) for n, value in flat)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
