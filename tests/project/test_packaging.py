"""What is installed is what is in the checkout, by every way of installing it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from .source import ROOT, Module, modules, project_files, refuse

DATA = {"simulator._data.topologies": "topologies", "simulator._data.workloads": "workloads"}
IMPORTED_AS = {"PyYAML": "yaml"}


def setup(section: str, key: str) -> list[str]:
    """A value of setup.cfg, as the list of its items."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    return [item for item in re.split(r"[,\n]\s*", config[section][key]) if item]


def shipped(package: str, folder: Path) -> set[Path]:
    """The files of a folder that the package_data patterns of its package take."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    patterns = setup("options.package_data", package) if package in config["options.package_data"] else []
    return {path.relative_to(ROOT) for pattern in patterns for path in folder.glob(pattern)}


def test_every_package_is_listed() -> None:
    """A folder that setup.cfg forgets works in a checkout and is missing after an install."""
    folders = {path.parent for path in (ROOT / "simulator").rglob("*.py")}
    bare = [folder.relative_to(ROOT) for folder in folders if not (folder / "__init__.py").exists()]
    refuse(f"{folder}/__init__.py:1: is missing: add it, with a docstring" for folder in bare)
    there = {".".join(folder.relative_to(ROOT).parts) for folder in folders} | set(DATA)
    listed = setup("options", "packages")
    refuse(f"setup.cfg:1: packages lacks, or should lack, {name}" for name in sorted(there ^ set(listed)))
    assert listed == sorted(listed), "sort `packages` of setup.cfg"


def test_every_data_file_is_shipped() -> None:
    faults = []
    for package, folder in DATA.items():
        taken = shipped(package, ROOT / folder)
        faults += [f for f in project_files() if f.parts[0] == folder and f.suffix != ".md" and f not in taken]
    for module in setup("options", "packages"):
        if module not in DATA:
            folder = module.replace(".", "/")
            inside = [f for f in project_files() if f.parent.as_posix() == folder and f.suffix != ".py"]
            faults += [f for f in inside if f not in shipped(module, ROOT / folder)]
    refuse(f"{file}:1: not installed: add a pattern to [options.package_data] of setup.cfg" for file in faults)


def test_what_is_imported_is_required() -> None:
    """A third-party import is a requirement; that of an extra is made where it is used, not at the top of a file."""
    core = {_module(item) for item in setup("options", "install_requires")}
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    names = [name for name in config["options.extras_require"] if name != "dev"]
    extra = {_module(item) for name in names for item in setup("options.extras_require", name)}
    allowed = core | extra | set(sys.stdlib_module_names) | {"simulator"}
    faults = []
    for module in modules():
        for node, name in _imports(module):
            if name not in allowed:
                faults.append(f"{module.path}:{node.lineno}: {name} is in no requirement of setup.cfg: add it")
            elif name in extra - core and node in module.tree.body:
                faults.append(f"{module.path}:{node.lineno}: {name} is an extra: import it where it is used")
    refuse(faults)


def test_what_an_extra_of_the_simulator_installs_is_imported() -> None:
    """An extra that nothing uses promises what is not there. Notebooks and development bring programs, not modules."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    extras = [name for name in config["options.extras_require"] if name not in ("dev", "notebook")]
    imported = {name for module in modules() for _, name in _imports(module)}
    idle = [(name, item) for name in extras for item in setup("options.extras_require", name) if _module(item) not in imported]
    refuse(f"setup.cfg:1: extra {name}: nothing imports {item}: leave it out until something does" for name, item in idle)


def _module(requirement: str) -> str:
    name = re.split(r"[ <>=]", requirement)[0]
    return IMPORTED_AS.get(name, name)


