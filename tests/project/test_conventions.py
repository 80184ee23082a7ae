"""The conventions, read off the syntax trees. A fault names file:line and says what to do instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import pytest

from . import size
from .source import ROOT, Module, modules, project_files, refuse

Rule = Callable[[Module], Iterable[str]]

THOUSANDS = {float(1000**power) for power in range(1, 8)} | {float(f"1e-{3 * power}") for power in range(1, 8)}
FREE = re.compile(r"_?(MOST|LEAST)_\w+|\w*TOLERANCE")
TRAINING = re.compile(
    r"(layer|stage|chunk|microbatch|forward|backward|gradient|optimi[sz]er|expert|tensor|pipeline|model)s?", re.IGNORECASE
)
MUTATORS = re.compile(r"add|append(left)?|clear|discard|extend|insert|pop(item|left)?|remove|reverse|setdefault|sort|update")
SEEDED = {"BitGenerator", "Generator", "PCG64", "PCG64DXSM", "Philox", "SeedSequence"}
MAY_WRITE = {"calibrate", "cli", "commands", "config", "figures", "files", "report"}
WRITERS = {"write_text", "write_bytes", "mkdir", "touch", "unlink", "rename"}
READERS = {"read_text", "read_bytes", "loadtxt", "read_csv"}
TO_FILE_OR_BUFFER = {"savefig", "to_csv", "to_parquet"}
IN_ORDER = {"list", "tuple", "enumerate", "iter", "zip", "map", "reversed"}


@cache
def calls(module: Module) -> tuple[tuple[ast.Call, str], ...]:
    """Every call, with the dotted name of what is called."""
    return tuple((node, ast.unparse(node.func)) for node in ast.walk(module.tree) if isinstance(node, ast.Call))


def powers_of_ten(module: Module) -> Iterator[str]:
    """1e9, 10**6, and 1000 or 1_000_000 as a factor or a constant, stand in units.py only; limits and tolerances are free."""
    if module.place == "units":
        return
    for node in _unfree(module.tree):
        if isinstance(node, ast.Constant):
            large = isinstance(node.value, float) and not 0.1 <= abs(node.value) < 100  # others have no such exponent
            text = ast.get_source_segment(module.text, node) if large else None
            exponent = (text or "").lower().partition("e")[2]
            found = exponent and abs(int(exponent)) > 2
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            factors = isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv | ast.Mod)
            sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
            found = factors and any(_number(side) in THOUSANDS for side in sides)
            found = found or (isinstance(node.op, ast.Pow) and _number(sides[0]) == 10)
        else:
            found = isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _number(node.value) in THOUSANDS
        if found:
            where = f"{module.path}:{node.lineno}: {ast.unparse(node)}"
            yield f"{where}: take the constant from units.py, or convert there; call a limit MOST_..., a tolerance TOLERANCE"


def _unfree(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """All expressions and statements, but for the values of constants that are named as limits or tolerances."""
    for node in ast.iter_child_nodes(tree):
        names = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if not names or not all(FREE.fullmatch(ast.unparse(name)) for name in names):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.expr | ast.stmt))


def _number(node: ast.expr) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def words_of_training(module: Module) -> Iterator[str]:
    """The engine runs tasks on streams: no name, comment or docstring of it speaks of training. LLVM has words of its own."""
    if module.place != "engine":
        return
    for number, line in enumerate(module.text.splitlines(), 1):
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", re.sub(r"\bllvm\.\w+", "", line)):
            if TRAINING.fullmatch(word):
                yield f"{module.path}:{number}: {word!r}: say it in tasks, streams, links and classes, or put it above the engine"


def state(module: Module) -> Iterator[str]:
    """What stands at the top of a module, or on a class, is never changed by a function."""
    fixed = {name.id for node in module.tree.body for name in _bound(node)}
    fixed |= {node.name for node in module.tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for function in _outermost(module.tree):
        local = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)} - {"cls"}
        local |= {name.id for name in ast.walk(function) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        for node in ast.walk(function):
            changed = _changed(node)
            if isinstance(node, ast.Global) or (changed in fixed | {"cls"} and changed not in local):
                yield (
                    f"{module.path}:{node.lineno}: {ast.unparse(node).splitlines()[0]}: changes what outlives the call:"  # type: ignore[attr-defined]
                    " return it, or pass it as an argument"
                )
    if module.place != "__init__":
        faults = [call for call, name in calls(module) if name == "globals"]
        yield from (
            f"{module.path}:{call.lineno}: globals(): only simulator/__init__.py fills itself when used" for call in faults
        )


def _outermost(tree: ast.AST) -> Iterator[size.Function]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, size.Function):
            yield node
        else:
            yield from _outermost(node)


def _bound(node: ast.AST) -> list[ast.Name]:
    """The names that a statement, or a part of one, gives a value."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)]


