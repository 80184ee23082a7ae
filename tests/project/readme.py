"""The transcripts of the README and of pages of docs: what follows a command in them is what the command prints.

python -m tests.project.readme      # writes the present outputs into these pages
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from unittest import mock

from simulator.cli import run

README = Path(__file__).resolve().parents[2] / "README.md"
EXPLAIN = README.parent / "docs" / "explain.md"
SEARCH = README.parent / "docs" / "search.md"
CLUSTERS = README.parent / "docs" / "clusters.md"
PAGES = (README, EXPLAIN, SEARCH, CLUSTERS)
CONSOLE = re.compile(r"```console\n(.*?)```", re.S)
PYTHON = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.S)
RUN_AGAIN = ("$ trainsim ", "$ cat ")
TOOK = re.compile(r"^(took +).*$", re.M)


def transcript(block: str) -> str:
    """A console block with its `$ trainsim` and `$ cat` commands run again. Other commands stay as they are."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return "\n\n".join(f"{line}\n{said(line)}".rstrip() if line.startswith(RUN_AGAIN) else line for line in commands) + "\n"


def said(line: str) -> str:
    """What a command prints on both streams, with the time that it took left open."""
    if line.startswith("$ cat "):
        return Path(line.removeprefix("$ cat ")).read_text(encoding="utf-8").rstrip()
    words = shlex.split(line.removeprefix("$ trainsim "), comments=True)
    out = io.StringIO()
    chosen = "simulator.simulation.choose_engine"
    alone = mock.patch.multiple(chosen, _is_loaded=lambda: False, _is_kept=lambda: False)  # as without the extra `fast`
    with alone, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        run(words)
    return TOOK.sub(r"\1...", out.getvalue()).rstrip()


def printed(code: str) -> str:
    """What a Python block prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    return out.getvalue()


def rendered(text: str) -> str:
    """The README with every transcript made anew."""
    makes = re.compile(r"^\$ make", re.M)
    text = CONSOLE.sub(lambda m: m[0] if makes.search(m[1]) else f"```console\n{transcript(m[1])}```", text)
    return PYTHON.sub(lambda m: f"```python\n{m[1]}```\n\n```text\n{printed(m[1])}```", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
