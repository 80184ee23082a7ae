"""The ranks that a picture of a run shows by default, and the note about the ranks that it leaves out.

Ranks of one kind look alike: they run the same program at the same times. Where there are few kinds, one rank of each is shown.
Where there are many, the first rank of every pipeline coordinate is, with the pipelines of perturbed ranks; and of too many
coordinates as many as fit, evenly spaced, the first and the last among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from ..config import derived
from ..engine.task import Array
from ..simulation.run import Run

FEW = 16
"""Largest number of kinds of ranks of which one rank each is shown."""


@dataclass(frozen=True, slots=True)
class ShownRanks:
    """The chosen ranks, in the order of the pipeline, and a note about the others; empty if none is left out."""

    ranks: tuple[int, ...]
    left_out: str


@dataclass(frozen=True, eq=False, slots=True)
class Kinds:
    """For every rank the number of its kind, and its pipeline coordinate."""

    of_rank: Array
    pipeline: Array

    @property
    def count(self) -> int:
        return int(self.of_rank.max()) + 1

    def others(self, rank: int, shown: Iterable[int]) -> int:
        """Number of ranks of the same kind as a rank, without those that are shown."""
        alike = self.of_rank == self.of_rank[rank]
        return int(alike.sum() - alike[list(dict.fromkeys(shown))].sum())

    def first(self, column: Array) -> list[int]:
        """The first rank of each value of a column."""
        return [int(rank) for rank in np.unique(column, return_index=True)[1]]


def kinds_of(run: Run) -> Kinds:
    """The kinds of ranks of a run: classes that were simulated, but one for classes whose times are equal."""
    timeline = run.engine_timeline
    program = timeline.skeleton.program
    pipeline = np.array([labels.pipeline for labels in run.labels])[program]
    kind_of_class = np.arange(len(program))
    if len(set(program.tolist())) < len(program) and timeline.times.start_ns.dtype != object:
        known: dict[tuple[int, bytes], int] = {}
        for which, own in enumerate(program.tolist()):
            times = timeline.class_times(which)
            looks = blake2b(times.start_ns.tobytes() + times.end_ns.tobytes()).digest()
            kind_of_class[which] = known.setdefault((own, looks), which)
    of_rank = np.unique(kind_of_class[timeline.class_of], return_inverse=True)[1]
    return Kinds(of_rank, pipeline[timeline.class_of])


def perturbed(run: Run) -> list[int]:
    """The ranks on the GPUs whose speed the scenario changes."""
    gpus = [one.rank for one in run.scenario.perturb if one.rank is not None]
    return [int(rank) for rank in np.flatnonzero(np.isin(derived.gpus_of(run.scenario), gpus))]


def candidates(run: Run, kinds: Kinds) -> list[int]:
    """The ranks to show if there is room, one of a kind, in the order of the pipeline: of all kinds, if these are few."""
    if kinds.count <= FEW:
        found = kinds.first(kinds.of_rank)
    else:
        found = kinds.first(kinds.pipeline)
        pipelines = derived.mesh_of(run.scenario).groups(("pp",))
        for rank in perturbed(run):
            found += pipelines[(pipelines == rank).any(axis=1)].ravel().tolist()
        found = [found[at] for at in np.sort(np.unique(kinds.of_rank[found], return_index=True)[1]).tolist()]
    return sorted(found, key=lambda rank: (kinds.pipeline[rank], rank))


def spread(ranks: Sequence[int], most: int, first: Sequence[int] = ()) -> list[int]:
    """At most `most` of the ranks, evenly spaced, including the first and the last; those in `first` are preferred, but take at
    most half of the places."""
    if len(ranks) <= most:
        return list(ranks)
    kept = [rank for rank in ranks if rank in set(first)]
    kept = evenly(kept, min(len(kept), most // 2))
    others = [rank for rank in ranks if rank not in set(kept)]
    chosen = {*kept, *evenly(others, most - len(kept))}
    return [rank for rank in ranks if rank in chosen]


def spread_within(sizes: Mapping[int, int], budget: int, first: Sequence[int] = ()) -> list[int]:
    """Evenly spread ranks whose sizes add up to about a budget, and at least one rank."""
    ranks, most = list(sizes), len(sizes)
    while True:
        chosen = spread(ranks, most, first)
        total = sum(sizes[rank] for rank in chosen)
        if total <= budget or most <= 1:
            return chosen
        most = max(1, min(most - 1, round(most * budget / total)))


def evenly(values: Sequence[int], count: int) -> list[int]:
    """`count` of the values, from the first to the last."""
    return [values[at] for at in np.linspace(0, len(values) - 1, count).round().astype(int).tolist()] if count else []


def shown_ranks(run: Run, most: int, kinds: Kinds) -> ShownRanks:
    """The ranks that a picture of at most `most` rows shows."""
    ranks = spread(candidates(run, kinds), most, perturbed(run))
    return ShownRanks(tuple(ranks), left_out(kinds, ranks))


def left_out(kinds: Kinds, ranks: Sequence[int]) -> str:
    """How many of the pipeline ranks, and of the kinds of ranks, are shown; empty if all are."""
    return " and ".join(_shares(kinds, ranks))


def _shares(kinds: Kinds, ranks: Sequence[int]) -> Iterator[str]:
    coordinates, shown = len(set(kinds.pipeline.tolist())), len(set(kinds.pipeline[list(ranks)].tolist()))
    if shown < coordinates:
        yield f"{shown:,} of {coordinates:,} pipeline ranks"
    if len(ranks) < kinds.count and (kinds.count > coordinates or shown == coordinates):
        yield f"{len(ranks):,} of {kinds.count:,} kinds of ranks"


def stages_of(run: Run, role: int) -> str:
    """The stages of a role, in words: `stage 1`, or `stages 1, 9`."""
    numbers = [str(stage.number) for stage in run.program.stages if stage.rank == run.labels[role].pipeline]
    return f"stage{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
