"""Labels: what each row of a role's template stands for. The engine never sees them; metrics and figures join them back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import Rowwise
from .program import HOST, AnyOp, Collective, Compute, Stage, Step, Transfer, Wait

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Labels:
    """The rows of one role: for each the step and the operation that it came from."""

    steps: tuple[Step, ...]
    ops: tuple[AnyOp, ...]
    step: Array
    op: Array
    lanes: tuple[str, ...]
    """Names of the template's lanes."""
    axes: tuple[str, ...]
    """For each of `ops`, the axis that its time counts for, or "" for compute. That of launches is `HOST`."""
    stages: tuple[Stage, ...]
    pipeline: int = 0
    """The pipeline coordinate of the role."""

    def __repr__(self) -> str:
        return f"Labels({len(self.step):,} rows)"

    @cached_property
    def is_compute(self) -> Array:
        return self._of_op([isinstance(op, Compute) for op in self.ops])

    @cached_property
    def is_transfer(self) -> Array:
        """The rows that are an end of a transfer between two ranks."""
        return self._of_op([isinstance(op, Transfer) for op in self.ops])

    @cached_property
    def is_launch(self) -> Array:
        """The rows of the host, each of the step whose operation it launches."""
        return self._of_op([axis == HOST for axis in self.axes])

    @cached_property
    def is_wait(self) -> Array:
        """The rows at which the compute stream waits for transfers."""
        return self._of_op([isinstance(op, Wait) for op in self.ops])

    @cached_property
    def axis(self) -> Array:
        """The axis of each row, "" for compute."""
        return self._of_op(self.axes)

    @cached_property
    def phase(self) -> Array:
        return self._of_step([step.phase for step in self.steps])

    @cached_property
    def stage(self) -> Array:
        """The stage of each row in the order of the model, -1 for none."""
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

    @cached_property
    def kind(self) -> Array:
        """What the row does: the kernel's kind, the collective, send and receive, or wait."""
        return self._of_op([_kind(op) for op in self.ops])

    @cached_property
    def flop(self) -> Array:
        """Flop of each row by the `full` convention."""
        return self._of_op([op.kernel.model_flop if isinstance(op, Compute) else 0 for op in self.ops])

    @cached_property
    def payload_bytes(self) -> Array:
        return self._of_op([op.payload_bytes if isinstance(op, (Collective, Transfer)) else 0 for op in self.ops])

    @cached_property
    def stream(self) -> Array:
        return self._of_op([op.streams[0] for op in self.ops])

    def block(self, row: int) -> str:
        """The operator in words: `layer 12 qkv`, layers counted over the whole model."""
        op, step = self.ops[int(self.op[row])], self.steps[int(self.step[row])]
        if op.layer < 0 or step.stage < 0:
            return op.name
        layer = self.stages[step.stage].first_layer + op.layer
        return f"layer {layer} {op.name.split('.', 1)[-1]}"

    @property
    def blocks(self) -> list[str]:
        return [self.block(row) for row in range(len(self.op))]

    def _of_op(self, values: Any) -> Array:
        column: Array = np.array(values)[self.op]
        return column

    def _of_step(self, values: Any) -> Array:
        column: Array = np.array(values)[self.step]
        return column


def _kind(op: AnyOp) -> str:
    if isinstance(op, Collective):
        return op.kind
    if isinstance(op, Transfer):
        return "send" if op.sends else "receive"
    if isinstance(op, Wait):
        return "wait"
    return op.kernel.op if isinstance(op.kernel, Rowwise) else op.kernel.family
