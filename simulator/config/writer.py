"""Writing dataclasses as YAML, by the annotations that the reader checks: reading the text gives the same values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .. import escape
from ..fields import Declared, Form, specs
from ..units import GB, GIB, KIB, MIB, US_PER_S

LINE_WIDTH = 120


def yaml_lines(value: Declared) -> list[str]:
    """The fields that differ from their defaults, one or more lines each."""
    lines: list[str] = []
    for key, of, item in _written(value):
        if isinstance(item, Declared):
            lines += [f"{key}:", *(f"  {line}" for line in yaml_lines(item))]
        elif of.record:
            lines += [f"{key}:", *(f"  - {flow(one)}" for one in item)]
        else:
            lines.append(f"{key}: {_text(of, item)}")
    return lines


def scenario_lines(data: Mapping[str, Any], plan: Declared) -> list[str]:
    """The lines of a scenario file with the plain data of another scenario and a plan of its own."""
    others = {key: value for key, value in data.items() if key != "plan"}
    lines = yaml.safe_dump(others, sort_keys=False, default_flow_style=None, width=LINE_WIDTH).splitlines()
    return [*lines, *(["plan:", *(f"  {line}" for line in yaml_lines(plan))] if yaml_lines(plan) else [])]


def flow(value: Declared) -> str:
    """A dataclass as one mapping in braces, in which each list starts on a new line."""
    parts = ((f"{key}: {_text(of, item)}", isinstance(item, tuple)) for key, of, item in _written(value))
    joined = "".join(f",\n     {part}" if is_list else f", {part}" for part, is_list in parts)
    return f"{{{joined.removeprefix(', ')}}}"


def _written(value: Declared) -> Iterator[tuple[str, Form, Any]]:
    """The keys of the fields that a file states, with their values."""
    stated: set[str] = set()
    for spec in specs(type(value)):
        item = getattr(value, spec.name)
        if spec.key and (item != spec.default or spec.form.written.with_field in stated):
            stated.add(spec.name)
            yield spec.key, spec.form, item


def _text(form: Form, item: Any) -> str:
    """A value in the syntax of a file."""
    if isinstance(item, tuple):
        return f"[{', '.join(_text(form.members[0], one) for one in item)}]"
    if form.dimension:
        return _QUANTITIES[form.dimension.name](item)
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, float):
        return f"{item:{'.0f' if form.whole else form.written.format}}"
    free = isinstance(item, str) and not form.choices and not form.text
    return escape.yaml(item) if free else str(item)


def _rate(value: float) -> str:
    return f"{value / GB:.6g} GB/s"


def _us(value: float) -> str:
    """Text in microseconds, rounded twice: means of times often lie half way between digits, and machines would round them
    differently."""
    us = float(f"{value * US_PER_S:.9g}")
    return f"{us:.4g} us" if us < MIB else f"{us:.0f} us"


def _size(value: float) -> str:
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if round(value) % factor == 0:
            return f"{value / factor:.0f} {unit}"
    return f"{value:.0f} B"


_QUANTITIES = {"bytes": _size, "bytes per second": _rate, "seconds": _us}
