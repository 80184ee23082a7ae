"""Mutations of valid inputs: of bytes, and of the structure of JSON, YAML and CSV. The same generator gives the same input."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

MOST_BYTES = 200_000
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, -(10**30),
    0.5, -0.0, 1e-300, 1e300, 1e308, float("nan"), float("inf"), float("-inf"),
    "", " ", "0", "-1", "1e999", "nan", "inf", "٣", "²", "１", "9" * 50, "9" * 5000, "1_000", "0x10", "0o17", "12:30", "yes",
    "x", "a" * 3000, "\x00", "\x1b[31m", "\ud800", "模型", "../..", "/dev/null", "/dev/zero", "/", ".", "~", "*",
    "h100", "dgx-h100", "ideal", "1 us", "-1 us", "1e400 GB/s", "0 B/s", "nan GiB", "400 Gbit/s", "9x9 Gbit/s",
    "x:y", "os:system", "nope.py:f", "a.yaml", "a,b", "a>b", ">", "$x$", "=1+1", "[", "{", "!!python/object:os.system", "&a [*a]",
    [], {}, [[]], [{}], [None], [0] * 200, {"": {}}, {"name": {}}, {"name": []}, {"a": {"b": {"c": []}}}, list(range(30)),
)  # fmt: skip
TOKENS = tuple(
    text.encode("utf-8", "surrogatepass")
    for text in (
        "\x00", "\x1b[2J", "\ufeff", "\u2028", "\x85", "\r", "\n", "\t", ",", ",,,,", '"', "'", ":", ": ", "- ", "#",
        "{", "}", "[", "]", "[" * 60, "{" * 60, '{"a":' * 200, "[" * 3000, "9" * 5000, "1e999", "-1", "nan", "inf", "null",
        "&a ", "*a", "<<: ", "!!binary ", "---\n", "...", "? ", "| ", "> ", "%YAML 9.9\n", "true", "٣", "²", "\ud800",
        "\\ud800", "\\u0000", "1 us", "GB/s", "x:y", "0F0", "0B0", "99999999999F0", "(0F0;0B1)OVERLAP_F_B",
        "# nccl-tests version", "all_reduce_perf", "a" * 2000, ",\n" * 100,
    )
)  # fmt: skip


def mutated(seed: bytes, random: Random) -> bytes:
    """A valid input with something wrong, or with something else that is right."""
    zipped = seed[:2] == b"\x1f\x8b"
    content = gzip.decompress(seed) if zipped and random.random() < 0.8 else seed
    for _ in range(random.choice((1, 1, 1, 1, 2, 3, 6))):
        ways: tuple[Callable[[bytes, Random], bytes], ...] = (_bytes, _structure, _structure, _lines)
        content = random.choice(ways)(content, random)[:MOST_BYTES]
    return gzip.compress(content, mtime=0) if zipped and content[:2] != b"\x1f\x8b" else content


def _bytes(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    until = min(len(content), at + random.choice((0, 1, 1, 2, 8, 40)))
    way = random.randrange(6)
    if way == 0:
        return content[:at] + bytes([random.randrange(256)]) + content[at + 1 :]
    if way == 1:
        return content[:at] + content[until:]
    if way == 2:
        return content[:at] + random.choice(TOKENS) + content[until:]
    if way == 3:
        return content[:at] + content[at:until] * random.choice((2, 3, 50)) + content[until:]
    if way == 4:
        return content[:at]
    other = random.randrange(len(content) + 1)
    return content[:at] + content[min(at, other) : max(at, other)] + content[at:]


def _lines(content: bytes, random: Random) -> bytes:
    """Lines, or cells of a line, that change places, are missing, or are there again."""
    lines = content.split(b"\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    way = random.randrange(4)
    if way == 0:
        lines[at], lines[other] = lines[other], lines[at]
    elif way == 1:
        del lines[at]
    elif way == 2:
        lines.insert(other, lines[at])
    else:
        try:
            cells = next(csv.reader([lines[at].decode("utf-8")]), [])
        except (csv.Error, UnicodeDecodeError):
            return content
        if cells:
            cells[random.randrange(len(cells))] = str(random.choice(ODD))[:4000]
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(cells)
        lines[at] = out.getvalue().encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _structure(content: bytes, random: Random) -> bytes:
    """JSON or YAML with a value replaced, removed, wrapped, repeated or moved."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return _bytes(content, random)
    is_json = text.lstrip()[:1] in ("{", "[")
    try:
        data = json.loads(text) if is_json else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError):
        return _bytes(content, random)
    if not isinstance(data, (dict, list)):
        return _lines(content, random)
    try:
        changed = _changed(data, random)
        dumped = json.dumps(changed) if is_json else yaml.safe_dump(changed, default_flow_style=random.choice((None, True)))
        return dumped.encode("utf-8", "surrogatepass")
    except (ValueError, yaml.YAMLError, RecursionError):
        return _bytes(content, random)


def _changed(data: Any, random: Random) -> Any:
    """Plain data, changed at one place; each place is as likely as any."""
    places = list(_places(data, ()))
    place = random.choice(places)
    value = _at(data, place)
    other = _at(data, random.choice(places))
    way = random.randrange(8)
    if way < 4 or not place:
        new = random.choice(ODD)
    elif way == 4:
        new = other
    elif way == 5:
        new = [value] * random.choice((1, 2, 100))
    elif way == 6:
        new = {random.choice(("name", "a", "", "extends", "profile", "layers")): value}
    else:
        return _without(data, place)
    if place and way == 3 and isinstance(_at(data, place[:-1]), dict):
        return _with(_without(data, place), (*place[:-1], str(random.choice(ODD))[:300]), value)
    return _with(data, place, new)


def _places(data: Any, place: tuple[Any, ...]) -> Any:
    yield place
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _places(value, (*place, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _places(value, (*place, i))


def _at(data: Any, place: tuple[Any, ...]) -> Any:
    for part in place:
        data = data[part]
    return data


def _with(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    head, rest = place[0], place[1:]
    if isinstance(data, list):
        return [*data[:head], _with(data[head], rest, value), *data[head + 1 :]]
    return {**data, head: _with(data.get(head), rest, value)}


def _without(data: Any, place: tuple[Any, ...]) -> Any:
    inner = _at(data, place[:-1])
    if isinstance(inner, list):
        return _with(data, place[:-1], [value for i, value in enumerate(inner) if i != place[-1]])
    return _with(data, place[:-1], {key: value for key, value in inner.items() if key != place[-1]})
