"""YAML as people mean it: values with the place they came from, YAML 1.2 scalars, duplicate keys refused, nothing executed.

PyYAML finds the structure; the scalars are resolved here, so that `no` is a word, `1e9` a number and `12:30` neither a
number nor a duration. Every value keeps its file, line and column for the error messages that may come later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import Fault, UserError, did_you_mean

Place = tuple[str | int, ...]
"""Where a value stands in a document: the keys and indices from the root."""

MOST_NODES = 200_000
MOST_BYTES = 20_000_000

_INTEGER = re.compile(r"[-+]?\d+|0x[0-9a-fA-F]+|0o[0-7]+")
_NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
_SPECIAL = {"null": None, "~": None, "": None, "true": True, "false": False, ".nan": float("nan"), ".inf": float("inf")}


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and for every place in it a `file:line:column`."""

    data: dict[str, Any]
    marks: Mapping[Place, str] = field(default_factory=dict)

    def where(self, place: Place) -> str:
        """The nearest mark: of the value itself, or of what holds it."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.marks:
                return self.marks[place[:length]]
        return ""

    def overlaid(self, other: Document, at: Place = ()) -> Document:
        """This document with `other` written over it at a place: mappings merge, everything else is replaced."""
        marks = {**self.marks, **{(*at, *place): mark for place, mark in other.marks.items()}}
        if not at:
            return Document(_merged(self.data, other.data), marks)
        data = dict(self.data)
        inner = data.get(str(at[0]))
        data[str(at[0])] = Document(inner if isinstance(inner, dict) else {}).overlaid(Document(other.data), at[1:]).data
        return Document(data, marks)


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}
    return over


def read(path: Path) -> Document:
    """A YAML file whose root is a mapping."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise UserError(f"no file {str(path)!r}", hint=did_you_mean(path.name, beside) if beside else "") from None
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise UserError(f"{path} is too large for a scenario: {len(raw)} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError("not a text file", where=f"{path}:{line}", hint="scenarios are YAML in UTF-8") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """YAML text whose root is a mapping; `name` stands for the file in messages."""
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise UserError(f"not YAML: {reason}", where=where, hint="check quotes, colons and indentation there") from None
    except RecursionError:
        raise UserError("nested too deeply", where=name) from None
    builder = _Builder(name)
    data = builder.value(root, ()) if root is not None else {}
    if not isinstance(data, dict) and not builder.faults:
        builder.faults.append(Fault("the file holds no mapping", "it should start like `model: llama3-70b`", f"{name}:1"))
    if builder.faults:
        raise UserError("", faults=builder.faults)
    return Document(data, builder.marks)


def scalar(text: str) -> Any:
    """The value of a plain YAML 1.2 scalar."""
    if text.lower() in _SPECIAL and text in (text.lower(), text.capitalize(), text.upper()):
        return _SPECIAL[text.lower()]
    if text in ("-.inf", "+.inf"):
        return float(text.replace(".", ""))
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text) if len(text) < 4000 else text
    return float(text) if _NUMBER.fullmatch(text) else text


class _Builder:
    """Turns nodes into data, noting where each came from and everything wrong on the way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.marks: dict[Place, str] = {}
        self.faults: list[Fault] = []
        self.nodes = 0

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.nodes += 1
        where = f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
        self.marks[place] = where
        if self.nodes > MOST_NODES or len(place) > 50:
            self._fault("too large or nested too deeply", where)
            return None
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            self._fault(f"the tag {node.tag.removeprefix('tag:yaml.org,2002:')!r} is not allowed", where, "write plain values")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        return node.value if getattr(node, "style", None) else scalar(node.value)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = f"{self.name}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or key == "<<":
                self._fault(f"a key must be a word, not {key if key else 'a list or mapping'!r}", where)
                continue
            if key in data:
                first = self.marks.get((*place, key), "").removeprefix(self.name + ":")
                self._fault(f"{key!r} stands twice: here and at line {first.split(':')[0]}", where, "remove one of the two")
                continue
            data[key] = self.value(value_node, (*place, key))
            self.marks[(*place, key)] = where
        return data

    def _fault(self, message: str, where: str, hint: str = "") -> None:
        if len(self.faults) < 20:
            self.faults.append(Fault(message, hint, where))
