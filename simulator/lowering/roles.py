"""Roles: ranks of one pipeline coordinate that do different work, because their shares of a sequence differ.

Every role is lowered by itself, and the programs are joined: equal bodies are shared, the others get separate names.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..frozen import replace
from ..program.program import Body, Program, Role


def joined(programs: Sequence[Program], axis: str, coordinates: Sequence[tuple[int, ...]]) -> Program:
    """The program of ranks that run `programs[i]` at `coordinates[i]` along an axis."""
    bodies: dict[str, Body] = {}
    orders, roles = [], []
    for program, own in zip(programs, coordinates, strict=True):
        names = {}
        for name, body in program.bodies.items():
            names[name] = name if bodies.get(name, body) == body else f"{name}, {axis} {own[0]}"
            bodies[names[name]] = body
        orders += [tuple(step._replace(body=names[step.body]) for step in order) for order in program.orders]
        roles += [Role(pipeline, {axis: own}) for pipeline in range(len(program.orders))]
    return replace(programs[0], bodies=bodies, orders=tuple(orders), divided_roles=tuple(roles))
