"""Joining: several skeletons on the same links become one, whose parts are independent except for the links that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from ..errors import InvariantBroken
from .skeleton import Skeleton, Tariff
from .task import Array, Csr, offsets


def join_skeletons(parts: Sequence[Skeleton]) -> Skeleton:
    """One skeleton of all ranks and communicators, numbered part by part."""
    links = parts[0].link_profile
    for part in parts[1:]:
        if [part.profiles[i] for i in part.link_profile] != [parts[0].profiles[i] for i in links]:
            raise InvariantBroken("joined skeletons must stand on the same links")
    ranks, groups, programs, profiles = (
        offsets(np.array(lengths))[:-1]
        for lengths in (
            [p.ranks for p in parts],
            [p.communicators for p in parts],
            [len(p.templates) for p in parts],
            [len(p.profiles) for p in parts],
        )
    )
    kinds = offsets(np.array([len(p.tariff.work) for p in parts]))[:-1]
    patterns = max(p.patterns for p in parts)
    footprints, weights = zip(*(_footprints(p, patterns) for p in parts), strict=True)
    return Skeleton(
        tuple(template for part in parts for template in part.templates),
        _tariff([p.tariff for p in parts], profiles.tolist()),
        tuple(profile for part in parts for profile in part.profiles),
        np.concatenate([p.program + at for p, at in zip(parts, programs, strict=True)]),
        np.concatenate([p.speed + at for p, at in zip(parts, profiles, strict=True)]),
        _slots(parts, groups, int(sum(p.ranks for p in parts)), ranks),
        np.concatenate([p.kind + at for p, at in zip(parts, kinds, strict=True)]),
        patterns,
        Csr(offsets(np.concatenate([np.diff(csr.ptr) for csr in footprints])), np.concatenate([csr.idx for csr in footprints])),
        np.concatenate(weights),
        links,
    )


def _footprints(part: Skeleton, patterns: int) -> tuple[Csr, Array]:
    """The footprints of a part with as many patterns per communicator as the part that has most."""
    row = part.footprints.row_of
    wider = row // part.patterns * patterns + row % part.patterns
    return Csr.from_pairs(wider, part.footprints.idx, part.communicators * patterns), part.footprint_weight


def _tariff(tariffs: Sequence[Tariff], profiles: Sequence[int]) -> Tariff:
    """Kinds under one another; charges of different parts share their columns. The profiles of each part begin at `profiles`."""
    width = max(t.work.shape[1] for t in tariffs)
    moved = [np.where(t.cap_profile >= 0, t.cap_profile + at, -1) for t, at in zip(tariffs, profiles, strict=True)]
    tariffs = [replace(t, cap_profile=profile) for t, profile in zip(tariffs, moved, strict=True)]
    columns = []
    for name in (column.name for column in fields(Tariff)):
        tables = [getattr(t, name) for t in tariffs]
        columns.append(np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1]))) for t in tables]))
    return Tariff(*columns)


def _slots(parts: Sequence[Skeleton], groups: Array, ranks: int, first: Array) -> Array:
    slots = np.full((max(len(p.slots) for p in parts), ranks), -1, dtype=np.int64)
    for part, group, at in zip(parts, groups.tolist(), first.tolist(), strict=True):
        block = slots[: len(part.slots), at : at + part.ranks]
        block[...] = np.where(part.slots >= 0, part.slots + group, -1)
    return slots
