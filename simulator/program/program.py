"""A program: bodies of operations, and the order in which every pipeline rank runs them.

A body is a function, a step is its call: the step says which values the body's first op waits for and what its results
are called, by *keys* such as `("activation", 3, 7)`. Bodies are shared by all steps that do the same, so that a program
of a hundred thousand operations is a dozen bodies and a few thousand steps.

Operations name streams, communicators and each other, never ranks or hardware. Order in a body means data flow: an op waits for
the op before it, unless it says what it waits for (`after`). A `detached` op stands beside that chain: later ops do not wait for
it unless they name it. Passes find each other's ops by fields: the operator that an op belongs to (`operator`), its part of a
training step and its purpose. Names are for people and for references; no pass reads what one says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ..kernels import Kernel, Part, Split

COMPUTE = "compute"
"""The stream of a rank's own kernels. Communication runs on a stream per axis, transfers on one per edge and kind."""
HOST = "host"
"""The stream of the thread that launches a rank's operations, and what waiting for it counts for."""


class Purpose(Enum):
    """What a pass put an op into the program for."""

    REDUCE = "reduce"
    """The sum of activations, or of their gradients, over a tensor-parallel group; AGREE is one over the whole vocabulary."""
    AGREE = "agree"
    GATHER = "gather"
    """The activations, or their gradients, of all tokens; REGATHER is of an input, once more for its weight gradient."""
    REGATHER = "regather"
    CAST = "cast"
    CAST_CACHED_WEIGHTS = "cast cached weights"
    ACCUMULATE = "accumulate"
    """A weight gradient added to those of earlier microbatches."""
    REDUCE_GRADIENTS = "reduce gradients"
    REDUCE_TIED_TABLE = "reduce tied table"
    """The gradient of a table that the first and the last stage share."""
    NORM = "norm"
    UPDATE = "update"
    GATHER_PARAMETERS = "gather parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What every operation has: a name that is unique in its body, the streams that it occupies, what it waits for."""

    name: str
    streams: tuple[str, ...]
    after: tuple[str, ...] | None = None
    """Names of earlier ops of the same body; None for the last op of its chain so far."""
    detached: bool = False
    layer: int = -1
    """The layer that it belongs to, counted within its stage; -1 for none."""
    purpose: Purpose | None = None
    """None for an operator of the model itself, and for what moves between stages."""
    part: Part = Part.FORWARD
    """The part of a training step that it belongs to; of what stands beside an operator, that of the operator."""
    operator: str = ""
    """The name of the forward op of the operator that it belongs to, its own if it is that; "" for what belongs to none."""
    held_bytes: int = 0
    """Memory that is taken when it starts."""
    freed_bytes: int = 0
    """Memory that is given back when it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Op):
    """A kernel on the rank's own GPU."""

    kernel: Kernel
    split: Split = Split.SEQUENCE
    parameters: int = 0
    """Parameters that this op owns; only forward ops name them."""
    whole_parameters: int = 0
    """Of those, the ones that are never divided within a tensor-parallel group."""
    adds_gradient: bool = False
    """Whether it adds to the gradient of a parameter: weight gradients, and backward kernels of norms, which make both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Op):
    """A collective over the group that `communicator` names. The payload of a gather or a scatter is the whole tensor."""

    communicator: str
    kind: str
    payload_bytes: int
    matrix_bytes: tuple[tuple[int, ...], ...] = ()
    """Of an all-to-all that is not even: what each member has for each other one, in the order of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Op):
    """One end of a point-to-point transfer: `sends` at its source, not at its target."""

    communicator: str
    payload_bytes: int
    sends: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Op):
    """A point that all of its streams pass together. It takes no time."""


AnyOp = Compute | Collective | Transfer | Wait

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

    def with_bodies(self, change: Callable[[Body], Iterable[AnyOp]]) -> Program:
        """Every body with the operations that `change` makes of it."""
        return replace(self, bodies={name: Body(tuple(change(body))) for name, body in self.bodies.items()})

    def with_communicators(self, *new: Communicator) -> Program:
        return replace(self, communicators={**self.communicators, **{c.name: c for c in new}})


def first_forward(steps: Iterable[Step]) -> dict[int, int]:
    """The first forward step of each stage, by its position among a rank's steps, in that order."""
    first: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.phase == "F":
            first.setdefault(step.stage, i)
    return first
