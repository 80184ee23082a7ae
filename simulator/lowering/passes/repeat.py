"""Training steps in a row: several from a standing start, or the one that every step of a long run is like.

Where every rank waits for the gradient norm, nothing is under way when that ends: all ranks begin anew together. So a step of a
long run is what happens from one norm to the next: the optimizer and the gathers of parameters of one training step, then the
passes and reductions of the next. That much is simulated, and nothing else (decision 010).
"""

from __future__ import annotations

from dataclasses import replace

from ...program.program import PARAMETERS, Program, Step

NORM = "norm"
"""The phase of the step in which a rank waits for the gradient norm."""


def repeat(program: Program, steps: int) -> Program:
    """The program run `steps` times from a standing start. The first finds its parameters gathered."""
    orders = tuple(tuple(_step_of(iteration, step) for iteration in range(steps) for step in order) for order in program.orders)
    return replace(program, orders=orders)


def between_norms(program: Program) -> Program:
    """One step of a long run: what follows the norm in one training step, and what leads to the norm of the next."""
    return replace(program, orders=tuple(_turned(order) for order in program.orders))


def _step_of(iteration: int, step: Step) -> Step:
    if iteration:
        return replace(step, iteration=iteration)
    after = tuple(key for key in step.after if key[0] != PARAMETERS)
    return replace(step, after=after, waits=tuple(wait for wait in step.waits if wait[1][0] != PARAMETERS))


def _turned(order: tuple[Step, ...]) -> tuple[Step, ...]:
    """A rank's steps from behind the norm to the norm; what waited for the norm waits for nothing."""
    at = next(i for i, step in enumerate(order) if step.phase == NORM)
    passed = {key for _, key in order[at].outputs}
    begins = (replace(step, after=tuple(key for key in step.after if key not in passed)) for step in order[at + 1 :])
    return (*begins, *(replace(step, iteration=1) for step in order[: at + 1]))
