"""No input may end in a traceback, a hang, or without bounds: every reader refuses in words what it cannot read.

The slow test reads 10,000 mutated inputs, the same ones every time, each within 10 s and 1 GiB. What it once found stands
here as a fast test of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import pytest

from ..commandline import trainsim
from . import seeds, worker
from .readers import Reader, readers
from .worker import MOST_S, inputs

INPUTS = 10_000
READERS = readers()
PROCESSES = 2
LONGEST_S = 900


def shares() -> dict[str, int]:
    """How many inputs each reader gets: at least 10,000 in all."""
    whole = sum(reader.weight for reader in READERS.values())
    return {name: -(-INPUTS * reader.weight // whole) for name, reader in READERS.items()}


def found(name: str, count: int) -> list[str]:
    """What some inputs broke, in a process that bounds each of them."""
    command = [sys.executable, "-m", "tests.fuzz.worker", name, "0", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    broken = [f"{line['reader']} {line['number']}: {line['wrong']}" for line in lines if "wrong" in line]
    if not any("done" in line for line in lines):
        broken.append(f"{name}: the process ended with {done.returncode}, {done.stderr[-4000:]}")
    return broken


@pytest.mark.slow
def test_ten_thousand_mutated_inputs_are_read_or_refused_in_words() -> None:
    wanted = shares()
    assert sum(wanted.values()) >= INPUTS
    with ThreadPoolExecutor(PROCESSES) as pool:
        broken = [one for some in pool.map(found, wanted, wanted.values()) for one in some]
    assert not broken, f"{len(broken)} inputs, the first: {broken[0]}"


@pytest.mark.parametrize("name", READERS)
def test_what_is_mutated_is_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all mutations would be refused for the same reason."""
    if name in NOT_YET:
        pytest.skip(NOT_YET[name])
    monkeypatch.chdir(tmp_path)
    refused: list[str] = []
    monkeypatch.setattr("tests.fuzz.readers.heard", refused.append)
    for seed in READERS[name].seeds:
        (tmp_path / f"input{READERS[name].suffix}").write_bytes(seed)
        READERS[name].read(tmp_path / f"input{READERS[name].suffix}")
    assert not refused


NOT_YET = {
    "hugging face": "such a config is not a model's file: it is refused with a hint",
    "training": "tables of whole steps are not predicted yet",
}


@pytest.mark.parametrize("name", READERS)
def test_some_inputs_of_every_reader(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of the same inputs, fast."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"input{READERS[name].suffix}"
    for number in range(8):
        file.write_bytes(inputs(name, READERS[name], number))
        READERS[name].read(file)


def for_ever(path: Path) -> None:
    while path.exists():
        pass


@pytest.mark.parametrize(("read", "told"), [(lambda path: 1 / 0, "ZeroDivisionError"), (for_ever, "TooLong")])
def test_the_worker_tells_what_breaks(read: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    """The slow test can fail: an error is told, and what never ends is stopped."""
    was = signal.signal(signal.SIGALRM, worker._stop)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "MOST_S", 0.2)
            assert told in worker._broken_by(Reader((b"",), ".txt", read), b"x", tmp_path / "a.txt")
    finally:
        signal.signal(signal.SIGALRM, was)


DIGITS, DEEP = "9" * 5000, "[" * 50_000 + "]" * 50_000
EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "pid": 0, "tid": 1, "args": {}}


def trace_of(*changes: dict[str, object]) -> str:
    return json.dumps({"traceEvents": [{**EVENT, **change} for change in changes]})


def kernels_with(**cells: str) -> str:
    row = {"gpu": "h100", "op": "attention", "dtype": "bf16", "batch": "2", "seq": "64", "heads": "8", "head_dim": "64"} | cells
    names = seeds.KERNELS.splitlines()[0].split(",")
    return f"{','.join(names)}\n{','.join(row.get(name, '') for name in names)}\n"


