"""The table of a search in SQLite: what is known about each plan, from its memory to its simulated step.

The hash is that of the scenario without the plan, of the plan with the table that is its schedule, and of the version of the
program. Options of sharding and of recomputation that a scenario states are part of it: plans of their kind have them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from hashlib import sha256
from typing import Any

from ..config.document import Document, Mark, place_of
from ..search.choice_scenario import Base
from ..search.plan_checks import Measured, Weighed
from ..search.records import Known
from ..search.search import OF_SPACE
from ..search.space import Choice, with_values
from ..study.program_version import version
from ._result_store import Row, Table, opened_store
from ._scenario_key import ScenarioKeys, of_files

MOST_BASES = 1024
WITH_OPTIONS = ("plan.sharding", "plan.recompute")
"""Parts of a plan whose options a plan of the space takes from the scenario."""
TABLE = Table(
    "search",
    {
        "version": "TEXT NOT NULL",
        "plan": "TEXT NOT NULL",
        "status": "TEXT NOT NULL",
        "stage": "INTEGER NOT NULL",
        "bound_ns": "INTEGER NOT NULL",
        "step_time_s": "REAL",
        "weighed": "TEXT NOT NULL",
        "measured": "TEXT",
    },
    better="(excluded.step_time_s IS NOT NULL, excluded.measured IS NOT NULL, excluded.stage, excluded.bound_ns) "
    "> (step_time_s IS NOT NULL, measured IS NOT NULL, stage, bound_ns)",
)
"""The known values are kept as one JSON object; the step time has a column of its own for readers of the table."""


class StoredPlans:
    """What is known about the plans of a scenario, in a file."""

    def __init__(self, path: str, base: Base, *, resume: bool, merge: bool) -> None:
        self._key = lru_cache(MOST_BASES)(lambda others: _key_of_rest(base, json.loads(others)))
        self._table = lru_cache(MOST_BASES)(lambda schedule: of_files(Document.of({"plan": {"schedule": schedule}})))
        self._store = opened_store(path, TABLE, resume=resume, merge=merge)

    def known(self, choice: Choice) -> Known | None:
        """What is known about a plan, or None."""
        row = self._store.get(self._hash(choice))
        return None if row is None else _known(row)

    def save(self, plans: Sequence[tuple[Choice, Known]]) -> None:
        """Commits the present knowledge about plans."""
        self._store.add([(self._hash(choice), version(), choice.text, *_values(known)) for choice, known in plans])

    def _hash(self, choice: Choice) -> str:
        parts = asdict(choice)
        others = json.dumps(parts.pop("others"), default=repr)
        known = self._key(others), self._table(choice.schedule), json.dumps(parts, sort_keys=True)
        return sha256(" ".join(known).encode()).hexdigest()

    def close(self) -> None:
        self._store.close()


def _key_of_rest(base: Base, others: Sequence[tuple[str, Any]]) -> str:
    """The hash of a scenario with the values of some other fields, without the fields that differ from plan to plan."""
    document = with_values(base.document, others)
    for name in (*OF_SPACE, "plan.placement"):
        value = document.at(place_of(name))
        if value is not None and not (name in WITH_OPTIONS and isinstance(value, dict)):
            document = document.changed(place_of(name), None, Mark("the search"))
    return ScenarioKeys().key(document, base.steps)


def _values(known: Known) -> Row:
    measured = known.measured
    step_time_s = measured and measured.step_time_s
    texts = json.dumps(asdict(known.weighed)), measured and json.dumps(asdict(measured))
    return (known.status, known.stage, known.bound_ns, step_time_s, *texts)


def _known(row: Row) -> Known:
    _, _, status, stage, bound_ns, _, weighed, measured = row
    answer = json.loads(measured) if measured else None
    if answer:
        answer["losses"] = tuple((name, seconds) for name, seconds in answer["losses"])
    return Known(status, stage, bound_ns, Weighed(**json.loads(weighed)), Measured(**answer) if answer else None)
