"""SHARP: the switches of the fabric sum and copy, so that each NIC sends its share once and receives the result once.

Ranks of a node first exchange directly what is for each rail, and gather the results in the end; everything is pipelined.
For m > 1 nodes of k ranks, an uncontended all-reduce takes 2a + a' and the longer of 2(k - 1)/k S/B inside nodes and S/(kB') on
the NICs, however many nodes there are. On its way up a flow joins those that it meets, so that a link between switches
carries it once: that is what an edge from each node to the next puts there, as long as nodes of a pod stand together.
Reference: Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC 2016.
"""

from __future__ import annotations

from fractions import Fraction

from . import Array, Edges, Round, direct, layered, on_rails

KINDS = ("all_reduce", "reduce_scatter", "all_gather")
PIPELINED = True
IN_NETWORK = True
takes = on_rails


def rounds(kind: str, nodes: Array) -> tuple[Round, ...]:
    """Inside, through the fabric's switches, inside."""
    return layered(kind, nodes, direct.rounds, _through_fabric)


def _through_fabric(kind: str, nodes: Array) -> tuple[Round, ...]:
    """Each NIC's share, once up and once down. A scatter or a gather fills only one direction: that is not modelled."""
    return (Round(Edges.to_next(len(nodes)), Fraction(1)),) if len(nodes) > 1 else ()
