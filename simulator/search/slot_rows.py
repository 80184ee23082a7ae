"""Rows of the bodies of a plan: each body is lowered and bound once, without transfers, reductions and optimizer.

Stages that differ in the number of equal layers share a body of few layers, whose rows are repeated. Where layers are few, or not
alike, all of them are lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial

from ..binding.bind import Site
from ..bounded_cache import Cache
from ..config import derived
from ..config.scenario import Scenario
from ..frozen import replace
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
    """Cached rows of bodies, which plans share."""

    slots: Cache = field(default_factory=lambda: Cache(0))
    """Operations of slots that were lowered."""
    short: Cache = field(default_factory=lambda: Cache(MOST_ROWS))
    """Key of a body of few layers -> its rows for every position in a ring."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Stages of a scenario that contain each body once."""

    scenario: Scenario
    site: Site
    shape: Shape
    """With one microbatch in each direction, or as many as a sequence has parts."""
    placements: tuple[tuple[int, ...], ...]
    instances: tuple[Stage, ...]
    kinds: tuple[str, ...]

    def rows(self, works: Mapping[str, Place], wanted: Set[str], kept: KeptRows, key: Hashable) -> list[RowsByName]:
        """The rows of the wanted bodies of some works, possibly with others, for every position in a ring.

        `key` has everything that bodies depend on besides their work.
        """
        few = self._of_few_layers(works, wanted, kept, key)
        return few or self._lowered(kept_slots, works.values(), wanted, kept.slots) or []

    def _of_few_layers(
        self, works: Mapping[str, Place], wanted: Set[str], kept: KeptRows, key: Hashable
    ) -> list[RowsByName] | None:
        """As `rows`, from bodies of few layers whose middle layer is repeated; None if layers are few, or not alike."""
        stages = {work: self.instances[instance] for work, (instance, _) in works.items()}
        if any(stage.layers <= FEW + 1 for stage in stages.values()):
            return None
        of = {f"{kind} of {work}": (work, kind) for work in works for kind in self.kinds}
        keys = {name: (key, stages[work].embedding, stages[work].head, works[work][1], kind) for name, (work, kind) in of.items()}
        short = self._short({name: works[work] for name, (work, _) in of.items()}, keys, kept)
        longer: list[RowsByName] = []
        for name in [name for name in of if name in wanted] if short else ():
            more = [rows.with_layers(stages[of[name][0]].layers - FEW - 1) for rows in short[keys[name]]]
            longer = longer or [{} for _ in more]
            for found, rows in zip(longer, more, strict=True):
                if rows is None:
                    return None
                found[name] = rows
        return longer or None

    def _short(
        self, places: Mapping[str, Place], keys: Mapping[str, Hashable], kept: KeptRows
    ) -> dict[Hashable, tuple[Rows, ...]]:
        """Key of a body -> its rows with few layers, for every position; empty if layers are not alike."""
        known: dict[Hashable, tuple[Rows, ...]] = {key: kept.short.of(key, tuple) for key in keys.values() if key in kept.short}
        missing = {key: name for name, key in keys.items() if key not in known}
        where = dict.fromkeys(places[name] for name in missing.values())
        several = self._lowered(short_slots, where, set(missing.values()), kept.slots) if missing else []
        if several is None:
            return {}
        made = {key: tuple(rows[name] for rows in several) for key, name in missing.items()}
        return known | {key: kept.short.of(key, partial(made.__getitem__, key), _number_of_rows) for key in made}

    def _lowered(
        self, lowered: Callable[..., Programs | None], places: Iterable[Place], wanted: Set[str], kept: Cache
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

    def _rows_of(self, program: Program, wanted: Set[str]) -> RowsByName:
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
