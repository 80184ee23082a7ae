"""The project as data, for the tests of its conventions: every file by name, every module of the simulator parsed once."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Module:
    """A Python file: where it is below the root, its text, and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, text: str) -> Module:
        return cls(path, text, ast.parse(text, path))

    @property
    def place(self) -> str:
        """The top-level package or module that the file belongs to: `engine`, `units`."""
        return self.path.removeprefix("simulator/").split("/")[0].removesuffix(".py")


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file below simulator/."""
    paths = sorted((ROOT / "simulator").rglob("*.py"))
    return tuple(Module.of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is, or would be, under version control, relative to the root; without git, all but hidden and built."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        found = {Path(name) for name in listed if name and (ROOT / name).is_file()}
    else:
        found = {path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and not _is_built(path)}
    return tuple(sorted(found))


def _is_built(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(part.startswith((".", "_scratch", "__pycache__")) or part.endswith(".egg-info") for part in parts)


def refuse(faults: Iterable[str]) -> None:
    """Fails with the faults, one a line, if there are any."""
    if text := "\n".join(faults):
        pytest.fail(text, pytrace=False)


@cache
def study_script(study: str, name: str = "make") -> ModuleType:
    """A script of results/<study>/ as a module of its own name: every study has a `make`."""
    folder = ROOT / "results" / study
    spec = importlib.util.spec_from_file_location(f"results_{study}_{name}", folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module
