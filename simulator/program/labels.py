"""Labels: step and operation of each row of a role's template. The engine never sees labels; metrics and figures join them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..kernels import Rowwise
from .operations import HOST, AnyOp, Collective, Compute, Transfer, Wait
from .program import Stage, Step

Array = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Labels:
    """The rows of one role, each with the step and the operation from which the row was made."""

    steps: tuple[Step, ...]
    ops: tuple[AnyOp, ...]
    step: Array
    op: Array
    lanes: tuple[str, ...]
    """Names of the lanes of the template."""
    axes: tuple[str, ...]
    """For each of `ops`, the axis under which its time is counted: "" for compute, `HOST` for launches."""
    stages: tuple[Stage, ...]
    pipeline: int = 0
    """The pipeline coordinate of the role."""
    columns: dict[Any, Any] = field(default_factory=dict)
    """Values of all `ops` by name, computed once for the labels of all roles."""

    def __repr__(self) -> str:
        return f"Labels({len(self.step):,} rows)"

    @cached_property
    def is_compute(self) -> Array:
        return self._of_kind(Compute)

    @cached_property
    def is_transfer(self) -> Array:
        """Whether each row is an end of a transfer between two ranks."""
        return self._of_kind(Transfer)

    @cached_property
    def is_launch(self) -> Array:
        """Whether each row is a launch on the host; a launch belongs to the step of the launched operation."""
        found: Array = self.numbered_axes((HOST,)) == 0
        return found

    @cached_property
    def is_wait(self) -> Array:
        """Whether each row does nothing but wait."""
        return self._of_kind(Wait)

    @cached_property
    def axis(self) -> Array:
        """The axis of each row; "" for compute."""
        return np.array(self.axes)[self.op]

    @cached_property
    def phase(self) -> Array:
        return self._of_step([step.phase for step in self.steps])

    @cached_property
    def stage(self) -> Array:
        """The number of the stage of each row in model order; -1 for rows without a stage."""
        return self._of_step([self.stages[s.stage].number if s.stage >= 0 else -1 for s in self.steps])

    @cached_property
    def chunk(self) -> Array:
        return self._of_step([self.stages[s.stage].chunk if s.stage >= 0 else -1 for s in self.steps])

    @cached_property
    def microbatch(self) -> Array:
        return self._of_step([step.microbatch for step in self.steps])

    @cached_property
    def iteration(self) -> Array:
        return self._of_step([step.iteration for step in self.steps])

    def numbered_axes(self, axes: Sequence[str]) -> Array:
        """For each row, the index of its axis among `axes`, or -1."""
        number = {name: at for at, name in enumerate(axes)}
        column: Array = self._column(tuple(axes), lambda: np.array([number.get(name, -1) for name in self.axes], dtype=np.int64))
        return column[self.op]

    def in_phase(self, phase: str) -> Array:
        """Whether each row belongs to a step of a phase."""
        found: Array = np.array([step.phase == phase for step in self.steps], dtype=bool)[self.step]
        return found

    @cached_property
    def interrupted(self) -> Array:
        """A number for each row, different for rows that must stay separate when many rows are simulated as one."""
        number: Array = 2 * self.iteration + self.in_phase("optimizer")
        norm = np.flatnonzero(self.in_phase("norm"))
        number[norm] = -1 - norm
        return number

    @cached_property
    def kept_apart(self) -> Array:
        """A number for each row, equal for rows that need no distinction when the time of a rank is measured by cause."""
        optimizing = (self.phase == "optimizer") & self.is_compute
        number: Array = 4 * self.iteration + 2 * optimizing + self.is_compute
        return number

    @cached_property
    def kind(self) -> Array:
        """The kind of each row: the kind of the kernel or of the collective, or send, receive, or wait."""
        return self.of_op(_kind)

    @cached_property
    def _used(self) -> tuple[tuple[AnyOp, ...], Array]:
        """The operations that have rows, and the number of each row's among them."""
        used = np.bincount(self.op, minlength=len(self.ops)) > 0
        return tuple(self.ops[op] for op in np.flatnonzero(used).tolist()), (np.cumsum(used) - 1)[self.op]

    def calls_of_ops(self, calls: Array) -> Array:
        """How often each of `ops` runs, from the numbers of `calls` of the rows."""
        found: Array = np.bincount(self.op, calls, minlength=len(self.ops)).astype(np.int64)
        return found

    def total_flop(self, variant: int, calls: Array) -> int:
        """Flop of `ops` times their numbers of `calls`, by the `full` convention, on ranks of a variant."""
        of_op = self._column(variant, lambda: [op.flop_of(variant) if isinstance(op, Compute) else 0 for op in self.ops])
        return sum(n * of_op[at] for at, n in zip(np.flatnonzero(calls).tolist(), calls[calls > 0].tolist(), strict=True))

    def flop_of(self, variant: int = 0) -> Array:
        """Flop of each row by the `full` convention, on ranks of a variant of the program; 0 for rows other than compute."""
        return self.of_op(lambda op: op.flop_of(variant) if isinstance(op, Compute) else 0)

    @cached_property
    def payload_bytes(self) -> Array:
        return self.of_op(lambda op: op.payload_bytes if isinstance(op, (Collective, Transfer)) else 0)

    @cached_property
    def stream(self) -> Array:
        return self.of_op(lambda op: op.streams[0])

    def block(self, row: int) -> str:
        """The operator of a row in words, such as `layer 12 qkv`, with layers counted over the whole model."""
        op, step = self.ops[int(self.op[row])], self.steps[int(self.step[row])]
        if op.layer < 0 or step.stage < 0:
            return op.name
        layer = self.stages[step.stage].first_layer + op.layer
        return f"layer {layer} {op.name.split('.', 1)[-1]}"

    @property
    def blocks(self) -> list[str]:
        return [self.block(row) for row in range(len(self.op))]

    def of_op(self, value: Callable[[AnyOp], Any]) -> Array:
        """A value of the operation of each row, evaluated once for each operation that has rows."""
        ops, number = self._used
        column: Array = np.array([value(op) for op in ops])[number]
        return column

    def _of_kind(self, kind: type) -> Array:
        column: Array = self._column(kind, lambda: np.array([isinstance(op, kind) for op in self.ops], dtype=bool))
        return column[self.op]

    def _column(self, name: object, make: Callable[[], T]) -> T:
        """A value for each operation, rows or not, from those that are known or made now."""
        if name not in self.columns:
            self.columns[name] = make()
        found: T = self.columns[name]
        return found

    def _of_step(self, values: Any) -> Array:
        column: Array = np.array(values)[self.step]
        return column


def plain_name(op: AnyOp, name: str = "") -> str:
    """The name of an operation, or another one, without layer (`3.mlp_up.dgrad`) and number of a chunk or tensor (`logits#3`)."""
    name = name or op.name
    whole, _, rest = (name.split(".", 1)[-1] if op.layer >= 0 else name).partition("#")
    return whole + rest.lstrip("0123456789")


def _kind(op: AnyOp) -> str:
    if isinstance(op, Collective):
        return op.kind
    if isinstance(op, Transfer):
        return "send" if op.sends else "receive"
    if isinstance(op, Wait):
        return "wait"
    return op.kernel.op if isinstance(op.kernel, Rowwise) else op.kernel.family
