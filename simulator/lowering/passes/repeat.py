"""Several training steps in a row: the same orders again, each step's first operations after the last one's parameters."""

from __future__ import annotations

from dataclasses import replace

from ...program.program import PARAMETERS, Key, Program, Step


def repeat(program: Program, steps: int) -> Program:
    """The program run `steps` times. A forward pass waits until its stage's parameters have been gathered."""
    gathered = {key for order in program.orders for step in order for _, key in step.outputs if key[0] == PARAMETERS}
    orders = tuple(
        tuple(_again(step, iteration, gathered) for iteration in range(steps) for step in order) for order in program.orders
    )
    return replace(program, orders=orders)


def _again(step: Step, iteration: int, gathered: set[Key]) -> Step:
    needs = (PARAMETERS, step.stage)
    if not iteration or step.phase != "F" or needs not in gathered:
        return replace(step, iteration=iteration) if iteration else step
    return replace(step, iteration=iteration, after=(*step.after, needs))
