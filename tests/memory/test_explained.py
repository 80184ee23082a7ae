"""Memory explained and drawn: what the command prints, and what the picture shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import simulator as sim
from simulator.config import feasible
from simulator.errors import UserError
from simulator.figures.memory_plot import COLOURS, MOST_POINTS, _thinned
from simulator.program.holdings import Holding
from simulator.units import GIB

from ..commandline import SMALL, trainsim
from ..small_scenarios import scenario, small_cluster, small_model
from .test_memory import PLANS, of_plan
from .test_peak import SPREAD


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("memory") / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    return file


@given(plan=PLANS | SPREAD)
@settings(deadline=None, max_examples=5)
def test_classes_over_time_add_up_to_all_that_a_rank_holds(plan: dict[str, Any]) -> None:
    of = of_plan(plan)
    try:
        feasible.check(of)
    except UserError:
        return
    run = of.simulate()
    for rank in (0, len(run.memory) - 1):
        times, of_class = run.memory_by_class(rank)
        at, held = run.memory_over_time(rank)
        assert np.array_equal(times, at)
        assert np.array_equal(sum(of_class.values()), held)
        assert min(values.min() for values in of_class.values()) >= 0
        assert min(values.max() for values in of_class.values()) > 0
        assert {kind for kind in Holding if run.memory[rank].bytes_of(kind)} <= set(of_class)


@pytest.mark.parametrize("dp, sharding", [(1, "none"), (2, "zero1"), (2, "fsdp"), (4, "zero1")])
def test_formulas_say_the_bytes_of_state(dp: int, sharding: Any) -> None:
    """Bytes for each parameter, times parameters, divided by shards, each rank's share rounded up."""
    cluster = small_cluster(1, gpus_per_node=dp)
    run = scenario(small_model(8), cluster, sim.Plan(dp=dp, sharding=sharding), sim.Job(128, 16, 1)).simulate()
    state = (Holding.PARAMETERS, Holding.GRADIENTS, Holding.MASTER, Holding.MOMENTS)
    items = [item for item in run.memory[0].items if item.kind in state]
    assert len(items) >= 3
    for item in items:
        whole, _, shards = item.formula.removesuffix(" shards").partition(" / ")
        each_bytes, parameters = whole.removesuffix(" parameters").split(" bytes x ")
        share = -(-int(parameters.replace(",", "")) // int(shards or 1))
        assert item.size_bytes == float(each_bytes) * share


def test_the_terms_of_a_rank_are_printed_with_formulas_and_a_verdict(file: Path) -> None:
    said = trainsim("memory", file, "--explain")
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 120
    for word in ("weights", "two moments of Adam", "attention", "tp", "total", "peak", "reached in"):
        assert word in said.out
    assert "fits with" in said.out.splitlines()[-1]
    assert "to spare" in trainsim("memory", file).out.splitlines()[-1]


def test_the_explanation_is_data_too(file: Path) -> None:
    """By default of the fullest rank; its terms add up to the peak, and say the same as in Python."""
    every = trainsim("memory", file, "--json").record
    found = trainsim("memory", file, "--explain", "--json").record
    fullest = max(every["memory_by_stage"], key=lambda one: one["total_bytes"])
    assert (found["rank"], found["peak_memory_bytes"]) == (fullest["rank"], fullest["total_bytes"])
    assert sum(term["bytes"] for term in found["terms"]) == found["peak_memory_bytes"]
    assert sum(term["share"] for term in found["terms"]) == pytest.approx(1)
    assert {term["class"] for term in found["terms"]} <= {kind.value for kind in Holding}
    assert found["fits"] is True
    first = trainsim("memory", file, "--explain", "--rank", 0, "--json").record
    assert first == sim.memory(file).explain(0).as_dict()
    assert first["peak"]["microbatches_alive"] == 2 > found["peak"]["microbatches_alive"]
    assert any(term["class"] == "logits" for term in found["terms"])


def test_ranks_that_do_not_exist_and_ranks_without_an_explanation_are_refused(file: Path) -> None:
    said = trainsim("memory", file, "--explain", "--rank", 2)
    assert said.code == 2
    assert "pipeline ranks are 0 to 1" in said.err
    assert trainsim("memory", file, "--rank", 1).code == 2


def test_what_does_not_fit_says_how_much_it_needs(file: Path) -> None:
    gpu = "cluster.gpu={name: h100, memory: 2 GiB, reserved: 0 B}"
    said = trainsim("memory", file, "--explain", "--set", gpu)
    assert said.code == 3
    assert "MiB more than the 2.0 GiB of h100" in said.out
    record = trainsim("memory", file, "--explain", "--json", "--set", gpu)
    assert (record.code, record.record["fits"]) == (3, False)
    assert record.record["over_gib"] == pytest.approx(record.record["peak_memory_bytes"] / GIB - 2)
    assert record.record["infeasible"] == f"out of memory by {record.record['over_gib']:.1f} GiB"


def test_the_picture_has_the_fullest_rank_by_class_every_rank_and_the_capacity() -> None:
    assert set(COLOURS) == set(Holding)
    run = scenario(small_model(), small_cluster(1), sim.Plan(pp=4), sim.Job(256, 16, 1)).simulate()
    figure = sim.memory_plot(run)
    classes, ranks = figure.axes
    labels = [text.get_text() for text in classes.get_legend().get_texts()]
    assert len(labels) == len(set(labels)) == 1 + len(run.memory_by_class(0)[1])
    assert [text.get_text() for text in ranks.get_legend().get_texts()] == [f"rank {rank}" for rank in range(4)]
    for axes in (classes, ranks):
        assert axes.get_ylabel() == "memory (GiB)"
        heights = [line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1]
        assert run.scenario.cluster.gpu.memory_bytes / GIB in heights
    assert max(line.get_ydata().max() for line in ranks.lines[:4]) == pytest.approx(run.peak_memory_bytes / GIB)
    assert len(sim.memory_plot(scenario(small_model(), small_cluster(1), sim.Plan(dp=4)).simulate()).axes) == 1


def test_of_many_points_the_largest_are_drawn() -> None:
    times = np.linspace(0, 1, 10 * MOST_POINTS)
    held = np.where(np.arange(len(times)) % 7 == 3, 5, 1)[None] * GIB
    at_ms, values = _thinned(times, held, 1000.0)
    assert len(at_ms) <= MOST_POINTS + 1
    assert (values == 5).mean() > 0.99
    assert (np.diff(at_ms) > 0).all()


def test_the_command_draws_the_picture(file: Path, tmp_path: Path) -> None:
    said = trainsim("memory", file, "--plot", tmp_path / "memory.png")
    assert said.code == 0
    assert (tmp_path / "memory.png").read_bytes()[:4] == b"\x89PNG"
    assert "memory.png" in said.out
