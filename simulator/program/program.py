"""Program: bodies of operations, and the order in which every pipeline rank runs the bodies.

A body is like a function, and a step is a call of a body: the step names the values for which the first op of the body waits and
the results of the body, by *keys* such as `("activation", 3, 7)`. Steps with equal work share a body, so that a program of a
hundred thousand operations is a dozen bodies and a few thousand steps.

Order in a body means data flow: an op waits for the previous op, unless `after` names other ops. A `detached` op is outside this
chain: later ops do not wait for a detached op unless they name the op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..frozen import replace
from ..kernels import Gemm, Split
from .operations import AnyOp, Collective, Communicator, Compute, Op, Transfer

Key = tuple[str | int, ...]
"""The name of a value that passes from step to step: `("activation", stage, microbatch)` is the input of the stage."""

WAIT = "wait"
"""Phase of a step in which a rank waits for transfers."""
ACTIVATION, GRADIENT, PARAMETERS = "activation", "gradient", "parameters"
"""First elements of keys that cross ranks or training steps: the input of a stage, the gradient of its output, a bucket of its
weights. A step that waits for parameters waits for the parameters of the previous training step."""
LOSS = "loss"
"""First element of the keys of the last stage's results."""

END = "end"
"""Among the outputs of a step, the name for the last op of the body's chain, whose end makes the result available."""
LAST = "last"
"""Among the outputs of a step, the name for the last op on the compute stream, whose end completes the body on the rank."""


EXPERTS = "experts"
Bucket = tuple[int, str]
"""Parameters that are reduced, and gathered, together: first layer within the stage, or -1; "layer", or "attention" or "mlp" as
units of sharded state of their own; "experts", "embedding", "head"."""


def bucket_of(op: AnyOp) -> Bucket:
    """The bucket of the parameters of an operator."""
    if op.layer >= 0:
        layer, name = op.unit or (op.layer, "layer")
        return layer, EXPERTS if isinstance(op, Compute) and op.expert else name
    return op.layer, "embedding" if isinstance(op, Compute) and op.split is Split.LOOKUP else "head"


@dataclass(frozen=True)
class Body:
    """A sequence of operations."""

    ops: tuple[AnyOp, ...]
    turns: tuple[int, ...] = ()
    """In a pair, the turn of each operation: lower turns of both bodies come first, on every stream. Empty where the operations
    of both bodies alternate evenly."""

    @cached_property
    def parameters_by_bucket(self) -> tuple[Mapping[Bucket, int], Mapping[Bucket, int]]:
        """Number of parameters of each bucket: the trained ones, and all."""
        learning, all_of_them = dict[Bucket, int](), dict[Bucket, int]()
        for op in self.ops:
            if isinstance(op, Compute) and op.parameters:
                for of in (all_of_them,) if op.frozen else (learning, all_of_them):
                    of[bucket_of(op)] = of.get(bucket_of(op), 0) + op.parameters
        return learning, all_of_them

    @cached_property
    def narrow_parameters_by_bucket(self) -> Mapping[Bucket, int]:
        """Number of parameters of each bucket that belong to GEMMs in the narrow format of the job."""
        found = dict[Bucket, int]()
        for op in self.ops:
            if isinstance(op, Compute) and op.parameters and isinstance(op.kernel, Gemm) and op.kernel.dtype:
                found[bucket_of(op)] = found.get(bucket_of(op), 0) + op.parameters
        return found

    @cached_property
    def calls(self) -> tuple[tuple[str, type[Op]], ...]:
        """The communicators that it uses, each with `Collective` or `Transfer`, in the order of their first uses."""
        return tuple(dict.fromkeys((op.communicator, type(op)) for op in self.ops if isinstance(op, (Collective, Transfer))))


class Step(NamedTuple):
    """One call of a body: phase, stage and microbatch, the keys to wait for, and the keys of the results."""

    body: str
    phase: str
    stage: int = -1
    microbatch: int = -1
    after: tuple[Key, ...] = ()
    """The keys for which the first op of the body waits."""
    outputs: tuple[tuple[str, Key], ...] = ()
    """(name of an op, or END or LAST; the key of its result)."""
    iteration: int = 1
    """The training step of the call. In a step from one norm to the next, most calls are of step 1, as they are made."""
    pair: int = -1
    """Steps of a rank with the same number (not -1) run together: their operations take turns on every stream."""
    waits: tuple[tuple[str, Key], ...] = ()
    """(name of an op; a key for which the op waits, besides the ops of the body)."""

    def in_iteration(self, iteration: int) -> Step:
        """The same call in another training step; written out because `_replace` takes several times as long."""
        return self if self.iteration == iteration else tuple.__new__(Step, (*self[:6], iteration, *self[7:]))


@dataclass(frozen=True, slots=True)
class Stage:
    """The `number`-th slice of the model in pipeline order. Where microbatches take two directions, each stage exists twice.

    A `share` is a stage of one rank's rows of the embedding, or of the head; the stages of layers then hold the rest of both.
    """

    number: int
    rank: int
    chunk: int
    first_layer: int
    layers: int
    embedding: bool
    head: bool
    share: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """Ranks with equal steps: all ranks of a pipeline coordinate, or only the ranks at certain coordinates of other axes."""

    pipeline: int
    coordinates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Mesh axis -> the coordinates along the axis; an axis that is left out has all coordinates."""


@dataclass(frozen=True, slots=True)
class Program:
    """The bodies, steps and communicators of the ranks of every role in a training step."""

    stages: tuple[Stage, ...]
    """Instances of stages, one direction after the other; the `stage` of a step is an index of this tuple."""
    bodies: Mapping[str, Body]
    orders: tuple[tuple[Step, ...], ...]
    """Role -> its steps."""
    communicators: Mapping[str, Communicator]
    divided_roles: tuple[Role, ...] = ()
    """The role of each order; empty where every pipeline coordinate is a role, until a pass divides the roles."""
    variants: tuple[tuple[int, ...], ...] = ()
    """Coordinates along ep of the ranks that run each variant: the same operations, some of them with other numbers of rows
    (`Compute.rows_of_variants`). Empty where all ranks of a role are alike."""

    def __repr__(self) -> str:
        steps = sum(map(len, self.orders))
        return (
            f"Program({self.ranks:,} pipeline ranks, {len(self.stages):,} stages, {steps:,} calls of {len(self.bodies):,} bodies)"
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The role of each order."""
        return self.divided_roles or tuple(map(Role, range(len(self.orders))))

    @property
    def ranks(self) -> int:
        """Number of pipeline coordinates."""
        return 1 + max((role.pipeline for role in self.roles), default=-1)

    def orders_of(self, pipeline: int) -> tuple[tuple[Step, ...], ...]:
        """The steps of every role of a pipeline coordinate."""
        return tuple(order for role, order in zip(self.roles, self.orders, strict=True) if role.pipeline == pipeline)

    def with_bodies(self, change: Callable[[Body], Iterable[AnyOp]]) -> Program:
        """The program with every body replaced by the operations that `change` makes of the body."""
        return replace(self, bodies={name: Body(tuple(change(body))) for name, body in self.bodies.items()})

    def with_communicators(self, *new: Communicator) -> Program:
        return replace(self, communicators={**self.communicators, **{c.name: c for c in new}})


def first_forward(steps: Iterable[Step]) -> dict[int, int]:
    """The position of the first forward step of each stage among the steps of a rank, in ascending order."""
    first: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.phase == "F":
            first.setdefault(step.stage, i)
    return first
