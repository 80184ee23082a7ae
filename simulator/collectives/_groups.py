"""Groups as grids and as powers of two.

A *grid* has as many ranks in every node, so that ranks of one index form a rail across the nodes. *Swaps* are exchanges between
ranks whose numbers differ in one bit: where the size is no power of two, some ranks first give all that they have to a
neighbour, which takes part in their stead and hands them the result. Reference: Rabenseifner, "Optimization of Collective
Reduction Operations", 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..errors import UserError
from . import Array, Edges, Round

Rounds = Callable[[str, Array], Sequence[Round]]


@dataclass(frozen=True, slots=True)
class Grid:
    """A group with `per_node` ranks in each of its nodes. Member `i` of node `x` stands at `x * per_node + i`."""

    nodes: int
    per_node: int

    @classmethod
    def of(cls, nodes: Array) -> Grid:
        """The grid of a group, which must have one."""
        if not is_even(nodes):
            raise UserError(
                "nodes of the group hold different numbers of its ranks", hint="ring, tree and direct take such groups"
            )
        per_node = int((nodes == nodes[0]).sum())
        return cls(len(nodes) // per_node, per_node)

    def inside(self, rounds: Sequence[Round]) -> tuple[Round, ...]:
        """What the members of one node do, done in every node."""
        first = np.arange(self.nodes)[:, None] * self.per_node

        def in_all_nodes(edges: Edges) -> Edges:
            return Edges((first + edges.source).ravel(), (first + edges.target).ravel(), np.tile(edges.share, self.nodes))

        return tuple(Round(in_all_nodes(r.edges), r.fraction, r.repeats) for r in rounds)

    def across(self, rounds: Sequence[Round], part: Fraction) -> tuple[Round, ...]:
        """What one rank of each node does with a payload, done by every rail with `part` of it."""
        rail = np.arange(self.per_node)

        def on_all_rails(edges: Edges) -> Edges:
            source, target = ((end[:, None] * self.per_node + rail).ravel() for end in (edges.source, edges.target))
            return Edges(source, target, np.repeat(edges.share, self.per_node))

        return tuple(Round(on_all_rails(r.edges), r.fraction * part, r.repeats) for r in rounds)


def is_even(nodes: Array) -> bool:
    """Whether each node of a group holds as many of its ranks as every other."""
    ends = np.flatnonzero(np.concatenate([nodes[1:] != nodes[:-1], [True]]))
    sizes = np.diff(ends, prepend=-1)
    return bool((sizes == sizes[0]).all())


def on_rails(kind: str, nodes: Array) -> bool:
    """Whether a group has rails, as algorithms across nodes need them: as many ranks in every node."""
    return is_even(nodes)


def layered(kind: str, nodes: Array, inside: Rounds, across: Rounds) -> tuple[Round, ...]:
    """Reduce-scatter in the nodes, the collective itself along each rail with what is left, all-gather in the nodes.

    A reduce-scatter needs no gather after it, and an all-gather no scatter before it.
    """
    grid = Grid.of(nodes)
    members = np.zeros(grid.per_node, dtype=np.int64)
    before = () if kind == "all_gather" else grid.inside(inside("reduce_scatter", members))
    after = () if kind == "reduce_scatter" else grid.inside(inside("all_gather", members))
    return (*before, *grid.across(across(kind, np.arange(grid.nodes)), Fraction(1, grid.per_node)), *after)


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def bits(n: int) -> int:
    """The logarithm to base two, rounded down."""
    return n.bit_length() - 1


def swaps(n: int, plan: Sequence[tuple[int, Fraction]]) -> tuple[Round, ...]:
    """Exchanges of a fraction of the payload between ranks that differ in the given bit, one after the other."""
    whole = 1 << bits(n)
    helper = 2 * np.arange(n - whole)
    core = np.concatenate([helper, np.arange(2 * len(helper), n)])
    exchanged = tuple(Round(Edges.of(core, core[np.arange(whole) ^ (1 << bit)]), fraction) for bit, fraction in plan)
    if not len(helper):
        return exchanged
    give, take = (Round(Edges.of(*ends), Fraction(1)) for ends in ((helper + 1, helper), (helper, helper + 1)))
    return (give, *exchanged, take)
