"""Imports go down the layers only, wherever they stand: at the top, in a function, or for the type checker alone."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import networkx as nx
import pytest

from .source import Module, modules, refuse

LAYERS = (
    ("escape",),
    ("errors",),
    ("units", "kernels", "files", "hashing", "isotonic", "frozen", "bounded_cache", "lazy_mapping"),
    ("fields",),
    ("engine", "hardware", "workload", "program"),
    ("plan", "schedules", "collectives", "metrics", "costs"),
    ("lowering", "binding", "memory"),
    ("config",),
    ("fabrics",),
    ("simulation",),
    ("measurements",),
    ("study",),
    ("advise", "calibrate", "search", "validate"),
    ("figures", "testing"),
    ("report",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""The lowest first. Places in the same layer do not know each other."""
LAYER = {place: number for number, places in enumerate(LAYERS) for place in places}
START_UP = ("__init__", "cli", "commands")
"""Places whose functions import what they need when they need it, so that help is there at once."""
LATE = {
    (
        "simulator.simulation.choose_engine",
        "simulator.engine.compiled.event_loop",
    ): "LLVM takes a while to import, and few runs need it",
    (
        "simulator.simulation.choose_engine",
        "simulator.engine.des",
    ): "SimPy takes a while to import, and only who asks for it needs it",
    ("simulator.simulation.runnable", "simulator.simulation.jobs"): "few scenarios have several jobs",
    ("simulator.simulation.run", "simulator.simulation.network"): "a run whose links nobody asks for is there sooner",
}
"""Imports of the package inside functions elsewhere, and why."""
BY_NAME = {
    "simulator/__init__.py",
    "simulator/cli.py",
    "simulator/costs/kernels/family.py",
    "simulator/config/catalog.py",
    "simulator/config/user_code.py",
}
"""The files that may import what a name or a path says."""


class Import(NamedTuple):
    """One imported thing: where, its full dotted name, and whether it stands at the top of its module."""

    line: int
    name: str
    at_top: bool


def dotted(module: Module) -> str:
    return module.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(module: Module) -> Iterator[Import]:
    """Every import of a module, relative ones made absolute."""
    package = module.path.removesuffix(".py").split("/")[:-1]
    inside = {id(node) for f in ast.walk(module.tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(node.lineno, name, id(node) not in inside) for name in names)


def climbs(module: Module) -> Iterator[str]:
    """The imports of a module that go up, or sideways."""
    here = module.place
    for line, name, _ in imports(module):
        root, *inside = name.split(".")
        if root != "simulator" or inside == ["__version__"]:  # which the face itself defines
            continue
        there = inside[0] if inside else ""
        if there not in LAYER:
            yield f"{module.path}:{line}: imports {name}: import the module that defines it, not the package's face"
        elif there != here and LAYER[there] >= LAYER[here]:
            way = "climbs to" if LAYER[there] > LAYER[here] else "goes sideways to"
            yield (
                f"{module.path}:{line}: {here} (layer {LAYER[here]}) {way} {there} (layer {LAYER[there]}):"
                " move what both need to a lower layer, or pass it as an argument"
            )


def module_of(name: str, known: Iterable[str]) -> str | None:
    """Which of the modules that are known an imported name is, or is in."""
    parts = name.split(".")
    return next((found for end in range(len(parts), 0, -1) if (found := ".".join(parts[:end])) in known), None)


def circles(some: Iterable[Module]) -> Iterator[str]:
    """Modules that import each other in a circle, in functions and for the type checker too."""
    by_name = {dotted(module): module for module in some}
    found: nx.DiGraph[str] = nx.DiGraph()
    for here, module in by_name.items():
        for line, name, _ in imports(module):
            there = module_of(name, by_name)
            if there not in (None, here):
                found.add_edge(here, there, line=line)
    for together in sorted(sorted(names) for names in nx.strongly_connected_components(found) if len(names) > 1):
        circle = nx.find_cycle(found.subgraph(together), together[0])
        way = " -> ".join([circle[0][0], *(there for _, there in circle)])
        line = found.edges[circle[0]]["line"]
        yield f"{by_name[circle[0][0]].path}:{line}: goes round in a circle, {way}: move what they share to a module below them"


def late(module: Module) -> Iterator[str]:
    """The imports of a module from the package that stand inside functions."""
    for line, name, at_top in imports(module):
        if not at_top and name.startswith("simulator.") and not any(name.startswith(t) for h, t in LATE if h == dotted(module)):
            yield f"{module.path}:{line}: imports {name} inside a function: import it at the top"


def inner() -> list[Module]:
    """Every module but the face of the package."""
    return [module for module in modules() if module.place != "__init__"]


def test_every_place_has_a_layer() -> None:
    new = sorted({module.path for module in inner() if module.place not in LAYER})
    refuse(f"{path}:1: has no layer: give it one in tests/project/test_layers.py" for path in new)


def test_imports_go_down_only() -> None:
    refuse(fault for module in inner() for fault in climbs(module))


def test_no_modules_import_each_other_in_a_circle() -> None:
    refuse(circles(inner()))


def test_functions_import_nothing_of_the_package() -> None:
    free = [m for m in inner() if m.place not in START_UP]
    refuse(fault for module in free for fault in late(module))


def at_once(face: Module) -> Iterator[tuple[int, str]]:
    """What the face imports when it is imported: all but what only the type checker sees."""
    types = {id(i) for n in face.tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test) for i in n.body}
    kept = ast.Module([node for node in face.tree.body if not isinstance(node, ast.If) or id(node.body[0]) not in types], [])
    yield from ((line, name) for line, name, _ in imports(Module(face.path, face.text, kept)))


