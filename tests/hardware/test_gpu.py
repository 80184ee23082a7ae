"""Known figures of known GPUs, and how much of them their kernels sustain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import simulator as sim
from simulator.units import GB, GIB, TFLOP
from tests.batteries.test_gpus import gpu_of

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference" / "kernels.md"

DATASHEETS = {
    # name: (fp16 TFLOP/s, fp8, fp32, memory GB/s, GB on the label, SMs, W); memories of Blackwell as NVIDIA rounds full stacks
    "v100-32gb": (125, None, 15.7, 900, 32, 80, 300),
    "a100-40gb": (312, None, 19.5, 1555, 40, 108, 400),
    "a100-80gb": (312, None, 19.5, 2039, 80, 108, 400),
    "h100": (989, 1979, 67, 3350, 80, 132, 700),
    "h200": (989, 1979, 67, 4800, 141, 132, 700),
    "l40s": (362, 733, 91.6, 864, 48, 142, 350),
    "gh200-96gb": (989, 1979, 67, 4000, 96, 132, 700),
    "b200": (2250, 4500, 75, 8000, 180, 148, 1000),
    "b300": (2250, 4500, 75, 8000, 270, 148, 1100),
    "gb200": (2500, 5000, 80, 8000, 186, 152, 1200),
    "gb300": (2500, 5000, 80, 8000, 279, 152, 1400),
}


@pytest.mark.parametrize("name", DATASHEETS)
def test_figures_are_those_of_the_datasheet(name: str) -> None:
    fp16, fp8, fp32, bandwidth, label, sms, watts = DATASHEETS[name]
    gpu = gpu_of(name)
    assert gpu.peak("fp16") == pytest.approx(fp16 * TFLOP, rel=2e-3)
    assert gpu.peak_flop_per_s.get("fp8") == (None if fp8 is None else pytest.approx(fp8 * TFLOP, rel=2e-3))
    assert gpu.peak("fp32") == pytest.approx(fp32 * TFLOP, rel=2e-3)
    assert gpu.memory_bytes_per_s == pytest.approx(bandwidth * GB)
    assert (gpu.sms, gpu.tdp_w) == (sms, watts)
    assert 0.93 * label * GIB <= gpu.memory_bytes <= label * GIB, "labels count in GiB, or nearly so"


def test_an_unknown_dtype_is_refused_with_what_there_is() -> None:
    with pytest.raises(sim.UserError, match="v100-32gb has no bf16 peak") as caught:
        gpu_of("v100-32gb").peak("bf16")
    assert "fp16" in caught.value.hint


def test_fp32_products_run_as_tf32_where_there_is_tf32() -> None:
    h100, v100 = gpu_of("h100"), gpu_of("v100-32gb")
    assert h100.matmul_peak("fp32") == h100.peak("tf32") > h100.peak("fp32")
    assert v100.matmul_peak("fp32") == v100.peak("fp32")
    assert h100.matmul_peak("bf16") == h100.peak("bf16")


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/reference/kernels.md")
@pytest.mark.parametrize("short, name", [("A100", "a100-80gb"), ("H100", "h100"), ("B200", "b200")])
def test_measured_fractions_are_those_of_the_fits(short: str, name: str) -> None:
    """Fitted constants by GPU, as in `A100 312 TF / 2.04 TB/s: ec .73-.75, em .69`."""
    line = next(line for line in REFERENCE.read_text().splitlines() if line.startswith("Fitted constants"))
    found = re.search(rf"{short} [^;]*?: ec (\.\d+)(?:-(\.\d+))?, em (\.\d+),", line)
    assert found
    low, high = float(found[1]), float(found[2] or found[1])
    kernels = gpu_of(name).kernels
    assert low <= kernels.compute_fraction <= high
    assert kernels.memory_fraction == float(found[3])
