"""Where measured kernels come from: the repositories of rows, and the table of them for the report."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

READ = "read in November 2026"
"""When the repositories were read: the table gives no other date."""
UNFILLED = "unfilled"
"""The role of rows that multiply by weights which nobody filled."""
USES = {
    "fit": "fitted",
    UNFILLED: "not used: weights that nobody filled",
    "site-scalar": "judged only, after one scalar for the machine",
    "sanity": "judged only",
}


def origins(rows: pd.DataFrame) -> str:
    """The distinct repositories of rows, each at its commit: `owner/repository@1a2b3c4`."""
    return ", ".join(sorted(set(_repositories(rows))))


def section(table: pd.DataFrame) -> Iterator[str]:
    """Every source, with how many rows of which GPUs and what for."""
    yield "\n## Sources\n"
    yield f"Public repositories at these commits, {READ}.\n"
    yield "| source | GPUs | rows | |"
    yield "|---|---|---|---|"
    for (source, role), rows in table.assign(repository=_repositories(table)).groupby(["repository", "role"]):
        yield f"| {source} | {', '.join(sorted(set(rows.gpu)))} | {len(rows)} | {USES[str(role)]} |"


def _repositories(rows: pd.DataFrame) -> pd.Series[str]:
    """What stands before the path, without remarks."""
    return rows.source.str.split(r":| \(", n=1, regex=True).str[0]
