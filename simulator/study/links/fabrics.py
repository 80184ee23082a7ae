"""Fabrics in files: the constants of links and the measured curves of collectives, one YAML file each in topologies/fabrics.

A file describes the links inside a node, or the network across nodes, or both; curves measured across nodes name the fabric
that was inside. `results/collectives/make.py` writes those that ship, `trainsim calibrate links` those of one's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ...costs.curves import Curve
from ...costs.links import Across, Inside
from ...costs.theory import Algorithm, Kind
from ...costs.tuner import Choice
from ...errors import UserError, did_you_mean
from ...files import read_bounded
from ...units import BYTES, BYTES_PER_SECOND, KIB, LATENCY, SECONDS
from .. import catalog
from ..documents.checked import validated
from ..documents.document import Document
from ..documents.source import parse, read
from ..documents.strict import Contradiction, Field, Strict, quantity

MOST_KNOTS = 64

Rate = Annotated[float, quantity(BYTES_PER_SECOND)]
Latency = Annotated[float, quantity(LATENCY)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**20)]


class InsideSchema(Strict):
    """Links inside a node."""

    rate: Rate
    launch: Latency
    step: Latency
    efficiency: Share
    fill: Latency
    pair_efficiency: Annotated[float, Field(gt=0, le=2)] = 1.0
    nvls_efficiency: Annotated[float, Field(ge=0, le=1)] = 0.0
    island: Annotated[int, Field(ge=0, le=1024)] = 0
    beyond: Rate | None = None
    beyond_efficiency: Share = 1.0
    mesh: Annotated[int, Field(ge=0, le=1024)] = 0
    flags: Annotated[float, Field(ge=1, le=100)] = 1.0
    flags_size: Annotated[float, quantity(BYTES)] = 256.0 * KIB
    pair: Rate | None = None
    to_nics: bool = False

    def contradictions(self) -> Iterator[Contradiction]:
        if self.island and self.beyond is None:
            yield "beyond", " is missing: the rate between islands", 'write it like "31.5 GB/s"'


class AcrossSchema(Strict):
    """The network between nodes."""

    nic: Rate
    nics: Count
    crossing: Latency
    efficiency: Share
    rendezvous: Annotated[float, Field(ge=1, le=100)]
    rendezvous_size: Annotated[float, quantity(BYTES)]
    sharp: bool = False
    adaptive: bool = False
    nvls: bool = True


class CurveSchema(Strict):
    """One measured series."""

    kind: Kind
    algorithm: Algorithm = "auto"
    ranks: Annotated[int, Field(ge=2, le=2**20)]
    nodes: Count = 1
    inside: str | None = None
    sizes: Annotated[list[Annotated[float, quantity(BYTES)]], Field(min_length=1, max_length=MOST_KNOTS)]
    times: Annotated[list[Annotated[float, quantity(SECONDS)]], Field(min_length=1, max_length=MOST_KNOTS)]
    error: Annotated[float, Field(ge=0, le=10)]
    source: str = ""

    def contradictions(self) -> Iterator[Contradiction]:
        if len(self.sizes) != len(self.times):
            yield "times", f": {len(self.times)} of them for {len(self.sizes)} sizes", "one time for each size"
        elif any(b <= a for a, b in zip(self.sizes, self.sizes[1:], strict=False)):
            yield "sizes", " do not rise", "smallest first, each once"
        if not all(self.times):
            yield "times", " hold a zero", "leave out what takes no time"
        if self.ranks % self.nodes:
            yield "ranks", f": {self.ranks} do not sit evenly on {self.nodes} nodes", f"{self.nodes} of them, or a multiple"


class ChoiceSchema(Strict):
    """One line of what somebody laid down: up to which sizes the library takes which algorithm."""

    kind: Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "alltoall"]
    algorithm: str
    size_up_to: Annotated[float, quantity(BYTES)] | None = None
    nodes_up_to: Count | None = None

    def contradictions(self) -> Iterator[Contradiction]:
        known, name = catalog.files("collectives"), self.name
        if name not in known:
            yield "algorithm", f": there is none called {self.algorithm!r}", did_you_mean(name, list(known))
        elif self.kind not in catalog.module("collectives", name).KINDS:
            yield "algorithm", f": {name} does no {self.kind}", "`trainsim catalog collectives` says what each does"

    @property
    def name(self) -> str:
        """The algorithm as it is known here."""
        return catalog.written("collectives", self.algorithm)


class FabricSchema(Strict):
    """A file of topologies/fabrics."""

    about: str
    provenance: Literal["measured", "theoretical"]
    source: str
    inside: InsideSchema | None = None
    across: AcrossSchema | None = None
    choices: Annotated[list[ChoiceSchema], Field(default_factory=list)]
    curves: Annotated[list[CurveSchema], Field(default_factory=list)]

    def contradictions(self) -> Iterator[Contradiction]:
        if self.inside is None and self.across is None:
            yield "", " describes neither links inside a node nor a network across nodes", "give inside:, across: or both"
        for i, curve in enumerate(self.curves):
            if curve.nodes > 1 and self.across is None:
                yield f"curves.{i}.nodes", f": {curve.nodes}, and no network across nodes", "describe it under across:"
            if self.inside is None and curve.inside is None:
                yield f"curves.{i}", " names no fabric inside the nodes", "inside: nvlink4-nvswitch"


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links inside a node, or across nodes, or both, and what was measured on them."""

    name: str
    about: str
    provenance: str
    source: str
    inside: Inside | None = None
    across: Across | None = None
    curves: tuple[Curve, ...] = ()
    choices: tuple[Choice, ...] = ()
    """Which algorithm its library takes up to which size, where that is known better than by NCCL's own reckoning."""


