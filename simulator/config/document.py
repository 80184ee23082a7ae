"""Documents: plain data with the file, line and column of each value, read from YAML and overlaid on one another.

PyYAML finds the structure. The scalars are resolved here, so that `no` is a word, `1e9` a number and `12:30` neither a number nor
a duration. Duplicate keys are refused and nothing is executed. Every value keeps its file, line and column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..errors import Fault, UserError, nearest, shown
from ..files import decoded, read_bounded
from . import catalog

START = "it should hold keys and values, such as `model: llama3-70b` in a scenario or `gpu: h100` in a cluster"
MOST_BYTES = 2**20
MOST_VALUES = 100_000
MOST_DEPTH = 50
MOST_DIGITS, MOST_DIGITS_OF_INDEX = 1000, 9
"""Largest number of digits of a whole number, and of an index of a list."""
MOST_LISTED = 6
Place = tuple[str | int, ...]
"""The place of a value in a document: the keys and indices from the root."""


def dotted(place: Place) -> str:
    """A place as users write it: `plan.tp`."""
    return ".".join(map(str, place))


def place_of(text: str) -> Place:
    """The place that users write as `perturb.0.rank`. A number is an index into a list."""
    parts = filter(None, text.split("."))
    return tuple(int(part) if part.isdecimal() and len(part) <= MOST_DIGITS_OF_INDEX else part for part in parts)


class Mark(NamedTuple):
    """A position in a file. Without a line, the mark is a setting of the command line; without a file, a value from Python."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, and the mark of every place in the data."""

    data: Any
    marks: Mapping[Place, Mark] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Document:
        """A document of values from Python, which have no place in a file."""
        return cls(dict(data), dict.fromkeys(_places(data), Mark("")))

    def mark(self, place: Place) -> Mark | None:
        """The nearest mark: of the value itself, or of the nearest mapping or list around the value."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.marks:
                return self.marks[place[:length]]
        return None

    def where(self, place: Place) -> str:
        """The nearest mark as text, for messages."""
        return str(self._origin(place) or "")

    def _origin(self, place: Place) -> Mark | None:
        """The nearest mark; for a mapping that a setting created, the setting."""
        within = (mark for at, mark in self.marks.items() if place not in self.marks and at[: len(place)] == place)
        return next(within, self.mark(place))

    def where_of_several(self, place: Place, message: str) -> str:
        """The mark of a fault between legal fields: the settings that `message` names, or the nearest mark of this place."""
        mark, words = self._origin(place), set(re.findall(r"\w+", message))
        if mark is None or not mark.line:
            return str(mark or "")
        settings = {mark: None for p, mark in self.marks.items() if p and not mark.line and mark.file and str(p[-1]) in words}
        return ", ".join(map(str, settings)) or str(mark)

    def at(self, place: Place) -> Any:
        """The value at a place, or None."""
        value = self.data
        for part in place:
            if isinstance(value, list) and isinstance(part, int):
                value = value[part] if part < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
        return value

    def under(self, place: Place) -> Document:
        """The value at a place as a separate document."""
        marks = {p[len(place) :]: mark for p, mark in self.marks.items() if p[: len(place)] == place}
        return Document(self.at(place), marks)

    def overlaid(self, over: Document, at: Place = ()) -> Document:
        """This document with `over` overlaid at a place: mappings merge, and all other values are replaced."""
        marks = {**self.marks, **{(*at, *place): mark for place, mark in over.marks.items()}}
        return Document(_assigned(self.data, at, over.data, at), marks)

    def changed(self, place: Place, value: Any, mark: Mark) -> Document:
        """This document with a new value, and the mark of that value, at a place."""
        return self.overlaid(Document(value, dict.fromkeys(_places(value), mark)), place)

    def without(self, place: Place) -> Document:
        """This document without the value at a place."""
        marks = {p: mark for p, mark in self.marks.items() if p[: len(place)] != place}
        return Document(_without(self.data, place), marks)


def _without(data: dict[str, Any], place: Place) -> dict[str, Any]:
    head, rest = str(place[0]), place[1:]
    return {key: _without(value, rest) if key == head else value for key, value in data.items() if rest or key != head}


def _places(value: Any) -> Iterator[Place]:
    """The places in a value that an overlay replaces. A mapping merges, so only the places of its entries are listed."""
    if isinstance(value, Mapping) and value:
        yield from ((key, *place) for key, inner in value.items() for place in _places(inner))
        return
    yield ()
    if isinstance(value, list):
        yield from ((i, *place) for i, inner in enumerate(value) for place in _places(inner))


def _assigned(data: Any, place: Place, value: Any, whole: Place) -> Any:
    """`data` with `value` overlaid at a place."""
    if not place:
        return _merged(data, value)
    head, rest = place[0], place[1:]
    if isinstance(data, list):
        if not isinstance(head, int) or head >= len(data):
            raise UserError(f"no {dotted(whole)}", hint=f"the list there has {len(data)} entries, counted from 0")
        return [*data[:head], _assigned(data[head], rest, value, whole), *data[head + 1 :]]
    if data is None and isinstance(head, int):
        name = dotted(whole[: len(whole) - len(place)])
        raise UserError(f"no {dotted(whole)}", hint=f"there is no list yet: write all of it, such as {name}=[...]")
    inner = _named(data)
    return {**inner, str(head): _assigned(inner.get(str(head)), rest, value, whole)}


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(over, dict):
        return over
    inner = _named(base)
    return {**inner, **{key: _merged(inner.get(key), value) for key, value in over.items()}}


def _named(data: Any) -> dict[str, Any]:
    """A mapping for writing keys into: a name becomes a mapping with that `name`, and the new keys change the named entry."""
    return data if isinstance(data, dict) else {"name": data} if isinstance(data, str) else {}


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Gives this place to all faults raised inside the `with` block that have no place yet."""
    try:
        yield
    except UserError as error:
        raise UserError(faults=[replace(fault, where=fault.where or where) for fault in error.faults]) from None


