"""`trainsim kernel`: what it takes, what it says, what it refuses."""

from __future__ import annotations

import re

import pytest

import simulator as sim
from simulator.config import shipped_fits, step_constants
from simulator.costs.kernels.estimator import Estimator
from simulator.kernels import Attention, Gemm
from simulator.measurements.kernel_words import KNOWN
from simulator.study.kernel_time import MEANINGS
from simulator.units import US_PER_S
from tests.commandline import trainsim

TIMES = ("time_us", "burst_us", "sustained_us")
FIELDS = {"op", "gpu", "dtype", "power", *TIMES, "model", "provenance", "sigma", "extrapolated", "tflop_per_s", "gb_per_s"}
PRODUCT = ("gemm", "--gpu", "h100", "-m", 8192, "-n", 4096, "-k", 2048)
ATTENTION = ("attention", "--gpu", "h100", "--batch", 2, "--seq", 4096, "--heads", 32, "--kv-heads", 8, "--head-dim", 128)


@pytest.mark.parametrize(("word", "kernel"), MEANINGS.items())
def test_names_of_other_programs_are_understood(word: str, kernel: str) -> None:
    said = trainsim("kernel", word, "--gpu", "h100")
    assert said.code == 2
    assert f"did you mean {kernel!r}?" in said.err
    assert kernel in KNOWN


def test_both_times_stand_under_their_names_and_no_rate_is_zero() -> None:
    said = dict(re.split(r"  +", line, maxsplit=1) for line in trainsim("kernel", *PRODUCT).out.splitlines())
    assert "give or take" in said["time, burst of 12 launches"]
    assert said["time, sustained"].endswith("us, at the clock of a step of one GPU")
    said = dict(
        re.split(r"  +", line, maxsplit=1) for line in trainsim("kernel", *PRODUCT, "--power", "sustained").out.splitlines()
    )
    assert "give or take" in said["time, sustained"]
    norm = trainsim("kernel", "rmsnorm", "--gpu", "h100", "-m", 4096, "-n", 4096).out
    assert "GB/s" in norm
    assert "TFLOP/s" not in norm
    assert "rate" not in trainsim("kernel", "add_backward", "--gpu", "h100", "-m", 8, "-n", 8, "--eager").out


def test_t21_9_a_step_of_one_gpu_takes_its_factor_on_arithmetic_beyond_the_sustained_time() -> None:
    cluster = {"name": "dgx-h100", "nodes": 1, "gpus_per_node": 1}
    model = {"layers": 1, "hidden": 2048, "heads": 16, "ffn_hidden": 4096, "vocab": 32000}
    run = sim.scenario({"model": model, "cluster": cluster, "job": {"sequence_length": 8192, "global_batch": 1}}).simulate()
    (of_step,) = (cost for cost in run.kernel_costs if cost.name == "mlp_up")
    record = trainsim("kernel", "gemm", "--gpu", "h100", "-m", 8192, "-n", 4096, "-k", 2048, "--json").record
    assert of_step.seconds_each * US_PER_S == pytest.approx(step_constants.arithmetic() * record["sustained_us"], rel=1e-9)


def test_a_product_is_that_of_the_model() -> None:
    record = trainsim("kernel", *PRODUCT, "--json").record
    expected = Estimator(shipped_fits.gpu("h100"), "bf16", shipped_fits.shipped()).estimate(Gemm(8192, 4096, 2048, 2))
    assert set(record) == FIELDS
    assert record["time_us"] == expected.seconds * US_PER_S
    assert (record["provenance"], record["sigma"], record["extrapolated"]) == ("measured", expected.sigma, False)
    assert record["tflop_per_s"] == pytest.approx(2 * 8192 * 4096 * 2048 / expected.seconds / 1e12)


def test_attention_is_causal_unless_told_otherwise() -> None:
    record, full = (trainsim("kernel", *ATTENTION, *more, "--json").record for more in ((), ("--full",)))
    expected = Estimator(shipped_fits.gpu("h100"), "bf16", shipped_fits.shipped()).estimate(
        Attention(2, 4096, 32, 8, 128, True, 2)
    )
    assert record["time_us"] == expected.seconds * US_PER_S
    assert trainsim("kernel", *ATTENTION, "--causal", "--json").record == record
    assert 1.5 < full["time_us"] / record["time_us"] < 2.1


