"""Ten thousand random plans by every engine, as `make plans` runs them."""

from __future__ import annotations

import pytest

from . import random_plans

PARTS, PLANS = 20, 500
"""Parts that run apart, with seeds of their own, and plans of each."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_of_random_plans_is_as_in_the_reference_by_every_engine(part: int) -> None:
    counts = random_plans.drawn(PLANS, first=1000 * part)
    assert counts["plans"] == counts["heap"] == PLANS
    for way in ("disturbed", "stretches", "with a second job", "replay"):
        assert counts[way] > 0, way
