"""From a program to the engine's templates: every step's body written out in rows, with costs for names.

Bodies are compiled once and their columns copied for every call; only what passes between steps is looked up step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..engine.skeleton import Template
from ..engine.task import Array, Csr, offsets
from ..errors import InvariantBroken
from ..kernels import KernelCost
from ..program.labels import Labels
from ..program.program import COMPUTE, END, LAST, PARAMETERS, AnyOp, Body, Collective, Compute, Key, Program, Role, Step, Transfer

TRANSFER = "sendrecv"
"""The kind of what moves between two ranks, a send to one and a receive to the other."""


@dataclass(slots=True)
class Charges:
    """The distinct (kind, payload) pairs of a program, numbered, and which communicators use which."""

    number: dict[tuple[str, int], int] = field(default_factory=dict)
    used_by: dict[str, set[int]] = field(default_factory=dict)

    def of(self, op: AnyOp) -> int:
        if not isinstance(op, (Collective, Transfer)):
            return 0
        if isinstance(op, Collective) and op.matrix_bytes:
            raise InvariantBroken(f"{op.name}: uneven collectives are not bound yet")
        what = (TRANSFER if isinstance(op, Transfer) else op.kind, op.payload_bytes)
        charge = self.number.setdefault(what, len(self.number))
        self.used_by.setdefault(op.communicator, set()).add(charge)
        return charge


@dataclass(frozen=True, eq=False, slots=True)
class _Compiled:
    """A body in columns."""

    first_op: int
    rows: int
    solo_ns: Array
    charge: Array
    communicator: Array
    """The number of the communicator in the program's table, or -1."""
    lane: Array
    """Pairs (row, lane), two columns."""
    after: Array
    """Pairs (row, row that it waits for), two columns."""
    named: Mapping[str, int]


@dataclass(frozen=True, eq=False, slots=True)
class Written:
    """The templates of all roles with what their rows stand for."""

    templates: tuple[Template, ...]
    labels: tuple[Labels, ...]
    slot_names: tuple[tuple[str, ...], ...]
    """Role -> the communicator of each slot."""
    charges: Charges


