"""`trainsim catalog`: everything that has a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ..config import catalog
from ..errors import UserError, did_you_mean, shown
from ..fields import Declared, keys
from ..plan.plan import Fidelity, Plan
from ..units import GB, TFLOP, show_bytes, show_s
from ._show import json_option, print_json, print_pairs, print_table

AUTOMATIC = {
    "plan.dp": "the GPUs divided by the other degrees",
    "plan.sequence_parallel": "true when tp > 1",
    "plan.cp_ulysses": "for cp_kind mixed, the ranks of a node",
    "plan.etp": "tp",
    "plan.moe.node": "as many as the cluster has",
    "plan.moe.nodes_per_token": "all nodes of the group",
    "plan.group": "the schedule's own choice",
    "plan.placement": "rank r on GPU r",
    **dict.fromkeys(("plan.sharding", "plan.recompute"), "as the framework does"),
    "fidelity.overlap": "slowed, but free with collectives: stepwise, or own rows of each rank",
    "job.gradient_clipping": "the gradient norm takes no time",
    "job.lora": "none: the model itself is trained",
    "job.packing": "none: a sequence is one document",
    **dict.fromkeys(("job.total_tokens", "job.price_per_gpu_hour", "job.price_per_kwh"), "none: one step is reported"),
    **{f"plan.overlap.{axis}": "as the framework does" for axis in ("dp", "tp", "pp", "ep")},
    "framework.attention": "the usual one of the GPU",
    "framework.gathered_gradients": "that of gradients",
    "framework.plan.group": "all data-parallel ranks",
    **{f"framework.sms.{of}": "as its library chooses" for of in ("rings", "switches", "transfers", "exchanges")},
    "framework.memory.tp_logit_bytes": "logit_bytes",
    "cluster.inter_node": "none, for a single node",
    "cluster.shape": "rail-optimized; for a single node, the shape of its inside",
    "cluster.pcie": "that of PCIe 5.0 x16; for a PCIe box, that of intra_node",
    "cluster.fabric": "the one most similar to its links",
    **dict.fromkeys(("cluster.dims", "cluster.node_dims"), "sides as equal as can be"),
    "cluster.radix": "the smallest power of two that suffices",
    "cluster.spines": "one per uplink of a leaf",
    "cluster.box.gpus_per_switch": "none: GPUs are attached to the sockets",
    "cluster.box.socket": "the rate of a GPU's PCIe link",
    "cluster.box.bridge": "none",
    "cluster.host": "not known",
}
"""Defaults that depend on the rest of a scenario."""
OF_THEIR_SHAPES = ("wan", "vertices", "links")
"""Fields of a cluster that a single shape needs."""


@click.command("catalog", short_help="List everything that has a name.")
@click.argument("kind", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of scenario files, for editors.")
@json_option
def command(kind: str | None, schema: bool, as_json: bool) -> None:
    """List everything that has a name, or describe the entries of one KIND: models, clusters, gpus, schedules, scenarios ...

    `trainsim catalog defaults` lists the fields that a scenario may omit, with their default values: those of the plan, the job,
    the fidelity, the framework and an inline cluster. A named framework or cluster sets most of its fields itself.
    """
    kinds, typed, kind = [*catalog.DATA, *catalog.CODE], kind, kind and kind.lower()
    if schema:
        from ..config.scenario import json_schema

        print_json(json_schema())
    elif kind == "defaults":
        _print_defaults(as_json)
    elif kind is None:
        names = {k: list(_about(k)) for k in kinds}
        print_json(names) if as_json else print_pairs((k, ", ".join(found)) for k, found in names.items())
    elif kind not in kinds:
        raise UserError(f"no kind {typed!r}", hint=did_you_mean(kind, [*kinds, "defaults"]))
    elif kind == "gpus":
        _print_gpus(as_json)
    elif kind == "models":
        _print_models(as_json)
    else:
        rows = list(_about(kind).items())
        print_json([{"name": n, "about": about} for n, about in rows]) if as_json else print_table(["name", "about"], rows)


def _print_gpus(as_json: bool) -> None:
    """Prints every GPU with the values of its data sheet: memory, dense peak of 16-bit GEMMs, and power limit."""
    from ..config import shipped_fits

    about = {name: catalog.headline(path) for name, path in catalog.files("gpus").items()}
    gpus = [shipped_fits.gpu(name) for name in about]
    if as_json:
        facts = ("memory_bytes", "memory_bytes_per_s", "peak_flop_per_s", "tdp_w")
        own = ({name: getattr(gpu, name) for name in facts} | {"peak_flop_per_s": dict(gpu.peak_flop_per_s)} for gpu in gpus)
        print_json([{"name": gpu.name, "about": about[gpu.name], **known} for gpu, known in zip(gpus, own, strict=True)])
        return
    rows = []
    for gpu in gpus:
        numbers = (gpu.memory_bytes_per_s / GB, gpu.matmul_peak("fp16") / TFLOP, gpu.tdp_w)
        rows.append([gpu.name, show_bytes(gpu.memory_bytes), *(f"{number:,.0f}" for number in numbers), about[gpu.name]])
    print_table(["name", "memory", "GB/s", "fp16 TFLOP/s", "W", "about"], rows, right=(1, 2, 3, 4))


def _print_models(as_json: bool) -> None:
    """Prints every model with its size: parameters, those that a token passes through if it has experts, layers and width."""
    from ..config.load import model

    found = {name: (model(name), about) for name, about in _about("models").items()}
    if as_json:
        facts = ("parameters", "active_parameters", "layers", "hidden")
        print_json([{"name": n, "about": about, **{f: getattr(m, f) for f in facts}} for n, (m, about) in found.items()])
        return
    rows = []
    for name, (one, about) in found.items():
        active = f"{one.active_parameters / GB:.2f}" if one.experts else ""
        rows.append([name, f"{one.parameters / GB:,.2f}", active, str(one.layers), f"{one.hidden:,}", about])
    print_table(["name", "B parameters", "B active", "layers", "hidden", "about"], rows, right=(1, 2, 3, 4))


def _about(kind: str) -> dict[str, str]:
    """The names of a kind, each with a description."""
    found = {name: catalog.headline(path) for name, path in catalog.files(kind).items()}
    if kind == "fabrics":
        from ..config.fabric_files import IDEAL

        found |= {IDEAL.name: IDEAL.about}
    return dict(sorted(found.items()))


def _print_defaults(as_json: bool) -> None:
    from ..config.cluster_file import ClusterFile
    from ..workload.framework import Framework
    from ..workload.job import Job

    usual = {key: spec.default for key, spec in keys(ClusterFile).items() if not spec.required}
    cluster = {key: _plain(value) for key, value in usual.items() if key not in ("name", *OF_THEIR_SHAPES)}
    sections = {"plan": Plan(), "job": Job(), "fidelity": Fidelity(), "framework": Framework()}
    values = {**{name: _plain(section) for name, section in sections.items()}, "cluster": cluster}
    pairs = ((name, AUTOMATIC.get(name) or _written(value)) for name, value in _flat(values))
    print_json(values) if as_json else print_pairs(pairs)


def _plain(value: Any) -> Any:
    """A value in the form of a file, times and sizes with their units."""
    if not isinstance(value, Declared):
        return value
    show = {"seconds": show_s, "bytes": show_bytes}
    fields = {key: (_plain(getattr(value, spec.name)), spec.form.dimension) for key, spec in keys(type(value)).items()}
    return {key: show[unit.name](inner) if unit and unit.name in show else inner for key, (inner, unit) in fields.items()}


def _written(value: Any) -> str:
    """A value in the syntax of a file."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return value if isinstance(value, str) else shown(value)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
