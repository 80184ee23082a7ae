"""Rows of a template that may be in progress beside rows of its main lane, by the order of both alone.

For a row beside the main lane, the order proves which rows of the main lane have ended when it starts (a prefix of the lane,
because a lane is FIFO), and which start only after it has ended (a suffix). Only the rows between them can be in progress beside
it. So most transfers that compute waits for are known to slow nothing before anything is simulated. A case that is missed here
only costs time: the event loop then finds that nothing overlaps.
"""

from __future__ import annotations

import numpy as np

from .task import BOTH, CORES, MEMORY, Array, Csr

PASSES = 3
"""Number of rounds in which bounds are propagated along predecessors and lanes; the bounds of every round are valid."""


def overlapping(preds: Csr, lanes: Csr, resource: Array, takes: Array) -> tuple[Array, Array]:
    """The rows that others may slow, and the rows that may slow others: row -> the resource that it needs, or -1, and whether it
    takes a part of each resource (two columns).
    """
    slowed, slowing = np.zeros(len(resource), dtype=bool), np.zeros(len(resource), dtype=bool)
    needing = resource[lanes.idx] >= 0
    on = np.flatnonzero(np.bincount(lanes.row_of[needing]))
    if not len(on) or not takes.any():
        return np.flatnonzero(slowed), np.flatnonzero(slowing)
    if len(on) > 1:
        return np.flatnonzero(resource >= 0), np.flatnonzero(takes.any(axis=1))
    rows = lanes.row(int(on[0]))
    last, first = bounds(preds, lanes, int(on[0]))
    for which in (CORES, MEMORY):
        needs = (resource[rows] == which) | (resource[rows] == BOTH)
        before = np.concatenate([[0], np.cumsum(needs)])
        beside = takes[:, which] & (first > last + 1)
        beside[beside] = before[first[beside]] > before[last[beside] + 1]
        slowing |= beside
        changes = np.bincount(last[beside] + 1, minlength=len(rows) + 1) - np.bincount(first[beside], minlength=len(rows) + 1)
        slowed[rows[needs & (np.cumsum(changes)[:-1] > 0)]] = True
    return np.flatnonzero(slowed), np.flatnonzero(slowing)


def bounds(preds: Csr, lanes: Csr, main: int) -> tuple[Array, Array]:
    """For every row of a template, the last place of the main lane that has ended when the row starts, or -1; and the first
    place that starts only after the row has ended, or the length of the lane. For rows of the lane both are their own.
    """
    rows = lanes.row(main)
    last, first, beside = np.full(len(preds), -1), np.full(len(preds), len(rows)), np.ones(len(preds), dtype=bool)
    last[rows] = first[rows] = np.arange(len(rows))
    beside[rows] = False
    waits, before = preds.row_of, preds.idx
    after, ahead = np.flatnonzero(beside[waits]), np.flatnonzero(beside[before])
    queues = [lanes.row(lane) for lane in np.flatnonzero(lanes.counts > 1).tolist() if lane != main]
    for _ in range(PASSES):
        np.maximum.at(last, waits[after], last[before[after]])
        np.minimum.at(first, before[ahead], first[waits[ahead]])
        for queue in queues:
            last[queue] = np.maximum.accumulate(last[queue])
            first[queue] = np.minimum.accumulate(first[queue][::-1])[::-1]
    last[rows] = first[rows] = np.arange(len(rows))
    return last, first
