"""The folder of a survey of one GPU: its place, and its files.

`raw.csv` has a row for every measured kernel; `machine.json` describes the machine; `fit.csv` has the constants of the kernel
models that were fitted to the rows, with their errors, and the ratio of measured to predicted times of every other operator;
`profile.yaml` has the same constants for the simulator to read, if the GPU is in the catalog.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import catalog
from ..config.catalog import gpu_named
from ..errors import UserError
from ..files import atomic, read_bounded
from ..measurements.kernel_table import content

FOLDER = Path("results") / "calibration"
RAW, MACHINE, FIT, PROFILE = "raw.csv", "machine.json", "fit.csv", "profile.yaml"
DATE = r"\d{4}-\d{2}-\d{2}"
LEFT, SUGGESTED = "left", "suggested"
"""Keys of machine.json: the number of kernels not measured yet, and options of a run that the measurements suggest."""


def folder(out: str | None, gpu: str, date: str, root: Path = FOLDER) -> Path:
    """The folder that a survey writes: the named folder; otherwise the newest folder of this GPU, if incomplete; otherwise a new
    folder. The name is that of the GPU in the catalog, if listed there."""
    if out:
        return Path(out)
    name = in_catalog(gpu) or catalog.plain(gpu).replace(" ", "-").replace("/", "-")
    paths = root.iterdir() if root.is_dir() else ()
    own = sorted(path for path in paths if path.is_dir() and re.fullmatch(rf"{re.escape(name)}-{DATE}", path.name))
    return own[-1] if own and facts(own[-1]).get(LEFT) != 0 else root / f"{name}-{date}"


def in_catalog(gpu: str) -> str | None:
    """The catalog's name of a GPU; None if the catalog lacks the GPU."""
    with suppress(UserError):
        return gpu_named(gpu)
    return None


def rows_in(where: Path) -> int:
    """The number of rows in the table of a folder."""
    return max(0, content(where / RAW).count(b"\n") - 1)


def facts(where: Path) -> dict[str, Any]:
    """The contents of machine.json; empty if the file does not hold a mapping."""
    with suppress(UserError, ValueError):
        found = json.loads(read_bounded(where / MACHINE, catalog.MOST_BYTES, "a description of a machine"))
        return found if isinstance(found, dict) else {}
    return {}


def write_facts(where: Path, facts: dict[str, Any], name: str = MACHINE) -> None:
    """Writes the description of a machine."""
    write(where / name, json.dumps(facts, indent=1) + "\n")


def write(path: Path, text: str) -> None:
    """Writes a file of the folder."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
