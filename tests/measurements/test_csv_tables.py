"""Tables of measurements: cells beyond the header, and the lines that messages name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from simulator.errors import UserError
from simulator.measurements import csv_tables, kernel_table

from ..commandline import trainsim

HEADER = "gpu,op,dtype,m,n,k,time_us"
GOOD = "h100,gemm,bf16,8192,4096,4096,210"


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("wrong", ["h100,gemm,bf16,8,192,4096,4096,210", GOOD + ",5"])
def test_a_row_with_more_cells_than_the_header_is_refused(tmp_path: Path, wrong: str) -> None:
    """A separator of thousands, and a decimal comma, would each give another kernel or another time."""
    path = table(tmp_path, HEADER, GOOD, wrong, GOOD, wrong)
    with pytest.raises(UserError) as caught:
        csv_tables.read(path)
    assert [fault.where for fault in caught.value.faults] == [f"{path}:3", f"{path}:5"]
    assert caught.value.faults[0].message == "8 cells for 7 columns"
    done = trainsim("validate", "--kind", "kernels", str(path))
    assert done.code == 2
    assert "8 cells for 7 columns" in done.err


def test_empty_cells_at_the_end_of_a_line_are_nothing(tmp_path: Path) -> None:
    assert len(csv_tables.read(table(tmp_path, HEADER, GOOD + ",,", GOOD))) == 2


def test_messages_name_the_line_where_lines_are_blank_or_cells_have_several(tmp_path: Path) -> None:
    path = table(tmp_path, HEADER + ",notes", GOOD, "", "", GOOD + ',"two', 'lines"', GOOD.replace("8192", "x"))
    with pytest.raises(UserError) as caught:
        kernel_table.rows_of(path)
    assert [fault.where for fault in caught.value.faults] == [f"{path}:7"]
    path = table(tmp_path, HEADER, GOOD, "", GOOD.replace("gemm", "nothing"), "", GOOD.replace("gemm", "nothing"))
    assert "line 4, 6" in trainsim("validate", "--kind", "kernels", str(path)).out.replace("lines", "line")
    assert [row.line for row in csv_tables.read(path)] == [2, 4, 6]


@pytest.mark.parametrize(("mark", "word"), [(";", "a semicolon"), ("\t", "a tab"), ("|", "a bar")])
def test_a_table_with_another_separator_is_named_for_it(tmp_path: Path, mark: str, word: str) -> None:
    """Also where cells have commas, as decimals of some languages do."""
    path = table(tmp_path, HEADER.replace(",", mark), GOOD.replace(",", mark) + ",5")
    with pytest.raises(UserError, match=f"table.csv:1: no commas between columns, but {word}"):
        kernel_table.rows_of(path)


def test_a_table_begins_with_its_header(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"table\.csv:1: no header: the table begins with a comment, '# of March'"):
        csv_tables.read(table(tmp_path, "# of March", HEADER, GOOD))


def test_spaces_around_names_of_columns_are_no_part_of_them(tmp_path: Path) -> None:
    (row,) = csv_tables.read(table(tmp_path, HEADER.replace(",", ", "), GOOD))
    assert list(row) == HEADER.split(",")


@pytest.mark.parametrize("cell", ["nan", "N/A", "NA", "null", "<NA>"])
def test_words_for_no_value_are_blank_cells(cell: str) -> None:
    assert csv_tables.described({"a": cell, "b": " 1 "}, ("a", "b", "c")) == {"a": "", "b": " 1 ", "c": ""}


@pytest.mark.parametrize("cell", ["4_096", "1_0", "four", "", "inf", "nan"])
def test_what_only_a_program_would_write_is_no_number(cell: str) -> None:
    assert math.isnan(csv_tables.number(cell))
