"""Where measured collectives come from: the repository and commit of a row, and the table of them for the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from os.path import commonpath
from typing import Protocol

COMMIT_DIGITS = 7
READ = "read in November 2026"
"""When the repositories were read. The table gives no other date; some paths and names hold one."""


class Row(Protocol):
    """A measured row."""

    @property
    def source(self) -> str: ...
    @property
    def system(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def version(self) -> str: ...


def origins(rows: Iterable[Row]) -> str:
    """The distinct repositories of rows, each at its commit: `owner/repository@1a2b3c4`."""
    return ", ".join(sorted({_short(row.source.partition(":")[0]) for row in rows}))


def versions(rows: Iterable[Row]) -> str:
    """The versions of NCCL that rows name, nothing where they name none."""
    return ", ".join(sorted({row.version.removeprefix("dir") for row in rows} - {""}))


def table(rows: Iterable[Row]) -> list[str]:
    """Every source of rows as lines of the report."""
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.source.partition(":")[0], row.system, row.role].append(row)
    lines = [
        "## Sources",
        "",
        f"Public repositories, at these commits, {READ}. Rows whose GPU or network is not named are left out.",
        "",
    ]
    lines += ["| repository | files | system | NCCL | rows | |", "|---|---|---|---|---|---|"]
    for (repository, system, role), own in sorted(found.items()):
        use = "fitted" if role == "fit" else "sanity"
        cells = [_short(repository), _files(own), system, versions(own) or "not stated", str(len(own)), use]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _short(repository: str) -> str:
    name, _, commit = repository.partition("@")
    return f"{name}@{commit[:COMMIT_DIGITS]}"


def _files(rows: Iterable[Row]) -> str:
    """The path of rows, or the folder that they share; all of them where they share none."""
    paths = sorted({row.source.partition(":")[2] for row in rows})
    shared = commonpath(paths)
    return shared if len(paths) == 1 else f"{shared}/..." if shared else ", ".join(paths)
