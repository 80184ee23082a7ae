"""Dataclasses read from documents by their own annotations: a field is one line, for files, Python, help and the JSON Schema."""

from __future__ import annotations

import math
import pydoc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest

import simulator as sim
from simulator.config import catalog, fabric_files, shipped_fits
from simulator.config.cluster_file import ClusterFile
from simulator.config.document import Document, Place, parse, read
from simulator.config.fabric_files import Fabric
from simulator.config.json_schema import object_schema
from simulator.config.load import load
from simulator.config.named_parts import resolved
from simulator.config.reader import NO_GRAMMARS, Grammars, examined, faults_in, validated
from simulator.config.scenario import GRAMMARS, NAMED, ScenarioFile
from simulator.config.shipped_fits import GPU, FitsFile
from simulator.errors import UserError
from simulator.fields import (
    Contradiction,
    Declared,
    Degree,
    Form,
    Latency,
    Later,
    Limits,
    Name,
    Text,
    documented,
    form,
    keys,
    specs,
)
from simulator.hardware.gpu import Gpu
from simulator.kernels import NARROW_BYTES
from simulator.workload.framework import Framework
from simulator.workload.job import DTYPES, ELEMENT_BYTES, NarrowFormat
from simulator.workload.model import Model

from ..commandline import SMALL

