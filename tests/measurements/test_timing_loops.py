"""Loops of known tables, and of tables of which nothing is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.calibrate.fit_profile import groups
from simulator.config import shipped_fits
from simulator.kernels import Gemm
from simulator.measurements.kernel_table import Measured, rows_of
from simulator.measurements.kernel_words import Probe
from simulator.measurements.timing_loops import BURST_LOOP, launches_in, loop_of, loops
from simulator.validate import kernels

PUBLIC = "ai-dynamo/aiconfigurator@095f58a:h100_sxm"
LARGE, SMALL = Gemm(8192, 8192, 8192, 2), Gemm(8192, 2048, 2048, 2)
H100 = shipped_fits.gpu("h100")
PROBE = Probe("gemm", "bf16", 8192, 8192, 8192, variant="TN fwd")


def test_names_are_unique_and_every_loop_is_reached() -> None:
    assert len({loop.name for loop in loops()}) == len(loops())


@pytest.mark.parametrize(
    ("source", "dtype", "kernel", "launches"),
    [
        ("gemm/trtllm/1.3.0rc20", "bf16", LARGE, 12),
        ("gemm/trtllm/1.3.0rc20", "bf16", SMALL, 60),
        ("gemm/trtllm/1.0.0", "bf16", LARGE, 60),
        ("gemm/sglang/0.5.14", "fp8", LARGE, 72),
        ("gemm/vllm/0.24.0", "bf16", LARGE, 72),
        ("gemm/vllm/0.24.0", "nvfp4", LARGE, 12),
        ("attention/sglang/0.5.14", "bf16", LARGE, 26),
        ("encoder_attention/trtllm/1.3.0rc20", "bf16", LARGE, 26),
        ("attention/vllm/0.24.0", "bf16", LARGE, 12),
        ("moe/sglang/0.5.10", "bf16", LARGE, 100),
    ],
)
def test_launches_of_public_tables(source: str, dtype: str, kernel: Gemm, launches: int) -> None:
    assert launches_in(loop_of(f"{PUBLIC}/{source}", dtype), kernel, H100.cache_bytes) == launches


def test_a_table_of_which_nothing_is_known_is_a_filled_burst_of_twelve() -> None:
    assert loop_of("my own table", "bf16") is BURST_LOOP
    assert BURST_LOOP.filled
    assert launches_in(BURST_LOOP, SMALL, H100.cache_bytes) == 12


def test_fits_read_the_loops_and_leave_operands_out_that_nobody_filled() -> None:
    row = Measured("H100-SXM", PROBE, 1e-3)
    rows = [replace(row, source=f"{PUBLIC}/gemm/{name}/1") for name in ("sglang", "vllm")] + [row, replace(row, launches=40)]
    unused = Counter[str]()
    (group,) = groups(rows, H100, unused)
    assert group.timed.loop.tolist() == [72, 12, 40]
    assert unused == {"gemm: unfilled operands": 1}


def test_a_table_may_state_its_own_loop(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("gpu,op,dtype,m,n,k,time_us,launches\n" + "h100,gemm,bf16,8192,8192,8192,2000,{}\n" * 3)
    table.write_text(table.read_text().format("", 12, 10**6))
    assert [row.launches for row in rows_of(table)] == [0, 12, 10**6]
    cells = dict.fromkeys(("m", "n", "k"), "8192") | {"gpu": "h100", "op": "gemm", "dtype": "bf16"}
    rows = [dict.fromkeys(kernels.READS, "") | cells | {"launches": each} for each in ("", "12", "1000000")]
    unstated, twelve, many = (one.value for one in kernels.predictions(rows, None))  # type: ignore[union-attr]
    assert unstated == twelve < many
