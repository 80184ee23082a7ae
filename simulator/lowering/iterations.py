"""Training steps of a program: several from a standing start, or the one step that represents every step of a long run.

Where every rank waits for the gradient norm, no work is in progress when the norm ends: all ranks continue together. So a step
of a long run extends from one norm to the next: the optimizer and the parameter gathers of one training step, then the passes
and reductions of the next. Only this interval is simulated (decision 010).
"""

from __future__ import annotations

from collections.abc import Set

from ..frozen import replace
from ..program.program import PARAMETERS, Key, Program, Step
from .passes.data_parallel import NORM


def repeat(program: Program, steps: int) -> Program:
    """The program repeated `steps` times from a standing start, with parameters already gathered before the first step."""
    orders = tuple(tuple(_step_of(iteration, step) for iteration in range(steps) for step in order) for order in program.orders)
    return replace(program, orders=orders)


def between_norms(program: Program) -> Program:
    """One step of a long run: the steps after the norm of one training step, then the steps up to the norm of the next."""
    return replace(program, orders=tuple(_from_norm_to_norm(order) for order in program.orders))


def _step_of(iteration: int, step: Step) -> Step:
    if iteration:
        return step.in_iteration(iteration)
    after = tuple(key for key in step.after if key[0] != PARAMETERS)
    waits = tuple(wait for wait in step.waits if wait[1][0] != PARAMETERS)
    return step._replace(after=after, waits=waits, iteration=iteration)


def _from_norm_to_norm(order: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps of a rank from after one norm to the next norm, without waits for the first norm."""
    at = next(i for i, step in enumerate(order) if step.phase == NORM)
    passed = {key for _, key in order[at].outputs}
    begins = (_without(step, passed) if _awaits(step, passed) else step for step in order[at + 1 :])
    return (*(step.in_iteration(0) for step in begins), *(step.in_iteration(1) for step in order[: at + 1]))


def _awaits(step: Step, keys: Set[Key]) -> bool:
    return not (keys.isdisjoint(step.after) and all(key not in keys for _, key in step.waits))


def _without(step: Step, keys: Set[Key]) -> Step:
    """The step without its waits for some keys."""
    after = tuple(key for key in step.after if key not in keys)
    return step._replace(after=after, waits=tuple(wait for wait in step.waits if wait[1] not in keys))