def test_the_face_of_the_package_imports_nothing_of_it() -> None:
    face = next(module for module in modules() if module.place == "__init__")
    faults = [
        f"{face.path}:{line}: imports {name} at once: list it in _WHERE, so that it is loaded when it is used"
        for line, name in at_once(face)
        if name.startswith("simulator.")
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
        ("escape.py", "from .errors import UserError"),
        ("commands/x.py", "from ..cli import main"),
        ("config/scenario.py", "def f():\n    from ..simulation.run import Run"),
        ("config/scenario.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..simulation.run import Run"),
        ("config/load.py", "from ..fabrics import policy"),
        ("fabrics/policy.py", "import simulator.simulation.simulate"),
        ("simulation/result.py", "from ..study.step_views import memory"),
        ("measurements/x.py", "from ..calibrate import fit_profile"),
        ("calibrate/x.py", "from ..validate.report import validate"),
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
        ("simulation/x.py", "from ..lowering.lower import lower\nfrom ..config import catalog"),
        ("fabrics/policy.py", "from ..config.fabric_files import load"),
        ("validate/kernels.py", "from ..measurements.kernel_table import probe_of"),
        ("commands/x.py", "from ..figures.gantt import gantt"),
        ("__main__.py", "from .cli import main"),
    ],
)
def test_a_descent_is_no_climb(path: str, text: str) -> None:
    assert not list(climbs(Module.of(f"simulator/{path}", text)))


@pytest.mark.parametrize("text", ["def f():\n    from ..units import GB", "class A:\n  def f(self):\n    from . import task"])
def test_an_import_inside_a_function_is_seen(text: str) -> None:
    assert list(late(Module.of("simulator/engine/x.py", text)))


ONE, OTHER = "config/one.py", "config/other.py"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("from .other import a", "from .one import b"),
        ("from . import other", "def f():\n    from . import one"),
        ("def f():\n    import simulator.config.other", "from simulator.config.one import b"),
    ],
)
def test_a_circle_is_seen(one: str, other: str) -> None:
    pair = [Module.of(f"simulator/{path}", text) for path, text in ((ONE, one), (OTHER, other))]
    (fault,) = circles(pair)
    assert "simulator.config.one -> simulator.config.other -> simulator.config.one" in fault


def test_a_longer_circle_is_seen() -> None:
    names = ("a", "b", "c", "d")
    texts = [f"from .{name} import x" for name in (*names[1:], names[0])]
    assert list(circles(Module.of(f"simulator/config/{name}.py", text) for name, text in zip(names, texts, strict=True)))


def test_a_circle_for_types_is_seen() -> None:
    other = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import b"
    pair = [Module.of(f"simulator/{path}", text) for path, text in ((ONE, "from .other import a"), (OTHER, other))]
    assert list(circles(pair))


def test_one_way_is_no_circle() -> None:
    pair = [Module.of(f"simulator/{path}", text) for path, text in ((ONE, "from .other import a"), (OTHER, "import csv"))]
    assert not list(circles(pair))


LARGEST_SHARE = 1 / 8
"""Of the code, in one folder with all that is below it."""
NAMED_BY_USERS = ("collectives", "commands", "hardware/shapes", "metrics", "schedules", "validate", "workload/blocks")
"""Folders whose files are called what users type: there a name may be that of a module elsewhere."""


def test_no_folder_holds_more_than_an_eighth_of_the_code() -> None:
    lines: Counter[str] = Counter()
    for module in modules():
        folders = module.path.split("/")[1:-1]
        lines.update({"/".join(folders[: end + 1]): module.text.count("\n") for end in range(len(folders))})
    most = LARGEST_SHARE * sum(module.text.count("\n") for module in modules())
    refuse(f"simulator/{folder}/: {n:,} lines of at most {most:,.0f}: split it" for folder, n in lines.items() if n > most)


def test_no_two_modules_have_one_name() -> None:
    where: dict[str, list[str]] = {}
    for module in modules():
        folder, _, name = module.path.removeprefix("simulator/").rpartition("/")
        if folder not in NAMED_BY_USERS and not name.startswith("__"):
            where.setdefault(name, []).append(module.path)
    refuse(f"{paths[0]}:1: {', '.join(paths[1:])} has the same name" for paths in where.values() if len(paths) > 1)
