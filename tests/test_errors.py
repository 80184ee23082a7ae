"""Errors: every fault is kept, every hint helps, and nothing about a value can break the message that shows it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.errors import (
    MOST_LISTED,
    MOST_SHOWN,
    Blocked,
    Deadlock,
    Fault,
    Infeasible,
    InvariantBroken,
    OutsideDomain,
    SimulatorError,
    UserError,
    did_you_mean,
    either,
    nearest,
    shown,
)

NAMES = ("1f1b", "gpipe", "interleaved", "naive", "zb_h1", "dualpipe")


def test_a_fault_says_where_what_and_what_to_do() -> None:
    assert str(Fault("tp: 0 is too small", "at least 1", "a.yaml:3:4")) == "a.yaml:3:4: tp: 0 is too small\n    hint: at least 1"
    assert str(Fault("tp is missing")) == "tp is missing"


@given(st.lists(st.text("abc", min_size=1), min_size=1, max_size=40))
@example(["a"] * (MOST_LISTED + 1))
def test_an_error_holds_every_fault_and_shows_what_a_screen_takes(messages: list[str]) -> None:
    error = UserError(faults=[Fault(message, "do this") for message in messages])
    assert [fault.message for fault in error.faults] == messages
    assert error.hint == "do this"
    shown_lines = str(error).splitlines()
    assert len(shown_lines) <= 2 * MOST_LISTED + 1
    if len(messages) > MOST_LISTED:
        more = len(messages) - MOST_LISTED
        assert shown_lines[-1] == (f"... and {more} faults more" if more > 1 else "... and 1 fault more")


@pytest.mark.parametrize("error", [
    UserError("wrong", hint="right", where="a.yaml:1:2"),
    UserError(faults=[Fault("one"), Fault("two", "three", "four")]),
    OutsideDomain("too few", nearest={"microbatches": 8}),
    Infeasible("does not fit", hint="smaller", over_bytes=3.0),
    Deadlock("stuck", blocked=[Blocked(0, 1, 2, 3, (4,))]),
    InvariantBroken("ours"),
])  # fmt: skip
def test_an_error_survives_a_process_pool(error: SimulatorError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_exit_codes() -> None:
    errors = (InvariantBroken("x"), UserError("x"), OutsideDomain("x"), Infeasible("x"), Deadlock("x"))
    assert [error.exit_code for error in errors] == [1, 2, 2, 3, 3]


def test_outside_a_domain_the_nearest_legal_value_is_the_hint() -> None:
    assert OutsideDomain("no", nearest={"group": 4, "microbatches": 8}).hint == "nearest legal: group 4, microbatches 8"


@given(st.sampled_from(NAMES), st.integers(0, 20), st.sampled_from("abz19_"))
def test_a_slip_of_a_key_is_understood(name: str, at: int, key: str) -> None:
    slipped = name[: at % len(name)] + key + name[at % len(name) + 1 :]
    assert nearest(slipped.upper(), [name, "something else"]) == name
    assert f"did you mean {name!r}?" in did_you_mean(slipped, [name])


def test_the_case_of_a_known_word_is_kept() -> None:
    assert nearest("nvswich", ["NVSwitch"]) == "NVSwitch"


def test_a_beginning_is_enough() -> None:
    assert nearest("rail", ["leaf-spine", "rail-optimized"]) == "rail-optimized"


def test_a_word_like_no_other_gets_the_list() -> None:
    assert did_you_mean("qqq", NAMES) == f"known: {', '.join(sorted(NAMES))}"


@given(st.text(max_size=200))
def test_a_long_list_is_cut_to_what_is_near(word: str) -> None:
    hint = did_you_mean(word, [f"model-{i}b" for i in range(300)])
    assert hint.endswith(", ...")
    assert hint.count("model-") <= 13


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(0, 20_000).map(lambda bits: 1 << bits),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_any_value_can_be_shown_in_a_line(value: object) -> None:
    text = shown(value)
    assert 0 < len(text) <= MOST_SHOWN + 1
    assert "\n" not in text


def test_values_look_as_they_do_in_yaml() -> None:
    nan, huge = float("nan"), 10**400
    assert [shown(v) for v in (None, True, nan, 2.5, "no", [1], {"a": 1}, huge)] == [
        "null", "true", ".nan", "2.5", "'no'", "a list", "a mapping", "a number of 401 digits",
    ]  # fmt: skip


def test_alternatives_in_a_sentence() -> None:
    assert [either(words) for words in (["a"], ["a", "b"], [1, 2, 3])] == ["a", "a or b", "1, 2 or 3"]
