"""The space of a search: what each part of a plan may be, read from a file or the documented default, and all its plans.

Every combination of the values is a plan, but for those that are another one by another name: a schedule with a fixed number of
chunks has that number, and without a pipeline the schedule is 1f1b. A plan has a canonical text; plans that are equally good
stand in the order of their texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from ..config import catalog
from ..config.document import Document, Mark, place_of, read
from ..config.reader import Grammar, Grammars, validated
from ..config.scenario import GRAMMARS
from ..fields import Declared, Degree, Text, documented
from ..plan.stage_layers import even
from ..study.grid import Axis, said

EVEN = "even"
WITHOUT_PIPELINE = "1f1b"
MOST_PLANS = 200_000
Kind = Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"]


@documented
@dataclass(frozen=True, slots=True)
class Space(Declared):
    """The values that each part of a plan may have in a search."""

    tp: Annotated[tuple[Degree, ...], "degrees of tensor parallelism"] = (1, 2, 4, 8)
    pp: Annotated[tuple[Degree, ...], "degrees of pipeline parallelism"] = (1, 2, 4, 8, 16)
    cp: Annotated[tuple[Degree, ...], "degrees of context parallelism"] = (1,)
    ep: Annotated[tuple[Degree, ...], "degrees of expert parallelism"] = (1,)
    microbatch: Annotated[tuple[Degree, ...], "sequences in a microbatch"] = (1, 2, 4)
    schedule: Annotated[tuple[Annotated[str, Text("schedule")], ...], "schedules; without a pipeline it is 1f1b"] = (
        "1f1b",
        "interleaved",
    )
    chunks: Annotated[tuple[Degree, ...], "stages on a pipeline rank, for schedules that leave it open"] = (2, 4)
    sharding: Annotated[tuple[Kind, ...], "sharding of the state of the model"] = ("zero1",)
    recompute: Annotated[tuple[Literal["none", "selective", "full"], ...], "what backward passes compute again"] = (
        "none",
        "selective",
        "full",
    )
    split: Annotated[
        tuple[Literal["even", "lighter-last"], ...],
        "layers of the stages: even, or with a layer less on the last stage, which has the head",
    ] = ("even", "lighter-last")


SPACE_GRAMMARS: Grammars = {"schedule": Grammar(GRAMMARS["schedule"].read, "1f1b")}


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan of a space."""

    tp: int
    pp: int
    cp: int
    ep: int
    microbatch: int
    schedule: str
    chunks: int
    sharding: str
    recompute: str
    split: str
    others: tuple[tuple[str, Any], ...] = ()
    """Other fields of the scenario that the search varies, by their dotted names."""

    @property
    def text(self) -> str:
        """The canonical text of the plan."""
        chunks = f" x {self.chunks}" if self.chunks > 1 else ""
        words = [
            f"tp {self.tp} pp {self.pp}" + f" cp {self.cp}" * (self.cp > 1) + f" ep {self.ep}" * (self.ep > 1),
            f"microbatch {self.microbatch}",
            f"{self.schedule}{chunks}",
            self.sharding,
            f"recompute {self.recompute}",
            *([self.split] if self.split != EVEN else []),
            *(f"{name}={said(value)}" for name, value in self.others),
        ]
        return ", ".join(words)

    @property
    def branch(self) -> tuple[object, ...]:
        """What plans have in common that differ in their pipelines only."""
        return self.others, self.tp, self.cp, self.ep, self.microbatch, self.sharding, self.recompute

    def plan_fields(self, layers: int) -> dict[str, Any]:
        """The fields of the plan of a model with so many layers."""
        return {
            "tp": self.tp,
            "pp": self.pp,
            "dp": None,
            "cp": self.cp,
            "ep": self.ep,
            "schedule": self.schedule,
            "chunks": self.chunks,
            "sharding": self.sharding,
            "recompute": self.recompute,
            "layout": self.layout(layers),
        }

    def layout(self, layers: int) -> str | tuple[int, ...]:
        """The layers of every stage, as a plan says it."""
        stages = self.pp * self.chunks
        if self.split == EVEN or stages < 2 or layers < stages:
            return EVEN
        last = even(layers, stages)[-1] - 1
        share, rest = divmod(layers - last, stages - 1)
        first = stages - 1 - rest  # the stages behind the embedding have the layers that are left over
        return (*[share] * first, *[share + 1] * rest, last)


def with_values(base: Document, values: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Document:
    """A document with other values of some fields, which have dotted names."""
    document = base
    for name, value in dict(values).items():
        document = document.changed(place_of(name), value, Mark("the search"))
    return document


def space_of(file: str | Path | Mapping[str, Any] | None) -> Space:
    """The space in a file or a mapping; the default where nothing is named. What a file leaves out is as in the default."""
    if file is None:
        return Space()
    return validated(Space, Document.of(file) if isinstance(file, Mapping) else read(Path(file)), (), SPACE_GRAMMARS)


def choices(space: Space, axes: Sequence[Axis]) -> Iterator[Choice]:
    """All plans of a space, with the values of further fields."""
    others = [
        tuple(zip((axis.name for axis in axes), values, strict=True)) for values in product(*(axis.values for axis in axes))
    ]
    pipelines = list(dict.fromkeys(_pipelines(space)))
    parts: tuple[Sequence[Any], ...] = (
        others,
        pipelines,
        space.tp,
        space.cp,
        space.ep,
        space.microbatch,
        space.sharding,
        space.recompute,
    )
    for other, (pp, schedule, chunks, split), tp, cp, ep, microbatch, sharding, recompute in product(*parts):
        yield Choice(tp, pp, cp, ep, microbatch, schedule, chunks, sharding, recompute, split, other)


def _pipelines(space: Space) -> Iterator[tuple[int, str, int, str]]:
    """Degree, schedule, chunks and split of pipelines, those that are the same several times."""
    for pp, schedule, chunks, split in product(space.pp, space.schedule, space.chunks, space.split):
        if pp == 1:
            yield pp, WITHOUT_PIPELINE, 1, EVEN
        else:
            yield pp, schedule, getattr(catalog.module("schedules", schedule), "CHUNKS", chunks), split
