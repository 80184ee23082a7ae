"""Tables as people write them: what `validate` and `calibrate fit` both make of a header, a word or a GPU that is left out."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from simulator.config.catalog import gpu_named
from simulator.measurements.torch_trace import events, operators
from simulator.validate import kernels, report

from ..commandline import trainsim

GEMM = {"gpu": "H100-SXM", "op": "gemm", "dtype": "bf16", "m": "4096", "n": "4096", "k": "4096", "time_us": "205"}
EXPERTS = GEMM | {"op": "moe_ffn", "m": "64", "n": "2048", "batch": "32"}


def written(path: Path, *rows: dict[str, str]) -> Path:
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def judged(**words: str) -> report.ComparedRow:
    (row,) = report.compare_rows(kernels, [GEMM | words], "table").rows
    return row


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


@pytest.mark.parametrize("word, here", [("bfloat16", "bf16"), ("float16", "fp16"), ("E4M3", "fp8"), ("float", "fp32")])
def test_a_dtype_in_the_words_of_others_is_skipped_with_what_it_is_called_here(word: str, here: str) -> None:
    assert judged(dtype=word).skipped == f"dtype: {word!r} is not known, here it is {here}"
    assert judged(dtype="int3").skipped == "dtype: 'int3' is not known"


@pytest.mark.parametrize("variant", ["top_k=8", "topk=8", "topk 8", "top-k: 8", "TopK8 balanced"])
def test_how_many_experts_a_token_goes_to_may_be_written_in_several_ways(variant: str) -> None:
    told, plain = (judged(**EXPERTS, variant=words) for words in (variant, "topk8"))
    assert plain.predicted
    assert told.predicted == plain.predicted
    assert judged(**EXPERTS, variant="balanced").skipped == "variant: a mixture of experts needs its topk, such as topk8"


def test_the_server_edition_is_known_by_its_letters() -> None:
    assert gpu_named("RTX Pro 6000 BSE") == "rtx-pro-6000"


def test_a_product_of_a_trace_is_a_kernel_alone() -> None:
    """In fp32 too, where `fwd` in tables is a linear layer as an eager framework ran it."""
    shapes = {"Input Dims": [[256, 512], [512, 1024]], "Input type": ["float", "float"]}
    probe = operators.probe_of(events.Op("aten::mm", 0.0, 1.0, shapes))
    assert probe is not None
    sizes = {name: str(getattr(probe, name)) for name in ("m", "n", "k")}
    traced, alone, eager = (judged(dtype="fp32", variant=words, **sizes) for words in (probe.variant, "", "fwd"))
    assert traced.predicted == alone.predicted
    assert (alone.predicted or 0.0) < 0.9 * (eager.predicted or 0.0)


def test_a_column_that_is_like_one_that_is_lacking_is_named(tmp_path: Path) -> None:
    """Optional columns may be missing; under another name they would be left out in silence."""
    table = written(tmp_path / "table.csv", GEMM | {"notes": "none", "launch": "12"})
    said = trainsim("validate", "--kind", "kernels", table, "--json")
    assert said.code == 0
    assert "column 'launch' is not read, and there is no column 'launches'" in said.err
    assert "notes" not in said.err
    assert said.record["rows"][0]["predicted"]
    assert not trainsim("validate", "--kind", "kernels", written(tmp_path / "plain.csv", GEMM), "--json").err


def test_a_time_that_is_none_is_noted_and_no_row_is_lost(tmp_path: Path) -> None:
    times = ["205", "abc", "-8", "0", "nan", ""]
    file = written(tmp_path / "table.csv", *(GEMM | {"time_us": time} for time in times))
    rows = trainsim("validate", "--kind", "kernels", file, "--json").record["rows"]
    assert [row["note"] for row in rows] == [None, *(f"time_us: '{time}' is not a time" for time in times[1:5]), None]
    file.write_text(file.read_text().replace("\nH100", '\n"H100', 2))
    said = trainsim("validate", "--kind", "kernels", file)
    assert (said.code, "table.csv:2: no table" in said.err) == (2, True)


def test_a_kind_of_measurement_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after the file; modules of the folder that predict nothing are no kinds."""
    (tmp_path / "throughput.py").write_text(
        "from simulator.validate.report import Predicted\n"
        'UNIT, MEASURED_COLUMN, READS, NEEDS, SOURCE = "tokens/s", "tokens", ("gpus",), ("gpus",), ("gpus",)\n'
        'measured = lambda row: float(row["tokens"])\n'
        'predictions = lambda rows, gpu: [Predicted(100.0 * int(row["gpus"])) for row in rows]\n'
    )
    assert list(report.kinds()) == ["collectives", "kernels", "training"]
    package = import_module("simulator.validate")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    table = written(tmp_path / "table.csv", {"gpus": "8", "tokens": "1000"})
    (row,) = trainsim("validate", "--kind", "throughput", table, "--json").record["rows"]
    assert (row["predicted"], row["error"], row["unit"]) == (800.0, pytest.approx(-0.2), "tokens/s")
    said = trainsim("validate", "--kind", "throughput", table, "--gpu", "h100")
    assert (said.code, "say nothing about throughput" in said.err) == (2, True)
    sys.modules.pop("simulator.validate.throughput")
