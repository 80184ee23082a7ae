"""The space of a search: legal values of each part of a plan, from a file or the documented default, and all its plans.

Every combination of the values is a plan, except duplicates under another name: a schedule with a fixed number of chunks has that
number, and without a pipeline the schedule is 1f1b. A plan has a canonical text; equally good plans are ordered by their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from ..config import catalog
from ..config.document import Document, Mark, place_of, read
from ..config.reader import Grammar, Grammars, validated
from ..config.scenario import GRAMMARS, Scenario
from ..errors import must_be
from ..fields import Declared, Degree, Length, Text, documented
from ..plan.stage_layers import even
from ..study.grid import Axis, said

EVEN = "even"
WITHOUT_PIPELINE = "1f1b"
MOST_PLANS = 200_000
AXES_BESIDE = ("dp", "tp", "pp", "ep")
Beside = Literal["framework", "none", "dp", "tp", "pp", "dp+tp", "dp+pp", "tp+pp", "dp+tp+pp", "dp+pp+ep", "dp+tp+pp+ep"]
FRAMEWORK: Beside = "framework"
SOME = Length(1)
Kind = Literal["none", "zero1", "zero2", "zero3", "fsdp", "hsdp"]


@documented
@dataclass(frozen=True, slots=True)
class Space(Declared):
    """The values that each part of a plan may have in a search."""

    tp: Annotated[tuple[Degree, ...], SOME, "degrees of tensor parallelism"] = (1, 2, 4, 8)
    pp: Annotated[tuple[Degree, ...], SOME, "degrees of pipeline parallelism"] = (1, 2, 4, 8, 16)
    cp: Annotated[tuple[Degree, ...], SOME, "degrees of context parallelism"] = (1,)
    ep: Annotated[
        tuple[Degree, ...],
        "degrees of expert parallelism; none: that of the scenario, and powers of two that divide the experts, up to a node",
    ] = ()
    dp: Annotated[tuple[Degree, ...], "degrees of data parallelism; none: the GPUs divided by the other degrees"] = ()
    microbatch: Annotated[tuple[Degree, ...], SOME, "sequences in a microbatch"] = (1, 2, 4)
    schedule: Annotated[tuple[Annotated[str, Text("schedule")], ...], SOME, "schedules; without a pipeline it is 1f1b"] = (
        "1f1b",
        "interleaved",
    )
    chunks: Annotated[tuple[Degree, ...], SOME, "stages on a pipeline rank, for schedules that leave it open"] = (2, 4)
    sharding: Annotated[tuple[Kind, ...], SOME, "sharding of the state of the model"] = ("zero1",)
    recompute: Annotated[tuple[Literal["none", "selective", "full"], ...], SOME, "activations that backward passes recompute"] = (
        "none",
        "selective",
        "full",
    )
    split: Annotated[
        tuple[Literal["even", "lighter-last"], ...],
        SOME,
        "layers of the stages: even, or with a layer less on the last stage, which has the head",
    ] = ("even", "lighter-last")
    overlap: Annotated[
        tuple[Beside, ...],
        SOME,
        "communication beside compute: as in the scenario and its framework, none, or only that of these axes",
    ] = ("framework",)


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
    dp: int | None = None
    """None: the GPUs divided by the other degrees."""
    overlap: str = FRAMEWORK
    others: tuple[tuple[str, Any], ...] = ()
    """Other fields of the scenario that the search varies, by their dotted names."""

    @property
    def text(self) -> str:
        """The canonical text of the plan."""
        chunks = f" x {self.chunks}" if self.chunks > 1 else ""
        further = {"cp": self.cp, "ep": self.ep, "dp": self.dp or 0}
        words = [
            f"tp {self.tp} pp {self.pp}" + "".join(f" {name} {value}" for name, value in further.items() if value > 1),
            f"microbatch {self.microbatch}",
            f"{self.schedule}{chunks}",
            self.sharding,
            f"recompute {self.recompute}",
            *([self.split] if self.split != EVEN else []),
            *([f"overlap {self.overlap}"] if self.overlap != FRAMEWORK else []),
            *(f"{name}={said(value)}" for name, value in self.others),
        ]
        return ", ".join(words)

    @property
    def branch(self) -> tuple[object, ...]:
        """The key of the branch: what plans that differ only in their pipelines have in common."""
        return self.others, self.tp, self.cp, self.ep, self.dp, self.microbatch, self.sharding, self.recompute, self.overlap

    def plan_fields(self, layers: int) -> dict[str, Any]:
        """The fields of the plan of a model with `layers` layers."""
        return {
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.dp,
            "cp": self.cp,
            "ep": self.ep,
            "schedule": self.schedule,
            "chunks": self.chunks,
            "sharding": self.sharding,
            "recompute": self.recompute,
            "layout": self.layout(layers),
        }

    @property
    def overlap_fields(self) -> dict[str, bool]:
        """The fields of the overlap of the plan; none if it is that of the scenario."""
        return {} if self.overlap == FRAMEWORK else {axis: axis in self.overlap.split("+") for axis in AXES_BESIDE}

    def layout(self, layers: int) -> str | tuple[int, ...]:
        """The layers of every stage, in the form of a plan."""
        stages = self.pp * self.chunks
        if self.split == EVEN or stages < 2 or layers < stages:
            return EVEN
        last = even(layers, stages)[-1] - 1
        share, rest = divmod(layers - last, stages - 1)
        first = stages - 1 - rest  # the stages after the embedding have the remaining layers
        return (*[share] * first, *[share + 1] * rest, last)


def with_values(base: Document, values: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Document:
    """A document with other values of some fields, which have dotted names."""
    document = base
    for name, value in dict(values).items():
        document = document.changed(place_of(name), value, Mark("the search"))
    return document


def space_of(file: str | Path | Mapping[str, Any] | None) -> Space:
    """The space in a file or a mapping; the default if none is named. Omitted parts are as in the default."""
    must_be(file, (str, Path, Mapping, type(None)), "space", "a file or a mapping", 'space={"tp": [4, 8], "microbatch": [1]}')
    if file is None:
        return Space()
    return validated(Space, Document.of(file) if isinstance(file, Mapping) else read(Path(file)), (), SPACE_GRAMMARS)


def with_degrees_of_experts(space: Space, scenario: Scenario) -> Space:
    """The space with the degrees of expert parallelism that it leaves out; a model without experts has none but 1."""
    experts, within = scenario.model.experts, scenario.cluster.gpus_per_node
    if space.ep or not experts:
        return space if space.ep else replace(space, ep=(1,))
    powers = {2**n for n in range(within.bit_length()) if experts % 2**n == 0}
    return replace(space, ep=tuple(sorted({*powers, scenario.plan.ep})))


def choices(space: Space, axes: Sequence[Axis]) -> Iterator[Choice]:
    """All plans of a space, with the values of further fields."""
    others = [
        tuple(zip((axis.name for axis in axes), values, strict=True)) for values in product(*(axis.values for axis in axes))
    ]
    parts: tuple[Sequence[Any], ...] = (
        others,
        _pipelines(space),
        space.tp,
        space.cp,
        space.ep or (1,),
        space.dp or (None,),
        space.microbatch,
        space.sharding,
        space.recompute,
        space.overlap,
    )
    for other, (pp, schedule, chunks, split), tp, cp, ep, dp, microbatch, sharding, recompute, overlap in product(*parts):
        yield Choice(tp, pp, cp, ep, microbatch, schedule, chunks, sharding, recompute, split, dp, overlap, other)


def choice_by(space: Space, axes: Sequence[Axis], pick: Callable[[str, Sequence[Any]], Any]) -> Choice:
    """The plan of a space whose parts are picked by their names, each from its values."""
    names = ("tp", "pp", "cp", "ep", "microbatch", "schedule", "chunks", "sharding", "recompute", "split", "overlap")
    space = replace(space, ep=space.ep or (1,))
    picked = {name: pick(name, getattr(space, name)) for name in names}
    _, schedule, chunks, split = _pipeline(*(picked[name] for name in ("pp", "schedule", "chunks", "split")))
    others = tuple((axis.name, pick(axis.name, axis.values)) for axis in axes)
    alike = {"schedule": schedule, "chunks": chunks, "split": split, "dp": pick("dp", space.dp or (None,))}
    return Choice(**{**picked, **alike}, others=others)


def number_of_plans(space: Space, axes: Sequence[Axis]) -> int:
    """The number of plans of a space, computed without listing them."""
    degrees = (space.tp, space.cp, space.ep or (1,), space.dp or (None,))
    parts = (*degrees, space.microbatch, space.sharding, space.recompute, space.overlap)
    return len(_pipelines(space)) * prod(map(len, parts)) * prod(len(axis.values) for axis in axes)


def _pipelines(space: Space) -> list[tuple[int, str, int, str]]:
    """Degree, schedule, chunks and split of the pipelines of a space."""
    pipelines = product(space.pp, space.schedule, space.chunks, space.split)
    return list(dict.fromkeys(_pipeline(*pipeline) for pipeline in pipelines))


def _pipeline(pp: int, schedule: str, chunks: int, split: str) -> tuple[int, str, int, str]:
    """A pipeline in canonical form: without stages there is no choice of a schedule, and some schedules fix the number of
    chunks."""
    if pp == 1:
        return pp, WITHOUT_PIPELINE, 1, EVEN
    return pp, schedule, getattr(catalog.module("schedules", schedule), "CHUNKS", chunks), split
