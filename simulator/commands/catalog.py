"""`trainsim catalog`: everything that has a name."""

from __future__ import annotations

import click

from ._show import json_option, print_json, print_pairs, print_table


@click.command("catalog")
@click.argument("kind", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of scenario files, for editors.")
@json_option
def command(kind: str | None, schema: bool, as_json: bool) -> None:
    """List what has a name: models, clusters, gpus, schedules, scenarios ... or, with `defaults`, what may be omitted."""
    from ..errors import UserError, did_you_mean
    from ..study import catalog

    kinds = [*catalog.DATA, *catalog.CODE]
    if schema:
        from ..study.schema import json_schema

        print_json(json_schema())
    elif kind == "defaults":
        _defaults(as_json)
    elif kind is None:
        names = {k: list(catalog.files(k)) for k in kinds}
        print_json(names) if as_json else print_pairs((k, ", ".join(found)) for k, found in names.items())
    elif kind not in kinds:
        raise UserError(f"no kind {kind!r}", hint=did_you_mean(kind, [*kinds, "defaults"]))
    else:
        rows = [(name, catalog.headline(path)) for name, path in catalog.files(kind).items()]
        print_json([{"name": n, "about": about} for n, about in rows]) if as_json else print_table(["name", "about"], rows)


def _defaults(as_json: bool) -> None:
    from dataclasses import asdict

    from ..binding.fidelity import Fidelity
    from ..plan.plan import Plan
    from ..workload.job import Job

    values = {"plan": asdict(Plan()), "job": asdict(Job()), "fidelity": asdict(Fidelity())}
    if as_json:
        print_json(values)
        return
    flat = [(f"{section}.{name}", value) for section, fields in values.items() for name, value in fields.items()]
    inner = {"plan.dp": "what is left of the GPUs", "plan.sequence_parallel": "true when tp > 1"}
    print_pairs((name, inner.get(name) or str(value).lower()) for name, value in flat)
