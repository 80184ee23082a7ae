"""Options of a schedule in Python: their names, and the values that they may have, which are those of the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypedDict

from ..errors import Fault, UserError, described, did_you_mean
from ..program.slot import PerStage

LONGEST = 2**40
"""The longest duration, and the largest limit; neither has a unit."""
LETTERS = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W"}
MOST = {"ranks": 4096, "microbatches": 1_000_000, "chunks": 1024, "group": 1_000_000, "splits": 1024}
WORDS = {"objective": ("makespan", "span"), "memory_count": ("fw", "half")}
ABOVE_ZERO = ("memory_limit", "time_limit_s")
MAY_BE_OPEN = ("ranks", "microbatches", "group", "backward", "pair")


class Options(TypedDict, total=False):
    """Options of a schedule besides its ranks and microbatches. Durations have no unit."""

    chunks: int
    group: int | None
    splits: int
    memory_limit: float
    forward: PerStage
    backward: PerStage | None
    input_gradient: PerStage
    weight_gradient: PerStage
    pair: float | None
    comm: float
    objective: Literal["makespan", "span"]
    memory_count: Literal["fw", "half"]
    time_limit_s: float


def check(options: Mapping[str, Any]) -> None:
    """Raises `UserError` with all options that do not exist, or whose values are not legal."""
    faults = [fault for name, value in options.items() for fault in _faults(name, value)]
    if faults:
        raise UserError(faults=faults)


def _faults(name: str, value: Any) -> Iterator[Fault]:
    """The fault of an option, if it has one."""
    if name not in (*Options.__annotations__, *MOST):
        known = {letter: option for option, letter in {**LETTERS, "pair": "FB"}.items()}
        hint = f"in Python {name} is called {known[name]}" if name in known else did_you_mean(name, [*Options.__annotations__])
        yield Fault(f"a schedule has no option {name}", hint)
    elif value is None and name in MAY_BE_OPEN:
        return
    elif name in MOST:
        if not isinstance(value, Integral) or isinstance(value, bool) or not 1 <= int(value) <= MOST[name]:
            yield Fault(f"{name}: {described(value)} is no count", f"a whole number from 1 to {MOST[name]:,}")
    elif name in WORDS:
        if value not in WORDS[name]:
            yield Fault(f"{name}: {described(value)} is not known", " or ".join(WORDS[name]))
    elif name in ABOVE_ZERO:
        if not _is_number(value) or not 0 < value <= LONGEST:
            yield Fault(f"{name}: {described(value)} is not above 0", f"a number above 0, and at most {LONGEST:,}")
    else:
        several = value if name in LETTERS and isinstance(value, (list, tuple)) else [value]
        if wrong := [one for one in several if not _is_number(one) or not 0 <= one <= LONGEST]:
            yield Fault(f"{name}: {described(wrong[0])} is no duration", f"a number from 0 to {LONGEST:,}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
