"""Lower bound of a step: no simulated step of a plan is ever shorter, in the integers that binding rounds to.

If ranks wait for the gradient norm, a step is a closed graph, and its bound is the longest path through that graph: the steps of
every pipeline rank in order, each a block (`blocks.py`), with the transfers between ranks. The path contains, for every rank, its
head (the path of the first microbatch to the rank), its busy time with the collectives between its kernels, and its tail (the
last reductions, the optimizer, exposed gathers). A simulation only adds constraints:
launches, contention on links, slowed kernels, other ranks of a group. Collectives over pipeline ranks count on each rank alone.

If consecutive steps overlap, a rank still computes a whole step in the time of a step: its blocks, one after the other.

In addition, no link carries the bytes of a step in less time than they take at its capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ..binding.bind import Bound, Site
from ..config.scenario import Scenario
from ..engine.task import WEIGHT_BITS, Array, distinct
from ..frozen import replace
from ..program.layout import Layout
from ..program.operations import COMPUTE
from ..program.program import PARAMETERS, Key, Program, Step
from ..simulation import steady_state
from ..simulation.simulate import bound_of, program_of
from .blocks import Block, each_body_once, is_transfer, is_wait, rows_of

BlockOf = Callable[[int, Step], Block]
Made = dict[tuple[int, Key], int]
TOLERANCE = 1e-9
"""Relative error allowed for sums of floats."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """The parts of the bound of a step, in ns; the bound is the greatest of them."""

    path_ns: int
    """The longest path through the slots of all pipeline ranks; where steps overlap, that of the busiest rank."""
    link_ns: int
    """The time of the bytes on the link that needs longest."""

    @property
    def ns(self) -> int:
        return max(self.path_ns, self.link_ns)


def lower_bound(
    scenario: Scenario, site: Site, layout: Layout, slots: tuple[Program, ...], steps: int | None = None
) -> LowerBound:
    """The lower bound of the step of a scenario that `feasible.check` has passed. `steps` is as in `simulate`: None or 1."""
    counts = steady_state.to_simulate(scenario, steps)
    together = len(counts) == 1
    program = program_of(scenario, counts[0] if together else 1, layout, slots)
    return bound_of_program(scenario, site, program, together=together)


def bound_of_program(scenario: Scenario, site: Site, program: Program, *, together: bool) -> LowerBound:
    """The lower bound of a program; `together`: all of its ranks begin at the same time, and it ends when the last one has."""
    once = replace(program, orders=tuple(map(each_body_once, program.orders)))
    bound = bound_of(scenario, once, replace(site, host=None, sms=None))
    messages, closed = (scenario.fidelity.collectives == kind for kind in ("stepwise", "closed"))
    rows = [rows_of(once, bound, role, moves=not messages) for role in range(len(program.orders))]
    known: dict[tuple[int, str, tuple[str, ...], tuple[str, ...]], Block] = {}

    def block_of(role: int, step: Step) -> Block:
        waits, outputs = tuple(name for name, _ in step.waits), tuple(name for name, _ in step.outputs)
        key = role, step.body, waits, outputs
        if key not in known:
            known[key] = rows[role][step.body].block(waits, outputs)
        return known[key]

    if together:
        path_ns = _walked_ns(program, block_of)
    else:
        path_ns = max(_busy_ns(order, role, block_of) for role, order in enumerate(program.orders))
    return LowerBound(path_ns, 0 if messages or closed else _link_ns(program, once, bound))


def _busy_ns(order: Iterable[Step], role: int, block_of: BlockOf) -> int:
    """The time in which a rank computes its steps one after the other, with the collectives between its kernels."""
    total_ns = 0
    for step in order:
        block = block_of(role, step)
        if COMPUTE in block.streams:
            at = block.streams.index(COMPUTE)
            total_ns += block.compute_ns if step.pair >= 0 else int(block.paths[at, 1 + at])
    return total_ns


@dataclass(slots=True)
class _Rank:
    """The state of the walk over the steps of a rank."""

    order: tuple[Step, ...]
    at: int = 0
    free_ns: dict[str, int] = field(default_factory=dict)
    """Stream -> the end of the last operation on it."""
    made: Made = field(default_factory=dict)
    """Value -> the time at which it is available."""
    pair: tuple[int, int] | None = None
    """The training step and the number of the last pair of slots that run together."""
    begins_ns: dict[str, int] = field(default_factory=dict)
    """Stream -> the time at which it is free for the last slot, or for both slots of the last pair; a wait may be between
    them."""
    pair_ns: int = 0
    """The time of the kernels of that pair so far."""


def _walked_ns(program: Program, block_of: BlockOf) -> int:
    """The end of the last step: every rank advances through its steps as far as possible, until all have reached their ends.

    A value that no rank produces, because ranks of a role are not distinguished here, is available from the beginning.
    """
    ranks = [_Rank(order) for order in program.orders]
    last_ns, waits_for_all = 0, True
    while any(rank.at < len(rank.order) for rank in ranks):
        moved = False
        for number, rank in enumerate(ranks):
            while rank.at < len(rank.order) and (not waits_for_all or _can_begin(program, rank)):
                last_ns = max(last_ns, _take(program, ranks, number, block_of))
                moved, waits_for_all = True, True
        waits_for_all = moved
    return last_ns


def _needs(step: Step) -> list[tuple[int, Key]]:
    """The values that a step waits for, with the training step in which each is produced."""
    return [(step.iteration - (key[0] == PARAMETERS), key) for key in (*step.after, *(key for _, key in step.waits))]


def _can_begin(program: Program, rank: _Rank) -> bool:
    step = rank.order[rank.at]
    return step.phase == "receive" or all(need in rank.made for need in _needs(step))


def _take(program: Program, ranks: list[_Rank], number: int, block_of: BlockOf) -> int:
    """Advances a rank by one step; returns the end of its last operation."""
    rank = ranks[number]
    step = rank.order[rank.at]
    rank.at += 1
    if step.phase == "receive":  # its sender delivers
        return 0
    block = block_of(number, step)
    needs = [rank.made.get(need, 0) for need in _needs(step)]
    begins_ns = max(needs[: len(step.after)], default=0)
    pair = (step.iteration, step.pair) if step.pair >= 0 else None
    if pair and pair != rank.pair:
        rank.pair, rank.begins_ns, rank.pair_ns = pair, dict(rank.free_ns), 0
    elif COMPUTE in block.streams and not pair and not is_wait(program, step):
        rank.begins_ns = rank.free_ns
    free_ns = rank.begins_ns if pair or is_wait(program, step) else rank.free_ns
    streams_ns = [free_ns.get(stream, 0) for stream in block.streams]
    if is_wait(program, step):  # all of its streams pass together
        begins_ns = max(begins_ns, *streams_ns)
    entries = np.array([begins_ns, *streams_ns, *needs[len(step.after) :]], dtype=np.int64)
    exits: list[int] = (block.paths + entries).max(axis=1).tolist()
    rank.pair_ns += block.compute_ns if pair else 0
    for stream, ended_ns in zip(block.streams, exits, strict=False):
        if pair and stream == COMPUTE:
            ended_ns = max(ended_ns, rank.begins_ns.get(stream, 0) + rank.pair_ns)
        rank.free_ns[stream] = max(ended_ns, rank.free_ns.get(stream, 0))
    for (_, key), made_ns in zip(step.outputs, exits[len(block.streams) :], strict=False):
        rank.made[step.iteration, key] = made_ns
    if is_transfer(program, step):
        _deliver(program, ranks, number, step, exits[-1])
    return exits[-1]


def _deliver(program: Program, ranks: list[_Rank], number: int, step: Step, arrives_ns: int) -> None:
    """Makes the values that a step sends available on the receiving ranks, which have the coordinates of the sender."""
    roles, op = program.roles, program.bodies[step.body].ops[0]
    _, target = program.communicators[op.communicator].pipeline or (0, 0)  # type: ignore[union-attr]
    for role, rank in zip(roles, ranks, strict=True):
        if role.pipeline == target and role.coordinates == roles[number].coordinates:
            rank.made[step.iteration, step.after[0]] = arrives_ns


def _link_ns(program: Program, once: Program, bound: Bound) -> int:
    """The longest time that a link takes for the bytes of all collectives and transfers at its greatest capacity."""
    skeleton = bound.skeleton
    work = np.zeros(skeleton.communicators * skeleton.patterns, dtype=float)
    seen = np.zeros(skeleton.communicators, dtype=bool)
    for role, template in enumerate(skeleton.templates):
        calls = _calls(program.orders[role], once.orders[role])[bound.labels[role].step]
        ranks = np.flatnonzero(skeleton.program == role)
        for slot in distinct(template.slot[template.slot >= 0]).tolist():
            rows = np.flatnonzero(template.slot == slot)
            communicators = distinct(skeleton.slots[slot, ranks])
            communicators = communicators[~seen[communicators]]
            seen[communicators] = True
            kind, charge = skeleton.kind[communicators][:, None], template.charge[rows][None, :]
            at = communicators[:, None] * skeleton.patterns + skeleton.tariff.pattern[kind, charge]
            np.add.at(work, at, skeleton.tariff.work[kind, charge] * calls[rows].astype(float))
    if not len(skeleton.footprints.idx):
        return 0
    carried = np.bincount(
        skeleton.footprints.idx, work[skeleton.footprints.row_of] * skeleton.footprint_weight, len(skeleton.link_profile)
    )
    capacity = np.array([max(profile.value) for profile in skeleton.profiles], dtype=float)[skeleton.link_profile]
    return int(np.floor((carried / (capacity * (1 << WEIGHT_BITS))).max() * (1 - TOLERANCE)))


def _calls(order: Iterable[Step], once: Iterable[Step]) -> Array:
    """Number of calls of each body of a rank."""
    count: dict[str, int] = {}
    for step in order:
        count[step.body] = count.get(step.body, 0) + 1
    return np.array([count[step.body] for step in once], dtype=np.int64)
