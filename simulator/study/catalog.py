"""The catalog: what exists, by file name. There is no registry: to add a thing is to add its file.

Names take dashes or underscores and any case. A path to a file, or `module:name`, works wherever a name does; an object is
taken as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ..errors import UserError, did_you_mean

PACKAGE = Path(__file__).resolve().parent.parent

DATA = {
    "models": "workloads/models",
    "clusters": "topologies",
    "gpus": "topologies/gpus",
    "scenarios": "workloads/scenarios",
}
"""Kinds of things that are data: YAML files in a folder."""
CODE = {"schedules": "schedules", "shapes": "hardware/shapes", "collectives": "collectives", "metrics": "metrics"}
"""Kinds of things that are code: Python files in a folder of the package."""
SINGULAR = {"models": "model", "clusters": "cluster", "gpus": "GPU", "scenarios": "scenario"} | {kind: kind[:-1] for kind in CODE}


def folder(kind: str) -> Path:
    """Where the files of a kind are: inside the installed package, or beside it in a checkout."""
    if kind in CODE:
        return PACKAGE / CODE[kind]
    installed = PACKAGE / "_data" / DATA[kind]
    return installed if installed.is_dir() else PACKAGE.parent / DATA[kind]


def files(kind: str) -> dict[str, Path]:
    """Every name of a kind, and its file."""
    pattern = "*.py" if kind in CODE else "*.yaml"
    found = sorted(folder(kind).glob(pattern))
    return {path.stem: path for path in found if not path.stem.startswith("_")}


def plain(name: str) -> str:
    """A name without the differences that do not matter."""
    return name.strip().lower().replace("_", "-")


def find(kind: str, name: str) -> Path:
    """The file of a name, or of a path."""
    if kind in DATA and (name.endswith((".yaml", ".yml")) or "/" in name):
        return Path(name)
    known = {plain(stem): path for stem, path in files(kind).items()}
    if plain(name) not in known:
        shown = [path.stem for path in known.values()]
        raise UserError(f"no {SINGULAR[kind]} {name!r}", hint=did_you_mean(plain(name), shown))
    return known[plain(name)]


def module(kind: str, name: Any) -> Any:
    """The module of a name, the object of `module:name` or `file.py:name`, or the thing itself if it is not a name."""
    if not isinstance(name, str):
        return name
    if ":" in name:
        return _from_outside(kind, name)
    stem = find(kind, name).stem
    return importlib.import_module(f"simulator.{CODE[kind].replace('/', '.')}.{stem}")


def _from_outside(kind: str, name: str) -> Any:
    """An object of a module that is not ours. A bare function becomes a schedule that has only an order."""
    where, _, attribute = name.rpartition(":")
    found = _load(where, name)
    if not hasattr(found, attribute):
        public = [key for key in vars(found) if not key.startswith("_")]
        raise UserError(f"{where} has no {attribute!r}", hint=did_you_mean(attribute, public))
    value = getattr(found, attribute)
    return SimpleNamespace(order=value) if kind == "schedules" and not hasattr(value, "order") else value


def _load(where: str, name: str) -> ModuleType:
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            if spec is None or spec.loader is None:
                raise ImportError(f"{where} is no Python file")
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            return loaded
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(where)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"cannot import {where!r} of {name!r}: {error}", hint="write it as module:name or file.py:name"
        ) from error


def headline(path: Path) -> str:
    """What a file says that it is: the first comment of a YAML file, the first line of a module's docstring."""
    with path.open(encoding="utf-8") as lines:
        return next(lines, "").strip().strip('#"').strip()
