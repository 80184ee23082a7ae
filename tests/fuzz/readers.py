"""Every reader of the program: what it reads, and a call that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import simulator as sim
from simulator.commands._saved_outcomes import SavedOutcomes, version
from simulator.config import token_shares
from simulator.errors import SimulatorError

from ..commandline import SMALL, trainsim
from . import seeds

MOST_GPUS = 512
"""Clusters up to this size are wired too."""


@dataclass(frozen=True)
class Reader:
    """Valid inputs, the ending of their files, and what reads one."""

    seeds: tuple[bytes, ...]
    suffix: str
    read: Callable[[Path], None]
    weight: int = 1
    """How many of the inputs are its share."""


class Broken(AssertionError):
    """What no input may cause."""


def heard(refusal: str) -> None:
    """Is told every refusal; a test listens."""


def _python(call: Callable[[Path], object]) -> Callable[[Path], None]:
    """A call that returns, or raises an error with a message and no traceback of ours."""

    def read(path: Path) -> None:
        try:
            call(path)
        except SimulatorError as error:
            if error.exit_code not in (2, 3) or not str(error).strip():
                raise Broken(f"{type(error).__name__}: {error}") from error
            heard(str(error))

    return read


def _command(*args: str) -> Callable[[Path], None]:
    """A command that ends with 0, 2 or 3, one JSON value on stdout, and nothing that a terminal acts on."""

    def read(path: Path) -> None:
        said = trainsim(*(str(path) if arg == "FILE" else arg for arg in args), "--json")
        if said.code not in (0, 2, 3) or "Traceback" in said.err:
            raise Broken(said.err[-4000:])
        _ = said.record
        if not all(line.isprintable() for line in said.err.split("\n")):
            raise Broken(f"not escaped: {said.err!r}"[:4000])
        if said.code:
            heard(said.err)

    return read


def _cluster(path: Path) -> None:
    found = sim.cluster(path)
    if found.gpus <= MOST_GPUS:
        _ = found.wiring


def _fabric(path: Path) -> None:
    from simulator.config import fabric_files

    fabric_files.text(fabric_files.load(str(path)))


def _profile(path: Path) -> None:
    sim.cluster("dgx-h100", gpu={"name": "h100", "profile": str(path)})


def _setting(path: Path) -> None:
    """The file holds what was typed after --set."""
    base = path.with_name("base.yaml")
    base.write_text(SMALL)
    sim.load(base, [path.read_bytes().decode("utf-8", "surrogateescape")])


def _data(kind: str, name: str) -> bytes:
    from simulator.config import catalog

    return catalog.files(kind)[name].read_bytes()


def _raw(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


def _kernel_fits() -> bytes:
    from simulator.config import catalog

    return next(iter(sorted((catalog.folder("gpus").parent / "kernels").glob("*h100*.yaml")))).read_bytes()


def _outcomes() -> bytes:
    lines = ({"version": of, "scenario": "ab12", "outcome": {"step_s": 1.5}} for of in ("cd34", version()))
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def readers() -> dict[str, Reader]:
    """Every reader by name."""
    kernels, collectives, training = (
        (text.encode(), seeds.zipped(text)) for text in (seeds.KERNELS, seeds.COLLECTIVES, seeds.TRAINING)
    )
    return {
        "scenario": Reader(_raw(*seeds.SCENARIOS), ".yaml", _python(sim.load), 4),
        "jobs": Reader(_raw(seeds.JOBS), ".yaml", _python(sim.load), 2),
        "cluster": Reader(_raw(*seeds.CLUSTERS), ".yaml", _python(_cluster), 4),
        "gpu": Reader((_data("gpus", "h100"),), ".yaml", _python(lambda path: sim.cluster("dgx-h100", gpu=str(path))), 2),
        "model": Reader((_data("models", "llama3-8b"),), ".yaml", _python(sim.model), 2),
        "hugging face": Reader(_raw(seeds.HUGGING_FACE), ".json", _python(sim.model), 2),
        "fabric": Reader((_data("fabrics", "ndr-ib"),), ".yaml", _python(_fabric), 2),
        "framework": Reader((_data("frameworks", "megatron-core-2025"),), ".yaml", _python(sim.framework), 2),
        "profile": Reader((_kernel_fits(),), ".yaml", _python(_profile), 2),
        "flows": Reader(_raw(seeds.FLOWS), ".json", _command("flows", "FILE"), 4),
        "schedule": Reader(_raw(seeds.SCHEDULE, seeds.SCHEDULE_SPLIT), ".csv", _command("schedule", "FILE"), 4),
        "nccl-tests": Reader(_raw(seeds.NCCL, seeds.NCCL_JSON), ".txt", _command("calibrate", "links", "FILE"), 3),
        "trace": Reader((seeds.TRACE.encode(), seeds.zipped(seeds.TRACE)), ".json", _command("calibrate", "trace", "FILE"), 4),
        "kernels": Reader(kernels, ".csv", _command("validate", "--kind", "kernels", "FILE"), 3),
        "fit": Reader(kernels, ".csv", _command("calibrate", "fit", "FILE", "--gpu", "h100"), 2),
        "collectives": Reader(collectives, ".csv", _command("validate", "--kind", "collectives", "FILE"), 3),
        "outcomes": Reader((_outcomes(),), ".jsonl", _python(SavedOutcomes)),
        "training": Reader(training, ".csv", _command("validate", "--kind", "training", "FILE")),
        "matrix": Reader(
            _raw(seeds.MATRIX), ".csv", _command("collective", "alltoall", "--cluster", "dgx-h100", "--matrix", "FILE")
        ),
        "shares": Reader(_raw("expert,tokens\n0,3\n1,1\n"), ".csv", _python(token_shares.read)),
        "shares in a list": Reader(_raw("[3, 1.5, 0]"), ".json", _python(token_shares.read)),
        "setting": Reader(_raw(*seeds.SETTINGS), ".txt", _python(_setting), 3),
    }
