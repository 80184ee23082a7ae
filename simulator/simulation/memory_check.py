"""Whether a scenario fits in memory, found before the whole program is lowered: lowering takes most of the time of a refusal.

What a rank holds depends on the order of its slots and on what one microbatch keeps. So a single microbatch is lowered, which
takes milliseconds, and the slots of all of them are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config import feasible
from ..config.scenario import Scenario
from ..errors import Infeasible
from ..memory.account import RankMemory, Terms, account, bodies_of
from ..program.program import Program
from ..program.slot import Layout
from ..units import GIB, show_bytes
from .assemble import program_of

LEFT_FRACTION = 0.05
"""Part of a GPU's memory: with less than that left free it is reported as nearly full."""


def memory_of(scenario: Scenario, layout: Layout) -> tuple[RankMemory, ...]:
    """What a GPU of every pipeline rank holds when it runs the slots of a layout."""
    unblocked = replace(scenario.plan, overlap=replace(scenario.plan.overlap, pp=True))
    sample = program_of(replace(scenario, plan=unblocked), layout=layout.sampled())
    return account(sample, terms_of(scenario, sample), bodies_of(layout, sample))


def terms_of(scenario: Scenario, program: Program) -> Terms:
    """What the memory of a scenario depends on besides its program."""
    replicas = feasible.data_parallel_degree(scenario) * sum(stage.number == 0 for stage in program.stages)
    return Terms(
        element_bytes=scenario.job.element_bytes,
        gradient_bytes=scenario.framework.gradient_bytes,
        optimizer_shards=replicas if scenario.plan.shards_optimizer else 1,
        degrees=feasible.mesh_of(scenario).degrees,
        overhead=scenario.framework.memory,
        reserved_bytes=scenario.cluster.gpu.reserved_bytes,
    )


def must_fit(scenario: Scenario, memory: Sequence[RankMemory]) -> None:
    """Raises `Infeasible` if a rank holds more than its GPU has."""
    most, have = max(memory, key=lambda rank: rank.total_bytes), scenario.cluster.gpu.memory_bytes
    if most.total_bytes > have:
        over = most.total_bytes - have
        raise Infeasible(
            f"out of memory: the largest rank needs {show_bytes(most.total_bytes)}, {over / GIB:.1f} GiB more than "
            f"the {show_bytes(have)} of {scenario.cluster.gpu.name} ({_parts(most)})",
            hint=f"{remedies(scenario)}, or --allow-oom to see the timeline anyway",
            over_bytes=over,
        )


def _parts(rank: RankMemory) -> str:
    """The parts of a rank's memory, as text."""
    state = rank.parameters_bytes + rank.gradients_bytes + rank.optimizer_bytes
    return (
        f"{show_bytes(state)} parameters, gradients and optimizer, {show_bytes(rank.activations_bytes)} activations, "
        f"{show_bytes(rank.overhead_bytes)} context, NCCL buffers and fragmentation"
    )


def remedies(scenario: Scenario) -> str:
    """What would make less memory enough, of what the plan does not do yet."""
    plan, ways = scenario.plan, ["more tp or pp"]
    if not plan.shards_optimizer and feasible.data_parallel_degree(scenario) > 1:
        ways.append("sharding: zero1")
    if scenario.job.microbatch_size > 1:
        ways.append("a smaller microbatch")
    return ", ".join(ways)


def is_nearly_full(scenario: Scenario, memory: Sequence[RankMemory]) -> bool:
    """Whether a plan fits, with less than `LEFT_FRACTION` of the memory left on the fullest GPU."""
    peak, have = max(rank.total_bytes for rank in memory), scenario.cluster.gpu.memory_bytes
    return (1 - LEFT_FRACTION) * have < peak <= have


def notes(scenario: Scenario, memory: Sequence[RankMemory]) -> list[str]:
    """A sentence if the memory is nearly full."""
    if not is_nearly_full(scenario, memory):
        return []
    have = scenario.cluster.gpu.memory_bytes
    left = show_bytes(have - max(rank.total_bytes for rank in memory))
    return [f"memory is nearly full: {left} of {show_bytes(have)} left on the fullest GPU, less than {LEFT_FRACTION:.0%}"]
