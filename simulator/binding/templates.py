"""Compilation of a program into the engine's templates: the operations of every step as rows with their costs.

Bodies are compiled once and their columns copied for every step; only dependencies between steps are resolved step by step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.task import CORES, MEMORY, Array, Csr, offsets
from ..engine.template import Template
from ..errors import InvariantBroken
from ..kernels import KernelCost, Rowwise
from ..program.labels import Labels
from ..program.operations import COMPUTE, AnyOp, Collective, Compute, Matrix, Transfer
from ..program.program import END, LAST, PARAMETERS, Body, Key, Program, Role, Step

TRANSFER = "sendrecv"
"""The kind of a transfer between two ranks: a send on one rank and a receive on the other."""


@dataclass(frozen=True, eq=False, slots=True)
class _Compiled:
    """A compiled body: relations between its rows. Row i is operation `first` + i among the operations of all bodies."""

    first: int
    rows: int
    lane: Array
    """Pairs (row, lane), two columns."""
    after: Array
    """Pairs (row, row that it waits for), two columns."""
    named: Mapping[str, int]
    turns: Array


class Templates:
    """The templates of all roles of a program, with `labels` for their rows. With `shares`, communication may slow kernels."""

    def __init__(self, program: Program, cost: KernelCost, *, shares: bool = False) -> None:
        self.program, self.shares = program, shares
        self.ops: tuple[AnyOp, ...] = tuple(op for body in program.bodies.values() for op in body.ops)
        self.solo_ns = self._durations_ns(cost)
        self.resource = np.array([_resource(op) for op in self.ops], dtype=np.int64)
        self.charges: dict[tuple[str, int, Matrix], int] = {}
        """The distinct (kind, payload, matrix) triples of the program, numbered."""
        self.calls: dict[str, dict[int, tuple[str, int]]] = {name: {} for name in program.communicators}
        """Communicator -> number of a charge that it uses -> kind and payload bytes."""
        self.matrices: dict[int, Matrix] = {}
        """Charge -> the matrix of bytes of an uneven collective."""
        self.charge, self.communicator = np.zeros(len(self.ops), dtype=np.int64), np.full(len(self.ops), -1)
        self.axes = [""] * len(self.ops)
        self._number_collectives()
        self.lanes: dict[str, int] = {COMPUTE: 0}
        self.compiled: dict[str, _Compiled] = {}
        first = 0
        for name, body in program.bodies.items():
            self.compiled[name] = self._compile(body, first)
            first += len(body.ops)
        self.lane_names, self.axis_names = tuple(self.lanes), tuple(self.axes)
        self.columns: dict[Any, Any] = {}
        roles = [self._role(*of) for of in zip(program.roles, program.orders, strict=True)]
        self.templates, self.labels = tuple(template for template, _, _ in roles), tuple(labels for _, labels, _ in roles)
        self.slot_names = tuple(names for _, _, names in roles)
        """Role -> the communicator of each slot."""

    def _durations_ns(self, cost: KernelCost) -> Array:
        """The duration of every operation; a row for each variant of ranks, if there are several."""
        variants = len(self.program.variants) or 1
        kernels = [op.kernels() if isinstance(op, Compute) else () for op in self.ops]
        # layers share kernels, and the same object is found sooner than an equal one
        cost_ns = {number: cost(kernel) for number, kernel in {id(kernel): kernel for of in kernels for kernel in of}.items()}
        lasts = ([cost_ns[id(kernel)] for kernel in of] or [0] for of in kernels)
        solo_ns = np.array([each if len(each) == variants else each * variants for each in lasts], dtype=np.int64)
        solo_ns = np.ascontiguousarray(solo_ns.reshape(-1, variants).T)
        return solo_ns if self.program.variants else solo_ns[0]

    def _number_collectives(self) -> None:
        numbers = {name: i for i, name in enumerate(self.program.communicators)}
        for i, op in enumerate(self.ops):
            if isinstance(op, (Collective, Transfer)):
                kind, matrix = (TRANSFER, ()) if isinstance(op, Transfer) else (op.kind, op.matrix_bytes)
                self.charge[i] = charge = self.charges.setdefault((kind, op.payload_bytes, matrix), len(self.charges))
                self.calls[op.communicator][charge] = kind, op.payload_bytes
                if matrix:
                    self.matrices[charge] = matrix
                self.communicator[i] = numbers[op.communicator]
                self.axes[i] = self.program.communicators[op.communicator].axis

    def users_of(self, charge: int) -> list[int]:
        """The roles with a collective of a charge."""
        return [role for role, of in enumerate(self.templates) if (of.charge[of.slot >= 0] == charge).any()]

    def _compile(self, body: Body, first: int) -> _Compiled:
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
        lane, before = (np.array(pairs, dtype=np.int64).reshape(-1, 2) for pairs in (lanes, after))
        return _Compiled(first, len(body.ops), lane, before, named, np.array(body.turns, dtype=np.int64))

    def _role(self, role: Role, steps: tuple[Step, ...]) -> tuple[Template, Labels, tuple[str, ...]]:
        """The template of a role, its labels, and the communicator of each of its slots."""
        bodies = [self.compiled[step.body] for step in steps]
        rows = np.array([body.rows for body in bodies], dtype=np.int64)
        begins = offsets(rows)
        n, step = int(begins[-1]), np.repeat(np.arange(len(steps)), rows)
        op = np.arange(n) + np.repeat(np.array([body.first for body in bodies], dtype=np.int64) - begins[:-1], rows)
        after, lane = self._after(steps, bodies, begins), _shifted([body.lane for body in bodies], begins, columns=(0,))
        if any(step.pair >= 0 for step in steps):
            written = np.argsort(_sort_keys(steps, bodies, begins), kind="stable")
            row = np.argsort(written)  # the inverse: where each row of the bodies, joined one after the other, is written
            step, op, after = step[written], op[written], row[after]
            lane[:, 0] = row[lane[:, 0]]
            lane = lane[np.argsort(lane[:, 0], kind="stable")]
        communicator, names = self.communicator[op], tuple(self.program.communicators)
        used = np.flatnonzero(np.bincount(communicator[communicator >= 0]))
        slot = np.where(communicator >= 0, np.searchsorted(used, communicator), -1)
        preds = Csr.from_pairs(after[:, 0], after[:, 1], n)
        lanes = Csr.from_pairs(lane[:, 1], lane[:, 0], len(self.lanes))
        resource = self.resource[op] if self.shares else None
        template = Template(slot, self.solo_ns[..., op], self.charge[op], preds, lanes, resource)
        names_of, stages = (self.lane_names, self.axis_names), self.program.stages
        labels = Labels(steps, self.ops, step, op, *names_of, stages, role.pipeline, self.columns)
        return template, labels, tuple(names[number] for number in used.tolist())

    def _after(self, steps: tuple[Step, ...], bodies: list[_Compiled], begins: Array) -> Array:
        """All pairs (row, row that it waits for), within bodies and between steps."""
        made: defaultdict[int, dict[Key, int]] = defaultdict(dict)
        names, first = [body.named for body in bodies], begins[:-1].tolist()
        for (_, _, _, _, _, outputs, iteration, _, _), named, begin in zip(steps, names, first, strict=True):
            for name, key in outputs:
                made[iteration][key] = begin + named[name]
        rows, before = [], []
        for (_, _, _, _, after, _, iteration, _, waits), named, begin in zip(steps, names, first, strict=True):
            for key in after:
                rows.append(begin)
                before.append(made[iteration - (key[0] == PARAMETERS)].get(key, -1))
            for name, key in waits:
                rows.append(begin + named[name])
                before.append(made[iteration - (key[0] == PARAMETERS)].get(key, -1))
        if -1 in before:
            raise InvariantBroken(_missing_value(steps, made))
        within = _shifted([body.after for body in bodies], begins, columns=(0, 1))
        return np.concatenate([within, np.array([rows, before], dtype=np.int64).T])


def _missing_value(steps: Iterable[Step], made: Mapping[int, Mapping[Key, int]]) -> str:
    """Message about the values that a step waits for and that nothing produces."""
    waits = ((step, key) for step in steps for key in (*step.after, *(key for _, key in step.waits)))
    step, key = next((step, key) for step, key in waits if key not in made[step.iteration - (key[0] == PARAMETERS)])
    return f"{step.phase} of stage {step.stage} waits for {key}, which nothing produces"


def _resource(op: AnyOp) -> int:
    """The resource of its rank that limits an operation: kernels with sums of products need processors, others memory."""
    if not isinstance(op, Compute):
        return -1
    return MEMORY if isinstance(op.kernel, Rowwise) else CORES


def _follows(op: AnyOp, before: AnyOp) -> bool:
    """Whether the order of a stream already makes one operation wait for another. It does not wait for tails of transfers."""
    return not isinstance(before, Transfer) and bool(set(op.streams) & set(before.streams))


def _sort_keys(steps: tuple[Step, ...], bodies: list[_Compiled], begins: Array) -> Array:
    """Sort keys of rows: their own order, except that the rows of the two steps of a pair take turns, or alternate evenly."""
    turn = np.arange(int(begins[-1]), dtype=np.float64)
    pairs: dict[tuple[int, int], list[int]] = {}
    for at, step in enumerate(steps):
        if step.pair >= 0:
            pairs.setdefault((step.iteration, step.pair), []).append(at)
    for members in pairs.values():
        first, end = int(begins[members[0]]), int(begins[members[-1] + 1])
        taken = np.concatenate([bodies[at].turns for at in members])
        least, span = taken.min(initial=0), taken.max(initial=0) - taken.min(initial=0) + 1
        for at in members:
            rows, turns = int(begins[at + 1] - begins[at]), bodies[at].turns
            share = (turns - least) / span if len(turns) else (np.arange(rows) + 0.5) / rows
            turn[begins[at] : begins[at + 1]] = first + share * (end - first)
    return turn


def _shifted(pairs: list[Array], begins: Array, columns: tuple[int, ...]) -> Array:
    """Pairs of row numbers within bodies, converted to row numbers of the whole template."""
    joined = np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs])
    joined[:, columns] += np.repeat(begins[:-1], [len(p) for p in pairs])[:, None]
    return joined
