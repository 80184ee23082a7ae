"""A small scenario to test with: a model of a few layers, a cluster of small nodes, and both ways to simulate it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import simulator as sim
from simulator.binding.bind import Bound
from simulator.engine import des, heap
from simulator.engine.contract import contract
from simulator.engine.fold import fold, unfolded
from simulator.engine.replay import with_fixed_durations
from simulator.engine.skeleton import Expansion, Skeleton
from simulator.engine.timeline import Timeline, Times
from simulator.simulation.runnable import RunnableScenario
from simulator.simulation.simulate import bound_of, program_of
from simulator.study.collective import Timed, collective

HOST = {"bandwidth": "50 GB/s", "memory": "1 TB", "memory_bandwidth": "400 GB/s"}
"""The memory of the CPUs of a node, and the links to it, for `small_cluster(host=HOST)`."""


def small_model(layers: int = 8, **changes: Any) -> Any:
    shape = {"layers": layers, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn_hidden": 1408, "vocab": 4096, "gated_mlp": True}
    return sim.model({**shape, **changes})


def small_cluster(nodes: int = 2, **changes: Any) -> Any:
    """Nodes of four H100s with a NIC each, two nodes to a pod; links at their face value, so that tests can do the sums."""
    shape: dict[str, Any] = {
        "gpu": "h100", "gpus_per_node": 4, "nodes": nodes, "intra_node": "NVSwitch 450 GB/s", "inter_node": "4x400 Gbit/s",
        "shape": "rail-optimized", "nodes_per_pod": 2, "fabric": "ideal",
    }  # fmt: skip
    return sim.cluster({**shape, **changes})


def scenario(model: Any = None, cluster: Any = None, plan: Any = None, job: Any = None, **more: Any) -> RunnableScenario:
    """Communication slows no compute unless the fidelity says so, so that tests can do the sums."""
    more["fidelity"] = more.get("fidelity", sim.Fidelity())
    if more["fidelity"].overlap is None:
        more["fidelity"] = replace(more["fidelity"], overlap="free")
    return RunnableScenario(
        model or small_model(),
        cluster or small_cluster(),
        plan or sim.Plan(),
        job or sim.Job(sequence_length=256, global_batch=16),
        **more,
    )


@dataclass(frozen=True)
class Both:
    """A scenario that was bound twice, simulated whole by one binding and folded by the other."""

    whole: Expansion
    folded: Expansion
    whole_times: Times
    folded_times: Times

    @property
    def classes(self) -> int:
        return self.folded.skeleton.ranks

    def assert_equal(self) -> None:
        """Every start, end and arrival of every row of every rank."""
        assert self.whole.skeleton.ranks == len(self.folded.class_of)
        whole, folded = Timeline(self.whole_times, self.whole), Timeline(self.folded_times, self.folded)
        for rank in range(whole.ranks):
            mine, theirs = whole.rank_times(rank), folded.rank_times(rank)
            np.testing.assert_array_equal(mine.start_ns, theirs.start_ns)
            np.testing.assert_array_equal(mine.end_ns, theirs.end_ns)
            np.testing.assert_array_equal(mine.arrival_ns, theirs.arrival_ns)


def bound(of: RunnableScenario, steps: int | None = 1) -> Bound:
    return bound_of(of, program_of(of, steps))


def bound_twice(of: RunnableScenario, steps: int | None = 1) -> tuple[Skeleton, Skeleton]:
    """What a scenario is bound to with every link, whether it can ever bind or not; and then as `simulate` binds it."""
    both_ways = bound(of, steps)
    return both_ways.every_link, both_ways.merged


def both(whole: Skeleton, folded: Skeleton) -> Both:
    """Two bindings of a scenario. The whole is simulated as it is, by the reference; the folded with lone flows closed and tasks
    in a row contracted, as `simulate` does it."""
    each, alike = unfolded(whole), fold(folded)
    return Both(each, alike, des.simulate(each.graph), heap.times_by(contract(with_fixed_durations(alike.graph))))


def time_collective(kind: str, cluster: Any, sizes_bytes: Sequence[int] = (), **options: Any) -> list[Timed]:
    """The rows of the table of a collective by itself, for every size."""
    return list(collective(kind, cluster, sizes_bytes, **options).rows)
