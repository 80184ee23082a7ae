"""Every file in topologies/gpus: it loads, its numbers are plausible and ordered, and each says where it comes from."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import simulator as sim
from simulator.config import catalog
from simulator.config.document import read
from simulator.costs.kernels.gpu_model import clock_per_s, tensor_peak
from simulator.hardware.gpu import Gpu
from simulator.units import GB, GIB, TB, TFLOP

FILES = catalog.files("gpus")
SLOWEST_FIRST = ("fp32", "tf32", "bf16", "fp8", "nvfp4")
YEAR = re.compile(r"\b20[12]\d\b")
BORROWED = re.compile(r"the fractions of ([\w-]+)")


def gpu_of(name: str) -> Gpu:
    """The GPU as a scenario would get it."""
    gpu: Gpu = sim.cluster({"gpu": name, "gpus_per_node": 1, "intra_node": "NVSwitch 450 GB/s"}).gpu
    return gpu


def data_of(name: str) -> dict[str, Any]:
    return read(FILES[name]).data


def test_there_are_gpus_to_test() -> None:
    assert {"v100-32gb", "a100-40gb", "a100-80gb", "h100", "h200", "b200", "b300", "gb200", "gb300", "l40s"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
class TestGpu:
    def test_loads_under_its_own_name(self, name: str) -> None:
        assert gpu_of(name).name == name
        assert gpu_of(name.upper().replace("-", "_")) == gpu_of(name)

    def test_every_number_has_a_dated_source(self, name: str) -> None:
        data = data_of(name)
        numbers = set(data) - {"kernels", "sources", "name"}
        assert set(data["sources"]) == numbers
        undated = [field for field, text in data["sources"].items() if not YEAR.search(text)]
        assert not undated

    def test_faster_formats_are_faster(self, name: str) -> None:
        peaks = gpu_of(name).peak_flop_per_s
        known = [peaks[dtype] for dtype in SLOWEST_FIRST if dtype in peaks]
        assert known == sorted(known)
        assert {"fp32", "fp16"} <= set(peaks)
        assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]

    def test_the_numbers_are_those_of_a_gpu(self, name: str) -> None:
        gpu = gpu_of(name)
        assert 7 * GIB <= gpu.memory_bytes <= 1024 * GIB
        assert 100 * GB <= gpu.memory_bytes_per_s <= 50 * TB
        assert 10 <= gpu.sms <= 500
        assert 50 <= gpu.tdp_w <= 3000
        assert 5 * TFLOP <= gpu.peak("fp32") <= 500 * TFLOP
        assert 25 <= tensor_peak(gpu) / gpu.memory_bytes_per_s <= 1000, "flop per byte at the ridge"

    def test_dense_matrix_rates_double_from_format_to_format(self, name: str) -> None:
        """A rate that is not (nearly) a half or a quarter of its neighbour is most often one with sparsity."""
        peaks = gpu_of(name).peak_flop_per_s
        for slow, fast in (("tf32", "bf16"), ("bf16", "fp8")):
            if {slow, fast} <= set(peaks):
                assert peaks[fast] / peaks[slow] == pytest.approx(2, rel=0.03)

    def test_kernels_stay_below_the_peaks(self, name: str) -> None:
        sustained = gpu_of(name).kernels
        assert 0.2 <= sustained.compute_fraction < 1
        assert 0.2 <= sustained.memory_fraction < 1

    def test_what_it_sustains_was_measured_or_is_anothers_times_what_is_known_of_both(self, name: str) -> None:
        kernels, said = gpu_of(name).kernels, data_of(name)["kernels"]["source"]
        if kernels.provenance == "measured":
            assert "fitted" in said
            assert YEAR.search(said)
            return
        assert kernels.provenance == "transferred"
        found = BORROWED.search(said)
        assert found, said
        lender = gpu_of(found[1])
        assert lender.kernels.provenance == "measured"
        for what in ("compute", "memory"):
            times = re.search(rf"{what} times ([\d.]+),", said)
            assert bool(times) != bool(re.search(rf"({what}|both) as there, assumed", said)), f"{what}: why as much?"
            mine, others = (getattr(one, f"{what}_fraction") for one in (kernels, lender.kernels))
            assert mine == pytest.approx(float(times[1] if times else 1) * others, rel=0.01)

    def test_multiprocessors_do_a_power_of_two_flop_in_a_cycle(self, name: str) -> None:
        """At the highest clock or, where the datasheet states peaks at a lower one, a little less."""
        gpu = gpu_of(name)
        assert 1e9 < clock_per_s(gpu) < 3e9
        per_cycle = tensor_peak(gpu) / gpu.sms / clock_per_s(gpu)
        assert 0.8 < per_cycle / 2 ** round(math.log2(per_cycle)) < 1.05
