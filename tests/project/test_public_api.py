"""What `import simulator` offers: these names, no others, each what its module says."""

from __future__ import annotations

import pytest

import simulator

PUBLIC = (
    "Deadlock",
    "Fidelity",
    "Infeasible",
    "Job",
    "Lora",
    "Moe",
    "Offload",
    "Optimizer",
    "Overlap",
    "Packing",
    "Perturb",
    "Plan",
    "Recompute",
    "Run",
    "Session",
    "Sharding",
    "UserError",
    "advise",
    "advise_serving",
    "cluster",
    "collective",
    "compare",
    "compare_schedules",
    "explain",
    "flows",
    "framework",
    "gantt",
    "goodput",
    "kernel",
    "kineto",
    "load",
    "memory",
    "memory_plot",
    "model",
    "network",
    "report",
    "scenario",
    "schedule",
    "search",
    "simulate",
    "sweep",
    "sweep_plot",
    "topology",
    "topology_plot",
    "tornado",
    "trace",
    "validate",
    "waterfall_plot",
    "what_if",
)


def test_the_public_names_are_these() -> None:
    assert tuple(simulator.__all__) == PUBLIC
    assert dir(simulator) == sorted([*PUBLIC, "__version__"])


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(simulator, name)
    assert thing.__name__ == name
    assert thing.__module__.startswith("simulator.")
    assert thing.__doc__
    assert getattr(simulator, name) is thing


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'simulator'"):
        _ = simulator.simulator
