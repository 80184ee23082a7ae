"""Optimizers that update one tensor after the other: which kernels a rank launches, and what they take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator as sim
from simulator.errors import UserError
from simulator.kernels import Rowwise
from simulator.lowering.passes.single_tensors import pieces_of_busiest
from simulator.program.operations import Compute
from simulator.program.program import Program
from simulator.simulation.runnable import RunnableScenario
from simulator.simulation.simulate import program_of

from ..small_scenarios import scenario, small_cluster, small_model


def of(single: bool = True, plan: sim.Plan | None = None, host_us: float = 0, layers: int = 4, **job: Any) -> RunnableScenario:
    host = {"kernel": f"{host_us} us"} if host_us else {}
    software = sim.framework({"single_tensors": single, "fusion": {"optimizer": False}, "host": host})
    chosen = sim.Job(sequence_length=64, global_batch=16, **job)
    return scenario(small_model(layers), small_cluster(2), plan or sim.Plan(), chosen, framework=software)


def kernels(program: Program, *phases: str) -> list[Compute]:
    ops = (op for step in program.orders[0] if step.phase in phases for op in program.bodies[step.body].ops)
    return [op for op in ops if isinstance(op, Compute)]


def rows(ops: list[Compute]) -> list[int]:
    return [op.kernel.rows for op in ops if isinstance(op.kernel, Rowwise)]


def tensors(program: Program) -> list[int]:
    """The parameters of every tensor of the first rank."""
    body = next(step.body for step in program.orders[0] if step.phase == "F")
    return [op.parameters for op in program.bodies[body].ops if isinstance(op, Compute) and op.parameters]


def held(units: list[list[int]], shards: int, rank: int) -> list[int]:
    """The pieces of a rank, parameter by parameter."""
    found = []
    for sizes in units:
        part = -(-sum(sizes) // shards)
        owner = [tensor for tensor, size in enumerate(sizes) for _ in range(size)]
        mine = owner[rank * part : (rank + 1) * part]
        found += [mine.count(tensor) for tensor in dict.fromkeys(mine)]
    return found


@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), min_size=1, max_size=4), st.integers(1, 9))
def test_t20_12_the_busiest_rank_has_most_pieces(units: list[list[int]], shards: int) -> None:
    ranks = [held(units, shards, rank) for rank in range(shards)]
    busiest = pieces_of_busiest(units, shards)
    assert busiest in ranks
    assert len(busiest) == max(map(len, ranks))


def test_t20_12_every_tensor_has_an_update_of_its_own() -> None:
    program = program_of(of(microbatch_size=2))
    update, together = kernels(program, "optimizer"), kernels(program_of(of(False, microbatch_size=2)), "optimizer")
    assert len(update) == len(together) * len(tensors(program)) > len(together)
    assert sorted(set(rows(update))) == sorted(set(tensors(program)))
    assert sum(rows(update)) == sum(rows(together))


def test_t20_12_norm_and_clipping_pass_over_all_tensors_before_the_update() -> None:
    program = program_of(of(gradient_clipping=True))
    norm, update = kernels(program, "local norm"), kernels(program, "optimizer")
    scaled = [op.purpose for op in update]
    assert len(norm) == scaled.count(scaled[0]) > 1
    assert scaled == sorted(scaled, key=scaled.index)


@pytest.mark.parametrize("sharding", ["zero2", "zero3", "fsdp"])
def test_t20_12_ranks_update_pieces_of_what_they_divide(sharding: str) -> None:
    whole, divided = program_of(of()), program_of(of(plan=sim.Plan(sharding=sharding)))
    pieces = rows(kernels(divided, "optimizer"))
    assert sum(pieces) <= sum(rows(kernels(program_of(of(False, sim.Plan(sharding=sharding))), "optimizer"))) * 1.01
    assert 0 < len(pieces) < len(kernels(whole, "optimizer"))


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_t20_12_a_host_takes_longer_for_many_tensors(sharding: str) -> None:
    """Without times of launches the kernels alone differ; with them the host is the slower one, by the launches that are more."""
    plan = sim.Plan(sharding=sharding)
    launches = [len(kernels(program_of(of(single, plan)), "optimizer")) for single in (True, False)]
    took = {us: [of(single, plan, us).simulate().metrics.step_time_s for single in (True, False)] for us in (0, 300)}
    assert took[0][0] >= took[0][1]
    assert took[300][0] - took[300][1] == pytest.approx((launches[0] - launches[1]) * 300e-6, rel=0.02)


def test_t20_12_the_number_of_layers_counts() -> None:
    """Equal layers are lowered once and repeated, and each has tensors."""
    few, more = (len(kernels(program_of(of(layers=layers)), "optimizer")) for layers in (4, 16))
    longer = len(kernels(program_of(of(layers=28)), "optimizer"))
    assert longer - more == more - few > 0


@pytest.mark.parametrize("words", [{"fusion": {"optimizer": True}}, {"fusion": {"optimizer": False}, "whole_tensors": True}])
def test_contradictions_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="single_tensors"):
        sim.framework({"single_tensors": True, "overlap": {"parameter_gather": False}, **words})


def test_costs_list_tensors_of_one_size_together() -> None:
    rows = [(row.name, row.shape, row.calls) for row in of(layers=16).simulate().kernel_costs if row.name == "update"]
    sizes = tensors(program_of(of(layers=16)))
    assert len(rows) == len({shape for _, shape, _ in rows}) == len(set(sizes))
    assert sum(calls for _, _, calls in rows) == len(sizes)
