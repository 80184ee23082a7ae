"""What a scenario says that changes nothing. Saying so beats silence: somebody wrote it to see what it does."""

from __future__ import annotations

from ..fields import keys
from ..hardware.cluster import Cluster
from ..hardware.gpu import Gpu
from . import catalog
from .cluster_file import ClusterFile
from .scenario import Scenario
from .shipped_fits import file_of


def unused(scenario: Scenario) -> list[str]:
    """A sentence for each value that somebody gave and that has no effect; what a file of the catalog says needs no word."""
    return [*_power(scenario.cluster.gpu), *_pods(scenario.cluster)]


def _power(gpu: Gpu) -> list[str]:
    usual_w = file_of(gpu.name).tdp_w if gpu.name in catalog.files("gpus") else 0.0
    if gpu.tdp_w == usual_w:
        return []
    return [f"cluster.gpu.tdp: {gpu.tdp_w:g} W has no effect, power is not modelled yet"]


def _pods(cluster: Cluster) -> list[str]:
    """Nodes per pod, which shapes without pods do not look at: those of a WAN's sites count too."""
    shapes = [cluster.shape, *(cluster.options.wan.shapes if cluster.options.wan else ())]
    has_pods = any("nodes_per_pod" in getattr(shape, "OPTIONS", ("nodes_per_pod",)) for shape in shapes)
    if has_pods or cluster.nodes == 1 or cluster.nodes_per_pod == keys(ClusterFile)["nodes_per_pod"].default:
        return []
    return [f"cluster.nodes_per_pod: {cluster.nodes_per_pod} has no effect, the shape {cluster.shape_name} has no pods"]
