"""Fields of a scenario that are text with a grammar of its own: bandwidths of links, names of code, orders of axes."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..errors import UserError, did_you_mean, either, nearest, shown
from ..plan.mesh import Mesh
from ..units import BYTES_PER_SECOND, parse
from ..workload.job import ELEMENT_BYTES
from . import catalog

MOST_NICS = 1024
LATER_DTYPES = ("fp4", "fp8", "tf32", "fp64", "int8")
_NICS = re.compile(r"\s*(?:([0-9]{1,9})\s*[x×]\s*)?(.+)", re.DOTALL)


class Nics(NamedTuple):
    """The NICs of a node, and bytes/s of each per direction."""

    per_node: int
    bytes_per_s: float


def intra_node(text: Any) -> float:
    """ "NVSwitch 450 GB/s": bytes/s per GPU and direction."""
    kind, _, rate = _text(text, "NVSwitch 450 GB/s").strip().partition(" ")
    if kind.lower() not in ("nvswitch", "nvlink"):
        close = nearest(kind, ["NVSwitch"])
        raise UserError(
            f"{shown(text)} starts with no known kind of link",
            hint=(f"did you mean {close!r}? " if close else "") + 'write it like "NVSwitch 450 GB/s"',
        )
    return _rate(rate, text, "NVSwitch 450 GB/s")


def inter_node(text: Any) -> Nics:
    """ "8x400 Gbit/s": the NICs of a node, and bytes/s of each per direction."""
    match = _NICS.fullmatch(_text(text, "8x400 Gbit/s"))
    count, rate = match.groups() if match else (None, "")
    if not 1 <= int(count or 1) <= MOST_NICS:
        raise UserError(f"{shown(text)} has {count} NICs", hint=f"1 to {MOST_NICS} of them: 8x400 Gbit/s")
    return Nics(int(count or 1), _rate(rate, text, "8x400 Gbit/s"))


def _rate(rate: str, text: Any, example: str) -> float:
    try:
        return parse(rate, BYTES_PER_SECOND)
    except UserError as error:
        message, hint = error.faults[0].message, error.hint.replace(BYTES_PER_SECOND.hint, f'write it like "{example}"')
        raise UserError(f"{shown(text)}: {message}" if rate != text else message, hint=hint) from None


def _text(value: Any, example: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{shown(value)} is not text", hint=f'write it like "{example}"')
    return value


def shape(name: Any) -> str:
    """The name of a topology family."""
    found = catalog.module("shapes", _text(name, "rail-optimized"))
    if not (hasattr(found, "wire") and hasattr(found, "route")):
        raise UserError(f"{shown(name)} is no shape", hint="a shape has wire(cluster) and route(cluster, source, target)")
    return str(name)


def schedule(name: Any) -> str:
    """The name of a schedule, or of somebody's own."""
    catalog.module("schedules", _text(name, "1f1b"))
    return str(name)


def rank_order(text: Any) -> str:
    """Axes from the fastest varying to the slowest, such as "tp-dp-pp"."""
    try:
        Mesh.of({}, _text(text, "tp-cp-ep-dp-pp"))
    except UserError as error:
        raise UserError(error.faults[0].message.removeprefix("rank_order: "), hint=error.hint) from None
    return str(text)


def dtype(name: Any) -> str:
    """A number format that weights and activations can have."""
    if _text(name, "bf16").lower() in LATER_DTYPES:
        raise UserError(f"training in {name} is not modelled yet", hint=f"use {either(ELEMENT_BYTES)}")
    if name not in ELEMENT_BYTES:
        raise UserError(f"{shown(name)} is no number format", hint=did_you_mean(name, ELEMENT_BYTES))
    return str(name)


def nearest_divisor(whole: int, wanted: int) -> int:
    """The divisor of `whole` that is nearest to `wanted`; of two the smaller."""
    below = next(n for n in range(min(wanted, whole), 0, -1) if whole % n == 0)
    above = next((n for n in range(wanted, min(whole, 2 * wanted) + 1) if whole % n == 0), below)
    return min(below, above, key=lambda n: (abs(n - wanted), n))
