"""What a shape cannot join, said before anything is built: too many points, too few ports, vertices that no link leads to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..options import Dragonfly
from ._direct import squarish, too_long, too_meshed
from .dragonfly import too_few_links
from .fat_tree import too_few_ports

Edge = tuple[str, str]
"""From one vertex to another."""


def of_points(shape: str, points: int, dims: Sequence[int] | None) -> tuple[str, str] | None:
    """What is wrong with so many points joined without a switch, GPUs of a node or nodes, and what to do about it."""
    if shape == "fully-connected":
        return too_meshed(points)
    if shape == "torus":
        return too_long(dims or squarish(points, 2))
    return too_long([points]) if shape == "ring" else None


def of_switches(shape: str, nics: int, radix: int | None, ports: Dragonfly) -> tuple[str, str, str] | None:
    """What is wrong with the switches that shall join so many NICs: the field that says it, the fault and a hint."""
    field, wrong = "", None
    if shape == "fat-tree" and radix:
        field, wrong = "radix", too_few_ports(nics, radix)
    elif shape == "dragonfly":
        field, wrong = "dragonfly", too_few_links(nics, ports)
    return (field, *wrong) if wrong else None


def unjoined(gpus: Sequence[str], links: Sequence[Edge]) -> Iterator[tuple[int, Edge]]:
    """GPUs, by number, that cannot reach the first or that it cannot reach, with the way that is missing."""
    reached = _within_reach(gpus[0], links)
    reaching = _within_reach(gpus[0], [(target, source) for source, target in links])
    for i, gpu in enumerate(gpus):
        if gpu not in reached or gpu not in reaching:
            yield i, (gpu, gpus[0]) if gpu in reached else (gpus[0], gpu)


def _within_reach(start: str, links: Sequence[Edge]) -> set[str]:
    leads: dict[str, list[str]] = {}
    for source, target in links:
        leads.setdefault(source, []).append(target)
    seen, todo = {start}, [start]
    while todo:
        new = [name for name in leads.get(todo.pop(), ()) if name not in seen]
        seen.update(new)
        todo += new
    return seen
