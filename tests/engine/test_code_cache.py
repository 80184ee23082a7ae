"""Machine code on disk: damaged, out of reach, or as it should be, a function gives what it gives."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.engine.compiled import event_loop
from simulator.engine.compiled.machine_code import NO_FOLDER, why_not_kept
from simulator.simulation import choose_engine

pytestmark = pytest.mark.skipif(event_loop.numba is None, reason="numba, the extra 'fast', is not installed")
SOURCE = """\
from simulator.engine.compiled.machine_code import compiled

@compiled
def twice(x):
    return 2 * x
"""


def loaded(folder: Path) -> Any:
    """The function of a module that is imported anew, as by another process."""
    (folder / "doubling.py").write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("doubling", folder / "doubling.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.twice


def kept(folder: Path, suffix: str) -> Path:
    (found,) = folder.glob(f"__pycache__/*.{suffix}")
    return found


def test_machine_code_is_kept(tmp_path: Path) -> None:
    assert loaded(tmp_path)(21) == 42
    again = loaded(tmp_path)
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 1
    assert why_not_kept(again) == ""


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def with_a_bit_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def with_other_content(file: Path) -> None:
    file.write_bytes(b"cos\nno_such_name\n.")


@pytest.mark.thinned(8)
@pytest.mark.parametrize(
    "damage", [cut_short, emptied, with_a_bit_flipped, with_other_content], ids=lambda damage: damage.__name__
)
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_is_made_anew(damage: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    assert loaded(tmp_path)(21) == 42
    damage(kept(tmp_path, suffix))
    again = loaded(tmp_path)
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 0
    assert why_not_kept(again) == ""
    mended = loaded(tmp_path)
    assert mended(21) == 42
    assert sum(mended.stats.cache_hits.values()) == 1


def test_what_can_no_longer_be_kept_is_done_without(tmp_path: Path) -> None:
    """The folder is gone when the code is there to be kept: a file is in its place."""
    function = loaded(tmp_path)
    shutil.rmtree(tmp_path / "__pycache__")
    (tmp_path / "__pycache__").write_text("", encoding="utf-8")
    assert function(21) == 42
    assert why_not_kept(function).startswith("machine code was not kept: ")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Machine code can be kept in no folder: files are in their places."""
    file = tmp_path / "__pycache__"
    file.write_text("", encoding="utf-8")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(file / name))
    return tmp_path


def test_without_a_folder_machine_code_is_made_for_the_process(nowhere: Path) -> None:
    function = loaded(nowhere)
    assert function(21) == 42
    assert why_not_kept(function) == NO_FOLDER


def test_auto_says_that_it_would_compile_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes the loop over a heap, until so many tasks that compiling for every process pays."""
    monkeypatch.setattr(choose_engine, "why_not", lambda graph: "links are shared")
    monkeypatch.setattr(choose_engine, "MANY_TASKS", 1)
    monkeypatch.setattr(event_loop, "_run", SimpleNamespace())
    tasks, times = [None] * 5, object()
    monkeypatch.setattr(event_loop, "why_not", lambda graph: "")
    monkeypatch.setattr(event_loop, "simulate", lambda graph: times)
    monkeypatch.setattr("simulator.engine.heap.whole_times", lambda graph: times)
    assert choose_engine.run(tasks)[1:] == ("heap", f"heap because links are shared, and not compiled because {NO_FOLDER}")  # type: ignore[arg-type]
    monkeypatch.setattr(choose_engine, "MANY_TASKS_ANEW", 5)
    assert choose_engine.run(tasks)[1:] == (  # type: ignore[arg-type]
        "compiled",
        f"compiled because links are shared, and 5 tasks are many; it was compiled for this run alone ({NO_FOLDER})",
    )
