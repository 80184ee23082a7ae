"""Reads a mutation, applies it to a copy of the project, and runs tests in the copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ..project.source import ROOT, project_files
from .record import VARIABLE

PATCHES = Path(__file__).parent
NEEDED = ("simulator", "tests", "topologies", "workloads", "setup.cfg", "setup.py", "README.md", ".ruff.toml")
"""What the tests in a copy may look at."""
FORM = "line 1: `# what it breaks`; line 2: `# killed by: <pytest node id> [<more>]`; then a unified diff (git diff)"
LIMIT_S = 180


@dataclass(frozen=True)
class Mutation:
    """A change that breaks something, and the tests that must fail with it."""

    breaks: str
    tests: tuple[str, ...]
    patch: Path

    @classmethod
    def of(cls, patch: Path) -> Mutation:
        first, second, *rest = [*patch.read_text(encoding="utf-8").splitlines(), "", ""]
        lead, _, named = second.partition("killed by:")
        touched = [line.removeprefix("--- a/") for line in rest if line.startswith("--- ")]
        fault = (
            "line 1 does not say what it breaks" if not first.startswith("# ")
            else "line 2 names no test" if lead.strip() != "#" or not named.split()
            else "it has no diff" if not touched
            else "it changes more than the package" if not all(name.startswith("simulator/") for name in touched)
            else ""
        )  # fmt: skip
        if fault:
            pytest.fail(f"{patch.name}: {fault}. The form is: {FORM}", pytrace=False)
        return cls(first.removeprefix("# "), tuple(named.replace(",", " ").split()), patch)


@dataclass
class Ran:
    """How the tests of a copy ended."""

    imported: Path
    output: str
    ended: dict[str, list[str]] = field(default_factory=dict)
    """Test -> how each of its cases ended, and why."""

    def of(self, named: str) -> list[str]:
        """The ends of a test, of all its cases if it has parameters."""
        return [end for test, ends in self.ended.items() if test == named or test.startswith(f"{named}[") for end in ends]


def copied(folder: Path) -> Path:
    """A copy of what is under version control, of the folders that tests need."""
    for file in project_files():
        if file.parts[0] in NEEDED:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, folder / file)
    return folder


def apply(mutation: Mutation, copy: Path) -> None:
    """Applies the patch, with git or else with patch; skips where there is neither."""
    if git := shutil.which("git"):
        command = [git, "apply", "--whitespace=nowarn", str(mutation.patch)]
    elif patch := shutil.which("patch"):
        command = [patch, "-p1", "-F0", "--batch", "--forward", "-i", str(mutation.patch)]
    else:
        pytest.skip("needs git or patch to apply a mutation")
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(
            f"{mutation.patch.name} no longer applies:\n{done.stdout}{done.stderr}"
            f"The code around it has changed. Make the same mistake by hand ({mutation.breaks}), check that "
            f"{' '.join(mutation.tests)} fails, and put the output of `git diff` below the first two lines.",
            pytrace=False,
        )


def run_tests(copy: Path, tests: Iterable[str]) -> Ran:
    """Runs fast tests in the copy, with the package of the copy."""
    record = copy / "record.jsonl"
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "PYTHONSAFEPATH"))}
    env = {**mine, "PYTHONPATH": str(copy), VARIABLE: str(record), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ("-p", "tests.mutations.record", "-p", "no:cacheprovider", "--rootdir", str(copy), "-c", str(copy / "setup.cfg"))
    command = [sys.executable, "-m", "pytest", *options, "--hypothesis-profile=unshrunk", "--tb=short", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        output = f"{done.stdout}{done.stderr}"
    except subprocess.TimeoutExpired as late:
        output = f"stopped after {LIMIT_S} s: {late.stdout!r}"
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []
    ran = Ran(Path(next((line["imported"] for line in lines if "imported" in line), "nowhere")), output[-4000:])
    for line in lines:
        if "test" in line:
            ran.ended.setdefault(line["test"], []).append(f"{line['ended']}: {line['why']}")
    return ran


def check_imported(ran: Ran, copy: Path) -> None:
    expected = (copy / "simulator/__init__.py").resolve()
    if ran.imported != expected:
        pytest.fail(f"the tests of the copy imported {ran.imported}, not {expected}:\n{ran.output}", pytrace=False)


def faults(mutation: Mutation, ran: Ran) -> list[str]:
    """What is wrong with a mutation, by the tests that ran with it: every test named must fail, in one of its cases at least."""
    found = []
    for test in mutation.tests:
        ends = ran.of(test)
        broken = [end for end in ends if end.startswith("error")]
        if not ends:
            found.append(f"{test} did not run: there is no such test, or it is marked slow\n{ran.output}")
        elif broken:
            found.append(f"{test} broke down instead of failing: {broken[0]}")
        elif not any(end.startswith("failed") for end in ends):
            found.append(f"{test} does not notice that {mutation.breaks!r}: {_tally(ends)}")
    return [f"{mutation.patch.name}: {fault}" for fault in found]


def not_passing(tests: Iterable[str], ran: Ran) -> list[str]:
    """What is wrong with the tests that mutations name, by how they end without any mutation."""
    found = []
    for test in tests:
        ends = ran.of(test)
        if not ends:
            found.append(f"{test} did not run: there is no such test, or it is marked slow")
        elif not all(end.startswith("passed") for end in ends):
            found.append(f"{test} must pass without a mutation, away from ../shared: {_tally(ends)}")
    return [*found, ran.output] if found else []


def _tally(ends: Iterable[str]) -> str:
    ends = list(ends)
    counted: Mapping[str, int] = {end: ends.count(end) for end in dict.fromkeys(ends)}
    return "; ".join(f"{end.rstrip(': ')} (x{count})" for end, count in counted.items())
