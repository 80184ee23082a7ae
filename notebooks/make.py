"""`make notebooks`: runs every NN_name.py of this folder (percent format) and writes NN_name.ipynb with what came out.

Run twice, it writes the same bytes, as long as what the cells print is the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def execute(script: Path) -> nbformat.NotebookNode:
    """The notebook of a script, with its outputs and nothing that depends on when or where it ran."""
    notebook = jupytext.read(script)
    client = NotebookClient(notebook, kernel_name="python3", record_timing=False, extra_arguments=["--log-level=ERROR"])
    client.execute(cwd=str(HERE))
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


def main(names: list[str]) -> None:
    for script in sorted(HERE.glob("[0-9]*.py")):
        if not names or script.stem in names:
            print(script.name, flush=True)
            nbformat.write(execute(script), script.with_suffix(".ipynb"))


if __name__ == "__main__":
    main(sys.argv[1:])
