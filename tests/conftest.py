"""Settings that all tests share."""

from __future__ import annotations

import gc
from collections import defaultdict
from math import ceil
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile("house", deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("unshrunk", settings.get_profile("house"), phases=[Phase.explicit, Phase.generate])
"""For mutations: that a test fails is enough, and no smaller example is looked for."""
settings.load_profile("house")


def pytest_collection_finish() -> None:
    """Ten thousand tests, once collected, are no garbage, and need not be looked through again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked `thinned(n)`, one in n runs with the fast tests, chosen by a hash; the others are slow."""
    grids: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thinned"):
            grids[item.nodeid.split("[")[0]].append(item)
    for cases in grids.values():
        mark = cases[0].get_closest_marker("thinned")
        assert mark is not None
        kept = ceil(len(cases) / mark.args[0])
        for case in sorted(cases, key=lambda case: crc32(case.nodeid.encode()))[kept:]:
            case.add_marker(pytest.mark.slow)