def test_text_says_what_the_record_says() -> None:
    said = trainsim("kernel", *PRODUCT)
    assert said.code == 0
    for word in ("us, give or take", "% (one standard error)", "gemm: bf16 any of h100", "measured", "TFLOP/s"):
        assert word in said.out


def test_another_gpu_borrows_and_says_so() -> None:
    record = trainsim("kernel", "gemm", "--gpu", "gh200-96gb", "-m", 8192, "-n", 8192, "-k", 8192, "--json").record
    assert record["provenance"] == "transferred"
    assert "h100" in record["model"]


def test_beyond_the_measured_sizes() -> None:
    said = trainsim("kernel", "gemm", "--gpu", "h100", "-m", 10**6, "-n", 8192, "-k", 8192)
    assert "beyond the measured sizes" in said.out


@pytest.mark.parametrize(
    "op", ["rmsnorm", "layernorm_backward", "swiglu", "add", "rope", "softmax", "cross_entropy", "adam", "embedding"]
)
def test_memory_bound_operators(op: str) -> None:
    record = trainsim("kernel", op, "--gpu", "h100", "-m", 8192, "-n", 8192, "--json").record
    eager = trainsim("kernel", op, "--gpu", "h100", "-m", 8192, "-n", 8192, "--eager", "--json").record
    assert 30 < record["time_us"] <= eager["time_us"]
    assert record["gb_per_s"] < 3350


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("rmsnorm_bwd", "rmsnorm_backward"), ("cross_entropy_bwd", "cross_entropy_backward"), ("elementwise", "add"),
     ("elementwise_bwd", "add_backward"), ("swiglu_bwd", "silu_gated_backward"), ("Layer-Norm", "layernorm")],
)  # fmt: skip
def test_names_as_tables_write_them(theirs: str, ours: str) -> None:
    records = [trainsim("kernel", op, "--gpu", "h100", "-m", 4096, "-n", 8192, "--json").record for op in (theirs, ours)]
    assert {**records[0], "op": ""} == {**records[1], "op": ""}


def test_backward_of_a_product_is_both_of_its_products() -> None:
    def time_us(op: str, m: int, n: int, k: int) -> float:
        said = trainsim("kernel", op, "--gpu", "h100", "-m", m, "-n", n, "-k", k, "--json")
        return float(said.record["time_us"])

    whole = time_us("gemm_bwd", 8192, 4096, 2048)
    assert whole == pytest.approx(time_us("gemm", 8192, 2048, 4096) + time_us("gemm", 2048, 4096, 8192))
    assert whole == time_us("gemm_backward", 8192, 4096, 2048)


def test_attention_forward_and_backward_together() -> None:
    times = {
        op: trainsim("kernel", op, *ATTENTION[1:], "--json").record["time_us"]
        for op in ("attention_fwd", "attention_bwd", "attention_fwd_bwd")
    }
    assert times["attention_fwd_bwd"] == pytest.approx(times["attention_fwd"] + times["attention_bwd"])


def test_the_scalar_of_a_site() -> None:
    plain, site = (trainsim("kernel", *PRODUCT, *more, "--json").record for more in ((), ("--site-scalar", 1.5)))
    assert site == {**plain, **{name: site[name] for name in (*TIMES, "tflop_per_s", "gb_per_s")}, "site_scalar": 1.5}
    assert site["time_us"] == pytest.approx(1.5 * plain["time_us"])
    assert "every kernel takes 1.5 times as long" in trainsim("kernel", *PRODUCT, "--site-scalar", 1.5).out


