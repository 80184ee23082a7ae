"""Every layer of experts has a token matrix of its own: what is drawn, what it makes of a program, and where it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.engine import des
from simulator.engine.fold import fold, unfolded
from simulator.engine.timeline import Timeline
from simulator.errors import UserError
from simulator.lowering import routing
from simulator.lowering.passes import expert_parallel
from simulator.lowering.routing import drawn, layers_with_experts, loads, once_for_each
from simulator.program.operations import Collective, Compute, Purpose
from simulator.program.program import Program
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import program_of

from ..small_scenarios import both, bound, bound_twice, scenario, small_cluster, small_model

LAYERS, SEQ, EP = 4, 256, 4
MIXTURE = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 704, "shared_experts": 1}
SHARES = tuple(tuple(7.0 if expert == 2 * layer else 1.0 for expert in range(8)) for layer in range(LAYERS))
"""Expert 2 l is the popular one of layer l: it is on rank l of four."""


def of(plan: dict[str, Any], model: dict[str, Any] | None = None, batch: int = 8, **more: Any) -> Scenario:
    dtype, framework = more.pop("dtype", "bf16"), more.pop("framework", "none")
    chosen = scenario(
        small_model(**{"layers": LAYERS, **MIXTURE, **(model or {})}),
        small_cluster(more.pop("nodes", 2)),
        sim.Plan(**{"ep": EP, "moe": sim.Moe("drawn"), **plan}),
        sim.Job(more.pop("seq", SEQ), batch, 1, dtype),
        framework=sim.framework(framework),
        **more,
    )
    return feasible.check(chosen)  # type: ignore[return-value]


def matrices_of(program: Program, purpose: Purpose = Purpose.DISPATCH) -> dict[int, Any]:
    """The matrix of every layer of the model."""
    found: dict[int, set[Any]] = {}
    for step in (step for order in program.orders for step in order if step.stage >= 0):
        for op in program.bodies[step.body].ops:
            if isinstance(op, Collective) and op.purpose is purpose:
                found.setdefault(program.stages[step.stage].first_layer + op.layer, set()).add(op.matrix_bytes)
    assert all(len(matrices) == 1 for matrices in found.values())
    return {layer: next(iter(matrices)) for layer, matrices in found.items()}


PLANS: dict[str, dict[str, Any]] = {
    "a pipeline": {"pp": 2, "sharding": "zero1"},
    "chunks": {"pp": 2, "schedule": "interleaved", "chunks": 2},
    "two directions": {"pp": 2, "schedule": "dualpipe"},
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", PLANS)
def test_t17_11_each_layer_has_its_draw_whatever_the_pipeline(name: str) -> None:
    """Not those of its stage: a layer has the same matrix on every pipeline, and no two layers have the same."""
    whole, cut = (matrices_of(program_of(of(plan, batch=16))) for plan in ({}, PLANS[name]))
    assert whole == cut
    assert len(set(whole.values())) == LAYERS == len(whole)


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(0, 60))
def test_t17_11_a_draw_depends_on_the_seed_and_the_layer(seed: int, layer: int) -> None:
    """The popularity of the experts is that of the layer, however many ranks hold them."""
    model, moe = small_model(**MIXTURE), sim.Moe("drawn", seed=seed, concentration=0.5)
    rows = {ep: drawn(model, sim.Plan(ep=ep, moe=moe), 10**6, layer) for ep in (2, 4)}
    assert (rows[4] == drawn(model, sim.Plan(ep=4, pp=2, moe=moe), 10**6, layer)).all()
    assert all((of.sum(axis=1) == 2 * 10**6).all() for of in rows.values())
    pairs = rows[4][0].reshape(2, 2).sum(axis=1)
    np.testing.assert_allclose(pairs, rows[2][0], atol=2e4)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([0.01, 0.5, 1.0, 10.0]), st.sampled_from([(4, 2), (8, 2), (8, 4), (4, 3), (4, 4)]))
def test_t17_11_no_expert_receives_a_token_twice(seed: int, concentration: float, sizes: tuple[int, int]) -> None:
    """At most one row for each token of a rank, all rows are there, and with every expert chosen all have every token."""
    experts, chosen = sizes
    model = small_model(**{**MIXTURE, "experts": experts, "experts_per_token": chosen})
    rows = drawn(model, sim.Plan(ep=experts, moe=sim.Moe("drawn", seed=seed, concentration=concentration)), SEQ, 0)
    assert rows.max() <= SEQ
    assert (rows.sum(axis=1) == chosen * SEQ).all()
    assert chosen < experts or (rows == SEQ).all()


def test_t17_11_rows_that_an_expert_cannot_have_go_to_the_others_by_their_shares() -> None:
    """Of 40 rows for 10 tokens expert 0 has 12 too many and expert 4 one: the 13 go to the others, 2 to 2 to 1, rounded."""
    shares = np.array([0.6, 0.1, 0.1, 0.05, 0.15])
    assert once_for_each(np.array([22, 1, 5, 1, 11]), shares, 10).tolist() == [10, 6, 10, 4, 10]
    few = np.array([3, 4, 3, 5, 5])
    assert once_for_each(few, shares, 10).tolist() == few.tolist()


def test_t17_11_modules_for_further_tokens_are_layers_behind_the_last() -> None:
    chosen = of({"pp": 2}, {"dense_layers": 1, "mtp_layers": 1})
    assert layers_with_experts(chosen.model) == [1, 2, 3, 4] == sorted(matrices_of(program_of(chosen)))
    with pytest.raises(UserError, match="4 lists of shares for the 5 layers"):
        of({"moe": sim.Moe(SHARES)}, {"mtp_layers": 1})


MEGATRON = {"framework": "megatron-core-2025"}
ONE_BY_ONE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp8, recomputed": ({"pp": 2, "recompute": "full", "sharding": "zero1"}, {**MEGATRON, "dtype": "fp8"}),
    "late weight gradients": ({"overlap": sim.Overlap(weight_gradients=True)}, {**MEGATRON, "dtype": "fp8_block"}),
    "nothing fused": ({"pp": 2, "schedule": "zb-h1"}, {}),
    "selective": ({"recompute": "selective", "sharding": "fsdp"}, {"dtype": "fp8", "framework": "torchtitan-2024"}),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_t17_11_a_variant_has_the_kernels_of_a_program_for_its_rank_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowered for one rank after the other, nothing differs but the kernels, and these as the variants say."""
    plan, more = ONE_BY_ONE[name]
    chosen = of({**plan, "moe": sim.Moe("drawn", concentration=0.5)}, **more)
    program = program_of(chosen)
    assert len(program.variants) == EP
    for variant, (rank,) in enumerate(program.variants):

        def alone(*args: Any, rank: int = rank) -> routing.Loads | None:
            found = loads(*args)
            assert found
            of_rank = {layer: replace(load, received=(load.rows[:, rank].sum(),)) for layer, load in found.of_layer.items()}
            return replace(found, of_layer=of_rank, alike=((rank,),))

        monkeypatch.setattr(expert_parallel, "loads", alone)
        own = program_of(chosen)
        assert not own.variants
        assert own.orders == program.orders
        for key, body in own.bodies.items():
            for op, general in zip(body.ops, program.bodies[key].ops, strict=True):
                assert op.name == general.name
                if isinstance(op, Compute) and isinstance(general, Compute):
                    kernels = general.kernels()
                    assert op.kernel == kernels[variant % len(kernels)]
                    assert op.kernel.model_flop == general.flop_of(variant)
                    assert op.held_bytes <= general.held_bytes


