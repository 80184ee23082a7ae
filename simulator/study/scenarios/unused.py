"""What a scenario says that changes nothing yet. Saying so beats silence: somebody wrote it to see what it does."""

from __future__ import annotations

from .. import catalog
from ..gpus.gpu_files import schema_of
from .scenario import Scenario


def unused(scenario: Scenario) -> list[str]:
    """A sentence for each value that somebody gave and that has no effect; what a file of the catalog says needs no word."""
    gpu = scenario.cluster.gpu
    usual_w = schema_of(gpu.name).tdp if gpu.name in catalog.files("gpus") else 0.0
    if gpu.tdp_w == usual_w:
        return []
    return [f"cluster.gpu.tdp: {gpu.tdp_w:g} W has no effect, power is not modelled yet"]