Loader = Callable[[str], Fabric]


def folder() -> Path:
    """Where the fabrics are that ship."""
    return catalog.folder("fabrics")


def names() -> list[str]:
    """Every fabric that ships."""
    return list(catalog.files("fabrics"))


def load(name: str) -> Fabric:
    """A fabric by name, or by the path of a file of one's own."""
    if catalog.is_path(name):
        return _fabric(read(Path(name)), Path(name).stem)
    if catalog.plain(name) not in names():
        raise UserError(f"no fabric {name!r}", hint=did_you_mean(catalog.plain(name), names()))
    return _fabric(read(folder() / f"{catalog.plain(name)}.yaml"), catalog.plain(name))


def outline(name: str) -> Fabric:
    """A fabric that ships, without its curves, which are most of its file and stand at its end."""
    path = folder() / f"{catalog.plain(name)}.yaml"
    outlined = read_bounded(path, catalog.MOST_BYTES, "a fabric").decode("utf-8").partition("\ncurves:")[0]
    return _fabric(parse(outlined, str(path)), catalog.plain(name))


def _fabric(document: Document, name: str) -> Fabric:
    schema: FabricSchema = validated(FabricSchema, document)
    inside = _inside(name, schema.inside) if schema.inside else None
    across = _across(name, schema.across) if schema.across else None
    choices = tuple(Choice(c.kind, c.name, c.size_up_to or math.inf, c.nodes_up_to or math.inf) for c in schema.choices)
    curves = []
    for curve in schema.curves:
        within = inside if curve.inside is None else load(curve.inside).inside
        if within is None:
            raise UserError(f"{curve.inside!r} describes no links inside a node", where=document.where(("curves",)))
        knots = tuple(zip(curve.sizes, curve.times, strict=True))
        over = across if curve.nodes > 1 else None
        source = f"{name}: {curve.source}" if curve.source else name
        own = (curve.kind, curve.algorithm, curve.ranks, curve.nodes, knots, curve.error, within, over, source, choices)
        curves.append(Curve(*own))
    return Fabric(name, schema.about, schema.provenance, schema.source, inside, across, tuple(curves), choices)


def _inside(name: str, schema: InsideSchema) -> Inside:
    return Inside(
        name,
        schema.rate,
        schema.launch,
        schema.step,
        schema.efficiency,
        schema.fill,
        schema.pair_efficiency,
        schema.nvls_efficiency,
        schema.island,
        schema.beyond or 0.0,
        schema.beyond_efficiency,
        schema.mesh,
        schema.flags,
        schema.flags_size,
        schema.pair or 0.0,
        schema.to_nics,
    )


def _across(name: str, schema: AcrossSchema) -> Across:
    return Across(
        name,
        schema.nic,
        schema.nics,
        schema.crossing,
        schema.efficiency,
        schema.rendezvous,
        schema.rendezvous_size,
        schema.sharp,
        schema.adaptive,
        schema.nvls,
    )