def beside(name: str, mark: Mark | None) -> str:
    """A relative path resolved beside the file that names it, or unchanged if the path exists only from the current folder."""
    if mark is None or not mark.line:
        return name
    path = str(Path(mark.file).parent / name)
    return name if catalog.is_file(name) and not catalog.is_file(path) else path


# YAML -----------------------------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_FIRST_DIGITS, _GROUP, _NOTHING = map(re.compile, (r"[-+]?[0-9]{1,3}", r"[0-9]{3}([ .].*)?", ""))
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_PLAIN, _TAG = "plain", "tag:yaml.org,2002:"
_TEXT, *_OTHERS = (f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))
_HARMLESS = {_PLAIN, _TEXT, *_OTHERS}
"""Tags that may stand before a value. These tags change nothing, except that `!!str` makes the value a text."""
_Loader: Any = type(
    "_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"resolve": lambda loader, kind, value, implicit: _PLAIN}
)
"""PyYAML's parser without the resolution of scalars into numbers, dates and booleans."""


def read(path: Path) -> Document:
    """The document of a YAML file whose root is a mapping."""
    raw = read_bounded(path, MOST_BYTES, "a scenario, or a file that one names", _neighbour)
    return parse(decoded(raw, path, "save it as YAML in UTF-8"), str(path))


def _neighbour(path: Path) -> str:
    """The hint for a missing file: a similar name, or the files in the same folder."""
    try:
        beside = {p.stem: p for p in sorted(path.parent.iterdir()) if p.suffix in (".yaml", ".yml") and p.is_file() and p != path}
    except (OSError, ValueError):
        return f"there is no folder {shown(str(path.parent))}"
    close = nearest(path.stem, beside, cutoff=0.6)
    if close:
        return f"did you mean {str(beside[close])!r}?"
    names = [p.name for p in beside.values()]
    some = names if len(names) <= MOST_LISTED else [*names[:MOST_LISTED], "..."]
    return f"that folder holds {', '.join(some) or 'no YAML file'}"