def test_formats() -> None:
    times = {}
    for dtype in ("bf16", "fp8", "fp8-block", "tf32", "fp32"):
        times[dtype] = trainsim("kernel", *PRODUCT, "--dtype", dtype, "--json").record["time_us"]
    assert times["fp8"] < times["fp8-block"] < times["bf16"] < times["tf32"] < times["fp32"]
    narrow = trainsim("kernel", "gemm", "--gpu", "b200", "--dtype", "nvfp4", "-m", 8192, "-n", 8192, "-k", 8192, "--json")
    assert narrow.record["tflop_per_s"] > 3000


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
def test_adam_updates_fp32_whatever_the_weights_are_in(dtype: str) -> None:
    """Master weights and moments read and written, the gradient read, and weights of 16 bits written: 30 bytes a parameter."""
    record = trainsim("kernel", "adamw", "--gpu", "h100", "-m", 1, "-n", 10**9, "--dtype", dtype, "--json").record
    assert record["gb_per_s"] * record["time_us"] / 1e6 == pytest.approx(30)


@pytest.mark.parametrize("dtype, each", [("fp8", 3), ("mxfp8", 3), ("nvfp4", 2.5625)])
@pytest.mark.parametrize("op", ["cast", "quantise"])
def test_a_cast_reads_16_bits_and_writes_the_format(op: str, dtype: str, each: float) -> None:
    record = trainsim("kernel", op, "--gpu", "b200", "-m", 8192, "-n", 7168, "--dtype", dtype, "--json").record
    assert record["gb_per_s"] * record["time_us"] * 1e3 / (8192 * 7168) == pytest.approx(each)


def test_experts_take_the_fit_of_experts() -> None:
    shape = ("--gpu", "b200", "-m", 4096, "-n", 4096, "-k", 4096, "--batch", 128, "--top-k", 8)
    wide, narrow = (trainsim("kernel", "moe_ffn", *shape, "--dtype", dtype, "--json").record for dtype in ("bf16", "fp8"))
    assert (wide["provenance"], narrow["provenance"]) == ("measured", "transferred")
    assert wide["model"] == narrow["model"] == "moe: bf16 any of b200"
    assert 1 < wide["time_us"] / narrow["time_us"] < 2.1
    assert wide["tflop_per_s"] == pytest.approx(6 * 4096 * 8 * 4096**2 / wide["time_us"] / 1e6)


def test_libraries_differ() -> None:
    times = [trainsim("kernel", *ATTENTION, "--library", name, "--json").record["time_us"] for name in ("unfused", "fa2", "fa3")]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    "args, says",
    [
        (("gem", "--gpu", "h100", "-m", 1, "-n", 1, "-k", 1), "did you mean 'gemm'?"),
        (("gemm", "--gpu", "h10", "-m", 1, "-n", 1, "-k", 1), "did you mean 'h100'?"),
        (("gemm", "--gpu", "h100", "-m", 1, "-n", 1), "-k is missing"),
        (
            ("gemm", "--gpu", "h100", "-m", 64),
            "-n, -k are missing\n    hint: trainsim kernel gemm --gpu h100 -m 64 -n 8192 -k 8192",
        ),
        (("attention", "--gpu", "h100", "--heads", 8), "--seq is missing"),
        (("attention", "--gpu", "h100"), "--seq, --heads are missing\n    hint: trainsim kernel attention --gpu h100 --seq 4096"),
        (("moe_ffn", "--gpu", "h100", "-m", 8, "-n", 8, "-k", 8), "--top-k is missing"),
        (("moe_ffn", "--gpu", "h100", "-m", 8, "-n", 8, "-k", 8, "--batch", 4, "--top-k", 5), "--top-k 5: there are 4 experts"),
        ((*PRODUCT, "--top-k", 2), "--top-k: says nothing about gemm"),
        (("adam_bwd", "--gpu", "h100", "-m", 8, "-n", 8), "adam has no backward pass"),
        (("memcpy_backward", "--gpu", "h100", "-m", 8, "-n", 8), "copy has no backward pass"),
        (("attention", "--gpu", "h100", "--seq", 8, "--heads", 8, "--kv-heads", 3), "--kv-heads divides --heads"),
        ((*PRODUCT, "--dtype", "bf61"), "did you mean 'bf16'?"),
        ((*PRODUCT, "--library", "fa33"), "did you mean 'fa3'?"),
        (("gemm", "--gpu", "v100-32gb", "--dtype", "bf16", "-m", 1, "-n", 1, "-k", 1), "has no bf16 peak"),
        (("gemm", "--gpu", "h100", "-m", 0, "-n", 1, "-k", 1), "error: -m 0 is out of range\n    hint: nearest legal: -m 1"),
        ((*PRODUCT, "--seq", 4, "--full"), "--seq, --causal/--full: says nothing about gemm"),
        ((*PRODUCT, "--eager"), "--eager: says nothing about gemm"),
        ((*PRODUCT, "--library", "fa3"), "fa3 has no gemm that was measured"),
        ((*ATTENTION, "-k", 8), "-k: says nothing about attention"),
        ((*ATTENTION, "--eager"), "--eager: says nothing about attention"),
        ((*ATTENTION, "--library", "sglang"), "sglang has no attention that was measured"),
        (("add", "--gpu", "h100", "-m", 1, "-n", 1, "-k", 1), "-k: says nothing about add"),
        (("rmsnorm_bwd", "--gpu", "h100", "-m", 1, "-n", 1, "--head-dim", 64), "--head-dim: says nothing about rmsnorm_bwd"),
        (("add", "--gpu", "h100", "-m", 1, "-n", 1, "--library", "fa3"), "--library: says nothing about add"),
        (("gemm_bwd", "--gpu", "h100", "-m", 1, "-n", 1), "-k is missing"),
        ((*PRODUCT, "--site-scalar", "nan"), "should be a number of at least 0.001"),
        ((*PRODUCT, "--site-scalar", 0), "should be a number of at least 0.001"),
        ((*PRODUCT, "--site-scalar", "1e300"), "and at most 1,000"),
    ],
)
def test_what_is_wrong_is_said(args: tuple[object, ...], says: str) -> None:
    said = trainsim("kernel", *args)
    assert said.code == 2
    assert says in said.err


