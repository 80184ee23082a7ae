"""`make size`: lines per place, and the longest files, functions and classes, beside their budgets."""

from __future__ import annotations

import ast
from collections import Counter

from .source import Module, modules

FILE_LINES = 400
FILE_BYTES = 1 << 20
FUNCTION_LINES = 60
FUNCTION_LINES_P90 = 30
CLASS_LINES = 200
POSITIONAL = 6
KEYWORD_ONLY = 10
DES_LINES = 200

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: Module) -> list[Function]:
    return [node for node in ast.walk(module.tree) if isinstance(node, Function)]


def classes(module: Module) -> list[ast.ClassDef]:
    return [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]


def lines(node: Function | ast.ClassDef) -> int:
    """From `def` or `class` to the last line; decorators are not counted."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def file_lines(module: Module) -> int:
    return len(module.text.splitlines())


def p90(values: list[int]) -> int:
    return sorted(values)[len(values) * 9 // 10]


def main() -> None:
    per_place = Counter[str]()
    for module in modules():
        per_place[module.place] += file_lines(module)
    for place, count in sorted(per_place.items()):
        print(f"{count:6}  {place}")
    print(f"{per_place.total():6}  all, in {len(modules())} files")
    spans = [(lines(node), f"{m.path}:{node.lineno} {node.name}") for m in modules() for node in functions(m)]
    boxes = [(lines(node), f"{m.path}:{node.lineno} {node.name}") for m in modules() for node in classes(m)]
    _longest(f"files (at most {FILE_LINES})", [(file_lines(m), m.path) for m in modules()])
    _longest(f"functions (at most {FUNCTION_LINES}; nine in ten have at most {p90([n for n, _ in spans])})", spans)
    _longest(f"classes (at most {CLASS_LINES})", boxes)


def _longest(what: str, measured: list[tuple[int, str]], count: int = 5) -> None:
    print(f"\nlongest {what}")
    for length, name in sorted(measured, reverse=True)[:count]:
        print(f"{length:6}  {name}")


if __name__ == "__main__":
    main()