SHIPPED: dict[str, tuple[type[Declared], Path, Grammars]] = {
    **{f"model {name}": (Model, path, GRAMMARS) for name, path in catalog.files("models").items()},
    **{f"GPU {name}": (Gpu, path, GRAMMARS) for name, path in catalog.files("gpus").items()},
    **{f"framework {name}": (Framework, path, GRAMMARS) for name, path in catalog.files("frameworks").items()},
    **{f"fabric {path.stem}": (Fabric, path, fabric_files.GRAMMARS) for path in fabric_files.folder().glob("*.yaml")},
    **{f"kernels {path.stem}": (FitsFile, path, NO_GRAMMARS) for path in shipped_fits.folder().glob("*.yaml")},
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


def cases() -> Iterator[tuple[type[Declared], Any, Grammars]]:
    """Documents that are right, from small to large."""
    known = read(shipped_fits.folder() / "h100.yaml").data["fits"]
    constants = next(fit["constants"] for fit in known if fit["family"] == "rowwise")
    yield ScenarioFile, parse(SCENARIO, "x").data, GRAMMARS
    for text in CLUSTERS:
        document = Document.of({"cluster": parse(f"cluster: {text}", "x").data["cluster"]})
        yield ClusterFile, resolved(document, GPU).data["cluster"], GRAMMARS
    yield Fabric, parse(FABRIC, "x").data, fabric_files.GRAMMARS
    yield FitsFile, parse(FITS.replace("CONSTANTS", repr(constants).replace("'", "")), "x").data, NO_GRAMMARS


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


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_is_right(name: str) -> None:
    schema, path, grammars = SHIPPED[name]
    assert not examined(schema, read(path), (), grammars)[1]


@pytest.mark.parametrize("name", catalog.files("clusters"))
def test_clusters_that_ship_are_right(name: str) -> None:
    document = resolved(read(catalog.files("clusters")[name]), GPU._replace(place=("gpu",)))
    assert not examined(ClusterFile, document, (), GRAMMARS)[1]


@pytest.mark.parametrize("name", catalog.files("scenarios"))
def test_scenarios_that_ship_are_right(name: str) -> None:
    document = read(catalog.files("scenarios")[name])
    if document.data.keys() & {"jobs", "extends"}:
        return
    for part in NAMED:
        document = resolved(document, part)
    assert not examined(ScenarioFile, document, (), GRAMMARS)[1]


@pytest.mark.parametrize("name", fabric_files.names())
def test_a_fabric_that_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    """To the byte: the files that ship were written so."""
    fabric, file = fabric_files.load(name), tmp_path / f"{name}.yaml"
    curves = tuple(replace(curve, source=curve.source.removeprefix(name).removeprefix(": ")) for curve in fabric.curves)
    file.write_text(fabric_files.text(replace(fabric, curves=curves)), encoding="utf-8")
    assert file.read_bytes() == (fabric_files.folder() / f"{name}.yaml").read_bytes()
    assert replace(fabric_files.load(str(file)), file="") == fabric


def mistyped(of: Form, value: Any, name: str = "") -> Iterator[str]:
    """Values that are not of the type that their field declares."""
    if (value is None and of.optional) or of.note(Text):
        return
    if isinstance(value, Declared):
        for spec in specs(type(value)):
            if spec.key:
                yield from mistyped(spec.form, getattr(value, spec.name), f"{name}.{spec.name}")
    elif get_origin(of.kind) in (Union, UnionType):
        if all([*mistyped(one, value)] for one in of.members):
            yield f"{name}: {value!r} is none of {of.kind}"
    elif isinstance(value, (tuple, list, dict)) and of.members:
        inner = of.members[-1]
        for one in value.values() if isinstance(value, dict) else value:
            yield from mistyped(inner, one, name)
    elif not (of.choices and value in of.choices) and type(value) is not of.kind:
        yield f"{name}: {value!r} is not a {of.kind}"


def in_python(value: Any) -> Iterator[Declared]:
    """What of a document Python users write as dataclasses."""
    if isinstance(value, ScenarioFile):
        yield from (value.model, value.plan, value.job, value.framework, value.fidelity, *value.perturb)


@pytest.mark.thinned(8)
@pytest.mark.parametrize(("schema", "data", "grammars"), [*cases()], ids=lambda case: getattr(case, "__name__", ""))
def test_a_change_of_a_file_is_taken_or_told(schema: type[Declared], data: Any, grammars: Grammars) -> None:
    """Whatever somebody writes anywhere. What is taken is of the types that the dataclass declares, and right in Python."""
    assert not examined(schema, Document(data), (), grammars)[1]
    outcomes = set()
    for place in places(data):
        for odd in (..., *ODD):
            value, faults = examined(schema, Document(replaced(data, place, odd)), (), grammars)
            assert all(fault.message for _, fault in faults)
            if not faults:
                assert not [*mistyped(form(schema), value)]
                assert not [fault for one in in_python(value) for fault in faults_in(one, Document({}), (), grammars)]
            outcomes.add(bool(faults))
    assert outcomes == {True, False}


class Whole(int):
    """A whole number that is more than one."""


def test_a_number_is_a_number_whatever_else_it_is() -> None:
    data = parse(SCENARIO, "x").data
    odd, right = (examined(ScenarioFile, Document(d), (), GRAMMARS)[0] for d in (replaced(data, ("plan", "tp"), Whole(2)), data))
    assert odd == right


# A field is one line --------------------------------------------------------------------------------------------------------


@documented
@dataclass(frozen=True, slots=True)
class Small(Declared):
    """A plan with few fields."""

    tp: Annotated[Degree, "GPUs that share every layer"] = 1
    name: Name = "none"


@documented
@dataclass(frozen=True, slots=True)
class Larger(Small):
    """The same with three lines more."""

    window: Annotated[int, Limits(ge=1, le=64), "layers that are sent ahead, such as 2"] = 1
    pause_s: Annotated[Latency, "between two of them"] = 0.0
    order: Annotated[Literal["up", "down"], Later(("both",)), "which layers go first"] = "up"


def test_a_line_more_is_a_key_more_in_files() -> None:
    document = parse("{tp: 2, window: 3, pause: 5 us, order: down}", "mine.yaml")
    assert validated(Larger, document) == Larger(2, "none", 3, 5e-6, "down")
    with pytest.raises(UserError) as refused:
        validated(Small, document)
    assert [fault.message for fault in refused.value.faults] == [f"{key}: unknown key" for key in ("window", "pause", "order")]


@pytest.mark.parametrize("word", ["down", "Down", "DOWN", "-down", "d_own"])
def test_choices_take_dashes_or_underscores_in_any_case(word: str) -> None:
    assert validated(Larger, parse(f"order: {word}", "mine.yaml")).order == "down"
    (fault,) = faults_in(Larger(order="Down"), Document({}), (), NO_GRAMMARS)  # type: ignore[arg-type]
    assert fault.message == "order: 'Down' is none of the choices"
    with pytest.raises(UserError, match="'-' is none of the choices"):
        validated(Larger, parse("order: '-'", "mine.yaml"))


def test_it_is_refused_with_its_place_and_what_to_write() -> None:
    with pytest.raises(UserError) as refused:
        validated(Larger, parse("window: 65\npause: 5\norder: both\ntp: two\nwindw: 1\n", "mine.yaml"))
    found = {fault.where: (fault.message, fault.hint) for fault in refused.value.faults}
    assert found["mine.yaml:1:1"] == ("window: 65 is too large", "at most 64")
    assert found["mine.yaml:2:1"] == ("pause: 5 is a bare number: seconds need a unit", 'write it like "5 us"')
    assert found["mine.yaml:3:1"] == ("order: both is not modelled yet", "use up or down")
    assert found["mine.yaml:5:1"][1].startswith("did you mean 'window'?")
    assert found["mine.yaml:4:1"][1] == "GPUs that share every layer; at least 1, at most 1048576"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Larger(window=0), "window: 0 is too small"),
        (Larger(pause_s=-1.0), "pause: -1.0 is negative"),
        (Larger(pause_s=math.nan), "pause: .nan is not a number of seconds"),
        (Larger(pause_s="5 us"), "pause: '5 us' is not a number of seconds"),  # type: ignore[arg-type]
        (Larger(order="sideways"), "order: 'sideways' is none of the choices"),  # type: ignore[arg-type]
        (Larger(tp=True), "tp should be a whole number, not true"),
    ],
    ids=repr,
)
def test_so_is_what_python_makes(value: Larger, told: str) -> None:
    (fault,) = faults_in(value, Document({}), (), NO_GRAMMARS)
    assert fault.message == told


