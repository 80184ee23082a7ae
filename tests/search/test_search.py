"""A search finds what trying all plans finds; what it skips is never better than what it returns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

import simulator as sim
from simulator.config import catalog, derived, feasible
from simulator.errors import UserError
from simulator.search.best_first import LEFT_OUT, SIMULATED, search_of
from simulator.search.choice_scenario import Base, scenario_of
from simulator.search.plan_checks import LEGAL, Measured, measured, weighed
from simulator.search.search import Found, aim_of, base_of, choices_of, found_of
from simulator.search.slot_times import SlotTimes, plan_slots
from simulator.search.space import Choice, Space, choices, space_of
from simulator.simulation.simulate import site_of

from ..commandline import SMALL

SCENARIO: dict[str, Any] = yaml.safe_load(SMALL)
FRAMEWORK = {**SCENARIO, "framework": "megatron-core-2025"}
FROZEN: dict[str, Any] = {
    "model": {"layers": 16, "hidden": 4096, "heads": 16, "ffn_hidden": 12288, "vocab": 4096, "gated_mlp": True},
    "cluster": {"name": "dgx-h100", "nodes": 1},
    "job": {"sequence_length": 4096, "global_batch": 16, "frozen_layers": 14},
}
FIRST_LAYERS: dict[str, Any] = {
    "model": {"layers": 32, "hidden": 2048, "heads": 16, "ffn_hidden": 8192, "vocab": 1024},
    "cluster": {"name": "dgx-h100", "nodes": 1},
    "plan": {"recompute": {"scope": "full", "first": 1}},
    "job": {"sequence_length": 8192, "global_batch": 128},
}
MIXTURE: dict[str, Any] = {
    **SCENARIO, "model": {**SCENARIO["model"], "experts": 24, "experts_per_token": 2, "expert_ffn_hidden": 1024},
    "plan": {"ep": 3}, "cluster": {"name": "dgx-h100", "nodes": 3},
}  # fmt: skip
SPACES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tensor": (SCENARIO, {"tp": [1, 2, 4], "pp": [1], "microbatch": [1, 2], "recompute": ["none"]}, "step_time"),
    "pipeline": (
        SCENARIO,
        {"tp": [2], "pp": [2, 4], "microbatch": [1], "recompute": ["none"], "schedule": ["1f1b", "zb-h1"]},
        "step_time",
    ),
    "cost": (SCENARIO, {"tp": [1, 2], "pp": [1, 2], "microbatch": [1], "recompute": ["none"]}, "cost"),
    "memory": (SCENARIO, {"tp": [1, 2, 4], "pp": [1, 2], "microbatch": [1], "schedule": ["1f1b"]}, "memory"),
    "energy": (SCENARIO, {"tp": [1, 2], "pp": [1, 2], "microbatch": [1], "recompute": ["none"]}, "energy"),
    "framework": (FRAMEWORK, {"tp": [1, 2], "pp": [1, 2, 4], "microbatch": [1, 2], "recompute": ["none"]}, "step_time"),
    "schedules": (
        FRAMEWORK,
        {
            "tp": [1],
            "pp": [4],
            "microbatch": [1],
            "recompute": ["none"],
            "schedule": ["1f1b", "zb-v", "dualpipe-v", "gpipe", "zb-auto"],
        },
        "step_time",
    ),
    "sharding": (
        SCENARIO,
        {"tp": [1, 2], "pp": [1], "sharding": ["none", "zero1", "zero3", "fsdp"], "microbatch": [1]},
        "step_time",
    ),
    "context": (SCENARIO, {"tp": [1, 2], "pp": [1, 2], "cp": [1, 2, 4], "microbatch": [1], "recompute": ["none"]}, "step_time"),
    "experts": (
        {**MIXTURE, "plan": {"ep": 4}, "cluster": SCENARIO["cluster"]},
        {"tp": [1, 2], "pp": [1, 2], "ep": [1, 4, 8], "microbatch": [1], "recompute": ["none"]},
        "step_time",
    ),
    "frozen": (
        FROZEN,
        {"tp": [1, 2], "pp": [2, 4], "microbatch": [1], "recompute": ["none"], "schedule": ["dualpipe"], "split": ["even"]},
        "step_time",
    ),
    "first layers": (
        FIRST_LAYERS,
        {"tp": [1], "pp": [2], "microbatch": [1], "chunks": [16], "recompute": ["selective", "full"], "split": ["even"]},
        "step_time",
    ),
    "recomputation": (FRAMEWORK, {"tp": [1, 2], "pp": [2, 4], "microbatch": [1, 2], "split": ["even"]}, "step_time"),
}
RUN_AGAIN: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (FRAMEWORK, {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "microbatch": [1, 2]}),
    (FRAMEWORK, {"tp": [1, 2], "pp": [2, 4], "microbatch": [1], "recompute": ["none"], "chunks": [2],
                 "schedule": ["1f1b", "gpipe", "hanayo", "zb-h1", "zb-v", "dualpipe-v", "chimera", "seq-1f1b", "naive"]}),
    (SCENARIO, {"tp": [1, 2], "pp": [1, 2], "cp": [1, 2], "microbatch": [1, 2], "sharding": ["none", "zero1", "zero3", "fsdp"]}),
)  # fmt: skip
SLOWER = tuple(status for status in LEFT_OUT if status.startswith("slower"))
FAST = ("tensor", "cost", "memory", "frozen", "first layers")


def found(base: dict[str, Any], space: dict[str, Any], objective: str, top: int = 3) -> Found:
    return found_of(base_of(base), aim_of(objective, top), space)


def tried(base: Base, choice: Choice) -> Measured | None:
    """A plan by itself, simulated without any search; None if it cannot run."""
    try:
        return measured(base, choice)
    except UserError:
        return None


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SPACES])
def test_the_best_are_those_of_all(name: str) -> None:
    scenario, space, objective = SPACES[name]
    result = found(scenario, space, objective)
    base, aim = result.search.base, result.search.aim
    values = []
    for plan in result.search.plans:
        one = tried(base, plan.choice)
        if one is not None and one.step_time_s is not None:
            values.append((aim.value(16, one.step_time_s, one.memory_bytes, one.energy_j), plan.text))
            assert plan.status in (SIMULATED, *LEFT_OUT)
            assert plan.bound_ns / 1e9 <= one.step_time_s
        else:
            assert plan.status in ("infeasible", "out of memory")
    assert [(plan.value, plan.text) for plan in result.best] == sorted(values)[:3]
    assert result.confirmed == "confirmed by the reference engine"
    assert sum(result.counts.values()) == len(result.search.plans)


def test_t3_6_a_disturbance_for_a_while_in_some_plans_makes_all_steps_first_steps() -> None:
    """Bounds are those of first steps, and the fields vary however they are given."""
    scenario = {**FRAMEWORK, "plan": {"optimizer": "post-validated"}}
    space = {
        "tp": [2],
        "pp": [2, 4],
        "microbatch": [1, 2],
        "schedule": ["1f1b", "zb-h1"],
        "recompute": ["none"],
        "split": ["even"],
    }
    lists: list[list[dict[str, Any]]] = [
        [],
        [{"rank": 0, "speed": 1, "until": "1 s"}],
        [{"rank": 0, "speed": 0.5, "until": "1 ms"}],
    ]
    base = base_of(scenario)
    result = found_of(base, aim_of("step_time", 3), space, {"perturb": iter(lists)})
    assert result.confirmed == "confirmed by the reference engine"
    first_s, long_s = {}, {}
    for plan in result.search.plans:
        of_plan = sim.scenario(result.document(plan).data)
        first_s[plan.text] = of_plan.simulate(steps=1).metrics.step_time_s  # type: ignore[union-attr]
        long_s[plan.text] = of_plan.simulate().metrics.step_time_s  # type: ignore[union-attr]
        assert plan.status in (SIMULATED, *LEFT_OUT)
        assert plan.bound_ns / 1e9 <= first_s[plan.text]
    best = sorted((took_s, text) for text, took_s in first_s.items())[:3]
    assert [(plan.simulated()[1], plan.text) for plan in result.best] == best
    assert best != sorted((took_s, text) for text, took_s in long_s.items())[:3]
    alone = found_of(base, aim_of("step_time", 1), space, {"perturb": lists[:1]}).best[0]
    assert alone.simulated()[1] == long_s[alone.text]


OF_STAGES: tuple[dict[str, Any], ...] = (
    *({"plan": {"recompute": {"scope": "full", **some}}} for some in ({"first": 1}, {"every": 4}, {"together": 3})),
    {"framework": "paxml-2024"},
    {"job": {**SCENARIO["job"], "frozen_layers": 6}},
)
"""Scenarios in which the kernels of all stages together depend on how layers are divided into stages."""


@pytest.mark.parametrize("given", OF_STAGES, ids=str)
def test_the_bound_of_a_branch_has_no_more_kernels_than_any_of_its_plans(given: dict[str, Any]) -> None:
    base = base_of({**SCENARIO, **given})
    space = {"tp": [2], "pp": [2, 4], "microbatch": [1], "recompute": ["full"], "schedule": ["chimera", "interleaved"]}
    branch = choices_of(base, space)
    for choice, found in zip(branch, weighed(base, branch), strict=True):
        if found.status != LEGAL:
            continue
        of = feasible.check(scenario_of(base, choice))
        slots = plan_slots(of, site_of(of), SlotTimes())
        assert slots
        assert 0 < found.branch_ns <= slots.kernels_ns() * derived.microbatches(of) // choice.pp


def test_plans_are_skipped_and_never_better() -> None:
    result = found(FRAMEWORK, {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "microbatch": [1, 2]}, "step_time", top=2)
    skipped = [plan for plan in result.search.plans if plan.status.startswith("slower")]
    assert {plan.status for plan in skipped} <= {*SLOWER}
    assert len(skipped) > result.counts[SIMULATED]
    worst = result.best[-1].simulated()[1]
    for plan in random.Random(7).sample(skipped, 12):
        one = tried(result.search.base, plan.choice)
        assert one is not None
        assert (one.step_time_s or 0) > worst


@pytest.mark.parametrize(
    ("objective", "said"),
    [("step_time", "slower by"), ("cost", "costlier by"), ("energy", "of more energy by"), ("gpus", "on more GPUs or slower by"),
     ("memory", "of more memory")],
)  # fmt: skip
def test_what_excludes_a_plan_is_said_of_what_is_minimised(objective: str, said: str) -> None:
    space = {"tp": [1, 2, 4, 8], "pp": [1, 2], "microbatch": [1], "recompute": ["none", "full"]}
    counts = found(FRAMEWORK, space, objective, top=1).counts
    excluded = {status: number for status, number in counts.items() if status in LEFT_OUT}
    assert all(status.startswith(said) for status in excluded), counts
    assert excluded or objective == "energy", "idle power over the least time excludes few plans"


@pytest.mark.slow
def test_no_run_of_a_skipped_plan_is_quicker_than_what_is_proposed() -> None:
    """200 random ones of all plans that searches skip, each run from its scenario as `trainsim run` runs it."""
    skipped = []
    for scenario, space in RUN_AGAIN:
        result = found(scenario, space, "step_time", top=2)
        plans = [plan for plan in result.search.plans if plan.status in SLOWER]
        skipped += [(result.document(plan).data, plan.text, result.best[-1].simulated()[1]) for plan in plans]
    for document, text, proposed_s in random.Random(18).sample(skipped, 200):
        assert sim.scenario(document).simulate().metrics.step_time_s > proposed_s, text


def test_processes_find_the_same() -> None:
    scenario, space, _ = SPACES["tensor"]
    tables = [sim.search(scenario, space=space, top=2, workers=workers) for workers in (1, 2)]
    assert list(tables[0].plan[:2]) == list(tables[1].plan[:2])
    assert list(tables[0].step_time_s[:2]) == list(tables[1].step_time_s[:2])
    one = sim.scenario({**scenario, "plan": {"tp": int(tables[0].tp[0])}, "job": {**scenario["job"], "microbatch_size": 2}})
    assert tables[0].microbatch[0] == 2
    assert tables[0].step_time_s[0] <= one.simulate().metrics.step_time_s


def test_the_scenario_of_a_plan_has_its_step() -> None:
    result = found(
        SCENARIO, {"tp": [2], "pp": [4], "microbatch": [1], "split": ["lighter-last"], "schedule": ["1f1b"]}, "step_time"
    )
    best = result.best[0]
    again = sim.scenario(result.document(best).data).simulate()
    assert (again.metrics.step_time_s,) == best.value
    assert again.scenario.plan.layout == (2, 2, 3, 1)


LEFT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "group": ({"pp": 2, "schedule": "interleaved", "chunks": 2, "group": 2}, {"pp": [1, 2], "schedule": ["1f1b", "interleaved"]}),
    "splits": ({"pp": 2, "schedule": "seq-1f1b", "splits": 4}, {"pp": [2], "schedule": ["1f1b", "seq-1f1b"]}),
    "kind of cp": ({"cp": 2, "cp_kind": "all-gather"}, {"pp": [1], "cp": [1, 2]}),
    "pieces": ({"tp": 2, "overlap": {"tp": "decomposed"}}, {"pp": [1], "tp": [1, 2]}),
}
"""Plans with options that plans beside them in the space have no use for."""


@pytest.mark.parametrize("name", LEFT)
def test_options_of_a_scenario_keep_no_better_plan_out(name: str) -> None:
    plan, part = LEFT[name]
    space = {"tp": [1], "microbatch": [1], "recompute": ["none"], "split": ["even"], "chunks": [2], **part}
    own, bare = (found({**FRAMEWORK, "plan": given}, space, "step_time") for given in (plan, {}))
    assert own.counts.get("infeasible", 0) == bare.counts.get("infeasible", 0)
    steps = [result.best[0].value for result in (own, bare)]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[0] <= steps[1]
    for looked in own.best:
        again = sim.scenario(own.document(looked).data).simulate(allow_oom=True)
        assert (again.metrics.step_time_s,) == looked.value


def test_a_word_of_the_space_keeps_the_options_of_the_scenario() -> None:
    """`fsdp` and `full` mean the ones that the scenario describes; `hsdp` that it does not state divides state within nodes."""
    sharding, recompute = {"kind": "fsdp", "reshard": False, "reduce": "last"}, {"scope": "full", "every": 2}
    given = {**SCENARIO, "plan": {"sharding": sharding, "recompute": recompute}}
    space = {"tp": [1], "pp": [1], "microbatch": [1], "sharding": ["fsdp", "hsdp"], "recompute": ["none", "full"]}
    result = found(given, space, "step_time", top=4)
    assert result.counts == {SIMULATED: 4}
    plans = {(one.choice.sharding, one.choice.recompute): sim.scenario(result.document(one).data) for one in result.best}
    own = plans["fsdp", "full"]
    assert own.plan == sim.scenario(given).plan
    assert plans["hsdp", "none"].plan.full_sharding.group == 8
    for one in result.best:
        found_again = plans[one.choice.sharding, one.choice.recompute].simulate(allow_oom=True).metrics.step_time_s
        assert (found_again,) == one.value


def test_groups_of_hsdp_are_those_of_the_scenario_where_nodes_hold_no_whole_groups() -> None:
    """Groups of four divide no node of ten, so that no two replicas of every group of two would share a node."""
    nodes = {"name": "dgx-h100", "gpus_per_node": 10, "inter_node": "10x400 Gbit/s", "nodes": 4}
    given = {**SCENARIO, "cluster": nodes, "job": {**SCENARIO["job"], "global_batch": 40}}
    space = {"tp": [2, 4], "pp": [1], "microbatch": [1], "sharding": ["hsdp"], "recompute": ["none"], "split": ["even"]}
    result = found(given, space, "step_time", top=4)
    assert [(one.choice.tp, sim.scenario(result.document(one).data).plan.full_sharding.group) for one in result.best] == [(2, 5)]
    assert "no two data-parallel ranks share a node" in result.reasons["plan.sharding.group"][1]


def test_a_space_names_each_plan_once() -> None:
    texts = [choice.text for choice in choices(space_of(None), ())]
    assert len(texts) == len(set(texts)) > 500
    assert sum("pp 1," in text for text in texts) == 4 * 3 * 3


def test_a_model_with_experts_is_searched_with_experts_on_different_gpus() -> None:
    """Powers of two that divide the experts, up to a node, and the degree of the scenario; what a space gives stays."""
    degrees = [choice.ep for choice in choices_of(base_of(MIXTURE), {"tp": [1], "pp": [1], "microbatch": [1]})]
    assert sorted(set(degrees)) == [1, 2, 3, 4, 8]
    few = {**MIXTURE, "model": {**MIXTURE["model"], "experts": 6}}
    assert {choice.ep for choice in choices_of(base_of(few), {"tp": [1]})} == {1, 2, 3}
    assert {choice.ep for choice in choices_of(base_of(MIXTURE), {"tp": [1], "ep": [6]})} == {6}
    assert {choice.ep for choice in choices_of(base_of(SCENARIO), {"tp": [1]})} == {1}


def test_the_default_space_is_no_worse_than_the_plan_of_a_mixture() -> None:
    """By default a search once tried every expert on every GPU only, and found slower plans than that of the scenario."""
    chosen = {**MIXTURE, "model": {**MIXTURE["model"], "expert_ffn_hidden": 4096}, "plan": {"ep": 8, "sharding": "zero1"}}
    job = {"sequence_length": 1024, "global_batch": 48}
    space = {"tp": [1], "pp": [1], "microbatch": [1], "recompute": ["none"]}
    table = sim.search({**chosen, "job": job}, space=space, top=4)
    own = sim.scenario({**chosen, "job": job}).simulate(allow_oom=True).metrics.step_time_s
    assert table.step_time_s[0] <= own * (1 + 1e-9)
    assert len(set(table.ep)) == 4


def test_sizes_and_further_fields() -> None:
    space = {"tp": [1], "pp": [1], "microbatch": [1], "recompute": ["none"]}
    over = {"plan.overlap.dp": [True, False]}
    table = sim.search(SCENARIO, space=space, gpus=[8, 16], objective="cost", over=over)
    assert sorted(table.gpus) == [8, 8, 16, 16]
    assert set(table["plan.overlap.dp"]) == {True, False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "speed"}, "no objective"),
        ({"top": 0}, "best plans cannot be found"),
        ({"gpus": [12]}, "12 GPUs are not whole nodes of 8"),
        ({"over": ["job.global_batch=32,64"]}, "changes the work of a step"),
        ({"over": ["plan.tp=1,2"]}, "is a part of the space"),
        ({"space": {"tp": ["two"]}}, "tp"),
        ({"space": {"tpp": [2]}}, "tpp"),
    ],
)
def test_what_cannot_be_searched_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sim.search(SCENARIO, **options)


def test_a_space_in_a_file_has_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("tp: [1, 2]\nrecompute: [nothing]\npp: [0]\n")
    with pytest.raises(UserError) as failed:
        space_of(file)
    lines = sorted(fault.where.rpartition("space.yaml:")[2].split(":")[0] for fault in failed.value.faults)
    assert lines == ["2", "3"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("against", ["memory", "cost", "gpus"])
def test_a_front_is_that_of_all_plans(against: str) -> None:
    space = {"tp": [1, 2], "pp": [1, 2], "microbatch": [1], "schedule": ["1f1b"]}
    gpus = (8, 16) if against != "memory" else ()
    result = found_of(base_of(SCENARIO), aim_of("step_time", 1, against), space, (), gpus)
    points = []
    for plan in result.search.plans:
        one = tried(result.search.base, plan.choice)
        if one is not None and one.step_time_s is not None:
            size = dict(plan.choice.others).get("cluster.nodes", 2) * 8
            other = result.search.aim.second_quantity(size, one.step_time_s, one.memory_bytes)
            points.append((one.step_time_s, other, plan.text))

    def dominated(step_s: float, other: float) -> bool:
        return any(s <= step_s and o <= other and (s, o) != (step_s, other) for s, o, _ in points)

    front = {text for step_s, other, text in points if not dominated(step_s, other)}
    assert {plan.text for plan in result.best} == front


@pytest.mark.parametrize("bytes_of", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_of_equally_fast_plans_those_with_least_memory_are_on_the_front(bytes_of: tuple[int, ...]) -> None:
    space = {"tp": [1], "pp": [1], "microbatch": [1], "recompute": ["none", "selective", "full"]}
    base = base_of(SCENARIO)
    searched = search_of(base, aim_of("step_time", 1, "memory"), choices_of(base, space))
    for number, memory_bytes in enumerate(bytes_of):
        searched.take_measured(number, Measured(1.0, memory_bytes=memory_bytes), lambda text: None)
    assert {number for *_, number in searched.best} == {number for number, of in enumerate(bytes_of) if of == 1}


def test_only_plans_within_the_days_are_wanted() -> None:
    space = {"tp": [1, 2], "pp": [1], "microbatch": [1], "recompute": ["none"]}
    every = found_of(base_of(SCENARIO), aim_of("step_time", 9), space, (), (8, 16)).best
    times = [plan.simulated()[1] for plan in every]
    within_s = (times[0] + times[-1]) / 2
    result = found_of(base_of(SCENARIO), aim_of("gpus", 9, within_s=within_s), space, (), (8, 16))
    quick = {plan.text for plan, step_s in zip(every, times, strict=True) if step_s <= within_s}
    assert {plan.text for plan in result.best} == quick
    values = [plan.simulated()[2] for plan in result.best]
    assert values == sorted(values)


def test_overlap_and_replicas_are_dimensions() -> None:
    space = {"tp": [1], "pp": [1], "dp": [16], "microbatch": [1], "recompute": ["none"], "overlap": ["framework", "none", "dp"]}
    result = found(SCENARIO, space, "step_time")
    assert {plan.choice.overlap for plan in result.best} == {"framework", "none", "dp"}
    none = next(plan for plan in result.best if plan.choice.overlap == "none")
    assert result.document(none).at(("plan", "overlap", "dp")) is False
    assert none.value == (sim.scenario(result.document(none).data).simulate().metrics.step_time_s,)


@pytest.mark.parametrize("part", [name for name in Space.__dataclass_fields__ if name not in ("dp", "ep")])
def test_every_part_of_a_space_has_a_value(part: str) -> None:
    with pytest.raises(UserError, match=f"{part}: a list is empty"):
        space_of({part: []})


def test_a_plan_that_waits_for_nothing_has_no_largest_wait() -> None:
    """A single GPU: its optimizer is no wait."""
    scenario = {
        "model": "llama3.2-1b",
        "cluster": {"name": "dgx-h100", "nodes": 1, "gpus_per_node": 1},
        "job": {"sequence_length": 1024, "global_batch": 1},
    }
    (plan,) = found(
        scenario, {"tp": [1], "pp": [1], "microbatch": [1], "recompute": ["none"], "split": ["even"]}, "step_time"
    ).best
    assert Found.largest_wait(plan) is None


def test_files_are_read_anew_in_each_search(tmp_path: Path) -> None:
    """Scenarios of the same text in two folders, with another GPU in each, and one whose file has changed."""
    text = SMALL.replace("{name: dgx-h100, nodes: 2}", "{name: dgx-h100, nodes: 2, gpu: gpu.yaml}")
    h100 = catalog.find("gpus", "h100").read_text(encoding="utf-8")
    space = {"tp": [2], "pp": [2], "microbatch": [1], "recompute": ["none"], "schedule": ["1f1b"]}
    found = []
    for folder, clock in (("a", "1980 MHz"), ("b", "990 MHz"), ("a", "990 MHz")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "scenario.yaml").write_text(text, encoding="utf-8")
        (tmp_path / folder / "gpu.yaml").write_text(h100.replace("1980 MHz", clock), encoding="utf-8")
        found.append(sim.search(tmp_path / folder / "scenario.yaml", space=space)["step_time_s"].iloc[0])
    assert found[0] < found[1] == found[2]
