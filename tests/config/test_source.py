"""YAML as people mean it: the scalars of version 1.2, a mark for every value, and nothing that runs, loops or swells."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config.document import Document, Mark, parse, place_of, read
from simulator.errors import UserError

from .bad import BOMB

PLAIN: list[tuple[str, Any]] = [
    ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("y", "y"), ("NO", "NO"),
    ("true", True), ("False", False), ("TRUE", True), ("tRue", "tRue"),
    ("null", None), ("~", None), ("", None), ("Null", None), ("none", "none"),
    ("12", 12), ("-7", -7), ("+3", 3), ("01024", 1024), ("0x1F", 31), ("0o17", 15), ("1_024", "1_024"), ("1,024", "1,024"),
    ("1e9", 1e9), ("1E-3", 1e-3), ("6.02e+23", 6.02e23), (".5", 0.5), ("5.", 5.0), ("1e400", math.inf), ("e9", "e9"),
    (".inf", math.inf), ("-.INF", -math.inf), ("+.Inf", math.inf), ("inf", "inf"), ("nan", "nan"), ("NaN", "NaN"),
    ("12:30", "12:30"), ("1:20:45", "1:20:45"), ("2024-01-01", "2024-01-01"), ("1.2.3", "1.2.3"), ("=", "="), ("٣", "٣"),
    ("80 GiB", "80 GiB"), ("1f1b", "1f1b"), ("0x", "0x"), ("1" * 400, int("1" * 400)), ("1" * 5000, "1" * 5000),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), PLAIN)
def test_a_plain_scalar_is_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = parse(f"a: {text}\n", "x").data["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_what_is_no_number_is_one(text: str) -> None:
    assert math.isnan(parse(f"a: {text}", "x").data["a"])


@pytest.mark.parametrize("text", ["no", "12", "1e9", "true", "null", ".inf"])
@pytest.mark.parametrize("form", ["'{}'", '"{}"', "!!str {}", "|-\n  {}"])
def test_in_quotes_everything_is_text(text: str, form: str) -> None:
    assert parse(f"a: {form.format(text)}", "x").data["a"] == text


printable = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff\ufffe\uffff\x85")
keys = st.text(printable, min_size=1, max_size=6).filter(lambda key: key != "<<")
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(printable)
trees = st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(keys, trees, min_size=1, max_size=4), st.sampled_from([None, 2]))
def test_json_is_yaml(data: dict[str, Any], indent: int | None) -> None:
    assert parse(json.dumps(data, ensure_ascii=False, indent=indent), "x").data == data


TEXT = """\
model: llama3-8b
plan:
  tp: 8
  overlap: {dp: true,
            tp: false}
perturb:
  - {rank: 3, speed: 0.5}
  - rank: 4
