"""Files are read up to a stated size, whatever they are, and written whole or not at all, whatever goes wrong."""

from __future__ import annotations

import errno
import gzip
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from simulator import files
from simulator.errors import OutputFailed, UserError
from simulator.figures.drawing import save
from simulator.files import atomic, decoded, read_bounded, read_unzipped
from simulator.measurements import csv_tables, kernel_table, nccl_tests
from simulator.measurements.kernel_table import Measured, append, rows_of
from simulator.measurements.kernel_words import Probe
from simulator.measurements.torch_trace import events
from simulator.study.flows import read_cases

from .commandline import SMALL, trainsim

MOST = 1000
"""Bytes, here."""


@given(st.binary(max_size=2 * MOST), st.booleans())
def test_a_file_is_read_whole_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, zipped: bool) -> None:
    content = content.removeprefix(b"\x1f")
    file = tmp_path_factory.mktemp("read") / "x"
    file.write_bytes(gzip.compress(content) if zipped else content)
    if len(content) <= MOST and file.stat().st_size <= MOST:
        assert read_unzipped(file, MOST, "a table") == content
    else:
        with pytest.raises(UserError, match=r"x: too large for a table"):
            read_unzipped(file, MOST, "a table")


@pytest.mark.parametrize("size", [MOST, MOST + 1])
def test_the_size_that_counts_is_that_of_what_was_zipped(tmp_path: Path, size: int) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(bytes(size // 2)) + gzip.compress(bytes(size - size // 2)))
    if size <= MOST:
        assert len(read_unzipped(file, MOST, "a table")) == size
    else:
        with pytest.raises(UserError, match="when it is unzipped"):
            read_unzipped(file, MOST, "a table")


@given(st.text(st.characters(exclude_characters="\ufeff")), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_a_text_is_read_without_its_byte_order_mark_and_the_line_of_a_wrong_byte_is_named(text: str, mark: bytes) -> None:
    raw = mark + text.encode()
    assert decoded(raw, "x", "") == text
    with pytest.raises(UserError) as refused:
        decoded(raw + b"\xff", "x", "save it in UTF-8")
    line = text.count("\n") + 1
    assert str(refused.value) == f"x:{line}: not a text file\n    hint: save it in UTF-8"


def test_devices_that_never_end_folders_and_silent_pipes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_SILENT_MS", 10)
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (Path("/dev/zero"), "too large for a table"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "nothing was written to it"),
        (tmp_path / "nothing", "no file"),
        (Path("a\0b"), "cannot read"),
    ):
        with pytest.raises(UserError, match=message):
            read_bounded(path, MOST, "a table")


@pytest.mark.parametrize(
    "args",
    [
        ["run", "FILE"],
        ["topology", "FILE.yaml"],
        ["flows", "FILE"],
        ["validate", "--kind", "kernels", "FILE"],
        ["validate", "--kind", "collectives", "FILE"],
        ["calibrate", "links", "FILE"],
        ["calibrate", "trace", "FILE"],
        ["calibrate", "fit", "FILE"],
        ["schedule", "FILE.csv"],
        ["schedule", "FILE.py:order", "--ranks", "2", "--microbatches", "2"],
        ["collective", "alltoall", "--cluster", "dgx-h100", "--matrix", "FILE"],
        ["kernel", "gemm", "--gpu", "h100", "-m", "8", "-n", "8", "-k", "8", "--profile", "FILE"],
        ["run", "llama3-70b-64xh100", "--set", "cluster.gpu.profile=FILE"],
        ["run", "llama3-70b-64xh100", "--set", "cluster.fabric=FILE.yaml"],
    ],
    ids=" ".join,
)
def test_every_reader_stops_at_its_limit(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (csv_tables, events, nccl_tests, kernel_table):
        monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    ends = {word: tmp_path / word.partition(":")[0] for word in args if word.rpartition("=")[2].startswith("FILE")}
    for word, link in ends.items():
        link = link.with_name(link.name.rpartition("=")[2])
        link.symlink_to("/dev/zero")
        args = [word.replace("FILE", str(tmp_path / "FILE")) if said == word else said for said in args]
    said = trainsim(*args)
    assert said.code == 2, said.err
    assert "too large for" in said.err
    assert "bytes are read" in said.err


def test_a_table_of_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("gpu,op\n" + "h100,gemm\n" * 11)
    (tmp_path / "columns.csv").write_text(",".join(f"c{i}" for i in range(100)) + "\n")
    monkeypatch.setattr(csv_tables, "MOST_ROWS", 10)
    for name, message in (("rows", "more than 10 rows"), ("columns", "100 columns")):
        with pytest.raises(UserError, match=message):
            csv_tables.read(tmp_path / f"{name}.csv")


class TestWriting:
    def test_what_fails_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        target = tmp_path / "a.txt"
        target.write_text("old")
        for error, kind in (
            (OSError(errno.ENOSPC, "No space left on device"), OutputFailed),
            (OSError(errno.EACCES, "Permission denied"), UserError),
            (ZeroDivisionError(), ZeroDivisionError),
            (KeyboardInterrupt(), KeyboardInterrupt),
        ):
            with pytest.raises(kind):
                self.fail(target, error)
            assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
            assert target.read_text() == "old"

    @staticmethod
    def fail(target: Path, error: BaseException) -> None:
        with atomic(target) as temporary:
            temporary.write_text("half")
            raise error

    def test_a_missing_folder_is_named_and_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"the folder .*new' does not exist"), atomic(tmp_path / "new" / "a.txt"):
            pass
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("path", ["", ".", "/"])
    def test_a_path_that_names_no_file_is_refused(self, path: str) -> None:
        with pytest.raises(UserError, match="no file has this name"), atomic(path):
            pass

    def test_a_file_gets_the_rights_that_others_get(self, tmp_path: Path) -> None:
        (tmp_path / "usual").write_text("")
        with atomic(tmp_path / "a.txt") as temporary:
            temporary.write_text("whole")
        assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "usual").stat().st_mode
        assert (tmp_path / "a.txt").read_text() == "whole"

    def test_a_file_system_that_is_read_only_is_no_bug(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuses(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "touch", refuses)
        monkeypatch.setattr(Path, "unlink", refuses)
        with pytest.raises(UserError, match="Read-only file system"), atomic(tmp_path / "a.txt"):
            pass

    @pytest.mark.parametrize(
        "words",
        ["sweep s.yaml --over plan.tp=1 --output FOLDER/a.csv", "sweep s.yaml --over plan.tp=1 --output FOLDER/a.sqlite",
         "search s.yaml --store FOLDER/a.sqlite", "search s.yaml --write FOLDER/a.yaml", "run s.yaml --gantt FOLDER/a.png"],
    )  # fmt: skip
    def test_a_folder_that_takes_no_files_is_refused_before_any_work(
        self, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        access = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode: access(path, mode) and not (Path(path) == tmp_path and mode & os.W_OK)
        )
        said = trainsim(*words.replace("FOLDER", str(tmp_path)).split())
        assert (said.code, "is not writable" in said.err) == (2, True)

    @pytest.mark.parametrize("option", ["--gantt=FOLDER/a.png", "--trace=FOLDER/a.json"])
    def test_a_missing_folder_is_refused_before_any_work(
        self, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def worked(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr("simulator.simulation.runnable.load", worked)
        said = trainsim("run", "llama3-70b-64xh100", option.replace("FOLDER", str(tmp_path / "new")))
        assert said.code == 2
        assert f"the folder {str(tmp_path / 'new')!r}"[:40] in said.err
        assert "mkdir -p" in said.err

    def test_a_row_that_was_cut_short_is_taken_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        row = Measured("h100", Probe("gemm", "bf16", m=8, n=8, k=8), 1e-5, 1e-5, 1e-5, 5, "", "fit")
        append(tmp_path / "raw.csv", row)
        before, write = (tmp_path / "raw.csv").read_bytes(), os.write
        monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:10]))
        with pytest.raises(OutputFailed, match="No space left"):
            append(tmp_path / "raw.csv", row)
        assert (tmp_path / "raw.csv").read_bytes() == before
        assert len(rows_of(tmp_path / "raw.csv")) == 1

    def test_a_full_disk_is_no_bug(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        (tmp_path / "s.yaml").write_text(SMALL)
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
        said = trainsim("run", tmp_path / "s.yaml", "--gantt", tmp_path / "a.png")
        assert said.code == 1
        assert "a.png" in said.err
        assert "No space left on device" in said.err
        assert said.err.startswith("error: ")
        assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_without_room_says_so(kind: str, tmp_path: Path) -> None:
    """matplotlib ends a PDF once more where its file takes no more bytes, and fails in zlib."""
    figure = Figure()
    figure.add_subplot().plot(np.random.default_rng(1).random(20_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OutputFailed, match=r"cannot write .*: File too large"):
            save(figure, tmp_path / f"a.{kind}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "args, content",
    [
        (["calibrate", "trace", "FILE"], b'{"traceEvents":[' + b"{}," * 8_000_001),
        (["calibrate", "trace", "FILE"], b"[" + b"1," * 15_000_001),
        (["calibrate", "links", "FILE"], b"1 2 3\n" * 500_001),
        (["flows", "FILE"], b'{"cases":[' + b"{}," * 3_000_001),
        (["schedule", "FILE.csv"], b"0F0," * 1_000_001),
        (["collective", "alltoall", "--cluster", "dgx-h100", "--matrix", "FILE"], b"0\n" * 100_001),
        (["collective", "alltoall", "--cluster", "dgx-h100", "--matrix", "FILE"], b"0," * 5_000_001),
    ],
)
def test_values_are_counted_before_they_are_parsed(args: list[str], content: bytes, tmp_path: Path) -> None:
    args = [arg.replace("FILE", str(tmp_path / "x")) for arg in args]
    next(Path(arg) for arg in args if str(tmp_path) in arg).write_bytes(content)
    said = trainsim(*args)
    assert said.code == 2
    assert "too much for" in said.err
    assert "are read" in said.err


def test_flows_that_are_wrong_all_over_are_not_all_listed(tmp_path: Path) -> None:
    for content in ('{"cases":[' + "{}," * 20_000 + "{}]}", '{"cases":[{"links":[],"flows":[' + "{}," * 20_000 + "{}]}]}"):
        (tmp_path / "x").write_text(content)
        with pytest.raises(UserError) as told:
            read_cases(tmp_path / "x")
        assert 1000 <= len(told.value.faults) <= 1002
