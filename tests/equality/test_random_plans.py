"""Some of the random plans that `make plans` runs by every engine."""

from __future__ import annotations

import pytest

from . import random_plans


@pytest.mark.slow
def test_every_row_of_random_plans_is_as_in_the_reference_by_every_engine() -> None:
    counts = random_plans.drawn(200, first=0)
    assert counts["plans"] == counts["heap"] == 200
    for way in ("disturbed", "stretches", "with a second job", "replay"):
        assert counts[way] > 0, way
