"""The note on attention libraries that were not measured on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim


@pytest.mark.parametrize(
    ("cluster", "attention", "said"),
    [
        ("dgx-b200", "flash_attention", "flash_attention was not measured on b200, kernels of a100-80gb replace it; cudnn was"),
        ("dgx-b200", "cudnn", ""),
        ("dgx-b200", "", ""),
        ("dgx-b200", "unfused", ""),
        ("dgx-h100", "flash_attention", ""),
        ("l40s-pcie", "flash_attention", ""),
    ],
)
def test_a_library_that_was_not_measured_there_is_named_with_what_was(cluster: str, attention: str, said: str) -> None:
    scenario: dict[str, Any] = {
        "model": {"layers": 4, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 32000},
        "cluster": {"name": cluster, "nodes": 1},
        "job": {"sequence_length": 1024, "global_batch": 8},
        "framework": {"name": "torchtitan-2025", "attention": attention},
    }
    notes = [note for note in sim.scenario(scenario).simulate(allow_oom=True).notes if "framework.attention" in note]
    assert notes == ([f"framework.attention: {said}"] if said else [])
