"""Rows of the bodies of a plan: each body is lowered and bound once, without transfers, reductions and optimizer.

Stages that differ in the number of equal layers share a body of few layers, whose rows are repeated. Where layers are few, or not
alike, all of them are lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ..binding.bind import Site
from ..config import derived
from ..config.scenario import Scenario
from ..frozen import replace
from ..kept import Kept
from ..lowering.few_layers import FEW
from ..lowering.kept_slots import Programs, kept_slots, short_slots
from ..program.layout import Layout
from ..program.program import Program, Stage
from ..program.slot import Shape, Slot
from ..simulation.simulate import bound_of
from .blocks import Rows, each_body_once, rows_of

Place = tuple[int, int]
"""An instance of a stage, and a part of the sequence."""
RowsByName = dict[str, Rows]
"""The rows of bodies by their names."""
MOST_ROWS = 1 << 15
"""Largest number of rows of bodies of few layers that are kept, less than 200 bytes each."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What plans share of the rows of their bodies."""

    slots: Kept = field(default_factory=lambda: Kept(0))
    """Operations of slots that were lowered."""
    short: Kept = field(default_factory=lambda: Kept(MOST_ROWS))
    """By what a body of few layers depends on, its rows for every position in a ring."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Stages of a scenario, of which each body is to stand once."""

    scenario: Scenario
    site: Site
    shape: Shape
    """With one microbatch in each direction, or as many as a sequence has parts."""
    placements: tuple[tuple[int, ...], ...]
    instances: tuple[Stage, ...]
    kinds: tuple[str, ...]

    def rows(self, works: Mapping[str, Place], wanted: Collection[str], kept: KeptRows, key: Hashable) -> list[RowsByName]:
        """The rows of the bodies of works whose names are wanted, and maybe of others, for every position in a ring.

        `key` is what bodies depend on besides their work.
        """
        few = self._of_few_layers(works, wanted, kept, key)
        return few or self._lowered(kept_slots, works.values(), wanted, kept.slots) or []

    def _of_few_layers(
        self, works: Mapping[str, Place], wanted: Collection[str], kept: KeptRows, key: Hashable
    ) -> list[RowsByName] | None:
        """As `rows`, from bodies of few layers whose middle layer is repeated; None where layers are few, or not alike."""
        stages = {work: self.instances[instance] for work, (instance, _) in works.items()}
        if any(stage.layers <= FEW + 1 for stage in stages.values()):
            return None
        longer: list[RowsByName] = []
        for work, stage in stages.items():
            of = key, stage.embedding, stage.head, works[work][1]
            of_kinds = self._short(work, works[work], kept, of)
            if not of_kinds:
                return None
            for kind, short in of_kinds.items():
                if f"{kind} of {work}" in wanted:
                    more = [rows.with_layers(stage.layers - FEW - 1) for rows in short]
                    longer = longer or [{} for _ in more]
                    for found, rows in zip(longer, more, strict=True):
                        if rows is None:
                            return None
                        found[f"{kind} of {work}"] = rows
        return longer or None

    def _short(self, work: str, place: Place, kept: KeptRows, of: Hashable) -> dict[str, tuple[Rows, ...]]:
        """The rows of a work with few layers by the kind of their slots, for every position; empty where layers are not alike."""
        missing = [kind for kind in self.kinds if (of, kind) not in kept.short]
        names = {f"{kind} of {work}": kind for kind in missing}
        several = self._lowered(short_slots, [place], names, kept.slots) if missing else ()
        if several is None:
            return {}
        made = {kind: tuple(rows[name] for rows in several) for name, kind in names.items()}
        kinds = [*(kind for kind in self.kinds if kind not in missing), *missing]  # what is kept is found before more is added
        return {kind: kept.short.of((of, kind), partial(made.__getitem__, kind), _number_of_rows) for kind in kinds}

    def _lowered(
        self, lowered: Callable[..., Programs | None], places: Iterable[Place], wanted: Collection[str], kept: Kept
    ) -> list[RowsByName] | None:
        """The rows of wanted bodies of some places in every program that `lowered` makes; None if it makes none."""
        of, plan, dp = self.scenario, derived.placed(self.scenario), derived.replicas(self.scenario)
        programs = lowered(of.model, plan, of.job, self._once(places), dp=dp, framework=of.framework, kept=kept)
        return None if programs is None else [self._rows_of(program, wanted) for program in programs]

    def _once(self, places: Iterable[Place]) -> Layout:
        """The layout of some places alone."""
        orders: list[list[Slot]] = [[] for _ in range(self.shape.ranks)]
        stages = len(self.placements[0])
        for instance, part in places:
            microbatch = instance // stages * self.shape.splits + part
            orders[self.instances[instance].rank] += [Slot(kind, instance % stages, microbatch) for kind in self.kinds]
        return Layout(self.shape, self.placements, tuple(map(tuple, orders)))

    def _rows_of(self, program: Program, wanted: Collection[str]) -> RowsByName:
        orders = ([step for step in each_body_once(order) if step.body in wanted] for order in program.orders)
        once = replace(program, orders=tuple(map(tuple, orders)))
        bound = bound_of(self.scenario, once, replace(self.site, host=None, sms=None))
        moves = self.scenario.fidelity.collectives != "stepwise"
        return {
            name: rows
            for role, order in enumerate(once.orders)
            if order
            for name, rows in rows_of(once, bound, role, moves=moves, everywhere=True).items()
        }


def _number_of_rows(short: Iterable[Rows]) -> int:
    return sum(len(rows.names) for rows in short)
