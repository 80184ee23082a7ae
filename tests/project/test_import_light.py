"""Importing the package and asking for help load none of the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulator.cli import cli

HEAVY = {"numpy", "pandas", "matplotlib", "networkx", "simpy", "rich", "yaml"}
LATER = {"networkx", "pandas", "matplotlib", "rich", "numpy.ma", "numpy.random"}
"""What a command does without if nothing is wrong with its input and it draws nothing."""
OF_STEPS = {"simulator.simulation.simulate", "simulator.lowering.lower"}
UNUSED = LATER | OF_STEPS | {"simpy", "importlib.metadata"}
"""What a collective does without; each takes a while to load."""
LOADED = "import sys; print(*sorted(sys.modules), file=sys.stderr)"
COMMANDS = cli.list_commands(None)  # type: ignore[attr-defined]


def loaded(code: str) -> set[str]:
    """The modules that are loaded after some code, in a fresh process."""
    done = subprocess.run([sys.executable, "-c", f"{code}\n{LOADED}"], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_loads_nothing_heavy() -> None:
    assert not loaded("import simulator; dir(simulator)") & HEAVY


def test_using_loads_what_it_needs() -> None:
    """The test above can fail: names are resolved when they are used."""
    assert "numpy" in loaded("import simulator; simulator.simulate")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("args", [["--help"], ["--version"], [], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    assert not loaded(f"from simulator.cli import run\nassert run({args!r}) == 0") & HEAVY


def test_a_collective_loads_no_more_than_it_needs() -> None:
    args = ["collective", "all_reduce", "--cluster", "dgx-h100", "-b", "1G", "-e", "1G", "--algorithm", "ring", "--json"]
    found = loaded(f"from simulator.cli import run\nassert run({args!r}) == 0")
    assert {"numpy", "simulator.study.collective"} <= found
    assert not found & UNUSED


def test_a_step_needs_none_of_what_comes_later() -> None:
    assert not loaded("from simulator.cli import run\nassert run(['run', 'llama3-70b-64xh100', '--json']) == 0") & LATER


def test_neither_does_a_fault() -> None:
    args = ["run", "llama3-70b-64xh100", "--set", "plan.tp=none"]
    assert not loaded(f"from simulator.cli import run\nassert run({args!r}) == 2") & LATER
