"""Groups as grids: as many ranks in every node, so that ranks of one index form a rail across the nodes."""

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
        return tuple(Round(self._in_all_nodes(r.edges), r.fraction, r.repeats) for r in rounds)

    def across(self, rounds: Sequence[Round], part: Fraction) -> tuple[Round, ...]:
        """What one rank of each node does with a payload, done by every rail with `part` of it."""
        return tuple(Round(self._on_all_rails(r.edges), r.fraction * part, r.repeats) for r in rounds)

    def _in_all_nodes(self, edges: Edges) -> Edges:
        first = np.arange(self.nodes)[:, None] * self.per_node
        return Edges((first + edges.source).ravel(), (first + edges.target).ravel(), np.tile(edges.share, self.nodes))

    def _on_all_rails(self, edges: Edges) -> Edges:
        rail = np.arange(self.per_node)
        source, target = ((end[:, None] * self.per_node + rail).ravel() for end in (edges.source, edges.target))
        return Edges(source, target, np.repeat(edges.share, self.per_node))


def is_even(nodes: Array) -> bool:
    """Whether each node of a group holds as many of its ranks as every other."""
    ends = np.flatnonzero(np.concatenate([nodes[1:] != nodes[:-1], [True]]))
    sizes = np.diff(ends, prepend=-1)
    return bool((sizes == sizes[0]).all())


def layered(kind: str, nodes: Array, inside: Rounds, across: Rounds) -> tuple[Round, ...]:
    """Reduce-scatter in the nodes, the collective itself along each rail with what is left, all-gather in the nodes.

    A reduce-scatter needs no gather after it, and an all-gather no scatter before it.
    """
    grid = Grid.of(nodes)
    members = np.zeros(grid.per_node, dtype=np.int64)
    before = () if kind == "all_gather" else grid.inside(inside("reduce_scatter", members))
    after = () if kind == "reduce_scatter" else grid.inside(inside("all_gather", members))
    return (*before, *grid.across(across(kind, np.arange(grid.nodes)), Fraction(1, grid.per_node)), *after)
