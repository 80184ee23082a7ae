"""The oldest versions that setup.cfg allows, in an environment of their own: the demo, all help, and tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from simulator.cli import cli

from .source import ROOT, refuse

ENGINES = ("fast", "search")
"""Extras that the simulator itself uses."""
TOOLS = ("pytest", "hypothesis")
TESTS = (
    "tests/engine/test_semantics.py",  # simpy, numpy
    "tests/engine/test_code_cache.py",  # numba
    "tests/hardware/test_cluster.py",  # networkx
    "tests/config/test_load.py",  # PyYAML
    "tests/config/test_schema.py",
    "tests/memory/test_memory.py",
)
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?:(?P<how>>=|==)\s*(?P<version>[\d.]+))?")
INSTALL_S, COMMANDS_S = 300, 300
OUT_OF_REACH = ("from versions: none", "Failed to establish a new connection", "Name or service not known", "name resolution")


def requirements(*extras: str) -> dict[str, re.Match[str]]:
    """What setup.cfg requires, and with some extras: by name."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    texts = [config["options"]["install_requires"], *(config["options.extras_require"][extra] for extra in extras)]
    found = [REQUIREMENT.fullmatch(line.strip()) for text in texts for line in text.splitlines() if line.strip()]
    return {match["name"]: match for match in found if match}


def every_extra() -> list[str]:
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    return list(config["options.extras_require"])


def test_every_requirement_states_a_minimum() -> None:
    """One that a test has seen work. A package has one minimum, wherever it stands."""
    bare = [name for name, match in requirements(*every_extra()).items() if not match["version"]]
    refuse(f"setup.cfg:1: {name} has no minimum: write `{name} >= VERSION`, the oldest that works" for name in bare)
    stated: dict[str, set[str]] = {}
    for extra in every_extra():
        for name, match in requirements(extra).items():
            if match["how"] == ">=":
                stated.setdefault(name, set()).add(match["version"])
    refuse(f"setup.cfg:1: {name} has several minima: {sorted(several)}" for name, several in stated.items() if len(several) > 1)


def minima() -> list[str]:
    core, tools = requirements(*ENGINES), requirements("dev")
    return [f"{name}=={match['version']}" for name, match in {**core, **{tool: tools[tool] for tool in TOOLS}}.items()]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with exactly the minima, and what they need in turn."""
    env = tmp_path_factory.mktemp("minima") / "env"
    subprocess.run([sys.executable, "-m", "venv", env], check=True)
    command = [env / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary", ":all:"]
    command += ["--retries", "1", "--timeout", "20", *minima()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index is too slow")
    if done.returncode and any(word in done.stderr for word in OUT_OF_REACH):
        pytest.skip(f"the package index is out of reach: {done.stderr.splitlines()[-1]}")
    assert not done.returncode, done.stderr
    return Path(env / "bin/python")


COMMANDS = f"""\
import sys
from simulator.cli import run
for args in [["--help"], ["--version"], *([name, "--help"] for name in {cli.list_commands(None)})]:
    if run(args):
        sys.exit(f"failed: {{args}}")
sys.exit(run(["demo"]))
"""


@pytest.mark.slow
def test_the_oldest_versions_allowed_do(python: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    asked = {
        "commands": ([python, "-c", COMMANDS], tmp_path),
        "tests": ([python, "-m", "pytest", "-p", "no:cacheprovider", *TESTS], ROOT),
    }
    for what, (command, folder) in asked.items():
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=COMMANDS_S, check=False)
        assert not done.returncode, f"{what}, with {' '.join(minima())}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
