"""No prediction of a training run rests on what was measured or on who published it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.config import catalog
from simulator.errors import UserError
from simulator.measurements.csv_tables import Row, read
from simulator.measurements.published_runs import SECTIONS, rows
from simulator.validate import training
from simulator.validate.report import compare_rows

from ..project.source import ROOT, project_files, refuse
from .published_sample import FILE
from .test_training import HIDDEN, MEASURED, ROWS

TABLE = ROOT.parent / "shared" / "data" / "training.csv"
PUBLISHED = rows()
QUICK = 12
"""Number of runs that are given twice; those whose scenarios are equal run once."""
SEARCHED = ("simulator", "topologies", "workloads")


@pytest.mark.parametrize("given", [PUBLISHED, ROWS], ids=["published", "table"])
def test_the_predictor_gets_rows_without_what_identifies_or_measures_them(given: Sequence[Row]) -> None:
    seen: list[Row] = []

    def predictions(rows: Sequence[Row], gpu: None) -> list[UserError]:
        seen.extend(rows)
        return [UserError("not predicted")] * len(rows)

    kind = SimpleNamespace(**{**vars(training), "predictions": predictions})
    compare_rows(kind, given, "rows")
    assert len(seen) == len(given)
    for row in seen:
        assert row.keys() == set(training.READS)
        assert not row.keys() & {*HIDDEN, *MEASURED, "derived", "flop_convention"}
        assert set(json.loads(row["scenario"] or "{}")) <= set(SECTIONS)


def test_shuffling_what_is_hidden_and_blanking_what_was_measured_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "FEW", QUICK)
    names = [name for source in json.loads(FILE.read_text()).values() for name in source["runs"]]
    chosen = {name for name in names if name.startswith(("mpt", "vtrain"))}
    plain = [row for row in PUBLISHED if row["id"] in chosen][:QUICK]
    order = list(range(len(plain)))
    random.Random(7).shuffle(order)
    changed = [
        {**row, **{key: plain[i].get(key, "") for key in (*HIDDEN, "derived")}, **dict.fromkeys(MEASURED, "")}
        for row, i in zip(plain, order, strict=True)
    ]
    assert [row["id"] for row in changed] != [row["id"] for row in plain]
    found = compare_rows(training, [*plain, *changed], "rows").rows
    said = [json.dumps([row.predicted, row.interval, row.memory_gb, row.skipped, row.note]) for row in found]
    assert said[: len(plain)] == said[len(plain) :]
    assert len(set(said)) > len(plain) // 2


def test_no_code_and_no_data_names_a_source_a_title_or_a_row() -> None:
    """Beside the published runs themselves. Names of frameworks and families of models may be names of sources."""
    families = {re.sub(r"-\d+$", "", name) for name in catalog.files("frameworks")}
    families |= {name.partition("-")[0] for name in catalog.files("models")}
    known: list[dict[str, Any]] = [*map(dict, PUBLISHED), *(read(TABLE) if TABLE.exists() else ())]
    words = {row[column] for row in known for column in ("id", "source_key")} - families
    titles = {row["source_title"] for row in known}
    refuse(
        f"{file}:1: names {name!r}, which is a source, a title or a row"
        for file in _searched()
        for name in _named(file, words, titles)
    )


def _searched() -> Iterable[Path]:
    return (
        f
        for f in project_files()
        if f.parts[0] in SEARCHED and f.parts[:2] != ("workloads", "published") and f.suffix in (".py", ".yaml")
    )


def _named(file: Path, words: set[str], titles: set[str]) -> list[str]:
    text = (ROOT / file).read_text()
    return sorted((words & set(re.findall(r"[\w.-]*\w", text))) | {title for title in titles if title in text})
