"""The table of a search in SQLite: what is known about each plan, from its memory to its simulated step.

The hash is that of the scenario without the plan, of the plan, and of the version of the program.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from hashlib import sha256
from typing import Any

from ..config.document import Mark, place_of
from ..search.records import Known
from ..search.search import OF_SPACE
from ..search.space import Choice, with_values
from ..search.weigh import TOO_LONG, Base, Measured, Weighed
from ..study.program_version import version
from ._result_store import Row, Table, opened_store
from ._scenario_key import ScenarioKeys

MOST_BASES = 1024
SIMULATED = "simulated"
TABLE = Table(
    "search",
    {
        "version": "TEXT NOT NULL",
        "plan": "TEXT NOT NULL",
        "status": "TEXT NOT NULL",
        "reason": "TEXT NOT NULL",
        "example": "TEXT NOT NULL",
        "memory_bytes": "REAL NOT NULL",
        "quick_ns": "INTEGER NOT NULL",
        "gpus": "INTEGER NOT NULL",
        "idle_w": "REAL",
        "bound_ns": "INTEGER",
        "simulation": "TEXT",
        "step_time_s": "REAL",
        "mfu": "REAL",
        "peak_memory_bytes": "INTEGER",
        "energy_j": "REAL",
        "losses": "TEXT",
    },
    better="(simulation IS NULL AND excluded.simulation IS NOT NULL) OR (bound_ns IS NULL AND excluded.bound_ns IS NOT NULL) "
    f"OR (simulation <> '{SIMULATED}' AND excluded.simulation = '{SIMULATED}')",
)
"""Until a plan is simulated it has no `simulation`; that of one which would have taken too long is the reason."""


class StoredPlans:
    """What is known about the plans of a scenario, in a file."""

    def __init__(self, path: str, base: Base, *, resume: bool, merge: bool) -> None:
        self._key = lru_cache(MOST_BASES)(lambda others: _key_of_rest(base, json.loads(others)))
        self._store = opened_store(path, TABLE, resume=resume, merge=merge)

    def known(self, choice: Choice) -> Known | None:
        """What is known about a plan, or None."""
        row = self._store.get(self._hash(choice))
        return None if row is None else _known(row)

    def save(self, plans: Sequence[tuple[Choice, Known]]) -> None:
        """Commits what is known about plans now."""
        self._store.add([(self._hash(choice), version(), choice.text, *_values(known)) for choice, known in plans])

    def _hash(self, choice: Choice) -> str:
        parts = asdict(choice)
        others = json.dumps(parts.pop("others"), default=repr)
        return sha256(f"{self._key(others)} {json.dumps(parts, sort_keys=True)}".encode()).hexdigest()

    def close(self) -> None:
        self._store.close()


def _key_of_rest(base: Base, others: Sequence[tuple[str, Any]]) -> str:
    """The hash of a scenario with the values of some fields, without the fields that every plan has values of its own for."""
    document = with_values(base.document, others)
    for name in (*OF_SPACE, "plan.placement"):
        if document.at(place_of(name)) is not None:
            document = document.changed(place_of(name), None, Mark("the search"))
    return ScenarioKeys().key(document)


def _values(known: Known) -> Row:
    weighed, measured = known.weighed, known.measured
    before = (*asdict(weighed).values(), known.bound_ns)
    if measured is None:
        return (*before, *[None] * 6)
    said = SIMULATED if measured.step_time_s is not None else measured.reason or TOO_LONG
    numbers = (measured.step_time_s, measured.mfu, measured.memory_bytes, measured.energy_j)
    return (*before, said, *numbers, json.dumps(measured.losses))


def _known(row: Row) -> Known:
    _, _, *of_weighed, bound_ns, simulation, step_time_s, mfu, memory_bytes, energy_j, losses = row
    weighed = Weighed(*of_weighed)
    if simulation is None:
        return Known(weighed, bound_ns)
    reason = "" if step_time_s is not None else simulation
    listed = tuple((str(name), float(seconds)) for name, seconds in json.loads(losses))
    return Known(weighed, bound_ns, Measured(step_time_s, mfu, memory_bytes, energy_j, listed, reason))
