"""What is read as plainly right pydantic takes too, and for the same values; and what ships is plainly right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import ValidationError

from simulator.errors import UserError
from simulator.study import catalog
from simulator.study.documents.checked import plainly, validated
from simulator.study.documents.document import Document, Place
from simulator.study.documents.pydantic_twins import judge
from simulator.study.documents.source import parse, read
from simulator.study.documents.strict import Contradiction, Field, Strict
from simulator.study.gpus import fit_files
from simulator.study.gpus.fit_files import FitsSchema
from simulator.study.gpus.schema import GpuSchema
from simulator.study.links import fabrics
from simulator.study.links.fabrics import FabricSchema
from simulator.study.scenarios.clusters import ClusterSchema
from simulator.study.scenarios.references import NAMED, resolved
from simulator.study.scenarios.schema import ModelSchema, ScenarioSchema
from simulator.study.scenarios.software import FrameworkSchema

SHIPPED: dict[str, tuple[type[Strict], Path]] = {
    **{f"model {name}": (ModelSchema, path) for name, path in catalog.files("models").items()},
    **{f"GPU {name}": (GpuSchema, path) for name, path in catalog.files("gpus").items()},
    **{f"framework {name}": (FrameworkSchema, path) for name, path in catalog.files("frameworks").items()},
    **{f"fabric {path.stem}": (FabricSchema, path) for path in fabrics.folder().glob("*.yaml")},
    **{f"kernels {path.stem}": (FitsSchema, path) for path in fit_files.folder().glob("*.yaml")},
}
SCENARIO = """\
model: {name: mine, layers: 8, hidden: 1024, heads: 16, kv_heads: 8, vocab: 32000, norm: rmsnorm, positions: rope}
cluster:
  name: mine
  gpu:
    {memory: 80 GiB, memory_bandwidth: 3 TB/s, peak: {bf16: 989 TFLOP/s}, sms: 132, tdp: 700 W, clock: 1980 MHz, site_scalar: 1,
     sources: {memory: a book},
     kernels: {compute_fraction: 0.7, memory_fraction: 0.9, provenance: measured}}
  gpus_per_node: 4
  nodes: 4
  intra_node: NVSwitch 450 GB/s
  inter_node: 4x400 Gbit/s
  latency: {nvlink: 1 us}
  routing_seed: 3
plan: {tp: 2, pp: 2, dp: null, sequence_parallel: true, schedule: 1f1b, memory_limit: 1, sharding: zero1, overlap: {dp: true}}
job: {sequence_length: 1024, global_batch: 32, dtype: bf16}
framework: {name: mine, host: {kernel: 5 us}, fusion: {norm: false}, low_precision: {formats: [fp8]}, gradients: bf16}
fidelity: {collectives: closed}
perturb: [{rank: 1, speed: 0.5, from: 1 s, until: 2 s}, {link: a>b, capacity: 0.5}]
"""
CLUSTERS = (
    "{gpu: h100, gpus_per_node: 8, nodes: 8, intra_node: NVSwitch 450 GB/s, inter_node: 8x400 Gbit/s, shape: dragonfly,"
    " dragonfly: {nics_per_router: 8, routers_per_group: 4, global_links: 4}, routing: ecmp}",
    "{gpu: h100, gpus_per_node: 8, nodes: 4, intra_node: NVSwitch 450 GB/s, inter_node: 8x400 Gbit/s, shape: wan,"
    " wan: {sites: [rail-optimized, leaf-spine], bandwidth: 400 Gbit/s, latency: 20 ms}}",
    "{gpu: l4, gpus_per_node: 4, intra_node: pcie 32 GB/s, box: {sockets: 2, gpus_per_switch: 2, socket: 40 GB/s}}",
    "{gpu: h100, gpus_per_node: 1, nodes: 4, intra_node: NVLink 450 GB/s, inter_node: 400 Gbit/s, shape: torus, dims: [2, 2]}",
    "{gpu: h100, gpus_per_node: 2, shape: explicit, vertices: [{name: a, kind: gpu}, {name: b, kind: gpu}],"
    " links: [{from: a, to: b, capacity: 50 GB/s, latency: 1 us}]}",
)
FABRIC = """\
about: mine
provenance: measured
source: a bench
inside: {rate: 450 GB/s, launch: 5 us, step: 1 us, efficiency: 0.8, fill: 10 us, island: 4, beyond: 30 GB/s, flags: 1}
across: {nic: 50 GB/s, nics: 8, crossing: 5 us, efficiency: 0.9, rendezvous: 2, rendezvous_size: 64 KiB, sharp: true}
curves: [{kind: all_reduce, ranks: 8, error: 0.1, sizes: [1 KiB, 1 MiB], times: [10 us, 20 us]}]
"""
FITS = """\
gpu: mine
fits:
  - {family: rowwise, dtype: bf16, constants: CONSTANTS, sigma: 0.1, ranges: {rows: [1, 4096]}, rows: 12, cast: [1.5, 2],
     ratios: {rope: 1.5, softmax: [1, 0.2]}}