class Writer:
    """The program's bodies compiled once, from which `written` makes every role's template."""

    def __init__(self, program: Program, cost: KernelCost) -> None:
        self.program, self.cost, self.charges = program, cost, Charges()
        self.numbers = {name: i for i, name in enumerate(program.communicators)}
        self.lanes: dict[str, int] = {COMPUTE: 0}
        self.ops: list[AnyOp] = []
        self.compiled = {name: self._compile(body) for name, body in program.bodies.items()}
        axes = [getattr(program.communicators.get(getattr(op, "communicator", "")), "axis", "") for op in self.ops]
        self.axes = tuple(axes)

    def written(self) -> Written:
        slot_names = tuple(map(self._used, self.program.orders))
        pairs = [self._role(*of) for of in zip(self.program.roles, self.program.orders, slot_names, strict=True)]
        return Written(tuple(t for t, _ in pairs), tuple(labels for _, labels in pairs), slot_names, self.charges)

    def _compile(self, body: Body) -> _Compiled:
        first_op = len(self.ops)
        self.ops += body.ops
        named: dict[str, int] = {}
        after: list[tuple[int, int]] = []
        chain = last = -1
        for row, op in enumerate(body.ops):
            waits = ([chain] if chain >= 0 else []) if op.after is None else [named[name] for name in op.after]
            after += [(row, before) for before in waits if not _follows(op, body.ops[before])]
            named[op.name] = row
            chain = chain if op.detached else row
            last = row if COMPUTE in op.streams else last
        named[END] = chain if chain >= 0 else len(body.ops) - 1
        named[LAST] = last if last >= 0 else named[END]
        lanes = [(row, self.lanes.setdefault(s, len(self.lanes))) for row, op in enumerate(body.ops) for s in op.streams]
        return _Compiled(
            first_op,
            len(body.ops),
            np.array([self.cost(op.kernel) if isinstance(op, Compute) else 0 for op in body.ops], dtype=np.int64),
            np.array([self.charges.of(op) for op in body.ops], dtype=np.int64),
            np.array([self.numbers.get(getattr(op, "communicator", ""), -1) for op in body.ops], dtype=np.int64),
            np.array(lanes, dtype=np.int64).reshape(-1, 2),
            np.array(after, dtype=np.int64).reshape(-1, 2),
            named,
        )

    def _used(self, order: Sequence[Step]) -> tuple[str, ...]:
        """The communicators of some steps, in the order of the program's table."""
        columns = [self.compiled[name].communicator for name in dict.fromkeys(step.body for step in order)]
        used = set(np.concatenate([[-1], *columns]).tolist())
        return tuple(name for name, number in self.numbers.items() if number in used)

    def _role(self, role: Role, steps: tuple[Step, ...], slot_names: tuple[str, ...]) -> tuple[Template, Labels]:
        bodies = [self.compiled[step.body] for step in steps]
        rows = np.array([body.rows for body in bodies], dtype=np.int64)
        begins = offsets(rows)
        written = np.argsort(_turns(steps, begins), kind="stable")
        row = np.argsort(written)  # the inverse: where each row of the bodies, joined one after the other, is written
        after = row[self._after(steps, bodies, begins)]
        lane = _shifted([body.lane for body in bodies], begins, columns=(0,))
        lane = lane[np.argsort(row[lane[:, 0]], kind="stable")]
        slot_of = np.full(len(self.numbers) + 1, -1, dtype=np.int64)
        slot_of[[self.numbers[name] for name in slot_names]] = np.arange(len(slot_names))
        n, none = int(begins[-1]), np.zeros(0, dtype=np.int64)
        communicator, solo_ns, charge = (
            np.concatenate([none, *(getattr(body, name) for body in bodies)])[written]
            for name in ("communicator", "solo_ns", "charge")
        )
        template = Template(
            slot=slot_of[communicator],
            solo_ns=solo_ns,
            charge=charge,
            preds=Csr.from_pairs(after[:, 0], after[:, 1], n),
            lanes=Csr.from_pairs(lane[:, 1], row[lane[:, 0]], len(self.lanes)),
        )
        first_op = np.array([body.first_op for body in bodies], dtype=np.int64)
        step_of = np.repeat(np.arange(len(steps)), rows)
        op_of = np.arange(n) - begins[:-1][step_of] + first_op[step_of]
        columns = (step_of[written], op_of[written])
        labels = Labels(steps, tuple(self.ops), *columns, tuple(self.lanes), self.axes, self.program.stages, role.pipeline)
        return template, labels

    def _after(self, steps: tuple[Step, ...], bodies: list[_Compiled], begins: Array) -> Array:
        """All pairs (row, row that it waits for): within bodies, and between steps by key."""
        made: dict[tuple[int, Key], int] = {}
        for step, body, begin in zip(steps, bodies, begins.tolist(), strict=False):
            for name, key in step.outputs:
                made[step.iteration, key] = begin + body.named[name]
        between = []
        for step, body, begin in zip(steps, bodies, begins.tolist(), strict=False):
            waiting = [*((0, key) for key in step.after), *((body.named[name], key) for name, key in step.waits)]
            for row, key in waiting:
                at = (step.iteration - (key[0] == PARAMETERS), key)
                if at not in made:
                    raise InvariantBroken(f"{step.phase} of stage {step.stage} waits for {key}, which nothing produces")
                between.append((begin + row, made[at]))
        within = _shifted([body.after for body in bodies], begins, columns=(0, 1))
        return np.concatenate([within, np.array(between, dtype=np.int64).reshape(-1, 2)])


def _follows(op: AnyOp, before: AnyOp) -> bool:
    """Whether the order of a stream says that one operation waits for another. It takes no tail, which transfers have."""
    return not isinstance(before, Transfer) and bool(set(op.streams) & set(before.streams))


def _turns(steps: tuple[Step, ...], begins: Array) -> Array:
    """A number for every row by which rows are written: their own order, but the steps of a pair take turns, evenly."""
    turn = np.arange(int(begins[-1]), dtype=np.float64)
    pairs: dict[tuple[int, int], list[int]] = {}
    for at, step in enumerate(steps):
        if step.pair >= 0:
            pairs.setdefault((step.iteration, step.pair), []).append(at)
    for members in pairs.values():
        first, end = int(begins[members[0]]), int(begins[members[-1] + 1])
        for at in members:
            rows = int(begins[at + 1] - begins[at])
            turn[begins[at] : begins[at + 1]] = first + (np.arange(rows) + 0.5) / rows * (end - first)
    return turn


def _shifted(pairs: list[Array], begins: Array, columns: tuple[int, ...]) -> Array:
    """Pairs of rows within bodies as rows of the whole template."""
    joined = np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs])
    joined[:, columns] += np.repeat(begins[:-1], [len(p) for p in pairs])[:, None]
    return joined
