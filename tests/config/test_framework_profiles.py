"""The shipped framework for software and a date: shipped names themselves, else the nearest year of the family, else generic."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import catalog
from simulator.config.framework_profiles import GENERIC, nearest_profile
from simulator.errors import UserError

TABLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "training.csv"
NAMES = list(catalog.files("frameworks"))
DATED = [name for name in NAMES if name[-4:].isdecimal()]
FAMILIES = sorted({name[:-5] for name in DATED})


@given(st.sampled_from(NAMES), st.sampled_from(["", "2019", "2024-06"]), st.sampled_from("-_ "))
def test_a_shipped_name_is_found_in_any_spelling_whatever_the_date(name: str, date: str, dash: str) -> None:
    assert nearest_profile(f" {name.replace('-', dash).title()}", date) == (name, "")


@given(st.sampled_from(FAMILIES), st.integers(2015, 2035))
def test_of_a_family_the_nearest_year_is_taken_and_a_note_says_so(family: str, year: int) -> None:
    found, note = nearest_profile(family, str(year))
    years = [int(name[-4:]) for name in DATED if name[:-5] == family]
    assert found[:-5] == family
    assert abs(int(found[-4:]) - year) == min(abs(each - year) for each in years)
    assert found in note
    assert str(year) in note


@pytest.mark.parametrize(
    "profile, date, found",
    [
        ("megatron-core", "2024-12", "megatron-core-2024"),
        ("megatron-lm-2024", "", "megatron-lm-2023"),
        ("Megatron-LM fork", "2022-03", "megatron-lm-2022"),
        ("nemo-mlperf", "2025", "nemo-mlperf-2024"),
        ("nemo", "", "nemo-2025"),
        ("Megatron", "2021", "megatron-lm-2021"),
        ("megatron", "2026-02", "megatron-core-2026"),
        ("my-deepspeed", "2023", "deepspeed-2023"),
        ("levanter-jax", "2023", "paxml-2024"),
        ("nanotron", "2024", "pytorch-2024"),
        ("litgpt", "2023", "pytorch-2024"),
        ("fairscale", "2022-06", "pytorch-2022"),
        ("gpt-neox", "2022", "megatron-deepspeed-2022"),
        ("MegaScale", "2023-09", "megatron-core-2023"),
        ("colossal", "2023", "colossal-ai-2024"),
        ("axlearn", "2025", "maxtext-2025"),
        ("", "", "pytorch-2024"),
    ],
)
def test_software_that_is_not_shipped_takes_a_relative_or_a_generic_framework(profile: str, date: str, found: str) -> None:
    name, note = nearest_profile(profile, date)
    assert name == found
    assert name in note


def test_generic_families_are_shipped() -> None:
    assert {family for _, families in GENERIC for family in families} <= set(FAMILIES)


@pytest.mark.parametrize("date", ["spring", "2024-13", "24-06"])
def test_a_date_that_is_none_is_refused(date: str) -> None:
    with pytest.raises(UserError, match=date) as refused:
        nearest_profile("nemo", date)
    assert "2024-06" in refused.value.hint


@pytest.mark.skipif(not TABLE.exists(), reason="needs the table of training runs, ../shared/data/training.csv")
def test_every_framework_of_the_table_of_training_runs_is_found() -> None:
    with TABLE.open(newline="") as lines:
        asked = {(row["framework_profile"], row["framework_date"]) for row in csv.DictReader(lines)}
    assert len(asked) > 20
    for profile, date in sorted(asked):
        assert nearest_profile(profile, date) == (profile, "")
