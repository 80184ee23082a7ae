"""The JSON Schema that editors use accepts what the simulator accepts, and the catalog lists what may be left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import simulator as sim
from simulator.commands.catalog import AUTOMATIC, OF_THEIR_SHAPES
from simulator.config import catalog
from simulator.config.cluster_file import ClusterFile
from simulator.config.document import parse, read, scalar
from simulator.config.scenario import json_schema
from simulator.fields import keys, required
from simulator.workload.framework import Framework

from ..commandline import SMALL, trainsim
from .bad import BAD

SCENARIOS = catalog.files("scenarios")
TYPED = (
    "a key with a typo",
    "a word for a number",
    "zero",
    "huge",
    "a mapping for a list",
    "a bare bandwidth",
    "an unknown choice",
)


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


@pytest.mark.parametrize("path", SCENARIOS.values(), ids=SCENARIOS)
def test_shipped_scenarios_satisfy_the_schema(path: Path, validator: Any) -> None:
    assert not list(validator.iter_errors(read(path).data))


def test_the_schema_knows_names_paths_mappings_and_bases(validator: Any) -> None:
    written = (SMALL, "extends: base.yaml\nplan: {tp: 2}\n", "model: ./m.yaml\ncluster: {gpu: h100, gpus_per_node: 8}\n")
    software = ("framework: torchtitan-2024\n", "framework: {name: megatron-core-2025, host: {kernel: 5 us}}\n")
    for text in (*written, *software):
        assert not list(validator.iter_errors(parse(text, "x").data))


@pytest.mark.parametrize("case", TYPED)
def test_the_schema_refuses_what_an_editor_can_see(case: str, validator: Any) -> None:
    data = parse(SMALL.replace(BAD[case].old, BAD[case].new, 1), "x").data
    assert list(validator.iter_errors(data))


def test_the_command_prints_the_schema() -> None:
    assert trainsim("catalog", "--schema").record == json_schema()


@pytest.mark.parametrize("path", SCENARIOS.values(), ids=SCENARIOS)
def test_shipped_scenarios_load(path: Path) -> None:
    assert sim.load(path).cluster.gpus > 0
    assert catalog.headline(path)


def test_defaults_are_listed_for_every_field_that_may_be_left_out() -> None:
    said = trainsim("catalog", "defaults")
    listed = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    values = trainsim("catalog", "defaults", "--json").record
    flat = _flat(values)
    assert set(listed) == set(flat)
    assert set(AUTOMATIC) == {name for name, value in flat.items() if value in (None, "")}, "these depend on something"
    for name, value in flat.items():
        words = f"[{', '.join(value)}]" if isinstance(value, list) else value
        assert (listed[name] if name in AUTOMATIC else scalar(listed[name])) == AUTOMATIC.get(name, words)
    for section, made in (("plan", sim.Plan), ("job", sim.Job), ("fidelity", sim.Fidelity), ("framework", Framework)):
        assert set(values[section]) == set(keys(made))
    may_be_omitted = set(keys(ClusterFile)) - set(required(ClusterFile)) - {"name"}
    assert set(values["cluster"]) == may_be_omitted - set(OF_THEIR_SHAPES)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def test_what_the_defaults_say_is_what_is_used() -> None:
    written = trainsim("catalog", "defaults", "--json").record
    given = {"model": "llama3-8b", "cluster": "dgx-h100"}
    of_clusters = written.pop("cluster")
    assert sim.scenario(given) == sim.scenario({**given, **written})
    own = {"gpu": "h100", "gpus_per_node": 8, "intra_node": "NVSwitch 450 GB/s"}
    assert sim.cluster(own) == sim.cluster({**own, **of_clusters})


def test_no_description_names_a_value_of_python() -> None:
    """Files have no `None`: a field without a value is left out."""
    assert "None" not in trainsim("catalog", "--schema").out