def _imports(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every absolute import, with the top-level name that it imports."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node, (node.module or "").split(".")[0]


def test_setup_py_says_nothing() -> None:
    said = [line for line in (ROOT / "setup.py").read_text(encoding="utf-8").splitlines() if line]
    assert said == ["from setuptools import setup", "setup()"]


# What follows builds and installs. Nothing is downloaded: the environments see the packages that run the tests.


class Place(NamedTuple):
    """A copy of the project under version control, and a virtual environment that has its dependencies but not itself."""

    source: Path
    python: Path
    elsewhere: Path

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        """What a command prints; it must succeed. Runs away from the source, with nothing of our own environment."""
        mine = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
        env = {key: value for key, value in os.environ.items() if key not in mine}
        env |= {
            "PYTHONNOUSERSITE": "1",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        done = subprocess.run(command, cwd=cwd or self.elsewhere, env=env, capture_output=True, text=True, check=False)
        assert not done.returncode, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
        return done.stdout

    def pip(self, *arguments: str | Path) -> None:
        self.run(self.python, "-m", "pip", arguments[0], "--no-deps", "--use-pep517", "--no-build-isolation", *arguments[1:])

    def git(self, *arguments: str) -> str:
        return self.run("git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments, cwd=self.source)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for module in ("pip", "build", "setuptools"):
        if not find_spec(module):
            pytest.skip(f"needs {module}: pip install -e '.[dev]'")
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("needs setuptools >= 77: pip install -e '.[dev]'")
    if not shutil.which("git"):
        pytest.skip("needs git")
    source, env, dependencies, elsewhere = (tmp_path / name for name in ("source", "env", "dependencies", "elsewhere"))
    for file in project_files():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, source / file)
    elsewhere.mkdir()
    dependencies.mkdir()
    own = re.compile(r"__editable__|cluster_training_simulator|simulator$|.*\.pth$|__pycache__")
    for package in [path for folder in site.getsitepackages() for path in Path(folder).glob("*") if not own.match(path.name)]:
        if not (dependencies / package.name).exists():
            (dependencies / package.name).symlink_to(package)
    made = Place(source, env / "bin/python", elsewhere)
    made.run(sys.executable, "-m", "venv", "--without-pip", env)
    next(env.glob("lib/python*/site-packages")).joinpath("dependencies.pth").write_text(f"{dependencies}\n")
    made.git("init", "-q")
    made.git("add", ".")
    made.git("commit", "-qm", "as it is")
    return made


def wheel(place: Place) -> None:
    place.pip("wheel", "-w", place.elsewhere, place.source)
    place.pip("install", _only(place, "*.whl"))
    _check_content(place)


def sdist(place: Place) -> None:
    """The archive holds what it takes to build the wheel, which holds the same."""
    place.run(place.python, "-m", "build", "--sdist", "--no-isolation", "--outdir", place.elsewhere, place.source)
    place.pip("wheel", "-w", place.elsewhere, _only(place, "*.tar.gz"))
    place.pip("install", _only(place, "*.whl"))
    _check_content(place)


def editable(place: Place) -> None:
    place.pip("install", "-e", place.source)


def editable_strict(place: Place) -> None:
    place.pip("install", "--config-settings", "editable_mode=strict", "-e", place.source)


def editable_compat(place: Place) -> None:
    place.pip("install", "--config-settings", "editable_mode=compat", "-e", place.source)


def bare_checkout(place: Place) -> None:
    """Nothing is installed: `python -m simulator` from the root of the checkout."""


def _only(place: Place, pattern: str) -> Path:
    (found,) = place.elsewhere.glob(pattern)
    return found


def _check_content(place: Place) -> None:
    """The wheel holds the package and the data, each file of them, and nothing else."""
    names = zipfile.ZipFile(_only(place, "*.whl")).namelist()
    files = [file.as_posix() for file in project_files() if file.suffix != ".md"]
    expected = {name for name in files if name.startswith("simulator/")}
    expected |= {f"simulator/_data/{name}" for name in files if name.startswith(("topologies/", "workloads/"))}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("/LICENSE") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "install",
    [wheel, sdist, editable, editable_strict, editable_compat, bare_checkout],
    ids=lambda install: install.__name__,
)
def test_it_works_however_installed(place: Place, install: Callable[[Place], None]) -> None:
    install(place)
    bare = install is bare_checkout
    trainsim = (place.python, "-m", "simulator") if bare else (place.python.with_name("trainsim"),)
    cwd = place.source if bare else place.elsewhere

    assert place.run(*trainsim, "--version", cwd=cwd).split()[-1] == _version()
    catalog = json.loads(place.run(*trainsim, "catalog", "--json", cwd=cwd))
    assert "llama3-70b" in catalog["models"]
    assert "dgx-h100" in catalog["clusters"]
    assert "1f1b" in catalog["schedules"]
    result = json.loads(place.run(*trainsim, "run", "llama3-70b-64xh100", "--json", cwd=cwd))
    assert result["step_time_s"] > 0

    used = Path(place.run(place.python, "-c", "import simulator; print(simulator.__file__)", cwd=cwd).strip())
    assert used.is_relative_to(place.python.parents[1] if install in (wheel, sdist) else place.source)
    assert place.git("status", "--porcelain") == ""


def _version() -> str:
    face = next(module for module in modules() if module.place == "__init__")
    return next(match[1] for match in [re.search(r'^__version__ = "(.+)"$', face.text, re.MULTILINE)] if match)