def test_all_words_that_are_wrong_are_told_at_once() -> None:
    said = trainsim("kernel", "gem", "--gpu", "h10", "--dtype", "bf6", "--library", "fa33")
    assert said.code == 2
    for word, meant in (("h10", "h100"), ("bf6", "bf16"), ("gem", "gemm"), ("fa33", "fa3")):
        assert word in said.err
        assert f"did you mean {meant!r}?" in said.err


@pytest.mark.parametrize(
    ("gpu", "sms", "clock_hz", "a_cycle", "provenance"),
    [("h100", 132, 1.98e9, 16, "transferred"), ("b200", 148, 1.965e9, 16, "measured")],
)
def test_attention_in_eight_bits_takes_as_long_over_exponentials(
    gpu: str, sms: int, clock_hz: float, a_cycle: int, provenance: str
) -> None:
    sizes = ("--gpu", gpu, "--seq", 32768, "--heads", 32, "--full", "--json")
    bf16, fp8 = (trainsim("kernel", "attention", "--dtype", dtype, *sizes).record for dtype in ("bf16", "fp8"))
    exponentials_us = 32 * 32768**2 / (a_cycle * sms * clock_hz) * 1e6
    assert exponentials_us < float(fp8["time_us"]) < float(bf16["time_us"])
    assert (bf16["provenance"], fp8["provenance"]) == ("measured", provenance)
    assert float(fp8["sigma"]) > float(bf16["sigma"])


def test_nobody_has_attention_in_four_bits() -> None:
    for gpu in ("b200", "rtx-pro-6000"):
        done = trainsim("kernel", "attention", "--gpu", gpu, "--dtype", "nvfp4", "--seq", 4096, "--heads", 32)
        assert done.code == 2
        assert "no attention runs in nvfp4" in done.err


@pytest.mark.parametrize("gpu", ["l40s", "l4", "rtx-pro-6000"])
def test_attention_in_eight_bits_is_no_halved_one_where_kernels_are_portable(gpu: str) -> None:
    sizes = ("--gpu", gpu, "--seq", 4096, "--heads", 32, "--json")
    bf16, fp8 = (trainsim("kernel", "attention", "--dtype", dtype, *sizes).record for dtype in ("bf16", "fp8"))
    assert 0.5 < float(fp8["time_us"]) / float(bf16["time_us"]) < 1
    assert float(fp8["sigma"]) > float(bf16["sigma"])