def parse(text: str, name: str) -> Document:
    """The document of YAML text whose root is a mapping; `name` stands for the file in messages."""
    strange = _UNPRINTABLE.search(text)
    if strange:
        at = strange.start()
        mark = Mark(name, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
        raise UserError(f"not text: it holds the character {strange[0]!r}", where=str(mark), hint="save it as YAML in UTF-8")
    try:
        _measure(text, name)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _not_yaml(error, text, name) from None
    if root is None:
        raise UserError("the file is empty", where=f"{name}:1:1", hint=START)
    builder = _Builder(name)
    data = builder.value(root, ())
    if builder.faults:
        raise UserError(faults=builder.faults)
    if not isinstance(data, dict):
        holds = "a list" if isinstance(data, list) else "a single value"
        raise UserError(f"the file holds {holds}, not keys and values", where=f"{name}:1:1", hint=START)
    return Document(data, builder.marks)


def _measure(text: str, name: str) -> None:
    """Raises `UserError` for text that is nested too deeply for a recursive parser."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise _too_deep(str(_mark(name, event.start_mark)))


def _too_deep(where: str) -> UserError:
    return _too_much(f"nested more than {MOST_DEPTH} deep", where)


def _too_much(message: str, where: str) -> UserError:
    return UserError(message, where=where, hint="a scenario is a few dozen lines: see workloads/scenarios")


def _mark(name: str, start: Any) -> Mark:
    return Mark(name, start.line + 1, start.column + 1)


def _not_yaml(error: yaml.YAMLError, text: str, name: str) -> UserError:
    """The error for text that is not YAML: the parser's message in plain words, with a hint."""
    mark: Any = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = str(_mark(name, mark)) if mark else name
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return UserError("not YAML: a tab in the indentation", where=where, hint="indent with spaces")
    if "nesting depth" in problem:  # libyaml since 0.2.6 refuses a thousand levels before the first event
        return _too_deep(where)
    if "another document" in problem:
        return UserError("a second document starts here", where=where, hint="one scenario to a file, without ---")
    return UserError(f"not YAML: {problem}", where=where, hint="check quotes, colons and indentation there")


def scalar(text: str) -> Any:
    """The value of a plain YAML 1.2 scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) <= MOST_DIGITS:
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return float(text) if _NUMBER.fullmatch(text) and not _INTEGER.fullmatch(text) else text


def _thousands(pairs: Sequence[tuple[yaml.Node, yaml.Node]]) -> list[str]:
    """The groups of digits after the first comma of a number with thousands separators. In a mapping in braces the comma ends the
    value, so these groups become keys without values, such as 096 in `{length: 4,096}`."""
    (_, value), *behind = pairs
    if not _plain_match(_FIRST_DIGITS, value):
        return []
    rest = takewhile(lambda pair: _plain_match(_GROUP, pair[0]) and _plain_match(_NOTHING, pair[1]), behind)
    return [key.value for key, _ in rest]


def _plain_match(pattern: re.Pattern[str], node: yaml.Node) -> bool:
    """Whether a node is a scalar without quotes that a pattern matches."""
    return isinstance(node, yaml.ScalarNode) and not node.style and bool(pattern.fullmatch(node.value))


class _Builder:
    """Builds data from YAML nodes, and notes the place of every value and every fault."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.marks: dict[Place, Mark] = {}
        self.faults: list[Fault] = []
        self.values = 0

    def value(self, node: yaml.Node, place: Place) -> Any:
        """The data of a node."""
        mark = self.marks[place] = _mark(self.name, node.start_mark)
        self.values += 1
        if self.values > MOST_VALUES:
            raise _too_much(f"more than {MOST_VALUES:,} values, counting each alias in full", str(mark))
        if len(place) > MOST_DEPTH:
            raise _too_much("an alias of what it stands in", str(mark))
        if node.tag not in _HARMLESS:
            tag = node.tag.replace(_TAG, "!!")
            self._fault(f"the tag {shown(tag)} is not allowed", mark, "write plain values: nothing here is run")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        return node.value if node.tag == _TEXT or getattr(node, "style", None) else scalar(node.value)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> Mapping[str, Any]:
        data: dict[str, Any] = {}
        pairs = iter(enumerate(node.value))
        for number, (key_node, value_node) in pairs:
            where, key = _mark(self.name, key_node.start_mark), key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault("a list or a mapping cannot be a key", where)
            elif not key or key == "<<":
                hint = "name a file to start from in `extends:`, or write the keys out" if key else ""
                self._fault(f"{shown(key)} cannot be a key", where, hint)
            elif key in data:
                first = self.marks[(*place, key)].line
                self._fault(f"{shown(key)} occurs twice: here and at line {first}", where, "remove one of the two")
            else:
                data[key] = self.value(value_node, (*place, key))
                self.marks[(*place, key)] = where
                if groups := _thousands(node.value[number:]) if node.flow_style else []:
                    said, digits = (sign.join((value_node.value, *groups)) for sign in (",", ""))
                    hint = f"numbers are written without thousands separators: {digits}"
                    at = _mark(self.name, value_node.start_mark)
                    self._fault(f"{shown(said)} is not a number: the comma ends the value of {shown(key)}", at, hint)
                    list(islice(pairs, len(groups)))  # these groups of digits are not keys
        return data

    def _fault(self, message: str, where: Mark, hint: str = "") -> None:
        self.faults.append(Fault(message, hint, str(where)))
