"""Fields of a scenario that are text with a grammar of its own: bandwidths of links, names of code, orders of axes."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..costs.kernels.estimator import known_library
from ..errors import UserError, did_you_mean, either, nearest, shown
from ..plan.mesh import Mesh
from ..units import BYTES_PER_SECOND, parse
from . import catalog, fabric_files
from .reader import Boundary, Grammar
from .shipped_fits import shipped

MOST_NICS = 1024
MOST_SITES = 64
DRAWN = "vertices: [{name: gpu0, kind: gpu}, ...], links: [{from: gpu0, to: gpu1, capacity: 50 GB/s, latency: 1 us}, ...]"
_NICS = re.compile(r"\s*(?:([0-9]{1,9})\s*[x×]\s*)?(.+)", re.DOTALL)


class Nics(NamedTuple):
    """The NICs of a node, and bytes/s of each per direction."""

    per_node: int
    bytes_per_s: float


class Inside(NamedTuple):
    """How the GPUs of a node are joined, over how many links each if that was said, and bytes/s of each GPU per direction."""

    kind: str
    links: int | None
    bytes_per_s: float


def intra_node(text: Any) -> Inside:
    """ "NVSwitch 450 GB/s", "cube-mesh 6x25 GB/s": the kind of inside, and what a GPU sends over all its links together."""
    kind, _, rate = _text(text, "NVSwitch 450 GB/s").strip().partition(" ")
    plain = catalog.plain(kind)
    if plain != "nvlink" and not is_shape_with(plain, "inside"):
        known = ["NVSwitch", "NVLink", *shapes_with("inside")]
        close = nearest(kind, known)
        raise UserError(
            f"{shown(text)} starts with no known kind of link",
            hint=(f"did you mean {close!r}? " if close else "")
            + 'write it like "NVSwitch 450 GB/s"; the kinds are '
            + either(name for name in known if name != "nvswitch"),
        )
    count, each = _counted(rate, text, "NVSwitch 450 GB/s", "links")
    return Inside(plain, count, (count or 1) * each)


def _counted(rate: str, text: Any, example: str, what: str) -> tuple[int | None, float]:
    """A number of links, if there is one, and bytes/s of each."""
    match = _NICS.fullmatch(rate)
    count, each = match.groups() if match else (None, rate)
    if not 1 <= int(count or 1) <= MOST_NICS:
        raise UserError(f"{shown(text)} has {count} {what}", hint=f"1 to {MOST_NICS} of them: {example}")
    return int(count) if count else None, _rate(each, text, example)


def inter_node(text: Any) -> Nics:
    """ "8x400 Gbit/s": the NICs of a node, and bytes/s of each per direction."""
    count, each = _counted(_text(text, "8x400 Gbit/s"), text, "8x400 Gbit/s", "NICs")
    return Nics(count or 1, each)


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
    """The name of a topology family; of code that was not imported it is told elsewhere."""
    if catalog.is_code(name):
        return name
    found = catalog.module("shapes", _text(name, "rail-optimized"))
    if not any(hasattr(found, part) for part in ("fabric", "inside")) and not (
        hasattr(found, "wire") and hasattr(found, "route")
    ):
        hint = "a shape has fabric(cluster), or wire(cluster) and route(cluster, source, target)"
        raise UserError(f"{shown(name)} is no shape", hint=hint)
    text: str = name
    return text


def sites(value: Any) -> tuple[str, ...]:
    """The shapes of the sites of a wide-area cluster; a number of sites are so many of rails."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_SITES:
        return ("rail-optimized",) * value
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_SITES:
        raise UserError(f"{shown(value)} is no number of sites and no list of shapes", hint="sites: [rail-optimized, leaf-spine]")
    for name in value:
        _text(name, "rail-optimized")
        if catalog.plain(name) not in shapes_with("fabric") or catalog.plain(name) == "wan":
            known = [name for name in shapes_with("fabric") if name != "wan"]
            raise UserError(f"{shown(name)} cannot be the shape of a site", hint=did_you_mean(name, known))
    return tuple(value)


def is_shape_with(name: str, part: str) -> bool:
    """Whether the catalog has a shape of that name with such a function, such as `inside` or `fabric`; reads no other shape."""
    known = name in catalog.files("shapes")
    return known and hasattr(catalog.module("shapes", name), part)


def shapes_with(what: str) -> list[str]:
    """The shapes of the catalog that can be a node's `inside`, or a `fabric` of nodes, or that have an option."""
    found = {name: catalog.module("shapes", name) for name in catalog.files("shapes")}
    if what in ("inside", "fabric"):
        return [name for name, module in found.items() if hasattr(module, what)]
    return [name for name, m in found.items() if what in (*m.OPTIONS, *getattr(m, "OPTIONS_INSIDE", ()))]


def schedule(name: Any) -> str:
    """The name of a schedule, or of somebody's own; of code that was not imported it is told elsewhere."""
    if not catalog.is_code(name):
        catalog.module("schedules", _text(name, "1f1b"))
    text: str = name
    return text


def rank_order(text: Any) -> str:
    """Axes from the fastest varying to the slowest, such as "tp-dp-pp"."""
    try:
        Mesh.of({}, _text(text, "tp-cp-ep-dp-pp"))
    except UserError as error:
        raise UserError(error.faults[0].message.removeprefix("rank_order: "), hint=error.hint) from None
    return str(text)


def attention(text: Any) -> str:
    """A library of attention kernels of which some were measured, `unfused`, or nothing for the usual one of a GPU."""
    if isinstance(text, str) and not text:
        return ""

    return known_library(_text(text, "flash_attention"), shipped())


def fabric(text: Any) -> str:
    """A measured fabric by name, or the path of its file, or `ideal`; nothing for the usual one."""

    if isinstance(text, str) and catalog.is_path(text):
        return _fabric_file(text)
    name = catalog.plain(text) if isinstance(text, str) else None
    if name in ("", "ideal") or name in fabric_files.names():
        return str(name)
    raise UserError(f"no fabric {shown(text)}", hint=did_you_mean(str(text), ("ideal", *fabric_files.names())))


def _fabric_file(path: str) -> str:
    """A file that holds a fabric; what is wrong with it is told with its place."""

    try:
        fabric_files.load(path)
    except UserError as error:
        told = [f"{fault.where}: {fault.message}" if fault.where else fault.message for fault in error.faults]
        hint = next((fault.hint for fault in error.faults if fault.hint), "`trainsim calibrate links` writes one")
        raise UserError("\n    ".join(told), hint=hint) from None
    return path


BOUNDARY = Boundary({
    "attention": Grammar(attention, "flash_attention"),
    "fabric": Grammar(fabric, "ndr-ib"),
    "inter_node": Grammar(inter_node, "8x400 Gbit/s"),
    "intra_node": Grammar(intra_node, "NVSwitch 450 GB/s"),
    "rank_order": Grammar(rank_order, "tp-cp-ep-dp-pp"),
    "schedule": Grammar(schedule, "1f1b"),
    "shape": Grammar(shape, "rail-optimized"),
    "sites": Grammar(sites, "[rail-optimized, leaf-spine]", ("integer", "array")),
})  # fmt: skip
"""The kinds of text in a scenario."""
