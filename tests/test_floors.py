"""Imports go down the floors only, wherever they stand: at the top, in a function, or for the type checker alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from .source import ROOT, Module, modules, refuse

FLOORS = (
    ("units", "errors", "kernels", "files", "hashing"),
    ("engine", "hardware", "workload", "program"),
    ("plan", "schedules", "collectives", "costs", "metrics"),
    ("lowering", "binding", "memory"),
    ("study",),
    ("figures", "report", "testing"),
    ("commands", "cli", "__main__"),
)
"""Floor 0 first. Places on the same floor do not know each other, but for the steps of `WITHIN`."""
WITHIN = {("units", "errors"), ("kernels", "errors"), ("files", "errors"), ("__main__", "cli"), ("cli", "commands")}
FLOOR = {place: number for number, places in enumerate(FLOORS) for place in places}
BY_NAME = {"simulator/__init__.py", "simulator/cli.py", "simulator/study/catalog.py", "simulator/study/outside.py"}
"""The files that may import what a name or a path says."""


class Import(NamedTuple):
    """One imported thing: where, its full dotted name, and whether only the type checker sees it."""

    line: int
    name: str
    typing_only: bool


def imports(module: Module) -> Iterator[Import]:
    """Every import of a module, relative ones made absolute."""
    hidden = {
        id(inner)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    package = module.path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(node.lineno, name, id(node) in hidden) for name in names)


def climbs(module: Module) -> Iterator[str]:
    """The imports of a module that go up, or sideways."""
    for line, name, _ in imports(module):
        root, *inside = name.split(".")
        if root != "simulator" or inside == ["__version__"]:  # which the face itself defines
            continue
        target = inside[0] if inside else ""
        if target not in FLOOR:
            yield f"{module.path}:{line}: imports {name}: import the module that defines it, not the package's face"
        elif target == module.place or (module.place, target) in WITHIN:
            continue
        elif FLOOR[target] >= FLOOR[module.place]:
            way = "climbs to" if FLOOR[target] > FLOOR[module.place] else "goes sideways to"
            yield (
                f"{module.path}:{line}: {module.place} (floor {FLOOR[module.place]}) {way} {target} (floor {FLOOR[target]}):"
                " move what both need to a lower floor, or pass it as an argument"
            )


def test_every_place_has_a_floor() -> None:
    entries = [path for path in (ROOT / "simulator").iterdir() if path.suffix == ".py" or any(path.glob("*.py"))]
    new = sorted(path.relative_to(ROOT).as_posix() for path in entries if path.stem not in {"__init__", *FLOOR})
    refuse(f"{path}:1: has no floor: give it one in tests/test_floors.py" for path in new)


def test_imports_go_down_only() -> None:
    faults = [fault for module in modules() if module.place != "__init__" for fault in climbs(module)]
    refuse(faults)


def test_the_face_of_the_package_imports_nothing_of_it() -> None:
    face = next(module for module in modules() if module.place == "__init__")
    faults = [
        f"{face.path}:{line}: imports {name} at once: list it in _WHERE, so that it is loaded when it is used"
        for line, name, typing_only in imports(face)
        if name.startswith("simulator.") and not typing_only
    ]
    refuse(faults)


def test_only_the_reference_engine_knows_simpy() -> None:
    faults = [
        f"{module.path}:{line}: imports {name}: SimPy lives in simulator/engine/des.py only"
        for module in modules()
        for line, name, _ in imports(module)
        if name.split(".")[0] == "simpy" and module.path != "simulator/engine/des.py"
    ]
    refuse(faults)


def test_imports_by_name_are_made_by_the_catalog_and_the_shell() -> None:
    faults = [
        f"{module.path}:{node.lineno}: {ast.unparse(node.func)}(): take the object as an argument; the catalog finds it"
        for module in modules()
        if module.path not in BY_NAME
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}
    ]
    refuse(faults)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engine/x.py", "from ..plan.plan import Plan"),
        ("engine/x.py", "from .. import study"),
        ("engine/x.py", "def f():\n    from ..lowering import lower"),
        ("engine/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..study.run import Run"),
        ("binding/x.py", "from ..lowering.lower import lower"),
        ("hardware/shapes/x.py", "from ...workload.model import Model"),
        ("plan/x.py", "import simulator.metrics.mfu"),
        ("plan/x.py", "import simulator"),
        ("plan/x.py", "from simulator import simulate"),
        ("figures/x.py", "from ..report.page import page"),
        ("errors.py", "from .units import GB"),
        ("units.py", "from .kernels import Gemm"),
        ("commands/x.py", "from ..cli import main"),
    ],
)
def test_a_climb_is_seen(path: str, text: str) -> None:
    assert list(climbs(Module.of(f"simulator/{path}", text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engine/x.py", "from ..errors import UserError\nfrom .task import TaskGraph\nimport numpy as np"),
        ("hardware/shapes/x.py", "from ..cluster import Cluster\nfrom ...units import GB"),
        ("metrics/x.py", "from . import Observation"),
        ("study/x.py", "from ..lowering.lower import lower\nfrom . import catalog"),
        ("commands/x.py", "from ..figures.gantt import gantt"),
        ("__main__.py", "from .cli import main"),
    ],
)
def test_a_descent_is_no_climb(path: str, text: str) -> None:
    assert not list(climbs(Module.of(f"simulator/{path}", text)))
