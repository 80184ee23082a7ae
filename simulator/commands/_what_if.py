"""The option --what-if of `run` and `explain`: the step with each change by itself, in one table, as JSON, and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ._show import picture_option, print_table, progress, say

if TYPE_CHECKING:
    from ..simulation.run import Run
    from ..study.what_if import WhatIf

Command = TypeVar("Command", bound=Callable[..., Any])
WHAT_IF_HELP = (
    "Simulate the step again with one change: gpu, nvlink, pcie, nic or host times a factor (nic=x2), or fields as in "
    "--set: plan.tp=4, perturb=[{rank: 3, speed: 0.5}]. "
    "May be repeated; each change is simulated by itself."
)


def what_if_options(command: Command) -> Command:
    """The options --what-if and --tornado."""
    command = picture_option("--tornado", help="Draw the time that each --what-if adds or saves.")(command)
    return click.option("--what-if", "what_ifs", metavar="CHANGE", multiple=True, help=WHAT_IF_HELP)(command)


def check_what_ifs(
    scenario: str, settings: tuple[str, ...], changes: tuple[str, ...], tornado: str | None, *, trust: bool
) -> None:
    """Raises `UserError` for all changes that cannot be made, before anything is simulated."""
    from ..errors import UserError

    if tornado and not changes:
        raise UserError("--tornado draws what-ifs, and there is none", hint="add --what-if nic=x2")
    if changes:
        from ..study.what_if import changed_scenarios

        changed_scenarios(scenario, changes, settings, trust=trust)


def changed_steps(
    scenario: str, settings: tuple[str, ...], changes: tuple[str, ...], run: Run, tornado: str | None, **options: Any
) -> WhatIf | None:
    """The step with each change, drawn into the file `tornado` if one is named; None without changes."""
    if not changes:
        return None
    from ..study.what_if import what_if

    with progress("simulating"):
        found = what_if(scenario, changes, settings, run=run, **options)
    if tornado:
        from ..figures.drawing import save
        from ..figures.tornado import tornado as drawn

        save(drawn(found), tornado)
    return found


def print_what_if(found: WhatIf) -> None:
    """A table of the step as it is, and with each change."""
    from ..units import show_bytes, show_s

    base = found.run.metrics
    rows = [["as it is", show_s(base.step_time_s), "", f"{base.mfu:.1%}", show_bytes(found.run.peak_memory_bytes), ""]]
    for one in found.outcomes:
        cells = ["", "", "", ""]
        if one.step_time_s is not None and one.fraction is not None and one.mfu is not None and one.peak_memory_bytes is not None:
            cells = [show_s(one.step_time_s), f"{one.fraction:+z.2%}", f"{one.mfu:.1%}", show_bytes(one.peak_memory_bytes)]
        rows.append([one.change, *cells, one.note])
    say()
    print_table(["what if", "step", "change", "MFU", "memory", ""], rows, right=(1, 2, 3, 4))
