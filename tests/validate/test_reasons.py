"""Reasons for what is skipped or not compared name the nearest legal value, and say which cell was not what it should be."""

from __future__ import annotations

import pytest

from simulator.validate import kernels, report, training

from ..made_up_runs import row

GEMM = {"gpu": "h100", "op": "gemm", "dtype": "bf16", "m": "1024", "n": "1024", "k": "1024", "time_us": "10"}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "H101"}, "no GPU 'H101'; did you mean 'h100'?"),
        ({"dtype": "bf61"}, "dtype: 'bf61' is not known; did you mean 'bf16'?"),
        ({"op": "gemmm"}, "op: 'gemmm' is not known; did you mean 'gemm'?"),
        ({"op": "qqqqqq"}, "op: 'qqqqqq' is not known"),
        ({"dtype": "bfloat16"}, "dtype: 'bfloat16' is not known, here it is bf16"),
    ],
)
def test_a_word_of_a_kernel_that_is_not_known_is_answered_with_the_nearest(cells: dict[str, str], reason: str) -> None:
    (found,) = report.compare_rows(kernels, [{**GEMM, **cells}], "table").rows
    assert found.skipped == reason


def test_a_time_in_a_column_of_another_name_is_named() -> None:
    other = {("time_ms" if name == "time_us" else name): cell for name, cell in GEMM.items()}
    (found,) = report.compare_rows(kernels, [other], "table").rows
    assert found.measured is None
    assert found.note == "no column 'time_us', although there is 'time_ms'"
    (whole,) = report.compare_rows(kernels, [GEMM], "table").rows
    assert whole.note is None


@pytest.mark.parametrize("cell", ["-1", "soon"])
def test_a_step_time_that_is_none_is_noted_where_another_column_is_compared(cell: str) -> None:
    rows = [{**row(), "step_time_s": cell, "samples_per_s": "20"}, {**row(), "step_time_s": "", "samples_per_s": "20"}]
    wrong, blank = report.compare_rows(training, rows, "table").rows
    assert wrong.measured == blank.measured == 64 / 20
    assert wrong.note == f"step_time_s: '{cell}' is not a time, another column is compared"
    assert blank.note is None


@pytest.mark.parametrize(
    ("variant", "is_noted"), [("FA5", True), ("aiter", True), ("FA3", False), ("", False), ("by=pytorch", False)]
)
def test_a_library_of_attention_that_nobody_knows_is_noted(variant: str, *, is_noted: bool) -> None:
    sizes = {"batch": "1", "seq": "4096", "heads": "32", "kv_heads": "8", "head_dim": "128", "causal": "1"}
    attention = {"gpu": "h100", "op": "attention_fwd", "dtype": "bf16", **sizes, "variant": variant}
    (found,) = report.compare_rows(kernels, [attention], "table").rows
    note = f"variant: {variant!r} names no library of attention that is known; the usual one of h100 counts"
    assert (found.skipped, found.note) == (None, note if is_noted else None)
