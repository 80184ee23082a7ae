"""Global constants of steps: few, explained, and each moves what it says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulator.config import step_constants
from simulator.config.document import Document
from simulator.config.reader import validated
from simulator.config.step_constants import MOST_CONSTANTS, StepConstantsFile, model_error
from simulator.errors import UserError
from simulator.simulation import run

from ..small_scenarios import scenario


def test_constants_are_few_and_explained() -> None:
    constants = step_constants.step_constants().values()
    assert 0 < len(constants) <= MOST_CONSTANTS
    for each in constants:
        low, high = each.interval
        assert low <= each.value <= high
        assert len(each.obtained.split()) > 5
        assert len(each.moves.split()) > 5


def test_a_ninth_constant_is_refused() -> None:
    one = {"name": "a", "value": 1, "interval": [1, 1], "obtained": "so", "moves": "this"}
    with pytest.raises(UserError):
        validated(StepConstantsFile, Document.of({"constants": [one] * 9}))


@pytest.mark.parametrize("error", [0.02, 0.3])
def test_the_model_error_moves_the_interval_of_a_step_and_nothing_else(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = scenario().simulate()
    of_costs = math.sqrt(width(usual) ** 2 - model_error() ** 2)
    monkeypatch.setattr(run, "model_error", lambda: error)
    other = replace(usual)
    assert (other.metrics, other.memory) == (usual.metrics, usual.memory)
    assert width(other) == pytest.approx(math.hypot(of_costs, error))


def width(of: run.Run) -> float:
    """The log-standard error of a step."""
    return math.log(of.step_time_interval_s[1] / of.metrics.step_time_s) / 2