def test_help_and_the_json_schema_say_what_it_means() -> None:
    said, schema = pydoc.plain(pydoc.render_doc(Larger)), object_schema(Larger, NO_GRAMMARS)
    assert "Larger(tp=1, name='none', window=1, pause_s=0.0, order='up')" in said
    assert "window (whole number, at least 1, at most 64; default 1)" in said
    assert "pause_s (in seconds; default 0.0)" in said
    for spec in specs(Larger):
        assert spec.form.meaning in said
        assert schema["properties"][spec.key].get("description", "") == spec.form.meaning
    assert schema["properties"]["window"] == {
        "type": "integer", "minimum": 1, "maximum": 64, "description": "layers that are sent ahead, such as 2",
    }  # fmt: skip


# What is declared -----------------------------------------------------------------------------------------------------------


def declared(schema: type[Declared]) -> Iterator[type[Declared]]:
    """A dataclass and those within it."""
    yield schema
    for spec in keys(schema).values():
        if spec.form.record:
            yield from declared(spec.form.record)


@pytest.mark.parametrize("schema", dict.fromkeys(declared(ScenarioFile)), ids=lambda schema: schema.__name__)
def test_every_field_of_a_scenario_says_what_it_is(schema: type[Declared]) -> None:
    """By its meaning, or by a unit that says as much beside its name."""
    for spec in keys(schema).values():
        assert spec.form.meaning or spec.name in ("memory_bytes", "memory_bytes_per_s"), spec.name


@pytest.mark.parametrize("kind", [sim.Plan, sim.Overlap, sim.Job, sim.Fidelity, sim.Perturb, Framework])
def test_what_python_users_write_is_shown_by_help(kind: type[Declared]) -> None:
    said = pydoc.plain(pydoc.render_doc(kind))
    assert all(spec.form.meaning in said for spec in specs(kind))
    assert "Annotated[" not in said.partition("Methods defined here")[0]


def test_number_formats_are_listed_once_more_for_editors_and_the_same() -> None:
    assert set(DTYPES) == {*ELEMENT_BYTES, *NARROW_BYTES}
    assert get_args(NarrowFormat) == tuple(NARROW_BYTES)


@dataclass(frozen=True, slots=True)
class Own(Declared):
    """Fields that do not go together."""

    low: Annotated[float, Limits(ge=0)] = 0.0
    high: Annotated[float, Limits(ge=0)] = 1.0

    def contradictions(self) -> Iterator[Contradiction]:
        if self.low > self.high:
            yield "low", f": {self.low:g} is above high", "low: 0"


def test_contradictions_are_told_when_each_field_is_right() -> None:
    for data, told in (({"low": 2}, ["low: 2 is above high"]), ({"low": 2, "high": -1}, ["high: -1 is too small"]), ({}, [])):
        assert [fault.message for _, fault in examined(Own, Document(data))[1]] == told


def test_what_a_file_said_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.config import feasible

    checked: list[object] = []
    monkeypatch.setattr(feasible, "faults_in", lambda value, *_: checked.append(value) or [])
    scenario = sim.load("llama3-70b-64xh100")
    feasible.check(scenario)
    assert not checked
    plan = replace(scenario.plan, schedule="gpipe")
    feasible.check(replace(scenario, plan=plan))
    assert checked == [plan]


@pytest.mark.parametrize(("written", "read"), [("1.4e12", 14 * 10**11), ("2.0", 2), ("3", 3)])
def test_whole_numbers_may_have_an_exponent_or_a_point(written: str, read: int, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SMALL.replace("global_batch: 32", f"global_batch: 32, total_tokens: {written}"))
    found = load(tmp_path / "a.yaml").job.total_tokens
    assert (found, type(found)) == (read, int)


@pytest.mark.parametrize("written", ["1.5", "1e300", ".inf", "'2.0'"])
def test_other_numbers_are_not_whole(written: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SMALL.replace("global_batch: 32", f"global_batch: 32, total_tokens: {written}"))
    with pytest.raises(UserError, match=r"whole number|finite|number"):
        load(tmp_path / "a.yaml")


def test_a_float_in_python_is_no_whole_number() -> None:
    """It would stay a float in the plan."""
    with pytest.raises(UserError, match=r"plan.tp should be a whole number, not 2\.0"):
        sim.simulate(sim.model("llama3.2-1b"), sim.cluster("dgx-h100", nodes=1), sim.Plan(tp=2.0), sim.Job(1024, 8))  # type: ignore[arg-type]
