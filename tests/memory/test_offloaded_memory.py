"""Memory of offloaded data: closed forms of what GPUs no longer hold, and of what the host of a node holds for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

import simulator as sim
from simulator.memory.account import RankMemory
from simulator.program.operations import COPY_OUT, Collective
from simulator.report.sections import facts
from simulator.simulation.memory_check import host_bytes, memory_of
from simulator.simulation.runnable import RunnableScenario as Scenario
from simulator.simulation.simulate import layout_of, program_of
from simulator.units import show_bytes

from ..commandline import trainsim
from ..small_scenarios import HOST, scenario, small_cluster, small_model


def of(offload: Any, *, microbatches: int = 1, host: Any = HOST, **plan: Any) -> Scenario:
    chosen = sim.Plan(offload=offload, **plan)
    job = sim.Job(sequence_length=256, global_batch=8 // (chosen.tp * chosen.pp) * microbatches)
    return scenario(small_model(8), small_cluster(2, host=host), chosen, job)


def memory(one: Scenario) -> RankMemory:
    return memory_of(one, layout_of(one))[0]


@pytest.mark.parametrize(("sharding", "divided"), [("none", 1), ("zero1", 8), ("zero2", 8), ("zero3", 8)])
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_t19_7_eighteen_bytes_for_each_parameter_that_cpus_update(sharding: str, divided: int, fraction: float) -> None:
    """Twelve of state leave the GPU; the host adds gradients in fp32 and the parameters that it sends."""
    plain, rank = (
        memory(of(offload, sharding=sharding)) for offload in ("none", sim.Offload(optimizer=True, optimizer_fraction=fraction))
    )
    updated = fraction * plain.optimizer_bytes / 12
    assert plain.optimizer_bytes - rank.optimizer_bytes == pytest.approx(12 * updated, abs=20)
    assert rank.host_bytes == pytest.approx(18 * updated, abs=40)
    assert rank.parameters_bytes == plain.parameters_bytes
    copies_all = sharding in ("zero2", "zero3") and fraction == 1
    assert rank.gradients_bytes == (0 if copies_all else plain.gradients_bytes)


@pytest.mark.parametrize(("sharding", "each_bytes"), [("zero3", 18), ("fsdp", 16)])
def test_t19_7_the_host_holds_the_shares_of_parameters(sharding: str, each_bytes: int) -> None:
    plain, rank = (memory(of(offload, sharding=sharding, microbatches=2)) for offload in ("none", "parameters"))
    owned = plain.optimizer_bytes / (8 if sharding == "fsdp" else 12)
    assert rank.host_bytes == pytest.approx(each_bytes * owned, abs=40)
    assert rank.optimizer_bytes == 0
    shares = plain.parameters_bytes - rank.parameters_bytes
    assert shares == pytest.approx((4 if sharding == "fsdp" else 2) * owned, abs=40)


def test_t19_7_activations_of_all_microbatches_in_flight_are_on_the_host() -> None:
    """The first of two pipeline ranks has two microbatches in flight, the second one."""
    one = of(sim.Offload(activations=0.5), pp=2, microbatches=4)
    program, ranks = program_of(one), memory_of(one, layout_of(one))
    for rank, in_flight in zip(ranks, (2, 1), strict=True):
        body = next(program.bodies[step.body] for step in program.orders[rank.rank] if step.phase == "F")
        copied = sum(op.payload_bytes for op in body.ops if isinstance(op, Collective) and op.kind == COPY_OUT)
        assert rank.host_bytes == in_flight * copied
    assert host_bytes(one, ranks) == 4 * ranks[0].host_bytes  # ranks of the first stage fill the first node


def test_t19_7_a_host_that_is_too_small_is_refused() -> None:
    small = of("optimizer", host={**HOST, "memory": "1 GB"})
    with pytest.raises(sim.Infeasible, match=r"out of host memory: a node needs .* of a node of inline"):
        small.simulate()
    run = small.simulate(allow_oom=True)
    assert not run.fits
    said = dict(run.summary)
    assert said["host memory"].endswith("DOES NOT FIT")
    assert said["memory"].endswith("on the fullest GPU")  # which has enough memory
    assert run.as_dict()["host_memory"] == {"peak_bytes": run.host_bytes, "capacity_bytes": 1e9}
    figures = re.findall(r'<div class="fact( bad)?"><b>([^<]*)</b><span>([^<]*)</span>', facts(run))
    assert [figure for figure in figures if " on the fullest " in figure[2]] == [
        ("", show_bytes(run.peak_memory_bytes), f"of {show_bytes(run.scenario.cluster.gpu.memory_bytes)} on the fullest GPU"),
        (" bad", show_bytes(run.host_bytes), "of 953.7 MiB of host memory on the fullest node: does not fit"),
    ]
    unknown = {name: value for name, value in HOST.items() if name != "memory"}
    assert of("optimizer", host=unknown).simulate().fits


def test_the_command_shows_the_memory_of_the_host(tmp_path: Any) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "model: {layers: 4, hidden: 512, heads: 8, vocab: 4096}\ncluster: {name: dgx-h100, nodes: 1}\njob: {global_batch: 8}\n"
    )
    offload = ("--set", "plan.offload=optimizer")
    assert "host_memory" not in trainsim("memory", file, "--json").record
    found = trainsim("memory", file, *offload, "--json").record
    held = sum(rank["host_bytes"] for rank in found["memory_by_stage"])
    assert found["host_memory"] == {"peak_bytes": 8 * held, "capacity_bytes": 2e12}
    assert "host memory" in trainsim("memory", file, *offload).out
    small = trainsim("memory", file, *offload, "--set", "cluster.host.memory=1 MB")
    assert (small.code, "out of host memory" in small.err) == (3, True)
