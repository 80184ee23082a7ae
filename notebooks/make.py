"""Runs every notebook's script (`*.py`, percent format) and writes the `.ipynb` beside it, outputs and all.

    python notebooks/make.py [01_first_run ...]

The same kernel, the same library versions and the same code give the same file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def execute(script: Path) -> nbformat.NotebookNode:
    """The notebook of a script, executed in a fresh kernel in the repository's root."""
    notebook = jupytext.read(script, fmt="py:percent")
    NotebookClient(notebook, timeout=600, coalesce_streams=True, resources={"metadata": {"path": str(HERE.parent)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> None:
    chosen = sys.argv[1:] or [p.stem for p in sorted(HERE.glob("[0-9]*.py"))]
    for name in chosen:
        script = HERE / f"{name}.py"
        notebook = execute(script)
        script.with_suffix(".ipynb").write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(script.with_suffix(".ipynb").name)


if __name__ == "__main__":
    main()
