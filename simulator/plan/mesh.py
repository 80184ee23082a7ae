"""The mesh: the coordinates of each rank along each axis, and the groups of ranks, for any rank order.

The first axis of the order varies fastest. With `tp-cp-ep-dp-pp`, Megatron's default, the ranks of a tensor-parallel group
are neighbours, replicas come next, and pipeline stages are farthest apart; with `tp-pp-dp` the stages of one replica are
neighbours. Axes that an order leaves out have one coordinate.

A model with experts has a second mesh of the same ranks: there `tp` is the tensor-parallel degree of the experts, `ep` counts the
ranks that share the experts, and `dp` the copies of the experts. Its axes are called `etp`, `ep` and `edp`, and both meshes must
have the same pipelines, as in Megatron-LM (parallel_state.py). So `ep` is not a factor of the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ..engine.task import Array
from ..errors import UserError, did_you_mean

AXES = ("tp", "cp", "ep", "dp", "pp")
REPLICAS = "replicas"
"""The axis across shard groups, right after dp: of degree 1 unless the data-parallel ranks divide their state in groups, whose
ranks are then those along dp. Rank orders do not name it.
"""
OF_EXPERTS = {"etp": "tp", "ep": "ep", "edp": "dp"}
"""Axes of the experts, with their names in the mesh of experts."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Degrees by axis, and the axes from the fastest varying to the slowest."""

    degrees: Mapping[str, int]
    order: tuple[str, ...]
    experts: Mesh | None = None
    """The same ranks by the axes of the experts, for a model with experts."""

    @classmethod
    def of(cls, degrees: Mapping[str, int], rank_order: str) -> Mesh:
        """From degrees and an order such as "tp-cp-ep-dp-pp", with dashes or underscores, in any case; axes of degree 1 may be
        left out of the order."""
        written = rank_order.strip().replace("_", "-").split("-")
        order = tuple(axis.lower() for axis in written)
        for axis in written:
            if axis.lower() not in AXES:
                raise UserError(f"rank_order: {axis!r} is not an axis", hint=did_you_mean(axis, AXES))
        if len(set(order)) < len(order):
            raise UserError(f"rank_order {rank_order!r} names an axis twice", hint="tp-cp-ep-dp-pp")
        forgotten = [axis for axis in AXES if axis not in order and degrees.get(axis, 1) > 1]
        if forgotten:
            raise UserError(f"rank_order {rank_order!r} leaves out {', '.join(forgotten)}", hint="tp-cp-ep-dp-pp")
        whole = order + tuple(axis for axis in AXES if axis not in order)
        behind = whole.index("dp") + 1
        return cls({axis: degrees.get(axis, 1) for axis in (*AXES, REPLICAS)}, (*whole[:behind], REPLICAS, *whole[behind:]))

    @property
    def ranks(self) -> int:
        return prod(self.degrees.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Degree of every axis, also of those of the experts."""
        experts = self.experts
        return {**self.degrees, **({axis: experts.degrees[own] for axis, own in OF_EXPERTS.items()} if experts else {})}

    @property
    def grid(self) -> Array:
        """Ranks by coordinate: an array with one dimension per axis of `order`, slowest first."""
        return np.arange(self.ranks).reshape([self.degrees[axis] for axis in reversed(self.order)])

    def coordinate(self, axis: str) -> Array:
        """Every rank's coordinate along an axis."""
        if self.experts and axis in OF_EXPERTS:
            return self.experts.coordinate(OF_EXPERTS[axis])
        before = prod(self.degrees[a] for a in self.order[: self.order.index(axis)])
        coordinate: Array = np.arange(self.ranks) // before % self.degrees[axis]
        return coordinate

    def groups(
        self, axes: tuple[str, ...], pipeline: tuple[int, ...] | None = None, size: int | None = None, stride: int = 1
    ) -> Array:
        """The groups that extend along `axes`, one per row, ordered by their lowest rank; members in rank order.

        With `pipeline` a group keeps only those pipeline coordinates, in that order. With `size` each group is divided into
        groups of that many members, `stride` places apart.
        """
        if self.experts and any(axis in OF_EXPERTS for axis in axes):
            return self.experts.groups(tuple(OF_EXPERTS.get(axis, axis) for axis in axes), pipeline, size, stride)
        slowest_first = self.order[::-1]
        grid = self.grid if pipeline is None else np.take(self.grid, pipeline, axis=slowest_first.index("pp"))
        varied = [i for i, axis in enumerate(slowest_first) if axis in axes]
        fixed = [i for i, axis in enumerate(slowest_first) if axis not in axes]
        rows = grid.transpose(*fixed, *varied).reshape(-1, prod(grid.shape[i] for i in varied))
        if size is not None:
            rows = rows.reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
        groups: Array = rows[np.argsort(rows.min(axis=1), kind="stable")]
        return groups
