"""The pages and rules of systems that were left out: what is passed, what is shown, and that no prediction enters a rule."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simulator.costs.collectives.curves import UncontendedTime
from simulator.costs.collectives.theory import Call
from simulator.units import MIB

from ..project.source import ROOT, study_script


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return study_script("collectives", "data_rules")


def row(
    rules: ModuleType, size: float, measured_s: float, *, wire_s: float = 1.0, system: str = "box", said_s: float = 1.0
) -> Any:
    time = UncontendedTime(said_s, "theoretical", "theory", 0.2)
    return rules.Judged(system, Call("all_gather", size, 8), measured_s, time, wire_s, "log")


def test_reach_is_what_the_largest_message_gets(rules: ModuleType) -> None:
    found = rules.sanity([row(rules, MIB, 1.0, wire_s=0.01), row(rules, 64 * MIB, 4.0)])
    assert found.reach == 0.25
    assert not found.reaches
    assert found.is_steady


def test_times_that_jump_are_not_steady(rules: ModuleType) -> None:
    times = [1.0, 0.4, 1.0, 1.1]
    found = rules.sanity([row(rules, 2.0**i, time) for i, time in enumerate(times)])
    assert (found.falls, found.steps) == (1, 3)
    assert not found.is_steady
    assert rules.sanity([row(rules, 2.0**i, time) for i, time in enumerate([1.0, 0.6, 1.0, 1.1])]).is_steady


def test_no_prediction_enters_a_rule(rules: ModuleType) -> None:
    near, far = ([row(rules, 2.0**i, 1.0 + i, said_s=said) for i in range(4)] for said in (1.0, 50.0))
    assert rules.sanity(near) == rules.sanity(far)


def test_all_systems_count_first(rules: ModuleType) -> None:
    good = [row(rules, 2.0**i, 1.0, wire_s=0.9, system="good") for i in range(20)]
    slow = [row(rules, 2.0**i, 9.0, system="slow") for i in range(20)]
    kept = rules.kept(rules.by_system([*good, *slow]))
    assert list(map(set, kept.values())) == [{"good", "slow"}, {"good"}, {"good"}]
    table = rules.means([*good, *slow], rules.by_system([*good, *slow]))
    assert table[2].startswith("| all systems | 2 | 44.4% |")
    assert table[3].split("|")[2:4] == [" 1 ", " 0.0% "]


def test_a_page_holds_the_stated_interval_beside_the_error(rules: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
    pages = study_script("collectives", "left_out_pages")
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    rows = [row(rules, MIB, 2.0, system="Some box (8x)")]
    names = pages.write_pages(rows, rules.by_system(rows))
    assert names == {"Some box (8x)": "some-box-8x.md"}
    last = (tmp_path / "some-box-8x.md").read_text(encoding="utf-8").strip().splitlines()[-1]
    assert last.endswith("| -50% | ±40% | 0% |")


def test_every_system_of_the_report_has_its_page() -> None:
    folder = ROOT / "results/collectives"
    text = (folder / "report.md").read_text(encoding="utf-8")
    pages = {path.name for path in (folder / "left_out").glob("*.md")}
    assert len(pages) >= 10
    assert pages == {line.partition("](left_out/")[2].partition(")")[0] for line in text.splitlines() if "](left_out/" in line}
