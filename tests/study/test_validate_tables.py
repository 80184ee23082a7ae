"""Tables as people write them: what `validate` and `calibrate fit` both make of a header, a word or a GPU that is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.study.validate import collectives

from ..commandline import trainsim

GEMM = {"gpu": "H100-SXM", "op": "gemm", "dtype": "bf16", "m": "4096", "n": "4096", "k": "4096", "time_us": "205"}


def written(path: Path, *rows: dict[str, str]) -> Path:
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "command", [("validate", "--kind", "kernels"), ("validate", "--kind", "collectives"), ("calibrate", "fit")]
)
def test_a_column_that_stands_twice_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Either may be meant."""
    (tmp_path / "table.csv").write_text("gpu,op,dtype,m,m,n,n,k,time_us\nh100,gemm,bf16,4096,1,4096,1,4096,200\n")
    said = trainsim(*command, tmp_path / "table.csv")
    assert said.code == 2
    assert "table.csv:1: column 'm' twice" in said.err
    assert "table.csv:1: column 'n' twice" in said.err


def test_columns_without_a_name_may_stand_more_than_once(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("gpu,op,dtype,m,n,k,time_us,,\nh100,gemm,bf16,4096,4096,4096,200,,\n")
    assert trainsim("validate", "--kind", "kernels", tmp_path / "table.csv").code == 0


def test_a_table_without_gpus_is_of_the_one_that_is_named(tmp_path: Path) -> None:
    """Or of the profile's; nobody's is still refused."""
    table = written(tmp_path / "table.csv", {name: cell for name, cell in GEMM.items() if name != "gpu"})
    assert trainsim("calibrate", "fit", table, "--gpu", "h100", "--out", tmp_path / "mine.yaml").code == 0
    for own in (("--gpu", "h100"), ("--profile", tmp_path / "mine.yaml")):
        (row,) = trainsim("validate", "--kind", "kernels", table, *own, "--json").record["rows"]
        assert (row["source_key"], row["skipped"]) == ("h100+gemm", None)
    said = trainsim("validate", "--kind", "kernels", table)
    assert (said.code, "no column 'gpu'" in said.err) == (2, True)
    assert "cache" not in said.err, "no column of the table is named that it does not have"


def test_a_table_of_collectives_is_taken_as_it_is() -> None:
    rows = [{"system": "mine"}]
    assert collectives.completed(rows, None) == rows
