"""Machine code on disk: damaged, out of reach, or as it should be, a function gives what it gives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator.engine.compiled import event_loop, machine_code
from simulator.engine.compiled.machine_code import NO_FOLDER, MachineCode
from simulator.errors import InvariantBroken
from simulator.simulation import choose_engine

pytestmark = pytest.mark.skipif(not event_loop.INSTALLED, reason="numba, the extra 'fast', is not installed")


def twice(numbers: Any) -> bool:
    for i in range(len(numbers)):
        numbers[i] *= 2
    return len(numbers) > 2


class Numba:
    """Counts how often numba is asked to compile."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, function: Callable[..., Any]) -> Any:
        self.made += 1
        return machine_code_jitted(function)


machine_code_jitted = machine_code.jitted


@pytest.fixture
def numba(monkeypatch: pytest.MonkeyPatch) -> Numba:
    counted = Numba()
    monkeypatch.setattr(machine_code, "jitted", counted)
    return counted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder for machine code."""
    found = tmp_path / "code"
    monkeypatch.setattr(machine_code, "folders", lambda: iter([found]))
    return found


def doubled(function: MachineCode) -> list[int]:
    numbers = np.arange(4)
    assert function(numbers)
    assert not function(np.zeros(2, dtype=np.int64))
    return numbers.tolist()


def test_machine_code_is_kept(folder: Path, numba: Numba) -> None:
    function = MachineCode(twice)
    assert not function.is_kept
    assert not function.is_loaded
    assert function.why_not_kept() == ""
    assert doubled(function) == [0, 2, 4, 6]
    assert function.is_loaded
    again = MachineCode(twice)
    assert again.is_kept
    assert doubled(again) == [0, 2, 4, 6]
    assert numba.made == 1
    assert again.why_not_kept() == ""


def test_machine_code_on_disk_is_loaded_without_numba() -> None:
    """In another process, which takes no time to import it."""
    event_loop.load()
    code = """
import sys
from simulator.engine.compiled import event_loop
assert event_loop.is_kept()
event_loop.load()
assert event_loop.is_loaded()
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def with_a_bit_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [cut_short, emptied, with_a_bit_flipped], ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_made_anew(damage: Callable[[Path], None], folder: Path, numba: Numba) -> None:
    assert doubled(MachineCode(twice)) == [0, 2, 4, 6]
    (file,) = folder.iterdir()
    damage(file)
    again = MachineCode(twice)
    assert doubled(again) == [0, 2, 4, 6]
    assert numba.made == 2
    assert again.why_not_kept() == ""
    assert doubled(MachineCode(twice)) == [0, 2, 4, 6]
    assert numba.made == 2


def test_machine_code_is_made_anew_when_any_of_its_sources_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in Path(machine_code.__file__).parent.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(machine_code, "__file__", str(tmp_path / "machine_code.py"))
    made_from = machine_code._made_from.__wrapped__
    assert made_from() == machine_code._made_from()
    for source in ("event_loop.py", "fluid_rates.py", "slowed.py", "integer_records.py", "machine_code.py"):
        before = made_from()
        (tmp_path / source).write_bytes((tmp_path / source).read_bytes() + b"\n")
        assert made_from() != before
    monkeypatch.setattr(machine_code, "version", lambda package: "another")
    assert made_from() != before


def test_what_can_no_longer_be_kept_is_done_without(folder: Path, numba: Numba) -> None:
    """A file is in the place of the folder, or the folder can no longer be written to."""
    folder.mkdir()
    (name,) = MachineCode(twice)._files()
    name.mkdir()
    function = MachineCode(twice)
    assert doubled(function) == [0, 2, 4, 6]
    assert function.fault.startswith("machine code was not kept: ")
    assert sorted(folder.iterdir()) == [name], "nothing half-written stays"


def test_another_numba_still_runs_what_it_made(folder: Path, numba: Numba, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that passes arrays in another way, say: its code is not called from here."""
    monkeypatch.setattr(machine_code, "_kinds", lambda array: ["ptr"])
    function = MachineCode(twice)
    assert doubled(function) == [0, 2, 4, 6]
    assert function.why_not_kept().startswith("machine code was not kept: numba passes 9 values in another way")
    assert not folder.exists()


def test_arrays_of_another_kind_are_refused(folder: Path, numba: Numba) -> None:
    function = MachineCode(twice)
    doubled(function)
    for numbers in (
        np.arange(4.0),
        np.arange(4, dtype=np.int32),
        np.arange(8)[::2],
        np.zeros(2, dtype=[("a", int), ("b", float)]),
    ):
        with pytest.raises(InvariantBroken, match="64 bits"):
            function(numbers)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code can be kept in no folder: files are in their places."""
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    monkeypatch.setattr(machine_code, "folders", lambda: iter([file, file / "folder"]))


@pytest.mark.usefixtures("nowhere")
def test_without_a_folder_machine_code_is_made_for_the_process(numba: Numba) -> None:
    function = MachineCode(twice)
    assert function.why_not_kept() == NO_FOLDER
    assert doubled(function) == [0, 2, 4, 6]
    assert function.why_not_kept() == NO_FOLDER


def test_folders_that_users_name_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "named")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    here = Path(machine_code.__file__).parent / "__pycache__"
    assert list(machine_code.folders()) == [Path("named"), here, Path("cache/trainsim")]


def test_auto_says_that_it_would_compile_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes the loop over a heap, until so many tasks that compiling for every process pays."""
    monkeypatch.setattr(choose_engine, "why_not", lambda graph: "links are shared")
    monkeypatch.setattr(choose_engine, "MANY_TASKS", 1)
    monkeypatch.setattr(event_loop, "_run", SimpleNamespace(is_loaded=False, is_kept=False, why_not_kept=lambda: NO_FOLDER))
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
