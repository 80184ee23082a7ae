"""Imports go down the floors only, wherever they stand: at the top, in a function, or for the type checker alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import networkx as nx
import pytest

from .source import ROOT, Module, modules, refuse

FLOORS = (
    ("units", "errors", "escape", "fields", "kernels", "files", "hashing"),
    ("engine", "hardware", "workload", "program"),
    ("plan", "schedules", "collectives", "costs", "metrics"),
    ("lowering", "binding", "memory"),
    ("study",),
    ("figures", "report", "testing"),
    ("commands", "cli", "__main__"),
)
"""Floor 0 first. Places on the same floor do not know each other, but for the steps of `WITHIN`."""
WITHIN = {
    ("units", "errors"),
    ("errors", "escape"),
    ("fields", "errors"),
    ("fields", "units"),
    ("kernels", "errors"),
    ("files", "errors"),
    ("__main__", "cli"),
    ("cli", "commands"),
}
FLOOR = {place: number for number, places in enumerate(FLOORS) for place in places}
STUDY = (
    ("effort", "json_text"),
    ("engines", "evaluate", "explain_deadlock", "flows", "outside", "run_options", "tables", "torch_csv"),
    ("catalog", "compare_schedules"),
    ("documents",),
    ("gpus", "links"),
    ("scenarios",),
    ("assemble", "calibrate", "collective"),
    ("fits", "network", "steady_state", "validate"),
    ("runs",),
    ("simulate",),
    ("jobs",),
)
"""The floors within `study`, of its packages and of the modules beside them; what only the type checker sees may go up."""
STUDY_FLOOR = {place: number for number, places in enumerate(STUDY) for place in places}
FACES = {
    (
        "simulator.study.scenarios.scenario",
        "simulator.study.simulate",
    ): "`Scenario.simulate`: users run what they load",
    ("simulator.study.scenarios.tenancy", "simulator.study.jobs"): "`Tenancy.simulate` and `.shared`: so too several jobs",
}
"""Imports within `study` that go up all the same, inside methods that users call, and why."""
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


def module_of(name: str, known: Iterable[str]) -> str | None:
    """Which of the modules that are known an imported name is, or is in."""
    parts = name.split(".")
    return next((found for end in range(len(parts), 0, -1) if (found := ".".join(parts[:end])) in known), None)


def dotted(module: Module) -> str:
    return module.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def climbs_in_study(module: Module) -> Iterator[str]:
    """The imports of a module of `study` that go up its own floors, or sideways."""
    here = dotted(module).split(".")[2]
    for line, name, typing_only in imports(module):
        there = (*name.split("."), "", "")[2]
        if typing_only or not name.startswith("simulator.study.") or there == here or is_face(module, name):
            continue
        if here not in STUDY_FLOOR or there not in STUDY_FLOOR:
            yield f"{module.path}:{line}: imports {name}: give {here} and {there} a floor in tests/test_floors.py"
        elif STUDY_FLOOR[there] >= STUDY_FLOOR[here]:
            way = "climbs to" if STUDY_FLOOR[there] > STUDY_FLOOR[here] else "goes sideways to"
            yield (
                f"{module.path}:{line}: study/{here} (floor {STUDY_FLOOR[here]}) {way} {there} (floor {STUDY_FLOOR[there]}):"
                " move what both need to a lower floor, or pass it as an argument"
            )


def is_face(module: Module, name: str) -> bool:
    return any(dotted(module) == here and module_of(name, [there]) for here, there in FACES)


def circles(some: Iterable[Module]) -> Iterator[str]:
    """Modules that import each other in a circle, in functions or not; the faces and what only the type checker sees apart."""
    by_name = {dotted(module): module for module in some}
    found: nx.DiGraph[str] = nx.DiGraph()
    for here, module in by_name.items():
        for line, name, typing_only in imports(module):
            there = module_of(name, by_name)
            if there not in (None, here) and not typing_only and not is_face(module, name):
                found.add_edge(here, there, line=line)
    for together in sorted(sorted(names) for names in nx.strongly_connected_components(found) if len(names) > 1):
        circle = nx.find_cycle(found.subgraph(together), together[0])
        way = " -> ".join([circle[0][0], *(there for _, there in circle)])
        line = found.edges[circle[0]]["line"]
        yield f"{by_name[circle[0][0]].path}:{line}: goes round in a circle, {way}: move what they share to a module below them"


def study() -> list[Module]:
    return [module for module in modules() if module.place == "study" and module.path != "simulator/study/__init__.py"]


def test_every_place_has_a_floor() -> None:
    entries = [path for path in (ROOT / "simulator").iterdir() if path.suffix == ".py" or any(path.glob("*.py"))]
    new = sorted(path.relative_to(ROOT).as_posix() for path in entries if path.stem not in {"__init__", *FLOOR})
    refuse(f"{path}:1: has no floor: give it one in tests/test_floors.py" for path in new)


def test_imports_go_down_only() -> None:
    faults = [fault for module in modules() if module.place != "__init__" for fault in climbs(module)]
    refuse(faults)


def test_every_place_in_study_has_a_floor() -> None:
    entries = [path for path in (ROOT / "simulator/study").iterdir() if path.suffix == ".py" or any(path.glob("*.py"))]
    there = {path.stem for path in entries} - {"__init__"}
    refuse(
        f"simulator/study/{name}:1: has, or should have, a floor in tests/test_floors.py"
        for name in sorted(there ^ {*STUDY_FLOOR})
    )


def test_imports_in_study_go_down_only() -> None:
    refuse(fault for module in study() for fault in climbs_in_study(module))


def test_no_modules_of_study_import_each_other_in_a_circle() -> None:
    refuse(circles(study()))


@pytest.mark.parametrize(("here", "there"), FACES)
def test_a_face_is_in_a_method(here: str, there: str) -> None:
    """It is there, and loads nothing before it is called."""
    module = next(module for module in study() if dotted(module) == here)
    at_once = {node.lineno for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    lines = [line for line, name, typing_only in imports(module) if not typing_only and module_of(name, [there])]
    assert lines
    assert not at_once & {*lines}


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


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("gpus/x.py", "from ..scenarios.api import cluster"),
        ("gpus/x.py", "def f():\n    from ..scenarios import api"),
        ("gpus/x.py", "from ..links import fabrics"),
        ("documents/x.py", "from .. import simulate"),
        ("catalog.py", "from . import documents"),
        ("links/x.py", "import simulator.study.assemble"),
        ("scenarios/load.py", "def f():\n    from ..simulate import simulate_scenario"),
        ("scenarios/scenario.py", "def f():\n    from ..runs.run import Run"),
        ("gpus/x.py", "from .. import nowhere"),
        ("nowhere.py", "from . import catalog"),
    ],
)
def test_a_climb_in_study_is_seen(path: str, text: str) -> None:
    assert list(climbs_in_study(Module.of(f"simulator/study/{path}", text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("gpus/x.py", "from .. import catalog\nfrom ..documents.source import read\nfrom .names import named"),
        ("gpus/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..scenarios.api import cluster"),
        ("gpus/x.py", "from ...errors import UserError\nimport numpy as np"),
        ("scenarios/scenario.py", "def f():\n    from ..simulate import simulate_scenario"),
        ("jobs.py", "from .simulate import simulate_scenario"),
    ],
)
def test_a_descent_in_study_is_no_climb(path: str, text: str) -> None:
    assert not list(climbs_in_study(Module.of(f"simulator/study/{path}", text)))


ONE, OTHER = "gpus/one.py", "gpus/other.py"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("from .other import a", "from .one import b"),
        ("from . import other", "def f():\n    from . import one"),
        ("def f():\n    import simulator.study.gpus.other", "from simulator.study.gpus.one import b"),
    ],
)
def test_a_circle_is_seen(one: str, other: str) -> None:
    pair = [Module.of(f"simulator/study/{path}", text) for path, text in ((ONE, one), (OTHER, other))]
    (fault,) = circles(pair)
    assert "simulator.study.gpus.one -> simulator.study.gpus.other -> simulator.study.gpus.one" in fault


def test_a_longer_circle_is_seen() -> None:
    names = ("a", "b", "c", "d")
    texts = [f"from .{name} import x" for name in (*names[1:], names[0])]
    assert list(circles(Module.of(f"simulator/study/gpus/{name}.py", text) for name, text in zip(names, texts, strict=True)))


@pytest.mark.parametrize("other", ["import csv", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import b"])
def test_one_way_is_no_circle(other: str) -> None:
    pair = [Module.of(f"simulator/study/{path}", text) for path, text in ((ONE, "from .other import a"), (OTHER, other))]
    assert not list(circles(pair))
