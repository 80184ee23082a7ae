"""Imports go down the layers only, wherever they stand: at the top, in a function, or for the type checker alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import networkx as nx
import pytest

from .source import Module, modules, refuse

LAYERS = (
    ("escape",),
    ("errors",),
    ("units", "kernels", "files", "hashing"),
    ("fields",),
    ("engine", "hardware", "workload", "program"),
    ("plan", "schedules", "collectives", "metrics", "costs"),
    ("lowering", "binding", "memory"),
    ("config",),
    ("fabrics",),
    ("simulation",),
    ("study", "measurements"),
    ("calibrate", "validate"),
    ("figures", "report", "testing"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""The lowest first. Places in the same layer do not know each other."""
LAYER = {place: number for number, places in enumerate(LAYERS) for place in places}
BEFORE_THE_MOVE = {
    "config": "catalog outside documents scenarios json_text torch_csv "
    "gpus/gpu_files gpus/schema gpus/names gpus/fit_files gpus/kernel_fits links/fabrics links/fabric_text",
    "fabrics": "links/cluster_links links/timing links/choices links/library links/by_rounds links/uneven links/bytes_csv",
    "simulation": "simulate assemble engines explain_deadlock jobs runs network fits effort steady_state runnable",
    "measurements": "tables links/describe links/described_networks links/described_rates calibrate/table calibrate/words "
    "calibrate/nccl_tests calibrate/doubt calibrate/moved calibrate/cached calibrate/deep_gemm "
    "calibrate/kineto calibrate/trace calibrate/trace_ops calibrate/trace_names",
    "calibrate": "calibrate",
    "validate": "validate",
    "costs": "gpus/eager",
}
"""Where what is below `study/` belongs. What has moved leaves this table; whatever it does not name belongs to its folder."""
BELONGS = {f"study/{path}": place for place, paths in BEFORE_THE_MOVE.items() for path in paths.split()}
OPEN = {
    ("measurements", "study"): "the words of kernels leave study/gpus/kernel.py",
    ("measurements", "calibrate"): "traces know of timers",
}
"""Ways up that are still taken, and what ends them."""
OPEN_CIRCLES = (
    {"simulator.hardware.cluster", "simulator.hardware.shapes._inside"},
    {"simulator.workload.blocks.dense", "simulator.workload.model"},
)
"""Circles for types that are still there."""
START_UP = ("__init__", "cli", "commands")
"""Places whose functions import what they need when they need it, so that help is there at once."""
LATE = {
    ("simulator.study.engines", "simulator.engine.compiled"): "numba takes a second to import, and few runs need it",
    (
        "simulator.study.engines",
        "simulator.engine.des",
    ): "SimPy takes a while to import, and replay does without",
}
"""Imports of the package inside functions elsewhere, and why."""
OPEN_LATE = ("study/catalog", "study/documents", "study/gpus", "study/links", "study/scenarios", "study/validate", "figures")
"""Places whose functions still import from the package."""
BY_NAME = {
    "simulator/__init__.py",
    "simulator/cli.py",
    "simulator/costs/family.py",
    "simulator/study/catalog.py",
    "simulator/study/outside.py",
}
"""The files that may import what a name or a path says."""


class Import(NamedTuple):
    """One imported thing: where, its full dotted name, and whether it stands at the top of its module."""

    line: int
    name: str
    at_top: bool


def place_of(dotted: str) -> str:
    """The place that a module belongs to, given its dotted name below the package: `engine`, `units`."""
    parts = dotted.split(".")
    longest_first = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((BELONGS[path] for path in longest_first if path in BELONGS), parts[0])


def dotted(module: Module) -> str:
    return module.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def own_place(module: Module) -> str:
    return place_of(dotted(module).removeprefix("simulator").removeprefix(".") or "__init__")


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
    here = own_place(module)
    for line, name, _ in imports(module):
        root, *inside = name.split(".")
        if root != "simulator" or inside == ["__version__"]:  # which the face itself defines
            continue
        there = place_of(".".join(inside)) if inside else ""
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


def circles(some: Iterable[Module], known: Iterable[set[str]] = ()) -> Iterator[str]:
    """Modules that import each other in a circle, in functions and for the type checker too, but for those that are known."""
    by_name = {dotted(module): module for module in some}
    found: nx.DiGraph[str] = nx.DiGraph()
    for here, module in by_name.items():
        for line, name, _ in imports(module):
            there = module_of(name, by_name)
            if there not in (None, here):
                found.add_edge(here, there, line=line)
    for together in sorted(sorted(names) for names in nx.strongly_connected_components(found) if len(names) > 1):
        if set(together) in known:
            continue
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
    new = sorted({module.path for module in inner() if own_place(module) not in LAYER})
    refuse(f"{path}:1: has no layer: give it one in tests/test_floors.py" for path in new)


def test_imports_go_down_only() -> None:
    still = {f"{a} (layer {LAYER[a]}) {way} {b} " for a, b in OPEN for way in ("climbs to", "goes sideways to")}
    refuse(fault for module in inner() for fault in climbs(module) if not any(words in fault for words in still))


def test_no_modules_import_each_other_in_a_circle() -> None:
    refuse(circles(inner(), OPEN_CIRCLES))


def test_functions_import_nothing_of_the_package() -> None:
    free = [m for m in inner() if m.place not in START_UP and not m.path.removeprefix("simulator/").startswith(OPEN_LATE)]
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


def test_what_will_be_moved_is_where_it_belongs() -> None:
    """The table names nothing that is not there: what has moved leaves it."""
    there = {module.path.removeprefix("simulator/").removesuffix(".py").removesuffix("/__init__") for module in modules()}
    assert {path for path in BELONGS if path not in there} == set()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("study/gpus/names.py", "from ..simulate import simulate_scenario"),
        ("study/scenarios/scenario.py", "def f():\n    from ..runs.run import Run"),
        ("study/scenarios/scenario.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..runs.run import Run"),
        ("study/documents/x.py", "from ..links import library"),
        ("study/links/library.py", "import simulator.study.assemble"),
        ("study/runs/result.py", "from ..step_views import memory"),
        ("study/flows.py", "from .validate.report import validate"),
    ],
)
def test_a_climb_in_study_is_seen(path: str, text: str) -> None:
    assert list(climbs(Module.of(f"simulator/{path}", text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("study/gpus/names.py", "from .. import catalog\nfrom ..documents.source import read"),
        ("study/links/library.py", "from .fabrics import fabric"),
        ("study/runs/result.py", "from ..scenarios.scenario import Scenario"),
        ("study/step_views.py", "from .simulate import simulate_scenario"),
    ],
)
def test_a_descent_in_study_is_no_climb(path: str, text: str) -> None:
    assert not list(climbs(Module.of(f"simulator/{path}", text)))


@pytest.mark.parametrize("text", ["def f():\n    from ..units import GB", "class A:\n  def f(self):\n    from . import task"])
def test_an_import_inside_a_function_is_seen(text: str) -> None:
    assert list(late(Module.of("simulator/engine/x.py", text)))


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


def test_a_circle_for_types_is_seen() -> None:
    other = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import b"
    pair = [Module.of(f"simulator/study/{path}", text) for path, text in ((ONE, "from .other import a"), (OTHER, other))]
    assert list(circles(pair))


def test_one_way_is_no_circle() -> None:
    pair = [Module.of(f"simulator/study/{path}", text) for path, text in ((ONE, "from .other import a"), (OTHER, "import csv"))]
    assert not list(circles(pair))
