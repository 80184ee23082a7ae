"""The block of a summary with the breakdown of the step time: share and seconds of every cause, side by side, and the largest
wait in words.

The causes exclude each other, are means over ranks, and add up to the step. All seconds of a block have the same number of
decimals, so that they can be compared at a glance.
"""

from __future__ import annotations

import math

from .result import Metrics

OF_AXES = {
    "tp": "tensor-parallel communication",
    "pp": "transfers between pipeline stages",
    "dp": "data-parallel communication",
    "cp": "context-parallel communication",
    "ep": "exchanges of experts",
    "offload": "copies to and from the host",
}
"""What the communication of an axis is."""
DIGITS = 5
"""Significant digits of the seconds of a whole step."""


def time_lines(m: Metrics, clocks_s: float | None, boards: int) -> list[tuple[str, str]]:
    """A line for each cause that takes time, lines for what lengthens the compute, and the largest wait.

    `clocks_s` is the time that sustained clocks add to the compute: the clocks of the slowest of `boards` boards.
    """
    lines: list[tuple[str, str]] = []

    def line(label: str, seconds: float, words: str) -> None:
        lines.append((label, f"{_share(seconds, m.step_time_s):>6}  {_in_seconds(seconds, m.step_time_s)}  {words}"))

    line("compute", m.busy_s, "of the step, mean over ranks: kernels of the model run")
    if m.slowed_s:
        line("- slow-down", m.slowed_s, "of it: kernels are slowed by communication beside them")
    if clocks_s is not None:
        board = f"the slowest of {boards:,} boards" if boards > 1 else "the board"
        line("- clocks", clocks_s, f"of it: kernels take longer than in short bursts, at sustained clocks of {board}")
    waits = _waits(m)
    for label, (seconds, words) in waits.items():
        line(label, seconds, words)
    if m.optimizer_s:
        line("optimizer", m.optimizer_s, "parameters are updated")
    seconds, words = max(waits.values(), default=(0.0, ""))
    if (share := _share(seconds, m.step_time_s)) != _share(0.0, m.step_time_s):
        lines.append(("largest wait", f"{words}, {share} of the step (why: `trainsim explain`)"))
    return lines


def _waits(m: Metrics) -> dict[str, tuple[float, str]]:
    """Seconds in which nothing runs, and what ranks wait for, by label."""
    waits = {"pipeline bubble": (m.bubble_fraction * m.step_time_s, "ranks wait for other stages")}
    for axis, seconds in m.exposed_s.items():
        waits[f"exposed {axis}"] = seconds, f"compute waits for {OF_AXES.get(axis, f'communication of {axis}')}"
    for axis, seconds in m.imbalance_s.items():
        waits[f"imbalance {axis}"] = seconds, f"ranks wait for slower members of their {axis} group"
    waits["launch overhead"] = m.launch_s, "GPUs wait for the host to launch kernels"
    return {label: (seconds, words) for label, (seconds, words) in waits.items() if seconds}


def _share(seconds: float, step_s: float) -> str:
    return f"{seconds / step_s:.1%}" if step_s else "0.0%"


def _in_seconds(seconds: float, step_s: float) -> str:
    """Seconds with as many decimals as give the step its digits, aligned on the right."""
    decimals = max(0, DIGITS - 1 - math.floor(math.log10(step_s))) if step_s else 0
    text = f"{seconds:,.{decimals}f}"
    if seconds and float(text.replace(",", "")) == 0:
        text = f"<{text[:-1]}1"
    return f"{text:>{DIGITS + 2}} s"
