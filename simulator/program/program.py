"""A program: bodies of operations, and the order in which every pipeline rank runs them.

A body is a function, a step is its call: the step says which values the body's first op waits for and what its results
are called, by *keys* such as `("activation", 3, 7)`. Bodies are shared by all steps that do the same, so that a program
of a hundred thousand operations is a dozen bodies and a few thousand steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from .op import AnyOp, Collective, Transfer

Key = tuple[str | int, ...]
"""Names a value that passes from step to step: `("activation", stage, microbatch)` is the input of that stage."""

ACTIVATION, GRADIENT, PARAMETERS = "activation", "gradient", "parameters"
"""What the keys that cross ranks or training steps begin with: a stage's input, the gradient of its output, a bucket of its
weights. What waits for parameters means those of the training step before."""
LOSS = "loss"
"""What the keys of the last stage's results begin with."""

END = "end"
"""Names, among the outputs of a step, the last op of its body's chain: when the result is there."""
LAST = "last"
"""Names the last op on the compute stream: when the rank is done with the body."""


@dataclass(frozen=True, slots=True)
class Body:
    """A sequence of operations."""

    ops: tuple[AnyOp, ...]

    def mapped(self, change: Callable[[AnyOp], Iterable[AnyOp]]) -> Body:
        """Each op replaced by what `change` makes of it."""
        return Body(tuple(new for op in self.ops for new in change(op)))


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a body: what it stands for, what it waits for, what its results are called."""

    body: str
    phase: str
    stage: int = -1
    microbatch: int = -1
    after: tuple[Key, ...] = ()
    """What the first op of the body waits for."""
    outputs: tuple[tuple[str, Key], ...] = ()
    """(name of an op, or END or LAST; the key of its result)."""
    iteration: int = 0
    """The training step that it belongs to."""
    pair: int = -1
    """Steps of a rank with the same number (not -1) run together: their operations take turns on every stream."""
    waits: tuple[tuple[str, Key], ...] = ()
    """(name of an op; a key that it waits for, besides what it waits for in the body)."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A family of groups of ranks: one group for each way to fix the coordinates that it does not vary.

    `axes` are the mesh axes along which a group extends. With `pipeline` the group has only those pipeline coordinates,
    in that order; a transfer's group is its source and its target.
    """

    name: str
    axis: str
    """What its time is reported under: tp, dp, pp ..."""
    axes: tuple[str, ...]
    pipeline: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A slice of the model in pipeline order: the `number`-th. Where microbatches take two directions it exists twice."""

    number: int
    rank: int
    chunk: int
    first_layer: int
    layers: int
    embedding: bool
    head: bool


@dataclass(frozen=True, slots=True)
class Role:
    """Ranks that do the same: those of a pipeline coordinate, or of these the ones at certain coordinates of other axes."""

    pipeline: int
    coordinates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Mesh axis -> the coordinates along it; all of them where an axis is left out."""


@dataclass(frozen=True, slots=True)
class Program:
    """What the ranks of every role do in a training step."""

    stages: tuple[Stage, ...]
    """Instances of stages, one direction after the other: what a step's `stage` means."""
    bodies: Mapping[str, Body]
    orders: tuple[tuple[Step, ...], ...]
    """Role -> its steps."""
    communicators: Mapping[str, Communicator]
    divided_roles: tuple[Role, ...] = ()
    """The role of each order; none where every pipeline coordinate is one, as it is until a pass divides them."""

    def __repr__(self) -> str:
        steps = sum(map(len, self.orders))
        return (
            f"Program({self.ranks:,} pipeline ranks, {len(self.stages):,} stages, {steps:,} calls of {len(self.bodies):,} bodies)"
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """Whose steps the orders are."""
        return self.divided_roles or tuple(map(Role, range(len(self.orders))))

    @property
    def ranks(self) -> int:
        """Pipeline coordinates."""
        return 1 + max((role.pipeline for role in self.roles), default=-1)

    def orders_of(self, pipeline: int) -> tuple[tuple[Step, ...], ...]:
        """The steps of every role of a pipeline coordinate."""
        return tuple(order for role, order in zip(self.roles, self.orders, strict=True) if role.pipeline == pipeline)

    def holders(self, stage: int) -> tuple[int, ...]:
        """The pipeline ranks that hold the same slice of the model as an instance of a stage, itself included."""
        return tuple(sorted(s.rank for s in self.stages if s.number == self.stages[stage].number))

    def with_bodies(self, change: Callable[[AnyOp], Iterable[AnyOp]]) -> Program:
        """Every op of every body replaced by what `change` makes of it."""
        return replace(self, bodies={name: body.mapped(change) for name, body in self.bodies.items()})

    def with_communicators(self, *new: Communicator) -> Program:
        return replace(self, communicators={**self.communicators, **{c.name: c for c in new}})

    def communicators_of(self, role: int) -> tuple[str, ...]:
        """The communicators that the steps of a role use, in the order of the program's table."""
        used = {
            op.communicator
            for name in {step.body for step in self.orders[role]}
            for op in self.bodies[name].ops
            if isinstance(op, (Collective, Transfer))
        }
        return tuple(name for name in self.communicators if name in used)


def first_forward(steps: Iterable[Step]) -> dict[int, int]:
    """The first forward step of each stage, by its position among a rank's steps, in that order."""
    first: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.phase == "F":
            first.setdefault(step.stage, i)
    return first
