"""Global constants of a step, beyond those of kernels, collectives and power: all numbers that were fitted to whole steps.

There are few, and each states how it was obtained, its interval and what it affects. None is specific to a source, a model or a
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from textwrap import wrap
from typing import Annotated

from ..fields import Declared, Length, Limits, Name
from . import catalog
from .document import read
from .reader import validated

FILE = "_step_constants.yaml"
HEAD = """# Global constants of a step, beyond those of kernels, collectives and power: at most eight, none of
# them of a source, a model or a GPU. results/calibration/make.py and results/validation/make.py write them.
constants:
"""
MOST_CONSTANTS = 8
Positive = Annotated[float, Limits(gt=0)]
NotNegative = Annotated[float, Limits(ge=0)]


@dataclass(frozen=True, slots=True)
class StepConstant(Declared):
    """A global constant of steps."""

    name: Annotated[Name, "name of the constant"]
    value: Annotated[Positive, "its value"]
    interval: Annotated[tuple[NotNegative, NotNegative], Length(2, 2), "its least and greatest value, from parts of the data"]
    obtained: Annotated[str, "how it was obtained"]
    moves: Annotated[str, "what it affects"]


@dataclass(frozen=True, slots=True)
class StepConstantsFile(Declared):
    """The file of all global constants of steps."""

    constants: Annotated[list[StepConstant], Length(0, MOST_CONSTANTS), "the constants"] = field(default_factory=list)


@cache
def step_constants() -> dict[str, StepConstant]:
    """All global constants of steps, by name."""
    return {each.name: each for each in validated(StepConstantsFile, read(catalog.folder("clusters") / FILE)).constants}


def text_with(constant: StepConstant) -> str:
    """The text of that file, with a new value of one constant."""
    return HEAD + "".join(map(_entry, {**step_constants(), constant.name: constant}.values()))


def _entry(constant: StepConstant) -> str:
    low, high = constant.interval
    lines = [f"  - name: {constant.name}", f"    value: {constant.value}", f"    interval: [{low}, {high}]"]
    for key in ("obtained", "moves"):
        lines += [f"    {key}: >-", *wrap(getattr(constant, key), 130, initial_indent=" " * 6, subsequent_indent=" " * 6)]
    return "\n".join([*lines, ""])


def arithmetic() -> float:
    """Factor on the times of GEMMs, attention and experts in a step, relative to a sustained loop of the same kernel."""
    return step_constants()["arithmetic in a step"].value


def beside_communication() -> float:
    """What arithmetic loses beside communication, over the share of multiprocessors that this holds."""
    return step_constants()["arithmetic beside communication"].value


def model_error() -> float:
    """Log-standard deviation of predicted steps that the errors of kernels and collectives leave unexplained."""
    return step_constants()["model error"].value
