"""Quantities: what is read is what was written, in every spelling, and what has no unit is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import units
from simulator.errors import UserError
from simulator.units import BYTES, BYTES_PER_SECOND, FLOP_PER_SECOND, LATENCY, SECONDS, WATTS, Dimension, parse

DIMENSIONS = (BYTES, BYTES_PER_SECOND, SECONDS, LATENCY, FLOP_PER_SECOND, WATTS)
SPELLED = [(dimension, unit) for dimension in DIMENSIONS for unit in dimension.spellings]
numbers = st.decimals(min_value=0, max_value=2000, places=3)


def in_limits(value: Fraction, dimension: Dimension) -> bool:
    return parse(dimension.least, dimension) <= value <= parse(dimension.most, dimension)


@given(numbers, st.sampled_from(SPELLED), st.sampled_from(["", " ", "  "]))
def test_a_quantity_is_its_number_times_its_unit(number: object, spelled: tuple[Dimension, str], gap: str) -> None:
    dimension, unit = spelled
    exact = Fraction(str(number)) * dimension.spellings[unit]
    if in_limits(exact, dimension):
        assert parse(f"{number}{gap}{unit}", dimension) == float(exact)
    else:
        with pytest.raises(UserError):
            parse(f"{number}{gap}{unit}", dimension)


@given(st.integers(1, 999))
def test_prefixes_scale(n: int) -> None:
    assert parse(f"{n} GB", BYTES) == parse(f"{n * 1000} MB", BYTES) == n * 10**9
    assert parse(f"{n} GiB", BYTES) == parse(f"{n * 1024} MiB", BYTES) == n * 2**30
    assert 8 * parse(f"{n} Gbit/s", BYTES_PER_SECOND) == parse(f"{n} GB/s", BYTES_PER_SECOND)
    assert parse(f"{n} Gb/s", BYTES_PER_SECOND) == parse(f"{n} Gbps", BYTES_PER_SECOND) == parse(f"{n} Gbit/s", BYTES_PER_SECOND)
    assert parse(f"{n} ms", SECONDS) == parse(f"{n * 1000} us", SECONDS) == parse(f"{n}e-3 s", SECONDS)


def test_examples_of_the_contract() -> None:
    assert parse("400 Gbit/s", BYTES_PER_SECOND) == 5e10
    assert parse("80 GiB", BYTES) == 80 * 2**30
    assert parse("5 us", SECONDS) == parse("5 µs", SECONDS) == parse("5 μs", SECONDS) == 5e-6
    assert parse("1.5e3 GB/s", BYTES_PER_SECOND) == 1.5e12
    assert parse("989.4 TFLOP/s", FLOP_PER_SECOND) == 9.894e14


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("bare", [0, 5, -1, 2.5, float("nan"), 10**400, "5", " 5.0 ", "1e9"])
def test_a_bare_number_is_refused(dimension: Dimension, bare: object) -> None:
    with pytest.raises(UserError, match="bare number") as refused:
        parse(bare, dimension)
    explains(refused.value, bare, dimension)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize(
    "junk", ["", "fast", "GB/s", "5 5 GB", "1,000 GB", "nan s", "inf B", "٣ GB", True, None, [], {}, "9" * 200]
)
def test_what_is_no_quantity_is_refused(dimension: Dimension, junk: object) -> None:
    with pytest.raises(UserError) as refused:
        parse(junk, dimension)
    explains(refused.value, junk, dimension)


@given(st.text(max_size=12), st.sampled_from(DIMENSIONS))
def test_any_text_is_read_or_refused_with_an_example(text: str, dimension: Dimension) -> None:
    try:
        value = parse(text, dimension)
    except UserError as refused:
        explains(refused, text, dimension)
    else:
        assert in_limits(Fraction(value), dimension)


def explains(refused: UserError, value: object, dimension: Dimension) -> None:
    """The message shows the value, the hint an example that is legal, and one of both names the dimension or the limit."""
    message, hint = refused.faults[0].message, refused.hint
    if isinstance(value, str) and len(value) < 50:
        assert repr(value) in message
    assert parse(hint.rpartition('like "')[2].rstrip('"'), dimension) == parse(dimension.example, dimension)
    assert dimension.name in message or "at least" in hint or "at most" in hint


@pytest.mark.parametrize(("text", "dimension", "says"), [
    ("400 GB", BYTES_PER_SECOND, "'GB' measures bytes"),
    ("400 GB/s", BYTES, "'GB/s' measures bytes per second"),
    ("5 s", BYTES, "'s' measures seconds"),
    ("400 Gbit/s", FLOP_PER_SECOND, "'Gbit/s' measures bytes per second"),
    ("400 gb/s", BYTES_PER_SECOND, "did you mean 'GB/s' or 'Gb/s'?"),
    ("50 GBs", BYTES_PER_SECOND, "did you mean 'GB/s'?"),
    ("50 GBps", BYTES_PER_SECOND, "did you mean 'GB/s'?"),
    ("80 gib", BYTES, "did you mean 'GiB'?"),
    ("5 usec", SECONDS, "did you mean 'us'?"),
    ("50 Gb", BYTES_PER_SECOND, "did you mean 'Gbit/s' or 'Gb/s'?"),
])  # fmt: skip
def test_a_wrong_unit_is_told_from_the_right_one(text: str, dimension: Dimension, says: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(text, dimension)
    assert says in refused.value.hint


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_limits_are_legal_and_beyond_them_nothing_is(dimension: Dimension) -> None:
    least, most = parse(dimension.least, dimension), parse(dimension.most, dimension)
    assert least < parse(dimension.example, dimension) < most
    number, unit = dimension.most.split()
    for beyond in (f"{int(number) + 1} {unit}", f"1e400 {unit}", f"1e999999999 {unit}", f"-{number} {unit}"):
        with pytest.raises(UserError):
            parse(beyond, dimension)


@given(st.integers(0, 2**53))
def test_nanoseconds_come_back(n: int) -> None:
    assert units.ns(Fraction(n, units.NS_PER_S)) == n
    if n < 2**52:
        assert units.ns(units.seconds(n)) == n


@given(st.integers(-(10**6), 10**6), st.fractions(0, 1))
def test_rounding_is_to_the_nearest_and_a_half_goes_up(n: int, part: Fraction) -> None:
    rounded = units.ns((n + part) / units.NS_PER_S)
    assert rounded == (n if part < Fraction(1, 2) else n + 1)


@given(st.floats(1e-9, 8e4))
def test_a_duration_shown_reads_back(value: float) -> None:
    assert parse(units.show_s(value).replace(",", ""), SECONDS) == pytest.approx(value, rel=6e-4)


@given(st.floats(1, 9e14))
def test_a_size_and_a_rate_shown_read_back(value: float) -> None:
    assert parse(units.show_bytes(value), BYTES) == pytest.approx(value, rel=0.06, abs=0.6)
    if value > units.MB:
        assert parse(units.show_rate(value), BYTES_PER_SECOND) == pytest.approx(value, rel=6e-4)


def test_numbers_read_well() -> None:
    assert [units.show_s(x) for x in (6.29512, 0.0185, 3.2e-6, 0.9999999, 0.0)] == [
        "6.295 s", "18.50 ms", "3.200 us", "1,000 ms", "0 us",
    ]  # fmt: skip
    assert [units.show_stated_s(x) for x in (0.7e-6, 2.5e-3, 100e-6, 1.0, 1.2345e-6, 0.0)] == [
        "0.7 us", "2.5 ms", "100 us", "1 s", "1.234 us", "0 us",
    ]  # fmt: skip
    assert [units.show_count(x) for x in (16384, 70_553_706_496, 1.008e12)] == ["16,384", "70.6 B", "1.01 T"]
    assert [units.show_bytes(x) for x in (12, 2048, 79.6 * units.GIB)] == ["12 B", "2.0 KiB", "79.6 GiB"]
    assert units.show_rate(450e9) == "450 GB/s"