def test_t17_11_a_hot_rank_shows_at_the_layer_that_has_it() -> None:
    """Ranks wait at the combine of each layer for that rank which holds its popular expert, and at that of no other layer."""
    chosen = of({"moe": sim.Moe(SHARES)}, seq=2048, nodes=1)
    rows = chosen.simulate(steps=1).timeline.to_pandas(ranks=range(EP))
    forward = rows[(rows.phase == "F") & (rows.microbatch == 0)]
    for layer in range(LAYERS):
        last = forward[forward.block == f"layer {layer} expert_down.sort back"].set_index("rank").end_ns
        combine = forward[forward.block == f"layer {layer} expert_down.combine over ep"].start_ns
        assert last.idxmax() == layer
        assert set(combine) == {last.max()}
        assert (last.drop(layer) < last.min() + 0.1 * (last.max() - last.min())).all()


def test_t17_17_shares_of_layers_from_a_table(tmp_path: Any) -> None:
    table = "layer,expert,tokens\n" + "".join(
        f"{10 * layer},{expert},{share}\n" for layer, shares in enumerate(SHARES) for expert, share in enumerate(shares)
    )
    (tmp_path / "shares.csv").write_text(table)
    listed, read = (matrices_of(program_of(of({"moe": sim.Moe(what)}))) for what in (SHARES, str(tmp_path / "shares.csv")))
    assert listed == read
    assert len(set(listed.values())) == LAYERS
    alike, one = (matrices_of(program_of(of({"moe": sim.Moe(shares)}))) for shares in (SHARES[:1] * LAYERS, SHARES[0]))
    assert alike == one
    with pytest.raises(UserError, match="2 lists of shares for the 4 layers"):
        of({"moe": sim.Moe(SHARES[:2])})
    with pytest.raises(UserError, match="7 shares for the 8 experts"):
        of({"moe": sim.Moe((*SHARES[:3], SHARES[3][:7]))})


