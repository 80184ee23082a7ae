"""Every file in workloads/models: it loads, and its shape has as many parameters as were published."""

from __future__ import annotations

import re
from typing import Any

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.config.document import read
from simulator.units import GB, MB, TB

FILES = catalog.files("models")
SCALE = {"M": MB, "B": GB, "T": TB}
TOLERANCE = 0.005
NAMED_LOOSELY = (
    "falcon-40b", "gemma-2b", "gpt-oss-20b", "gemma-7b", "gemma2-2b", "internlm-7b", "internlm2-7b", "llama3.2-1b",
    "llama3.2-3b", "mpt-1b", "mpt-3b", "mpt-7b", "mpt-70b", "nemotron-3-8b", "nemotron-4-15b", "olmo-1b", "olmo2-7b",
    "olmo2-13b", "qwen2.5-7b", "qwen2.5-14b", "qwen3-14b", "starcoder2-15b",
)  # fmt: skip
"""Models whose publishers name them by a number that is further than 4% from the published count."""


def data_of(name: str) -> dict[str, Any]:
    return read(FILES[name]).data


def published(name: str) -> tuple[float, float]:
    """The published count, and half a unit of its last printed digit."""
    number, scale = str(data_of(name)["published_parameters"]).split()
    decimals = len(number.partition(".")[2])
    return float(number) * SCALE[scale], SCALE[scale] / 10**decimals / 2


def test_there_are_models_to_test() -> None:
    assert len(FILES) >= 50
    assert {"gpt3-175b", "llama2-70b", "llama3-8b", "llama3-405b", "megatron-1.7b", "megatron-1008b"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
class TestModel:
    def test_loads_under_its_own_name(self, name: str) -> None:
        assert sim.model(name).name == name
        assert sim.model(name.upper()) == sim.model(name)

    def test_has_as_many_parameters_as_published(self, name: str) -> None:
        count, half_a_digit = published(name)
        assert abs(sim.model(name).parameters - count) <= max(TOLERANCE * count, half_a_digit)

    def test_says_where_it_comes_from(self, name: str) -> None:
        assert re.search(r"arXiv \d{4}\.\d{5}|https?://", data_of(name)["source"])

    def test_its_name_says_its_size(self, name: str) -> None:
        """To the digits that the name has: `llama3-70b` has 70 to 71 billion, and `gpt-oss-20b` 20.9."""
        number = re.search(r"-(\d+(?:\.\d+)?)b$", name)
        if number:
            close = sim.model(name).parameters / GB == pytest.approx(float(number[1]), rel=0.04)
            assert close == (name not in NAMED_LOOSELY)

    def test_heads_fill_the_width_unless_their_own_is_given(self, name: str) -> None:
        model = sim.model(name)
        assert model.heads * model.head_dim == model.hidden or "head_dim" in data_of(name)
        assert model.heads % model.kv_heads == 0

    def test_parameters_are_those_of_its_blocks(self, name: str) -> None:
        """Layers, embedding and head; a tied head has no table of its own."""
        model = sim.model(name)
        size = {"batch": 1, "seq": 8, "element_bytes": 2}
        layers = [op for number in range(model.layers) for op in model.block.layer(model, **size, number=number)]
        total = sum(op.parameters for op in [*model.block.embedding(model, **size), *layers, *model.block.head(model, **size)])
        assert total - (model.vocab * model.hidden if model.tied_embeddings else 0) == model.parameters
