"""The command line as tests call it: in this process, with all that it says."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

from simulator.cli import run

SMALL = """\
model: {layers: 8, hidden: 1024, heads: 16, vocab: 32000}
cluster: {name: dgx-h100, nodes: 2}
plan: {tp: 2, pp: 2}
job: {sequence_length: 1024, global_batch: 32}
"""
"""A scenario of 16 GPUs that takes a moment."""


@dataclass(frozen=True)
class Said:
    """The exit code of a command and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        """The one JSON value on stdout; anything else there is an error."""
        return json.loads(self.out)


def trainsim(*args: object) -> Said:
    """Runs a command."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(arg) for arg in args])
    return Said(code, out.getvalue(), err.getvalue())
