"""Mutual exclusion: turns of communicators that share links but never run together, as a common member runs one after the other.

Where groups of neighbours are smaller than a node, the port of a GPU carries the turns of two groups: those of its few
neighbours, hundreds in a step, and those of all replicas, a few at the end of the step. In general such turns may share the port.
But the rank of this port is a member of both groups, and in the order of its rows a turn of one ends before anything begins that
the next turn of the other waits for. Then they never move bytes at the same time, and each takes its uncontended time.

The proof has two parts. `have_common_member` finds for every link whether all communicators that cross it have a common member;
it needs the whole skeleton, before folding, because classes of links do not contain this information. `Precedence` tells which
rows of a rank's *main* lane, which is one queue, have ended before a row starts, and which start only when the row has ended. Two
rows exclude each other if a row of the main lane is between them; others are assumed to run together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .overlap import bounds
from .skeleton import Skeleton
from .task import Array, distinct, offsets, run_starts
from .template import Template

MOST_MEMBERS = 16
"""Largest number of members, of the smallest communicator on a link, that are tried as the common member."""


def have_common_member(skeleton: Skeleton) -> Array:
    """Link -> whether all communicators that cross it have a common member; also False where the search would take long."""
    communicators, (owner, _, member) = skeleton.communicators, skeleton.members
    link, crossed_by = _crossings(skeleton)
    members = offsets(np.bincount(owner, minlength=communicators))
    size = np.diff(members)[crossed_by]
    order = np.lexsort((size, link))
    link, crossed_by, size = link[order], crossed_by[order], size[order]
    begins = run_starts(link)
    of_link = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(link))))
    found = np.diff(np.append(begins, len(link))) == 1
    for at in range(min(MOST_MEMBERS, int(size[begins].max(initial=0)))):
        smallest = crossed_by[begins]
        rank = member[members[smallest] + np.minimum(at, np.maximum(size[begins] - 1, 0))] if len(member) else begins
        is_member = (skeleton.slots[:, rank[of_link]] == crossed_by).any(axis=0)
        found |= np.logical_and.reduceat(is_member, begins) & (size[begins] > 0)
    everywhere = np.ones(len(skeleton.link_profile), dtype=bool)
    everywhere[link[begins]] = found
    return everywhere


def _crossings(skeleton: Skeleton) -> tuple[Array, Array]:
    """Every link with each communicator that crosses it, once each, link by link."""
    communicator = skeleton.footprints.row_of // skeleton.patterns
    link, crossed_by = np.divmod(
        distinct(skeleton.footprints.idx * skeleton.communicators + communicator), skeleton.communicators
    )
    return link, crossed_by


@dataclass(frozen=True, eq=False, slots=True)
class Precedence:
    """The order of rows by the rows of the main lane, whose places in their queue are counted from 0 (`overlap.bounds`)."""

    ended: Array
    """Row -> the last place of the main lane whose row has ended when this row starts; -1 for none."""
    begins: Array
    """Row -> the first place of the main lane whose row starts only when this row has ended; the length of the lane for none."""

    @classmethod
    def of(cls, template: Template, main: int) -> Precedence:
        """The order of the rows of a template."""
        return cls(*bounds(template.preds, template.lanes, main))

    def never_together(self, rows: Array, others: Array) -> Array:
        """For each of `rows`, whether none of `others`, turns of one communicator, can run at the same time."""
        begins = np.minimum.accumulate(self.begins[others][::-1])[::-1]
        ended = np.append(np.maximum.accumulate(self.ended[others]), len(self.begins))
        passed = np.searchsorted(begins, self.ended[rows], side="right")
        excluded: Array = (passed == len(others)) | (self.begins[rows] <= ended[passed])
        return excluded


class LinkSharers:
    """The communicators of a skeleton that share links, and whether a common member may run their turns one after the other."""

    def __init__(self, skeleton: Skeleton, has_common_member: Array) -> None:
        """`has_common_member`: link -> whether all communicators that cross it have one."""
        self.skeleton, communicators = skeleton, skeleton.communicators
        link, crossed_by = _crossings(skeleton)
        pairs = [np.zeros(0, dtype=np.int64)]
        self.has_common_members = np.ones(communicators, dtype=bool)
        """Communicator -> whether the communicators on every link that it shares have a common member."""
        for apart in range(1, len(link)):
            first = np.flatnonzero(link[apart:] == link[:-apart])
            if not len(first):
                break
            one, other = crossed_by[first], crossed_by[first + apart]
            pairs += [one * communicators + other, other * communicators + one]
            unknown = ~has_common_member[link[first]]
            self.has_common_members[one[unknown]] = self.has_common_members[other[unknown]] = False
        self.pairs = np.append(distinct(np.concatenate(pairs)), -1)
        self.precedences: dict[tuple[int, int], Precedence] = {}
        """(template, main lane) -> the order of its rows, once asked for."""

    def exclusive(self, rank: int, main: int, shared: Array) -> Array:
        """For each of the `shared` rows of a rank, whose links others use too, whether it never runs beside turns of them.

        Such rows are turns of communicators that have this rank's class as their only member. So the common member is of this
        class too, and is a member of all other communicators on the links.
        """
        skeleton, number = self.skeleton, int(self.skeleton.program[rank])
        template, own = skeleton.templates[number], skeleton.slots[:, rank]
        found, slot_of = np.zeros(len(shared), dtype=bool), template.slot[shared]
        for slot in distinct(slot_of).tolist():
            if not self.has_common_members[own[slot]]:
                continue
            if (number, main) not in self.precedences:
                self.precedences[number, main] = Precedence.of(template, main)
            at, order = np.flatnonzero(slot_of == slot), self.precedences[number, main]
            for other in self._sharers(own, slot):
                if len(at):
                    at = at[order.never_together(shared[at], template.rows_of(other))]
            found[at] = True
        return found

    def _sharers(self, own: Array, slot: int) -> list[int]:
        """The other slots of a rank whose communicators share links with the communicator of `slot`; `own` are those of all
        slots."""
        pairs = own[slot] * self.skeleton.communicators + own
        found = self.pairs[np.searchsorted(self.pairs[:-1], pairs)] == pairs
        shared: list[int] = np.flatnonzero(found & (own >= 0)).tolist()
        return shared