"""


def test_every_value_knows_its_line_and_column() -> None:
    document = parse(TEXT, "s.yaml")
    lines = TEXT.splitlines()
    for place, mark in document.marks.items():
        if place and isinstance(place[-1], str):
            assert lines[mark.line - 1][mark.column - 1 :].startswith(f"{place[-1]}:")
    assert document.where(("plan", "overlap", "tp")) == "s.yaml:5:13"
    assert document.where(("perturb", 1)) == "s.yaml:8:5"
    assert document.where(("plan", "overlap", "pp")) == "s.yaml:4:3"


@pytest.mark.parametrize("prefix", ["\ufeff", "---\n", "# a remark\n", "%YAML 1.2\n---\n"])
def test_what_editors_put_in_front_is_no_harm(prefix: str) -> None:
    assert parse(prefix + TEXT, "x").data == parse(TEXT, "x").data


def test_line_ends_of_other_systems_are_no_harm() -> None:
    assert parse(TEXT.replace("\n", "\r\n"), "x") == parse(TEXT, "x")


def test_an_alias_stands_for_its_anchor() -> None:
    assert parse("a: &x {b: 1}\nc: *x", "x").data == {"a": {"b": 1}, "c": {"b": 1}}


REFUSED = {
    "empty": ("", "x:1:1", "empty"),
    "only remarks": ("# nothing\n", "x:1:1", "empty"),
    "a list": ("- a\n- b\n", "x:1:1", "a list"),
    "a word": ("hello\n", "x:1:1", "a single value"),
    "a key twice": ("a: 1\nb: 2\na: 3\n", "x:3:1", "'a' occurs twice: here and at line 1"),
    "a key twice inside": ("p: {tp: 2, tp: 4}\n", "x:1:12", "'tp' occurs twice"),
    "separators of thousands": (
        "a: 1\np: {x: 4,096, y: 2}\n",
        "x:2:8",
        "'4,096' is not a number: the comma ends the value of 'x'",
    ),
    "more of them": ("{x: -1,000,000}\n", "x:1:5", "'-1,000,000' is not a number"),
    "before a unit": ("{x: 1,000.5 GB/s, y: 2}\n", "x:1:5", "'1,000.5 GB/s' is not a number"),
    "a merge key": ("a: &a {b: 1}\nc: {<<: *a}\n", "x:2:5", "'<<'"),
    "a list as a key": ("? [a, b]\n: 1\n", "x:1:3", "cannot be a key"),
    "no key": ("? \n: 1\n", "x:1:", "cannot be a key"),
    "two documents": ("a: 1\n---\nb: 2\n", "x:2:1", "second document"),
    "a tab": ("a:\n\tb: 1\n", "x:2:1", "tab"),
    "an open bracket": ("a: [1, 2\nb: }\n", "x:2:", "not YAML"),
    "a colon too many": ("a: b: c\n", "x:1:5", "not YAML"),
    "an unknown alias": ("a: *b\n", "x:1:4", "not YAML"),
    "a control character": ("a: b\nc: \x07\n", "x:2:4", "'\\x07'"),
    "a null character": ("a: \x00\n", "x:1:4", "'\\x00'"),
    "a code tag": ("a: !!python/object/apply:os.system ['true']\n", "x:1:4", "'!!python/object/apply:os.system'"),
    "a private tag": ("a: !foo bar\n", "x:1:4", "'!foo'"),
    "a binary tag": ("a: !!binary aGVsbG8=\n", "x:1:4", "'!!binary'"),
    "a bomb of aliases": (BOMB, "x:1:", "more than 100,000 values"),
    "an alias of itself": ("a: &a {b: *a}\n", "x:1:4", "alias of what it stands in"),
    "deep brackets": ("a: " + "[" * 100_000, "x:1:", "more than 50 deep"),
    "deep dashes": ("- " * 200_000 + "x", "x:1:", "more than 50 deep"),
    "deep mappings": ("a: " + "{b: " * 60 + "1" + "}" * 60, "x:1:", "more than 50 deep"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_scenario_is_refused_with_its_place(case: str) -> None:
    text, where, says = REFUSED[case]
    with pytest.raises(UserError) as refused:
        parse(text, "x")
    fault = refused.value.faults[0]
    assert fault.where.startswith(where)
    assert says in fault.message
    assert len(refused.value.faults) == 1


def test_numbers_with_separators_of_thousands_are_told_together_with_what_to_write() -> None:
    with pytest.raises(UserError) as refused:
        parse("job: {sequence_length: 4,096, global_batch: 1,024, total_tokens: 1,000,000}", "x")
    hints = [fault.hint.removeprefix("numbers are written without thousands separators: ") for fault in refused.value.faults]
    assert hints == ["4096", "1024", "1000000"]


@pytest.mark.parametrize(
    "text", ["{a: 4,096: 1}", "{a: 4, 096: null}", "{a: 4, '096': }", "{a: '4',096}", "{a: b, 100}", "{100, 200}", "{a: 1,00}"]
)
def test_other_keys_of_three_digits_are_keys(text: str) -> None:
    assert len(parse(text, "x").data) == 2


def test_all_faults_of_a_file_come_together() -> None:
    with pytest.raises(UserError) as refused:
        parse("a: 1\na: 2\nb: !foo 3\nb: 4\n", "x")
    assert [fault.where for fault in refused.value.faults] == ["x:2:1", "x:3:4", "x:4:1"]


def test_a_tag_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    with pytest.raises(UserError):
        parse(f"a: !!python/object/apply:os.system ['touch {trace}']\n", "x")
    assert not trace.exists()


@pytest.mark.parametrize("content", [bytes(range(256)), TEXT.encode("utf-16"), b"a: \xe9\n", b"\x89PNG\r\n\x1a\n\x00"])
def test_what_is_no_text_is_refused_with_its_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match="not") as refused:
        read(file)
    assert refused.value.faults[0].where.startswith(f"{file}:")


def test_a_file_that_never_ends_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\n" + "# remark\n" * 200_000)
    with pytest.raises(UserError, match="too large"):
        read(file)


@pytest.mark.parametrize("name", ["missing.yaml", "folder", "a\0b.yaml", "x" * 5000, "no/such/folder.yaml"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"no file|cannot read"):
        read(tmp_path / name)


def test_a_missing_file_is_compared_with_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("a: 1\n")
    for name, hint in (("scenarios.yaml", "did you mean"), ("other.yaml", "that folder holds scenario.yaml")):
        with pytest.raises(UserError) as refused:
            read(tmp_path / name)
        assert hint in refused.value.hint


@given(st.dictionaries(keys, trees, max_size=4), st.dictionaries(keys, trees, max_size=4))
def test_laying_over_keeps_what_is_not_written_over(base: dict[str, Any], over: dict[str, Any]) -> None:
    laid = Document(base).overlaid(Document(over)).data
    assert set(laid) == set(base) | set(over)
    assert all(laid[key] == base[key] for key in base if key not in over)
    assert all(laid[key] == over[key] for key in over if not isinstance(over[key], dict))
    assert Document(laid).overlaid(Document(over)).data == laid


def test_a_name_written_into_becomes_a_mapping_that_starts_from_it() -> None:
    laid = Document({"cluster": "dgx-h100"}).overlaid(Document({"cluster": {"nodes": 4}}))
    assert laid.data == {"cluster": {"name": "dgx-h100", "nodes": 4}}


def test_a_change_is_marked_where_it_was_made_and_nowhere_else() -> None:
    document = parse(TEXT, "s.yaml").changed(("plan", "overlap"), {"tp": True}, Mark("--set ..."))
    assert document.at(("plan", "overlap")) == {"dp": True, "tp": True}
    assert document.where(("plan", "overlap", "tp")) == "--set ..."
    assert document.where(("plan", "overlap", "dp")) == "s.yaml:4:13"


def test_a_change_inside_a_list_counts_from_zero() -> None:
    document = parse(TEXT, "s.yaml").changed(place_of("perturb.1.rank"), 9, Mark("--set ..."))
    assert [p["rank"] for p in document.data["perturb"]] == [3, 9]
    with pytest.raises(UserError, match=r"no perturb\.2\.rank"):
        document.changed(place_of("perturb.2.rank"), 9, Mark("--set ..."))
