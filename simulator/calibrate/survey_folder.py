"""The folder of a survey of one GPU: where it is, and what stands in its files.

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
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
LEFT, SUGGESTED = "left", "suggested"
"""In machine.json: how many kernels wait for more time, and options of a run that the measurements suggest."""


def folder(out: str | None, gpu: str, date: str, root: Path = FOLDER) -> Path:
    """The folder that a survey writes: the named one; else the newest of this GPU that is not complete; else a new one."""
    if out:
        return Path(out)
    name = folder_name(gpu)
    paths = root.iterdir() if root.is_dir() else ()
    days = sorted(path.name[len(name) + 1 :] for path in paths if path.is_dir() and path.name.startswith(f"{name}-"))
    days = [day for day in days if DATE.fullmatch(day)]
    newest = root / f"{name}-{days[-1]}" if days else None
    return newest if newest and facts(newest).get(LEFT) != 0 else root / f"{name}-{date}"


def folder_name(gpu: str) -> str:
    """A GPU's name for a folder: that of the catalog, if it is there."""
    try:
        return gpu_named(gpu)
    except UserError:
        return catalog.plain(gpu).replace(" ", "-").replace("/", "-")


def rows_in(where: Path) -> int:
    """How many rows a folder holds."""
    return max(0, content(where / RAW).count(b"\n") - 1)


def facts(where: Path) -> dict[str, Any]:
    """What machine.json says; nothing if it holds something else."""
    with suppress(UserError, ValueError):
        found = json.loads(read_bounded(where / MACHINE, catalog.MOST_BYTES, "a description of a machine"))
        return found if isinstance(found, dict) else {}
    return {}


def write_facts(where: Path, facts: dict[str, Any]) -> None:
    """Writes machine.json."""
    with atomic(where / MACHINE) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
