"""Section 16 of docs/semantics.md: biases, norms, parallel layers and windows, by operators, collectives and kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import shipped_fits
from simulator.costs.kernels.estimator import Estimator
from simulator.errors import UserError
from simulator.kernels import Attention, Part, Rowwise, Split
from simulator.program.operations import Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.runnable import RunnableScenario
from simulator.simulation.simulate import program_of
from simulator.workload.blocks.dense import BlockOp
from simulator.workload.framework import Framework, Fusion

from ..small_scenarios import scenario, small_cluster, small_model

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, SEQ = 2, 512, 8, 4, 64, 1408, 256
PARALLEL = ("one_norm", "two_norms")


def of(plan: dict[str, Any], framework: Any = None, **model: Any) -> RunnableScenario:
    job = sim.Job(sequence_length=SEQ, global_batch=4)
    more = {"framework": framework} if framework else {}
    return scenario(small_model(LAYERS, **model), small_cluster(1), sim.Plan(**plan), job, **more)


def ops(program: Program, kind: str) -> list[Any]:
    """The operations inside the layers of a forward or a backward pass."""
    body = next(body for name, body in program.bodies.items() if name.startswith(kind))
    return [op for op in body.ops if op.layer >= 0]


def layer(number: int = 0, seq: int = SEQ, prefix: int = 0, **model: Any) -> dict[str, BlockOp]:
    chosen = small_model(LAYERS, **model)
    found = chosen.block.layer(chosen, batch=1, seq=seq, element_bytes=2, prefix=prefix, number=number)
    return {op.name: op for op in found}


def attention(model: Any, number: int) -> Attention:
    found = next(
        op for op in model.block.layer(model, batch=1, seq=SEQ, element_bytes=2, number=number) if op.name == "attention"
    )
    assert isinstance(found.forward, Attention)
    return found.forward


@pytest.mark.parametrize(
    ("bias", "added"),
    [
        (False, 0),
        ("qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM),
        ("attention", (HEADS + 2 * KV_HEADS) * HEAD_DIM + HIDDEN),
        ("mlp", 2 * FFN + HIDDEN),
        (True, (HEADS + 2 * KV_HEADS) * HEAD_DIM + 2 * FFN + 2 * HIDDEN),
    ],
)
def test_t16_1_biases_are_where_they_are_said_to_be(bias: Any, added: int) -> None:
    assert small_model(LAYERS, bias=bias).parameters == small_model(LAYERS).parameters + LAYERS * added
    program = program_of(of({"tp": 4}, Framework(fusion=Fusion(bias=False)), bias=bias))
    kernels = [op.kernel for op in ops(program, "F") if isinstance(op, Compute)]
    widths = [kernel.columns for kernel in kernels if isinstance(kernel, Rowwise) and kernel.op == "bias"]
    whole = {"qkv": (HEADS + 2 * KV_HEADS) * HEAD_DIM // 4, "out": HIDDEN, "up": 2 * FFN // 4, "down": HIDDEN}
    there = {False: (), "qkv": ("qkv",), "attention": ("qkv", "out"), "mlp": ("up", "down"), True: tuple(whole)}[bias]
    assert widths == [whole[name] for name in there] * LAYERS


@pytest.mark.parametrize(
    ("norms", "order"),
    [
        ("before", "attention_norm qkv attention_out attention_residual mlp_norm mlp_up mlp_down mlp_residual"),
        ("after", "qkv attention_out attention_post_norm attention_residual mlp_up mlp_down mlp_post_norm mlp_residual"),
        (
            "both",
            "attention_norm qkv attention_out attention_post_norm attention_residual "
            "mlp_norm mlp_up mlp_down mlp_post_norm mlp_residual",
        ),
    ],
)
def test_t16_2_norms_stand_before_or_behind_attention_and_mlp(norms: str, order: str) -> None:
    inside = ("rope", "attention", "gated_activation")
    assert [name for name in layer(norms=norms) if name not in inside] == order.split()


@pytest.mark.parametrize(
    ("norm", "learned", "each"), [("layernorm", "all", 2), ("layernorm", "weight", 1), ("rmsnorm", "none", 0)]
)
def test_t16_2_norms_learn_what_they_are_said_to_learn(norm: str, learned: str, each: int) -> None:
    found = layer(norm=norm, norm_parameters=learned)
    assert [found[name].parameters for name in ("attention_norm", "mlp_norm")] == [each * HIDDEN] * 2
    assert found["mlp_norm"].fused_weight_gradient == (each > 0)


def test_t16_3_norms_of_heads_are_divided_by_heads_and_their_weights_are_whole() -> None:
    norm = next(op for op in ops(program_of(of({"tp": 4}, qk_norm="head")), "F") if op.operator.endswith("qk_norm"))
    assert (norm.kernel.rows, norm.kernel.columns) == (SEQ * (HEADS + KV_HEADS) // 4, HEAD_DIM)
    assert norm.parameters == 2 * HEAD_DIM
    assert list(layer(qk_norm="head"))[1:4] == ["qkv", "qk_norm", "rope"]


def test_t16_3_a_norm_over_all_heads_is_not_divided() -> None:
    assert layer(qk_norm="full")["qk_norm"].parameters == (HEADS + KV_HEADS) * HEAD_DIM
    assert of({"tp": 1}, qk_norm="full").simulate()
    with pytest.raises(UserError, match="over all heads"):
        of({"tp": 2}, qk_norm="full").simulate()


@pytest.mark.parametrize("norms", PARALLEL)
def test_t16_4_a_parallel_layer_adds_its_branches_and_keeps_a_shared_input_once(norms: str) -> None:
    found, usual = layer(parallel_mlp=norms), layer()
    assert list(found)[-2:] == ["branches", "mlp_residual"]
    assert ("mlp_norm" in found) == (norms == "two_norms")
    kept, of_sequence = (sum(op.saved_bytes for op in each.values()) for each in (found, usual))
    shared = 2 if norms == "one_norm" else 1  # the input of both norms, or of the one norm and of both GEMMs behind it
    assert of_sequence - kept == shared * 2 * SEQ * HIDDEN
    for flop in ("forward", "input_gradient", "weight_gradient"):
        first, second = (sum(getattr(op, flop).flop for op in each.values() if getattr(op, flop)) for each in (found, usual))
        assert first == second


@pytest.mark.parametrize("norms", PARALLEL)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("framework", ["none", "megatron-lm-2021", "megatron-core-2025", "torchtitan-2024"])
def test_t16_5_a_parallel_layer_is_reduced_once_forward_and_twice_backward(norms: str, overlap: bool, framework: str) -> None:
    plan = {"tp": 2, "dp": 2, "sequence_parallel": False, "overlap": sim.Overlap(tp=overlap)}
    program = program_of(of(plan, replace(sim.framework(framework), dropout=True), parallel_mlp=norms, bias=True))
    for kind, times in (("F", 1), ("B", 2)):
        summed = [op for op in ops(program, kind) if isinstance(op, Collective)]
        assert [op.payload_bytes for op in summed] == [SEQ * HIDDEN * 2] * times * LAYERS
        assert {op.kind for op in summed} == {"all_reduce"}


@pytest.mark.parametrize("norms", PARALLEL)
def test_t16_5_with_sequence_parallelism_both_row_layers_scatter_and_gather_once(norms: str) -> None:
    program = program_of(of({"tp": 2, "dp": 2}, parallel_mlp=norms))
    found = {kind: Counter(op.purpose for op in ops(program, kind) if isinstance(op, Collective)) for kind in "FB"}
    assert found["F"] == {Purpose.GATHER: 2 * LAYERS, Purpose.REDUCE: LAYERS}
    assert found["B"] == {Purpose.GATHER: LAYERS, Purpose.REGATHER: 2 * LAYERS, Purpose.REDUCE: 2 * LAYERS}
    order = [op.operator for op in ops(program, "B") if op.layer == LAYERS - 1]
    first = next(i for i, op in enumerate(ops(program, "B")) if isinstance(op, Collective))
    assert order[first].endswith("branches"), "the gradient is gathered before the branches part"
    whole = [op.kernel.shape for op in ops(program, "F") if isinstance(op, Compute) and op.split is Split.SUM]
    assert whole == [Rowwise("add", SEQ, HIDDEN, 2, 6).shape] * LAYERS


WINDOWS = st.integers(1, 600)


@given(WINDOWS, st.integers(0, 500), st.integers(1, 500), st.booleans())
def test_t16_6_a_window_computes_its_area(window: int, prefix: int, seq: int, chunked: bool) -> None:
    """The scores of a token at distance x from the start of its sequence or chunk are x, and at most the window."""
    kernel = Attention(2, seq, 4, 2, 8, True, 2, prefix=prefix, window=window, chunked=chunked)
    full = Attention(2, seq, 4, 2, 8, True, 2, prefix=prefix)
    starts = range(prefix, prefix + seq)
    twice = sum(min(2 * (i % window if chunked else i) + 1, 2 * window) for i in starts)
    assert kernel.flop == 4 * 2 * 4 * 8 * twice // 2
    assert kernel.flop <= full.flop
    assert kernel.model_flop == full.model_flop
    assert (kernel.flop == full.flop) == (window >= prefix + seq)


@given(WINDOWS, st.integers(1, 8), st.integers(1, 64), st.booleans(), st.sampled_from([Part.FORWARD, Part.INPUT_GRADIENT]))
def test_t16_6_parts_of_a_sequence_add_up_in_a_window_too(window: int, parts: int, seq: int, chunked: bool, part: Part) -> None:
    def flop(tokens: int, prefix: int) -> int:
        return Attention(1, tokens, 4, 4, 8, True, 2, part, prefix, window, chunked).flop

    assert sum(flop(seq, number * seq) for number in range(parts)) == flop(parts * seq, 0)


@pytest.mark.parametrize("kind", ["sliding", "chunked"])
def test_t16_6_a_window_of_the_whole_sequence_is_none(kind: str) -> None:
    """By flop, by words, and by time and its provenance: the kernel itself may yet be that of more tokens."""
    estimator = Estimator(shipped_fits.gpu("h100"), "bf16", shipped_fits.shipped())

    def told(window: int, prefix: int) -> Any:
        found = layer(window=window, window_kind=kind if window else "sliding", prefix=prefix)["attention"]
        kernels = [kernel for kernel in (found.forward, found.input_gradient) if isinstance(kernel, Attention)]
        assert len(kernels) == 2
        return [(kernel.flop, kernel.shape, estimator.estimate(kernel)) for kernel in kernels], found.saved_bytes

    for prefix in (0, SEQ):
        assert told(SEQ + prefix, prefix) == told(2 * SEQ + prefix, prefix) == told(0, prefix)
        assert told(SEQ + prefix - 1, prefix) != told(0, prefix)


def test_t16_7_every_nth_layer_sees_all_tokens_and_equal_stages_share_bodies() -> None:
    model = small_model(12, window=64, full_attention_every=3)
    assert [attention(model, number).window for number in range(6)] == [64, 64, 0, 64, 64, 0]
    plan = sim.Plan(pp=4, dp=1)
    program = program_of(scenario(model, small_cluster(1), plan, sim.Job(sequence_length=SEQ, global_batch=4)))
    assert set(program.bodies) >= {"F of 2 windowed, 1 full layers", "F of embedding, 2 windowed, 1 full layers"}
    uneven = program_of(scenario(small_model(8, window=64, full_attention_every=3), small_cluster(1), plan))
    assert {name for name in uneven.bodies if name.startswith("F")} == {
        "F of embedding, 2 windowed layers", "F of 1 full, 1 windowed layers", "F of 1 windowed, 1 full layers",
        "F of 2 windowed layers, head",
    }  # fmt: skip
    for name, windows in (("F of 1 full, 1 windowed layers", [0, 64]), ("F of 1 windowed, 1 full layers", [64, 0])):
        kernels = [op.kernel for op in uneven.bodies[name].ops if isinstance(op, Compute)]
        assert [kernel.window for kernel in kernels if isinstance(kernel, Attention)] == windows


@pytest.mark.parametrize("gpu", ["h100", "a100-80gb", "l40s"])
@pytest.mark.parametrize("part", [Part.FORWARD, Part.INPUT_GRADIENT])
def test_t16_8_a_window_takes_its_share_of_the_time(gpu: str, part: Part) -> None:
    estimator = Estimator(shipped_fits.gpu(gpu), "bf16", shipped_fits.shipped())
    whole, *windows = (Attention(1, 32768, 32, 8, 128, True, 2, part, window=window) for window in (0, 16384, 4096, 1024, 1))
    took = [estimator.estimate(kernel) for kernel in (whole, *windows)]
    for kernel, one in zip(windows[:3], took[1:4], strict=True):
        assert one.seconds == pytest.approx(took[0].seconds * kernel.flop / whole.flop, rel=0.02)
        assert one.provenance != "measured"
        assert one.sigma > took[0].sigma
    moved_s = whole.traffic_bytes / shipped_fits.gpu(gpu).memory_bytes_per_s
    assert took[3].seconds > took[4].seconds > moved_s


def test_t16_9_model_flop_count_all_scores() -> None:
    with_window, without = (of({"tp": 2}, **more).simulate() for more in ({"window": 16}, {}))
    seconds = with_window.metrics.step_time_s / without.metrics.step_time_s
    assert seconds < 1
    assert with_window.metrics.mfu == pytest.approx(without.metrics.mfu / seconds)
    assert with_window.metrics.hfu == pytest.approx(with_window.metrics.mfu)


def test_t16_10_alibi_costs_nothing_and_an_embedding_norm_is_a_norm() -> None:
    assert layer(positions="alibi") == layer(positions="none")
    model = small_model(LAYERS, embedding_norm=True)
    assert model.parameters == small_model(LAYERS).parameters + HIDDEN
    assert [op.name for op in model.block.embedding(model, batch=1, seq=SEQ, element_bytes=2)] == ["embedding", "embedding_norm"]
