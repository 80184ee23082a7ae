"""Published training runs that ship: `workloads/published/*.yaml`, one file per paper or report, read as rows of a table.

A file says where its numbers can be looked up (`title`, `authors`, `locator`), whether runs are described without a guess (`tier`
A), with one or two (B) or more (C), how flop and memory are counted (`flop_convention`, `memory_kind`), and in words its
`conventions` and what is `assumed`. Its `tables` hold `runs`. A run is a scenario with its measurements: the parts that all runs
of a file or of a table have in common are stated once, as `shared`, and the fields of a run are laid over them.

A row of these runs holds its scenario as JSON in the column `scenario`, and beside it the columns by which published rates become
the time of a step. Like any row it has its source, tier and measurements in columns of their own, which no prediction reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..config import catalog
from ..config.document import Document, read
from .csv_tables import Row
from .training_rows import COLUMNS

MEASURED: Mapping[str, str] = {
    "memory_gb": "mem_gb",
    **{name: name for name in ("step_time_s", "tokens_per_s_per_gpu", "samples_per_s", "tflops_per_gpu", "mfu")},
}
"""Measured quantities, and their columns in a table."""
ABOUT: Mapping[str, str] = {
    "tier": "tier",
    "flop_convention": "flop_convention",
    "memory_kind": "mem_kind",
    "title": "source_title",
}
"""Properties of all runs of a file, and their columns."""
SECTIONS = ("model", "cluster", "plan", "job", "framework")
KEYS = (*ABOUT, "authors", "locator", "conventions", "assumed", "shared", "tables")
KEYS_OF_TABLES, KEYS_OF_RUNS = ("where", "shared", "runs"), ("id", "where", "derived", "measured", *SECTIONS)
"""Legal keys of a file, its tables and its runs."""


def rows() -> list[Row]:
    """The published runs of all files, in the order of the files."""
    return [row for name in catalog.files("published") for row in rows_of(name)]


def rows_of(name: str) -> Iterator[Row]:
    """The runs of one file as rows, whose source is the name of the file."""
    file = read(catalog.find("published", name)).data
    about = {column: str(file.get(key, "")) for key, column in ABOUT.items()}
    for table in file["tables"]:
        shared = Document.of(file.get("shared", {})).overlaid(Document.of(table.get("shared", {})))
        for run in table["runs"]:
            stated = {section: run[section] for section in SECTIONS if section in run}
            scenario = shared.overlaid(Document.of(stated)).data
            where = ", ".join(filter(None, (file["locator"], table["where"], run.get("where", ""))))
            known = {"id": run["id"], "source_key": name, "source_locator": where, "derived": run.get("derived", "")}
            measured = {MEASURED[key]: str(value) for key, value in run["measured"].items()}
            yield {**_described(scenario), **about, **known, **measured}


def _described(scenario: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a scenario: the scenario itself, and the quantities that published rates refer to."""
    cluster, job = scenario["cluster"], scenario["job"]
    cells = {
        "scenario": json.dumps(scenario),
        "gpus": cluster["gpus_per_node"] * cluster["nodes"],
        "gpu_model": cluster["gpu"],
        "seq_len": job["sequence_length"],
        "global_batch": job["global_batch"],
        "dtype": job["dtype"],
        "recompute": scenario["plan"].get("recompute", ""),
    }
    return {**dict.fromkeys(COLUMNS, ""), **{column: str(cell) for column, cell in cells.items()}}
