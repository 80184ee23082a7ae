"""Ranks of one pipeline stage that do not do the same: a template for each role, wherever in the mesh it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simulator as sim
from simulator.binding.bind import Bound, Site, bind, roles_of_ranks
from simulator.config import derived
from simulator.engine import des
from simulator.engine.fold import fold, unfolded
from simulator.engine.replay import with_fixed_durations
from simulator.engine.timeline import Timeline
from simulator.errors import InvariantBroken
from simulator.kernels import Gemm, Kernel
from simulator.lowering.passes.data_parallel import DP
from simulator.metrics import observe
from simulator.metrics.idle import measure
from simulator.plan.mesh import Mesh
from simulator.program.operations import COMPUTE, Collective, Compute
from simulator.program.program import Body, Program, Role, Step
from simulator.simulation.simulate import program_of, site_of

from ..small_scenarios import both, scenario, small_cluster

NS_PER_GEMM = {1: 10_000, 2: 35_000}
"""Duration of the toy's kernels by their size."""


def kernel_ns(kernel: Kernel) -> int:
    return NS_PER_GEMM[kernel.m] if isinstance(kernel, Gemm) else 0


def body(size: int) -> Body:
    """A kernel, a sum over the replicas, and a kernel again."""
    kernels = [Compute(name=name, streams=(COMPUTE,), kernel=Gemm(size, 1, 1, 2)) for name in ("before", "after")]
    reduction = Collective(name="sum", streams=("dp",), communicator="dp", kind="all_reduce", payload_bytes=10**6)
    return Body((kernels[0], reduction, kernels[1]))


def toy() -> Program:
    """Two replicas of one stage compute little, the other two much: what unequal shares of tokens make of them."""
    orders = tuple(tuple(Step(name, "F", microbatch=m) for m in range(3)) for name in ("little", "much"))
    roles = (Role(0, {"dp": (0, 2)}), Role(0, {"dp": (1, 3)}))
    return Program((), {"little": body(1), "much": body(2)}, orders, {"dp": DP}, roles)


def bound(program: Program) -> Bound:
    site: Site = replace(site_of(scenario(cluster=small_cluster(2))), cost=kernel_ns, host=None)
    return bind(program, Mesh.of({"dp": 4, "tp": 2}, "tp-dp"), site)


def test_two_templates_in_one_stage_bind_and_fold_and_equal_the_unfolded_run() -> None:
    found = bound(toy())
    assert found.skeleton.program.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [labels.pipeline for labels in found.labels] == [0, 0]
    compared = both(found.every_link, found.skeleton)
    compared.assert_equal()
    assert compared.classes < len(compared.folded.class_of)


def test_who_does_less_waits_for_the_replica_that_does_more() -> None:
    """The sum begins when the slower role has done its kernel, in every microbatch."""
    folded = fold(bound(toy()).skeleton)
    times = des.simulate(with_fixed_durations(folded.graph))
    timeline = Timeline(times, folded)
    little, much = timeline.rank_times(0), timeline.rank_times(2)
    np.testing.assert_array_equal(little.start_ns[1::3], much.start_ns[1::3])
    np.testing.assert_array_equal(much.end_ns[::3], much.start_ns[1::3])
    assert (little.end_ns[::3] < little.start_ns[1::3]).all()
    causes = measure(observe(timeline, bound(toy()).labels))
    assert causes.of("imbalance of dp").max() > 0 == causes.of("bubble").max()


@pytest.mark.parametrize("pp", [1, 2])
def test_roles_that_differ_in_nothing_change_no_time(pp: int) -> None:
    """A program whose orders are written once for each replica runs as the one that has them once."""
    of = scenario(cluster=small_cluster(2), plan=sim.Plan(tp=2, pp=pp, dp=4 // pp, sharding="zero1"))
    program, mesh = program_of(of), derived.mesh_of(of)
    replicas = range(mesh.degrees["dp"])
    roles = tuple(Role(stage, {"dp": (replica,)}) for stage in range(pp) for replica in replicas)
    divided = replace(program, divided_roles=roles, orders=tuple(program.orders[role.pipeline] for role in roles))
    whole, again = (unfolded(bind(p, mesh, site_of(of)).skeleton) for p in (program, divided))
    assert len(set(again.skeleton.program.tolist())) == len(roles)
    one, other = (des.simulate(how.graph) for how in (whole, again))
    np.testing.assert_array_equal(one.end_ns, other.end_ns)
    assert divided.ranks == program.ranks == pp


def test_a_rank_without_a_role_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="rank 2 has no role"):
        roles_of_ranks((Role(0, {"dp": (0,)}),), Mesh.of({"dp": 2, "tp": 2}, "tp-dp"))


def test_all_members_of_a_group_exchange_by_the_same_matrix() -> None:
    def uneven(size: int) -> Body:
        given = ((0, size, 0, 0),) * 4
        return Body(tuple(replace(op, matrix_bytes=given) if isinstance(op, Collective) else op for op in body(size).ops))

    with pytest.raises(InvariantBroken, match="do not take the same turns"):
        fold(bound(replace(toy(), bodies={"little": uneven(1), "much": uneven(2)})).skeleton)
