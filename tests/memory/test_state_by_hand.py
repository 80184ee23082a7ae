"""State of a rank by hand: parameters, gradients, master copy and moments of a dense model and of one with experts.

The bytes of a parameter follow Rajbhandari et al., arXiv 1910.02054 (2 + 2 + 12 with Adam), and what frameworks keep: gradients
in the format in which they accumulate, and in PyTorch's FSDP a master copy in place of parameters in 16 bits.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

import simulator as sim
from simulator.program.holdings import Holding
from simulator.simulation.memory_check import memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of

from ..small_scenarios import scenario, small_cluster, small_model

HIDDEN, VOCAB, LAYERS, INNER, EXPERTS, WIDTH = 512, 4096, 8, 1408, 8, 704
ATTENTION = HIDDEN * (512 + 2 * 256) + 512 * HIDDEN
ENDS = 2 * VOCAB * HIDDEN + HIDDEN
DENSE = LAYERS * (ATTENTION + 2 * HIDDEN + 3 * HIDDEN * INNER) + ENDS
AROUND_EXPERTS = LAYERS * (ATTENTION + 2 * HIDDEN + HIDDEN * EXPERTS) + ENDS
OF_EXPERTS = LAYERS * EXPERTS * 3 * HIDDEN * WIDTH
MIXTURE = {"experts": EXPERTS, "experts_per_token": 2, "expert_ffn_hidden": WIDTH, "ffn_hidden": WIDTH}


def of(plan: dict[str, Any], *, dtype: Any = "bf16", mixture: bool = False, **framework: Any) -> Scenario:
    model, job = small_model(LAYERS, **(MIXTURE if mixture else {})), sim.Job(32, 64, 1, dtype=dtype)
    cluster = small_cluster(2, gpu="b200" if dtype == "mxfp8" else "h100")
    return scenario(model, cluster, sim.Plan(**plan), job, framework=sim.framework(framework))


def state(chosen: Scenario) -> tuple[int, int, int, int]:
    """Bytes of parameters, gradients, master copy and moments, without gathered parameters."""
    (rank,) = memory_of(chosen, layout_of(chosen))
    kinds = (Holding.PARAMETERS, Holding.GRADIENTS, Holding.MASTER, Holding.MOMENTS)
    return tuple(rank.bytes_of(kind) for kind in kinds)  # type: ignore[return-value]


def by_hand(kind: str, element: int, gradient: int, parts: list[tuple[int, int]], *, beside: bool) -> tuple[int, ...]:
    """The same from the parameters of each part of a model, and the number of ranks that divide the state of the part."""
    gathers, alone = kind in ("zero3", "fsdp", "hsdp"), kind in ("fsdp", "hsdp") and not beside
    widths = (4, 4, 0, 8) if alone else (element, gradient, 4 if element < 4 else 0, 8)
    divided = (gathers, gathers or kind == "zero2", kind != "none", kind != "none")
    return tuple(
        sum(width * (ceil(count / ranks) if is_divided else count) for count, ranks in parts)
        for width, is_divided in zip(widths, divided, strict=True)
    )


KINDS = ["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "element"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
@pytest.mark.parametrize(("gradients", "gradient"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("beside", [False, True])
def test_t13_10_the_state_of_a_dense_model(
    kind: Any, dtype: str, element: int, gradients: str, gradient: int, beside: bool
) -> None:
    """Divided among eight ranks, or, in groups, among four. Gradients of a master copy are in fp32, whatever was reduced."""
    ranks = 4 if kind == "hsdp" else 8
    plan = {"dp": 8, "sharding": sim.Sharding(kind, group=ranks if kind == "hsdp" else None)}
    chosen = of(plan, dtype=dtype, gradients=gradients, weights_beside_master=beside)
    assert state(chosen) == pytest.approx(by_hand(kind, element, gradient, [(DENSE, ranks)], beside=beside), abs=8)


LINEAR = LAYERS * (ATTENTION + 3 * HIDDEN * INNER)
EVERY_PASS = {"cached_weights": False}


@pytest.mark.parametrize(
    ("dtype", "recipe", "each"),
    [("fp8", {}, 2 + 2), ("fp8", EVERY_PASS, 2), ("fp8", {"narrow_parameters": ["fp8"]}, 2), ("mxfp8", {}, 2 + 2 * 33 / 32),
     ("fp8", {"narrow_parameters": ["mxfp8"]}, 4), ("fp8", {**EVERY_PASS, "narrow_parameters": ["fp8"]}, 2),
     ("mxfp8", {"narrow_parameters": ["mxfp8"]}, 2 * 33 / 32), ("bf16", {"narrow_parameters": ["fp8"]}, 2)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["none", "zero1", "zero2"])
def test_t11_13_narrow_copies_of_weights(kind: Any, dtype: str, recipe: dict[str, Any], each: float) -> None:
    """In both layouts, beside weights in 16 bits or in their place; embedding, head and norms stay in 16 bits."""
    chosen = of({"dp": 8, "sharding": kind}, dtype=dtype, low_precision=recipe)
    expected = by_hand(kind, 2, 4, [(DENSE, 8)], beside=False)
    assert state(chosen) == pytest.approx((expected[0] + (each - 2) * LINEAR, *expected[1:]), abs=8)


def test_t11_13_gpus_that_read_any_layout_need_one_copy() -> None:
    model, job, recipe = small_model(LAYERS), sim.Job(32, 64, 1, dtype="fp8"), {"any_layout": True}
    for gpu, each, alone in (("b200", 3, 1), ("h100", 4, 2)):
        for formats, expected in (([], each), (["fp8"], alone)):
            software = sim.framework({"low_precision": {**recipe, "narrow_parameters": formats}})
            chosen = scenario(model, small_cluster(2, gpu=gpu), sim.Plan(dp=8), job, framework=software)
            assert state(chosen)[0] == 2 * (DENSE - LINEAR) + expected * LINEAR


@pytest.mark.parametrize("kind", ["zero3", "fsdp"])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("dtype", "formats", "spared"), [("fp8", [], 0), ("fp8", ["fp8"], 1), ("mxfp8", ["mxfp8"], 0)])
def test_t11_13_weights_that_every_pass_gathers_have_no_copies_between_passes(
    kind: Any, beside: bool, dtype: str, formats: list[str], spared: int
) -> None:
    """A share in fp8 takes a byte less of each, unless the master copy is all that a rank holds."""
    recipe = {"low_precision": {"narrow_parameters": formats}, "weights_beside_master": beside}
    parameters, *others = state(of({"dp": 8, "sharding": kind}, dtype=dtype, **recipe))
    expected, *rest = by_hand(kind, 2, 4, [(DENSE, 8)], beside=beside)
    narrow = spared if kind == "zero3" or beside else 0
    assert [parameters, *others] == pytest.approx([expected - narrow * LINEAR / 8, *rest], abs=8)


@pytest.mark.parametrize("ep", [1, 4])
def test_t11_13_experts_have_narrow_copies_too(ep: int) -> None:
    """The router stays in 16 bits."""
    plain, narrow = (state(of({"dp": 8, "ep": ep}, mixture=True, dtype=dtype)) for dtype in ("bf16", "fp8"))
    assert narrow[0] - plain[0] == 2 * (LAYERS * ATTENTION + OF_EXPERTS // ep)
    assert narrow[1:] == plain[1:]


@pytest.mark.parametrize(("kind", "ep"), [(kind, ep) for kind in KINDS for ep in (1, 2, 4, 8) if (kind, ep) != ("hsdp", 8)])
def test_t13_10_the_state_of_experts_is_divided_among_their_copies(kind: Any, ep: int) -> None:
    """Eight ranks hold the rest of the model; an expert has 8 / ep copies, or 4 / ep in groups of four."""
    ranks = 4 if kind == "hsdp" else 8
    plan = {"dp": 8, "ep": ep, "sharding": sim.Sharding(kind, group=ranks if kind == "hsdp" else None)}
    expected = by_hand(kind, 2, 4, [(AROUND_EXPERTS, ranks), (OF_EXPERTS // ep, ranks // ep)], beside=False)
    assert state(of(plan, mixture=True)) == pytest.approx(expected, abs=16)


@pytest.mark.parametrize(("kind", "reduce", "width"), [("fsdp", "last", 2), ("zero2", None, 2 / 8), ("fsdp", "each", 4 / 8)])
def test_t13_10_gradients_that_wait_for_the_last_microbatch_are_those_of_the_passes(kind: Any, reduce: Any, width: float) -> None:
    """Whole and in the format in which they accumulate; a share is in the format of its parameters as soon as it is reduced."""
    found = state(of({"dp": 8, "sharding": sim.Sharding(kind, reduce=reduce)}, gradients="bf16"))
    assert found[1] == pytest.approx(width * DENSE, abs=8)


@pytest.mark.parametrize("kind", ["none", "zero1", "fsdp"])
def test_t13_10_ranks_that_divide_sequences_divide_the_state_too(kind: Any) -> None:
    found = state(of({"dp": 2, "cp": 4, "sharding": kind}))
    assert found == state(of({"dp": 8, "sharding": kind}))


def test_t13_10_a_tied_table_counts_once_where_one_rank_has_both_ends() -> None:
    model = small_model(LAYERS, tied_embeddings=True)
    chosen = scenario(model, small_cluster(2), sim.Plan(dp=8, sharding="zero1"), sim.Job(32, 64, 1))
    assert state(chosen) == pytest.approx(by_hand("zero1", 2, 4, [(DENSE - VOCAB * HIDDEN, 8)], beside=False), abs=8)