NESTED = trace_of(*({"name": f"op{i}", "ts": i, "dur": 20_000 - 2 * i} for i in range(5000)))
ADAM = {"name": "aten::_fused_adam_", "args": {"Input Dims": [[[10**4000, 10**4000]]]}}
MANY_DIMENSIONS = {"name": "aten::add", "args": {"Input Dims": [[2**61] * 600] * 2, "Input type": ["c10::BFloat16"] * 2}}
CONCRETE = {
    "name": "aten::_flash_attention_forward",
    "args": {"Input Dims": [[4, 3, 4]] * 3 + [[3]], "Input type": ["c10::BFloat16"] * 3, "Concrete Inputs": [DIGITS, "²"]},
}
FOUND: dict[str, tuple[str, str]] = {
    "a route that is a number": ("flows", '{"cases": [{"links": [], "flows": [{"size_B": 1, "route": 7}]}]}'),
    "a matrix of one rank": ("matrix", "0"),
    "a case without a name": ("flows", '{"cases": [{"links": [], "flows": 5}]}'),
    "flows of thousands of digits": ("flows", f'{{"cases":[{DIGITS}]}}'),
    "flows nested deeply": ("flows", f'{{"cases":{DEEP}}}'),
    "a route of many lists": (
        "flows",
        '{"cases": [{"links": [], "flows": [{"size_B": 1, "route": ' + "[" * 600 + "]" * 600 + "}]}]}",
    ),
    "nccl-tests of thousands of digits": ("nccl-tests", f'{{"args":{DIGITS}}}'),
    "nccl-tests nested deeply": ("nccl-tests", f'{{"args":{DEEP}}}'),
    "nccl-tests of a size beyond all floats": ("nccl-tests", seeds.NCCL_JSON.replace("1048576", "1" + "0" * 400)),
    "a line of spaces": ("nccl-tests", seeds.NCCL.replace("Rank  0", f"Rank 0{' ' * 20_000}")),
    "a rank of thousands of digits": ("nccl-tests", seeds.NCCL.replace("Rank  0", f"Rank  {DIGITS}")),
    "a trace of thousands of digits": ("trace", f'{{"traceEvents":[{DIGITS}]}}'),
    "a trace nested deeply": ("trace", f'{{"traceEvents":{DEEP}}}'),
    "a process that is a list": ("trace", trace_of({"pid": [1]})),
    "a thread that is a mapping": ("trace", trace_of({"tid": {}})),
    "a kernel's process that is a list": ("trace", trace_of({"args": {"External id": 1}}, {"cat": "kernel", "pid": [1]})),
    "a launch's process that is a list": ("trace", trace_of({}, {"cat": "cuda_runtime", "pid": [1]})),
    "operators nested deeply": ("trace", NESTED),
    "a tensor of more elements than can be printed": ("trace", trace_of(ADAM)),
    "a tensor of hundreds of dimensions": ("trace", trace_of(MANY_DIMENSIONS)),
    "an argument of thousands of digits": ("trace", trace_of(CONCRETE)),
    "a copy of more bytes than can be printed": ("trace", trace_of({"cat": "gpu_memcpy", "args": {"bytes": 10**4200}})),
    "more sequences than a float counts": ("kernels", kernels_with(batch="1e300", time_us="1")),
    "a wider head than a float counts": ("kernels", kernels_with(head_dim="1e300", time_us="1")),
    "a cell of spaces": ("fit", kernels_with(op="moe_ffn", variant=f"top_k{' ' * 20_000}x", time_us="1")),
    "a size beyond all floats in a fit": ("fit", kernels_with(heads="1e300", time_us="1")),
    "thousands of digits in a setting": ("setting", f"plan.{DIGITS}=4"),
    "no text in a setting": ("setting", "\udcff=\udcff"),
    "an architecture of thousands of digits": (
        "cluster",
        f"{seeds.CLUSTERS[0].replace('h100', '{name: h100, architecture: sm_' + DIGITS + '}')}",
    ),
}
"""What a fuzzer found, or an audit before it, by reader: made small. What is wrong took a traceback, or minutes."""


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_is_refused_in_words(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, content = FOUND[case]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"input{READERS[name].suffix}"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    began = perf_counter()
    READERS[name].read(file)
    assert perf_counter() - began < MOST_S


def test_a_size_of_thousands_of_digits_is_refused_in_words() -> None:
    said = trainsim("collective", "all_reduce", "--cluster", "dgx-h100", "-b", DIGITS)
    assert said.code == 2
    assert "is not a size" in said.err