"""
ODD = (
    None, True, False, 0, 1, 2, -1, 2**20, 2**53, 2**63, 10**400, 0.0, 1.0, 0.5, -0.5, 2.5, 1e300, math.nan, math.inf, -math.inf,
    "", " ", "2", "true", "none", "bf16", "1f1b", "80 GiB", "5 us", "400 Gbit/s", "x" * 2000, "a>b", "fp8", "zero2", "fp64",
    "auto", [], [1], [1, 2], [1.5, 0.1], ["fp8"], [{}], (1, 2), {}, {"x": 1}, {"x": "1"}, {1: "x"}, {"bf16": "1 TFLOP/s"},
    b"2", {1, 2}, 1j, "half \ud800",
)  # fmt: skip


def cases() -> Iterator[tuple[type[Strict], Any]]:
    """Documents that are right, from small to large."""
    known = read(fit_files.folder() / "h100.yaml").data["fits"]
    constants = next(fit["constants"] for fit in known if fit["family"] == "rowwise")
    yield ScenarioSchema, parse(SCENARIO, "x").data
    for text in CLUSTERS:
        document = Document.of({"cluster": parse(f"cluster: {text}", "x").data["cluster"]})
        yield ClusterSchema, resolved(document, ("cluster", "gpu"), "gpus").data["cluster"]
    yield FabricSchema, parse(FABRIC, "x").data
    yield FitsSchema, parse(FITS.replace("CONSTANTS", repr(constants).replace("'", "")), "x").data


def places(data: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a document but its root."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*place, key)
        yield from places(value, (*place, key))


def replaced(data: Any, place: Place, value: Any) -> Any:
    """A document with another value at a place; `...` for none."""
    key, *rest = place
    new = replaced(data[key], tuple(rest), value) if rest else value
    items = data.items() if isinstance(data, dict) else enumerate(data)
    made = {k: new if k == key else v for k, v in items if k != key or new is not ...}
    return made if isinstance(data, dict) else list(made.values())


def flat(value: Any) -> str:
    """All that was read, and of which types: nan is like nan, and 1 is not like 1.0."""
    return repr(_flat(value))


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _flat(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_flat(inner) for inner in value]
    return {type(value).__name__: _flat(dict(value))} if isinstance(value, Strict) else value


def judged(schema: type[Strict], data: Any) -> str | None:
    try:
        return flat(judge(schema).model_validate(data))
    except ValidationError:
        return None


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_is_plainly_right(name: str) -> None:
    schema, path = SHIPPED[name]
    data = read(path).data
    assert flat(plainly(schema, data)) == judged(schema, data)


@pytest.mark.parametrize("name", catalog.files("clusters"))
def test_clusters_that_ship_are_plainly_right(name: str) -> None:
    data = resolved(read(catalog.files("clusters")[name]), ("gpu",), "gpus").data
    assert flat(plainly(ClusterSchema, data)) == judged(ClusterSchema, data)


@pytest.mark.parametrize("name", catalog.files("scenarios"))
def test_scenarios_that_ship_are_plainly_right(name: str) -> None:
    document = read(catalog.files("scenarios")[name])
    if document.data.keys() & {"jobs", "extends"}:
        return
    for place, kind in NAMED:
        document = resolved(document, place, kind)
    assert flat(plainly(ScenarioSchema, document.data)) == judged(ScenarioSchema, document.data)


@pytest.mark.parametrize(("schema", "data"), [*cases()], ids=lambda case: getattr(case, "__name__", ""))
def test_what_is_taken_at_once_is_what_pydantic_takes(schema: type[Strict], data: Any) -> None:
    assert judged(schema, data) is not None
    taken = []
    changed = [replaced(data, place, value) for place in places(data) for value in (..., *ODD)]
    for case in (data, *changed, *({**data, "unknown": value} for value in ODD)):
        value = plainly(schema, case)
        if value is not None:
            assert flat(value) == judged(schema, case)
        taken.append(value is not None)
    assert any(taken) or "vertices" in data  # names of vertices keep to a pattern, which is pydantic's to read
    assert not all(taken)


class Made(Strict):
    """What no schema has yet: values that several readers take, patterns, words that are no text."""

    either: float | int = 0
    name: Annotated[str, Field(pattern="^a$")] = "a"
    word: Literal["a", 1] = "a"


@pytest.mark.parametrize("key", ["either", "name", "word"])
def test_where_python_and_pydantic_differ_pydantic_is_asked(key: str) -> None:
    for value in (5, 5.0, True, "a", "a\n", "b", None, 1, 1.0):
        read_at_once = plainly(Made, {key: value})
        assert read_at_once is None or flat(read_at_once) == judged(Made, {key: value})


class Own(Strict):
    """Checked by code that goes wrong, as somebody's own may."""

    wrong: str = ""

    def contradictions(self) -> Iterator[Contradiction]:
        if self.wrong == "value":
            raise ValueError(self.wrong)
        assert self.wrong != "assertion"
        return iter(())


@pytest.mark.parametrize("wrong", ["value", "assertion"])
def test_what_raises_while_it_is_checked_is_wrong_input(wrong: str) -> None:
    document = Document.of({"wrong": wrong})
    assert plainly(Own, document.data) is None
    with pytest.raises(UserError, match=wrong if wrong == "value" else "Assertion failed"):
        validated(Own, document)
    assert validated(Own, Document.of({})).wrong == ""


def test_nothing_changes_once_made() -> None:
    made = plainly(Own, {})
    with pytest.raises(AttributeError, match="does not change"):
        made.wrong = "value"  # type: ignore[union-attr]


def test_what_is_not_taken_at_once_may_still_be_right() -> None:
    """The rest is pydantic's to say, and it says the same of a value in either way."""

    class Whole(int):
        pass

    data = parse(SCENARIO, "x").data
    odd = replaced(data, ("plan", "tp"), Whole(2))
    assert plainly(ScenarioSchema, odd) is None
    assert judged(ScenarioSchema, odd) == flat(plainly(ScenarioSchema, data))
