"""Scenarios that users load or write in Python, with the method `simulate()`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import load as files
from ..config.scenario import Scenario
from ..config.tenancy import Tenancy
from ..errors import UserError
from .run import Run
from .simulate import simulate_scenario

if TYPE_CHECKING:
    from .jobs import SharedLink, SharedRun


class RunnableScenario(Scenario):
    """A scenario, which holds all inputs of a run; `simulate()` runs the scenario."""

    def simulate(self, **options: Any) -> Run:
        """Runs the scenario; the options are those of `simulator.simulate`."""
        return simulate_scenario(self, **options)


class RunnableJobs(Tenancy):
    """Several jobs on one cluster; `simulate()` runs each job alone on the cluster, and all jobs together."""

    def simulate(self, *, allow_oom: bool = False, long: bool = False) -> SharedRun:
        """Runs every job alone on the cluster, then all jobs together."""
        from . import jobs

        return jobs.simulate(self, allow_oom=allow_oom, long=long)

    def shared(self, run: SharedRun, count: int = 10) -> list[SharedLink]:
        """The `count` most utilised links that several jobs use, with each job at its step time under contention."""
        from . import jobs

        return jobs.shared(self, run, count)


def runnable(found: Scenario | Tenancy) -> RunnableScenario | RunnableJobs:
    """A scenario or tenancy with the same values and the method `simulate()`."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    return RunnableScenario(**values) if isinstance(found, Scenario) else RunnableJobs(**values)


def load(path: str | Path, settings: Iterable[str] = (), *, trust: bool = False) -> RunnableScenario | RunnableJobs:
    """The scenario in a file (or of a name in the catalog), changed by settings such as "plan.tp=4".

    Code that files name (`file.py`, `file.py:name`, `module:name`) is refused, unless `trust` allows the import.
    """
    return runnable(files.load(path, settings, trust=trust))


def load_one(path: str | Path, settings: Iterable[str] = (), *, trust: bool = False) -> RunnableScenario:
    """The scenario in a file; raises `UserError` for a file that holds several jobs on one cluster."""
    found = load(path, settings, trust=trust)
    if not isinstance(found, RunnableScenario):
        raise UserError(f"{path} holds several jobs", hint="`trainsim run` runs them; this takes one")
    return found


def scenario(data: Mapping[str, Any], *, trust: bool = False) -> RunnableScenario | RunnableJobs:
    """A scenario (or several jobs on one cluster) from a mapping with the structure of a YAML file.

    With `trust` the files that the mapping names may name code, which is imported.
    """
    return runnable(files.scenario(data, trust=trust))
