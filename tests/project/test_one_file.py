"""Additions that are thrown away again: a metric and an importer of another program's files are one file each, listed nowhere.

The other things that are one file are tried where they are used: a family of kernels in tests/costs/test_new_family.py, a kind
of measurement in tests/validate/test_tables.py. A field of Plan is one line: tests/config/test_reader.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import simulator as sim
import simulator.metrics
from simulator.config import catalog, importers

from ..batteries import test_metrics as battery
from ..commandline import trainsim
from ..small_scenarios import scenario

METRIC = '''"""Time from the beginning of the step until the first rank is done."""

from . import Observation
from ..units import seconds

SCALES, LABEL = "time", "first done"


def measure(observed: Observation) -> float:
    return seconds(int(observed.window_ns.min()))
'''
IMPORTER = '''"""The hyperparameters of GPT-2 as OpenAI published them."""

KEYS = {"n_layer": "layers", "n_embd": "hidden", "n_head": "heads", "n_vocab": "vocab", "n_ctx": "max_sequence_length"}


def recognises(data):
    return data.keys() >= KEYS.keys()


def imported(data, kind, file):
    return {ours: data[theirs] for theirs, ours in KEYS.items()} | {"norm": "layernorm", "positions": "learned"}
'''


@pytest.fixture
def metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a new metric, whose file is in the folder of metrics as long as a test lasts."""
    known = catalog.folder
    for file in known("metrics").glob("*.py"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "first_done.py").write_text(METRIC)
    monkeypatch.setattr(catalog, "folder", lambda kind: tmp_path if kind == "metrics" else known(kind))
    monkeypatch.setattr(simulator.metrics, "__path__", [str(tmp_path)])
    yield "first-done"
    for name in [name for name in sys.modules if name.endswith(".first_done")]:
        del sys.modules[name]


def test_a_metric_is_one_file(metric: str) -> None:
    """The battery finds it, and every run shows it, with its label and its unit."""
    assert metric in catalog.files("metrics")
    battery.test_a_metric_says_how_it_scales_and_survives_an_empty_timeline(metric)
    battery.test_one_task(metric)
    battery.test_scaled_times_scale_the_metric(metric, 2)
    run = scenario().simulate()
    assert run.as_dict()["first_done"] == pytest.approx(run.metrics.step_time_s)
    assert dict(run.summary)["first done"].split(" ")[1] in ("s", "ms", "us")


def test_an_importer_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may then be a file of that program, from Python, in a scenario and with `--set`."""
    config = tmp_path / "hparams.json"
    config.write_text(json.dumps({"n_layer": 12, "n_embd": 768, "n_head": 12, "n_vocab": 50257, "n_ctx": 1024}))
    with pytest.raises(sim.UserError, match="n_layer: unknown key"):
        sim.model(config)
    (tmp_path / "gpt2.py").write_text(IMPORTER)
    monkeypatch.setattr(importers, "__path__", [*importers.__path__, str(tmp_path)])
    model = sim.model(config)
    assert (model.name, model.layers, model.vocab) == ("hparams", 12, 50257)
    settings = [f"model={config}", "plan.tp=4", "job.sequence_length=1024"]
    said = trainsim("run", "llama3-70b-64xh100", *(word for one in settings for word in ("--set", one)), "--json")
    assert said.record["scenario"]["model"] == "hparams"
