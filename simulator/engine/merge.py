"""Merging: consecutive rows of a rank's own work become one row if nothing interrupts them and nothing else waits for them.

A row is merged into the row before it on its only lane if both are own work of the same group of rows, if it waits for no other
row, and if no other row waits for the row before. Then it starts when that row ends, whatever happens elsewhere. At full speed
the merged row takes the sum of both durations, so every other row starts and ends at the same nanosecond with it as without,
and the times of all rows follow from the times of the merged rows. At other speeds durations are rounded row by row: templates
of ranks at such speeds, and templates whose rows communication may slow, stay as they are. What `expand` makes of the merged
skeleton is several times smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .contract import followed, only
from .skeleton import Skeleton
from .task import FULL_SPEED, Array, Csr, Profile, distinct
from .template import Merged, Template


def merged(skeleton: Skeleton, groups: Sequence[Array]) -> Skeleton:
    """The skeleton with merged rows. Only rows with the same number in `groups`, given for each template, are merged."""
    full = np.array([profile == Profile.constant(FULL_SPEED) for profile in skeleton.profiles])[skeleton.speed]
    slowed = set(skeleton.program[~full].tolist())
    templates = [
        template if number in slowed or template.resource is not None else _merged(template, group)
        for number, (template, group) in enumerate(zip(skeleton.templates, groups, strict=True))
    ]
    return replace(skeleton, templates=tuple(templates))


def _merged(template: Template, group: Array) -> Template:
    n, lanes = len(template), template.lanes
    lane_of = np.full(n, -1)
    lane_of[lanes.idx] = lanes.row_of
    lane_of[(template.slot >= 0) | (np.bincount(lanes.idx, minlength=n) != 1)] = -1
    row, before = template.preds.row_of, template.preds.idx
    follows = lanes.row_of[1:] == lanes.row_of[:-1]
    src, dst = np.concatenate([before, lanes.idx[:-1][follows]]), np.concatenate([row, lanes.idx[1:][follows]])
    src, dst = np.divmod(distinct(src * n + dst), n)
    joins = only(src, dst, n) & (lane_of[src] >= 0) & (lane_of[src] == lane_of[dst]) & (group[src] == group[dst])
    (head,) = followed(n, src[joins], dst[joins])
    heads = np.flatnonzero(head == np.arange(n))
    of_row = np.searchsorted(heads, head)
    order = np.argsort(of_row, kind="stable")
    starts = np.searchsorted(of_row[order], np.arange(len(heads)))
    solo_ns = np.add.reduceat(template.solo_ns[..., order], starts, axis=-1) if n else template.solo_ns
    kept, begins = of_row[row] != of_row[before], head[lanes.idx] == lanes.idx
    return Template(
        template.slot[heads],
        solo_ns,
        template.charge[heads],
        Csr.from_pairs(of_row[row[kept]], of_row[before[kept]], len(heads)),
        Csr.from_pairs(lanes.row_of[begins], of_row[lanes.idx[begins]], len(lanes)),
        merged=Merged(template, of_row, heads, order),
    )
