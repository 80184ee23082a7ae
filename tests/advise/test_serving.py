"""Advice on inference: closed forms of weights and KV cache, the bound of a token, and what each size of model is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.advise.serving import Load, Placement, kv_numbers_per_layer, usable_bytes
from simulator.advise.serving_advice import ServingAdvice
from simulator.study.collective import collective

H100 = sim.cluster("dgx-h100", nodes=1)
LARGE, LATENT = sim.model("llama3-405b"), sim.model("deepseek-v3")
TWO_NODES = sim.cluster("dgx-h100", nodes=2)


def advised(model: str, gpus: int = 8, **options: Any) -> ServingAdvice:
    return sim.advise_serving(sim.model(model), sim.cluster("dgx-h100", nodes=gpus // 8), **options)


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        ("llama3-70b", 80 * 2 * 8 * 128 * 2),  # grouped queries: 8 key heads of 128 channels, keys and values
        ("llama-7b", 32 * 2 * 32 * 128 * 2),  # as many key heads as heads
        ("deepseek-v3", 61 * (512 + 64) * 2),  # a latent and the rotated channels
        ("mixtral-8x7b", 32 * 2 * 8 * 128 * 2),  # experts keep nothing
    ],
)
def test_bytes_of_the_kv_cache_per_token(model: str, per_token: int) -> None:
    load = Load(sim.model(model), batch=3, context=100, dtype="bf16")
    assert load.kv_bytes_per_token == per_token
    assert load.kv_bytes == 300 * per_token


def test_a_window_keeps_the_tokens_of_the_window() -> None:
    model = sim.model("gemma3-27b")
    each = 2 * model.kv_heads * model.head_dim * 2
    full = model.layers // model.full_attention_every
    context = 131_072
    assert Load(model, 1, context, "bf16").kv_bytes == each * (full * context + (model.layers - full) * model.window)
    assert Load(model, 1, 100, "bf16").kv_bytes == each * model.layers * 100


@given(tp=st.sampled_from([1, 2, 4, 8, 16]), pp=st.integers(1, 16), batch=st.integers(1, 64), context=st.integers(1, 2**17))
def test_gpus_divide_weights_and_cache(tp: int, pp: int, batch: int, context: int) -> None:
    """Up to the number of key heads a cache is divided by tp; beyond that, and of a latent, every rank has a copy."""
    load = Load(LARGE, batch, context, "bf16")
    one = Placement(load, H100, tp, pp)
    share = -(-126 // pp) / 126
    assert one.bytes_per_gpu == pytest.approx(share * (load.weights_bytes / tp + load.kv_bytes / min(tp, 8)))
    assert one.bytes_per_gpu <= Placement(load, H100, 1, pp).bytes_per_gpu
    assert Placement(replace(load, model=LATENT), H100, tp).kv_ways == 1


def test_weights_in_eight_bits_are_those_of_linear_layers() -> None:
    model = sim.model("llama3-8b")
    wide, narrow = (Load(model, 1, 1, dtype).weights_bytes for dtype in ("bf16", "fp8"))
    assert wide == 2 * model.parameters
    head = model.vocab * model.hidden
    assert wide - narrow == model.matmul_parameters - head


def test_a_token_reads_weights_and_cache_once() -> None:
    load = Load(sim.model("llama3-8b"), 4, 1000, "bf16")
    table = load.model.vocab * load.model.hidden
    assert load.read_bytes == 2 * (load.model.parameters - table)  # rows of the embedding are looked up
    one = Placement(load, H100)
    assert one.least_token_s == (load.read_bytes + load.kv_bytes) / H100.gpu.memory_bytes_per_s
    assert Placement(replace(load, model=sim.model("gemma-2b")), H100).load.read_bytes == 2 * sim.model("gemma-2b").parameters


def test_a_batch_reads_the_experts_that_it_uses() -> None:
    model = sim.model("mixtral-8x7b")
    reads = [Load(model, batch, 1, "bf16").read_bytes for batch in (1, 2, 1000)]
    whole = 2 * (model.parameters - model.vocab * model.hidden)
    assert reads[0] == 2 * (model.active_parameters - model.vocab * model.hidden)
    assert reads[0] < reads[1] < reads[2] <= whole
    assert reads[2] == pytest.approx(whole)


def test_all_reduces_and_transfers_are_those_of_the_cluster() -> None:
    load = Load(sim.model("llama3-70b"), 16, 8192, "bf16")
    one = Placement(load, TWO_NODES, 8, 2)
    size = 16 * 8192 * 2
    reduce_s = collective("all_reduce", TWO_NODES, [size], gpus=8, library="vllm").rows[0].time_s
    send_s = collective("sendrecv", TWO_NODES, [size], gpus=2, nodes=2).rows[0].time_s
    assert one.reduce_s == 2 * 80 * reduce_s
    assert one.transfer_s == send_s
    assert one.least_token_s == one.weights_s + one.cache_s + one.reduce_s + one.transfer_s
    assert (Placement(load, H100).reduce_s, Placement(load, H100, 8).transfer_s) == (0, 0)


def test_gemms_take_longer_than_reading_their_weights() -> None:
    """The kernel models hold a GEMM of few tokens to the memory bandwidth, and ranks divide it."""
    load = Load(sim.model("llama3-8b"), 16, 1024, "bf16")
    alone, two = Placement(load, H100), Placement(load, H100, 2)
    assert alone.weights_s < alone.gemms_s < 2 * alone.weights_s
    assert alone.gemms_s / 2 < two.gemms_s < alone.gemms_s
    assert alone.token_s == alone.gemms_s + alone.cache_s
    assert alone.token_s >= alone.least_token_s
    assert Placement(replace(load, dtype="fp8"), H100).gemms_s < alone.gemms_s


def test_whole_experts_are_fewer_gemms_on_each_gpu() -> None:
    load = Load(sim.model("mixtral-8x7b"), 64, 1024, "bf16")
    (whole,) = {gemm.batch for _, gemm in Placement(load, H100, 4, ep=4)._gemms() if gemm.batch > 1}
    sliced = {gemm.batch for _, gemm in Placement(load, H100, 4)._gemms() if gemm.batch > 1}
    assert (whole, sliced) == (2, {8})


def test_a_small_model_has_a_replica_on_every_gpu() -> None:
    advice = advised("llama3.2-1b")
    assert (advice.best.tp, advice.best.pp, advice.replicas) == (1, 1, 8)
    assert advice.flags["vllm"] == "vllm serve MODEL --data-parallel-size 8"
    assert advice.flags["tensorrt-llm"] == "trtllm-serve MODEL"


def test_seventy_billion_parameters_are_divided_in_a_node() -> None:
    advice = advised("llama3-70b")
    assert (advice.best.tp, advice.best.pp, advice.replicas) == (4, 1, 2)
    assert not Placement(advice.load, H100, 2).fits
    assert advice.flags["sglang"] == "python -m sglang.launch_server --model-path MODEL --tp 4 --dp-size 2"


def test_what_no_node_holds_is_divided_across_nodes() -> None:
    advice = advised("llama3-405b", 16)
    assert (advice.best.tp, advice.best.pp) == (8, 2)
    assert advice.flags["vllm"] == "vllm serve MODEL --tensor-parallel-size 8 --pipeline-parallel-size 2"
    assert advice.flags["sglang"].endswith("--tp 8 --pp-size 2")
    assert advice.flags["tensorrt-llm"] == "trtllm-serve MODEL --tp_size 8 --pp_size 2"


def test_experts_are_whole_on_their_gpus() -> None:
    advice = advised("mixtral-8x7b")
    assert (advice.best.tp, advice.best.ep, advice.replicas) == (2, 2, 4)
    assert advice.flags["vllm"] == "vllm serve MODEL --tensor-parallel-size 2 --enable-expert-parallel"
    assert advice.flags["sglang"].endswith("--tp 2 --ep 2")
    assert advice.flags["tensorrt-llm"].endswith("--tp_size 2 --ep_size 2")


def test_a_longer_context_takes_more_gpus() -> None:
    tps = [advised("llama3-8b", batch=32, context=context).best.tp for context in (1024, 16384, 65536)]
    assert tps == sorted(tps)
    assert tps[0] < tps[-1]


def test_every_recommendation_fits() -> None:
    for model in ("gpt2-small", "qwen3-30b-a3b", "gemma3-12b"):
        advice = advised(model)
        assert advice.best.bytes_per_gpu <= usable_bytes(H100)
        assert advice.summary[-4][0] == "recommended"


def test_what_fits_nowhere_is_infeasible() -> None:
    with pytest.raises(sim.Infeasible, match=r"does not fit on 8 GPUs: tp 8 needs .* GiB too much") as refused:
        advised("llama3-405b")
    assert refused.value.over_bytes > 0


def test_formats_are_those_of_the_gpu() -> None:
    with pytest.raises(sim.UserError, match="no weights in 'fp7'"):
        advised("llama3-8b", dtype="fp7")
    with pytest.raises(sim.UserError, match="has no bf16 GEMMs"):
        sim.advise_serving(sim.model("llama3-8b"), sim.cluster("dgx1-v100"))


def test_numbers_per_layer_of_a_latent_do_not_depend_on_heads() -> None:
    model = sim.model("deepseek-v2")
    assert kv_numbers_per_layer(replace(model, heads=1, kv_heads=1)) == kv_numbers_per_layer(model)
