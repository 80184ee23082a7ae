"""A step of few microbatches is not simulated where its ranks still run at different paces."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simulator as sim
from simulator.program.layout import Layout
from simulator.program.slot import Slot
from simulator.simulation.expected_periods import is_expected
from simulator.simulation.fewer_microbatches import period_of
from simulator.simulation.memory_check import slots_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, site_of

from ..small_scenarios import scenario, small_cluster, small_model


def pipeline(schedule: str, vocab: int, microbatches: int) -> Scenario:
    """Four stages of two layers each; the last one is slower the larger the vocabulary is."""
    model = replace(small_model(8), vocab=vocab)
    job = sim.Job(sequence_length=256, global_batch=microbatches)
    return scenario(model, small_cluster(2), sim.Plan(tp=2, pp=4, dp=1, schedule=schedule), job)


def expected(of: Scenario, layout: Layout | None = None) -> bool:
    layout = layout or layout_of(of, site_of(of))
    period = period_of(layout_of(of, site_of(of)))
    assert period
    return is_expected(layout, period.slots, slots_of(of, layout_of(of, site_of(of))), site_of(of).cost)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_long_step_is_expected_to_repeat(schedule: str) -> None:
    assert expected(pipeline(schedule, 1024, 144))


def test_slack_that_is_not_used_up_is_no_period() -> None:
    assert [expected(pipeline("zb-h1", 4096, microbatches)) for microbatches in (12, 144)] == [False, True]


def test_slots_that_wait_in_a_circle_are_tried() -> None:
    of = pipeline("1f1b", 1024, 24)
    layout = layout_of(of, site_of(of))
    orders = tuple(tuple(reversed(order)) for order in layout.orders)
    assert isinstance(orders[0][0], Slot)
    assert expected(of, replace(layout, orders=orders))


def test_slots_in_pairs_are_tried() -> None:
    of = pipeline("dualpipe", 1024, 48)
    assert expected(of, layout_of(replace(of, job=replace(of.job, global_batch=16))))
