"""Exchanges of experts beside compute of another microbatch: pairs of slots, the order in a pair, and what it hides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.config import feasible
from simulator.config.torch_csv import write
from simulator.errors import UserError
from simulator.kernels import Part
from simulator.lowering.passes.expert_overlap import paired
from simulator.program.layout import check, lay_out
from simulator.program.operations import Compute, Purpose
from simulator.program.program import LAST
from simulator.program.slot import Pair, Shape, Slot, slots_of
from simulator.schedules import interleaved
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.study.schedule import evaluate, peaks
from simulator.workload.framework import Framework, Overlaps

from ..small_scenarios import both, bound_twice, scenario, small_cluster, small_model

LAYERS = 4
MIXTURE = {"experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 704}
INTERLEAVED = {"ep": 4, "pp": 2, "chunks": 2, "schedule": "interleaved"}


def of(plan: dict[str, Any], batch: int = 16, seq: int = 256, nodes: int = 2, **more: Any) -> Scenario:
    model = small_model(layers=LAYERS, **{**MIXTURE, **more.pop("model", {})})
    chosen = scenario(model, small_cluster(nodes), sim.Plan(**plan), sim.Job(seq, batch, 1), **more)
    feasible.check(chosen)
    return chosen


def beside(plan: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**plan, "overlap": sim.Overlap(ep=True, **more)}


def work(chosen: Scenario) -> list[Counter[Any]]:
    """What each pipeline rank does in a step, in whatever order."""
    program = program_of(chosen)
    found = []
    for order in program.orders:
        ops = [op for step in order for op in program.bodies[step.body].ops]
        found.append(Counter((op.name, op.part, getattr(op, "payload_bytes", 0), getattr(op, "kernel", None)) for op in ops))
    return found


def test_t17_12_backward_slots_run_with_the_forward_slot_behind_them() -> None:
    """Without a pipeline as in Megatron-LM: the first forward and the last backward pass alone. One more microbatch is alive."""
    (order,) = layout_of(of(beside({"ep": 8}), batch=32)).orders
    assert [str(box) for box in order] == ["0F0", "(0F1;0B0)", "(0F2;0B1)", "(0F3;0B2)", "0B3"]
    with_overlap, without = (of(plan).simulate().memory[0].activations_bytes for plan in (beside({"ep": 8}), {"ep": 8}))
    assert with_overlap == pytest.approx(2 * without, rel=0.15)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 4))
def test_t17_12_interleaved_ranks_begin_with_one_more_forward_slot(ranks: int, chunks: int, rounds: int) -> None:
    """Warm-up is longer by one slot, all steady slots are pairs, and no rank waits in a circle."""
    shape = Shape(ranks, ranks * rounds, chunks)
    usual = lay_out(interleaved, shape)
    layout = paired(usual)
    check(layout)
    for rank, (order, before) in enumerate(zip(layout.orders, usual.orders, strict=True)):
        warm_up = min(interleaved.warm_up_of(rank, shape) + 1, chunks * shape.microbatches)
        kinds = [box.kind if isinstance(box, Slot) else "pair" for box in order]
        rest = chunks * shape.microbatches - warm_up
        assert kinds == ["F"] * warm_up + ["pair"] * rest + ["B"] * warm_up
        for kind in "FB":
            assert [s for box in order for s in slots_of(box) if s.kind == kind] == [s for s in before if s.kind == kind]  # type: ignore[union-attr]
    assert evaluate(layout).makespan > 0
    more = np.array(peaks(layout)["peak"]) - np.array(peaks(usual)["peak"])
    assert set(more.tolist()) <= {0, 1}


def test_t17_12_pairs_of_a_schedule_stay_as_they_are() -> None:
    layout = layout_of(of(beside({"ep": 4, "pp": 2, "schedule": "dualpipe"})))
    assert layout == layout_of(of({"ep": 4, "pp": 2, "schedule": "dualpipe"}))
    assert any(isinstance(box, Pair) for box in layout.orders[0])


def test_t17_12_pairs_of_a_table_are_pairs_too(tmp_path: Path) -> None:
    plan = {"ep": 4, "pp": 2, "schedule": "dualpipe-v"}
    write(layout_of(of(plan)), tmp_path / "table.csv")
    read = {**plan, "chunks": 2, "schedule": str(tmp_path / "table.csv")}
    assert program_of(of(beside(read))) == program_of(of(beside(plan)))


@pytest.mark.parametrize("plan", [{"ep": 8}, INTERLEAVED, {"ep": 4, "pp": 2, "schedule": "dualpipe"}], ids=str)
def test_t17_12_the_work_of_a_step_is_the_same(plan: dict[str, Any]) -> None:
    assert work(of(beside(plan))) == work(of(plan))


def pair_of(chosen: Scenario) -> Any:
    """The rows of the first pair of rank 0, in the order of their starts."""
    rows = chosen.simulate(steps=1).timeline.to_pandas(ranks=[0])
    first = next(box for box in layout_of(chosen).orders[0] if isinstance(box, Pair))
    mine = [(rows.phase == slot.kind) & (rows.stage == slot.stage) & (rows.microbatch == slot.microbatch) for slot in first]
    return rows[mine[0] | mine[1]].sort_values(["start_ns", "end_ns"])


def test_t17_12_exchanges_and_compute_of_a_pair_take_turns_layer_by_layer() -> None:
    rows = pair_of(of(beside({"ep": 4}), nodes=1))
    on = {stream: rows[rows.stream == stream] for stream in ("ep", "compute")}
    ways = [(row.phase, "dispatch" in row.block) for row in on["ep"].itertuples()]
    assert ways == [("B", True), ("F", True), ("B", False), ("F", False)] * LAYERS
    blocks = [(row.phase, row.block) for row in on["compute"].itertuples()]
    for number in range(LAYERS):
        mine, other = f"layer {number} ", f"layer {LAYERS - 1 - number} "
        marks = [("F", f"{mine}permute"), ("B", f"{other}expert_down"), ("F", f"{mine}expert_up"), ("B", f"{other}permute")]
        at = [next(i for i, (p, block) in enumerate(blocks) if p == phase and what in block) for phase, what in marks]
        assert at == sorted(at)
    ends = rows[(rows.stream == "ep") & (rows.phase == "F")].iloc[0]
    during = on["compute"][(on["compute"].start_ns < ends.end_ns) & (on["compute"].end_ns > ends.start_ns)]
    assert set(during.phase) == {"B"}, "experts of the backward pass, while tokens of the forward pass are on their way"


def test_t17_12_compute_that_is_long_enough_hides_all_exchanges_of_pairs() -> None:
    """On one node, however many microbatches there are, as much is exposed as of one: in the first F and in the last B."""
    few, many = (of(beside({"ep": 4}), batch=4 * m, seq=1024, nodes=1).simulate().metrics for m in (2, 4))
    one, two = (of({"ep": 4}, batch=4 * m, seq=1024, nodes=1).simulate().metrics for m in (1, 2))
    assert few.exposed_s["ep"] == pytest.approx(many.exposed_s["ep"], abs=1e-9)
    assert few.exposed_s["ep"] == pytest.approx(one.exposed_s["ep"], abs=1e-9)
    assert two.exposed_s["ep"] > 1.9 * one.exposed_s["ep"]


def test_t17_12_the_framework_says_so_where_the_plan_does_not() -> None:
    framework = Framework(overlap=Overlaps(ep=True))
    asked, usual = of(beside({"ep": 8})), of({"ep": 8}, framework=framework)
    assert program_of(asked).bodies == program_of(usual).bodies
    assert layout_of(of({"ep": 8, "overlap": sim.Overlap(ep=False)}, framework=framework)) == layout_of(of({"ep": 8}))
    alone = of({"pp": 2}, framework=framework)
    assert layout_of(alone) == layout_of(replace(alone, framework=Framework())), "nothing is exchanged"


GRID: dict[str, dict[str, Any]] = {
    "no pipeline, late weights": beside({"ep": 8}, weight_gradients=True),
    "interleaved": beside({**INTERLEAVED, "tp": 2, "etp": 1}, tp=True),
    "blocking transfers": beside(INTERLEAVED, pp=False),
    "dualpipe": beside({"ep": 4, "pp": 2, "schedule": "dualpipe", "sharding": "zero1"}, weight_gradients=True),
    "dualpipe-v": beside({"ep": 2, "tp": 2, "pp": 2, "schedule": "dualpipe-v", "recompute": "selective"}),
    "dualpipe, recomputed": beside({"ep": 4, "pp": 2, "schedule": "dualpipe", "recompute": "full"}),
    "drawn": beside({**INTERLEAVED, "moe": sim.Moe("drawn")}, weight_gradients=True),
    "deepep": beside({**INTERLEAVED, "moe": sim.Moe(dispatcher="deepep")}, weight_gradients=True),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", GRID)
def test_t17_12_folded_equals_unfolded(name: str) -> None:
    """With dense layers before layers of experts, so that layers of both kinds run side by side."""
    chosen = of(GRID[name], model={"dense_layers": 1, "shared_experts": 1}, batch=8 if "dualpipe" not in name else 16, seq=64)
    both(*bound_twice(chosen)).assert_equal()
    run = chosen.simulate()
    assert run.memory_over_time(0)[1].max() == run.memory[0].total_bytes


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_t17_12_passes_of_a_pair_gather_parameters_behind_the_pair_before(prefetch: int) -> None:
    """Neither pass waits for the other one; the gathers of a pair wait for both passes of the pair before."""
    plan = {"ep": 4, "tp": 2, "etp": 1, "sharding": sim.Sharding("fsdp", prefetch=prefetch)}
    (steps,) = program_of(of(beside(plan), batch=16)).orders
    pairs = [pair for pair in pairwise(steps) if pair[0].pair == pair[1].pair >= 0]
    assert len(pairs) == 3
    for pair in pairs:
        assert not {key for step in pair for key in step.after} & {key for step in pair for _, key in step.outputs}
    for before, pair in pairwise(pairs):
        ends = {key for step in before for name, key in step.outputs if name == LAST}
        assert all(ends <= set(step.after) for step in pair)
    alone, together = (of(of_plan, batch=16).simulate().metrics for of_plan in (plan, beside(plan)))
    assert together.exposed_s["ep"] < alone.exposed_s["ep"]


@pytest.mark.parametrize(
    "plan, fault",
    [
        (beside({}), "without expert parallelism nothing is exchanged"),
        ({"overlap": sim.Overlap(weight_gradients=True)}, "without expert parallelism nothing is exchanged"),
        (beside({"ep": 4, "pp": 2}), "waits for the backward pass that would hide its exchanges"),
        (beside({"ep": 4, "pp": 2, "schedule": "zb-h1"}), "zb-h1 runs no forward pass together with a backward pass"),
        (beside({"ep": 4, "recompute": "full"}), "exchange tokens once more"),
    ],
)
def test_t17_12_what_cannot_overlap_is_refused_with_a_hint(plan: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError) as caught:
        of(plan)
    assert any(fault in each.message and each.hint for each in caught.value.faults), str(caught.value)


def test_t17_13_weight_gradients_of_experts_run_beside_the_way_back() -> None:
    late, usual = ({"ep": 4, "overlap": sim.Overlap(weight_gradients=yes)} for yes in (True, False))
    assert work(of(late)) == work(of(usual))
    program = program_of(of(late))
    backward = next(program.bodies[step.body].ops for step in program.orders[0] if step.phase == "B")
    layer = [op for op in backward if op.layer == 1]
    back = next(i for i, op in enumerate(layer) if op.purpose is Purpose.COMBINE)
    weights = [i for i, op in enumerate(layer) if isinstance(op, Compute) and op.expert and op.part is Part.WEIGHT_GRADIENT]
    assert weights == [back + 1, back + 2]
    exposed = [of(plan, nodes=1).simulate().metrics for plan in (late, usual)]
    assert exposed[0].exposed_s["ep"] < exposed[1].exposed_s["ep"]
    assert exposed[0].busy_s == pytest.approx(exposed[1].busy_s, rel=1e-9)


def test_t17_13_a_split_backward_pass_has_no_weight_gradients_to_move() -> None:
    split = {"ep": 4, "pp": 2, "schedule": "zb-h1"}
    late = {**split, "overlap": sim.Overlap(weight_gradients=True)}
    assert program_of(of(late)).bodies == program_of(of(split)).bodies
