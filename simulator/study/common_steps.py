"""The training steps that several scenarios are simulated for, so that their step times can be compared.

A step of a long run is compared with another one. Where a disturbance begins or ends, there is no long run, but a first step
from a standing start. If it begins or ends in some of the scenarios only, the others are first steps too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..config.document import Document
from ..config.reader import validated
from ..config.scenario import Perturb
from ..errors import UserError
from ..simulation.steady_state import has_transitions
from .grid import Axis

PERTURB = "perturb"
NOTE = (
    "perturb: a disturbance begins or ends in some of the scenarios, so that the step times of all of them are those of a first "
    "step, from a standing start"
)


def common_steps(base: Document, axes: Sequence[Axis]) -> int | None:
    """The number of steps of every combination of values: 1 if a disturbance begins or ends in some of them and in others not,
    else None, for the rule of a single scenario."""
    of_perturb = [axis for axis in axes if axis.place[:1] == (PERTURB,)]
    found = set[bool]()
    for values in product(*(axis.values for axis in of_perturb)) if of_perturb else ():
        document = base
        try:
            for axis, value in zip(of_perturb, values, strict=True):
                document = document.changed(axis.place, value, axis.mark(value))
            listed = document.at((PERTURB,))
            places = [(PERTURB, number) for number in range(len(listed) if isinstance(listed, list) else 0)]
            found.add(has_transitions([validated(Perturb, document, place) for place in places]))
        except UserError:  # these points cannot run
            continue
    return 1 if len(found) > 1 else None
