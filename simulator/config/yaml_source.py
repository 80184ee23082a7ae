"""YAML as people mean it: values with the place they came from, YAML 1.2 scalars, duplicate keys refused, nothing executed.

PyYAML finds the structure; the scalars are resolved here, so that `no` is a word, `1e9` a number and `12:30` neither a
number nor a duration. Every value keeps its file, line and column for the error messages that may come later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..errors import Fault, UserError, nearest, shown
from ..files import read_bounded
from .document import Document, Mark, Place

START = "it should hold keys and values, such as `model: llama3-70b` in a scenario or `gpu: h100` in a cluster"
MOST_BYTES = 2**20
MOST_VALUES = 100_000
MOST_DEPTH = 50
MOST_DIGITS = 1000
MOST_LISTED = 6

HUGGING_FACE = ("architectures", "model_type", "num_hidden_layers")
"""Keys of the config.json of a Hugging Face model: two of these, and it is such a file."""
HUGGING_FACE_FIELDS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn_hidden",
    "vocab_size": "vocab",
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
GATED = ("silu", "swiglu")

_INTEGER = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")

_STANDARD = "tag:yaml.org,2002:"
_PLAIN, _TEXT = "plain", _STANDARD + "str"
_HARMLESS = {_PLAIN, _TEXT} | {_STANDARD + name for name in ("int", "float", "bool", "null", "map", "seq")}
_Loader: Any = type(
    "_Loader",
    (getattr(yaml, "CSafeLoader", yaml.SafeLoader),),
    {"yaml_implicit_resolvers": {}, "DEFAULT_SCALAR_TAG": _PLAIN},
)
"""PyYAML's parser without its idea of what a scalar means."""


def read(path: Path) -> Document:
    """A YAML file whose root is a mapping."""
    raw = read_bounded(path, MOST_BYTES, "a scenario, or a file that one names", _neighbour)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError("not a text file", where=f"{path}:{line}", hint="save it as YAML in UTF-8") from None
    document = parse(text, str(path))
    _refuse_hugging_face(document.data, str(path))
    return document


def _refuse_hugging_face(data: Mapping[str, Any], file: str) -> None:
    """Raises `UserError` for the config.json of a Hugging Face model, and says what to write instead."""
    if sum(key in data for key in HUGGING_FACE) < 2:
        return
    kind = data.get("architectures") or [data.get("model_type")]
    name = kind[0] if isinstance(kind, list) and kind else kind
    message = f"this is the configuration of a Hugging Face model, {shown(name)}, not a file of this simulator"
    if any(key in data for key in EXPERTS):
        message += "; and it has experts: mixture-of-experts models cannot be simulated yet, only dense decoder models"
        raise UserError(message, where=f"{file}:1", hint="take a dense model: `trainsim catalog models` lists those that ship")
    fields = [f"{ours}: {data[theirs]}" for theirs, ours in HUGGING_FACE_FIELDS.items() if type(data.get(theirs)) is int]
    fields += ["gated_mlp: true"] if data.get("hidden_act") in GATED else []
    fields += ["tied_embeddings: true"] if data.get("tie_word_embeddings") is True else []
    raise UserError(message, where=f"{file}:1", hint=f"write the model as model: {{{', '.join(fields)}}}")


def _neighbour(path: Path) -> str:
    """What there is instead of a file that is missing, or that cannot be read."""
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
    """YAML text whose root is a mapping; `name` stands for the file in messages."""
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
    if not isinstance(data, dict) and not builder.faults:
        holds = "a list" if isinstance(data, list) else "a single value"
        raise UserError(f"the file holds {holds}, not keys and values", where=f"{name}:1:1", hint=START)
    if builder.faults:
        raise UserError(faults=builder.faults)
    return Document(data, builder.marks)


def _measure(text: str, name: str) -> None:
    """Refuses what is too deep for a parser that calls itself."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise _too_much(f"nested more than {MOST_DEPTH} deep", event, name)


def _too_much(message: str, at: yaml.Event | yaml.Node, name: str) -> UserError:
    return UserError(
        message, where=str(_mark(name, at.start_mark)), hint="a scenario is a few dozen lines: see workloads/scenarios"
    )


def _mark(name: str, start: Any) -> Mark:
    return Mark(name, start.line + 1, start.column + 1)


def _not_yaml(error: yaml.YAMLError, text: str, name: str) -> UserError:
    """What the parser found, in words that help."""
    mark: Any = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = str(_mark(name, mark)) if mark else name
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return UserError("not YAML: a tab in the indentation", where=where, hint="indent with spaces")
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


class _Builder:
    """Turns nodes into data, noting where each came from and everything wrong on the way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.marks: dict[Place, Mark] = {}
        self.faults: list[Fault] = []
        self.values = 0

    def value(self, node: yaml.Node, place: Place) -> Any:
        """The data of a node."""
        self.marks[place] = _mark(self.name, node.start_mark)
        self.values += 1
        if self.values > MOST_VALUES:
            raise _too_much(f"more than {MOST_VALUES:,} values, counting each alias in full", node, self.name)
        if len(place) > MOST_DEPTH:
            raise _too_much("an alias of what it stands in", node, self.name)
        if node.tag not in _HARMLESS:
            tag = node.tag.replace(_STANDARD, "!!")
            self._fault(f"the tag {shown(tag)} is not allowed", self.marks[place], "write plain values: nothing here is run")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        return node.value if node.tag == _TEXT or getattr(node, "style", None) else scalar(node.value)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> Mapping[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where, key = _mark(self.name, key_node.start_mark), key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault("a list or a mapping cannot be a key", where)
            elif not key or key == "<<":
                hint = "name a file to start from in `extends:`, or write the keys out" if key else ""
                self._fault(f"{shown(key)} cannot be a key", where, hint)
            elif key in data:
                first = self.marks[(*place, key)].line
                self._fault(f"{shown(key)} stands twice: here and at line {first}", where, "remove one of the two")
            else:
                data[key] = self.value(value_node, (*place, key))
                self.marks[(*place, key)] = where
        return data

    def _fault(self, message: str, where: Mark, hint: str = "") -> None:
        self.faults.append(Fault(message, hint, str(where)))