GRID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dualpipe": (
        {"pp": 2, "schedule": "dualpipe", "sharding": "zero1", "recompute": "full"},
        {"dtype": "fp8", "batch": 16},
    ),
    "beside compute": (
        {"pp": 2, "schedule": "interleaved", "chunks": 2, "overlap": sim.Overlap(ep=True, weight_gradients=True)},
        {"perturb": (sim.Perturb(rank=2, speed=0.7),)},
    ),
    "by layer, launched": ({"moe": sim.Moe(SHARES), "sharding": "fsdp"}, {"framework": "torchtitan-2024"}),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", GRID)
def test_t17_20_merged_and_folded_equals_the_event_loop_of_every_rank(name: str) -> None:
    """With every rank and row by itself: the same integers, and far fewer tasks."""
    plan, more = GRID[name]
    compared = both(*bound_twice(of(plan, **more)))
    compared.assert_equal()
    if "launched" not in name:  # where kernels wait for their launches, fewer are merged
        assert len(compared.folded.graph) < 0.6 * len(compared.whole.graph)


def test_t17_20_what_is_measured_does_not_depend_on_merging() -> None:
    """Time by cause, flop, latency of samples and memory, from merged rows and from all of them."""
    chosen = of({"pp": 2, "sharding": "zero1"})
    run, whole = chosen.simulate(), chosen.simulate(folding=False)
    separate = unfolded(bound(chosen, None).skeleton)
    timeline = Timeline(des.simulate(separate.graph), separate)
    apart = replace(whole, simulated=replace(whole.simulated, timeline=timeline, window=None))
    merged = replace(run, simulated=replace(run.simulated, window=None))
    assert len(run.engine_timeline.expansion.graph) < len(separate.graph) // 2
    assert merged.metrics == apart.metrics
    assert merged.labelled_metrics == apart.labelled_metrics
    assert merged.memory_over_time(1)[1].max() == apart.memory_over_time(1)[1].max()
    ours, theirs = (one.timeline.to_pandas(ranks=[5]).drop(columns="task") for one in (merged, apart))
    assert ours.equals(theirs)
    assert fold(bound(chosen).merged).skeleton.ranks == 8