def _changed(node: ast.AST) -> str | None:
    """The name whose value a node changes in place: `x` in x[0] = 1, x.y += 1, del x[0], x.append(1)."""
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return _root(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and MUTATORS.fullmatch(node.func.attr):
        return _root(node.func)
    return None


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def randomness(module: Module) -> Iterator[str]:
    """A random number comes from a Generator that was passed in, or that was made from a seed that was."""
    for node in ast.walk(module.tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if {"random", "secrets", "numpy.random"} & set(names):
            yield f"{module.path}:{node.lineno}: {ast.unparse(node)}: take a numpy.random.Generator as an argument"  # type: ignore[attr-defined]
    for call, name in calls(module):
        drawn = re.fullmatch(r"(?:np|numpy)\.random\.(\w+)", name)
        seeded = drawn and (drawn[1] in SEEDED or (drawn[1] == "default_rng" and (call.args or call.keywords)))
        if drawn and not seeded:
            yield f"{module.path}:{call.lineno}: {name}(): take a numpy.random.Generator, or a seed, as an argument"


def order(module: Module) -> Iterator[str]:
    """What comes out of a set has no order: it is sorted before anything is done in turn."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.For):
            runs = [node.iter]
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            runs = [generator.iter for generator in node.generators]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IN_ORDER:
            runs = node.args
        else:
            continue
        for run in runs:
            made = isinstance(run, ast.Call) and ast.unparse(run.func) in {"set", "frozenset"}
            if made or isinstance(run, ast.Set | ast.SetComp):
                yield f"{module.path}:{run.lineno}: goes through {ast.unparse(run)}: sort it, or use dict.fromkeys"


def asserts(module: Module) -> Iterator[str]:
    """A check that matters is an error with a message and a hint; `python -O` drops an assert."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assert):
            yield f"{module.path}:{node.lineno}: assert: raise UserError for input, InvariantBroken for a bug of ours"


def writing(module: Module) -> Iterator[str]:
    """Files are written by config, calibrate, figures, report and commands only, and whole: through files.atomic."""
    may = module.place in MAY_WRITE
    atomic = module.place == "files" or (may and "import atomic" in module.text)
    say = "write through files.atomic" if may else "return the content; calibrate, commands or figures write it"
    for call, name in calls(module):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        opens = name.split(".")[-1] == "open" and name != "os.open" and any(_writes(a) for a in _arguments(call))
        if ((opens or method in WRITERS) and not atomic) or (method in TO_FILE_OR_BUFFER and not may):
            yield f"{module.path}:{call.lineno}: {name}(): {say}"


def reading(module: Module) -> Iterator[str]:
    """Files are read through files.read_bounded and files.read_unzipped only: so no file is larger than its reader can bear."""
    if module.place == "files":
        return
    for call, name in calls(module):
        method = name.split(".")[-1]
        opens = method in ("open", "fdopen") and name != "os.open" and not any(_writes(a) for a in _arguments(call))
        if opens or method in READERS or name in ("gzip.decompress", "zlib.decompress"):
            yield f"{module.path}:{call.lineno}: {name}(): read through files.read_bounded"


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]


def _writes(argument: ast.expr) -> bool:
    value = argument.value if isinstance(argument, ast.Constant) else None
    return isinstance(value, str) and re.fullmatch(r"[rwaxbt+]*[wax+][rwaxbt+]*", value) is not None


def budgets(module: Module) -> Iterator[str]:
    """Files, functions and classes stay readable, and the engine's heart stays what it is."""
    most = size.DES_LINES if module.path == "simulator/engine/des.py" else size.FILE_LINES
    if (length := size.file_lines(module)) > most:
        yield f"{module.path}:{most}: the file has {length} lines, at most {most}: split it by what it knows"
    for node in [*size.functions(module), *size.classes(module)]:
        most = size.CLASS_LINES if isinstance(node, ast.ClassDef) else size.FUNCTION_LINES
        if (length := size.lines(node)) > most:
            yield f"{module.path}:{node.lineno}: {node.name} has {length} lines, at most {most}: name its parts"
    for function in size.functions(module):
        if not any("command(" in ast.unparse(decorator) for decorator in function.decorator_list):
            yield from _arity(module, function)


def _arity(module: Module, function: size.Function) -> Iterator[str]:
    """Too many arguments. The functions of commands are exempt: theirs are the options."""
    taken = [a.arg for a in [*function.args.posonlyargs, *function.args.args] if a.arg not in ("self", "cls")]
    where = f"{module.path}:{function.lineno}: {function.name} takes"
    if len(taken) > size.POSITIONAL:
        yield f"{where} {len(taken)} positional arguments, at most {size.POSITIONAL}: group what belongs together in a dataclass"
    if len(function.args.kwonlyargs) > size.KEYWORD_ONLY:
        yield f"{where} {len(function.args.kwonlyargs)} keywords, at most {size.KEYWORD_ONLY}: group them in a dataclass"


def opening(module: Module) -> Iterator[str]:
    """A module opens with its idea."""
    if module.tree.body and not ast.get_docstring(module.tree):
        yield f"{module.path}:1: no docstring: open with the idea, and its reference if it has one"


RULES: tuple[Rule, ...] = (
    powers_of_ten,
    words_of_training,
    state,
    randomness,
    order,
    asserts,
    writing,
    reading,
    budgets,
    opening,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_conventions(rule: Rule) -> None:
    faults = [fault for module in modules() for fault in rule(module)]
    refuse(faults)


def test_nine_functions_in_ten_are_short() -> None:
    found = size.p90([size.lines(node) for module in modules() for node in size.functions(module)])
    assert found <= size.FUNCTION_LINES_P90, "`make size` lists the longest: name their steps"


def test_lines_of_the_page_are_no_longer_than_those_of_modules() -> None:
    """Ruff, which looks at the others, reads neither scripts nor style sheets."""
    (longest,) = map(int, re.findall(r"^line-length = (\d+)$", (ROOT / ".ruff.toml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = [file for file in project_files() if file.suffix in (".js", ".css")]
    assert pages
    lines = ((file, line) for file in pages for line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1))
    assert not [f"{file.name}:{number}" for file, (number, line) in lines if len(line) > longest]


def test_no_file_is_large() -> None:
    """Version control keeps every version of every file for good, also of one that was added by mistake."""
    large = ((path, (ROOT / path).stat().st_size) for path in project_files())
    refuse(f"{path}: {count:,} bytes, at most {size.FILE_BYTES:,}" for path, count in large if count > size.FILE_BYTES)


def test_no_file_speaks_of_one_machine() -> None:
    """No absolute path of somebody's machine, and no package registry by name, in any file of the project."""
    path = re.compile(r"(?<![\w.\-~}>])/(?:work|root|home|Users)/")
    host = re.compile(r"\b(?:pypi|pythonhosted|anaconda|npmjs|crates)\.(?:org|com|io)\b")
    faults = []
    for file in project_files():
        data = (ROOT / file).read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for found in path.findall(line) + host.findall(line):
                faults.append(
                    f"{file}:{number}: {found}: write a path relative to the project; leave the registry to pip's settings"
                )
    refuse(faults)


CURRENT = "simulator/calibrate/x.py"
BROKEN: list[tuple[Rule, str, str]] = [
    (powers_of_ten, CURRENT, "x = y * 1e9"),
    (powers_of_ten, CURRENT, "x = 2.5e-6"),
    (powers_of_ten, CURRENT, "x = y / 10**6"),
    (powers_of_ten, CURRENT, "x = y * 1_000_000"),
    (powers_of_ten, CURRENT, "x = 1000.0 * y"),
    (powers_of_ten, CURRENT, "x /= 1000"),
    (powers_of_ten, CURRENT, "NS = 1_000_000_000"),
    (words_of_training, "simulator/engine/x.py", "# the pipeline"),
    (words_of_training, "simulator/engine/x.py", "n_layers = 1"),
    (words_of_training, "simulator/engine/x.py", "class CostModel: ..."),
    (state, CURRENT, "seen = {}\ndef f(x):\n    seen[x] = 1"),
    (state, CURRENT, "seen: list[int] = []\ndef f(x):\n    seen.append(x)"),
    (state, CURRENT, "n = 0\ndef f():\n    global n\n    n = 1"),
    (state, CURRENT, "class A:\n    n = 0\n    def f(self):\n        A.n += 1"),
    (state, CURRENT, "class A:\n    @classmethod\n    def f(cls):\n        cls.n = 1"),
    (state, CURRENT, "def f():\n    globals()['x'] = 1"),
    (randomness, CURRENT, "import random"),
    (randomness, CURRENT, "import numpy as np\nx = np.random.rand(3)"),
    (randomness, CURRENT, "import numpy as np\nrng = np.random.default_rng()"),
    (order, CURRENT, "for x in set(y): ..."),
    (order, CURRENT, "z = [x for x in {1, 2}]"),
    (order, CURRENT, "z = list({x for x in y})"),
    (asserts, CURRENT, "assert x"),
    (writing, CURRENT, "open('x', 'w')"),
    (writing, CURRENT, "path.open(mode='ab')"),
    (writing, "simulator/metrics/x.py", "path.write_text('')"),
    (writing, "simulator/metrics/x.py", "table.to_csv(path)"),
    (writing, "simulator/metrics/x.py", "from ..files import atomic\npath.write_text('')"),
    (reading, CURRENT, "path.read_bytes()"),
    (reading, CURRENT, "open('a.txt')"),
    (reading, CURRENT, "gzip.open(path)"),
    (reading, CURRENT, "gzip.decompress(raw)"),
    (budgets, CURRENT, "x = 1\n" * 401),
    (budgets, "simulator/engine/des.py", "x = 1\n" * 201),
    (budgets, CURRENT, "def f():\n" + "    x = 1\n" * 60),
    (budgets, CURRENT, "class A:\n" + "    x = 1\n" * 200),
    (budgets, CURRENT, "def f(a, b, c, d, e, f, g): ..."),
    (budgets, CURRENT, f"def f(*, {', '.join(f'a{i}' for i in range(11))}): ..."),
    (opening, CURRENT, "x = 1"),
]
KEPT: list[tuple[Rule, str, str]] = [
    (powers_of_ten, CURRENT, "MOST_EVENTS = 1_000_000\nTOLERANCE = 1e-9\nx = 1e2 * y\nz = f(1000)\nw = 0x1E9"),
    (powers_of_ten, "simulator/units.py", "GB = 10**9"),
    (words_of_training, "simulator/engine/x.py", "# straightforward: a task remodelled"),
    (words_of_training, CURRENT, "layers = 1"),
    (state, CURRENT, "table = {}\ndef f(table):\n    table[0] = 1"),
    (state, CURRENT, "table = {}\ntable[0] = 1\ndef f():\n    x = dict(table)\n    x[0] = 1"),
    (state, CURRENT, "class A:\n    def f(self):\n        self.n = 1"),
    (randomness, CURRENT, "import numpy as np\nrng = np.random.default_rng(seed)"),
    (order, CURRENT, "for x in sorted(set(y)): ..."),
    (writing, CURRENT, "open('x')\npath.open('rb')\nfrom ..files import atomic\nopen(t, 'w')"),
    (writing, "simulator/figures/x.py", "figure.savefig(buffer)"),
    (reading, CURRENT, "open('x', 'w')\nread_bounded(path, MOST_BYTES, 'a table')"),
    (budgets, "simulator/commands/x.py", "@click.command('x')\ndef command(a, b, c, d, e, f, g): ..."),
    (opening, CURRENT, ""),
]


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_rule_is_seen(rule: Rule, path: str, text: str) -> None:
    faults = list(rule(Module.of(path, text)))
    assert faults
    assert all(re.match(rf"{re.escape(path)}:\d+: .*: ", fault) for fault in faults)


@pytest.mark.parametrize(("rule", "path", "text"), KEPT, ids=lambda value: getattr(value, "__name__", None))
def test_a_kept_rule_is_silent(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Module.of(path, text)))
