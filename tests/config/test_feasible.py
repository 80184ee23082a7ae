"""What is refused before it is simulated, and the law of hints: do what a hint says, and that fault is gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.config import cluster_file, feasible
from simulator.config.derived import microbatches
from simulator.errors import UserError
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.workload.architecture import nearest_divisor

SUGGESTION = re.compile(r"\b(nodes|tp|dp|global_batch|sequence_length): (\d+)(?: or (\d+))?")


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small clusters with plans and batches, of which one in five or so go together."""
    small = st.sampled_from([1, 1, 2, 2, 3, 4, 5, 8])
    heads = draw(st.sampled_from([4, 6, 8, 12]))
    kv_heads = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    shape = {"hidden": 64 * heads, "heads": heads, "kv_heads": kv_heads, "ffn_hidden": draw(st.sampled_from([96, 100, 256]))}
    model = sim.model({"layers": draw(st.integers(3, 12)), "vocab": 1000, **shape})
    cluster = sim.cluster("dgx-h100", nodes=draw(small), gpus_per_node=draw(small))
    plan = sim.Plan(tp=draw(small), pp=draw(small), dp=draw(st.none() | st.none() | small))
    sequence, batch = draw(st.sampled_from([15, 16, 24, 32])), draw(st.sampled_from([7, 24, 48, 96, 144]))
    job = sim.Job(sequence_length=sequence, global_batch=batch, microbatch_size=draw(st.sampled_from([1, 2, 3])))
    return Scenario(model, cluster, plan, job)


def faults(scenario: Scenario) -> dict[str, str]:
    """The field of each fault, and its hint."""
    try:
        feasible.check(scenario)
    except UserError as refused:
        return {fault.message.partition(":")[0]: fault.hint for fault in refused.faults}
    return {}


def following(scenario: Scenario, name: str, value: int) -> Scenario:
    """The scenario with a suggested value."""
    if name == "nodes":
        return replace(scenario, cluster=replace(scenario.cluster, nodes=value))
    section = "plan" if name in ("tp", "dp") else "job"
    return replace(scenario, **{section: replace(getattr(scenario, section), **{name: value})})


@given(scenarios())
def test_what_a_hint_suggests_is_legal(scenario: Scenario) -> None:
    for field, hint in faults(scenario).items():
        assert hint
        for name, *values in SUGGESTION.findall(hint):
            for value in filter(None, values):
                assert field not in faults(following(scenario, name, int(value))), (field, hint)


@given(scenarios())
def test_what_is_not_refused_can_be_simulated(scenario: Scenario) -> None:
    if not faults(scenario):
        assert scenario.simulate().metrics.step_time_s > 0


@given(st.integers(1, 500), st.integers(1, 500))
def test_the_nearest_divisor_is_one_and_none_is_nearer(whole: int, wanted: int) -> None:
    found = nearest_divisor(whole, wanted)
    assert whole % found == 0
    assert all(abs(n - wanted) >= abs(found - wanted) for n in range(1, whole + 1) if whole % n == 0)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "hint"), [(12, 12, 8, "tp: 6"), (16, 2, 5, "tp: 4"), (8, 8, 16, "tp: 8"), (12, 3, 2, "tp: 1")]
)
def test_a_degree_gets_the_largest_below_it_that_divides(heads: int, kv_heads: int, tp: int, hint: str) -> None:
    model = sim.model({"layers": 2, "hidden": 64 * heads, "heads": heads, "kv_heads": kv_heads, "vocab": 1000})
    scenario = Scenario(model, sim.cluster("dgx-h100", nodes=5, gpus_per_node=16), sim.Plan(tp=tp))
    assert faults(scenario)["plan.tp"] == hint


@pytest.mark.parametrize(
    ("batch", "hint"), [(3, "global_batch: 8"), (9, "global_batch: 8 or 16"), (23, "global_batch: 16 or 24")]
)
def test_a_batch_gets_its_neighbours_but_not_zero(batch: int, hint: str) -> None:
    model = sim.model({"layers": 2, "hidden": 512, "heads": 8, "vocab": 1000})
    scenario = Scenario(model, sim.cluster("dgx-h100", nodes=1), job=sim.Job(global_batch=batch))
    assert faults(scenario)["job.global_batch"] == hint


@pytest.mark.parametrize(
    ("intra", "value"), [("NVSwitch 450 GB/s", 450e9), ("nvlink 3.6 Tbit/s", 450e9), (" NVLink  1 TB/s ", 1e12)]
)
def test_links_within_a_node(intra: str, value: float) -> None:
    assert cluster_file.intra_node(intra).bytes_per_s == value


