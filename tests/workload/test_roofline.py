"""The roofline: above both roofs, monotone in every size, with its fixed time, on the peak of the right dtype."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.roofline import roofline
from simulator.errors import UserError
from simulator.hardware.gpu import Gpu
from simulator.kernels import Attention, Gemm, Kernel, Part, Rowwise
from simulator.units import NS_PER_S, ns
from tests.batteries.test_gpus import FILES, gpu_of

GPUS = {name: gpu_of(name) for name in FILES}
LENGTHS = st.integers(1, 2**15)
PARTS = st.sampled_from([Part.FORWARD, Part.INPUT_GRADIENT, Part.WEIGHT_GRADIENT])

gemms = st.builds(Gemm, m=LENGTHS, n=LENGTHS, k=LENGTHS, element_bytes=st.just(2), part=PARTS, batch=st.integers(1, 64))
attentions = st.builds(
    Attention,
    batch=st.integers(1, 16),
    seq=LENGTHS,
    heads=st.integers(1, 64),
    kv_heads=st.just(1),
    head_dim=st.sampled_from([64, 128]),
    causal=st.booleans(),
    element_bytes=st.just(2),
    part=st.sampled_from([Part.FORWARD, Part.INPUT_GRADIENT]),
)
rowwises = st.builds(
    Rowwise, op=st.just("add"), rows=LENGTHS, columns=LENGTHS, element_bytes=st.just(2), bytes_per_element=st.integers(2, 12)
)
kernels = st.one_of(gemms, attentions, rowwises)
gpus = st.sampled_from(sorted(GPUS)).map(GPUS.__getitem__)


@given(gpus, kernels)
def test_no_kernel_beats_a_roof_or_the_fixed_time(gpu: Gpu, kernel: Kernel) -> None:
    took = roofline(gpu, "fp16")(kernel)
    assert took >= Fraction(kernel.flop * NS_PER_S) / Fraction(gpu.peak("fp16"))
    assert took >= Fraction(kernel.traffic_bytes * NS_PER_S) / Fraction(gpu.memory_bytes_per_s)
    assert took >= ns(gpu.kernels.fixed_s)


@given(gpus, kernels, st.data())
def test_more_of_anything_takes_no_less(gpu: Gpu, kernel: Kernel, data: st.DataObject) -> None:
    sizes = {Gemm: ("m", "n", "k", "batch"), Attention: ("batch", "seq", "heads"), Rowwise: ("rows", "columns")}[type(kernel)]
    which = data.draw(st.sampled_from(sizes))
    change: dict[str, Any] = {which: getattr(kernel, which) + data.draw(st.integers(1, 4096))}
    cost = roofline(gpu, "fp16")
    assert cost(replace(kernel, **change)) >= cost(kernel)


@given(gpus, kernels)
def test_it_is_the_fixed_time_and_the_slower_of_two(gpu: Gpu, kernel: Kernel) -> None:
    k = gpu.kernels
    fraction = k.compute_fraction
    if isinstance(kernel, Attention):
        fraction = k.attention_forward_fraction if kernel.part is Part.FORWARD else k.attention_backward_fraction
    slower_s = max(kernel.flop / fraction / gpu.peak("fp16"), kernel.traffic_bytes / k.memory_fraction / gpu.memory_bytes_per_s)
    assert roofline(gpu, "fp16")(kernel) == pytest.approx((k.fixed_s + slower_s) * NS_PER_S, rel=1e-9, abs=1)


@pytest.mark.parametrize("name", FILES)
def test_fp32_products_take_the_tf32_peak_where_there_is_one(name: str) -> None:
    gpu, large = GPUS[name], Gemm(8192, 8192, 8192, element_bytes=4)
    peak = gpu.peak_flop_per_s.get("tf32", gpu.peak("fp32"))
    expected_s = gpu.kernels.fixed_s + large.flop / (gpu.kernels.compute_fraction * peak)
    assert roofline(gpu, "fp32")(large) == ns(expected_s)


def test_a_known_product() -> None:
    """8192³ on an H100 in bf16: 3 us, and 1.0995 Tflop at three quarters of 989.4 TFLOP/s."""
    assert roofline(GPUS["h100"], "bf16")(Gemm(8192, 8192, 8192, 2)) == 1_484_722


def test_a_dtype_without_a_peak_is_refused() -> None:
    with pytest.raises(UserError, match="no bf16 peak"):
        roofline(GPUS["v100-32gb"], "bf16")
