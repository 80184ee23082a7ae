"""A plug-in for pytest that writes down how every test ended, and from where the package was imported.

The file that `MUTATION_RECORD` names gets one JSON object a line. A test that fails counts as failed only if it judged the
result: by an assertion, or by an error that the package raises on purpose. A broken import, name or call is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.errors import SimulatorError

JUDGED = (AssertionError, pytest.fail.Exception, SimulatorError)
VARIABLE = "MUTATION_RECORD"


def judged(error: BaseException) -> bool:
    """Whether an error says that a result is wrong; a group does if all its errors do."""
    if isinstance(error, BaseExceptionGroup):
        return all(judged(one) for one in error.exceptions)
    return isinstance(error, JUDGED)


def _write(**record: str) -> None:
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def pytest_sessionstart() -> None:
    _write(imported=str(Path(simulator.__file__).resolve()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if report.skipped:
        _write(test=item.nodeid, ended="skipped", why=str(error))
    elif error is not None:
        failed = report.when == "call" and judged(error)
        _write(test=item.nodeid, ended="failed" if failed else "error", why=f"{type(error).__name__}: {error}"[:500])
    elif report.when == "call":
        _write(test=item.nodeid, ended="passed", why="")
    return report
