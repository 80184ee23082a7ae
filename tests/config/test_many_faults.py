"""A report of thousands of faults shows the first, says how many more there are, and takes no longer than reading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.config import suggestions
from simulator.errors import MOST_LISTED, UserError

from ..commandline import SMALL, trainsim

MANY = 3000


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    file = tmp_path / "s.yaml"
    file.write_text(SMALL + "".join(f"k{i}: 1\n" for i in range(MANY)))
    return file


def test_many_faults_are_counted_and_the_first_are_shown(unknown: Path) -> None:
    said = trainsim("run", unknown)
    assert said.code == 2
    shown = [line for line in said.err.splitlines() if line.endswith("unknown key")]
    assert [line.split()[1] for line in shown] == [f"k{i}:" for i in range(MOST_LISTED)]
    assert said.err.startswith(f"error: {MANY} faults\n")
    assert said.err.endswith(f"... and {MANY - MOST_LISTED} faults more\n")
    faults = trainsim("run", unknown, "--json").record["faults"]
    assert len(faults) == MANY
    assert {fault["message"].partition(": ")[2] for fault in faults} == {"unknown key"}


def test_the_fields_of_a_schema_are_walked_once_for_all_faults(unknown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    walked = suggestions._paths

    def counted(model: Any) -> Any:
        nonlocal walks
        walks += 1
        return walked(model)

    suggestions.shortest_paths.cache_clear()
    monkeypatch.setattr(suggestions, "_paths", counted)
    assert trainsim("run", unknown).code == 2
    assert 0 < walks < MANY / 10


def test_the_nearest_place_of_a_misplaced_key_is_the_shortest() -> None:
    import simulator as sim

    with pytest.raises(UserError, match=r"did you mean 'job.dtype'"):
        sim.scenario({"model": "llama3-8b", "cluster": "dgx-h100", "dtype": "bf16"})