@given(st.integers(1, 1024), st.integers(1, 1000), st.sampled_from(["x", "×", " x ", "x "]))
def test_links_between_nodes(count: int, rate: int, times: str) -> None:
    assert cluster_file.inter_node(f"{count}{times}{rate} Gbit/s") == (count, rate * 1e9 / 8)
    assert cluster_file.inter_node(f"{rate} Gbit/s") == (1, rate * 1e9 / 8)


@given(
    st.text(max_size=30),
    st.sampled_from([(cluster_file.intra_node, "NVSwitch 450 GB/s"), (cluster_file.inter_node, "8x400 Gbit/s")]),
)
def test_text_that_is_no_link_gets_an_example(text: str, kind: tuple[Callable[[str], object], str]) -> None:
    read, example = kind
    with pytest.raises(UserError) as refused:
        read(f"{text}?")
    assert example in refused.value.hint


@pytest.mark.parametrize(
    ("change", "said"), [({"bias": "qvk"}, "bias: 'qvk' is none"), ({"full_attention_every": 3}, "full_.*: without a window")]
)
def test_a_model_that_was_changed_in_python_is_checked_too(change: dict[str, object], said: str) -> None:
    model = replace(sim.model("qwen2.5-0.5b"), **change)
    with pytest.raises(UserError, match=f"model.{said}"):
        sim.simulate(model, sim.cluster("dgx-h100", nodes=1), sim.Plan(), sim.Job(global_batch=8))


@pytest.mark.parametrize("more", [{}, {"experts": 6, "experts_per_token": 2, "expert_ffn_hidden": 96}])
def test_degrees_that_do_not_divide_the_gpus_are_one_fault(more: dict[str, int]) -> None:
    """There is no data-parallel degree then, by which a batch, a group or experts could divide or not."""
    model = sim.model({"layers": 6, "hidden": 384, "heads": 6, "ffn_hidden": 96, "vocab": 1000, **more})
    plan = sim.Plan(tp=3, ep=2 if more else 1, sharding=sim.Sharding("fsdp", group=2))
    scenario = Scenario(model, sim.cluster("dgx-h100", nodes=2), plan, sim.Job(sequence_length=24, global_batch=32))
    assert list(faults(scenario)) == ["plan"]
    assert "job.global_batch" in faults(replace(scenario, plan=replace(plan, tp=2, pp=2, dp=3)))


@pytest.mark.parametrize("dp", [None, "stated"])
@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
@pytest.mark.parametrize(("gpus", "pp", "microbatch"), [(4, 1, 1), (4, 1, 2), (8, 1, 1), (12, 3, 1), (12, 3, 2), (15, 3, 1)])
def test_the_nearest_shape_of_a_schedule_is_legal_with_the_replicas_there_are_then(
    gpus: int, pp: int, microbatch: int, schedule: str, dp: str | None
) -> None:
    """A batch is said only where another number of stages leaves whole replicas."""
    model = sim.model({"layers": 16, "hidden": 512, "heads": 8, "vocab": 1000})
    plan = sim.Plan(pp=pp, schedule=schedule, dp=gpus // pp if dp else None, sharding="none")
    job = sim.Job(sequence_length=64, global_batch=gpus // pp * microbatch, microbatch_size=microbatch)
    scenario = Scenario(model, sim.cluster("dgx-h100", nodes=1, gpus_per_node=gpus), plan, job)
    hint = faults(scenario)["plan.schedule"]
    said = {name: int(value) for name, value in re.findall(r"(?:plan|job)\.(\w+): (\d+)", hint)}
    assert said["pp"] != pp
    assert ("global_batch" in said) == (not gpus % said["pp"])
    if "global_batch" in said:
        legal = replace(plan, pp=said["pp"], dp=said.get("dp"))
        nearest = replace(scenario, plan=legal, job=replace(job, global_batch=said["global_batch"]))
        assert not faults(nearest), hint
        assert f"which is {microbatches(nearest)} microbatches of each replica" in hint


@pytest.mark.parametrize("kind", ["ring", "all-gather", "mixed", "ulysses"])
def test_a_window_of_the_whole_sequence_is_none_for_context_parallel_ranks_too(kind: Any) -> None:
    def windowed(window: int) -> Scenario:
        model = sim.model({"layers": 2, "hidden": 512, "heads": 8, "vocab": 1000, "window": window})
        job = sim.Job(sequence_length=4096, global_batch=4)
        return Scenario(model, sim.cluster("dgx-h100", nodes=1), sim.Plan(cp=4, cp_kind=kind), job)

    times = {windowed(window).simulate().metrics.step_time_s for window in (0, 4096, 5000)}
    assert len(times) == 1
    assert [*faults(windowed(4095))] == ([] if kind == "ulysses" else ["plan.cp_kind"])
