"""A read-only installation whose user can write to no folder of their own, as in a container: everything still runs."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from simulator.engine.compiled import event_loop
from simulator.engine.compiled.machine_code import NO_FOLDER

from .source import ROOT, project_files

pytestmark = pytest.mark.slow
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
needs_numba = pytest.mark.skipif(not event_loop.INSTALLED, reason="numba, the extra 'fast', is not installed")
SCENARIO = "{model: llama3-8b, cluster: {name: dgx-h100, nodes: 1}, plan: {tp: 2, pp: 2, dp: 2, sharding: zero1}}"
NONE = "/dev/null/no-such-folder"
HOMES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR")


def obey_modes() -> None:
    """What this process starts may no longer write where the mode of a file forbids it, although it runs as root."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


class Place(NamedTuple):
    """A copy of the package that cannot be written to, and a folder for results that can."""

    package: Path
    out: Path

    def python(self, *args: object, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with no folder of its user's own."""
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.package), **dict.fromkeys(HOMES, NONE), **more}
        command = [sys.executable, *map(str, args)]
        drop = obey_modes if os.geteuid() == 0 and sys.platform == "linux" else None
        return subprocess.run(
            command, cwd=self.out, env=env, capture_output=True, text=True, timeout=300, check=False, preexec_fn=drop
        )

    def run(self, *args: object, **more: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "simulator", *args, **more)

    def write(self, name: str, text: str) -> Path:
        file = self.out / name
        file.write_text(text, encoding="utf-8")
        return file


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("out"))
    for file in project_files():
        if file.parts[0] in ("simulator", "topologies", "workloads"):
            (made.package / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, made.package / file)
    folders = [made.package, *(path for path in made.package.rglob("*") if path.is_dir())]
    try:
        for folder in folders:
            folder.chmod(0o555)
        tried = made.python("-c", "import os, simulator; os.mkdir(os.path.join(os.path.dirname(simulator.__file__), 'new'))")
        if "PermissionError" not in tried.stderr and "Read-only" not in tried.stderr:
            pytest.skip("a folder cannot be made read-only here")
        yield made
    finally:
        for folder in folders:
            folder.chmod(0o755)


@needs_numba
def test_the_compiled_engine_runs_and_says_that_it_was_compiled_for_this_run(place: Place) -> None:
    file = place.write("scenario.yaml", SCENARIO)
    done, loop = (place.run("run", file, "--allow-oom", "--engine", engine, "--json") for engine in ("compiled", "des"))
    assert not done.returncode, done.stderr
    step = json.loads(done.stdout)
    assert step["engine"] == "compiled"
    assert NO_FOLDER in step["engine_reason"]
    assert step["step_time_s"] == json.loads(loop.stdout)["step_time_s"]
    assert not done.stderr


@needs_numba
def test_auto_runs_many_tasks_and_says_why_it_did_not_compile(place: Place) -> None:
    """Every rank of 64 GPUs, which takes more than 500,000 tasks."""
    done = place.run("run", "llama3-70b-64xh100", "--no-fold", "--json")
    assert not done.returncode, done.stderr
    step = json.loads(done.stdout)
    assert step["tasks"] > 500_000
    assert step["engine"] == "heap"
    assert f"not compiled because {NO_FOLDER}" in step["engine_reason"]


@needs_numba
def test_machine_code_is_kept_in_a_folder_that_is_named(place: Place) -> None:
    file, folder = place.write("scenario.yaml", SCENARIO), place.out / "machine-code"
    folder.mkdir()
    for _ in range(2):
        done = place.run("run", file, "--allow-oom", "--engine", "compiled", "--json", NUMBA_CACHE_DIR=str(folder))
        assert json.loads(done.stdout)["engine_reason"].endswith("compiled because it was requested"), done.stderr
    for number, damaged in enumerate(sorted(folder.rglob("*.nb?"))):
        data = damaged.read_bytes()
        os.truncate(damaged, len(data) // 2) if number % 2 else os.truncate(damaged, 0)
    done = place.run("run", file, "--allow-oom", "--engine", "compiled", "--json", NUMBA_CACHE_DIR=str(folder))
    assert json.loads(done.stdout)["engine_reason"].endswith("compiled because it was requested"), done.stderr


def test_figures_are_drawn_without_a_word(place: Place) -> None:
    file = place.write("scenario.yaml", SCENARIO)
    for args in (("run", file, "--allow-oom", "--gantt", "run.png"), ("topology", "dgx-h100", "--plot", "cluster.svg")):
        done = place.run(*args)
        assert (done.returncode, done.stderr) == (0, "")
        assert (place.out / str(args[-1])).stat().st_size > 10_000


def test_a_figure_without_any_folder_for_fonts_is_refused_with_what_to_do(place: Place) -> None:
    code = (
        f"import sys, tempfile; tempfile.tempdir = {NONE!r}\n"
        "from simulator.cli import run; sys.exit(run(['topology', 'dgx-h100', '--plot', 'cluster.png']))"
    )
    done = place.python("-c", code)
    assert done.returncode == 2
    assert "hint: set MPLCONFIGDIR" in done.stderr
    assert "Traceback" not in done.stderr
